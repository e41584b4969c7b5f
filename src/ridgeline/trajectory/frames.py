"""Items of a LeRobot dataset as its own loader gives them: frames of cameras decoded on demand, numbers beside them.

`TrajectoryDataset(folder, delta_timestamps={…})` uses this. Each process keeps some video files open; a frame is
reached from the key frame before it, or from the frame decoded last if that is nearer.
"""

from __future__ import annotations

import json
import os
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra, unknown
from ridgeline.trajectory.readers.lerobot import BOOKKEEPING, GRID_S, INFO, find_videos, read_tasks
from ridgeline.trajectory.stream import Array
from ridgeline.trajectory.videos import IMAGES, VideoReader

OPEN_VIDEOS = 16  # files that a process keeps open


@dataclass(frozen=True)
class _Episode:
    """Where an episode lies: its rows in the table, and for each camera a file and its first frame there."""

    start: int
    end: int
    videos: Mapping[str, tuple[Path, int]]


class FrameDataset:
    """A map-style dataset over the frames of a LeRobot folder (v2.1, v3); `dataset[i]` is a dict.

    delta_timestamps  {feature: [seconds]}: values at these offsets from the frame, with `FEATURE_is_pad` where an
                      offset leaves the episode
    images            float32 (0 … 1) or uint8 (0 … 255), both [C, H, W]
    """

    def __init__(
        self, root: str | os.PathLike[str], delta_timestamps: Mapping[str, Sequence[float]], images: str = "float32"
    ) -> None:
        self.root = Path(root)
        if not (self.root / INFO).is_file():
            raise InputError(
                f"'{root}' is no LeRobot folder, and delta_timestamps needs one; write it with `ridgeline resample "
                "--format lerobot`."
            )
        if images not in IMAGES:
            raise unknown("type of images", images, IMAGES)
        self.images = images
        self.info = json.loads((self.root / INFO).read_text())
        self.fps = float(self.info["fps"])
        self.features: dict[str, Any] = self.info["features"]
        self.video_keys = [n for n, f in self.features.items() if f["dtype"] == "video"]
        if stored := [n for n, f in self.features.items() if f["dtype"] == "image"]:
            raise InputError(f"'{root}' stores the images of '{stored[0]}' one by one; convert it to videos first.")
        self.deltas = {key: self._convert_deltas(key, seconds) for key, seconds in delta_timestamps.items()}
        self.tasks = read_tasks(self.root)
        self._columns, self._wide = _read_columns(self.root, self.features)
        self._episodes = self._read_episodes()
        self._episode_of = np.repeat(np.arange(len(self._episodes)), [e.end - e.start for e in self._episodes])
        self._open: OrderedDict[Path, VideoReader] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def __len__(self) -> int:
        return len(self._episode_of)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        index = int(index) % len(self)
        episode = self._episodes[int(self._episode_of[index])]
        item: dict[str, Any] = {}
        for name, values in self._columns.items():
            rows, pad = self._find_rows(name, index, episode)
            item[name] = _to_tensor(values[index] if rows is None else values[rows])
            if pad is not None:
                item[f"{name}_is_pad"] = _to_tensor(pad)
        for name, column in self._wide.items():
            rows, pad = self._find_rows(name, index, episode)
            item[name] = _to_tensor(column.read([index])[0] if rows is None else column.read(rows.tolist()))
            if pad is not None:
                item[f"{name}_is_pad"] = _to_tensor(pad)
        for name, frames, pad in self._decode_all(index, episode):
            item[name] = _to_tensor(frames)
            if pad is not None:
                item[f"{name}_is_pad"] = _to_tensor(pad)
        item["task"] = self.tasks.get(int(self._columns["task_index"][index]), "")
        return item

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without open files: each process opens its own."""
        return {**self.__dict__, "_open": OrderedDict(), "_pool": None}

    def _find_rows(self, name: str, index: int, episode: _Episode) -> tuple[Array | None, Array | None]:
        """Return the rows of a feature's offsets, held inside the episode, and which ones lay outside."""
        if name not in self.deltas:
            return None, None
        requested = index + self.deltas[name]
        rows = requested.clip(episode.start, episode.end - 1)
        return rows, requested != rows

    def _decode_all(self, index: int, episode: _Episode) -> list[tuple[str, Array, Array | None]]:
        if self._process != os.getpid():  # a worker that was forked: the files belong to its parent
            self._open, self._pool, self._process = OrderedDict(), None, os.getpid()
        jobs = []
        for name in self.video_keys:
            rows, pad = self._find_rows(name, index, episode)
            path, first = episode.videos[name]
            numbers = (np.array([index]) if rows is None else rows) - episode.start + first
            jobs.append((name, self._get_reader(path), numbers.tolist(), pad))
        if len(jobs) > 1 and not _is_worker():
            if self._pool is None:
                self._pool = ThreadPoolExecutor(min(len(jobs), os.cpu_count() or 1))
            results = list(self._pool.map(lambda job: job[1].read(job[2], self.images), jobs))
        else:
            results = [reader.read(numbers, self.images) for _, reader, numbers, _ in jobs]
        return [
            (name, frames[0] if len(frames) == 1 else frames, pad)
            for (name, _, _, pad), frames in zip(jobs, results, strict=True)
        ]

    def _get_reader(self, path: Path) -> VideoReader:
        reader = self._open.pop(path, None) or VideoReader(path, self.fps)
        self._open[path] = reader
        while len(self._open) > max(OPEN_VIDEOS, len(self.video_keys)):
            self._open.popitem(last=False)[1].close()
        return reader

    def _convert_deltas(self, key: str, seconds: Sequence[float]) -> Array:
        if key not in self.features:
            raise unknown("feature", key, self.features)
        exact = np.asarray(seconds, np.float64).reshape(-1) * self.fps
        steps = np.rint(exact)
        if len(exact) == 0 or np.abs(exact - steps).max() > GRID_S * self.fps:
            raise InputError(
                f"delta_timestamps[{key!r}] is {list(seconds)}; give multiples of 1 / {self.fps:g} s, at least one."
            )
        return steps.astype(np.int64)

    def _read_episodes(self) -> list[_Episode]:
        rows = self._columns["episode_index"]
        edges = np.flatnonzero(np.diff(rows, prepend=rows[:1] - 1)) if len(rows) else np.zeros(0, np.int64)
        bounds = list(zip(edges.tolist(), [*edges[1:].tolist(), len(rows)], strict=True))
        videos = find_videos(self.root, self.info, [int(rows[start]) for start, _ in bounds])
        return [_Episode(start, end, videos[int(rows[start])]) for start, end in bounds]


class _WideColumn:
    """A column of arrays (depth) that is read a row group at a time."""

    def __init__(self, name: str, files: Sequence[Path], shape: Sequence[int], dtype: str) -> None:
        self._name, self._shape, self._dtype = name, tuple(shape), dtype
        self._groups: list[tuple[Path, int]] = []
        self._starts: list[int] = []
        self._cached: tuple[int, Array] | None = None
        from pyarrow.parquet import read_metadata

        start = 0
        for file in files:
            metadata = read_metadata(file)
            for group in range(metadata.num_row_groups):
                self._groups.append((file, group))
                self._starts.append(start)
                start += metadata.row_group(group).num_rows

    def read(self, rows: Sequence[int]) -> Array:
        """Return the arrays [N, …] of rows."""
        return np.stack([self._read_row(row) for row in rows])

    def _read_row(self, row: int) -> Array:
        group = int(np.searchsorted(self._starts, row, "right")) - 1
        if self._cached is None or self._cached[0] != group:
            from pyarrow.parquet import ParquetFile

            file, number = self._groups[group]
            with ParquetFile(file) as parquet:
                column = parquet.read_row_group(number, columns=[self._name]).column(self._name).combine_chunks()
            while hasattr(column, "flatten") and column.type.num_fields:
                column = column.flatten()
            values = np.asarray(column).astype(self._dtype, copy=False).reshape(-1, *self._shape)
            self._cached = (group, values)
        return np.asarray(self._cached[1][row - self._starts[group]])


def _read_columns(root: Path, features: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, _WideColumn]]:
    """Return the numbers of all rows, and readers of the columns of arrays."""
    try:
        from pyarrow.parquet import read_schema, read_table
    except ImportError:
        raise MissingExtra("reading LeRobot datasets", "robot") from None
    import pyarrow as arrow

    files = sorted((root / "data").rglob("*.parquet"))
    if not files:
        raise InputError(f"'{root}' is a LeRobot dataset without data/**/*.parquet; download it again.")
    present = [n for n in read_schema(files[0]).names if n in features]
    wide = [n for n in present if len(features[n]["shape"]) > 1]
    names = [n for n in present if n not in wide and features[n]["dtype"] != "string"]
    if missing := [n for n in BOOKKEEPING if n not in names]:
        raise InputError(f"'{root}' has no column '{missing[0]}'; it is no LeRobot dataset.")
    table = arrow.concat_tables([read_table(f, columns=names, partitioning=None) for f in files])
    columns: dict[str, Array] = {}
    for name in names:
        column = table.column(name).combine_chunks()
        width = int(features[name]["shape"][0])
        is_list = arrow.types.is_list(column.type) or arrow.types.is_fixed_size_list(column.type)
        values = np.asarray(column.flatten()).reshape(-1, width) if is_list else np.asarray(column)
        columns[name] = values
    readers = {n: _WideColumn(n, files, features[n]["shape"], features[n]["dtype"]) for n in wide}
    return columns, readers


def _is_worker() -> bool:
    """Whether this process is a worker of a DataLoader; workers share the CPUs already."""
    torch = sys.modules.get("torch.utils.data")
    return torch is not None and torch.get_worker_info() is not None


def _to_tensor(values: Any) -> Any:
    """Return a tensor; without torch, an array. Types that torch hardly knows become wider ones."""
    array = np.asarray(values)
    if array.dtype == np.uint16:
        array = array.astype(np.int32)
    try:
        import torch
    except ImportError:
        return array
    return torch.from_numpy(array if array.flags.writeable and array.ndim else array.copy())
