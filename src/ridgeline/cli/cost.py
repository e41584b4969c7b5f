"""`ridgeline cost`: plan the machines for a rate of work and their cost, from records and a price book."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from ridgeline.cli.bench import OUT
from ridgeline.cli.output import Json, print_json, print_line, print_note, stdout
from ridgeline.cli.tables import escape_text
from ridgeline.errors import InputError, unknown
from ridgeline.lab import OURS
from ridgeline.lab.judge import (
    HOURS_PER_YEAR,
    MAX_AGE_DAYS,
    TARGET,
    CapacityPlan,
    DeviceComparison,
    Price,
    Service,
    compare_devices,
    find_price,
    get_price,
    list_services,
    load_prices,
    parse_rate,
    parse_time,
    plan_capacity,
    select_records,
)
from ridgeline.lab.record import RECORDS_FILE, Record, read_records
from ridgeline.web import format_si

MIN_FILL_S = 1.0  # mention the time to fill a batch from here on


def cost(
    rate: Annotated[
        str | None, typer.Option(metavar="N/PERIOD", help="The rate of work: 1e6/day, 1200/h, 5000/s.")
    ] = None,
    workload: Annotated[str | None, typer.Option(help="The workload whose records give the speed.")] = None,
    records: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help=f"Records; repeat the option for more (default: {OUT}).")
    ] = None,
    case: Annotated[str | None, typer.Option(metavar="K=V,…", help="Use cases with these values only.")] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="Time of a step, instead of records.")
    ] = None,
    batch: Annotated[int, typer.Option(help="With --time: the number of items per step.")] = 1,
    device: Annotated[str, typer.Option(help="With --time: cpu or cuda, for the price.")] = "cuda",
    target: Annotated[float, typer.Option(help="Highest utilisation of a machine, 0 to 1.")] = TARGET,
    peak: Annotated[float, typer.Option(help="The rate of the busiest hour ÷ the mean rate.")] = 1.0,
    egress_bytes: Annotated[float, typer.Option(help="Bytes that leave the site per item.")] = 0.0,
    prices: Annotated[Path | None, typer.Option(metavar="FILE", help="A price book in TOML.")] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Use this price for its kind of device; repeat the option for more."),
    ] = None,
    contender: Annotated[str, typer.Option(help="Use the times of this contender.")] = OURS,
    show_prices: Annotated[bool, typer.Option("--show-prices", help="List the price book and exit.")] = False,
    as_json: Json = False,
) -> None:
    """Plan a rate of work: machines, utilisation, backlog, dollars, and when a GPU pays.

    [dim]Examples:[/]

      ridgeline cost --workload embed --rate 1e6/day

      ridgeline cost --workload embed --rate 5000/s --records runs/ --prices mine.toml --peak 3 --json

      ridgeline cost --rate 1e6/day --time 0.5ms
    """
    known = load_prices(prices)
    if show_prices:
        print_json([p.to_json() for p in known]) if as_json else stdout().print(build_price_table(known))
        return
    if rate is None:
        raise InputError("how much work is it? Give --rate, like 1e6/day, 1200/h or 5000/s.")
    items_per_s = parse_rate(rate)
    chosen = [get_price(known, name) for name in price or []]
    services, skipped = (
        _make_service(time, batch, device) if time else _read_services(records, workload, case, contender)
    )
    for sentence in skipped:
        print_note(f"{sentence}; left out")
    plans = [
        plan_capacity(
            service,
            items_per_s,
            _choose_price(service, known, chosen),
            target=target,
            peak=peak,
            egress_bytes=egress_bytes,
        )
        for service in services
    ]
    comparisons = compare_devices(plans)
    if as_json:
        print_json(
            {
                "rate_per_s": items_per_s,
                "target": target,
                "peak": peak,
                "plans": [p.to_json() for p in plans],
                "break_even": [pair.to_json() for pair in comparisons],
                "prices": {p.price.name: p.price.to_json() for p in plans if p.price},
            }
        )
    else:
        stdout().print(build_plan_table(plans, rate))
        for line in describe_plans(plans, comparisons, rate):
            print_line(line)
    _print_price_notes(plans)


def _make_service(time: str, batch: int, device: str) -> tuple[list[Service], list[str]]:
    if device not in ("cpu", "cuda"):
        raise unknown("device", device, ("cpu", "cuda"))
    if batch < 1:
        raise InputError(f"--batch {batch} is no number of items; give 1 or more.")
    seconds = parse_time(time)
    return [Service(f"{time} for {batch} from --time", device, float(batch), seconds, (seconds, seconds))], []


def _read_services(
    files: Sequence[Path] | None, workload: str | None, case: str | None, contender: str
) -> tuple[list[Service], list[str]]:
    records: list[Record] = []
    for file in files or [OUT]:
        if not files and not (OUT / RECORDS_FILE).is_file():
            raise InputError(
                f"there are no records in '{OUT}'; run ridgeline bench {workload or ''} first, name some by --records, "
                "or give --time."
            )
        content = read_records(file)
        print_note(content.warning)
        records += content.records
    names = dict.fromkeys(r.workload for r in records)
    if workload is None and len(names) > 1:
        raise InputError(f"which --workload? There are: {', '.join(names)}.")
    if workload is not None and workload not in names:
        raise unknown("record of workload", workload, names)
    values = dict(_parse_pair(word) for word in (case or "").split(",") if word.strip())
    matches = select_records(records, workload, values)
    if not matches:
        raise InputError(f"no record has the case '{case}'; leave --case out to see what there is.")
    services, skipped = list_services(matches, contender)
    if not services:
        raise InputError(f"no record here has a time to plan with: {skipped[0]}.")
    return services, skipped


def _parse_pair(word: str) -> tuple[str, str]:
    name, equals, value = word.strip().partition("=")
    if not equals:
        raise InputError(f"--case '{word}' is not of the form name=value.")
    return name, value


def _choose_price(service: Service, known: Sequence[Price], chosen: Sequence[Price]) -> Price | None:
    by_name = next((p for p in chosen if p.device == service.device), None)
    if by_name or service.record is None:
        return by_name
    return find_price(known, service.record.machine, service.device)


def _print_price_notes(plans: Sequence[CapacityPlan]) -> None:
    """Print what a reader of the dollars must know, to stderr, so that JSON on stdout stays valid."""
    for name in dict.fromkeys(format_machine(p.service) for p in plans if p.price is None):
        print_note(f"no price for {name}: name one by --price (see --show-prices), or write it into prices.toml.")
    for p in {plan.price.name: plan.price for plan in plans if plan.price}.values():
        if p.shipped:
            print_note(f"'{p.name}' is a list price of {p.date}, not yours: {p.source}.")
        if p.age_days() > MAX_AGE_DAYS:
            print_note(f"price '{p.name}' is {p.age_days()} days old.")
        machines = [plan.service.record.machine for plan in plans if plan.price is p and plan.service.record]
        for sentence in dict.fromkeys(p.find_difference(m) for m in machines):
            print_note(f"price '{p.name}' was chosen by name: {sentence}." if sentence else None)


def build_plan_table(plans: Sequence[CapacityPlan], rate: str) -> Table:
    """Return a table with one line per plan."""
    title = f"For {escape(rate)}, at most {plans[0].target:.0%} busy"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    priced = any(p.price for p in plans)
    dollars = ("$/M full", "$/M", "$/month") if priced else ()
    for column in ("#", "case", "measured", "busy", "units", "latency", *dollars):
        table.add_column(column, justify="left" if column == "case" else "right", no_wrap=column != "case")
    several = len({p.service.record.machine["fingerprint"] for p in plans if p.service.record}) > 1
    for number, p in enumerate(plans, 1):
        machine = f" on {format_machine(p.service)}" if several else ""
        doubt = f" [yellow]{p.service.validity}[/]" if p.service.validity != "VALID" else ""
        unit = escape_text(_get_unit(p.service))
        cells = [str(number), escape_text(p.service.name + machine) + doubt, format_si(p.service.rate, f"{unit}/s")]
        cells += [f"{p.busy:.3g}", str(p.units)]
        cells.append(format_si(p.latency_s, "s"))
        if priced:
            full, hour = p.usd_per_million_full, p.usd_per_hour
            cells += [format_dollars(full[0]), format_dollars(p.usd_per_million)] if full else ["–", "–"]
            cells.append(format_dollars(hour * HOURS_PER_YEAR / 12) if hour is not None else "–")
        table.add_row(*cells)
    return table


def describe_plans(plans: Sequence[CapacityPlan], comparisons: Sequence[DeviceComparison], rate: str) -> Iterator[str]:
    """Yield sentences about each plan and each comparison of a GPU with a CPU."""
    for number, p in enumerate(plans, 1):
        s = p.service
        several = "s" * (s.devices == 1)
        units = f"{p.units} {s.unit}{several if p.units > 1 else ''}"
        need = f"{p.busy:.3g} of a {s.unit}" if p.busy < 1 else f"{p.busy:.3g} {s.unit}{several}, all of their time"
        yield (
            f"#{number}: {rate} needs {need}; {units} would be {p.utilisation:.2%} busy, "
            f"{format_si(p.backlog, '')} items waiting on average, and process the backlog of an hour without "
            f"service in {format_si(3600 * p.drain, 's')}."
        )
        if p.fill_s > MIN_FILL_S:
            fill = format_si(2 * p.fill_s, "s")
            yield f"    a batch of {s.batch:g} takes {fill} to fill: smaller ones answer sooner."
    numbers = {id(p): n for n, p in enumerate(plans, 1)}
    for pair in comparisons:
        difference = f" (they differ in {pair.difference})" if pair.difference else ""
        yield f"#{numbers[id(pair.gpu)]} against #{numbers[id(pair.cpu)]}{difference}: {_describe_break_even(pair)}"


def _describe_break_even(pair: DeviceComparison) -> str:
    first, always = pair.break_even.first, pair.break_even.always
    if first is None:
        return "the CPU is cheaper at every rate."
    if first == 0 and always == 0:
        return "the GPU never costs more."
    start = f"the GPU does not cost more above {format_si(first, '')}/s ({format_si(86400 * first, '')}/day)"
    if always is None:
        return f"{start}, but not always: it costs more per item when both are full."
    return f"{start}." if always == first else f"{start} for a while, and always above {format_si(always, '')}/s."


def build_price_table(prices: Sequence[Price]) -> Table:
    """Return the price book as a table."""
    table = Table("name", "for", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("$/h each", justify="right")
    for column in ("date", "source", "book"):
        table.add_column(column)
    for p in prices:
        machine = (
            f"{p.gpu or 'any GPU'}" if p.device == "cuda" else f"{p.cpu or 'any CPU'}{f' × {p.cpus}' if p.cpus else ''}"
        )
        kind = " (owned)" if p.owned else ""
        table.add_row(*map(escape, (p.name, machine, format_dollars(p.hourly()) + kind, str(p.date), p.source, p.book)))
    return table


def format_dollars(usd: float | None) -> str:
    """Format dollars with three digits, or with cents: $0.00102, $12.30, $1,234."""
    if usd is None:
        return "–"
    return f"${usd:,.0f}" if usd >= 1000 else f"${usd:.2f}" if usd >= 1 else f"${usd:.3g}"


def _get_unit(service: Service) -> str:
    return str(service.record.work["unit"]) if service.record else "items"


def format_machine(service: Service) -> str:
    """Return the machine of a service in words."""
    if service.record is None:
        return f"a {service.unit}"
    machine = service.record.machine
    if service.device == "cuda":
        return ", ".join(dict.fromkeys(str(g["name"]) for g in machine["gpus"])) or "this GPU"
    return f"{machine['cpu']} with {machine['usable_cpus']} CPUs"
