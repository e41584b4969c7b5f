"""One trajectory of a dataset, or one window of it, as it was recorded; and the columns that all of them have.

>>> import numpy as np
>>> layout = layout_of([Stream("gear", np.arange(3), np.array([1, 1, 2])), Stream("p", np.arange(3), np.eye(3))])
>>> layout.names, layout.kinds
(('gear', 'p[0]', 'p[1]', 'p[2]'), ('previous', 'linear', 'linear', 'linear'))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby

import numpy as np

from ridgeline.errors import InputError, unknown
from ridgeline.trajectory.arguments import number
from ridgeline.trajectory.channels import Kinds, groups
from ridgeline.trajectory.guess import check_kind, matching
from ridgeline.trajectory.stream import Stream
from ridgeline.trajectory.timeline import LATEST_S, Array, Track, spanned, track

Told = Kinds | Mapping[str, str] | None  # one kind, (slice, kind) pairs as in `resample`, or {stream or pattern: kind}


@dataclass(frozen=True)
class Layout:
    """The D columns of a dataset, stream by stream."""

    streams: tuple[tuple[str, int, int], ...]  # name, first column, one past its last
    names: tuple[str, ...]  # [D]
    kinds: tuple[str, ...]  # [D]

    def part(self, stream: str) -> slice:
        """The columns of a stream."""
        for name, start, stop in self.streams:
            if name == stream:
                return slice(start, stop)
        raise unknown("stream", stream, [name for name, _, _ in self.streams])

    def told(self, kind: Told) -> Layout:
        """The same columns, interpolated as `kind` says; None leaves the kinds as they are."""
        if kind is None:
            return self
        kinds = list(self.kinds)
        if isinstance(kind, Mapping):
            for word, name in kind.items():
                for stream in matching([s[0] for s in self.streams], word):
                    part = self.part(stream)
                    kinds[part] = [check_kind(name)] * (part.stop - part.start)
        else:
            for start, stop, name in groups(kind, len(kinds)):
                kinds[start:stop] = [name] * (stop - start)
        for stream, start, stop in self.streams:
            for name, run in groupby(kinds[start:stop]):
                width = len(list(run))
                if name == "slerp" and width % 4:
                    raise InputError(f"slerp wants quaternions, four columns each; stream '{stream}' gives it {width}.")
        return replace(self, kinds=tuple(kinds))


@dataclass(frozen=True)
class Where:
    """Where a sample comes from; `start_ns` to `end_ns` is the part of its clock that it covers."""

    index: int
    file: str  # "" for trajectories from memory
    episode: str
    start_ns: int
    end_ns: int

    def at(self, index: int, start_ns: int | None = None, end_ns: int | None = None) -> Where:
        """The place of an item, or of a window in it."""
        start, end = (self.start_ns if start_ns is None else start_ns), (self.end_ns if end_ns is None else end_ns)
        return Where(index, self.file, self.episode, start, end)


@dataclass(frozen=True, eq=False)
class Sample:
    """Stream i of the layout has stamps `times[i]` [S] in int64 nanoseconds and `values[i]` [S, D].

    Streams of one topic share one array of stamps. A window also holds the samples next to its edges, so that what
    is read off inside it is what the whole trajectory gives there.
    """

    layout: Layout
    times: tuple[Array, ...]
    values: tuple[Array, ...]
    where: Where
    window_ns: int | None = None

    def __getitem__(self, stream: str) -> tuple[Array, Array]:
        """(times [S], values [S, D]) of a stream."""
        self.layout.part(stream)
        i = [s[0] for s in self.layout.streams].index(stream)
        return self.times[i], self.values[i]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in {id(a): a for a in (*self.times, *self.values)}.values())


def layout_of(streams: Sequence[Stream]) -> Layout:
    """The columns of one episode's streams, in order."""
    found: list[tuple[str, int, int]] = []
    names: list[str] = []
    kinds: list[str] = []
    for stream in streams:
        if any(stream.name == s[0] for s in found):
            raise InputError(f"two streams are called '{stream.name}'; rename one.")
        found.append((stream.name, len(names), len(names) + len(stream.columns)))
        names += stream.columns
        kinds += [stream.how] * len(stream.columns)
    return Layout(tuple(found), tuple(names), tuple(kinds)).told({})


def whole(streams: Sequence[Stream], layout: Layout, where: Where, span: str, sort: bool) -> Sample:
    """An episode with the columns of `layout`, its stamps checked and in nanoseconds."""
    there = {s.name: s for s in streams}
    tracks: dict[int, Track] = {}
    times, values = [], []
    for name, start, stop in layout.streams:
        stream = there.get(name)
        if stream is None or len(stream.columns) != stop - start:
            has = "no" if stream is None else f"{len(stream.columns)} columns of"
            first = "it" if stream is None else str(stop - start)
            raise InputError(
                f"it has {has} '{name}', and the first recording has {first}; choose topics= that all of them have."
            )
        key = id(stream.times)
        if key not in tracks:
            tracks[key] = _track(stream, sort)
        order = tracks[key].order
        rows = stream.values.reshape(len(stream), len(stream.columns))
        times.append(tracks[key].times)
        values.append(rows if order is None else rows[order])
    some = [t for t in tracks.values() if t.distinct]
    if not some:
        raise InputError("it has no samples; leave it out.")
    first, last = spanned([t for t in some if t.distinct > 1] or some, span)
    return Sample(layout, tuple(times), tuple(values), replace(where, start_ns=int(first), end_ns=int(last)))


def starts(start: int, end: int, window: int, stride: int, partial: bool) -> Array:
    """Where the windows of an episode begin; with `partial` one more where the full ones leave something over.

    >>> starts(0, 10, 4, 3, True).tolist(), starts(0, 12, 4, 4, True).tolist(), starts(0, 12, 5, 5, False).tolist()
    ([0, 3, 6], [0, 4, 8], [0, 5])
    """
    full = (end - start - window) // stride + 1 if end - start >= window else 0
    covered = (full - 1) * stride + window if full else 0
    more = partial and (not full or (covered < end - start and full * stride < end - start))
    return start + stride * np.arange(full + more, dtype=np.int64)


def cut(episode: Sample, index: int, start: int, window: int) -> Sample:
    """The window of an episode from `start` on, with its neighbours on both sides."""
    where = episode.where.at(index, start, min(start + window, episode.where.end_ns))
    rows = {id(t): _rows(t, start, start + window) for t in episode.times}
    pieces = {id(t): t[rows[id(t)]] for t in episode.times}
    values = tuple(v[rows[id(t)]] for t, v in zip(episode.times, episode.values, strict=True))
    return Sample(episode.layout, tuple(pieces[id(t)] for t in episode.times), values, where, window)


def nanoseconds(name: str, seconds: float | None) -> int | None:
    """A length of time in seconds, as typed, in whole nanoseconds."""
    if seconds is None:
        return None
    if not (number(seconds) and 0 < seconds < LATEST_S and round(seconds * 1e9) > 0):
        raise InputError(f"{name}={seconds} is no length of time; give seconds above 0, like 2.0.")
    return round(Fraction(str(seconds)) * 10**9)


def _track(stream: Stream, sort: bool) -> Track:
    stamps = stream.times
    found = track(stream.name, stamps, 0.0, True, sort)
    if stamps.dtype != np.int64 and found.distinct < len(np.unique(stamps)):
        raise InputError(
            f"stream '{stream.name}' has stamps less than a nanosecond apart; multiply its times by a thousand or more."
        )
    return found


def _rows(times: Array, start: int, end: int) -> slice:
    """The stamps from start to end and two different ones beyond each edge, which is as far as cubic looks."""
    low = int(np.searchsorted(times, start, "right")) - 1
    if low > 0:
        low = int(np.searchsorted(times, times[low], "left")) - 1
    high = int(np.searchsorted(times, end, "left"))
    for _ in range(2):
        if high < len(times):
            high = int(np.searchsorted(times, times[high], "right"))
    return slice(max(low, 0), high)
