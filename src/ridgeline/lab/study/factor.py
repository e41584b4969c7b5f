"""Every factor that was varied, against its base level: over all points that differ in it and in nothing else.

Also the pool of staging memory and what memory the runs needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ridgeline.lab.study.contrast import Contrast, contrast, pairs
from ridgeline.lab.study.remote import far_pairs
from ridgeline.lab.study.section import Grid, Section, percent, plain, spread
from ridgeline.lab.study.sweep import Sweep, telling
from ridgeline.lab.study.table import NONE, Table, groups
from ridgeline.lab.study.trend import trend
from ridgeline.web import binary


def effects(table: Table) -> list[Contrast]:
    """One contrast for every level of every factor but its base (nothing, else the lowest)."""
    columns, found = table.columns, []
    for factor in columns.factors:
        at = groups(table.trials, (factor,))
        known = [value for value in table.levels(factor) if value != NONE or factor == columns.compile]
        base = NONE if NONE in known else known[0] if known else NONE
        for other in known:
            if other != base:
                twins = pairs(at.get((base,), []), at[(other,)], columns.identity, (factor,))
                if twins:
                    found.append(contrast(twins, factor, base, other, within="all points"))
    return found


def memory(table: Table, found: Sequence[Contrast], every: Sequence[Sweep]) -> Section:
    """Pool sizes, what they do to the penalty of a far node, and peak memory against the batch."""
    columns, said, grids = table.columns, [], []
    own = [c for c in found if c.factor == columns.pool]
    if own:
        rows = [[f"{c.other} MB", percent(c.ratio.value), spread(c.ratio), str(c.ratio.n)] for c in own]
        head = ("pool", "time", "95 % interval", "pairs")
        grids.append(Grid(head, rows, head[1:], f"Time per item against a pool of {own[0].base} MB."))
        worst = max(own, key=lambda c: abs(c.ratio.value - 1))
        said.append(
            f"A pool of {worst.other} MB instead of {worst.base} MB changes time by {percent(worst.ratio.value)}."
        )
    else:
        said.append("The pool of staging memory was not varied: its size cannot be judged.")
    pressure = _pressure(table)
    if len(pressure) > 1:
        words = "; ".join(f"{c.within} {percent(c.ratio.value)}" for c in pressure)
        said.append(f"The penalty of a far node under memory pressure: {words}.")
    needs = peaks(table, every)
    for name, per_item, fixed in needs:
        said.append(
            f"Peak memory{f' ({name})' if name else ''}: {binary(max(fixed, 0))} and {binary(per_item)} per item."
        )
    findings = plain({"pool": own, "pressure": pressure, "peak": needs})
    return Section("Pool and memory", said if table.trials else [], grids, findings=findings)


def peaks(table: Table, every: Sequence[Sweep]) -> list[tuple[str, float, float]]:
    """(which sweep, bytes per item, bytes besides) along the batch, by the median of slopes."""
    columns, found = table.columns, []
    own = [s for s in every if s.column == columns.batch]
    for sweep, name in zip(own, telling(own), strict=True):
        known = [(x, v) for (x, _), v in zip(sweep.points, sweep.median(columns.peak), strict=True) if v is not None]
        if len(known) > 2:
            slope = trend([x for x, _ in known], [v for _, v in known]).slope
            rest = sorted(v - slope * x for x, v in known)[len(known) // 2]
            if slope > 0:
                found.append((name, slope, rest))
    return found


def _pressure(table: Table) -> list[Contrast]:
    """The penalty of far nodes for each pool size by itself."""
    columns = table.columns
    twins: dict[Any, list[Any]] = {}
    for pair in far_pairs(table):
        twins.setdefault(pair[0].level(columns.pool), []).append(pair)
    return [
        contrast(own, columns.node, "nearest", "far", within=f"pool {pool} MB")
        for pool, own in twins.items()
        if pool != NONE
    ]
