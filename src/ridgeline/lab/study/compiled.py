"""What compiling gives: speed-up against size and place, what it costs to compile, after how many batches it pays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.study.contrast import Contrast, Pair, column, contrast, pairs
from ridgeline.lab.study.section import DASH, Grid, Section, plain
from ridgeline.lab.study.sweep import apart
from ridgeline.lab.study.table import NONE, Table, groups
from ridgeline.lab.study.trend import Trend, trend
from ridgeline.web import Axis, Point, Series, lines, si


@dataclass(frozen=True)
class Gain:
    """One point, compiled in one mode against not compiled."""

    mode: Any
    what: dict[str, Any]
    flops: float | None
    speedup: Estimate  # time without ÷ time with
    compute: float | None  # the same of the compute stage alone
    compile_seconds: float | None
    saved: float  # seconds per batch
    break_even: float | None  # batches; None: it never pays, or its cost is not told


def gains(table: Table) -> list[Gain]:
    """Every point that was run both ways; repeats of a point together."""
    columns, found = table.columns, []
    for mode, twins in twins_of(table).items():
        points: dict[tuple[Any, ...], list[Pair]] = {}
        for a, b in twins:
            points.setdefault(tuple(a.level(n) for n in columns.identity), []).append((a, b))
        for own in points.values():
            whole = contrast(own, columns.compile, NONE, mode).ratio
            stage = contrast(own, columns.compile, NONE, mode, response=column(columns.compute)).ratio
            costs = [c for _, b in own if (c := b.positive(columns.compile_seconds)) is not None]
            cost = max(costs) if costs else None
            saved = own[0][0].seconds - own[0][0].seconds * whole.value
            pays = cost / saved if cost is not None and saved > 0 else None
            what = {n: own[0][0].level(n) for n in columns.identity if n != columns.compile}
            inverse = Estimate(1 / whole.value, 1 / whole.high, 1 / whole.low if whole.low else math.inf, whole.n)
            flops = own[0][0].positive(columns.flops)
            found.append(Gain(mode, what, flops, inverse, 1 / stage.value if stage.n else None, cost, saved, pays))
    return found


def twins_of(table: Table) -> dict[Any, list[Pair]]:
    """For each compile mode the pairs (not compiled, compiled)."""
    columns = table.columns
    at = groups(table.trials, (columns.compile,))
    plain_ones = at.get((NONE,), [])
    return {
        mode: twins
        for (mode,), own in at.items()
        if mode != NONE and (twins := pairs(plain_ones, own, columns.identity, (columns.compile,)))
    }


def by_node(table: Table) -> list[Contrast]:
    """What compiling does from each node."""
    columns, found = table.columns, []
    for mode, twins in twins_of(table).items():
        nodes = dict.fromkeys(a.level(columns.node) for a, _ in twins)
        for node in nodes:
            own = [(a, b) for a, b in twins if a.level(columns.node) == node]
            found.append(contrast(own, columns.compile, NONE, mode, within=f"node {node}" if node != NONE else ""))
    return found


def with_size(found: Sequence[Gain]) -> Trend | None:
    """Whether the logarithm of the speed-up changes with the work: per doubling of FLOPs."""
    told = [(math.log2(g.flops), math.log(g.speedup.value)) for g in found if g.flops]
    return trend([x for x, _ in told], [y for _, y in told]) if len({x for x, _ in told}) > 1 else None


def compiling(table: Table, found: Sequence[Gain], grows: Trend | None) -> Section:
    title, columns = "Compiling", table.columns
    modes = [m for m in table.levels(columns.compile) if m != NONE]
    if not modes:
        return Section(title, ["Nothing was compiled: there is no gain to measure."] if table.trials else [])
    if not found:
        return Section(title, ["No point was run both with and without compiling: there is nothing to compare."])
    names = apart([{**g.what, columns.compile: g.mode} for g in found])
    best = max(found, key=lambda g: g.speedup.value)
    worst = min(found, key=lambda g: g.speedup.value)
    told = dict(zip(map(id, found), names, strict=True))
    said = [f"The most: {told[id(best)] or best.mode}, {best.speedup.value:.2f} times as fast."]
    if worst is not best:
        said.append(f"The least: {told[id(worst)] or worst.mode}, {worst.speedup.value:.2f} times.")
    paying = sorted(g.break_even for g in found if g.break_even is not None)
    if paying:
        said.append(f"Where it pays, it pays after {_count(paying[0])} to {_count(paying[-1])} batches.")
    never = sum(g.saved <= 0 for g in found)
    if never:
        said.append(f"In {never} of {len(found)} points the compiled model is no faster: it never pays there.")
    said += _sizes(grows)
    said += [f"From {c.within}: {1 / c.ratio.value:.2f} times as fast, {c.basis}." for c in by_node(table) if c.within]
    head = ("point", "mode", "speed-up", "95 % interval", "compute alone", "to compile", "pays after")
    rows = [
        [
            told[id(g)] or "the point",
            str(g.mode),
            f"{g.speedup.value:.2f} ×",
            f"{g.speedup.low:.2f} to {g.speedup.high:.2f}" if math.isfinite(g.speedup.low) else DASH,
            f"{g.compute:.2f} ×" if g.compute else DASH,
            si(g.compile_seconds, "s") if g.compile_seconds else DASH,
            f"{_count(g.break_even)} batches" if g.break_even is not None else "never" if g.saved <= 0 else DASH,
        ]
        for g in found
    ]
    findings = plain({"gains": found, "with_size": grows, "by_node": by_node(table)})
    return Section(title, said, [Grid(head, rows, head[2:])], _charts(table, found), findings)


def _sizes(grows: Trend | None) -> list[str]:
    if grows is None or not math.isfinite(grows.slope):
        return []
    change = f"{grows.factor(1.0):.2f} times per doubling of the FLOPs"
    if grows.p is None:
        return [f"With size the speed-up changes {change}; {grows.n} points are too few for a test."]
    sure = f"p = {grows.p:.2g} before correction"
    return [f"With size the speed-up changes {change} ({sure})."]


def _charts(table: Table, found: Sequence[Gain]) -> list[Markup]:
    columns = table.columns
    series: dict[str, list[Point]] = {}
    apart_by = [n for n in (columns.dtype, columns.node, columns.batch) if len({g.what.get(n) for g in found}) > 1][:2]
    for g in found:
        if g.flops:
            label = ", ".join([str(g.mode), *(f"{n} {g.what[n]}" for n in apart_by)])
            between = (g.speedup.low, g.speedup.high) if g.speedup.low <= g.speedup.high < math.inf else None
            series.setdefault(label, []).append(Point(g.flops, g.speedup.value, between))
    if not series or len({p.x for points in series.values() for p in points}) < 2:
        return []
    return [
        lines(
            [Series(name, points, apart=True) for name, points in list(series.items())[:8]],
            title="Speed-up by compiling over the work",
            x=Axis("FLOPs per batch", "FLOP", "log"),
            y=Axis("time without ÷ time with", "×"),
            reference=1.0,
            reference_label="as fast as without",
            caption="A dot is one point that was run both ways.",
        )
    ]


def _count(batches: float) -> str:
    return f"{math.ceil(batches):,}"
