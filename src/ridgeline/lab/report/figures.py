"""The charts of a report: of one workload (sweeps, frontiers, peers, timelines, samples), and of all paths of a machine
(shares of ceilings, rooflines, best peers, NUMA nodes)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal

from markupsafe import Markup

from ridgeline.lab.judge import (
    CEILINGS,
    MIN_POINTS,
    Comparison,
    Estimate,
    PathSummary,
    Row,
    Sweep,
    Validity,
    analyse_record,
    choose_digits,
    find_best_peer,
    find_sweeps,
    format_interval,
    list_differing_parameters,
    percent,
    rate_unit,
)
from ridgeline.lab.record import Record
from ridgeline.lab.report.advice import is_experiment
from ridgeline.lab.workload import format_case
from ridgeline.web import (
    Axis,
    Bar,
    Cell,
    Point,
    Roof,
    Samples,
    Series,
    draw_bars,
    draw_cells,
    draw_intervals,
    draw_lines,
    draw_roofline,
    draw_samples,
    format_si,
)

AnalysedRecords = Sequence[tuple[Record, list[Row]]]
MAX_BARS = 60  # of a chart; the table has them all
LOG_AXIS_RATIO = 4  # an axis with a larger ratio is logarithmic
VERDICT_COLOURS = tuple(Comparison)  # report.css gives them the colours of their badges, in this order
STAGE_NAMES = {"h2d": "to the device", "compute": "compute", "d2h": "back"}


def format_tooltip(row: Row) -> str:
    """Return the text of a mark; the list of records on the page has the command that reproduces it."""
    time = row.assessment.time
    parts = [
        f"{row.result.contender} · {row.record.label}",
        "median {} [{} to {}]".format(*format_times(time)) if time else "",
        format_rate(row),
        f"{row.share:.0%} of {row.limit.what}" if row.share and row.limit else "",
        _format_comparison(row),
        f"{len(row.result.samples_ns)} samples, {row.assessment.validity}",
        f"record {row.record.id[:12]}, {row.record.time}",
    ]
    return "\n".join(part for part in parts if part)


def format_times(time: Estimate) -> tuple[str, str, str]:
    """Return median, low and high of a time in nanoseconds, with the digits that the interval supports."""
    digits = choose_digits(time.relative)
    value, low, high = (format_si(ns / 1e9, "s", digits) for ns in (time.value, time.low, time.high))
    return value, low, high


def format_rate(row: Row) -> str:
    """Return the rate of a row with the digits that its interval supports; empty without a valid time."""
    if not row.items_per_s or row.assessment.time is None:
        return ""
    return format_si(row.items_per_s, rate_unit(row.record), choose_digits(row.assessment.time.relative))


# --- one workload


def draw_sweeps(analysed: AnalysedRecords) -> list[Markup]:
    """Draw the rate over each parameter with a sweep; see lab/judge/sweeps.py."""
    rows_by_id = {record.id: rows for record, rows in analysed}
    return [_draw_sweep(sweep, rows_by_id) for sweep in find_sweeps([record for record, _ in analysed])]


def _draw_sweep(sweep: Sweep, rows_by_id: Mapping[str, list[Row]]) -> Markup:
    series: dict[str, list[Point]] = {}
    parameters = list_differing_parameters(sweep)
    places = {(family[0].node, family[0].cold) for family in sweep.families}
    for record in (record for family in sweep.families for record in family):
        place = [f"node {record.node}"] if len({node for node, _ in places}) > 1 else []
        place += ["cold" if record.cold else "warm"] if len({cold for _, cold in places}) > 1 else []
        rest = [str(record.case[n]) if isinstance(record.case[n], str) else f"{n}={record.case[n]}" for n in parameters]
        for row in rows_by_id[record.id]:
            if point := _make_point(row, record.case[sweep.name]):
                series.setdefault(" ".join([row.result.contender, *rest, *place]), []).append(point)
    record = sweep.families[0][0]
    name = f"{sweep.name} (and {sweep.second} with it)" if sweep.second else sweep.name
    return draw_lines(
        [Series(n, p) for n, p in series.items()],
        title=f"{record.workload}: rate over {name}",
        x=Axis(label=name, scale="log2"),
        y=Axis(label="rate", unit=rate_unit(record), scale="log"),
        caption="Points are medians, whiskers their 95 % intervals; more is better.",
    )


def _make_point(row: Row, x: float) -> Point | None:
    """Return the rate of a row with its interval at `x`; None without a valid time."""
    time = row.assessment.time
    if not row.items_per_s or time is None:
        return None
    items = row.record.work["items"] * 1e9
    return Point(x, row.items_per_s, (items / time.high, items / time.low), title=format_tooltip(row))


def draw_frontiers(analysed: AnalysedRecords) -> list[Markup]:
    """Draw the rate against a quality that the cases request by name (recall), as each contender reached it.

    One chart for each family of cases that differ in nothing else; a point up and to the right is better.
    """
    families: dict[tuple[str, str], list[tuple[Record, list[Row]]]] = {}
    for record, rows in analysed:
        for name in {n for row in rows for n in row.quality if n in record.case}:
            rest = format_case({k: v for k, v in record.case.items() if k != name})
            families.setdefault((name, rest), []).append((record, rows))
    return [
        _draw_frontier(name, rest, family)
        for (name, rest), family in families.items()
        if len({record.case[name] for record, _ in family}) >= MIN_POINTS
    ]


def _draw_frontier(quality: str, rest: str, family: AnalysedRecords) -> Markup:
    series: dict[str, list[Point]] = {}
    for row in (row for _, rows in family for row in rows if quality in row.quality):
        if point := _make_point(row, row.quality[quality]):
            series.setdefault(row.result.contender, []).append(point)
    record = family[0][0]
    return draw_lines(
        [Series(name, points) for name, points in series.items()],
        title=f"{record.workload}: rate against {quality}, {rest}",
        x=Axis(label=f"{quality} that was reached"),
        y=Axis(label="rate", unit=rate_unit(record), scale="log"),
        caption="Up and to the right is better. Whiskers are 95 % intervals of the medians.",
    )


def draw_peers(analysed: AnalysedRecords) -> Markup | None:
    """Draw the time of each peer ÷ ours, case by case; only the best peer if there are many, nothing if very many."""
    best_only = sum(row.ratio is not None for _, rows in analysed for row in rows) > MAX_BARS
    best = {id(row) for _, rows in analysed if (row := find_best_peer(rows)) is not None}
    chart_bars = [
        Bar(
            label=row.result.contender,
            value=row.ratio.value,
            interval=(row.ratio.low, row.ratio.high),
            group=record.label,
            series=row.result.contender,
            text=f"{format_interval(row.ratio)[0]}× {row.comparison}",
            title=format_tooltip(row),
        )
        for record, rows in analysed
        for row in rows
        if row.ratio and (not best_only or id(row) in best)
    ]
    if not 0 < len(chart_bars) <= MAX_BARS:
        return None
    reference = name_reference(analysed[0][0])
    return draw_bars(
        chart_bars,
        title=f"{analysed[0][0].workload}: time of the {'best peer' if best_only else 'peers'} ÷ {reference}",
        axis=Axis(unit="×", scale=_choose_scale(chart_bars)),
        reference=1.0,
        reference_label=reference,
        caption="Right of the line the peer takes longer. Whiskers are 95 % intervals of the ratio, round by round.",
    )


def name_reference(record: Record) -> str:
    """Return what the others are compared with, in words: ours, or the first contender of a user's race."""
    return "ours" if record.is_ours else record.reference


def _choose_scale(chart_bars: Sequence[Bar]) -> Literal["linear", "log"]:
    widest = max(max(bar.value, 1 / bar.value) for bar in chart_bars)
    return "log" if widest > LOG_AXIS_RATIO else "linear"


def _format_comparison(row: Row) -> str:
    if row.ratio is None:
        return ""
    value, low, high = format_interval(row.ratio)
    return f"time ÷ {name_reference(row.record)} {value} [{low} to {high}] {row.comparison}"


def draw_record_samples(record: Record, rows: Sequence[Row]) -> Markup | None:
    """Draw every sample of a record, in order."""
    strips = [
        Samples(
            row.result.contender,
            [ns / 1e9 for ns in row.result.samples_ns],
            interval=(row.assessment.time.low / 1e9, row.assessment.time.high / 1e9),
            title=format_tooltip(row),
        )
        for row in rows
        if row.assessment.time
    ]
    if not strips:
        return None
    return draw_samples(strips, title=f"{record.workload} {record.label}: all samples", axis=Axis(unit="s"))


def draw_timelines(analysed: AnalysedRecords, most: int = 4) -> list[Markup]:
    """Draw which stages overlap, for contenders that record it (`extras["timeline"]`: stage -> begin and end)."""
    timelines = [
        (record, row.result.contender, row.result.extras["timeline"])
        for record, rows in analysed
        for row in rows
        if row.result.extras.get("timeline") and row.assessment.validity not in (Validity.WRONG, Validity.INCOMPLETE)
    ]
    return [draw_timeline(f"{record.label}, {contender}", stages) for record, contender, stages in timelines[:most]]


def draw_timeline(title: str, stages: Mapping[str, Sequence[tuple[float, float]]], more: str = "") -> Markup:
    """Draw some batches on a common clock; `stages`: (begin, end) in seconds by stage; `more` ends the caption."""
    return draw_intervals(
        {STAGE_NAMES.get(stage, stage): [(b, e) for b, e in spans] for stage, spans in stages.items()},
        title=title,
        axis=Axis(unit="s"),
        caption=f"Some batches from the middle of the run{more}.",
        what="batch",
    )


# --- all paths of a machine


def draw_shares(paths: Sequence[PathSummary]) -> Markup | None:
    """Draw every path as a share of its ceiling, in one colour: that of the bars on the cards."""
    chart_bars = [
        Bar(
            format_path(s, paths),
            100 * s.share,
            text=f"{percent(s.share)} {CEILINGS.get(s.resource or '', 'arithmetic')}",
            title=_format_path_tooltip(s),
        )
        for s in paths
        if s.share
    ]
    if not chart_bars:
        return None
    return draw_bars(
        chart_bars,
        title="How close each path is to its ceiling",
        axis=Axis(unit="%", high=100.0, low=0.0),
        reference=100.0,
        reference_label="the ceiling",
        caption="A path's ceiling is the resource its compulsory work needs longest, as measured on this machine.",
    )


def draw_best_peers(paths: Sequence[PathSummary]) -> Markup | None:
    """Draw every path against its best peer."""
    chart_bars = [
        Bar(
            format_path(s, paths),
            s.ratio.value,
            (s.ratio.low, s.ratio.high),
            series=s.verdict or "",
            text=f"{format_interval(s.ratio)[0]}× {s.peer}",
            title=_format_path_tooltip(s),
        )
        for s in paths
        if s.ratio
    ]
    if not chart_bars:
        return None
    return draw_bars(
        chart_bars,
        title="The best peer's time ÷ ours",
        axis=Axis(unit="×", scale=_choose_scale(chart_bars)),
        reference=1.0,
        reference_label="ours",
        order=VERDICT_COLOURS,
        caption="Right of the line the peer takes longer; the verdict describes the peer. Losses come first.",
    )


def list_colours(paths: Sequence[PathSummary]) -> list[str]:
    """Return the workloads in the order of their colours and markers: a workload has one in all charts of a machine."""
    return sorted({path.workload for path in paths})


def format_path(path: PathSummary, paths: Sequence[PathSummary]) -> str:
    """Return the name of a path: the workload, and its device if `paths` has several for that workload."""
    several = len({other.device for other in paths if other.workload == path.workload}) > 1
    return f"{path.workload} · {path.device}" if several else path.workload


def draw_rooflines(records: Sequence[Record], paths: Sequence[PathSummary]) -> list[Markup]:
    """Draw one roofline per device: the ceilings of the cases, our results with arithmetic, and a name per path."""
    named = {path.record.id for path in paths}
    charts = []
    for device in dict.fromkeys(str(r.case["device"]) for r in records):
        series: dict[str, list[Point]] = {}
        roofs: dict[str, Roof] = {}
        for record in records:
            if record.case["device"] != device or not _has_intensity(record):
                continue
            for row in analyse_record(record):
                if row.ours and row.flops_per_s:
                    intensity = record.work["flops"] / record.work["bytes"]["memory"]
                    label = record.workload if record.id in named else ""
                    point = Point(intensity, row.flops_per_s, label=label, title=format_tooltip(row))
                    series.setdefault(record.workload, []).append(point)
            for resource, ceiling in record.ceilings.items():
                if resource in ("memory", "compute"):
                    title = str(ceiling.get("name") or ceiling["what"])
                    old = roofs.get(title)
                    rate = max(ceiling["rate"], old.rate if old else 0.0)  # each workload measures it again
                    roofs[title] = Roof(title, rate, "memory" if resource == "memory" else "compute")
        if series and {roof.bound for roof in roofs.values()} == {"memory", "compute"}:
            points = [Series(workload, workload_points) for workload, workload_points in series.items()]
            outermost = _select_outermost(list(roofs.values()))
            charts.append(draw_roofline(outermost, points, title=f"Roofline of {device}", order=list_colours(paths)))
    return charts


def list_paths_without_roofline(paths: Sequence[PathSummary]) -> list[str]:
    """Return the paths that a roofline cannot show: they count no arithmetic or no memory traffic."""
    return [format_path(path, paths) for path in paths if path.rate and not _has_intensity(path.record)]


def _has_intensity(record: Record) -> bool:
    return bool(record.work["flops"] and record.work["bytes"].get("memory"))


def draw_nodes(records: Sequence[Record]) -> Markup | None:
    """Draw our rate from each NUMA node relative to the best node, for cases with records from several nodes."""
    families: dict[str, dict[int, Row]] = {}
    for record in records:
        row = next((r for r in analyse_record(record) if r.ours and r.items_per_s), None)
        node = record.node
        if row is not None and node is not None and not is_experiment(record):  # a study draws its own maps
            families.setdefault(json.dumps([record.workload, record.case, record.cold], default=str), {})[node] = row
    chart_cells = []
    for family in families.values():
        best = max(row.items_per_s or 0.0 for row in family.values())
        for node, row in sorted(family.items()) if len(family) > 1 else []:
            loss = (row.items_per_s or 0.0) / best - 1
            text = format_si(row.items_per_s or 0.0, rate_unit(row.record))
            case, workload = format_case(row.record.case), row.record.workload
            chart_cells.append(Cell(case, f"node {node}", loss, text, workload, format_tooltip(row)))
    if not chart_cells:
        return None
    return draw_cells(
        chart_cells,
        title="Our rate from each NUMA node",
        across="CPUs and memory on",
        full=max(0.5, *(abs(cell.value) for cell in chart_cells)),
        caption="The deeper the colour, the slower than from the best node.",
    )


def _format_path_tooltip(path: PathSummary) -> str:
    parts = [
        path.sentence,
        path.case,
        path.rate_text,
        f"ceiling: {path.record.ceilings[path.resource]['what']}" if path.resource else "",
        f"record {path.record.id[:12]}",
    ]
    return "\n".join(part for part in parts if part)


def _select_outermost(roofs: list[Roof]) -> list[Roof]:
    """Keep the highest and the lowest memory roof of many sizes, and every kind of compute roof."""
    memory = sorted((r for r in roofs if r.bound == "memory"), key=lambda r: r.rate)
    ends = {r.name: r for r in (memory[0], memory[-1])} if memory else {}
    return [*ends.values(), *(r for r in roofs if r.bound == "compute")]
