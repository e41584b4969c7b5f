"""`ridgeline cost`: plan the machines for a rate of work and their cost, from records and a price book."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    MAX_AGE_DAYS,
    TARGET,
    Calendar,
    CapacityPlan,
    DeviceComparison,
    Price,
    Service,
    compare_devices,
    find_price,
    get_price,
    list_services,
    load_prices,
    parse_hours,
    parse_period,
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
        str | None,
        typer.Option(metavar="N/PERIOD", help="The rate of work while the machines run: 1e6/day, 1200/h, 5000/s."),
    ] = None,
    items: Annotated[
        float | None, typer.Option(help="Instead of --rate: the items of one job (with --per: of each).")
    ] = None,
    per: Annotated[
        str | None, typer.Option(metavar="PERIOD", help="With --items: how often the job comes: h, day, week, month.")
    ] = None,
    hours: Annotated[
        str | None,
        typer.Option(metavar="N/PERIOD", help="The machines run for this long only: 8/day, 40/week (default: always)."),
    ] = None,
    months: Annotated[float | None, typer.Option(help="Also show the dollars of this many months.")] = None,
    workload: Annotated[str | None, typer.Option(help="The workload whose records give the speed.")] = None,
    records: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help=f"Records; repeat the option for more (default: {OUT}).")
    ] = None,
    case: Annotated[str | None, typer.Option(metavar="K=V,…", help="Use cases with these values only.")] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="Time of a step, instead of records.")
    ] = None,
    batch: Annotated[int, typer.Option(help="With --time: the number of items per step.")] = 1,
    device: Annotated[
        str | None, typer.Option(help="With --time: cpu or cuda (default: that of --price, else cuda).")
    ] = None,
    target: Annotated[float, typer.Option(help="Highest utilisation of a machine, 0 to 1.")] = TARGET,
    peak: Annotated[float, typer.Option(help="The rate of the busiest hour ÷ the mean rate.")] = 1.0,
    egress_bytes: Annotated[float, typer.Option(help="Bytes that leave the site per item.")] = 0.0,
    prices: Annotated[Path | None, typer.Option(metavar="FILE", help="A price book in TOML.")] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Use this price for its kind of device; repeat it to compare prices."),
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

      ridgeline cost --items 62423 --per day --time 0.5ms --price hf-aws-a100-x1

      ridgeline cost --workload embed --rate 100/s --hours 8/day --months 6
    """
    known = load_prices(prices)
    if show_prices:
        print_json([p.to_json() for p in known]) if as_json else stdout().print(build_price_table(known))
        return
    calendar = _make_calendar(hours, months)
    work = _parse_work(rate, items, per, calendar)
    chosen = [get_price(known, name) for name in price or []]
    if time:
        services, skipped = _make_services(time, batch, device, chosen), list[str]()
    else:
        services, skipped = _read_services(records, workload, case, contender)
    for sentence in skipped:
        print_note(f"{sentence}; left out")
    _check_prices_used(chosen, services)
    plans = [
        plan_capacity(
            service,
            work.items_per_s or service.rate * target / peak,  # a job that comes once: one unit
            one_price,
            target=target,
            peak=peak,
            egress_bytes=egress_bytes,
            calendar=calendar,
            items=work.items,
        )
        for service in services
        for one_price in _choose_prices(service, known, chosen)
    ]
    if work.items_per_s is None:
        _print_jobs(plans, work, as_json)
        _print_price_notes(plans)
        return
    comparisons = compare_devices(plans)
    if as_json:
        print_json(
            {
                "rate_per_s": work.items_per_s,
                "running": calendar.running,
                "months": calendar.months,
                "target": target,
                "peak": peak,
                "plans": [p.to_json() for p in plans],
                "break_even": [pair.to_json() for pair in comparisons],
                "prices": {p.price.name: p.price.to_json() for p in plans if p.price},
            }
        )
    else:
        stdout().print(build_plan_table(plans, work.text))
        for line in describe_plans(plans, comparisons, work.text):
            print_line(line)
    _print_price_notes(plans)


@dataclass(frozen=True)
class _Work:
    """The work to plan for: a rate, and the items of one job if it comes in jobs."""

    text: str
    items_per_s: float | None  # None: one job, which comes once
    items: float | None = None


def _make_calendar(hours: str | None, months: float | None) -> Calendar:
    if months is not None and not 0 < months < math.inf:
        raise InputError(f"--months {months:g} is no length of time; give more than 0.")
    return Calendar(parse_hours(hours) if hours else 1.0, months)


def _parse_work(rate: str | None, items: float | None, per: str | None, calendar: Calendar) -> _Work:
    if rate is not None and items is not None:
        raise InputError("--rate and --items are two ways to say how much work it is; give one of them.")
    if per is not None and items is None:
        raise InputError("--per says how often a job comes; add --items N.")
    if rate is not None:
        return _Work(rate, parse_rate(rate))
    if items is None:
        raise InputError("how much work is it? Give --rate, like 1e6/day, 1200/h or 5000/s, or --items N --per day.")
    if not 0 < items < math.inf:
        raise InputError(f"--items {items:g} is no number of items; give more than 0.")
    if per is None:
        return _Work(f"{items:,.0f} items", None, items)
    # The machines have only the hours in which they run.
    return _Work(f"{items:,.0f}/{per}", items / (parse_period(per) * calendar.running), items)


def _make_services(time: str, batch: int, device: str | None, chosen: Sequence[Price]) -> list[Service]:
    if device not in (None, "cpu", "cuda"):
        raise unknown("device", device, ("cpu", "cuda"))
    if batch < 1:
        raise InputError(f"--batch {batch} is no number of items; give 1 or more.")
    seconds = parse_time(time)
    devices = [device] if device else list(dict.fromkeys(p.device for p in chosen)) or ["cuda"]
    name = f"{time} for {batch} from --time"
    return [Service(name, one, float(batch), seconds, (seconds, seconds)) for one in devices]


def _check_prices_used(chosen: Sequence[Price], services: Sequence[Service]) -> None:
    devices = {service.device for service in services}
    for price in chosen:
        if price.device not in devices:
            names = {"cpu": "a CPU", "cuda": "a GPU"}
            raise InputError(
                f"--price '{price.name}' is for {names[price.device]}, and the work runs on "
                f"{' and '.join(names[d] for d in sorted(devices))}; name a price for that."
            )


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


def _choose_prices(service: Service, known: Sequence[Price], chosen: Sequence[Price]) -> list[Price | None]:
    """Return all prices that were named for this kind of device, else that of the machine of the record."""
    by_name: list[Price | None] = [p for p in chosen if p.device == service.device]
    if by_name:
        return by_name
    return [None if service.record is None else find_price(known, service.record.machine, service.device)]


def _print_jobs(plans: Sequence[CapacityPlan], work: _Work, as_json: bool) -> None:
    """Print how long one unit takes for a job that comes once, and what that costs."""
    if as_json:
        print_json({"items": work.items, "jobs": [p.to_json() for p in plans]})
        return
    table = Table(title=f"{work.text}, once", box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in ("case", "price", "measured", "takes", "costs"):
        table.add_column(column, justify="left" if column in ("case", "price") else "right")
    for p in plans:
        unit = escape_text(_get_unit(p.service))
        table.add_row(
            escape_text(p.service.name),
            escape_text(p.price.name) if p.price else "–",
            format_si(p.service.rate, f"{unit}/s"),
            f"{format_si(p.job_s or 0.0, 's')} on one {p.service.unit}",
            format_dollars(p.usd_per_job),
        )
    stdout().print(table)


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
    running = plans[0].calendar.running
    times = f", {24 * running:.3g} hours a day" if running < 1 else ""
    title = f"For {escape(rate)}{times}, at most {plans[0].target:.0%} busy"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    priced = any(p.price for p in plans)
    dollars: tuple[str, ...] = ("$/M full", "$/M", "$/month") if priced else ()
    months = plans[0].calendar.months
    dollars += (f"$ in {months:g} months",) if priced and months else ()
    for column in ("#", "case", "measured", "busy", "units", "latency", *dollars):
        table.add_column(column, justify="left" if column == "case" else "right", no_wrap=column != "case")
    prices = {p.price.name for p in plans if p.price}
    several = len({p.service.record.machine["fingerprint"] for p in plans if p.service.record}) > 1
    for number, p in enumerate(plans, 1):
        machine = f" on {format_machine(p.service)}" if several else ""
        machine += f" for {p.price.name}" if p.price and len(prices) > 1 else ""
        doubt = f" [yellow]{p.service.validity}[/]" if p.service.validity != "VALID" else ""
        unit = escape_text(_get_unit(p.service))
        cells = [str(number), escape_text(p.service.name + machine) + doubt, format_si(p.service.rate, f"{unit}/s")]
        cells += [f"{p.busy:.3g}", str(p.units)]
        cells.append(format_si(p.latency_s, "s"))
        if priced:
            full = p.usd_per_million_full
            cells += [format_dollars(full[0]), format_dollars(p.usd_per_million)] if full else ["–", "–"]
            cells.append(format_dollars(p.usd_per_month))
            cells += [format_dollars(p.usd_total)] if months else []
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
        if p.job_s is not None:
            dollars = f", {format_dollars(p.usd_per_job)} if paid for that time only" if p.price else ""
            yield f"    a job of {p.items:,.0f} takes {format_si(p.job_s, 's')} on {units}{dollars}."
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
