"""The interpolation kind of every channel, and the scaling of the results (`normalize=`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import InputError, unknown

LOOP_KINDS = ("linear", "previous", "nearest", "cubic", "slerp", "angle")  # those that the loops know


@dataclass(frozen=True)
class Turn:
    """An angle that is not in radians from −π to π."""

    radians: float  # in one unit of the angle
    length: float  # of a full turn
    positive: bool  # the result is in [0, length), else in [−length / 2, length / 2]


TURNS = {
    "angle_2pi": Turn(1.0, math.tau, True),
    "degrees": Turn(math.pi / 180, 360.0, False),
    "degrees_360": Turn(math.pi / 180, 360.0, True),
}
KINDS = (*LOOP_KINDS, *TURNS)
OUTSIDE = ("clamp", "nan", "raise", "extrapolate")
Kinds = str | Sequence[tuple[slice, str]]
Group = tuple[int, int, str]  # start, stop, kind


def resolve_kinds(kind: Kinds, channels: int) -> tuple[Group, ...]:
    """Return (start, stop, kind) for all channels, in order; channels that `kind` does not name are linear.

    >>> resolve_kinds([(slice(3, 7), "slerp")], 8)
    ((0, 3, 'linear'), (3, 7, 'slerp'), (7, 8, 'linear'))
    """
    if isinstance(kind, str):
        if kind not in KINDS:
            raise unknown("kind", kind, KINDS)
        parts = [(0, channels, kind)] if channels else []
    elif isinstance(kind, Iterable):
        parts = sorted(_parse_slice(part, channels) for part in kind)
    else:
        raise InputError(f"kind is {kind!r}; give one of {', '.join(KINDS)}, or (slice, kind) pairs.")
    out: list[Group] = []
    done = 0
    for start, stop, name in parts:
        if start < done:
            raise InputError(f"channel {start} has two kinds; the slices of kind= must not overlap.")
        if start > done:
            out.append((done, start, "linear"))
        if name == "slerp" and (stop - start) % 4:
            raise InputError(
                f"slerp wants quaternions, four channels each; channels {start} to {stop} are {stop - start}."
            )
        out.append((start, stop, name))
        done = stop
    if done < channels:
        out.append((done, channels, "linear"))
    return tuple(out)


def compute_scaling(normalize: Mapping[str, Any] | None, channels: int) -> tuple[Any, Any] | None:
    """Turn normalize= into (scale, shift), float64 [D] each; None without normalize=.

    {"mean", "std"} gives (x − mean) / std; {"q01", "q99"} maps that range to [−1, 1]. A channel without spread
    becomes 0, not infinite.
    """
    import numpy as np

    if normalize is None:
        return None
    if not isinstance(normalize, Mapping):
        raise InputError(
            f"normalize= wants {{'mean': …, 'std': …}} or {{'q01': …, 'q99': …}}; it is a {type(normalize).__name__}."
        )
    keys = set(normalize)
    if keys not in ({"mean", "std"}, {"q01", "q99"}):
        has = ", ".join(sorted(map(str, keys))) or "nothing"
        raise InputError(f"normalize= wants mean and std, or q01 and q99; it has {has}.")
    low, high = (_numbers(k, normalize[k]) for k in sorted(keys))
    for name, numbers in zip(sorted(keys), (low, high), strict=True):
        if numbers.shape not in ((1,), (channels,)):
            raise InputError(f"normalize[{name!r}] has {numbers.size} numbers for {channels} channels.")
    low, high = (a if a.size == channels else np.full(channels, a[0]) for a in (low, high))
    with np.errstate(divide="ignore", invalid="ignore"):
        if "mean" in keys:
            scale = np.where(high == 0, 1.0, 1 / high)
            return scale, -low * scale
        scale = np.where(high == low, 0.0, 2 / (high - low))
        return scale, np.where(high == low, 0.0, -low * scale - 1)


def _numbers(name: str, data: Any) -> Any:
    import numpy as np

    if hasattr(data, "detach"):  # a tensor on any device
        data = data.detach().cpu().double()
    try:
        return np.asarray(data).astype(np.float64, casting="same_kind", copy=False).reshape(-1)
    except (TypeError, ValueError):
        raise InputError(f"normalize[{name!r}] is {data!r}; give a number for each channel.") from None


def _parse_slice(part: tuple[slice, str], channels: int) -> Group:
    try:
        channel_slice, name = part
        start, stop, step = channel_slice.indices(channels)
    except (TypeError, ValueError, AttributeError):
        raise InputError(f"kind= wants (slice, kind) pairs; {part!r} is none.") from None
    if name not in KINDS:
        raise unknown("kind", name, KINDS)
    if step != 1 or stop <= start or (channel_slice.stop is not None and channel_slice.stop > channels):
        raise InputError(f"slice {channel_slice} names no run of the {channels} channels.")
    return start, stop, name
