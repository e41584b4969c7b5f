"""Items of a LeRobot dataset as its own loader gives them: frames of cameras decoded on demand, numbers beside them.

`TrajectoryDataset(folder, delta_timestamps={…})` uses this. Each process keeps some video files open; a frame is
reached from the key frame before it, or from the frame decoded last if that is nearer.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra, unknown
from ridgeline.trajectory.cameras import Camera
from ridgeline.trajectory.media import PictureDecoder
from ridgeline.trajectory.pictures import import_av
from ridgeline.trajectory.readers.lerobot import (
    BOOKKEEPING,
    GRID_S,
    INFO,
    find_videos,
    read_stored_image,
    read_tasks,
)
from ridgeline.trajectory.readers.streams import describe_error
from ridgeline.trajectory.stream import Array
from ridgeline.trajectory.videos import IMAGES, TorchCodecReader, VideoReader, choose_decoder, open_video, to_rgb

OPEN_VIDEOS = 16  # files that a process keeps open


class _Local(threading.local):
    """What a thread has open: a decoder cannot serve two threads."""

    def __init__(self) -> None:
        self.files: OrderedDict[Path, VideoReader | TorchCodecReader] = OrderedDict()
        self.busy = False  # other threads decode as well, so this one needs no pool
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def __reduce__(self) -> tuple[type[_Local], tuple[()]]:
        return _Local, ()  # another process opens its own files

    def mark_busy(self) -> None:
        self.busy = True

    def forget_parent(self) -> None:
        """Drop the files after a fork: they belong to the parent."""
        if self._process != os.getpid():
            self.files, self._pool, self._process = OrderedDict(), None, os.getpid()

    def get_pool(self) -> ThreadPoolExecutor | None:
        """Return threads for several cameras of one item."""
        if self._pool is None and not self.busy:
            self._pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1))
        return self._pool


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
    decoder           torchcodec, pyav, or auto: TorchCodec where it is installed
    device            cpu, or cuda: the GPU decodes (TorchCodec), and frames stay there
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        delta_timestamps: Mapping[str, Sequence[float]],
        images: str = "float32",
        decoder: str = "auto",
        device: str = "cpu",
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
        self.decoder, self.device = choose_decoder(decoder, device), device
        self.info = json.loads((self.root / INFO).read_text())
        self.fps = float(self.info["fps"])
        self.features: dict[str, Any] = self.info["features"]
        self.video_keys = [n for n, f in self.features.items() if f["dtype"] == "video"]
        self.deltas = {key: self._convert_deltas(key, seconds) for key, seconds in delta_timestamps.items()}
        self.tasks = read_tasks(self.root)
        self._columns, self._wide, self._stored = _read_columns(self.root, self.features)
        self._episodes = self._read_episodes()
        self._episode_of = np.repeat(np.arange(len(self._episodes)), [e.end - e.start for e in self._episodes])
        self._local = _Local()

    def __len__(self) -> int:
        return len(self._episode_of)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several items; each video is decoded in the order of its frames. DataLoader uses this for a batch."""
        for index in indices:
            if not -len(self) <= index < len(self):
                raise IndexError(f"item {index} of {len(self)}")
        rows = [int(index) % len(self) for index in indices]
        items = [self._build_numbers(index) for index in rows]
        self._add_frames(rows, items)
        return items

    def prefetch(self, order: Iterable[int], *, threads: int = 2, ahead: int = 16) -> Iterator[dict[str, Any]]:
        """Iterate over items in the given order; threads decode up to `ahead` items before they are asked for."""
        if threads < 1 or ahead < 1:
            raise InputError(f"prefetch(threads={threads}, ahead={ahead}): give at least 1 of each.")
        waiting: deque[Future[dict[str, Any]]] = deque()
        with ThreadPoolExecutor(threads, thread_name_prefix="frames", initializer=self._local.mark_busy) as pool:
            try:
                for index in order:
                    waiting.append(pool.submit(self.__getitem__, int(index)))
                    if len(waiting) > ahead:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _build_numbers(self, index: int) -> dict[str, Any]:
        """Return an item without the frames of its videos."""
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
        for name, stored in self._stored.items():
            rows, pad = self._find_rows(name, index, episode)
            frames = stored.read([index] if rows is None else rows.tolist(), self.images)
            item[name] = _to_tensor(frames[0] if len(frames) == 1 else frames)
            if pad is not None:
                item[f"{name}_is_pad"] = _to_tensor(pad)
        item["task"] = self.tasks.get(int(self._columns["task_index"][index]), "")
        return item

    def _find_rows(self, name: str, index: int, episode: _Episode) -> tuple[Array | None, Array | None]:
        """Return the rows of a feature's offsets, held inside the episode, and which ones lay outside."""
        if name not in self.deltas:
            return None, None
        requested = index + self.deltas[name]
        rows = requested.clip(episode.start, episode.end - 1)
        return rows, requested != rows

    def _add_frames(self, rows: Sequence[int], items: Sequence[dict[str, Any]]) -> None:
        """Decode the frames of all items, one video file after the other, and add them to the items."""
        by_file: dict[Path, list[tuple[int, str, list[int], Array | None]]] = {}
        for place, index in enumerate(rows):
            episode = self._episodes[int(self._episode_of[index])]
            for name in self.video_keys:
                row_numbers, pad = self._find_rows(name, index, episode)
                path, first = episode.videos[name]
                in_file = (np.array([index]) if row_numbers is None else row_numbers) - episode.start + first
                by_file.setdefault(path, []).append((place, name, in_file.tolist(), pad))
        self._local.forget_parent()
        jobs = [(self._get_reader(path, len(by_file)), requests) for path, requests in by_file.items()]

        def decode(job: tuple[VideoReader | TorchCodecReader, list[tuple[int, str, list[int], Array | None]]]) -> Any:
            return job[0].read([n for _, _, numbers, _ in job[1] for n in numbers], self.images)

        pool = self._local.get_pool() if len(jobs) > 1 and not _is_worker() else None
        for (_, requests), frames in zip(jobs, pool.map(decode, jobs) if pool else map(decode, jobs), strict=True):
            at = 0
            for place, name, numbers, pad in requests:
                part = frames[at : at + len(numbers)]
                at += len(numbers)
                items[place][name] = _to_tensor(part[0] if len(numbers) == 1 else part)
                if pad is not None:
                    items[place][f"{name}_is_pad"] = _to_tensor(pad)

    def _get_reader(self, path: Path, needed: int) -> VideoReader | TorchCodecReader:
        files = self._local.files
        reader = files.pop(path, None) or open_video(path, self.fps, self.decoder, self.device)
        files[path] = reader
        while len(files) > max(OPEN_VIDEOS, needed):
            files.popitem(last=False)[1].close()
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


class _RowGroups:
    """The row groups of several Parquet files."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._groups: list[tuple[Path, int]] = []
        self._starts: list[int] = []
        from pyarrow.parquet import read_metadata

        start = 0
        for file in files:
            metadata = read_metadata(file)
            for group in range(metadata.num_row_groups):
                self._groups.append((file, group))
                self._starts.append(start)
                start += metadata.row_group(group).num_rows

    def find(self, row: int) -> tuple[int, int]:
        """Return the group of a row, and its place in there."""
        group = int(np.searchsorted(self._starts, row, "right")) - 1
        return group, row - self._starts[group]

    def read(self, group: int, name: str) -> Any:
        from pyarrow.parquet import ParquetFile

        file, number = self._groups[group]
        with ParquetFile(file) as parquet:
            return parquet.read_row_group(number, columns=[name]).column(name).combine_chunks()


class _WideColumn:
    """A column of arrays (depth) that is read a row group at a time."""

    def __init__(self, name: str, files: Sequence[Path], shape: Sequence[int], dtype: str) -> None:
        self._name, self._shape, self._dtype = name, tuple(shape), dtype
        self._groups = _RowGroups(files)
        self._cached: tuple[int, Array] | None = None

    def read(self, rows: Sequence[int]) -> Array:
        """Return the arrays [N, …] of rows."""
        return np.stack([self._read_row(row) for row in rows])

    def _read_row(self, row: int) -> Array:
        group, place = self._groups.find(row)
        cached = self._cached  # one read: another thread may replace it
        if cached is None or cached[0] != group:
            column = self._groups.read(group, self._name)
            while hasattr(column, "flatten") and column.type.num_fields:
                column = column.flatten()
            values = np.asarray(column).astype(self._dtype, copy=False).reshape(-1, *self._shape)
            cached = self._cached = (group, values)
        return np.asarray(cached[1][place])


class _StoredImages:
    """A column of image files (JPEG, PNG) that is read a row group at a time."""

    def __init__(self, root: Path, name: str, files: Sequence[Path]) -> None:
        self._root, self._name = root, name
        self._groups = _RowGroups(files)
        self._cached: tuple[int, list[Any]] | None = None

    def read(self, rows: Sequence[int], images: str) -> Array:
        """Return the images [N, C, H, W] of rows."""
        out = np.stack([self._decode(row) for row in rows])
        return out if images == "uint8" else np.multiply(out, np.float32(1 / 255), dtype=np.float32)

    def _decode(self, row: int) -> Array:
        group, place = self._groups.find(row)
        cached = self._cached  # one read: another thread may replace it
        if cached is None or cached[0] != group:
            cached = self._cached = (group, self._groups.read(group, self._name).to_pylist())
        picture = read_stored_image(self._root, cached[1][place])
        camera = Camera(self._name, np.zeros(1), picture.codec, 0, 0)
        try:
            frame = PictureDecoder(camera).decode(0, picture)[0][1]
        except InputError:
            raise
        except Exception as error:  # each decoder has its own errors
            raise InputError(
                f"'{self._root}': the image '{self._name}' of row {row} cannot be decoded ({describe_error(error)})."
            ) from error
        return to_rgb(frame, import_av("decoding images").video.reformatter.VideoReformatter()).transpose(2, 0, 1)


def _read_columns(
    root: Path, features: Mapping[str, Any]
) -> tuple[dict[str, Array], dict[str, _WideColumn], dict[str, _StoredImages]]:
    """Return the numbers of all rows, and readers of the columns of arrays and of images."""
    try:
        from pyarrow.parquet import read_schema, read_table
    except ImportError:
        raise MissingExtra("reading LeRobot datasets", "robot") from None
    import pyarrow as arrow

    files = sorted((root / "data").rglob("*.parquet"))
    if not files:
        raise InputError(f"'{root}' is a LeRobot dataset without data/**/*.parquet; download it again.")
    present = [n for n in read_schema(files[0]).names if n in features]
    images = [n for n in present if features[n]["dtype"] == "image"]
    wide = [n for n in present if len(features[n]["shape"]) > 1 and n not in images]
    names = [n for n in present if n not in (*wide, *images) and features[n]["dtype"] != "string"]
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
    return columns, readers, {n: _StoredImages(root, n, files) for n in images}


def _is_worker() -> bool:
    """Whether this process is a worker of a DataLoader; workers share the CPUs already."""
    torch = sys.modules.get("torch.utils.data")
    return torch is not None and torch.get_worker_info() is not None


def _to_tensor(values: Any) -> Any:
    """Return a tensor; without torch, an array. Types that torch hardly knows become wider ones."""
    if not isinstance(values, np.ndarray | np.generic | list):
        return values  # a tensor of TorchCodec
    array = np.asarray(values)
    if array.dtype == np.uint16:
        array = array.astype(np.int32)
    try:
        import torch
    except ImportError:
        return array
    return torch.from_numpy(array if array.flags.writeable and array.ndim else array.copy())
