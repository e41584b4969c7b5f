"""NPZ: `time_ns` or `time`, one array per stream, and `mask/NAME` where something of it is unknown.

A stream whose name the file needs itself is found as `data/NAME`. `load` gives the episodes back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.store import publish
from ridgeline.trajectory.stream import Aligned
from ridgeline.trajectory.timeline import Array
from ridgeline.trajectory.writers import table

_ABOUT, _MASK = "ridgeline", "mask/"
_OWN = (_ABOUT, "file", "allow_pickle")  # the last two are what numpy.savez calls its own


def write(path: Path, episodes: Sequence[Aligned], meta: dict[str, Any]) -> None:
    with publish(path) as tmp:
        save(tmp, episodes, meta)


def save(path: Path, episodes: Sequence[Aligned], meta: dict[str, Any]) -> None:
    """Everything there is to know about `episodes`, as arrays under names."""
    with path.open("wb") as file:
        np.savez(file, **_arrays(episodes, meta))


def _arrays(episodes: Sequence[Aligned], meta: dict[str, Any]) -> dict[str, Any]:
    name, times = table.clock(episodes)
    found: dict[str, Any] = {name: times}
    if len(episodes) > 1:
        found[table.EPISODE] = table.episode_index(episodes)
    streams = table.stacked(episodes)
    held = table.kept(streams, _OWN, _MASK)
    for stream, (values, mask) in streams.items():
        found[held[stream]] = values
        if not mask.all():
            found[f"{_MASK}{stream}"] = mask
    about = {
        "labels": {n: list(label) for n, label in table.labels(episodes).items()},
        "held": {stream: name for stream, name in held.items() if stream != name},
        "kinds": dict(episodes[0].kinds),
        "hz": episodes[0].hz,
        "meta": meta,
    }
    return {**found, _ABOUT: np.array(json.dumps(about))}


def load(path: Path) -> list[Aligned]:
    """The episodes of a file that was written here."""
    with np.load(path) as file:
        held: dict[str, Array] = {name: file[name] for name in file.files}
    about = json.loads(str(held.pop(_ABOUT)))
    times = held[next(n for n in table.TIMES.values() if n in held)]
    index = held.get(table.EPISODE, np.zeros(len(times), np.int64))
    labels, apart = {n: tuple(label) for n, label in about["labels"].items()}, about.get("held", {})
    out = []
    for number in range(int(index.max()) + 1 if len(index) else 1):
        rows = index == number
        masks = {n: held[_MASK + n][rows] if _MASK + n in held else np.ones(int(rows.sum()), bool) for n in labels}
        columns = {n: held[apart.get(n, n)][rows] for n in labels}
        out.append(Aligned(times[rows], columns, masks, labels, about["kinds"], about["hz"]))
    return out


def meta(path: Path) -> dict[str, Any] | None:
    with np.load(path) as file:
        found: dict[str, Any] = json.loads(str(file[_ABOUT]))["meta"]
    return found
