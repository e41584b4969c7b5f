"""Stack episodes into one table; a column that an episode lacks is empty there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.trajectory.stream import Aligned, Array, find_valid

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


def check_columns(episodes: Sequence[Aligned], places: Sequence[str]) -> None:
    """Raise InputError if streams have other columns in another episode; `places` names the episodes."""
    first: dict[str, tuple[str, tuple[str, ...]]] = {}
    conflicts: dict[str, str] = {}
    for episode, place in zip(episodes, places, strict=True):
        for name, labels in episode.labels.items():
            known_place, known = first.setdefault(name, (place, labels))
            if len(labels) != len(known):
                conflicts.setdefault(name, f"{len(known)} columns in {known_place} and {len(labels)} in {place}")
            elif set(labels) != set(known):
                before, after = (next(x for x in a if x not in b) for a, b in ((known, labels), (labels, known)))
                conflicts.setdefault(name, f"a column '{before}' in {known_place} and '{after}' in {place}")
    if conflicts:
        name, difference = next(iter(conflicts.items()))
        more = f" (and {len(conflicts) - 1} more streams differ)" if len(conflicts) > 1 else ""
        raise InputError(
            f"'{name}' has {difference}{more}; leave out what differs (--exclude '{','.join(conflicts)}'), or give it "
            "another name in one of them (--rename)."
        )


def build_arrow(episodes: Sequence[Aligned]) -> Any:
    """Return an Arrow table: a time column, then one column per channel; unknown values are null."""
    import pyarrow as arrow

    name, times = time_column(episodes)
    columns: dict[str, Any] = {name: arrow.array(times)}
    if len(episodes) > 1:
        columns[EPISODE] = arrow.array(episode_index(episodes))
    names = merge_labels(episodes)
    column_names = choose_names([label for labels in names.values() for label in labels])
    for stream, (values, mask) in stack_episodes(episodes).items():
        gaps = None if mask.all() else ~find_valid(values, mask)
        for i, label in enumerate(names[stream]):
            channel = values if values.ndim == 1 else np.ascontiguousarray(values[:, i])
            unknown = gaps if gaps is None or gaps.ndim == 1 else np.ascontiguousarray(gaps[:, i])
            columns[column_names[label]] = arrow.array(channel, mask=unknown)
    return arrow.table(columns)


def stack_episodes(episodes: Sequence[Aligned]) -> dict[str, tuple[Array, Array]]:
    """Return (values [ΣT] or [ΣT, D], mask [ΣT]) by stream name."""
    names = list(dict.fromkeys(n for e in episodes for n in e.columns))
    if len(episodes) == 1:
        return {n: (episodes[0].columns[n], episodes[0].masks[n]) for n in names}
    check_columns(episodes, [f"episode {i}" for i in range(len(episodes))])
    return {name: _stack_stream(name, episodes) for name in names}


def merge_labels(episodes: Sequence[Aligned]) -> dict[str, tuple[str, ...]]:
    return {name: label for e in reversed(episodes) for name, label in e.labels.items()}


def _stack_stream(name: str, episodes: Sequence[Aligned]) -> tuple[Array, Array]:
    pattern = next(e.columns[name] for e in episodes if name in e.columns)
    labels = next(e.labels[name] for e in episodes if name in e.labels)  # those of `merge_labels`
    values = [_take(e, name, labels) if name in e.columns else _empty_rows(pattern, len(e.times)) for e in episodes]
    masks = [e.masks.get(name, np.zeros(len(e.times), bool)) for e in episodes]
    stacked, mask = np.concatenate(values), np.concatenate(masks)
    if stacked.dtype.kind == "f":  # a masked integer is 0, which would be a value in a float column
        integers = np.repeat([v.dtype.kind != "f" for v in values], [len(v) for v in values])
        stacked[integers & ~mask] = np.nan
    return stacked, mask


def _take(episode: Aligned, name: str, labels: Sequence[str]) -> Array:
    """Return a stream with its columns in the order of `labels`."""
    values, current = episode.columns[name], episode.labels[name]
    return values if values.ndim == 1 or current == labels else values[:, [current.index(label) for label in labels]]


def _empty_rows(pattern: Array, rows: int) -> Array:
    fill = np.nan if pattern.dtype.kind == "f" else 0
    return np.full((rows, *pattern.shape[1:]), fill, pattern.dtype)
