"""`ridgeline cost`: what a rate of work needs and costs, from records and a price book."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli import cost_words as words
from ridgeline.cli.bench import OUT
from ridgeline.cli.speak import Json, note, print_json, stdout, tell
from ridgeline.errors import InputError, unknown
from ridgeline.lab import OURS
from ridgeline.lab.judge import OLD_DAYS, Plan, Price, Service, parse_rate, parse_time
from ridgeline.lab.judge import cost as lab
from ridgeline.lab.judge import prices as book
from ridgeline.lab.record import record


def cost(
    rate: Annotated[str | None, typer.Option(metavar="N/PERIOD", help="1e6/day, 1200/h, 5000/s.")] = None,
    workload: Annotated[str | None, typer.Option(help="The workload whose records say how fast it goes.")] = None,
    records: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help=f"Records; repeat it. Else those of {OUT}.")
    ] = None,
    case: Annotated[str | None, typer.Option(metavar="K=V,…", help="Only cases with these values.")] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="No records: an item takes this long.")
    ] = None,
    batch: Annotated[int, typer.Option(help="With --time: items of a step of that time.")] = 1,
    device: Annotated[str, typer.Option(help="With --time: cpu or cuda, for the price.")] = "cuda",
    target: Annotated[float, typer.Option(help="How busy a machine may be.")] = lab.TARGET,
    peak: Annotated[float, typer.Option(help="The busiest hour's rate ÷ the mean.")] = 1.0,
    egress_bytes: Annotated[float, typer.Option(help="Bytes that leave the site per item.")] = 0.0,
    prices: Annotated[Path | None, typer.Option(metavar="FILE", help="A price book of your own.")] = None,
    price: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Take this price for its kind of device; repeat it.")
    ] = None,
    contender: Annotated[str, typer.Option(help="Whose times.")] = OURS,
    show_prices: Annotated[bool, typer.Option("--show-prices", help="List the price book and leave.")] = False,
    as_json: Json = False,
) -> None:
    """Say what a rate of work needs: machines, utilisation, backlog, dollars; and when a GPU pays.

    [dim]Examples:[/]

      ridgeline cost --workload embed --rate 1e6/day

      ridgeline cost --workload embed --rate 5000/s --records runs/ --prices mine.toml --peak 3 --json

      ridgeline cost --rate 1e6/day --time 0.5ms
    """
    known = book.books(prices)
    if show_prices:
        print_json([p.to_json() for p in known]) if as_json else stdout().print(words.book(known))
        return
    if rate is None:
        raise InputError("how much work is it? Give --rate, like 1e6/day, 1200/h or 5000/s.")
    wanted = parse_rate(rate)
    chosen = [book.named(known, name) for name in price or []]
    found, silent = _by_hand(time, batch, device) if time else _measured(records, workload, case, contender)
    for sentence in silent:
        note(f"{sentence}; left out")
    plans = [
        lab.plan(s, wanted, _price(s, known, chosen), target=target, peak=peak, egress_bytes=egress_bytes)
        for s in found
    ]
    pairs = lab.versus(plans)
    if as_json:
        told = {p.price.name: p.price.to_json() for p in plans if p.price}
        print_json(
            {
                "rate_per_s": wanted,
                "target": target,
                "peak": peak,
                "plans": [p.to_json() for p in plans],
                "break_even": [pair.to_json() for pair in pairs],
                "prices": told,
            }
        )
    else:
        stdout().print(words.table(plans, rate))
        for line in words.sentences(plans, pairs, rate):
            tell(line)
    _remarks(plans)


def _by_hand(time: str, batch: int, device: str) -> tuple[list[Service], list[str]]:
    if device not in ("cpu", "cuda"):
        raise unknown("device", device, ("cpu", "cuda"))
    if batch < 1:
        raise InputError(f"--batch {batch} is no number of items; give 1 or more.")
    seconds = parse_time(time)
    return [Service(f"{time} for {batch} as told", device, float(batch), seconds, (seconds, seconds))], []


def _measured(
    files: Sequence[Path] | None, workload: str | None, case: str | None, contender: str
) -> tuple[list[Service], list[str]]:
    held: list[record.Record] = []
    for file in files or [OUT]:
        if not files and not (OUT / record.FILE).is_file():
            raise InputError(
                f"there are no records in '{OUT}'; run ridgeline bench {workload or ''} first, name some by --records, "
                "or give --time."
            )
        read = record.read(file)
        note(read.warning)
        held += read.records
    if workload is None and len({r.workload for r in held}) > 1:
        raise InputError(f"which --workload? There are: {', '.join(dict.fromkeys(r.workload for r in held))}.")
    if workload is not None and workload not in {r.workload for r in held}:
        raise unknown("record of workload", workload, dict.fromkeys(r.workload for r in held))
    wanted = dict(_word(w) for w in (case or "").split(",") if w.strip())
    kept = lab.matching(held, workload, wanted)
    if not kept:
        raise InputError(f"no record has the case '{case}'; leave --case out to see what there is.")
    found, silent = lab.services(kept, contender)
    if not found:
        raise InputError(f"no record here has a time to plan with: {silent[0]}.")
    return found, silent


def _word(word: str) -> tuple[str, str]:
    name, equals, value = word.strip().partition("=")
    if not equals:
        raise InputError(f"--case '{word}' is not of the form name=value.")
    return name, value


def _price(service: Service, known: Sequence[Price], chosen: Sequence[Price]) -> Price | None:
    by_name = next((p for p in chosen if p.device == service.device), None)
    if by_name or service.record is None:
        return by_name
    return book.find(known, service.record.machine, service.device)


def _remarks(plans: Sequence[Plan]) -> None:
    """What a reader of the dollars must know; on stderr, so that JSON stays JSON."""
    unpriced = dict.fromkeys(words.machine_of(p.service) for p in plans if p.price is None)
    for name in unpriced:
        note(f"no price for {name}: name one by --price (see --show-prices), or write it into prices.toml.")
    for p in {plan.price.name: plan.price for plan in plans if plan.price}.values():
        if p.shipped:
            note(f"'{p.name}' is a list price of {p.date}, not yours: {p.source}.")
        if p.age_days() > OLD_DAYS:
            note(f"price '{p.name}' is {p.age_days()} days old.")
        machines = [plan.service.record.machine for plan in plans if plan.price is p and plan.service.record]
        for sentence in dict.fromkeys(p.differs(m) for m in machines):
            note(f"price '{p.name}' was chosen by name: {sentence}." if sentence else None)
