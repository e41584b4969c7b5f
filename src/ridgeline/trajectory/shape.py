"""Bring the arrays of a call to one shape, for numpy and torch: [B, S, D], [B, S] and [B, T].

Both libraries have `.shape`, `.ndim`, indexing with None and (through `spread`) a batch stride of 0, so one function
serves both. Nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import InputError, unknown
from ridgeline.trajectory.channels import OUTSIDE

Spread = Callable[[Any, int], Any]  # views an array [1, …] as [B, …]


@dataclass(frozen=True)
class CallArrays:
    """The arrays of a call in one shape, and the shapes of its result."""

    values: Any  # [B, S, D]; packed: [1, ΣS, D]
    times: Any  # [B, S]; packed: [1, ΣS]
    at: Any  # [B, T]
    batch: int
    result_shape: tuple[int, ...]
    mask_shape: tuple[int, ...]

    @property
    def targets(self) -> int:
        return int(self.at.shape[1])

    @property
    def channels(self) -> int:
        return int(self.values.shape[2])


def unify_shapes(values: Any, times: Any, at: Any, offsets: Any, spread: Spread) -> CallArrays:
    """Bring values, times and at to one shape; the error names the array that does not fit."""
    if offsets is not None:
        return _unify_packed(values, times, at, offsets, spread)
    if values.ndim not in (1, 2, 3):
        raise InputError(f"values has shape {_format_shape(values)}; give [B, S, D], [S, D] or [S].")
    single = values.ndim < 3
    flat = values.ndim == 1
    data = values[None, :, None] if flat else values[None] if single else values
    batch, stamps = int(data.shape[0]), int(data.shape[1])
    if single and at.ndim != 1:
        raise InputError(f"at has shape {_format_shape(at)} beside one trajectory {_format_shape(values)}; give [T].")
    clock = _expand_rows("times", times, batch, spread)
    targets = _expand_rows("at", at, batch, spread)
    if int(clock.shape[1]) != stamps:
        raise InputError(
            f"values {_format_shape(values)} has {stamps} stamps, times {_format_shape(times)} has {clock.shape[1]}."
        )
    count, width = int(targets.shape[1]), int(data.shape[2])
    shape = (count,) if flat else (count, width) if single else (batch, count, width)
    return CallArrays(data, clock, targets, batch, shape, (count,) if single else (batch, count))


def check_outside(outside: str) -> None:
    if outside not in OUTSIDE:
        raise unknown("policy for targets outside", outside, OUTSIDE)


def _unify_packed(values: Any, times: Any, at: Any, offsets: Any, spread: Spread) -> CallArrays:
    if values.ndim not in (1, 2) or times.ndim != 1:
        raise InputError(
            "packed values are [ΣS, D] or [ΣS] and times [ΣS]; "
            f"these are {_format_shape(values)} and {_format_shape(times)}."
        )
    flat = values.ndim == 1
    data = values[None, :, None] if flat else values[None]
    if int(times.shape[0]) != int(data.shape[1]):
        raise InputError(f"packed values has {data.shape[1]} stamps, times has {times.shape[0]}.")
    batch = int(offsets.shape[0]) - 1
    if offsets.ndim != 1 or batch < 0:
        raise InputError(f"offsets has shape {_format_shape(offsets)}; give [B + 1].")
    targets = _expand_rows("at", at, batch, spread)
    count, width = int(targets.shape[1]), int(data.shape[2])
    shape = (batch, count) if flat else (batch, count, width)
    return CallArrays(data, times[None], targets, batch, shape, (batch, count))


def _expand_rows(name: str, array: Any, batch: int, spread: Spread) -> Any:
    if array.ndim == 1:
        return spread(array[None], batch)
    if array.ndim != 2 or int(array.shape[0]) != batch:
        raise InputError(f"{name} has shape {_format_shape(array)}; for {batch} trajectories give [{batch}, n] or [n].")
    return array


def _format_shape(array: Any) -> str:
    return "[" + ", ".join(str(int(n)) for n in array.shape) + "]"
