"""Input data of charts: axes, bars, points, series, roofs, cells, samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ridgeline.errors import InputError, unknown

Interval = tuple[float, float]  # low, high
Scaling = Literal["linear", "log", "log2"]


@dataclass(frozen=True)
class Axis:
    """One direction of a chart. `low` and `high` widen the range of the data; they never cut it."""

    label: str = ""
    unit: str = ""
    scale: Scaling = "linear"
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.scale not in ("linear", "log", "log2"):
            raise unknown("axis scale", self.scale, ("linear", "log", "log2"))


@dataclass(frozen=True)
class Bar:
    """One horizontal bar. Bars of one `group` are drawn together; bars of one `series` share a colour."""

    label: str
    value: float
    interval: Interval | None = None
    group: str = ""
    series: str = ""
    text: str = ""  # beside the bar; default: the value with its unit
    title: str = ""  # tooltip; default: label, value and interval
    href: str = ""
    id: str = ""

    def __post_init__(self) -> None:
        _check(self.interval, self.label)


@dataclass(frozen=True)
class Point:
    """One measured point; the interval is that of y. In a roofline x is the intensity, y the rate."""

    x: float
    y: float
    interval: Interval | None = None
    label: str = ""
    title: str = ""
    href: str = ""
    id: str = ""

    def __post_init__(self) -> None:
        _check(self.interval, self.label or f"x = {self.x}")


@dataclass(frozen=True)
class Series:
    """Named points, joined in the order of x. A `dashed` series is a model or limit, not a measurement."""

    name: str
    points: Sequence[Point]
    band: bool = False  # draw the intervals as a band instead of whiskers
    dashed: bool = False
    points_only: bool = False  # draw no line between the points


@dataclass(frozen=True)
class Roof:
    """A ceiling of the machine: bytes/s if `bound` is memory, FLOP/s if it is compute."""

    name: str
    rate: float
    bound: Literal["memory", "compute"]

    def __post_init__(self) -> None:
        if self.bound not in ("memory", "compute"):
            raise unknown("roof", self.bound, ("memory", "compute"))


@dataclass(frozen=True)
class Cell:
    """One cell of a map. Cells of one `group` share a heading."""

    row: str
    column: str
    value: float
    text: str = ""  # in the cell; default: the value with its unit
    group: str = ""
    title: str = ""
    href: str = ""
    id: str = ""


@dataclass(frozen=True)
class Samples:
    """The raw samples of one contender, in the order they were taken; `interval` is that of the median."""

    name: str
    values: Sequence[float]
    interval: Interval | None = None
    group: str = ""
    title: str = ""
    href: str = ""
    id: str = ""

    def __post_init__(self) -> None:
        _check(self.interval, self.name)


def _check(interval: Interval | None, owner: str) -> None:
    if interval is not None and interval[0] > interval[1]:
        raise InputError(f"the interval of {owner[:80]!r} is ({interval[0]}, {interval[1]}); give the low end first.")
