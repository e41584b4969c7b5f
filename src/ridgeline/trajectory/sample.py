"""Items of a dataset: a trajectory or a window of it with its uneven stamps, its columns and its origin.

>>> import numpy as np
>>> layout = build_layout([Stream("gear", np.arange(3), np.array([1, 1, 2])), Stream("p", np.arange(3), np.eye(3))])
>>> layout.names, layout.kinds
(('gear', 'p[0]', 'p[1]', 'p[2]'), ('previous', 'linear', 'linear', 'linear'))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from typing import Any, overload

import numpy as np

from ridgeline.errors import InputError, unknown
from ridgeline.trajectory.arguments import is_number
from ridgeline.trajectory.channels import Kinds, resolve_kinds
from ridgeline.trajectory.columns import check_kind, match_names
from ridgeline.trajectory.stream import LATEST_S, Array, Stream, Track, build_track, find_span
from ridgeline.trajectory.turns import undo_sign_flips

KindChoice = (
    Kinds | Mapping[str, str] | None
)  # one kind, (slice, kind) pairs as in `resample`, or {stream or pattern: kind}


@dataclass(frozen=True)
class Layout:
    """The D columns of a dataset, stream by stream."""

    streams: tuple[tuple[str, int, int], ...]  # name, first column, one past its last
    names: tuple[str, ...]  # [D]
    kinds: tuple[str, ...]  # [D]

    def columns(self, stream: str) -> slice:
        """Return the columns of a stream as a slice."""
        for name, start, stop in self.streams:
            if name == stream:
                return slice(start, stop)
        raise unknown("stream", stream, [name for name, _, _ in self.streams])

    def with_kinds(self, kind: KindChoice) -> Layout:
        """Return this layout with other interpolation kinds; None changes nothing."""
        if kind is None:
            return self
        kinds = list(self.kinds)
        if isinstance(kind, Mapping):
            for word, name in kind.items():
                for stream in match_names([s[0] for s in self.streams], word):
                    part = self.columns(stream)
                    kinds[part] = [check_kind(name)] * (part.stop - part.start)
        else:
            for start, stop, name in resolve_kinds(kind, len(kinds)):
                kinds[start:stop] = [name] * (stop - start)
        for stream, start, stop in self.streams:
            for first, last, name in _runs(kinds[start:stop]):
                if name == "slerp" and (last - first) % 4:
                    raise InputError(
                        f"slerp wants quaternions, four columns each; stream '{stream}' gives it {last - first}."
                    )
        return replace(self, kinds=tuple(kinds))


@dataclass(frozen=True)
class Origin:
    """The recording and time span of a sample: `start_ns` to `end_ns` on the recording's clock."""

    index: int
    file: str  # "" for trajectories in memory
    episode: str
    start_ns: int
    end_ns: int

    def with_index(self, index: int, start_ns: int | None = None, end_ns: int | None = None) -> Origin:
        """Return the origin of item `index`, or of a window of it."""
        start, end = (self.start_ns if start_ns is None else start_ns), (self.end_ns if end_ns is None else end_ns)
        return Origin(index, self.file, self.episode, start, end)


@dataclass(frozen=True, eq=False)
class Sample:
    """An item of a dataset. Stream i of the layout has `times[i]` [S] (int64 nanoseconds) and `values[i]` [S, D].

    Streams of one topic share one array of stamps. A window also has the samples next to its edges, so that
    resampling the window and resampling the complete trajectory give the same values. The sign flips of quaternions are
    undone.
    """

    layout: Layout
    times: tuple[Array, ...]
    values: tuple[Array, ...]
    origin: Origin
    window_ns: int | None = None

    def __getitem__(self, stream: str) -> tuple[Array, Array]:
        """Return (times [S], values [S, D]) of a stream."""
        self.layout.columns(stream)
        i = [s[0] for s in self.layout.streams].index(stream)
        return self.times[i], self.values[i]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in {id(a): a for a in (*self.times, *self.values)}.values())


class Origins(Sequence[Origin]):
    """The origins of B samples, stored by column.

    A batch crosses from a worker to the training process, which reads one array and a few names in microseconds and
    hundreds of objects in a millisecond. Each `Origin` is created on access.
    """

    def __init__(self, origins: Iterable[Origin]) -> None:
        sources: dict[tuple[str, str], int] = {}
        rows = [(w.index, w.start_ns, w.end_ns, sources.setdefault((w.file, w.episode), len(sources))) for w in origins]
        self._rows = np.array(rows, np.int64).reshape(-1, 4)
        self._sources = tuple(sources)

    @property
    def indices(self) -> Array:
        """The dataset index of each sample: [B] int64."""
        return self._rows[:, 0]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, position: int) -> Origin: ...
    @overload
    def __getitem__(self, position: slice) -> tuple[Origin, ...]: ...
    def __getitem__(self, position: int | slice) -> Origin | tuple[Origin, ...]:
        if isinstance(position, slice):
            return tuple(self[i] for i in range(*position.indices(len(self))))
        index, start, end, name = self._rows[position].tolist()
        file, episode = self._sources[name]
        return Origin(index, file, episode, start, end)

    def __eq__(self, other: Any) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, (Origins, tuple)) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def build_layout(streams: Sequence[Stream]) -> Layout:
    """Return the columns of one episode's streams, in order."""
    parts: list[tuple[str, int, int]] = []
    names: list[str] = []
    kinds: list[str] = []
    for stream in streams:
        if any(stream.name == s[0] for s in parts):
            raise InputError(f"two streams are called '{stream.name}'; rename one.")
        parts.append((stream.name, len(names), len(names) + len(stream.columns)))
        names += stream.columns
        kinds += [stream.resolved_kind] * len(stream.columns)
    return Layout(tuple(parts), tuple(names), tuple(kinds)).with_kinds({})


def build_episode(streams: Sequence[Stream], layout: Layout, origin: Origin, span: str, sort: bool) -> Sample:
    """Return one episode with the columns of `layout`; check its stamps and convert them to nanoseconds."""
    by_name = {s.name: s for s in streams}
    tracks: dict[int, Track] = {}
    times, values = [], []
    for name, start, stop in layout.streams:
        stream = by_name.get(name)
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
        values.append(undo_flips(rows if order is None else rows[order], layout.kinds[start:stop]))
    filled = [t for t in tracks.values() if t.distinct]
    if not filled:
        raise InputError("it has no samples; leave it out.")
    first, last = find_span([t for t in filled if t.distinct > 1] or filled, span)
    return Sample(layout, tuple(times), tuple(values), replace(origin, start_ns=int(first), end_ns=int(last)))


def undo_flips(rows: Array, kinds: Sequence[str]) -> Array:
    """Return `rows` [S, D] with the sign flips of quaternions undone; `kinds` [D] tells where they are."""
    for start, stop, kind in _runs(kinds):
        if kind == "slerp":
            turned = undo_sign_flips(np.ascontiguousarray(rows[:, start:stop]))
            rows = np.concatenate([rows[:, :start], turned, rows[:, stop:]], axis=1)
    return rows


def _runs(kinds: Sequence[str]) -> Iterable[tuple[int, int, str]]:
    """Iterate over (start, stop, kind) of neighbouring columns of one kind."""
    start = 0
    for kind, run in groupby(kinds):
        stop = start + len(list(run))
        yield start, stop, kind
        start = stop


def find_window_starts(start: int, end: int, window: int, stride: int, partial: bool) -> Array:
    """Return the starts of an episode's windows; `partial` adds a last window that is not full.

    >>> find_window_starts(0, 10, 4, 3, True).tolist(), find_window_starts(0, 12, 4, 4, True).tolist()
    ([0, 3, 6], [0, 4, 8])
    >>> find_window_starts(0, 12, 5, 5, False).tolist()
    [0, 5]
    """
    full = (end - start - window) // stride + 1 if end - start >= window else 0
    covered = (full - 1) * stride + window if full else 0
    more = partial and (not full or (covered < end - start and full * stride < end - start))
    return start + stride * np.arange(full + more, dtype=np.int64)


def cut_window(episode: Sample, index: int, start: int, window: int) -> Sample:
    """Return the window that begins at `start`, with the neighbouring samples on both sides."""
    origin = episode.origin.with_index(index, start, min(start + window, episode.origin.end_ns))
    rows = {id(t): _rows(t, start, start + window) for t in episode.times}
    pieces = {id(t): t[rows[id(t)]] for t in episode.times}
    values = tuple(v[rows[id(t)]] for t, v in zip(episode.times, episode.values, strict=True))
    return Sample(episode.layout, tuple(pieces[id(t)] for t in episode.times), values, origin, window)


def duration_to_ns(name: str, seconds: float | None) -> int | None:
    """Convert a duration in seconds to nanoseconds, exactly as typed."""
    if seconds is None:
        return None
    if not (is_number(seconds) and 0 < seconds < LATEST_S and round(seconds * 1e9) > 0):
        raise InputError(f"{name}={seconds} is no length of time; give seconds above 0, like 2.0.")
    return round(Fraction(str(seconds)) * 10**9)


def _track(stream: Stream, sort: bool) -> Track:
    stamps = stream.times
    result = build_track(stream.name, stamps, 0.0, True, sort)
    if stamps.dtype != np.int64 and result.distinct < len(np.unique(stamps)):
        raise InputError(
            f"stream '{stream.name}' has stamps less than a nanosecond apart; multiply its times by a thousand or more."
        )
    return result


def _rows(times: Array, start: int, end: int) -> slice:
    """Return the stamps from start to end and two different ones beyond each edge, as cubic needs."""
    low = int(np.searchsorted(times, start, "right")) - 1
    if low > 0:
        low = int(np.searchsorted(times, times[low], "left")) - 1
    high = int(np.searchsorted(times, end, "left"))
    for _ in range(2):
        if high < len(times):
            high = int(np.searchsorted(times, times[high], "right"))
    return slice(max(low, 0), high)
