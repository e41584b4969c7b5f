"""Where arithmetic overtakes transfers: the size at which compute takes as long as the slower way over the bus.

Along a sweep the logarithm of compute ÷ transfer is fitted by a parabola of log size (by a line where fewer than five
sizes were run; choosing between the two by their errors made the intervals too narrow). The crossover is its zero.
The interval is every size at which the fit cannot be told from zero (Student's t, inverted): with few points this
covers as it says, where a resampled interval is too narrow, and it may be open at an end, which is then said. A size of
0 (the control: no arithmetic) has no logarithm; where it lies on the other side, it closes the gap from below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ridgeline.lab.judge import student
from ridgeline.lab.judge.stats import CONFIDENCE
from ridgeline.lab.study.bound import transfers
from ridgeline.lab.study.section import DASH, Grid, Section, plain
from ridgeline.lab.study.sweep import FEWEST, Sweep, telling
from ridgeline.lab.study.table import Table
from ridgeline.web import Axis, Point, Series, lines

Array = NDArray[np.float64]
STEPS = 2001  # of the grid on which the fit is searched
REACH = 2.0  # how far beyond the sweep a crossover is still named, as a factor
CURVED = 5  # sizes from which on a parabola is fitted
CHARTS = 6
_OTHER = {"compute": "transfer", "transfer": "compute"}


@dataclass(frozen=True)
class Crossover:
    column: str
    fixed: Mapping[str, Any]
    at: float | None  # None: no crossover in reach of the sweep
    low: float | None  # None: open below
    high: float | None  # None: open above
    below: str  # what bounds the smallest and the largest size of the sweep
    above: str
    inside: bool  # within the sweep, not beyond it
    points: int
    smallest: float  # size that was fitted
    control: str = ""  # what bounds a size of 0, where one was run

    @property
    def bracketed(self) -> bool:
        """No crossover by fit, but the control and the smallest size lie on its two sides."""
        return self.at is None and self.control not in ("", self.below)


def crossovers(table: Table, every: Sequence[Sweep]) -> list[tuple[Sweep, Crossover]]:
    """One for each sweep over a size that tells both times."""
    columns, found = table.columns, []
    for sweep in every:
        pairs = [
            (x, c / m)
            for x, own in sweep.points
            for t in own
            if (c := t.positive(columns.compute)) and (m := transfers(t, columns))
        ]
        if sweep.column in columns.sizes and len({x for x, _ in pairs}) >= FEWEST:
            one = cross(pairs, sweep.column, sweep.fixed)
            found.append((sweep, replace(one, control=_control(table, sweep))))
    return found


def cross(pairs: Sequence[tuple[float, float]], column: str = "x", fixed: Mapping[str, Any] | None = None) -> Crossover:
    """The size at which a ratio, measured at sizes, passes 1.

    >>> found = cross([(1, 0.25), (2, 0.5), (4, 1.01), (8, 2.0), (16, 4.0)])
    >>> round(found.at, 1), found.inside, found.below, found.above
    (4.0, True, 'transfer', 'compute')
    """
    u = np.log([x for x, _ in pairs])
    y = np.log([r for _, r in pairs])
    degree = 2 if len(np.unique(u)) >= CURVED else 1
    design = np.vander(u - u.mean(), degree + 1)
    values = np.linalg.lstsq(design, y, rcond=None)[0]
    freedom = len(y) - degree - 1
    rest = y - design @ values
    inverse = np.linalg.pinv(design.T @ design) * (float(rest @ rest) / freedom if freedom > 0 else math.inf)
    grid = np.linspace(u.min() - math.log(REACH), u.max() + math.log(REACH), STEPS)
    at = np.vander(grid - u.mean(), degree + 1)
    curve = at @ values
    error = (
        np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", at, inverse, at), 0.0)) if freedom > 0 else np.full(STEPS, np.inf)
    )
    words = ["compute" if v > 0 else "transfer" for v in (curve[np.argmin(abs(grid - e))] for e in (u.min(), u.max()))]
    zero = _zero(grid, curve, float(u.min()), float(u.max()))
    fixed = fixed or {}
    if zero is None:
        return Crossover(column, fixed, None, None, None, words[0], words[1], False, len(y), float(np.exp(u.min())))
    unsure = abs(curve) <= student.quantile(CONFIDENCE, freedom) * error if freedom > 0 else np.full(STEPS, True)
    low, high = _around(unsure, int(np.argmin(abs(grid - zero))))
    ends = (None if low == 0 else float(np.exp(grid[low])), None if high == STEPS - 1 else float(np.exp(grid[high])))
    inside = bool(u.min() <= zero <= u.max())
    return Crossover(
        column, fixed, float(np.exp(zero)), *ends, words[0], words[1], inside, len(y), float(np.exp(u.min()))
    )


def crossing(table: Table, found: Sequence[tuple[Sweep, Crossover]]) -> Section:
    title = "Where compute overtakes transfers"
    if not found:
        if not any(t.positive(table.columns.compute) and transfers(t, table.columns) for t in table.trials):
            return Section(
                title, ["No run tells both a transfer and a compute time: there is no crossover to look for."]
            )
        return Section(title, ["No size was swept over three or more values: no crossover can be fitted."])
    names = dict(zip(map(id, (s for s, _ in found)), telling([s for s, _ in found]), strict=True))
    rows, sentences = [], []
    for sweep, one in found:
        rows.append(
            [one.column, names[id(sweep)] or "all", _at(one), interval(one), one.below, one.above, str(one.points)]
        )
        if len(found) <= 6:
            sentences.append(sentence(one, names[id(sweep)]))
    if len(found) > 6:
        told = [one for _, one in found if one.at is not None and one.inside]
        sentences.append(f"{len(told)} of {len(found)} sweeps cross over within their range; the table has each.")
    head = ("along", "of", "crossover", "95 % interval", "smallest bound by", "largest bound by", "points")
    grids = [Grid(head, rows, (*head[2:4], "points"))]
    telling_first = sorted(found, key=lambda f: (not f[1].inside, f[1].at is None))
    charts = [_chart(table, sweep, one, names[id(sweep)]) for sweep, one in telling_first[:CHARTS]]
    return Section(title, sentences, grids, charts, plain({"crossovers": [one for _, one in found]}))


def sentence(one: Crossover, where: str) -> str:
    along = f"Along {one.column}{f' ({where})' if where else ''}"
    if one.bracketed:
        there = f"between 0 and {one.smallest:.3g}, where no size was run"
        return f"{along} {one.control} gives way to {one.below} {there}: no fit can say where."
    if one.at is None:
        return f"{along} every size is {one.below}-bound: no crossover."
    if one.inside:
        return f"{along} {one.below} gives way to {one.above} at {one.at:.3g}, {interval(one)}."
    sides = (_OTHER[one.below], one.below) if one.at < one.smallest else (one.above, _OTHER[one.above])
    gives = f"{sides[0]} gives way to {sides[1]} at {one.at:.3g}, {interval(one)}"
    return f"{along} every size that was run is {one.below}-bound; by the fit {gives}, beyond them."


def interval(one: Crossover) -> str:
    if one.at is None:
        return DASH
    low = "open below" if one.low is None else f"{one.low:.3g}"
    high = "open above" if one.high is None else f"{one.high:.3g}"
    return f"{low} to {high}"


def _at(one: Crossover) -> str:
    if one.bracketed:
        return f"0 to {one.smallest:.3g} (no fit)"
    return DASH if one.at is None else f"{one.at:.3g}" + ("" if one.inside else " (extrapolated)")


def _control(table: Table, sweep: Sweep) -> str:
    """What bounds the runs of size 0 that agree with the sweep in all else; "" if there are none, or they differ."""
    columns = table.columns
    loose = (sweep.column, columns.model, *columns.along.get(sweep.column, ()))
    fixed = {name: value for name, value in sweep.fixed.items() if name not in loose}
    words = {
        "compute" if (t.positive(columns.compute) or 0.0) > moved else "transfer"
        for t in table.trials
        if t.number(sweep.column) == 0
        and all(t.level(name) == value for name, value in fixed.items())
        and (moved := transfers(t, columns))
    }
    return words.pop() if len(words) == 1 else ""


def _zero(grid: Array, curve: Array, low: float, high: float) -> float | None:
    """The zero within the sweep, else the one nearest to it."""
    turns = np.flatnonzero(np.signbit(curve[:-1]) != np.signbit(curve[1:]))
    zeros = [float(grid[i] - curve[i] * (grid[i + 1] - grid[i]) / (curve[i + 1] - curve[i])) for i in turns]
    return min(zeros, key=lambda z: max(low - z, z - high, 0.0), default=None)


def _around(mask: NDArray[np.bool_], at: int) -> tuple[int, int]:
    """The ends of the run of true values around a place."""
    low = high = at
    while low > 0 and mask[low - 1]:
        low -= 1
    while high < len(mask) - 1 and mask[high + 1]:
        high += 1
    return low, high


def _chart(table: Table, sweep: Sweep, one: Crossover, name: str) -> Markup:
    columns = table.columns
    named = {"to the device": columns.up, "compute": columns.compute, "back": columns.down}
    series = []
    for label, column in named.items():
        told = zip(sweep.points, sweep.median(column), strict=True)
        points = [Point(x, v) for (x, _), v in told if v is not None]
        if points:
            series.append(Series(label, points))
    if one.at is not None:
        levels = [v for column in (columns.up, columns.down) for v in sweep.median(column) if v is not None]
        ends = (one.low or min(one.at, sweep.points[0][0]), one.at, one.high or max(one.at, sweep.points[-1][0]))
        level = max(levels)
        series.append(Series(f"crossover {one.at:.3g}, {interval(one)}", [Point(x, level) for x in ends], dashed=True))
    return lines(
        series,
        title=f"Stages over {sweep.column}" + (f" ({name})" if name else ""),
        x=Axis(sweep.column, scale="log2"),
        y=Axis("time per batch, each stage alone", "s", "log"),
        caption="The dashed line spans the sizes at which compute cannot be told from the slower transfer.",
    )
