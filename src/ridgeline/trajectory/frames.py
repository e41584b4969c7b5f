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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
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

OPEN_VIDEOS = 16  # files that a thread keeps open
FREE_BLOCKS = 4  # of one size, that wait for the next batch


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


class _Blocks:
    """Memory of batches that are no longer in use: writing frames to new pages takes twice as long.

    A block comes back when the last array or tensor that lies in it is gone.
    """

    def __init__(self) -> None:
        self._free: dict[int, deque[Array]] = {}  # by size; a deque needs no lock

    def __reduce__(self) -> tuple[type[_Blocks], tuple[()]]:
        return _Blocks, ()

    def take(self, shape: tuple[int, ...], dtype: str) -> Array:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        free = self._free.setdefault(size, deque(maxlen=FREE_BLOCKS))
        try:
            block = free.pop()
        except IndexError:
            block = np.empty(size, np.uint8)
        return np.asarray(_Lease(block, free)).view(dtype).reshape(shape)


class _Lease:
    """Owns a block while an array lies in it."""

    def __init__(self, block: Array, free: deque[Array]) -> None:
        self._block, self._free = block, free
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._block)


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
        self._starts = np.array([e.start for e in self._episodes], np.int64)
        self._ends = np.array([e.end for e in self._episodes], np.int64)
        self._episode_of = np.repeat(np.arange(len(self._episodes)), self._ends - self._starts)
        self._local, self._blocks = _Local(), _Blocks()

    def __len__(self) -> int:
        return len(self._episode_of)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several items; each video is decoded in the order of its frames. DataLoader uses this for a batch."""
        batch = self._build_batch(indices)
        return [
            {name: v[i] if isinstance(v, list) else v[i, ...] for name, v in batch.items()} for i in range(len(indices))
        ]

    def prefetch(self, order: Iterable[int], *, threads: int = 2, ahead: int = 16) -> Iterator[dict[str, Any]]:
        """Iterate over items in the given order; threads decode up to `ahead` items before they are asked for."""
        _check_threads("prefetch", threads, ahead)
        return self._run_ahead(self.__getitem__, (int(index) for index in order), threads, ahead)

    def batches(
        self, batch_size: int, order: Iterable[int], *, threads: int, ahead: int, drop_last: bool, pin: bool
    ) -> Iterator[dict[str, Any]]:
        """Iterate over batches of items in the given order; threads build up to `ahead` of them in advance.

        Frames are decoded into the memory of the batch. With `pin`, that memory is pinned, for fast copies to a GPU.
        """
        _check_threads("batches", threads, ahead)
        if batch_size < 1:
            raise InputError(f"batches({batch_size}): give at least 1 item.")
        return self._run_ahead(
            partial(self._build_batch, pin=pin), _group(order, batch_size, drop_last), threads, ahead
        )

    def _run_ahead(self, work: Callable[[Any], Any], inputs: Iterable[Any], threads: int, ahead: int) -> Iterator[Any]:
        waiting: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(threads, thread_name_prefix="frames", initializer=self._local.mark_busy) as pool:
            try:
                for item in inputs:
                    waiting.append(pool.submit(work, item))
                    if len(waiting) > ahead:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _build_batch(self, indices: Sequence[int], pin: bool = False) -> dict[str, Any]:
        """Return the values of several items, stacked: [B, …]."""
        for index in indices:
            if not -len(self) <= index < len(self):
                raise IndexError(f"item {index} of {len(self)}")
        rows = np.asarray(indices, np.int64).reshape(-1) % len(self)
        episodes = self._episode_of[rows]
        batch: dict[str, Any] = {}

        for name in (*self._columns, *self._wide, *self._stored):
            requested, pad = self._find_rows(name, rows, episodes)
            batch[name] = _to_tensor(self._read_values(name, rows if requested is None else requested))
            if pad is not None:
                batch[f"{name}_is_pad"] = _to_tensor(pad)
        batch["task"] = [self.tasks.get(int(i), "") for i in self._columns["task_index"][rows]]
        frames: dict[str, tuple[Array, tuple[int, ...]]] = {}  # their rows in the table, and the shape of each item's
        for name in self.video_keys:
            requested, pad = self._find_rows(name, rows, episodes)
            plain = rows if requested is None else _squeeze(requested)
            frames[name] = (rows[:, None] if requested is None else requested, plain.shape[1:])
            batch[name] = None  # holds its place
            if pad is not None:
                batch[f"{name}_is_pad"] = _to_tensor(pad)
        for name, values in self._read_frames(
            {n: numbers for n, (numbers, _) in frames.items()}, episodes, pin
        ).items():
            batch[name] = values.reshape(len(rows), *frames[name][1], *values.shape[1:])
        return batch

    def _read_values(self, name: str, rows: Array) -> Array:
        """Return the values of a feature that is no video, for rows [B] or [B, T] of the table."""
        if name in self._columns:
            return self._columns[name][rows]
        if name in self._wide:
            values = self._wide[name].read(rows.reshape(-1).tolist())
        else:
            rows = _squeeze(rows)
            values = self._stored[name].read(rows.reshape(-1).tolist(), self.images)
        return values.reshape(*rows.shape, *values.shape[1:])

    def _find_rows(self, name: str, rows: Array, episodes: Array) -> tuple[Array | None, Array | None]:
        """Return the rows [B, T] of a feature's offsets, held inside the episodes, and which ones lay outside."""
        if name not in self.deltas:
            return None, None
        requested = rows[:, None] + self.deltas[name]
        clipped = requested.clip(self._starts[episodes, None], self._ends[episodes, None] - 1)
        return clipped, requested != clipped

    def _read_frames(self, requested: Mapping[str, Array], episodes: Array, pin: bool) -> dict[str, Any]:
        """Decode frames by their rows [B, T] in the table: {feature: [B · T, C, H, W]}, one file after the other."""
        self._local.forget_parent()
        jobs: list[tuple[str, VideoReader | TorchCodecReader, list[int], list[int]]] = []
        files: dict[tuple[str, Path], tuple[list[int], list[int]]] = {}
        for name, numbers in requested.items():
            for item, (episode, row) in enumerate(zip(episodes.tolist(), numbers.tolist(), strict=True)):
                path, first = self._episodes[episode].videos[name]
                in_file, places = files.setdefault((name, path), ([], []))
                in_file += [n - self._episodes[episode].start + first for n in row]
                places += range(item * len(row), (item + 1) * len(row))
        for (name, path), (in_file, places) in files.items():
            jobs.append((name, self._get_reader(path, len(files)), in_file, places))
        out: dict[str, Any] = {}
        for name, reader, _, _ in jobs:
            if name not in out:
                width, height = reader.size
                out[name] = self._allocate((requested[name].size, 3, height, width), pin)

        def decode(job: tuple[str, VideoReader | TorchCodecReader, list[int], list[int]]) -> None:
            name, reader, in_file, places = job
            memory = out[name]
            reader.read(in_file, memory.numpy() if pin and self.device == "cpu" else memory, places)

        pool = self._local.get_pool() if len(jobs) > 1 and not _is_worker() else None
        for _ in pool.map(decode, jobs) if pool else map(decode, jobs):
            pass
        return {name: _to_tensor(values) for name, values in out.items()}

    def _allocate(self, shape: tuple[int, ...], pin: bool) -> Any:
        """Return memory for frames: an array, or a tensor that is pinned or on the GPU."""
        if self.device == "cpu" and not pin:
            return self._blocks.take(shape, self.images)
        import torch

        pinned = pin and self.device == "cpu"
        return torch.empty(shape, dtype=getattr(torch, self.images), device=self.device, pin_memory=pinned)

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


def _group(order: Iterable[int], size: int, drop_last: bool) -> Iterator[list[int]]:
    numbers = iter(order)
    while group := [int(n) for n in islice(numbers, size)]:
        if len(group) < size and drop_last:
            return
        yield group


def _squeeze(rows: Array) -> Array:
    """Return rows [B] in place of [B, 1]: LeRobot gives a single frame without an axis for offsets."""
    return rows[:, 0] if rows.ndim == 2 and rows.shape[1] == 1 else rows


def _check_threads(what: str, threads: int, ahead: int) -> None:
    if threads < 1 or ahead < 1:
        raise InputError(f"{what}(threads={threads}, ahead={ahead}): give at least 1 of each.")


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
