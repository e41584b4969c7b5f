"""What compiling a model gives: speed-up by size and place, the time to compile, and the break-even in batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ridgeline.lab.judge import Estimate
from ridgeline.lab.study.contrasts import Contrast, Pair, Trend, compare_pairs, fit_trend, pair_trials, read_column
from ridgeline.lab.study.section import DASH, Grid, Section, to_json
from ridgeline.lab.study.table import NONE, Table, group_trials, name_differences
from ridgeline.web import Axis, Point, Series, draw_lines, format_si

MAX_SERIES = 8


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
    break_even: float | None  # batches; None: compiling never pays, or its time is unknown


def compare_compiled(table: Table) -> list[Gain]:
    """Return the gain of every point that was run both ways; repeats of a point count together."""
    columns, gains = table.columns, []
    for mode, pairs in pair_compiled(table).items():
        by_point: dict[tuple[Any, ...], list[Pair]] = {}
        for a, b in pairs:
            by_point.setdefault(tuple(a.level(n) for n in columns.identity), []).append((a, b))
        for own_pairs in by_point.values():
            plain = own_pairs[0][0]
            total = compare_pairs(own_pairs, columns.compile, NONE, mode).ratio
            stage = compare_pairs(own_pairs, columns.compile, NONE, mode, response=read_column(columns.compute)).ratio
            costs = [c for _, b in own_pairs if (c := b.positive(columns.compile_seconds)) is not None]
            cost = max(costs) if costs else None
            saved = plain.seconds - plain.seconds * total.value
            break_even = cost / saved if cost is not None and saved > 0 else None
            what = {n: plain.level(n) for n in columns.identity if n != columns.compile}
            speedup = Estimate(1 / total.value, 1 / total.high, 1 / total.low if total.low else math.inf, total.n)
            compute = 1 / stage.value if stage.n else None
            gains.append(Gain(mode, what, plain.positive(columns.flops), speedup, compute, cost, saved, break_even))
    return gains


def pair_compiled(table: Table) -> dict[Any, list[Pair]]:
    """Return for each compile mode the pairs (not compiled, compiled)."""
    columns = table.columns
    by_mode = group_trials(table.trials, (columns.compile,))
    plain = by_mode.get((NONE,), [])
    return {
        mode: pairs
        for (mode,), trials in by_mode.items()
        if mode != NONE and (pairs := pair_trials(plain, trials, columns.identity, (columns.compile,)))
    }


def compare_by_node(table: Table) -> list[Contrast]:
    """Return what compiling does from each node."""
    columns, contrasts = table.columns, []
    for mode, pairs in pair_compiled(table).items():
        for node in dict.fromkeys(a.level(columns.node) for a, _ in pairs):
            own_pairs = [(a, b) for a, b in pairs if a.level(columns.node) == node]
            within = f"node {node}" if node != NONE else ""
            contrasts.append(compare_pairs(own_pairs, columns.compile, NONE, mode, within=within))
    return contrasts


def fit_size_trend(gains: Sequence[Gain]) -> Trend | None:
    """Return how the logarithm of the speed-up changes per doubling of FLOPs; None where FLOPs do not vary."""
    known = [(math.log2(g.flops), math.log(g.speedup.value)) for g in gains if g.flops]
    return fit_trend([x for x, _ in known], [y for _, y in known]) if len({x for x, _ in known}) > 1 else None


def describe_compilation(table: Table, gains: Sequence[Gain], trend: Trend | None) -> Section:
    """Return the section on compiling."""
    title, columns = "Compiling", table.columns
    modes = [m for m in table.levels(columns.compile) if m != NONE]
    if not modes:
        return Section(title, ["Nothing was compiled: there is no gain to measure."] if table.trials else [])
    if not gains:
        return Section(title, ["No point was run both with and without compiling: there is nothing to compare."])
    names = dict(
        zip(map(id, gains), name_differences([{**g.what, columns.compile: g.mode} for g in gains]), strict=True)
    )
    best = max(gains, key=lambda g: g.speedup.value)
    worst = min(gains, key=lambda g: g.speedup.value)
    sentences = [f"The most: {names[id(best)] or best.mode}, {best.speedup.value:.2f} times as fast."]
    if worst is not best:
        sentences.append(f"The least: {names[id(worst)] or worst.mode}, {worst.speedup.value:.2f} times.")
    break_evens = sorted(g.break_even for g in gains if g.break_even is not None)
    if break_evens:
        first, last = (_format_count(batches) for batches in (break_evens[0], break_evens[-1]))
        sentences.append(f"Where it pays, it pays after {first} to {last} batches.")
    never = sum(g.saved <= 0 for g in gains)
    if never:
        sentences.append(f"In {never} of {len(gains)} points the compiled model is no faster: it never pays there.")
    sentences += _describe_trend(trend)
    by_node = compare_by_node(table)
    sentences += [f"From {c.within}: {1 / c.ratio.value:.2f} times as fast, {c.basis}." for c in by_node if c.within]
    head = ("point", "mode", "speed-up", "95 % interval", "compute alone", "to compile", "pays after")
    rows = [
        [
            names[id(g)] or "the point",
            str(g.mode),
            f"{g.speedup.value:.2f} ×",
            f"{g.speedup.low:.2f} to {g.speedup.high:.2f}" if math.isfinite(g.speedup.low) else DASH,
            f"{g.compute:.2f} ×" if g.compute else DASH,
            format_si(g.compile_seconds, "s") if g.compile_seconds else DASH,
            f"{_format_count(g.break_even)} batches" if g.break_even is not None else "never" if g.saved <= 0 else DASH,
        ]
        for g in gains
    ]
    findings = to_json({"gains": gains, "with_size": trend, "by_node": by_node})
    return Section(title, sentences, [Grid(head, rows, head[2:])], _draw_gains(table, gains), findings)


def _describe_trend(trend: Trend | None) -> list[str]:
    if trend is None or not math.isfinite(trend.slope):
        return []
    change = f"{trend.factor(1.0):.2f} times per doubling of the FLOPs"
    if trend.p is None:
        return [f"With size the speed-up changes {change}; {trend.n} points are too few for a test."]
    return [f"With size the speed-up changes {change} (p = {trend.p:.2g} before correction)."]


def _draw_gains(table: Table, gains: Sequence[Gain]) -> list[Markup]:
    columns = table.columns
    series: dict[str, list[Point]] = {}
    varied = [n for n in (columns.dtype, columns.node, columns.batch) if len({g.what.get(n) for g in gains}) > 1][:2]
    for g in gains:
        if g.flops:
            label = ", ".join([str(g.mode), *(f"{n} {g.what[n]}" for n in varied)])
            interval = (g.speedup.low, g.speedup.high) if g.speedup.low <= g.speedup.high < math.inf else None
            series.setdefault(label, []).append(Point(g.flops, g.speedup.value, interval))
    if not series or len({p.x for points in series.values() for p in points}) < 2:
        return []
    return [
        draw_lines(
            [Series(name, points, points_only=True) for name, points in list(series.items())[:MAX_SERIES]],
            title="Speed-up by compiling over the work",
            x=Axis("FLOPs per batch", "FLOP", "log"),
            y=Axis("time without ÷ time with", "×"),
            reference=1.0,
            reference_label="as fast as without",
            caption="A dot is one point that was run both ways.",
        )
    ]


def _format_count(batches: float) -> str:
    return f"{math.ceil(batches):,}"
