"""Streams of several rates on one clock.

>>> import numpy as np
>>> from ridgeline.trajectory.stream import Stream, align
>>> gyro = Stream("gyro", np.arange(0, 11) * 100_000_000, np.linspace(0.0, 1.0, 11))
>>> gear = Stream("gear", np.array([0, 500_000_000, 1_000_000_000]), np.array([1, 2, 3]))
>>> both = align([gyro, gear], hz=4)
>>> both.times.tolist()
[0, 250000000, 500000000, 750000000, 1000000000]
>>> both.columns["gear"].tolist()
[1, 1, 2, 2, 3]

Stamps are int64 nanoseconds or float64 seconds; as soon as one stream has nanoseconds, the clock has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from ridgeline.errors import InputError, unknown
from ridgeline.machine import device_named
from ridgeline.trajectory import arguments
from ridgeline.trajectory.guess import check_kind, guess_kind, matching
from ridgeline.trajectory.timeline import SPANS, Array, Track, check_span, grid, nanoseconds, near, spanned, track

Span = Literal["intersection", "union", "auto"]

NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


@dataclass(frozen=True, eq=False)
class Stream:
    """One quantity over time: `times` [S], `values` [S] or [S, D].

    Integer stamps are in `unit` (nanoseconds unless said) and kept as int64 nanoseconds, exactly; others become
    float64 seconds. `kind` is guessed from names and values if left out. `columns` names the D columns.
    """

    name: str
    times: Array
    values: Array
    kind: str | None = None
    unit: str | None = None
    columns: tuple[str, ...] = ()
    episode: str = ""  # streams of different episodes never share a clock

    def __post_init__(self) -> None:
        values = arguments.plain(f"stream '{self.name}': values", self.values)
        if values.dtype.kind not in "fiub":
            raise InputError(f"stream '{self.name}' holds {values.dtype} values; give numbers, or leave it out.")
        times = stamps(self.name, arguments.plain(f"stream '{self.name}': times", self.times), self.unit)
        if values.ndim not in (1, 2) or len(values) != len(times):
            raise InputError(
                f"stream '{self.name}' has {len(times)} stamps but values {list(values.shape)}; give [S] or [S, D]."
            )
        width = 1 if values.ndim == 1 else values.shape[1]
        columns = self.columns or ((self.name,) if values.ndim == 1 else indexed(self.name, width))
        if len(columns) != width:
            raise InputError(f"stream '{self.name}' has {width} columns but {len(columns)} column names.")
        kind = check_kind(self.kind) if self.kind else guess_kind(self.name, columns, values)
        if kind == "slerp" and (values.ndim == 1 or width != 4):
            raise InputError(f"stream '{self.name}' has {width} columns, and slerp needs the 4 of a quaternion.")
        settled = {"values": values, "times": times, "columns": tuple(columns), "kind": kind}
        settled["unit"] = "ns" if times.dtype == np.int64 else "s"
        for name, value in settled.items():
            object.__setattr__(self, name, value)

    @property
    def how(self) -> str:
        """The kind, as settled."""
        return self.kind or "linear"

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True, eq=False)
class Aligned:
    """Streams on one clock: `columns[name]` [T] or [T, D], with `masks[name]` [T] False where nothing is known.

    Masked floats are NaN, masked integers 0. `labels` names the columns, `warnings` says what was left out.
    """

    times: Array
    columns: Mapping[str, Array]
    masks: Mapping[str, Array]
    labels: Mapping[str, tuple[str, ...]]
    kinds: Mapping[str, str] = field(default_factory=dict)
    hz: float | None = None
    warnings: tuple[str, ...] = ()

    def flat(self) -> Iterator[tuple[str, Array, Array]]:
        """(column name, values [T], mask [T]) for every column of every stream."""
        for name, values in self.columns.items():
            for i, label in enumerate(self.labels[name]):
                yield label, values if values.ndim == 1 else values[:, i], self.masks[name]


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
    """Bring `streams` onto one clock: a grid of `hz`, or the stamps `at`.

    `tolerance`, `max_gap` and `shifts` are in seconds. A target farther than `tolerance` from the nearest sample
    of a stream, inside a gap longer than `max_gap`, or outside a stream's span is masked there. `shifts` moves
    streams by name (or all below a name).

    `span` is where the grid runs: "intersection" where every stream has data, "union" where any has, and "auto"
    where the streams that run through the recording have: those with at least 50 samples that cover half of the
    longest such stream. The others are masked outside their own span instead of shrinking everybody's.

    A stream with fewer than two different stamps is left out with a warning; stamps that go back are an error
    unless `sort`.
    """
    _check_request(streams, hz, at, span, tolerance=tolerance, max_gap=max_gap)
    device = device_named(device)
    whole = any(s.times.dtype == np.int64 for s in streams) or (at is not None and np.asarray(at).dtype.kind in "iu")
    moves = _moves(streams, shifts or {})
    tracks: dict[str, Track] = {}
    seen: dict[tuple[int, float], Track] = {}  # streams of one topic share their stamps: look at them once
    lonely: dict[str, list[str]] = {}
    for stream in streams:
        key = (id(stream.times), moves.get(stream.name, 0.0))
        if key not in seen:
            seen[key] = track(stream.name, stream.times, key[1], whole, sort)
        if seen[key].distinct < 2:
            lonely.setdefault("one stamp only" if seen[key].distinct else "no samples", []).append(stream.name)
        else:
            tracks[stream.name] = seen[key]
    warnings = [f"left out for {why}: {_named(names)}." for why, names in lonely.items()]
    if not tracks:
        raise InputError(f"no stream has two different stamps; {' '.join(warnings)}")
    if hz is not None:
        start, end = spanned(tracks.values(), span)
        check_span(start, end, hz, whole, tracks.values())
        ticks = grid(start, end, Fraction(str(hz)), whole)
    else:
        ticks = stamps("at", np.asarray(at), None)
        ticks = nanoseconds("at", ticks) if whole and ticks.dtype != np.int64 else ticks
    columns: dict[str, Array] = {}
    masks: dict[str, Array] = {}
    known = {id(t): near(t, ticks, tolerance, whole) for t in seen.values() if t.distinct > 1}
    kept = [s for s in streams if s.name in tracks]
    for stream in kept:
        line = tracks[stream.name]
        columns[stream.name], masks[stream.name] = _column(stream, line, ticks, known[id(line)], max_gap, whole, device)
    empty = [name for name, mask in masks.items() if len(ticks) and not mask.any()]
    if empty:
        warnings.append(f"nothing is known on this clock of {_named(empty)}; a larger max_gap or tolerance may help.")
    labels = {s.name: s.columns for s in kept}
    return Aligned(ticks, columns, masks, labels, {s.name: s.how for s in kept}, hz, tuple(warnings))


def indexed(name: str, width: int) -> tuple[str, ...]:
    return tuple(f"{name}[{i}]" for i in range(width))


def _check_request(
    streams: Sequence[Stream], hz: float | None, at: Array | None, span: str, **limits: float | None
) -> None:
    if (hz is None) == (at is None):
        raise InputError("align needs a clock: give either hz= or at=.")
    arguments.rate(hz)
    if span not in SPANS:
        raise unknown("span", span, SPANS)
    for name, limit in limits.items():
        arguments.seconds(name, limit)
    if not streams:
        raise InputError("there is no stream to align; give at least one.")
    names = [s.name for s in streams]
    twice = sorted({n for n in names if names.count(n) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise InputError(f"two streams are called '{twice[0]}'; align one episode at a time, or rename one.")


def _moves(streams: Sequence[Stream], shifts: Mapping[str, float]) -> dict[str, float]:
    names = [s.name for s in streams]
    for word, shift in shifts.items():
        if not (arguments.number(shift) and math.isfinite(shift)):
            raise InputError(f"shifts[{word!r}] is {shift}; give seconds.")
    return {name: float(shift) for word, shift in shifts.items() for name in matching(names, word)}


def stamps(name: str, times: Array, unit: str | None) -> Array:
    """Stamps as streams keep them: int64 nanoseconds from integers, exactly; float64 seconds from the rest."""
    if unit is not None and unit not in NS:
        raise unknown("unit of time", unit, NS)
    if times.ndim != 1 or times.dtype.kind not in "fiu":
        raise InputError(f"stream '{name}' has stamps {list(times.shape)} of {times.dtype}; give [S] numbers.")
    if times.dtype.kind in "iu":
        scale = NS[unit or "ns"]
        farthest = max(int(times.max()), -int(times.min())) if times.size else 0
        if farthest > np.iinfo(np.int64).max // scale:
            raise InputError(f"stream '{name}': a stamp of {farthest} {unit or 'ns'} is no time; the file is damaged.")
        found: Array = times.astype(np.int64, copy=False)
        return found if scale == 1 else found * scale
    bad = np.flatnonzero(~np.isfinite(times))
    if bad.size:
        raise InputError(f"stream '{name}': stamp {bad[0]} is {times[bad[0]]}; drop that sample or mend its stamp.")
    seconds: Array = times.astype(np.float64, copy=False)
    return seconds if unit in (None, "s") else seconds * (NS[unit] / 1e9)


def _column(
    stream: Stream, line: Track, ticks: Array, there: Array, max_gap: float | None, whole: bool, device: str
) -> tuple[Array, Array]:
    values = stream.values if line.order is None else stream.values[line.order]
    gap = None if max_gap is None else _limit(stream.times, max_gap, whole)
    if values.dtype.kind != "f" and stream.how in ("previous", "nearest"):
        # The index of the sample is resampled, so that integers of any width come back as they were.
        index, mask = _resampled(np.arange(len(values), dtype=np.float64), line, ticks, stream.how, gap, device)
        mask = mask & there
        out: Array = values[np.where(mask, index, 0).astype(np.int64)]
        out[~mask] = 0
        return out, mask
    floats = values if values.dtype.kind == "f" else values.astype(np.float64)
    out, mask = _resampled(floats, line, ticks, stream.how, gap, device)
    mask = mask & there
    out[~mask] = np.nan
    return out, mask


def _limit(stamps: Array, max_gap: float, whole: bool) -> float:
    """max_gap on the clock. Seconds in float64 are rarely what they were typed as, least of all those since 1970."""
    slack = 0.0 if stamps.dtype.kind != "f" else 1e-9 + 2 * float(np.spacing(np.abs(stamps).max(initial=0.0)))
    return arguments.limit_ns(max_gap + slack) if whole else max_gap + slack


def _resampled(
    values: Array, line: Track, ticks: Array, kind: str, gap: float | None, device: str
) -> tuple[Array, Array]:
    from ridgeline.trajectory.resampling import resample

    ask: dict[str, Any] = {"kind": kind, "outside": "clamp", "max_gap": gap, "return_mask": True}
    if device == "cpu":
        out, mask = resample(np.ascontiguousarray(values), line.times, ticks, **ask)
        return np.asarray(out), np.asarray(mask)
    import torch

    there = [torch.as_tensor(np.ascontiguousarray(a), device=device) for a in (values, line.times, ticks)]
    out, mask = resample(*there, **ask)
    return out.cpu().numpy(), mask.cpu().numpy()


def _named(names: Sequence[str], most: int = 6) -> str:
    topics = list(dict.fromkeys(n.rpartition("/")[0] or n for n in names)) if len(names) > most else list(names)
    rest = f" and {len(topics) - most} more" if len(topics) > most else ""
    return f"{', '.join(topics[:most])}{rest}"
