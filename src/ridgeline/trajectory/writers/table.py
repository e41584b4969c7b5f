"""Episodes one under the other: the columns that any of them has, empty where one lacks them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ridgeline.errors import InputError
from ridgeline.trajectory.stream import Aligned
from ridgeline.trajectory.timeline import Array

TIMES = {"i": "time_ns", "f": "time"}  # int64 nanoseconds, float64 seconds
EPISODE = "episode_index"


def clock(episodes: Sequence[Aligned]) -> tuple[str, Array]:
    """Name and stamps of the time column."""
    kinds = {e.times.dtype.kind for e in episodes}
    times = [e.times if len(kinds) == 1 or e.times.dtype.kind == "f" else e.times / 1e9 for e in episodes]
    whole: Array = np.concatenate(times)
    return TIMES[whole.dtype.kind], whole


def kept(names: Iterable[str], own: Iterable[str] = (), prefix: str = "\0") -> dict[str, str]:
    """Under which name each is found: its own, or `data/NAME` where the file needs that for itself.

    >>> kept(["x", "time", "data/time"])
    {'x': 'x', 'data/time': 'data/time', 'time': 'data/data/time'}
    """
    taken = {*TIMES.values(), EPISODE, *own}
    found = {name: name for name in names if name not in taken and not name.startswith(prefix)}
    for name in names:
        if name not in found:
            new = f"data/{name}"
            while new in taken or new in found.values():
                new = f"data/{new}"
            found[name] = new
    return found


def episode_index(episodes: Sequence[Aligned]) -> Array:
    return np.repeat(np.arange(len(episodes), dtype=np.int64), [len(e.times) for e in episodes])


def stacked(episodes: Sequence[Aligned]) -> dict[str, tuple[Array, Array]]:
    """(values [ΣT] or [ΣT, D], mask [ΣT]) by stream name."""
    names = list(dict.fromkeys(n for e in episodes for n in e.columns))
    if len(episodes) == 1:
        return {n: (episodes[0].columns[n], episodes[0].masks[n]) for n in names}
    return {name: _one(name, episodes) for name in names}


def labels(episodes: Sequence[Aligned]) -> dict[str, tuple[str, ...]]:
    return {name: label for e in reversed(episodes) for name, label in e.labels.items()}


def _one(name: str, episodes: Sequence[Aligned]) -> tuple[Array, Array]:
    pattern = next(e.columns[name] for e in episodes if name in e.columns)
    widths = {e.columns[name].shape[1:]: None for e in episodes if name in e.columns}
    if len(widths) > 1:
        counts = " and ".join(str(w[0] if w else 1) for w in widths)
        raise InputError(f"'{name}' has {counts} columns in different recordings; leave it out, or write them apart.")
    values = [e.columns.get(name, _nothing(pattern, len(e.times))) for e in episodes]
    masks = [e.masks.get(name, np.zeros(len(e.times), bool)) for e in episodes]
    whole, mask = np.concatenate(values), np.concatenate(masks)
    if whole.dtype.kind == "f":  # what is unknown of whole numbers is 0, and would be a number here
        whole[~mask] = np.nan
    return whole, mask


def _nothing(pattern: Array, rows: int) -> Array:
    fill = np.nan if pattern.dtype.kind == "f" else 0
    return np.full((rows, *pattern.shape[1:]), fill, pattern.dtype)
