"""NPZ: `time_ns` or `time`, one array per stream, and `mask/NAME` for streams with masked values.

A stream with a reserved name is stored as `data/NAME`. `load_episodes` reads the episodes back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.store import publish
from ridgeline.trajectory.stream import Aligned, Array, EpisodeInfo
from ridgeline.trajectory.writers import table

_METADATA, _MASK = "ridgeline", "mask/"
_RESERVED = (_METADATA, "file", "allow_pickle")  # the last two are parameters of numpy.savez


def write(path: Path, episodes: Sequence[Aligned], meta: dict[str, Any]) -> None:
    with publish(path) as tmp:
        save_episodes(tmp, episodes, meta)


def save_episodes(path: Path, episodes: Sequence[Aligned], meta: dict[str, Any]) -> None:
    """Save `episodes` as named arrays."""
    with path.open("wb") as file:
        np.savez(file, **_arrays(episodes, meta))


def _arrays(episodes: Sequence[Aligned], meta: dict[str, Any]) -> dict[str, Any]:
    name, times = table.time_column(episodes)
    arrays: dict[str, Any] = {name: times}
    if len(episodes) > 1:
        arrays[table.EPISODE] = table.episode_index(episodes)
    streams = table.stack_episodes(episodes)
    array_names = table.choose_names(streams, _RESERVED, _MASK)
    for stream, (values, mask) in streams.items():
        arrays[array_names[stream]] = values
        if not mask.all():
            arrays[f"{_MASK}{stream}"] = mask
    metadata = {
        "labels": {n: list(label) for n, label in table.merge_labels(episodes).items()},
        "held": {stream: name for stream, name in array_names.items() if stream != name},
        "kinds": dict(episodes[0].kinds),
        "hz": episodes[0].hz,
        "info": [asdict(e.info) for e in episodes],
        "meta": meta,
    }
    return {**arrays, _METADATA: np.array(json.dumps(metadata))}


def load_episodes(path: Path) -> list[Aligned]:
    """Load the episodes of a file that `save_episodes` wrote."""
    with np.load(path) as file:
        arrays: dict[str, Array] = {name: file[name] for name in file.files}
    metadata = json.loads(str(arrays.pop(_METADATA)))
    times = arrays[next(n for n in table.TIMES.values() if n in arrays)]
    index = arrays.get(table.EPISODE, np.zeros(len(times), np.int64))
    labels, array_names = {n: tuple(label) for n, label in metadata["labels"].items()}, metadata.get("held", {})
    infos = [_load_info(info) for info in metadata.get("info", [])]
    out = []
    for number in range(int(index.max()) + 1 if len(index) else 1):
        rows = index == number
        masks = {n: arrays[_MASK + n][rows] if _MASK + n in arrays else np.ones(int(rows.sum()), bool) for n in labels}
        columns = {n: arrays[array_names.get(n, n)][rows] for n in labels}
        info = infos[number] if number < len(infos) else EpisodeInfo()
        out.append(Aligned(times[rows], columns, masks, labels, metadata["kinds"], metadata["hz"], info=info))
    return out


def _load_info(stored: dict[str, Any]) -> EpisodeInfo:
    tasks = tuple((start, text) for start, text in stored["tasks"])
    features = tuple((name, tuple(names)) for name, names in stored["features"])
    return EpisodeInfo(tasks, stored["robot_type"], features)


def read_meta(path: Path) -> dict[str, Any] | None:
    with np.load(path) as file:
        key: dict[str, Any] = json.loads(str(file[_METADATA]))["meta"]
    return key
