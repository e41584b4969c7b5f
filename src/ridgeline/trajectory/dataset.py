"""Recordings as a dataset for torch's DataLoader: an item is a trajectory or a window of it, with uneven stamps.

>>> import numpy as np
>>> runs = [(np.array([0.0, 0.4, 1.0]), np.eye(3)), (np.array([0.0, 2.5]), np.ones((2, 3)))]
>>> dataset = TrajectoryDataset(runs, window=1.0)
>>> len(dataset), [dataset[i].origin.start_ns for i in range(4)]
(4, [0, 0, 1000000000, 2000000000])

This module does not need torch. The dataset does not split itself between ranks: give the loader `dataset.share()`
(or torch's DistributedSampler) as its sampler.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError, unknown
from ridgeline.trajectory import readers
from ridgeline.trajectory.columns import match_names
from ridgeline.trajectory.frames import FrameDataset
from ridgeline.trajectory.readers import ReadOptions
from ridgeline.trajectory.sample import (
    KindChoice,
    Layout,
    Origin,
    Sample,
    build_episode,
    build_layout,
    cut_window,
    duration_to_ns,
    find_window_starts,
)
from ridgeline.trajectory.stream import SPANS, Array, Span, Stream

StrPath = str | os.PathLike[str]
ONE_EPISODE = ("ulog", "mcap", "rosbag", "tum")  # formats with one episode per file: no need to read it to count
SUFFIXES = frozenset(suffix for _, known in readers.FORMATS.values() for suffix in known)
CACHE_BYTES = 1 << 30
UNEVEN = ("repeat", "drop", "keep")


class TrajectoryDataset:
    """A map-style dataset: `dataset[i]` is a `Sample` with checked stamps in int64 nanoseconds.

    source   files, LeRobot folders, ROS 2 bags, or folders of these; or [(times, values), …] or lists of `Stream`
    topics   read only these streams, by name or pattern, as in `ridgeline resample`
    kind     interpolation: one kind; or {stream or pattern: kind}, with the rest guessed from the first recording; or
             [(slice, kind), …] over all columns, with the rest linear, as in `resample`
    window   seconds per item; a window begins every `stride` seconds (default: window). None: an item is an episode
    partial  add a last window that is not full if full windows do not cover the episode; collate masks the rest
    span     start and end of an episode's clock, as in `align`
    sort     sort stamps that go back. fps, clock, unit, stamps: information that a file lacks, as in
             `readers.ReadOptions`
    memory   bytes of recordings that each process caches (default: 1 GiB)

    With `delta_timestamps` the source is a LeRobot folder, and an item is a dict as LeRobot's own loader gives it: one
    frame of every camera (float32 [C, H, W] in 0 … 1; `images="uint8"`: 0 … 255), the numbers, and `task`. A feature in
    `delta_timestamps` has its values at these offsets in seconds, [T, …], with `FEATURE_is_pad` [T]. Frames are decoded
    when needed, by `decoder` (auto: TorchCodec where it is installed, else PyAV); with `device="cuda"` TorchCodec
    decodes on the GPU. `prefetch` decodes ahead in threads; workers of a DataLoader need no more.

    The first recording decides the columns; a recording that lacks a column raises InputError. A file is read when an
    item of it is requested. With windows, or if the format can hold several episodes, every file is also read once at
    the start to count its items.
    """

    def __init__(
        self,
        source: Any,
        *,
        topics: Sequence[str] | str | None = None,
        kind: KindChoice = None,
        window: float | None = None,
        stride: float | None = None,
        partial: bool = True,
        span: Span = "auto",
        sort: bool = False,
        fps: float | None = None,
        clock: str | None = None,
        unit: str | None = None,
        stamps: str = "auto",
        memory: int = CACHE_BYTES,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        images: str = "float32",
        decoder: str = "auto",
        device: str = "cpu",
    ) -> None:
        self._frames: FrameDataset | None = None
        self._files: list[Path] = []
        self.layout = Layout((), (), ())
        self.warnings: tuple[str, ...] = ()  # streams left out, and why
        if delta_timestamps is not None:
            if not _is_path(source):
                raise InputError("delta_timestamps needs one LeRobot folder; give its path.")
            if window is not None or topics is not None:
                raise InputError("delta_timestamps chooses frames by itself; leave window= and topics= out.")
            self._frames = FrameDataset(source, delta_timestamps, images, decoder, device)
            self._files = [Path(source)]
            return
        if span not in SPANS:
            raise unknown("span", span, SPANS)
        if stride is not None and window is None:
            raise InputError(f"stride={stride} needs a window; give window= in seconds too.")
        self._topics = [topics] if isinstance(topics, str) else list(topics or ())
        self._window, self._span, self._sort = duration_to_ns("window", window), span, sort
        self._options, self._memory = ReadOptions(fps, clock, unit, stamps=stamps), memory
        self._cache: OrderedDict[int, list[Sample]] = OrderedDict()
        self._cached_bytes: dict[int, int] = {}  # by cached recording
        self._trajectories: list[list[Stream]] = []
        if _is_path(source) or (isinstance(source, Sequence) and source and all(map(_is_path, source))):
            self._files = [
                file for path in ([source] if _is_path(source) else source) for file in find_recordings(path)
            ]
        else:
            self._trajectories = list(_iterate_trajectories(source, unit))
        self._read_layout(kind)
        self._list_items(duration_to_ns("stride", stride) or self._window, partial)

    def __len__(self) -> int:
        return len(self._items if self._frames is None else self._frames)

    def __getitem__(self, index: int) -> Any:
        if self._frames is not None:
            return self._frames[index]
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        index = int(index) % len(self)
        recording, number, start = map(int, self._items[index])
        episode = self._episodes(recording)[number]
        if self._window is None:
            return Sample(episode.layout, episode.times, episode.values, episode.origin.with_index(index))
        return cut_window(episode, index, start, self._window)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the items of a batch; DataLoader uses this, so that each video is decoded in order."""
        return [self[i] for i in indices] if self._frames is None else self._frames.__getitems__(indices)

    def prefetch(self, order: Iterable[int] | None = None, *, threads: int = 2, ahead: int = 16) -> Iterator[Any]:
        """Iterate over items in the given order (default: all), decoded ahead by threads; needs delta_timestamps."""
        if self._frames is None:
            raise InputError("prefetch decodes frames; give delta_timestamps= to TrajectoryDataset.")
        return self._frames.prefetch(range(len(self)) if order is None else order, threads=threads, ahead=ahead)

    def batches(
        self,
        batch_size: int,
        order: Iterable[int] | None = None,
        *,
        threads: int = 2,
        ahead: int | None = None,
        drop_last: bool = False,
        pin: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Iterate over batches of items in the given order (default: all), as a DataLoader's; needs delta_timestamps.

        Threads of this process decode frames into the memory of the batch, so nothing is copied between processes.
        They build up to `ahead` batches (default: threads + 1) before they are asked for. `order` may be a sampler:
        `dataset.share()`, or one of torch's. With `pin` the frames lie in pinned memory, for copies to a GPU.
        """
        if self._frames is None:
            raise InputError(
                "batches decodes frames; give delta_timestamps= to TrajectoryDataset, or use a DataLoader."
            )
        numbers = range(len(self)) if order is None else order
        ahead = threads + 1 if ahead is None else ahead
        return self._frames.batches(batch_size, numbers, threads=threads, ahead=ahead, drop_last=drop_last, pin=pin)

    @property
    def names(self) -> tuple[str, ...]:
        """The D columns of a batch, in order."""
        return self.layout.names

    @property
    def kinds(self) -> dict[str, str]:
        """How each column is interpolated."""
        return dict(zip(self.layout.names, self.layout.kinds, strict=True))

    def share(
        self,
        rank: int | None = None,
        world: int | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        uneven: str = "repeat",
    ) -> Share:
        """Return the sampler of one rank; see `Share`."""
        return Share(len(self), rank, world, shuffle=shuffle, seed=seed, uneven=uneven)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the cache: a spawned worker reads the files that it needs."""
        cache: dict[str, Any] = {} if self._frames is not None else {"_cache": OrderedDict(), "_cached_bytes": {}}
        return {**self.__dict__, **cache}

    def __repr__(self) -> str:
        if self._frames is not None:
            return f"TrajectoryDataset({len(self)} frames of '{self._files[0]}')"
        origin = (
            f"{len(self._files)} recordings" if self._files else f"{len(self._trajectories)} trajectories from memory"
        )
        return f"TrajectoryDataset({len(self)} items of {origin}, {len(self.names)} columns)"

    def _list_items(self, stride: int | None, partial: bool) -> None:
        items: list[Any] = []
        for recording in range(len(self._files) or len(self._trajectories)):
            if self._window is None and self._files and readers.detect_format(self._files[recording]) in ONE_EPISODE:
                items.append([(recording, 0, 0)])
                continue
            for number, episode in enumerate(self._episodes(recording)):
                begins = [0]
                if self._window is not None and stride is not None:
                    origin = episode.origin
                    begins = find_window_starts(origin.start_ns, origin.end_ns, self._window, stride, partial).tolist()
                items.append([(recording, number, start) for start in begins])
        self._items = np.array([item for windows in items for item in windows], np.int64).reshape(-1, 3)
        if not len(self._items):
            raise InputError(
                "no episode is as long as the window; choose a shorter window=, or partial=True to pad and mask."
            )

    def _read_layout(self, kind: KindChoice) -> None:
        """Take the columns from the first episode, without streams that have fewer than two different stamps."""
        with _error_prefix(self._name(0)):
            streams_read = self._read(0)
            streams = next(iter(readers.group_episodes(streams_read).values()))
            moving = [s for s in streams if len(s) and s.times.min() != s.times.max()] or streams
            still = [s.name for s in streams if s not in moving]
            if still:
                self.warnings = (f"left out for fewer than two different stamps: {', '.join(still)}.",)
            self.layout = build_layout(moving).with_kinds(kind)
        self._episodes(0, streams_read)

    def _episodes(self, recording: int, read: Sequence[Stream] = ()) -> list[Sample]:
        """Return the episodes of a recording from the cache, or read them."""
        if recording in self._cache:
            self._cache.move_to_end(recording)
            return self._cache[recording]
        episodes = []
        with _error_prefix(self._name(recording)):
            for label, streams in readers.group_episodes(read or self._read(recording)).items():
                origin = Origin(-1, str(self._files[recording]) if self._files else "", label, 0, 0)
                with _error_prefix(f"episode {label}" if label else ""):
                    episodes.append(build_episode(streams, self.layout, origin, self._span, self._sort))
        self._cache[recording] = episodes
        if self._files:
            self._cached_bytes[recording] = sum(episode.nbytes for episode in episodes)
            while len(self._cache) > 1 and sum(self._cached_bytes.values()) > self._memory:
                del self._cached_bytes[self._cache.popitem(last=False)[0]]
        return episodes

    def _read(self, recording: int) -> list[Stream]:
        if self._files:
            return readers.read(self._files[recording], self._topics, self._options)
        streams = self._trajectories[recording]
        if not self._topics:
            return streams
        names = {n for word in self._topics for n in match_names([s.name for s in streams], word, "topic")}
        return [s for s in streams if s.name in names]

    def _name(self, recording: int) -> str:
        return f"'{self._files[recording]}'" if self._files else f"trajectory {recording}"


class Share:
    """A sampler: one rank's share of a dataset, in the order of the epoch. Use it as torch's DistributedSampler.

    rank, world  default: from torch.distributed if it is initialised, else from RANK and WORLD_SIZE, else 0 of 1
    uneven       if the ranks do not divide the items: "repeat" repeats the first items of the epoch, "drop" leaves
                 out the last items, "keep" gives some ranks one item more

    >>> [list(Share(5, rank, 2, shuffle=False)) for rank in (0, 1)]
    [[0, 2, 4], [1, 3, 0]]
    """

    def __init__(
        self,
        items: int,
        rank: int | None = None,
        world: int | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        uneven: str = "repeat",
    ) -> None:
        if uneven not in UNEVEN:
            raise unknown("way to share unevenly", uneven, UNEVEN)
        self.items, self.shuffle, self.seed, self.uneven = items, shuffle, seed, uneven
        self.rank, self.world = _find_rank(rank, world)
        self.epoch = 0
        if uneven == "drop" and items < self.world:
            raise InputError(f"{items} items are too few for {self.world} ranks; use uneven='repeat' or fewer ranks.")

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which decides the order; call it on every rank before each epoch."""
        self.epoch = epoch

    @property
    def repeated(self) -> int:
        """The number of items that an epoch repeats."""
        return -self.items % self.world if self.uneven == "repeat" and self.items else 0

    @property
    def dropped(self) -> int:
        """The number of items that no rank gets in an epoch."""
        return self.items % self.world if self.uneven == "drop" else 0

    def __len__(self) -> int:
        return len(range(self.rank, self.items + self.repeated - self.dropped, self.world))

    def __iter__(self) -> Iterator[int]:
        order: Array = np.arange(self.items)
        if self.shuffle:
            order = np.random.default_rng((self.seed, self.epoch)).permutation(self.items)
        all_items = np.resize(order, self.items + self.repeated - self.dropped)
        yield from all_items[self.rank :: self.world].tolist()

    def __repr__(self) -> str:
        more = f", {self.repeated} repeated" if self.repeated else f", {self.dropped} dropped" if self.dropped else ""
        return f"Share(rank {self.rank} of {self.world}: {len(self)} of {self.items} items{more}, epoch {self.epoch})"


def find_recordings(path: StrPath) -> list[Path]:
    """Return a recording, or the recordings in a folder and below it, sorted by name."""
    path = Path(path)
    if not path.is_dir() or _is_dataset(path):
        readers.detect_format(path)
        return [path]
    files = list(_walk_recordings(path))
    if not files:
        raise InputError(f"there is no recording in '{path}'; give files of {', '.join(sorted(SUFFIXES))}.")
    return files


def _walk_recordings(folder: Path) -> Iterator[Path]:
    for child in sorted(folder.iterdir()):
        if _is_dataset(child) or (child.is_file() and child.suffix.lower() in SUFFIXES):
            yield child
        elif child.is_dir() and not child.name.startswith("."):
            yield from _walk_recordings(child)


def _is_dataset(path: Path) -> bool:
    """Whether a folder is one recording."""
    try:
        return path.is_dir() and bool(readers.detect_format(path))
    except InputError:
        return False


def _is_path(item: Any) -> bool:
    return isinstance(item, str | os.PathLike)


def _iterate_trajectories(source: Any, unit: str | None) -> Iterator[list[Stream]]:
    """Iterate over trajectories in memory, each as a list of streams."""
    items = list(source) if isinstance(source, Sequence) else []
    if not items:
        raise InputError(f"there is no trajectory in {str(source)[:60]!r}; give files, or [(times, values), …].")
    if all(isinstance(item, Stream) for item in items):
        yield items
        return
    for number, item in enumerate(items):
        parts = list(item) if isinstance(item, tuple | list) else []
        if parts and all(isinstance(s, Stream) for s in parts):
            yield parts
        elif len(parts) == 2:
            times, values = (np.asarray(a) for a in parts)
            with _error_prefix(f"trajectory {number}"):
                yield [Stream("values", times, values, unit=unit)]
        else:
            raise InputError(
                f"trajectory {number} is a {type(item).__name__}; give (times, values) or a list of Stream for each."
            )


@contextmanager
def _error_prefix(place: str) -> Iterator[None]:
    """Put `place` before the message of an InputError, unless the message names it."""
    try:
        yield
    except InputError as error:
        if not place or place in str(error):
            raise
        raise InputError(f"{place}: {error}") from error


def _find_rank(rank: int | None, world: int | None) -> tuple[int, int]:
    if (rank is None) != (world is None):
        raise InputError("rank= and world= go together; give both or neither.")
    if rank is None or world is None:
        rank, world = _read_process_group() or _read_environment()
    if not 0 <= rank < world:
        raise InputError(f"rank {rank} of {world} does not exist; ranks go from 0 to {world - 1}.")
    return rank, world


def _read_process_group() -> tuple[int, int] | None:
    torch = sys.modules.get("torch")  # a program without torch has no process group
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _read_environment() -> tuple[int, int]:
    rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and world is None:
        return 0, 1
    try:
        return int(rank or ""), int(world or "")
    except ValueError:
        raise InputError(
            f"RANK={rank} and WORLD_SIZE={world} name no rank; set both, or start with torchrun."
        ) from None
