"""Stack episodes into one table; a column that an episode lacks is empty there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ridgeline.errors import InputError
from ridgeline.trajectory.stream import Aligned, Array

TIMES = {"i": "time_ns", "f": "time"}  # int64 nanoseconds, float64 seconds
EPISODE = "episode_index"


def time_column(episodes: Sequence[Aligned]) -> tuple[str, Array]:
    """Return the name and stamps of the time column."""
    kinds = {e.times.dtype.kind for e in episodes}
    times = [e.times if len(kinds) == 1 or e.times.dtype.kind == "f" else e.times / 1e9 for e in episodes]
    stacked_times: Array = np.concatenate(times)
    return TIMES[stacked_times.dtype.kind], stacked_times


def choose_names(names: Iterable[str], more_reserved: Iterable[str] = (), prefix: str = "\0") -> dict[str, str]:
    """Return {name: stored name}: the name itself, or `data/NAME` if the file reserves it.

    >>> choose_names(["x", "time", "data/time"])
    {'x': 'x', 'data/time': 'data/time', 'time': 'data/data/time'}
    """
    reserved = {*TIMES.values(), EPISODE, *more_reserved}
    chosen = {name: name for name in names if name not in reserved and not name.startswith(prefix)}
    for name in names:
        if name not in chosen:
            new = f"data/{name}"
            while new in reserved or new in chosen.values():
                new = f"data/{new}"
            chosen[name] = new
    return chosen


def episode_index(episodes: Sequence[Aligned]) -> Array:
    return np.repeat(np.arange(len(episodes), dtype=np.int64), [len(e.times) for e in episodes])


def stack_episodes(episodes: Sequence[Aligned]) -> dict[str, tuple[Array, Array]]:
    """Return (values [ΣT] or [ΣT, D], mask [ΣT]) by stream name."""
    names = list(dict.fromkeys(n for e in episodes for n in e.columns))
    if len(episodes) == 1:
        return {n: (episodes[0].columns[n], episodes[0].masks[n]) for n in names}
    return {name: _stack_stream(name, episodes) for name in names}


def merge_labels(episodes: Sequence[Aligned]) -> dict[str, tuple[str, ...]]:
    return {name: label for e in reversed(episodes) for name, label in e.labels.items()}


def _stack_stream(name: str, episodes: Sequence[Aligned]) -> tuple[Array, Array]:
    pattern = next(e.columns[name] for e in episodes if name in e.columns)
    widths = {e.columns[name].shape[1:]: None for e in episodes if name in e.columns}
    if len(widths) > 1:
        counts = " and ".join(str(w[0] if w else 1) for w in widths)
        raise InputError(
            f"'{name}' has {counts} columns in different recordings; leave it out, or write separate files."
        )
    values = [e.columns.get(name, _empty_rows(pattern, len(e.times))) for e in episodes]
    masks = [e.masks.get(name, np.zeros(len(e.times), bool)) for e in episodes]
    stacked, mask = np.concatenate(values), np.concatenate(masks)
    if stacked.dtype.kind == "f":  # a masked integer is 0, which would be a value in a float column
        integers = np.repeat([v.dtype.kind != "f" for v in values], [len(v) for v in values])
        stacked[integers & ~mask] = np.nan
    return stacked, mask


def _empty_rows(pattern: Array, rows: int) -> Array:
    fill = np.nan if pattern.dtype.kind == "f" else 0
    return np.full((rows, *pattern.shape[1:]), fill, pattern.dtype)
