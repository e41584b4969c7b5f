"""A LeRobot v3.0 dataset: meta/{info.json, stats.json, tasks.parquet, episodes/}, data/chunk-000/file-000.parquet.

Each stream is a feature: `actions` becomes `action`, all others `observation.NAME`; features of a LeRobot dataset keep
their names, tasks and type of robot. Features cannot be null, so masked
values are NaN (integers with masked values become float32).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra
from ridgeline.store import publish_dir, read_manifest
from ridgeline.trajectory.stream import Aligned, Array
from ridgeline.trajectory.writers import table

VERSION = "v3.0"
FILE = "chunk-000/file-000.parquet"
TASK = "resampled"
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def write(path: Path, episodes: Sequence[Aligned], meta: dict[str, Any]) -> None:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtra("writing LeRobot datasets", "robot") from None
    rates = {e.hz for e in episodes}
    rate = rates.pop() if len(rates) == 1 else None
    if rate is None:
        raise InputError("a LeRobot dataset has one fps; align every episode with the same hz.")
    fps = int(rate) if float(rate).is_integer() else rate
    known = {name: names for e in episodes for name, names in e.info.features}
    features, labels = _features(episodes, known), table.merge_labels(episodes)
    lengths = [len(e.times) for e in episodes]
    tasks = [_frame_tasks(e) for e in episodes]
    texts = list(dict.fromkeys(text for frames in tasks for text in frames)) or [TASK]
    task_index = np.array([texts.index(text) for frames in tasks for text in frames], np.int64)
    counts = _bookkeeping(lengths, fps, task_index)
    robots = {e.info.robot_type for e in episodes}
    columns = {name: values for name, (_, values) in features.items()}
    info = {
        "codebase_version": VERSION,
        "robot_type": (robots.pop() or None) if len(robots) == 1 else None,
        "total_episodes": len(episodes),
        "total_frames": sum(lengths),
        "total_tasks": len(texts),
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "splits": {"train": f"0:{len(episodes)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
        "features": {
            **{
                name: _feature(v, _column_names(stream, labels[stream], known))
                for name, (stream, v) in features.items()
            },
            **{name: _feature(v, None) for name, v in counts.items()},
        },
    }
    with publish_dir(path, meta) as tmp:
        for name in (f"data/{FILE}", f"meta/episodes/{FILE}"):
            (tmp / name).parent.mkdir(parents=True)
        arrow_columns = {name: _arrow(arrow, v) for name, v in {**columns, **counts}.items()}
        parquet.write_table(arrow.table(arrow_columns), tmp / "data" / FILE, compression="zstd")
        rows = _episodes(lengths, [list(dict.fromkeys(frames)) for frames in tasks], {**columns, **counts})
        parquet.write_table(arrow.table(rows), tmp / "meta" / "episodes" / FILE)
        parquet.write_table(_tasks(arrow, texts), tmp / "meta" / "tasks.parquet")
        (tmp / "meta" / "info.json").write_text(json.dumps(info, indent=4))
        stats = {name: compute_stats(v) for name, v in {**columns, **counts}.items()}
        (tmp / "meta" / "stats.json").write_text(json.dumps(stats, indent=4))


def _frame_tasks(episode: Aligned) -> list[str]:
    """Return the task of every frame: the text that the recording says, or a placeholder."""
    if not episode.info.tasks:
        return [TASK] * len(episode.times)
    starts = np.array([start for start, _ in episode.info.tasks])
    if episode.times.dtype.kind == "i" and starts.dtype.kind == "f":
        starts = np.rint(starts * 1e9).astype(np.int64)
    rows = np.searchsorted(starts, episode.times, "right").clip(1) - 1
    return [episode.info.tasks[i][1] for i in rows]


def _tasks(arrow: Any, texts: Sequence[str]) -> Any:
    """Return the table of the tasks. LeRobot reads it with pandas; the index is the task's text."""
    columns: list[dict[str, Any]] = [
        {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
        {"name": None, "field_name": "__index_level_0__", "pandas_type": "unicode", "numpy_type": "object"},
    ]
    pandas_metadata = {
        "index_columns": ["__index_level_0__"],
        "column_indexes": [],
        "columns": [{**column, "metadata": None} for column in columns],
        "pandas_version": "2.0.0",
    }
    table = arrow.table({"task_index": np.arange(len(texts)), "__index_level_0__": list(texts)})
    return table.replace_schema_metadata({b"pandas": json.dumps(pandas_metadata).encode()})


def read_meta(path: Path) -> dict[str, Any] | None:
    return dict(read_manifest(path).meta) if path.is_dir() else None


def compute_stats(values: Array) -> dict[str, list[float | None]]:
    """Return min, max, mean, std, count and quantiles per channel without NaN; null for a channel of only NaN."""
    wide = values.reshape(len(values), -1).astype(np.float64)
    out: dict[str, list[float | None]] = {name: [] for name in ("min", "max", "mean", "std", *QUANTILES)}
    for channel in wide.T:
        known = channel[np.isfinite(channel)]
        statistics = (
            [known.min(), known.max(), known.mean(), known.std(), *np.quantile(known, list(QUANTILES.values()))]
            if known.size
            else [None] * len(out)
        )
        for name, value in zip(out, statistics, strict=True):
            out[name].append(None if value is None else float(value))
    return {**out, "count": [len(values)]}


def feature_name(stream: str) -> str:
    """Return a LeRobot feature name, which has no slash.

    >>> feature_name("actions"), feature_name("obs/joint_pos"), feature_name("/imu/gyro")
    ('action', 'observation.joint_pos', 'observation.imu.gyro')
    """
    plain = stream.strip("/").replace("/", ".")
    if plain in ("action", "actions"):
        return "action"
    if plain.startswith(("action.", "observation.", "next.")) or plain == "observation":
        return plain
    return f"observation.{plain.removeprefix('obs.')}"


def _features(episodes: Sequence[Aligned], known: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, Array]]:
    """Return (stream, values) by feature; two streams with the same feature name raise InputError."""
    features: dict[str, tuple[str, Array]] = {}
    for stream, (values, mask) in table.stack_episodes(episodes).items():
        name = stream if stream in known else feature_name(stream)
        if name in features:
            raise InputError(f"streams '{features[name][0]}' and '{stream}' would both be '{name}'; leave one out.")
        if values.dtype.kind in "iub" and not mask.all():
            values = np.where(mask.reshape(-1, *[1] * (values.ndim - 1)), values, np.nan).astype(np.float32)
        plain = np.int64 if values.dtype.kind in "iu" else values.dtype
        features[name] = (stream, values.astype(np.float32 if values.dtype.kind == "f" else plain, copy=False))
    return features


def _bookkeeping(lengths: Sequence[int], fps: float, task_index: Array) -> dict[str, Array]:
    frames = np.concatenate([np.arange(n, dtype=np.int64) for n in lengths])
    return {
        "timestamp": (frames / fps).astype(np.float32),
        "frame_index": frames,
        "episode_index": np.repeat(np.arange(len(lengths), dtype=np.int64), lengths),
        "index": np.arange(len(frames), dtype=np.int64),
        "task_index": task_index,
    }


def _episodes(lengths: Sequence[int], tasks: Sequence[Sequence[str]], columns: dict[str, Array]) -> dict[str, Any]:
    ends = np.cumsum(lengths)
    starts = ends - lengths
    zeros = np.zeros(len(lengths), np.int64)
    rows: dict[str, Any] = {
        "episode_index": np.arange(len(lengths)),
        "tasks": list(tasks),
        "length": np.asarray(lengths, np.int64),
        "data/chunk_index": zeros,
        "data/file_index": zeros,
        "dataset_from_index": starts,
        "dataset_to_index": ends,
        "meta/episodes/chunk_index": zeros,
        "meta/episodes/file_index": zeros,
    }
    for name, values in columns.items():
        stats = [compute_stats(values[a:b]) for a, b in zip(starts, ends, strict=True)]
        rows |= {f"stats/{name}/{what}": [s[what] for s in stats] for what in stats[0]}
    return rows


def _feature(values: Array, names: Sequence[str] | None) -> dict[str, Any]:
    width = values.shape[1] if values.ndim == 2 else 1
    return {"dtype": values.dtype.name, "shape": [width], "names": list(names) if names else None}


def _column_names(stream: str, labels: Sequence[str], known: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Return the names of a feature's columns: those that it has in the dataset it comes from, or short labels."""
    return known[stream] if stream in known else [label.rpartition("/")[2] for label in labels]


def _arrow(arrow: Any, values: Array) -> Any:
    if values.ndim == 1:
        return arrow.array(values)
    flat = arrow.array(np.ascontiguousarray(values).reshape(-1))
    return arrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
