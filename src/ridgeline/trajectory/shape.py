"""The shapes of a call, for arrays of either library: everything becomes [B, S, D], [B, S], [B, T].

Both numpy and torch arrays know `.shape`, `.ndim`, indexing with None and (through `spread`) a batch stride of 0, so
one function serves both; nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import InputError, unknown
from ridgeline.trajectory.channels import OUTSIDE

Spread = Callable[[Any, int], Any]  # an array [1, …] seen as [B, …]


@dataclass(frozen=True)
class Batch:
    """A call's arrays in one shape, and the way back."""

    values: Any  # [B, S, D]; packed: [1, ΣS, D]
    times: Any  # [B, S]; packed: [1, ΣS]
    at: Any  # [B, T]
    batch: int
    result_shape: tuple[int, ...]  # of the answer
    mask_shape: tuple[int, ...]

    @property
    def targets(self) -> int:
        return int(self.at.shape[1])

    @property
    def channels(self) -> int:
        return int(self.values.shape[2])


def shaped(values: Any, times: Any, at: Any, offsets: Any, spread: Spread) -> Batch:
    """Bring the three arrays together, or say which of them does not fit."""
    if offsets is not None:
        return _packed(values, times, at, offsets, spread)
    if values.ndim not in (1, 2, 3):
        raise InputError(f"values has shape {_words(values)}; give [B, S, D], [S, D] or [S].")
    single = values.ndim < 3
    flat = values.ndim == 1
    whole = values[None, :, None] if flat else values[None] if single else values
    batch, stamps = int(whole.shape[0]), int(whole.shape[1])
    if single and at.ndim != 1:
        raise InputError(f"at has shape {_words(at)} beside one trajectory {_words(values)}; give [T].")
    clock = _rows("times", times, batch, spread)
    targets = _rows("at", at, batch, spread)
    if int(clock.shape[1]) != stamps:
        raise InputError(f"values {_words(values)} has {stamps} stamps, times {_words(times)} has {clock.shape[1]}.")
    count, width = int(targets.shape[1]), int(whole.shape[2])
    shape = (count,) if flat else (count, width) if single else (batch, count, width)
    return Batch(whole, clock, targets, batch, shape, (count,) if single else (batch, count))


def policies(outside: str) -> None:
    if outside not in OUTSIDE:
        raise unknown("policy for targets outside", outside, OUTSIDE)


def _packed(values: Any, times: Any, at: Any, offsets: Any, spread: Spread) -> Batch:
    if values.ndim not in (1, 2) or times.ndim != 1:
        raise InputError(
            f"packed values are [ΣS, D] or [ΣS] and times [ΣS]; these are {_words(values)} and {_words(times)}."
        )
    flat = values.ndim == 1
    whole = values[None, :, None] if flat else values[None]
    if int(times.shape[0]) != int(whole.shape[1]):
        raise InputError(f"packed values has {whole.shape[1]} stamps, times has {times.shape[0]}.")
    batch = int(offsets.shape[0]) - 1
    if offsets.ndim != 1 or batch < 0:
        raise InputError(f"offsets has shape {_words(offsets)}; give [B + 1].")
    targets = _rows("at", at, batch, spread)
    count, width = int(targets.shape[1]), int(whole.shape[2])
    shape = (batch, count) if flat else (batch, count, width)
    return Batch(whole, times[None], targets, batch, shape, (batch, count))


def _rows(name: str, array: Any, batch: int, spread: Spread) -> Any:
    if array.ndim == 1:
        return spread(array[None], batch)
    if array.ndim != 2 or int(array.shape[0]) != batch:
        raise InputError(f"{name} has shape {_words(array)}; for {batch} trajectories give [{batch}, n] or [n].")
    return array


def _words(array: Any) -> str:
    return "[" + ", ".join(str(int(n)) for n in array.shape) + "]"
