"""Recordings as a dataset for torch's DataLoader: one item is one trajectory, or one window of it, still uneven.

>>> import numpy as np
>>> runs = [(np.array([0.0, 0.4, 1.0]), np.eye(3)), (np.array([0.0, 2.5]), np.ones((2, 3)))]
>>> dataset = TrajectoryDataset(runs, window=1.0)
>>> len(dataset), [dataset[i].where.start_ns for i in range(4)]
(4, [0, 0, 1000000000, 2000000000])

Nothing here needs torch. The dataset is never split between ranks by itself: give the loader `dataset.share()` (or
torch's DistributedSampler) as its sampler.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError, unknown
from ridgeline.trajectory import readers
from ridgeline.trajectory.guess import matching
from ridgeline.trajectory.readers import Ask
from ridgeline.trajectory.sample import Layout, Sample, Told, Where, cut, layout_of, nanoseconds, starts, whole
from ridgeline.trajectory.share import Share
from ridgeline.trajectory.stream import Span, Stream
from ridgeline.trajectory.timeline import SPANS

StrPath = str | os.PathLike[str]
ONE_EPISODE = ("ulog", "mcap", "rosbag", "tum")  # formats that need no reading to be counted
SUFFIXES = frozenset(suffix for _, known in readers.FORMATS.values() for suffix in known)
MEMORY = 1 << 30


class TrajectoryDataset:
    """A map-style dataset: `dataset[i]` is a `Sample`, with its stamps checked.

    source   files, LeRobot folders or ROS 2 bags, folders of such; or [(times, values), …] or lists of `Stream`
    topics   only these streams, by name or pattern, as in `ridgeline resample`
    kind     how columns are interpolated: one kind, {stream or pattern: kind} with the rest guessed from the first
             recording, or [(slice, kind), …] over all columns with the rest linear, as in `resample`
    window   seconds per item, beginning every `stride` seconds (default: window); None gives whole episodes
    partial  also a last window that is not full, where something would be lost without it; its rest is masked later
    span     where an episode's clock runs, as in `align`
    sort     put stamps that go back in order; fps, clock, unit: what a file may not say itself, as in `readers.Ask`
    memory   bytes of read recordings that each process keeps

    The first recording decides the columns; one that lacks some of them is an error that names it. Files are read when
    an item of theirs is asked for. They are read once before, to count, if there are windows or the format may hold
    several episodes. Times are int64 nanoseconds from here on.
    """

    def __init__(
        self,
        source: Any,
        *,
        topics: Sequence[str] | str | None = None,
        kind: Told = None,
        window: float | None = None,
        stride: float | None = None,
        partial: bool = True,
        span: Span = "auto",
        sort: bool = False,
        fps: float | None = None,
        clock: str | None = None,
        unit: str | None = None,
        memory: int = MEMORY,
    ) -> None:
        if span not in SPANS:
            raise unknown("span", span, SPANS)
        if stride is not None and window is None:
            raise InputError(f"stride={stride} needs a window; give window= in seconds too.")
        self._topics = [topics] if isinstance(topics, str) else list(topics or ())
        self._window, self._span, self._sort = nanoseconds("window", window), span, sort
        self._ask, self._memory = Ask(fps, clock, unit), memory
        self._kept: OrderedDict[int, list[Sample]] = OrderedDict()
        self._bytes: dict[int, int] = {}  # of those that are kept
        self._files: list[Path] = []
        self._given: list[list[Stream]] = []
        if _is_path(source) or (isinstance(source, Sequence) and source and all(map(_is_path, source))):
            self._files = [file for path in ([source] if _is_path(source) else source) for file in recordings(path)]
        else:
            self._given = list(_given(source, unit))
        self.layout = Layout((), (), ())
        self.warnings: tuple[str, ...] = ()  # what was left out, and why
        self._first(kind)
        self._count(nanoseconds("stride", stride) or self._window, partial)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Sample:
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        index = int(index) % len(self)
        recording, number, start = map(int, self._items[index])
        episode = self._episodes(recording)[number]
        if self._window is None:
            return Sample(episode.layout, episode.times, episode.values, episode.where.at(index))
        return cut(episode, index, start, self._window)

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
        """The sampler of one rank; see `Share`."""
        return Share(len(self), rank, world, shuffle=shuffle, seed=seed, uneven=uneven)

    def __getstate__(self) -> dict[str, Any]:
        """What goes to a worker that is spawned: names and numbers. It reads the files it needs itself."""
        return {**self.__dict__, "_kept": OrderedDict(), "_bytes": {}}

    def __repr__(self) -> str:
        origin = f"{len(self._files)} recordings" if self._files else f"{len(self._given)} trajectories from memory"
        return f"TrajectoryDataset({len(self)} items of {origin}, {len(self.names)} columns)"

    def _count(self, stride: int | None, partial: bool) -> None:
        items: list[Any] = []
        for recording in range(len(self._files) or len(self._given)):
            if self._window is None and self._files and readers.format_of(self._files[recording]) in ONE_EPISODE:
                items.append([(recording, 0, 0)])
                continue
            for number, episode in enumerate(self._episodes(recording)):
                begins = [0]
                if self._window is not None and stride is not None:
                    where = episode.where
                    begins = starts(where.start_ns, where.end_ns, self._window, stride, partial).tolist()
                items.append([(recording, number, start) for start in begins])
        self._items = np.array([item for several in items for item in several], np.int64).reshape(-1, 3)
        if not len(self._items):
            raise InputError(
                "no episode is as long as the window; choose a shorter window=, or partial=True to pad and mask."
            )

    def _first(self, kind: Told) -> None:
        """The columns, by the first episode; streams that stand still there are left out, as `align` does."""
        with _naming(self._name(0)):
            read = self._read(0)
            streams = next(iter(readers.episodes(read).values()))
            moving = [s for s in streams if len(s) and s.times.min() != s.times.max()] or streams
            left = [s.name for s in streams if s not in moving]
            if left:
                self.warnings = (f"left out for fewer than two different stamps: {', '.join(left)}.",)
            self.layout = layout_of(moving).told(kind)
        self._episodes(0, read)

    def _episodes(self, recording: int, read: Sequence[Stream] = ()) -> list[Sample]:
        """The episodes of a recording: from memory if it was asked for lately, else read."""
        if recording in self._kept:
            self._kept.move_to_end(recording)
            return self._kept[recording]
        found = []
        with _naming(self._name(recording)):
            for label, streams in readers.episodes(read or self._read(recording)).items():
                where = Where(-1, str(self._files[recording]) if self._files else "", label, 0, 0)
                with _naming(f"episode {label}" if label else ""):
                    found.append(whole(streams, self.layout, where, self._span, self._sort))
        self._kept[recording] = found
        if self._files:
            self._bytes[recording] = sum(episode.nbytes for episode in found)
            while len(self._kept) > 1 and sum(self._bytes.values()) > self._memory:
                del self._bytes[self._kept.popitem(last=False)[0]]
        return found

    def _read(self, recording: int) -> list[Stream]:
        if self._files:
            return readers.read(self._files[recording], self._topics, self._ask)
        streams = self._given[recording]
        if not self._topics:
            return streams
        wanted = {n for word in self._topics for n in matching([s.name for s in streams], word, "topic")}
        return [s for s in streams if s.name in wanted]

    def _name(self, recording: int) -> str:
        return f"'{self._files[recording]}'" if self._files else f"trajectory {recording}"


def recordings(path: StrPath) -> list[Path]:
    """A recording, or those in a folder and below it, in the order of their names."""
    path = Path(path)
    if not path.is_dir() or _is_dataset(path):
        readers.format_of(path)
        return [path]
    found = list(_below(path))
    if not found:
        raise InputError(f"there is no recording in '{path}'; give files of {', '.join(sorted(SUFFIXES))}.")
    return found


def _below(folder: Path) -> Iterator[Path]:
    for child in sorted(folder.iterdir()):
        if _is_dataset(child) or (child.is_file() and child.suffix.lower() in SUFFIXES):
            yield child
        elif child.is_dir() and not child.name.startswith("."):
            yield from _below(child)


def _is_dataset(path: Path) -> bool:
    """A folder that is one recording."""
    try:
        return path.is_dir() and bool(readers.format_of(path))
    except InputError:
        return False


def _is_path(item: Any) -> bool:
    return isinstance(item, str | os.PathLike)


def _given(source: Any, unit: str | None) -> Iterator[list[Stream]]:
    """Trajectories from memory, each as its streams."""
    items = list(source) if isinstance(source, Sequence) else []
    if not items:
        raise InputError(f"there is no trajectory in {str(source)[:60]!r}; give files, or [(times, values), …].")
    if all(isinstance(item, Stream) for item in items):
        yield items
        return
    for number, item in enumerate(items):
        several = list(item) if isinstance(item, tuple | list) else []
        if several and all(isinstance(s, Stream) for s in several):
            yield several
        elif len(several) == 2:
            times, values = (np.asarray(a) for a in several)
            with _naming(f"trajectory {number}"):
                yield [Stream("values", times, values, unit=unit)]
        else:
            raise InputError(
                f"trajectory {number} is a {type(item).__name__}; give (times, values) or a list of Stream for each."
            )


@contextmanager
def _naming(place: str) -> Iterator[None]:
    """Errors inside begin with the place, unless they name it already."""
    try:
        yield
    except InputError as error:
        if not place or place in str(error):
            raise
        raise InputError(f"{place}: {error}") from error
