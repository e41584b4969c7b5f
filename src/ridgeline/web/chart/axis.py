"""Axes: map values to positions, and choose round ticks whose labels fit.

Linear ticks step by 1, 2 or 5; log ticks are decades (or 1-2-5 if there are few); log2 ticks are powers of two. The
densest set whose labels do not touch is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from ridgeline.errors import InputError
from ridgeline.web.chart.inputs import Axis, Interval
from ridgeline.web.chart.text import TICK, estimate_width
from ridgeline.web.number_format import add_prefix, choose_prefix_power, format_si

# Beyond these, differences and ratios of two values overflow a float64; no measurement is that large or small.
_LARGEST, _SMALLEST = 1e150, 1e-150
_GAP = 14.0  # between neighbouring tick labels


@dataclass(frozen=True)
class Scale:
    """An axis with positions: `low` is drawn at `start`, `high` at `end` (start > end for a y axis)."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float


@dataclass(frozen=True)
class Tick:
    value: float
    position: float
    text: str


def is_drawable(value: float, axis: Axis) -> bool:
    """Whether the value can be drawn on this axis: finite, and above zero if the axis is logarithmic."""
    if axis.scale == "linear":
        return abs(value) <= _LARGEST
    return _SMALLEST <= value <= _LARGEST


def get_ends(interval: Interval | None, axis: Axis) -> tuple[float, ...]:
    """Return the two ends of an interval if both can be drawn, else an empty tuple."""
    return interval if interval is not None and all(is_drawable(v, axis) for v in interval) else ()


def fit_scale(axis: Axis, values: Iterable[float], start: float, end: float, *, zero: bool = False) -> Scale:
    """Return the scale that includes every drawable value, with a small margin or from zero."""
    for limit in (axis.low, axis.high):
        if limit is not None and not is_drawable(limit, axis):
            raise InputError(f"the {axis.label or 'chart'} axis cannot reach {limit} on a {axis.scale} scale.")
    drawable_values = [v for v in (*values, axis.low, axis.high) if v is not None and is_drawable(v, axis)]
    if axis.scale == "linear":
        low, high = _fit_linear_range(drawable_values or [0.0, 1.0], zero)
    else:
        low, high = _fit_log_range(drawable_values or [1.0, 10.0])
    return Scale(axis, low, high, start, end)


def get_position(scale: Scale, value: float) -> float:
    """Return the position of a value, clipped to the scale."""
    value = min(max(value, scale.low), scale.high)
    if scale.axis.scale == "linear":
        share = (value - scale.low) / (scale.high - scale.low)
    else:
        share = math.log(value / scale.low) / math.log(scale.high / scale.low)
    return scale.start + share * (scale.end - scale.start)


def choose_ticks(scale: Scale) -> list[Tick]:
    """Return ticks at round values whose labels do not touch."""
    best: list[Tick] = []
    for values in _list_candidates(scale):
        best = [
            Tick(v, get_position(scale, v), text) for v, text in zip(values, _format_labels(scale, values), strict=True)
        ]
        if len(best) <= 9 and _is_clear(scale, best):
            break
    return best


def format_axis_title(scale: Scale) -> str:
    """Return the label of the axis with the unit of its ticks."""
    axis = scale.axis
    if axis.scale != "linear" and _has_unit_on_ticks(axis):
        return axis.label
    unit = add_prefix(_get_prefix_power(scale), axis.unit) if axis.scale == "linear" else axis.unit
    if not unit:
        return axis.label
    return f"{axis.label} ({unit})" if axis.label else unit


def _fit_linear_range(values: list[float], zero: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # one value, or nearly one
        margin = abs(high) * 0.05 or 1.0
        low, high = low - margin, high + margin
    step = _round_step((high - low) / 5)
    # Extend to round numbers, so that the first and last tick are at the ends.
    return min(low, math.floor(low / step + 1e-9) * step), max(high, math.ceil(high / step - 1e-9) * step)


def _fit_log_range(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high / low < 1.02:
        return low / 2, high * 2
    margin = (high / low) ** 0.05
    return low / margin, high * margin


def _round_step(step: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is not below `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= step * (1 - 1e-9))


def _list_candidates(scale: Scale) -> Iterator[list[float]]:
    """Yield sets of tick values from dense to sparse; the last ones always fit."""
    low, high, kind = scale.low, scale.high, scale.axis.scale
    if kind == "log2" and high / low >= 4:
        first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
        yield from ([2.0**p for p in range(first, last + 1, stride)] for stride in range(1, last - first + 2))
        return
    if kind != "linear" and high / low >= 8:
        first, last = math.floor(math.log10(low)), math.floor(math.log10(high) + 1e-9)
        if high / low <= 300:
            fine = [m * 10.0**p for p in range(first, last + 1) for m in (1, 2, 5)]
            yield [v for v in fine if low <= v <= high]
        decades = [p for p in range(first, last + 1) if 10.0**p >= low * (1 - 1e-9)]
        yield from ([10.0**p for p in decades[::stride]] for stride in range(1, len(decades) + 1))
        return
    step = _round_step((high - low) / 8)
    while step <= 2 * (high - low):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        yield [n * step for n in range(first, last + 1)]
        step = _round_step(step * 1.5)


def _format_labels(scale: Scale, values: list[float]) -> list[str]:
    axis = scale.axis
    if axis.scale == "linear":
        return _format_decimals(values, _get_prefix_power(scale))
    if axis.scale == "log2" and not axis.unit:
        return [_format_binary(v) for v in values]
    texts: list[str] = []
    for digits in range(3, 12):  # neighbours on a short axis may differ only in the last digits
        texts = [format_si(v, axis.unit, digits) for v in values]
        if len(set(texts)) == len(texts):
            break
    if _has_unit_on_ticks(axis):
        return texts
    # "100 G" with FLOP/s in the axis title: the tick shows only number and prefix.
    return [text.removesuffix(axis.unit).strip() for text in texts]


def _format_decimals(values: list[float], power: int) -> list[str]:
    """Format evenly spaced values with as many decimals as their step needs."""
    scaled_values = [v / 10.0**power + 0.0 for v in values]
    step = (
        scaled_values[1] - scaled_values[0]
        if len(scaled_values) > 1
        else max(map(abs, scaled_values), default=1.0) or 1.0
    )
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    largest = max(map(abs, scaled_values), default=0.0)
    if (decimals > 6 and largest < 1e-3) or largest >= 1e9:
        return [f"{v:.{max(1, math.ceil(math.log10(largest / step)) + 1)}g}" for v in scaled_values]
    return [f"{v:.{decimals}f}" for v in scaled_values]


def _has_unit_on_ticks(axis: Axis) -> bool:
    return len(axis.unit) <= 2


def _get_prefix_power(scale: Scale) -> int:
    return choose_prefix_power(max(abs(scale.low), abs(scale.high)), scale.axis.unit)


def _format_binary(value: float) -> str:
    for power, symbol, least in ((2.0**30, "Gi", 1), (2.0**20, "Mi", 1), (2.0**10, "Ki", 10)):  # 4096, not 4Ki
        if value >= least * power and value % power == 0:
            return f"{value / power:g}{symbol}"
    return f"{value:g}"


def _is_clear(scale: Scale, tick_list: list[Tick]) -> bool:
    across = scale.start < scale.end
    for a, b in pairwise(tick_list):
        need = (estimate_width(a.text, TICK) + estimate_width(b.text, TICK)) / 2 + _GAP if across else 2.2 * TICK
        if abs(b.position - a.position) < need:
            return False
    return True
