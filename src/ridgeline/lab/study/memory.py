"""The pool of staging memory and the peak memory of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ridgeline.lab.study.contrasts import Contrast, Pair, compare_pairs, fit_trend
from ridgeline.lab.study.placement import pair_far_trials
from ridgeline.lab.study.section import Grid, Section, format_change, format_interval, to_json
from ridgeline.lab.study.table import NONE, Sweep, Table, name_sweeps
from ridgeline.web import format_bytes


def describe_memory(table: Table, contrasts: Sequence[Contrast], sweeps: Sequence[Sweep]) -> Section:
    """Return the section on pool sizes, on far nodes under memory pressure, and on peak memory over the batch."""
    columns, sentences, grids = table.columns, [], []
    pools = [c for c in contrasts if c.factor == columns.pool]
    if pools:
        rows = [
            [f"{c.other} MB", format_change(c.ratio.value), format_interval(c.ratio), str(c.ratio.n)] for c in pools
        ]
        head = ("pool", "time", "95 % interval", "pairs")
        grids.append(Grid(head, rows, head[1:], f"Time per item against a pool of {pools[0].base} MB."))
        worst = max(pools, key=lambda c: abs(c.ratio.value - 1))
        change = format_change(worst.ratio.value)
        sentences.append(f"A pool of {worst.other} MB instead of {worst.base} MB changes time by {change}.")
    else:
        sentences.append("The pool of staging memory was not varied: its size cannot be judged.")
    penalties = _compare_far_nodes_by_pool(table)
    if len(penalties) > 1:
        words = "; ".join(f"{c.within} {format_change(c.ratio.value)}" for c in penalties)
        sentences.append(f"The penalty of a far node under memory pressure: {words}.")
    peaks = fit_peak_memory(table, sweeps)
    for name, per_item, fixed in peaks:
        sweep = f" ({name})" if name else ""
        sentences.append(f"Peak memory{sweep}: {format_bytes(max(fixed, 0))} and {format_bytes(per_item)} per item.")
    findings = to_json({"pool": pools, "pressure": penalties, "peak": peaks})
    return Section("Pool and memory", sentences if table.trials else [], grids, findings=findings)


def fit_peak_memory(table: Table, sweeps: Sequence[Sweep]) -> list[tuple[str, float, float]]:
    """Return (name of the sweep, bytes per item, other bytes) along the batch, by the median of slopes."""
    columns, peaks = table.columns, []
    batch_sweeps = [s for s in sweeps if s.column == columns.batch]
    for sweep, name in zip(batch_sweeps, name_sweeps(batch_sweeps), strict=True):
        known = [(x, v) for (x, _), v in zip(sweep.points, sweep.median(columns.peak), strict=True) if v is not None]
        if len(known) > 2:
            slope = fit_trend([x for x, _ in known], [v for _, v in known]).slope
            rest = sorted(v - slope * x for x, v in known)[len(known) // 2]
            if slope > 0:
                peaks.append((name, slope, rest))
    return peaks


def _compare_far_nodes_by_pool(table: Table) -> list[Contrast]:
    columns = table.columns
    by_pool: dict[Any, list[Pair]] = {}
    for pair in pair_far_trials(table):
        by_pool.setdefault(pair[0].level(columns.pool), []).append(pair)
    return [
        compare_pairs(pairs, columns.node, "nearest", "far", within=f"pool {pool} MB")
        for pool, pairs in by_pool.items()
        if pool != NONE
    ]
