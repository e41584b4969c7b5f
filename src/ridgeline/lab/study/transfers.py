"""Transfers over the bus: what they cost, and where arithmetic takes longer than they do.

    seconds = latency + bytes ÷ bandwidth      by non-negative least squares, for each direction and setting

The crossover is the size at which compute takes as long as the slower transfer. Along a sweep the logarithm of
compute ÷ transfer is fitted by a parabola of log size (by a line where fewer than five sizes were run; to choose
between the two by their errors made the intervals too narrow). The crossover is the zero of that curve. Its interval is
every size at which the fit does not differ from zero (Student's t, inverted): with few points this covers as stated,
where a resampled interval is too narrow. The interval may be open at an end; the report then says so. A size of 0 (the
control: no arithmetic) has no logarithm; where it lies on the other side, it brackets the crossover from below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ridgeline.lab.judge import CONFIDENCE, ONE, Estimate, Observation, cross_validate, mean_error, sum_law, t_quantile
from ridgeline.lab.study.section import DASH, Grid, Section, format_share, to_json
from ridgeline.lab.study.table import (
    MIN_POINTS,
    Columns,
    Sweep,
    Table,
    Trial,
    group_trials,
    name_differences,
    name_sweeps,
    slower_transfer,
)
from ridgeline.web import Axis, Point, Series, draw_lines, format_si

Array = NDArray[np.float64]
BYTES = "bytes"
FIT = sum_law("latency + bytes ÷ bandwidth", [BYTES])
IRRELEVANT = ("dtype", "compile_mode")  # settings that a transfer does not depend on
MAX_CHARTS = 6
MAX_SERIES = 8
MAX_SENTENCES = 6
GRID_STEPS = 2001  # sizes at which the fitted curve is searched for its zero
REACH = 2.0  # factor beyond the sweep up to which a crossover is named
CURVED = 5  # sizes from which on a parabola is fitted
OTHER_SIDE = {"compute": "transfer", "transfer": "compute"}


@dataclass(frozen=True)
class TransferFit:
    """The cost of one transfer direction in one setting."""

    setting: dict[str, Any]
    way: str  # to the device | back
    runs: int
    latency: Estimate | None  # seconds
    bandwidth: Estimate | None  # bytes per second
    held_out: float  # mean relative error on held-out points
    best: float  # highest rate of a run, bytes per second


@dataclass(frozen=True)
class Crossover:
    """Where compute overtakes transfers along a sweep."""

    column: str
    fixed: Mapping[str, Any]
    at: float | None  # None: no crossover within reach of the sweep
    low: float | None  # None: open below
    high: float | None  # None: open above
    below: str  # what bounds the smallest size of the sweep: compute | transfer
    above: str  # what bounds the largest size
    inside: bool  # within the sweep, not beyond it
    points: int
    smallest: float  # size that was fitted
    control: str = ""  # what bounds a size of 0, where one was run

    @property
    def bracketed(self) -> bool:
        """Whether the fit has no crossover, but the control and the smallest size lie on its two sides."""
        return self.at is None and self.control not in ("", self.below)


def fit_transfers(table: Table) -> list[TransferFit]:
    """Fit latency and bandwidth of every direction in every setting."""
    columns, fits = table.columns, []
    names = [n for n in columns.setting if n not in IRRELEVANT]
    for levels, trials in group_trials(table.trials, names).items():
        for direction, seconds, amount in _list_directions(columns):
            data = _read_observations(trials, seconds, amount)
            if data:
                fits.append(_fit_direction(dict(zip(names, levels, strict=True)), direction, data))
    return fits


def describe_transfers(table: Table, sweeps: Sequence[Sweep]) -> Section:
    """Return the section on transfers: latency, bandwidth, and how bytes grow with a model."""
    title, fits = "Transfers", fit_transfers(table)
    if not fits:
        return Section(title, ["No row has bytes and seconds of a transfer: nothing went over a bus."])
    names = name_differences([f.setting for f in fits])
    rows = [
        [
            name or "all",
            f.way,
            _format_seconds(f.latency),
            _format_rate(f.bandwidth),
            format_si(f.best, "B/s"),
            format_share(f.held_out),
            str(f.runs),
        ]
        for f, name in zip(fits, names, strict=True)
    ]
    head = ("setting", "way", "before the first byte", "bandwidth", "highest rate seen", "held-out error", "runs")
    growth = describe_growth(table, sweeps)
    sentences = [
        f"{f.way.capitalize()}{f' ({name})' if name else ''}: {_format_rate(f.bandwidth)} after "
        f"{_format_seconds(f.latency)}."
        for f, name in list(zip(fits, names, strict=True))[:4]
        if f.bandwidth
    ]
    if not any(f.bandwidth for f in fits):
        sentences.append(
            "Too few sizes were transferred to separate the cost of a byte from the latency; the table has the rates."
        )
    findings = to_json({"ways": fits, "growth": growth})
    return Section(title, [*sentences, *growth], [Grid(head, rows, head[2:])], [_draw_rates(table)], findings)


def describe_growth(table: Table, sweeps: Sequence[Sweep]) -> list[str]:
    """Return sentences on how the bytes of each direction grow along each size."""
    columns, sentences = table.columns, []
    for column in columns.sizes:
        for direction, _, amount in _list_directions(columns):
            powers = []
            for sweep in (s for s in sweeps if s.column == column):
                known = [(x, v) for (x, _), v in zip(sweep.points, sweep.median(amount), strict=True) if v]
                if len(known) > 1:
                    (a, first), (b, last) = known[0], known[-1]
                    powers.append(math.log(last / first) / math.log(b / a))
            if powers:
                low, high = min(powers), max(powers)
                word = "do not grow" if max(abs(low), abs(high)) < 0.05 else f"grow by the power {low:.2g}"
                word += f" to {high:.2g}" if high - low > 0.05 else ""
                sentences.append(f"Bytes {direction} {word} along {column}.")
    return sentences


def find_crossovers(table: Table, sweeps: Sequence[Sweep]) -> list[tuple[Sweep, Crossover]]:
    """Return a crossover for each sweep over a size that has both compute and transfer times."""
    columns, crossovers = table.columns, []
    for sweep in sweeps:
        ratios = [
            (x, compute / transfer)
            for x, trials in sweep.points
            for t in trials
            if (compute := t.positive(columns.compute)) and (transfer := slower_transfer(t, columns))
        ]
        if sweep.column in columns.sizes and len({x for x, _ in ratios}) >= MIN_POINTS:
            crossover = fit_crossover(ratios, sweep.column, sweep.fixed)
            crossovers.append((sweep, replace(crossover, control=_read_control(table, sweep))))
    return crossovers


def fit_crossover(
    ratios: Sequence[tuple[float, float]], column: str = "x", fixed: Mapping[str, Any] | None = None
) -> Crossover:
    """Return the size at which compute ÷ transfer passes 1; `ratios` are (size, ratio).

    >>> crossover = fit_crossover([(1, 0.25), (2, 0.5), (4, 1.01), (8, 2.0), (16, 4.0)])
    >>> round(crossover.at, 1), crossover.inside, crossover.below, crossover.above
    (4.0, True, 'transfer', 'compute')
    """
    u = np.log([x for x, _ in ratios])
    y = np.log([ratio for _, ratio in ratios])
    degree = 2 if len(np.unique(u)) >= CURVED else 1
    design = np.vander(u - u.mean(), degree + 1)
    values = np.linalg.lstsq(design, y, rcond=None)[0]
    freedom = len(y) - degree - 1
    residuals = y - design @ values
    variance = float(residuals @ residuals) / freedom if freedom > 0 else math.inf
    covariance = np.linalg.pinv(design.T @ design) * variance
    grid = np.linspace(u.min() - math.log(REACH), u.max() + math.log(REACH), GRID_STEPS)
    grid_design = np.vander(grid - u.mean(), degree + 1)
    curve = grid_design @ values
    if freedom > 0:
        error = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", grid_design, covariance, grid_design), 0.0))
        unsure = abs(curve) <= t_quantile(CONFIDENCE, freedom) * error
    else:
        unsure = np.full(GRID_STEPS, True)
    ends = (curve[np.argmin(abs(grid - end))] for end in (u.min(), u.max()))
    below, above = ("compute" if value > 0 else "transfer" for value in ends)
    zero = _find_zero(grid, curve, float(u.min()), float(u.max()))
    fixed, smallest = fixed or {}, float(np.exp(u.min()))
    if zero is None:
        return Crossover(column, fixed, None, None, None, below, above, False, len(y), smallest)
    first, last = _find_run(unsure, int(np.argmin(abs(grid - zero))))
    low = None if first == 0 else float(np.exp(grid[first]))
    high = None if last == GRID_STEPS - 1 else float(np.exp(grid[last]))
    inside = bool(u.min() <= zero <= u.max())
    return Crossover(column, fixed, float(np.exp(zero)), low, high, below, above, inside, len(y), smallest)


def describe_crossovers(table: Table, crossovers: Sequence[tuple[Sweep, Crossover]]) -> Section:
    """Return the section on crossovers, with a chart of the stages along the first sweeps."""
    title = "Where compute overtakes transfers"
    if not crossovers:
        if not any(t.positive(table.columns.compute) and slower_transfer(t, table.columns) for t in table.trials):
            return Section(title, ["No run has both a transfer and a compute time: there is no crossover to look for."])
        return Section(title, ["No sweep over a size has three or more values: no crossover can be fitted."])
    sweeps = [sweep for sweep, _ in crossovers]
    names = dict(zip(map(id, sweeps), name_sweeps(sweeps), strict=True))
    rows, sentences = [], []
    for sweep, c in crossovers:
        name = names[id(sweep)]
        rows.append([c.column, name or "all", _format_size(c), format_range(c), c.below, c.above, str(c.points)])
        if len(crossovers) <= MAX_SENTENCES:
            sentences.append(describe_crossover(c, name))
    if len(crossovers) > MAX_SENTENCES:
        inside = [c for _, c in crossovers if c.at is not None and c.inside]
        sentences.append(
            f"{len(inside)} of {len(crossovers)} sweeps cross over within their range; the table has each."
        )
    head = ("along", "of", "crossover", "95 % interval", "smallest bound by", "largest bound by", "points")
    grids = [Grid(head, rows, (*head[2:4], "points"))]
    ranked = sorted(crossovers, key=lambda pair: (not pair[1].inside, pair[1].at is None))
    charts = [_draw_stages(table, sweep, c, names[id(sweep)]) for sweep, c in ranked[:MAX_CHARTS]]
    return Section(title, sentences, grids, charts, to_json({"crossovers": [c for _, c in crossovers]}))


def describe_crossover(c: Crossover, name: str) -> str:
    """Return a sentence on a crossover; `name` is that of its sweep."""
    along = f"Along {c.column}{f' ({name})' if name else ''}"
    if c.bracketed:
        gap = f"between 0 and {c.smallest:.3g}, where no size was run"
        return f"{along} {c.control} gives way to {c.below} {gap}: no fit can say at which size."
    if c.at is None:
        return f"{along} every size is {c.below}-bound: no crossover."
    if c.inside:
        return f"{along} {c.below} gives way to {c.above} at {c.at:.3g}, {format_range(c)}."
    before, after = (OTHER_SIDE[c.below], c.below) if c.at < c.smallest else (c.above, OTHER_SIDE[c.above])
    change = f"{before} gives way to {after} at {c.at:.3g}, {format_range(c)}"
    return f"{along} every size that was run is {c.below}-bound; by the fit {change}, outside the sweep."


def format_range(c: Crossover) -> str:
    """Return the interval of a crossover in words: "3.1 to 4.2", "open below to 4.2"."""
    if c.at is None:
        return DASH
    low = "open below" if c.low is None else f"{c.low:.3g}"
    high = "open above" if c.high is None else f"{c.high:.3g}"
    return f"{low} to {high}"


def _list_directions(columns: Columns) -> list[tuple[str, str, str]]:
    """Return (direction, column of seconds, column of bytes)."""
    return [("to the device", columns.up, columns.up_bytes), ("back", columns.down, columns.down_bytes)]


def _read_observations(trials: Sequence[Trial], seconds: str, amount: str) -> list[Observation]:
    values = ((t.positive(amount), t.positive(seconds)) for t in trials)
    return [Observation({BYTES: moved}, s) for moved, s in values if moved is not None and s is not None]


def _fit_direction(setting: dict[str, Any], direction: str, data: Sequence[Observation]) -> TransferFit:
    best = max(d.amounts[BYTES] / d.seconds for d in data)
    law = FIT(data)
    cost = law.coefficients.get(BYTES) if law else None
    if law is None or cost is None or cost.value <= 0:
        return TransferFit(setting, direction, len(data), None, None, math.nan, best)
    fastest = 1 / cost.low if cost.low > 0 else math.inf
    bandwidth = Estimate(1 / cost.value, 1 / cost.high, fastest, cost.n)
    error = mean_error(cross_validate(FIT, data))
    return TransferFit(setting, direction, len(data), law.coefficients[ONE], bandwidth, error, best)


def _read_control(table: Table, sweep: Sweep) -> str:
    """Return what bounds the runs of size 0 that agree with the sweep otherwise; "" if none exist or they differ."""
    columns = table.columns
    dependent = (sweep.column, columns.model, *columns.along.get(sweep.column, ()))
    fixed = {name: value for name, value in sweep.fixed.items() if name not in dependent}
    words = {
        "compute" if (t.positive(columns.compute) or 0.0) > transfer else "transfer"
        for t in table.trials
        if t.number(sweep.column) == 0
        and all(t.level(name) == value for name, value in fixed.items())
        and (transfer := slower_transfer(t, columns))
    }
    return words.pop() if len(words) == 1 else ""


def _find_zero(grid: Array, curve: Array, low: float, high: float) -> float | None:
    """Return the zero of the curve within the sweep, else the zero closest to it."""
    changes = np.flatnonzero(np.signbit(curve[:-1]) != np.signbit(curve[1:]))
    zeros = [float(grid[i] - curve[i] * (grid[i + 1] - grid[i]) / (curve[i + 1] - curve[i])) for i in changes]
    return min(zeros, key=lambda z: max(low - z, z - high, 0.0), default=None)


def _find_run(mask: NDArray[np.bool_], start: int) -> tuple[int, int]:
    """Return the ends of the run of true values around an index."""
    low = high = start
    while low > 0 and mask[low - 1]:
        low -= 1
    while high < len(mask) - 1 and mask[high + 1]:
        high += 1
    return low, high


def _draw_rates(table: Table) -> Markup:
    columns, series = table.columns, []
    names = [n for n in columns.setting if n not in IRRELEVANT]
    groups = group_trials(table.trials, names)
    labels = name_differences([dict(zip(names, levels, strict=True)) for levels in groups])
    for trials, label in zip(groups.values(), labels, strict=True):
        for direction, seconds, amount in _list_directions(columns):
            by_size: dict[float, list[float]] = {}
            for d in _read_observations(trials, seconds, amount):
                by_size.setdefault(d.amounts[BYTES], []).append(d.amounts[BYTES] / d.seconds)
            points = [Point(size, max(rates), (min(rates), max(rates))) for size, rates in by_size.items()]
            if points:
                series.append(Series(", ".join(n for n in (direction, label) if n), points))
    return draw_lines(
        series[:MAX_SERIES],
        title="Rate of a transfer over its size",
        x=Axis("bytes per batch", "B", "log"),
        y=Axis("rate", "B/s", "log"),
        caption="The highest rate at each size; whiskers reach down to the lowest run.",
    )


def _draw_stages(table: Table, sweep: Sweep, c: Crossover, name: str) -> Markup:
    columns = table.columns
    stages = {"to the device": columns.up, "compute": columns.compute, "back": columns.down}
    series = []
    for label, column in stages.items():
        medians = zip(sweep.points, sweep.median(column), strict=True)
        points = [Point(x, v) for (x, _), v in medians if v is not None]
        if points:
            series.append(Series(label, points))
    if c.at is not None:
        transfers = [v for column in (columns.up, columns.down) for v in sweep.median(column) if v is not None]
        sizes = (c.low or min(c.at, sweep.points[0][0]), c.at, c.high or max(c.at, sweep.points[-1][0]))
        level = max(transfers)
        series.append(Series(f"crossover {c.at:.3g}, {format_range(c)}", [Point(x, level) for x in sizes], dashed=True))
    return draw_lines(
        series,
        title=f"Stages over {sweep.column}" + (f" ({name})" if name else ""),
        x=Axis(sweep.column, scale="log2"),
        y=Axis("time per batch, each stage alone", "s", "log"),
        caption="The dashed line spans the sizes at which compute does not differ from the slower transfer.",
    )


def _format_size(c: Crossover) -> str:
    if c.bracketed:
        return f"0 to {c.smallest:.3g} (no fit)"
    return DASH if c.at is None else f"{c.at:.3g}" + ("" if c.inside else " (extrapolated)")


def _format_seconds(e: Estimate | None) -> str:
    return DASH if e is None else f"{format_si(e.value, 's')} ({format_si(e.low, 's')} to {format_si(e.high, 's')})"


def _format_rate(e: Estimate | None) -> str:
    return (
        DASH if e is None else f"{format_si(e.value, 'B/s')} ({format_si(e.low, 'B/s')} to {format_si(e.high, 'B/s')})"
    )
