"""Which channels are resampled how, and how they are scaled on the way out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ridgeline.errors import InputError, unknown

KINDS = ("linear", "previous", "nearest", "cubic", "slerp", "angle")
OUTSIDE = ("clamp", "nan", "raise", "extrapolate")
Kinds = str | Sequence[tuple[slice, str]]
Group = tuple[int, int, str]  # start, stop, kind


def groups(kind: Kinds, channels: int) -> tuple[Group, ...]:
    """The channels in order, each under one kind; what a list of (slice, kind) leaves out is linear.

    >>> groups([(slice(3, 7), "slerp")], 8)
    ((0, 3, 'linear'), (3, 7, 'slerp'), (7, 8, 'linear'))
    """
    if isinstance(kind, str):
        if kind not in KINDS:
            raise unknown("kind", kind, KINDS)
        named = [(0, channels, kind)] if channels else []
    elif isinstance(kind, Iterable):
        named = sorted(_named(part, channels) for part in kind)
    else:
        raise InputError(f"kind is {kind!r}; give one of {', '.join(KINDS)}, or (slice, kind) pairs.")
    out: list[Group] = []
    done = 0
    for start, stop, name in named:
        if start < done:
            raise InputError(f"channel {start} is given two kinds; let the slices of kind= not overlap.")
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


def affine(normalize: Mapping[str, Any] | None, channels: int) -> tuple[Any, Any] | None:
    """normalize= as one multiplication and one addition per channel, float64 [D]; None when nothing is asked.

    {"mean", "std"} gives (x − mean) / std, {"q01", "q99"} maps that range to [−1, 1]. A channel without spread
    comes out 0, not infinite.
    """
    import numpy as np

    if normalize is None:
        return None
    if not isinstance(normalize, Mapping):
        raise InputError(
            "normalize= wants {'mean': …, 'std': …} or {'q01': …, 'q99': …}; "
            f"it was given a {type(normalize).__name__}."
        )
    keys = set(normalize)
    if keys not in ({"mean", "std"}, {"q01", "q99"}):
        has = ", ".join(sorted(map(str, keys))) or "nothing"
        raise InputError(f"normalize= wants mean and std, or q01 and q99; it has {has}.")
    low, high = (_numbers(k, normalize[k]) for k in sorted(keys))
    for name, given in zip(sorted(keys), (low, high), strict=True):
        if given.shape not in ((1,), (channels,)):
            raise InputError(f"normalize[{name!r}] has {given.size} numbers for {channels} channels.")
    low, high = (a if a.size == channels else np.full(channels, a[0]) for a in (low, high))
    with np.errstate(divide="ignore", invalid="ignore"):
        if "mean" in keys:
            scale = np.where(high == 0, 1.0, 1 / high)
            return scale, -low * scale
        scale = np.where(high == low, 0.0, 2 / (high - low))
        return scale, np.where(high == low, 0.0, -low * scale - 1)


def _numbers(name: str, given: Any) -> Any:
    import numpy as np

    if hasattr(given, "detach"):  # a tensor, wherever it is
        given = given.detach().cpu().double()
    try:
        return np.asarray(given).astype(np.float64, casting="same_kind", copy=False).reshape(-1)
    except (TypeError, ValueError):
        raise InputError(f"normalize[{name!r}] is {given!r}; give a number for each channel.") from None


def _named(part: tuple[slice, str], channels: int) -> Group:
    try:
        where, name = part
        start, stop, step = where.indices(channels)
    except (TypeError, ValueError, AttributeError):
        raise InputError(f"kind= wants (slice, kind) pairs; {part!r} is none.") from None
    if name not in KINDS:
        raise unknown("kind", name, KINDS)
    if step != 1 or stop <= start or (where.stop is not None and where.stop > channels):
        raise InputError(f"slice {where} names no run of the {channels} channels.")
    return start, stop, name
