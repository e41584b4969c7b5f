"""What is said of a number: where it stands, what it says, what the arithmetic gives, how sure that is."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from ridgeline.claims.quantities import BANDWIDTH, BYTES, FLOPS, MONEY, NONE, PRICE, RATE, TIME, Dims

SLACK = 0.0005  # beyond the rounding of what is written


@dataclass(frozen=True)
class Finding:
    file: str
    line: int
    kind: str
    says: str
    arithmetic: str
    confidence: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


Interval = tuple[float, float]


def overlap(a: Interval, b: Interval, slack: float = 0.0) -> bool:
    room = slack * max(abs(a[0]), abs(a[1]), abs(b[0]), abs(b[1]))
    return a[0] <= b[1] + room and b[0] <= a[1] + room


def times(a: Interval, b: Interval) -> Interval:
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


def over(a: Interval, b: Interval) -> Interval:
    if b[0] <= 0 <= b[1]:
        return -math.inf, math.inf
    return times(a, (1 / b[1], 1 / b[0]))


def apart(said: float, computed: float) -> float:
    """How far two sides are from each other, as a factor of at least 1."""
    if said * computed <= 0:
        return math.inf
    return max(said / computed, computed / said)


def confidence(factor: float, sure: float = 0.95) -> float:
    """Near misses may have a reason that is not written; factors of two seldom have one."""
    if factor >= 1.5:
        grade = 1.0
    elif factor >= 1.05:
        grade = 0.92
    elif factor >= 1.01:
        grade = 0.8
    else:
        grade = 0.62
    return round(sure * grade, 2)


def units_mixed(factor: float, dims: Dims) -> str | None:
    """Whether a factor is that of MB for MiB or of bits for bytes, in words."""
    if dims[1] == 0:
        return None
    for power, names in ((1, "KB for KiB"), (2, "MB for MiB"), (3, "GB for GiB"), (4, "TB for TiB")):
        if abs(factor / 1.024**power - 1) < 0.006:
            return names
    return None


def shown(value: float, dims: Dims) -> str:
    """A value in the unit people would read it in.

    >>> shown(624390.2, RATE), shown(2133.3, TIME), shown(0.559, NONE), shown(6.4e9, BANDWIDTH)
    ('624,390/s', '2,133 s', '0.559', '6.4 GB/s')
    """
    if dims == TIME:
        for limit, unit, factor in ((1e-6, "ns", 1e9), (1e-3, "µs", 1e6), (1.0, "ms", 1e3), (7200.0, "s", 1.0)):
            if abs(value) < limit:
                return f"{digits(value * factor)} {unit}"
        return f"{digits(value / 3600)} h"
    if dims == RATE:
        return f"{digits(value)}/s"
    if dims == MONEY:
        return f"${value:,.2f}" if abs(value) >= 0.1 else f"${digits(value)}"
    if dims == PRICE:
        return f"${value * 3600:,.2f}/h"
    if dims in (BYTES, BANDWIDTH, FLOPS):
        name = {BYTES: "B", BANDWIDTH: "B/s", FLOPS: "FLOP/s"}[dims]
        for limit, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= limit:
                return f"{digits(value / limit)} {prefix}{name}"
        return f"{digits(value)} {name}"
    return digits(value) if dims == NONE else f"{digits(value)} (in other units)"


def digits(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1e-4 else f"{value:.3g}"
