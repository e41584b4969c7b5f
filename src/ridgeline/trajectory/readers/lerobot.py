"""LeRobot datasets, v2 and v3: a folder with meta/info.json and data/**/*.parquet, read episode by episode.

Only the Parquet files are read; videos are ignored. The tasks, the type of the robot and the names of the features are
kept for a LeRobot dataset that is written from these streams.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra
from ridgeline.trajectory.readers.streams import ReadOptions, choose_topics, read_columns, report_left_out
from ridgeline.trajectory.stream import Array, EpisodeInfo, Stream

INFO = "meta/info.json"
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
GRID_S = 1e-4  # LeRobot's tolerance: a stamp closer than this to frame / fps counts as frame / fps


def sniff(path: Path) -> bool:
    return path.is_dir() and (path / INFO).is_file()


def read(path: Path, topics: Sequence[str] | None = None, options: ReadOptions | None = None) -> list[Stream]:
    options = options or ReadOptions()
    try:
        import pyarrow as arrow
        from pyarrow.parquet import read_table
    except ImportError:
        raise MissingExtra("reading LeRobot datasets", "robot") from None
    info = json.loads((path / INFO).read_text())
    files = sorted((path / "data").rglob("*.parquet"))
    if not files:
        raise InputError(f"'{path}' is a LeRobot dataset without data/**/*.parquet; download it again.")
    table = arrow.concat_tables([read_table(f, partitioning=None) for f in files], promote_options="default")
    for name in ("timestamp", "episode_index"):
        if name not in table.column_names:
            raise InputError(f"'{path}' has no column '{name}' in {files[0].name}; it is no LeRobot dataset.")
    features = [n for n in table.column_names if n not in BOOKKEEPING]
    chosen_features = choose_topics(features, topics, path)
    videos = {n: "video" for n, f in info.get("features", {}).items() if f.get("dtype") == "video"}
    columns, left_out = read_columns(table, [name for name in features if name in chosen_features])
    report_left_out(options, "", videos | left_out)
    episodes = np.asarray(table.column("episode_index"))
    stamps = np.asarray(table.column("timestamp")).astype(np.float64)
    frames = np.asarray(table.column("frame_index")) if "frame_index" in table.column_names else None
    texts = read_tasks(path)
    tasks = np.asarray(table.column("task_index")) if "task_index" in table.column_names and texts else None
    robot_type = str(info.get("robot_type") or "")
    names = {name: _column_names(name, values, info.get("features", {})) for name, (values, _) in columns.items()}
    streams = []
    for episode in np.unique(episodes).tolist():
        rows = np.flatnonzero(episodes == episode)
        times = _exact_times(stamps[rows], None if frames is None else frames[rows], info.get("fps"))
        episode_tasks = () if tasks is None else _find_tasks(times, tasks[rows], texts)
        about = EpisodeInfo(episode_tasks, robot_type, tuple(names.items()))
        for name, (values, mask) in columns.items():
            valid_rows = rows if mask is None else rows[mask[rows]]
            clock = times if mask is None else times[mask[rows]]
            labels = tuple(f"{name}.{n}" for n in names[name]) if values.ndim == 2 else ()
            streams.append(Stream(name, clock, values[valid_rows], columns=labels, episode=str(episode), info=about))
    return streams


def _exact_times(stamps: Array, frames: Array | None, fps: float | None) -> Array:
    """Replace float32 stamps by frame / fps in exact nanoseconds, if they agree."""
    if frames is None or not fps or np.abs(stamps - frames / fps).max() > GRID_S:
        return stamps
    exact = Fraction(str(fps))
    ticks = (frames.astype(np.int64) * (2 * 10**9 * exact.denominator) + exact.numerator) // (2 * exact.numerator)
    return np.asarray(ticks, np.int64)


def read_tasks(path: Path) -> dict[int, str]:
    """Return the texts of the tasks by index, from meta/tasks.parquet (v3) or meta/tasks.jsonl (v2)."""
    table_file, lines_file = path / "meta/tasks.parquet", path / "meta/tasks.jsonl"
    if table_file.is_file():
        from pyarrow.parquet import read_table

        table = read_table(table_file)
        texts = next((n for n in table.column_names if n != "task_index"), None)
        if texts is None or "task_index" not in table.column_names:
            return {}
        return {
            int(i): str(t) for i, t in zip(*(table.column(n).to_pylist() for n in ("task_index", texts)), strict=True)
        }
    if lines_file.is_file():
        lines = [json.loads(line) for line in lines_file.read_text().splitlines() if line.strip()]
        return {int(line["task_index"]): str(line["task"]) for line in lines}
    return {}


def _find_tasks(times: Array, tasks: Array, texts: Mapping[int, str]) -> tuple[tuple[float, str], ...]:
    """Return (stamp from which it holds, text) of each task of an episode."""
    starts = [0, *(np.flatnonzero(tasks[1:] != tasks[:-1]) + 1).tolist()]
    return tuple((times[i].item(), texts.get(int(tasks[i]), "")) for i in starts)


def _column_names(name: str, values: Array, features: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a feature's columns; empty if it has none, or not one for each column."""
    names = features.get(name, {}).get("names")
    if isinstance(names, dict):
        names = next((n for n in names.values() if isinstance(n, list)), None)
    width = values.shape[1] if values.ndim == 2 else 1
    plain = isinstance(names, list) and len(names) == width == len(set(map(str, names)))
    return tuple(map(str, names)) if plain else ()
