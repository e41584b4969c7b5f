"""How `ridgeline cost` puts its answer: a table of plans, sentences, the price book."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from ridgeline.cli import tables
from ridgeline.lab.judge import HOURS_A_YEAR, Plan, Price, Service, Versus
from ridgeline.web import si

LATE_S = 1.0  # waiting for a batch to fill is worth a word from here on


def table(plans: Sequence[Plan], rate: str) -> Table:
    title = f"For {escape(rate)}, at most {plans[0].target:.0%} busy"
    shown = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    priced = any(p.price for p in plans)
    dollars = ("$/M full", "$/M", "$/month") if priced else ()
    for column in ("#", "case", "measured", "busy", "units", "latency", *dollars):
        shown.add_column(column, justify="left" if column == "case" else "right", no_wrap=column != "case")
    several = len({p.service.record.machine["fingerprint"] for p in plans if p.service.record}) > 1
    for number, p in enumerate(plans, 1):
        where = f" on {machine_of(p.service)}" if several else ""
        doubt = f" [yellow]{p.service.validity}[/]" if p.service.validity != "VALID" else ""
        unit = tables.shown(unit_of(p.service))
        cells = [str(number), tables.shown(p.service.name + where) + doubt, si(p.service.rate, f"{unit}/s")]
        cells += [f"{p.busy:.3g}", str(p.units)]
        cells.append(si(p.latency_s, "s"))
        if priced:
            full, hour = p.usd_per_million_full, p.usd_per_hour
            cells += [money(full[0]), money(p.usd_per_million)] if full else ["–", "–"]
            cells.append(money(hour * HOURS_A_YEAR / 12) if hour is not None else "–")
        shown.add_row(*cells)
    return shown


def sentences(plans: Sequence[Plan], pairs: Sequence[Versus], rate: str) -> Iterator[str]:
    for number, p in enumerate(plans, 1):
        s = p.service
        several = "s" * (s.devices == 1)
        many = f"{p.units} {s.unit}{several if p.units > 1 else ''}"
        need = f"{p.busy:.3g} of a {s.unit}" if p.busy < 1 else f"{p.busy:.3g} {s.unit}{several}, all of their time"
        yield (
            f"#{number}: {rate} needs {need}; {many} would be {p.utilisation:.2%} busy, "
            f"{si(p.backlog, '')} items waiting on average, and work off an hour's standstill in "
            f"{si(3600 * p.drain, 's')}."
        )
        if p.fill_s > LATE_S:
            yield f"    a batch of {s.batch:g} takes {si(2 * p.fill_s, 's')} to fill: smaller ones answer sooner."
    numbers = {id(p): n for n, p in enumerate(plans, 1)}
    for pair in pairs:
        how = f" (they differ in {pair.differ})" if pair.differ else ""
        yield f"#{numbers[id(pair.gpu)]} against #{numbers[id(pair.cpu)]}{how}: {_even(pair)}"


def _even(pair: Versus) -> str:
    first, always = pair.even.first, pair.even.always
    if first is None:
        return "the CPU is cheaper at every rate."
    if first == 0 and always == 0:
        return "the GPU is never dearer."
    start = f"the GPU is not dearer above {si(first, '')}/s ({si(86400 * first, '')}/day)"
    if always is None:
        return f"{start}, but not for good: it costs more per item when both are full."
    return f"{start}." if always == first else f"{start} for a while, and for good above {si(always, '')}/s."


def book(prices: Sequence[Price]) -> Table:
    shown = Table("name", "for", box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("$/h each", justify="right")
    for column in ("date", "source", "book"):
        shown.add_column(column)
    for p in prices:
        what = (
            f"{p.gpu or 'any GPU'}" if p.device == "cuda" else f"{p.cpu or 'any CPU'}{f' × {p.cpus}' if p.cpus else ''}"
        )
        kind = " (owned)" if p.owned else ""
        shown.add_row(*map(escape, (p.name, what, money(p.hourly()) + kind, str(p.date), p.source, p.book)))
    return shown


def money(usd: float | None) -> str:
    """$0.00102, $12.3, $1,234: three digits, cents where there are dollars."""
    if usd is None:
        return "–"
    return f"${usd:,.0f}" if usd >= 1000 else f"${usd:.2f}" if usd >= 1 else f"${usd:.3g}"


def unit_of(service: Service) -> str:
    return str(service.record.work["unit"]) if service.record else "items"


def machine_of(service: Service) -> str:
    if service.record is None:
        return f"a {service.unit}"
    machine = service.record.machine
    if service.device == "cuda":
        return ", ".join(dict.fromkeys(str(g["name"]) for g in machine["gpus"])) or "this GPU"
    return f"{machine['cpu']} with {machine['usable_cpus']} CPUs"
