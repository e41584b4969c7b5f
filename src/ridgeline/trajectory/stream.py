"""Streams of several rates on one clock: `Stream`, `align`, `describe_stream`, and the clock itself.

>>> import numpy as np
>>> gyro = Stream("gyro", np.arange(0, 11) * 100_000_000, np.linspace(0.0, 1.0, 11))
>>> gear = Stream("gear", np.array([0, 500_000_000, 1_000_000_000]), np.array([1, 2, 3]))
>>> both = align([gyro, gear], hz=4)
>>> both.times.tolist()
[0, 250000000, 500000000, 750000000, 1000000000]
>>> both.columns["gear"].tolist()
[1, 1, 2, 2, 3]
>>> build_grid(0, 10**9, Fraction(3), integer_clock=True).tolist()
[0, 333333333, 666666667, 1000000000]
>>> describe_stream(Stream("x", np.array([0, 10, 20, 20, 90]) * 1_000_000, np.zeros(5))).gaps
1

Stamps are int64 nanoseconds or float64 seconds. If one stream has nanoseconds, the common clock has nanoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from ridgeline.errors import InputError, unknown
from ridgeline.machine import resolve_device
from ridgeline.trajectory import arguments
from ridgeline.trajectory.arguments import INT64_MAX, to_limit_ns
from ridgeline.trajectory.columns import check_kind, guess_kind, match_names
from ridgeline.trajectory.turns import undo_sign_flips

Span = Literal["intersection", "union", "auto"]

NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
GAP = 3.0  # times the median step
Array = np.ndarray[Any, Any]
LATEST_S = 9.2e9  # int64 nanoseconds end a little later
SPANS = ("intersection", "union", "auto")
DENSE = 50  # samples; with fewer, the edges of a stream cost more than 2 % of the log
COVER = 0.5  # of the longest dense stream's duration
MAX_TICKS = 100_000_000  # a day at 1 kHz is 86 million
MAX_TICKS_PER_SAMPLE = 1_000  # beyond ALWAYS_ALLOWED_TICKS: 1 Hz resampled to 1 kHz
ALWAYS_ALLOWED_TICKS = 1_000_000


@dataclass(frozen=True)
class EpisodeInfo:
    """What a dataset says about an episode beside its streams; a LeRobot dataset takes it over."""

    tasks: tuple[tuple[float, str], ...] = ()  # (stamp from which it holds, text), in the order of time
    robot_type: str = ""
    features: tuple[tuple[str, tuple[str, ...]], ...] = ()  # names of LeRobot features, each with those of its columns


@dataclass(frozen=True, eq=False)
class Stream:
    """One quantity over time: `times` [S], `values` [S] or [S, D].

    Integer stamps are in `unit` (default: ns) and become int64 nanoseconds, exactly; others become float64 seconds.
    Without `kind`, the stream guesses it from names and values. `columns` names the D columns.
    """

    name: str
    times: Array
    values: Array
    kind: str | None = None
    unit: str | None = None
    columns: tuple[str, ...] = ()
    episode: str = ""  # streams of different episodes never share a clock
    info: EpisodeInfo = EpisodeInfo()

    def __post_init__(self) -> None:
        values = arguments.as_native_array(f"stream '{self.name}': values", self.values)
        if values.dtype.kind not in "fiub":
            raise InputError(f"stream '{self.name}' holds {values.dtype} values; give numbers, or leave it out.")
        times = to_stamps(self.name, arguments.as_native_array(f"stream '{self.name}': times", self.times), self.unit)
        if values.ndim not in (1, 2) or len(values) != len(times):
            raise InputError(
                f"stream '{self.name}' has {len(times)} stamps but values {list(values.shape)}; give [S] or [S, D]."
            )
        width = 1 if values.ndim == 1 else values.shape[1]
        columns = self.columns or ((self.name,) if values.ndim == 1 else number_columns(self.name, width))
        if len(columns) != width:
            raise InputError(f"stream '{self.name}' has {width} columns but {len(columns)} column names.")
        kind = check_kind(self.kind) if self.kind else guess_kind(self.name, columns, values)
        if kind == "slerp" and (values.ndim == 1 or width != 4):
            raise InputError(f"stream '{self.name}' has {width} columns, and slerp needs the 4 of a quaternion.")
        resolved = {"values": values, "times": times, "columns": tuple(columns), "kind": kind}
        resolved["unit"] = "ns" if times.dtype == np.int64 else "s"
        for name, value in resolved.items():
            object.__setattr__(self, name, value)

    @property
    def resolved_kind(self) -> str:
        """The interpolation kind, given or guessed."""
        return self.kind or "linear"

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True, eq=False)
class Aligned:
    """Streams on one clock: `columns[name]` [T] or [T, D]; `masks[name]` [T] is True where all its columns are known.

    Unknown floats are NaN, unknown integers 0; `valid(name)` says it per column. `labels` names the columns; `warnings`
    lists the streams left out.
    """

    times: Array
    columns: Mapping[str, Array]
    masks: Mapping[str, Array]
    labels: Mapping[str, tuple[str, ...]]
    kinds: Mapping[str, str] = field(default_factory=dict)
    hz: float | None = None
    warnings: tuple[str, ...] = ()
    info: EpisodeInfo = EpisodeInfo()

    def valid(self, name: str) -> Array:
        """Return booleans [T] or [T, D]: which values of a stream are known."""
        return find_valid(self.columns[name], self.masks[name])

    def flat(self) -> Iterator[tuple[str, Array, Array]]:
        """Iterate over (column name, values [T], mask [T]) of every column of every stream."""
        for name, values in self.columns.items():
            valid = self.valid(name)
            for i, label in enumerate(self.labels[name]):
                yield (label, values, valid) if values.ndim == 1 else (label, values[:, i], valid[:, i])


def align(
    streams: Sequence[Stream],
    *,
    hz: float | None = None,
    at: Array | None = None,
    tolerance: float | None = None,
    shifts: Mapping[str, float] | None = None,
    span: Span = "intersection",
    max_gap: float | None = None,
    sort: bool = False,
    device: str = "cpu",
) -> Aligned:
    """Resample `streams` onto one clock: a grid of `hz`, or the stamps `at`.

    `tolerance`, `max_gap` and `shifts` are in seconds. A target farther than `tolerance` from the nearest sample
    of a stream, inside a gap longer than `max_gap`, or outside a stream's span is masked there. `shifts` moves
    streams by name (or all below a name).

    `span` sets the start and end of the grid. "intersection": where every stream has data. "union": where any stream
    has data. "auto": where every long stream has data; a long stream has at least 50 samples and covers half of the
    longest such stream. Shorter streams are masked outside their span and do not shrink the grid.

    A stream with fewer than two different stamps is left out with a warning. Stamps that go back are an error
    without `sort`. Returns `Aligned`; raises InputError.
    """
    _check_request(streams, hz, at, span, tolerance=tolerance, max_gap=max_gap)
    device = resolve_device(device)
    integer_clock = any(s.times.dtype == np.int64 for s in streams) or (
        at is not None and np.asarray(at).dtype.kind in "iu"
    )
    shifts_by_name = _resolve_shifts(streams, shifts or {})
    tracks: dict[str, Track] = {}
    tracks_by_clock: dict[tuple[int, float], Track] = {}  # streams of one topic share their stamps; check them once
    skipped: dict[str, list[str]] = {}
    for stream in streams:
        key = (id(stream.times), shifts_by_name.get(stream.name, 0.0))
        if key not in tracks_by_clock:
            tracks_by_clock[key] = build_track(stream.name, stream.times, key[1], integer_clock, sort)
        if tracks_by_clock[key].distinct < 2:
            skipped.setdefault("one stamp only" if tracks_by_clock[key].distinct else "no samples", []).append(
                stream.name
            )
        else:
            tracks[stream.name] = tracks_by_clock[key]
    warnings = [f"left out for {why}: {join_names(names)}." for why, names in skipped.items()]
    if not tracks:
        raise InputError(f"no stream has two different stamps; {' '.join(warnings)}")
    if hz is not None:
        start, end = find_span(tracks.values(), span)
        check_tick_count(start, end, hz, integer_clock, tracks.values())
        ticks = build_grid(start, end, Fraction(str(hz)), integer_clock)
    else:
        ticks = to_stamps("at", np.asarray(at), None)
        ticks = seconds_to_ns("at", ticks) if integer_clock and ticks.dtype != np.int64 else ticks
    columns: dict[str, Array] = {}
    masks: dict[str, Array] = {}
    known = {
        id(t): find_covered(t, ticks, tolerance, integer_clock) for t in tracks_by_clock.values() if t.distinct > 1
    }
    aligned_streams = [s for s in streams if s.name in tracks]
    for stream in aligned_streams:
        line = tracks[stream.name]
        columns[stream.name], masks[stream.name] = _column(
            stream, line, ticks, known[id(line)], max_gap, integer_clock, device
        )
    empty = [name for name, mask in masks.items() if len(ticks) and not find_valid(columns[name], mask).any()]
    no_numbers = [s.name for s in aligned_streams if s.name in empty and not np.isfinite(s.values).any()]
    if no_numbers:
        warnings.append(f"the recording has only NaN or infinity in {join_names(no_numbers)}.")
    if unreached := [name for name in empty if name not in no_numbers]:
        warnings.append(
            f"no value on this clock is known of {join_names(unreached)}; a larger max_gap or tolerance may help."
        )
    labels = {s.name: s.columns for s in aligned_streams}
    kinds = {s.name: s.resolved_kind for s in aligned_streams}
    info = next((s.info for s in aligned_streams if s.info != EpisodeInfo()), EpisodeInfo())
    return Aligned(ticks, columns, masks, labels, kinds, hz, tuple(warnings), info)


def find_valid(values: Array, mask: Array) -> Array:
    """Return which values are known, in the shape of `values`; `mask` [T] decides for integers, which have no NaN."""
    if values.dtype.kind == "f":
        return ~np.isnan(values)
    known: Array = mask if values.ndim == 1 else np.broadcast_to(mask[:, None], values.shape)
    return known


@dataclass(frozen=True)
class StreamStats:
    """Statistics of one stream's stamps; all times are in seconds."""

    name: str
    columns: int
    samples: int
    dtype: str
    kind: str
    start_s: float
    end_s: float
    rate_hz: float | None  # from the median step; None with fewer than two different stamps
    jitter_s: float | None  # half the range of the middle 90 % of the steps
    gaps: int  # steps longer than three median steps
    longest_gap_s: float
    duplicates: int
    backward: int  # stamps earlier than the one before
    episode: str = ""
    type: str = "number"  # or image: a camera
    codec: str | None = None  # of a camera: jpeg, h264, or the encoding of its pixels
    width: int | None = None
    height: int | None = None
    drops: int | None = None  # pictures that are missing at the camera's rate
    faults: int | None = None  # pictures that cannot be decoded, by their headers


def describe_stream(stream: Stream) -> StreamStats:
    """Measure the rate, jitter, gaps and duplicates of a stream's stamps."""
    scale = 1e-9 if stream.times.dtype == np.int64 else 1.0
    times = stream.times
    raw = np.diff(times)
    steps = np.diff(np.unique(times)).astype(np.float64) * scale
    median = float(np.median(steps)) if steps.size else None
    low, high = np.quantile(steps, [0.05, 0.95]) if steps.size else (0.0, 0.0)
    gaps = steps[steps > GAP * median] if median else steps[:0]
    return StreamStats(
        name=stream.name,
        columns=len(stream.columns),
        samples=len(times),
        dtype=stream.values.dtype.name,
        kind=stream.resolved_kind,
        start_s=float(times.min()) * scale if len(times) else 0.0,
        end_s=float(times.max()) * scale if len(times) else 0.0,
        rate_hz=1 / median if median else None,
        jitter_s=float(high - low) / 2 if median else None,
        gaps=int(gaps.size),
        longest_gap_s=float(gaps.max()) if gaps.size else 0.0,
        duplicates=int(np.count_nonzero(raw == 0)),
        backward=int(np.count_nonzero(raw < 0)),
        episode=stream.episode,
    )


def number_columns(name: str, width: int) -> tuple[str, ...]:
    return tuple(f"{name}[{i}]" for i in range(width))


def to_stamps(name: str, times: Array, unit: str | None) -> Array:
    """Convert stamps to the types that streams use: integers to int64 nanoseconds, floats to float64 seconds."""
    if unit is not None and unit not in NS:
        raise unknown("unit of time", unit, NS)
    if times.ndim != 1 or times.dtype.kind not in "fiu":
        raise InputError(f"stream '{name}' has stamps {list(times.shape)} of {times.dtype}; give [S] numbers.")
    if times.dtype.kind in "iu":
        scale = NS[unit or "ns"]
        farthest = max(int(times.max()), -int(times.min())) if times.size else 0
        if farthest > np.iinfo(np.int64).max // scale:
            raise InputError(f"stream '{name}': a stamp of {farthest} {unit or 'ns'} is no time; the file is damaged.")
        integers: Array = times.astype(np.int64, copy=False)
        return integers if scale == 1 else integers * scale
    bad = np.flatnonzero(~np.isfinite(times))
    if bad.size:
        raise InputError(f"stream '{name}': stamp {bad[0]} is {times[bad[0]]}; drop that sample or mend its stamp.")
    seconds: Array = times.astype(np.float64, copy=False)
    return seconds if unit in (None, "s") else seconds * (NS[unit] / 1e9)


@dataclass(frozen=True, eq=False)
class Track:
    """The stamps of a stream on the common clock, in order."""

    name: str
    times: Array
    order: Array | None  # sort order of the samples; None if they were in order
    distinct: int

    @property
    def length(self) -> float:
        return float(self.times[-1]) - float(self.times[0])  # the distance of damaged stamps may exceed int64


def build_track(name: str, stamps: Array, shift: float, integer_clock: bool, sort: bool) -> Track:
    times = seconds_to_ns(f"stream '{name}'", stamps) if integer_clock and stamps.dtype != np.int64 else stamps
    if shift:
        times = _shift(name, times, shift) if integer_clock else times + shift
    order: Array | None = None
    back = np.flatnonzero(times[1:] < times[:-1]) + 1
    if back.size:
        if not sort:
            raise InputError(
                f"stream '{name}': stamp {back[0]} ({_seconds(times[back[0]]):.6f} s) is earlier than the one "
                f"before it ({_seconds(times[back[0] - 1]):.6f} s); sort=True (--sort) puts them in order."
            )
        order = np.argsort(times, kind="stable")
        times = times[order]
    distinct = int(np.count_nonzero(times[1:] != times[:-1])) + 1 if len(times) else 0
    return Track(name, times, order, distinct)


def seconds_to_ns(what: str, seconds: Array) -> Array:
    if seconds.size and np.abs(seconds).max() > LATEST_S:
        worst = seconds[np.abs(seconds).argmax()]
        raise InputError(f"{what}: a stamp of {worst:g} s is no time; if it has another unit, give unit=.")
    stamps: Array = np.rint(seconds * 1e9).astype(np.int64)
    return stamps


def find_span(tracks: Iterable[Track], span: str) -> tuple[Any, Any]:
    """Return the first and last stamp of the grid; `align` documents the rules."""
    unique = list({id(t): t for t in tracks}.values())
    if span == "union":
        return min(t.times[0] for t in unique), max(t.times[-1] for t in unique)
    if span == "auto":
        dense = [t for t in unique if t.distinct >= DENSE] or unique
        longest = max(t.length for t in dense)
        unique = [t for t in dense if t.length >= longest * COVER]
    first = max(unique, key=lambda t: t.times[0])
    last = min(unique, key=lambda t: t.times[-1])
    if first.times[0] > last.times[-1]:
        raise InputError(
            f"streams '{last.name}' ({_format_span(last)}) and '{first.name}' ({_format_span(first)}) do not overlap; "
            "shift one of them, leave one out, or use span 'union'."
        )
    return first.times[0], last.times[-1]


def build_grid(start: Any, end: Any, hz: Fraction, integer_clock: bool) -> Array:
    """Return ticks of `hz` from `start` to `end`; each is rounded separately, so a long grid does not drift."""
    if not integer_clock:
        count = int(np.floor((float(end) - float(start)) * float(hz) * (1 + 1e-12) + 1e-9)) + 1
        ticks: Array = float(start) + np.arange(count, dtype=np.float64) * hz.denominator / hz.numerator
        return np.minimum(ticks, float(end))
    period, rest = divmod(10**9 * hz.denominator, hz.numerator)
    count = int(Fraction(int(end) - int(start)) * hz / 10**9) + 1
    if count > 1 and period > INT64_MAX:
        raise InputError(
            f"hz={float(hz):g} has one tick in {period / 1e9:.3g} s, longer than int64 nanoseconds; give a higher rate."
        )
    k, period = np.arange(count, dtype=np.int64), min(period, INT64_MAX)
    if count * rest * 2 < 2**62:
        fine = (k * (rest * 2) + hz.numerator) // (2 * hz.numerator)
    else:  # a rate with many digits over a long log exceeds int64; use Python's integers
        fine = np.array([(i * rest * 2 + hz.numerator) // (2 * hz.numerator) for i in range(count)], np.int64)
    ticks_ns: Array = np.int64(start) + k * np.int64(period) + fine
    return ticks_ns


def find_covered(track: Track, ticks: Array, tolerance: float | None, integer_clock: bool) -> Array:
    """Return bool [T]: ticks inside the track's span and within `tolerance` of a sample."""
    inside: Array = (ticks >= track.times[0]) & (ticks <= track.times[-1])
    if tolerance is None or not len(ticks):
        return inside
    right = np.searchsorted(track.times, ticks).clip(1, len(track.times) - 1)
    nearest = np.minimum(np.abs(ticks - track.times[right - 1]), np.abs(track.times[right] - ticks))
    # Half a nanosecond of slack: most decimal seconds are not exact in float64.
    close: Array = nearest <= (to_limit_ns(tolerance) if integer_clock else tolerance + 5e-10)
    return inside & close


def check_tick_count(start: Any, end: Any, hz: float, integer_clock: bool, tracks: Iterable[Track]) -> None:
    """Refuse a clock with far too many ticks, which a single damaged stamp causes."""
    ticks = (float(end) - float(start)) * hz / (1e9 if integer_clock else 1)
    longest = max(tracks, key=lambda t: t.length)
    if ticks > MAX_TICKS or (ticks > ALWAYS_ALLOWED_TICKS and ticks > MAX_TICKS_PER_SAMPLE * len(longest.times)):
        raise InputError(
            f"that clock has {ticks:.3g} ticks: the stamps of '{longest.name}' reach from {_format_span(longest)}; "
            "mend or leave out that stream (`ridgeline streams` shows its gaps)."
        )


def _check_request(
    streams: Sequence[Stream], hz: float | None, at: Array | None, span: str, **limits: float | None
) -> None:
    if (hz is None) == (at is None):
        raise InputError("align needs a clock: give either hz= or at=.")
    arguments.check_rate(hz)
    if span not in SPANS:
        raise unknown("span", span, SPANS)
    for name, limit in limits.items():
        arguments.check_seconds(name, limit)
    if not streams:
        raise InputError("there is no stream to align; give at least one.")
    names = [s.name for s in streams]
    twice = sorted({n for n in names if names.count(n) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise InputError(f"two streams are called '{twice[0]}'; align one episode at a time, or rename one.")


def _resolve_shifts(streams: Sequence[Stream], shifts: Mapping[str, float]) -> dict[str, float]:
    names = [s.name for s in streams]
    for word, shift in shifts.items():
        if not (arguments.is_number(shift) and math.isfinite(shift)):
            raise InputError(f"shifts[{word!r}] is {shift}; give seconds.")
    return {name: float(shift) for word, shift in shifts.items() for name in match_names(names, word)}


def _column(
    stream: Stream, line: Track, ticks: Array, covered: Array, max_gap: float | None, integer_clock: bool, device: str
) -> tuple[Array, Array]:
    values = stream.values if line.order is None else stream.values[line.order]
    if stream.resolved_kind == "slerp":
        values = undo_sign_flips(values)
    gap = None if max_gap is None else _limit(stream.times, max_gap, integer_clock)
    if values.dtype.kind != "f" and stream.resolved_kind in ("previous", "nearest"):
        # Resample the index of the sample, so that integers of any width stay exact.
        index, mask = _resample(
            np.arange(len(values), dtype=np.float64), line, ticks, stream.resolved_kind, gap, device
        )
        mask = mask & covered
        out: Array = values[np.where(mask, index, 0).astype(np.int64)]
        out[~mask] = 0
        return out, mask
    floats = values if values.dtype.kind == "f" else values.astype(np.float64)
    out, mask = _resample(floats, line, ticks, stream.resolved_kind, gap, device)
    out[~(mask & covered)] = np.nan
    valid: Array = ~np.isnan(out)  # False also next to a NaN of the recording
    return out, valid if out.ndim == 1 else np.logical_and.reduce(valid, axis=1)


def _limit(stamps: Array, max_gap: float, integer_clock: bool) -> float:
    """Convert max_gap to the clock's unit, with slack for the rounding of float64 seconds since 1970."""
    slack = 0.0 if stamps.dtype.kind != "f" else 1e-9 + 2 * float(np.spacing(np.abs(stamps).max(initial=0.0)))
    return arguments.to_limit_ns(max_gap + slack) if integer_clock else max_gap + slack


def _resample(
    values: Array, line: Track, ticks: Array, kind: str, gap: float | None, device: str
) -> tuple[Array, Array]:
    from ridgeline.trajectory.resampling import resample

    options: dict[str, Any] = {"kind": kind, "outside": "clamp", "max_gap": gap, "return_mask": True}
    if device == "cpu":
        out, mask = resample(np.ascontiguousarray(values), line.times, ticks, **options)
        return np.asarray(out), np.asarray(mask)
    import torch

    tensors = [torch.as_tensor(np.ascontiguousarray(a), device=device) for a in (values, line.times, ticks)]
    out, mask = resample(*tensors, **options)
    return out.cpu().numpy(), mask.cpu().numpy()


def join_names(names: Sequence[str], most: int = 6) -> str:
    """Return names in one line: all of them, or with more than `most` their topics, the first ones."""
    topics = list(dict.fromkeys(n.rpartition("/")[0] or n for n in names)) if len(names) > most else list(names)
    rest = f" and {len(topics) - most} more" if len(topics) > most else ""
    return f"{', '.join(topics[:most])}{rest}"


def _shift(name: str, times: Array, shift: float) -> Array:
    by = round(shift * 1e9)
    ends = (int(times.min()) + by, int(times.max()) + by) if times.size else (by, by)
    if max(abs(end) for end in ends) > INT64_MAX:
        raise InputError(f"stream '{name}': a shift of {shift:g} s leads beyond a clock of nanoseconds; give seconds.")
    return times + np.int64(by) if times.size else times


def _seconds(stamp: Any) -> float:
    return float(stamp) / 1e9 if isinstance(stamp, np.integer) else float(stamp)


def _format_span(track: Track) -> str:
    return f"{_seconds(track.times[0]):.3f} to {_seconds(track.times[-1]):.3f} s"
