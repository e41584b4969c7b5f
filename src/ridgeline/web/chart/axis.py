"""Axes: from values to positions, with ticks at round numbers whose labels fit.

Linear ticks step by 1, 2 or 5; log ticks stand on decades (or 1-2-5 where there are few); log2 ticks on
powers of two. The densest set whose labels do not touch is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from ridgeline.errors import InputError
from ridgeline.web.chart.inputs import Axis, Interval
from ridgeline.web.chart.text import TICK, text_width
from ridgeline.web.number import prefix_power, prefixed, si

# Beyond these, differences and ratios of two values overflow a float64; nothing measured is out there.
_LARGEST, _SMALLEST = 1e150, 1e-150
_GAP = 14.0  # between neighbouring tick labels


@dataclass(frozen=True)
class Scale:
    """An axis laid onto the paper: `low` stands at `start`, `high` at `end` (start > end for a y axis)."""

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


def drawable(value: float, axis: Axis) -> bool:
    """Whether the value has a place on this axis: finite, and above zero where it is logarithmic."""
    if axis.scale == "linear":
        return abs(value) <= _LARGEST
    return _SMALLEST <= value <= _LARGEST


def ends(interval: Interval | None, axis: Axis) -> tuple[float, ...]:
    """The two ends of an interval that can be drawn whole, else nothing."""
    return interval if interval is not None and all(drawable(v, axis) for v in interval) else ()


def scaled(axis: Axis, values: Iterable[float], start: float, end: float, *, zero: bool = False) -> Scale:
    """The scale that holds every drawable value, with a little air (or from zero) around them."""
    for limit in (axis.low, axis.high):
        if limit is not None and not drawable(limit, axis):
            raise InputError(f"the {axis.label or 'chart'} axis cannot reach {limit} on a {axis.scale} scale.")
    held = [v for v in (*values, axis.low, axis.high) if v is not None and drawable(v, axis)]
    if axis.scale == "linear":
        low, high = _linear_range(held or [0.0, 1.0], zero)
    else:
        low, high = _log_range(held or [1.0, 10.0])
    return Scale(axis, low, high, start, end)


def position(scale: Scale, value: float) -> float:
    """Where the value stands, held inside the scale."""
    value = min(max(value, scale.low), scale.high)
    if scale.axis.scale == "linear":
        share = (value - scale.low) / (scale.high - scale.low)
    else:
        share = math.log(value / scale.low) / math.log(scale.high / scale.low)
    return scale.start + share * (scale.end - scale.start)


def ticks(scale: Scale) -> list[Tick]:
    """Round values whose labels stand clear of one another."""
    best: list[Tick] = []
    for values in _candidates(scale):
        best = [Tick(v, position(scale, v), text) for v, text in zip(values, _labels(scale, values), strict=True)]
        if len(best) <= 9 and _clear(scale, best):
            break
    return best


def axis_title(scale: Scale) -> str:
    """The axis's label with the unit its ticks are counted in."""
    axis = scale.axis
    if axis.scale != "linear" and _unit_on_ticks(axis):
        return axis.label
    unit = prefixed(_power(scale), axis.unit) if axis.scale == "linear" else axis.unit
    if not unit:
        return axis.label
    return f"{axis.label} ({unit})" if axis.label else unit


def _linear_range(values: list[float], zero: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # one value, or as good as one
        room = abs(high) * 0.05 or 1.0
        low, high = low - room, high + room
    step = _nice((high - low) / 5)
    # From zero or round numbers outwards, so that the first and last tick stand at the ends.
    return min(low, math.floor(low / step + 1e-9) * step), max(high, math.ceil(high / step - 1e-9) * step)


def _log_range(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high / low < 1.02:
        return low / 2, high * 2
    air = (high / low) ** 0.05
    return low / air, high * air


def _nice(step: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= step * (1 - 1e-9))


def _candidates(scale: Scale) -> Iterator[list[float]]:
    """Sets of tick values from dense to sparse; the last ones are so sparse that they always fit."""
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
    step = _nice((high - low) / 8)
    while step <= 2 * (high - low):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        yield [n * step for n in range(first, last + 1)]
        step = _nice(step * 1.5)


def _labels(scale: Scale, values: list[float]) -> list[str]:
    axis = scale.axis
    if axis.scale == "linear":
        return _decimals(values, _power(scale))
    if axis.scale == "log2" and not axis.unit:
        return [_binary(v) for v in values]
    texts: list[str] = []
    for digits in range(3, 12):  # neighbours on a short axis may differ only in a late digit
        texts = [si(v, axis.unit, digits) for v in values]
        if len(set(texts)) == len(texts):
            break
    if _unit_on_ticks(axis):
        return texts
    # "100 G" with FLOP/s in the axis title: the tick is the number and its prefix.
    return [text.removesuffix(axis.unit).strip() for text in texts]


def _decimals(values: list[float], power: int) -> list[str]:
    """Evenly spaced values with as many decimals as their step needs."""
    shown = [v / 10.0**power + 0.0 for v in values]
    step = shown[1] - shown[0] if len(shown) > 1 else max(map(abs, shown), default=1.0) or 1.0
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    largest = max(map(abs, shown), default=0.0)
    if (decimals > 6 and largest < 1e-3) or largest >= 1e9:
        return [f"{v:.{max(1, math.ceil(math.log10(largest / step)) + 1)}g}" for v in shown]
    return [f"{v:.{decimals}f}" for v in shown]


def _unit_on_ticks(axis: Axis) -> bool:
    return len(axis.unit) <= 2


def _power(scale: Scale) -> int:
    return prefix_power(max(abs(scale.low), abs(scale.high)), scale.axis.unit)


def _binary(value: float) -> str:
    for power, symbol, least in ((2.0**30, "Gi", 1), (2.0**20, "Mi", 1), (2.0**10, "Ki", 10)):  # 4096, not 4Ki
        if value >= least * power and value % power == 0:
            return f"{value / power:g}{symbol}"
    return f"{value:g}"


def _clear(scale: Scale, found: list[Tick]) -> bool:
    across = scale.start < scale.end
    for a, b in pairwise(found):
        need = (text_width(a.text, TICK) + text_width(b.text, TICK)) / 2 + _GAP if across else 2.2 * TICK
        if abs(b.position - a.position) < need:
            return False
    return True
