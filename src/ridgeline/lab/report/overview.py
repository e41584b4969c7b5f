"""The charts that hold every path of a machine: shares of their ceilings, rooflines, best peers, nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from markupsafe import Markup

from ridgeline.lab.judge import analyse
from ridgeline.lab.judge.analyse import Row
from ridgeline.lab.judge.findings import CEILINGS, Standing
from ridgeline.lab.judge.limiting import percent
from ridgeline.lab.judge.tuning import is_study
from ridgeline.lab.record.record import Record
from ridgeline.lab.report.figures import hover
from ridgeline.lab.workload import label
from ridgeline.web import Axis, Bar, Cell, Point, Roof, Series, bars, cells, roofline, si

WIDEST = 4  # between ratios, before their axis is logarithmic


def shares(found: Sequence[Standing]) -> Markup | None:
    """Every path under its own ceiling, whatever that is made of."""
    rows = [
        Bar(
            name(s, found),
            100 * s.share,
            series=CEILINGS.get(s.resource or "", "arithmetic"),
            text=percent(s.share),
            title=_about(s),
        )
        for s in found
        if s.share
    ]
    if not rows:
        return None
    return bars(
        rows,
        title="How near each path is to its ceiling",
        axis=Axis(unit="%", high=100.0, low=0.0),
        reference=100.0,
        reference_label="the ceiling",
        caption="A path's ceiling is the resource its compulsory work needs longest, as measured on this machine.",
    )


def against(found: Sequence[Standing]) -> Markup | None:
    """Every path against its best peer."""
    rows = [
        Bar(
            name(s, found),
            s.ratio.value,
            (s.ratio.low, s.ratio.high),
            series=s.verdict or "",
            text=f"{s.ratio.value:.2f}× {s.peer}",
            title=_about(s),
        )
        for s in found
        if s.ratio
    ]
    if not rows:
        return None
    widest = max(max(r.value, 1 / r.value) for r in rows)
    return bars(
        rows,
        title="The best peer's time ÷ ours",
        axis=Axis(unit="×", scale="log" if widest > WIDEST else "linear"),
        reference=1.0,
        reference_label="ours",
        caption="Right of the line the peer takes longer; the word of its verdict is said of the peer.",
    )


def name(s: Standing, among: Sequence[Standing]) -> str:
    """The workload, and its device where it ran on several."""
    several = len({o.device for o in among if o.workload == s.workload}) > 1
    return f"{s.workload} · {s.device}" if several else s.workload


def rooflines(records: Sequence[Record], found: Sequence[Standing]) -> list[Markup]:
    """One per device: the ceilings the cases were held against, our results that do arithmetic, each path by name."""
    chosen = {s.record.id for s in found}
    out = []
    for device in dict.fromkeys(str(r.case["device"]) for r in records):
        own = [r for r in records if r.case["device"] == device and r.work["flops"] and r.work["bytes"].get("memory")]
        series: dict[str, list[Point]] = {}
        roofs: dict[str, Roof] = {}
        for record in own:
            for row in analyse.rows(record):
                if row.ours and row.flops_per_s:
                    intensity = record.work["flops"] / record.work["bytes"]["memory"]
                    named = record.workload if record.id in chosen else ""
                    point = Point(intensity, row.flops_per_s, label=named, title=hover(row))
                    series.setdefault(record.workload, []).append(point)
            for resource, told in record.ceilings.items():
                if resource in ("memory", "compute"):
                    title = str(told.get("name") or told["what"])
                    known = roofs.get(title)
                    rate = max(told["rate"], known.rate if known else 0.0)  # sharpened from case to case
                    roofs[title] = Roof(title, rate, "memory" if resource == "memory" else "compute")
        if series and {roof.bound for roof in roofs.values()} == {"memory", "compute"}:
            points = [Series(workload, held) for workload, held in series.items()]
            out.append(roofline(_outermost(list(roofs.values())), points, title=f"Roofline of {device}"))
    return out


def unplaced(found: Sequence[Standing]) -> list[str]:
    """Paths that a roofline has no place for: they do no arithmetic that was counted, or touch no memory."""
    return [
        name(s, found)
        for s in found
        if s.rate and not (s.record.work["flops"] and s.record.work["bytes"].get("memory"))
    ]


def nodes(records: Sequence[Record]) -> Markup | None:
    """Our rate from each NUMA node relative to the best one, for cases that were run from several."""
    families: dict[str, dict[int, Row]] = {}
    for record in records:
        row = next((r for r in analyse.rows(record) if r.ours and r.items_per_s), None)
        at = record.node
        if row is not None and at is not None and not is_study(record):  # a study has maps of its own
            families.setdefault(json.dumps([record.workload, record.case, record.cold], default=str), {})[at] = row
    drawn = []
    for family in families.values():
        best = max(row.items_per_s or 0.0 for row in family.values())
        for at, row in sorted(family.items()) if len(family) > 1 else []:
            lost = (row.items_per_s or 0.0) / best - 1
            text = si(row.items_per_s or 0.0, analyse.rate_unit(row.record))
            drawn.append(Cell(label(row.record.case), f"node {at}", lost, text, row.record.workload, hover(row)))
    if not drawn:
        return None
    return cells(
        drawn,
        title="Our rate from each NUMA node",
        across="CPUs and memory on",
        full=max(0.5, *(abs(cell.value) for cell in drawn)),
        caption="The deeper the colour, the slower than from the best node.",
    )


def _about(s: Standing) -> str:
    told = [
        s.sentence,
        s.case,
        f"{si(s.rate, s.unit)}" if s.rate else "",
        f"ceiling: {s.record.ceilings[s.resource]['what']}" if s.resource else "",
        f"record {s.record.id[:12]}",
    ]
    return "\n".join(t for t in told if t)


def _outermost(roofs: list[Roof]) -> list[Roof]:
    """A ladder has many rungs: draw the highest and the lowest memory roof, and every kind of compute roof."""
    memory = sorted((r for r in roofs if r.bound == "memory"), key=lambda r: r.rate)
    ends = {r.name: r for r in (memory[0], memory[-1])} if memory else {}
    return [*ends.values(), *(r for r in roofs if r.bound == "compute")]
