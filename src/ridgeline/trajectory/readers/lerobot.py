"""LeRobot datasets, v2 and v3: a folder with meta/info.json and data/**/*.parquet; each episode apart.

Videos stay where they are; only what lies in the Parquet files is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra
from ridgeline.trajectory.readers.fields import Ask, chosen, said
from ridgeline.trajectory.readers.tabular import column
from ridgeline.trajectory.stream import Stream
from ridgeline.trajectory.timeline import Array

INFO = "meta/info.json"
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
GRID_S = 1e-4  # LeRobot's own tolerance: nearer than this, a stamp is meant to be frame / fps


def sniff(path: Path) -> bool:
    return path.is_dir() and (path / INFO).is_file()


def read(path: Path, topics: Sequence[str] | None = None, ask: Ask | None = None) -> list[Stream]:
    ask = ask or Ask()
    try:
        import pyarrow as arrow
        from pyarrow.parquet import read_table
    except ImportError:
        raise MissingExtra("reading LeRobot datasets", "robot") from None
    info = json.loads((path / INFO).read_text())
    files = sorted((path / "data").rglob("*.parquet"))
    if not files:
        raise InputError(f"'{path}' is a LeRobot dataset without data/**/*.parquet; download it whole.")
    table = arrow.concat_tables([read_table(f, partitioning=None) for f in files], promote_options="default")
    for name in ("timestamp", "episode_index"):
        if name not in table.column_names:
            raise InputError(f"'{path}' has no column '{name}' in {files[0].name}; it is no LeRobot dataset.")
    features = [n for n in table.column_names if n not in BOOKKEEPING]
    wanted = chosen(features, topics, path)
    held: dict[str, tuple[Array, Array | None]] = {}
    left = [n for n, f in info.get("features", {}).items() if f.get("dtype") == "video"]
    for name in features:
        got = column(table.column(name)) if name in wanted else None
        if got is not None:
            held[name] = got
        elif name in wanted:
            left.append(name)
    said(ask, "", left)
    episodes = np.asarray(table.column("episode_index"))
    stamps = np.asarray(table.column("timestamp")).astype(np.float64)
    frames = np.asarray(table.column("frame_index")) if "frame_index" in table.column_names else None
    found = []
    for episode in np.unique(episodes).tolist():
        rows = np.flatnonzero(episodes == episode)
        times = _times(stamps[rows], None if frames is None else frames[rows], info.get("fps"))
        for name, (values, mask) in held.items():
            kept = rows if mask is None else rows[mask[rows]]
            clock = times if mask is None else times[mask[rows]]
            labels = _labels(name, values, info.get("features", {}))
            found.append(Stream(name, clock, values[kept], columns=labels, episode=str(episode)))
    return found


def _times(stamps: Array, frames: Array | None, fps: float | None) -> Array:
    """Stamps are float32 in these files; on the grid of frame / fps they are exact again."""
    if frames is None or not fps or np.abs(stamps - frames / fps).max() > GRID_S:
        return stamps
    exact = Fraction(str(fps))
    ticks = (frames.astype(np.int64) * (2 * 10**9 * exact.denominator) + exact.numerator) // (2 * exact.numerator)
    return np.asarray(ticks, np.int64)


def _labels(name: str, values: Array, features: Mapping[str, Any]) -> tuple[str, ...]:
    names = features.get(name, {}).get("names")
    if isinstance(names, dict):
        names = next((n for n in names.values() if isinstance(n, list)), None)
    width = values.shape[1] if values.ndim == 2 else 1
    plain = isinstance(names, list) and len(names) == width == len(set(map(str, names)))
    return tuple(f"{name}.{n}" for n in names) if plain and values.ndim == 2 else ()
