"""Cut a recording into episodes: at pauses, at the messages of a topic, or by the values of a stream.

gap=S          a pause of more than S seconds ends an episode
marker=TOPIC   each message of TOPIC starts an episode
while=STREAM   an episode is where STREAM is not 0; everything else is left out
change=STREAM  another value of STREAM starts an episode

>>> parse_cut("gap=2.5")
Cut(rule='gap', value='2.5')
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeline.errors import InputError, unknown
from ridgeline.trajectory.columns import match_names
from ridgeline.trajectory.stream import Array, Stream

RULES = ("gap", "marker", "while", "change")
Bounds = tuple[Any, Any]  # the first stamp of an episode, and the first one after it


@dataclass(frozen=True)
class Cut:
    """A rule, and its seconds or the name of its stream."""

    rule: str
    value: str

    @property
    def topic(self) -> str | None:
        """The stream or topic that the rule needs."""
        return None if self.rule == "gap" else self.value


def parse_cut(text: str) -> Cut:
    """Read RULE=VALUE; raise InputError if it is none."""
    rule, equals, value = text.partition("=")
    if not equals or not value:
        raise InputError(f"--cut '{text}' is not of the form RULE=VALUE, like gap=2 or marker=/button.")
    if rule not in RULES:
        raise unknown("rule of --cut", rule, RULES)
    if rule == "gap":
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not seconds > 0 or math.isinf(seconds):
            raise InputError(f"--cut gap={value}: give a number of seconds above 0.")
    return Cut(rule, value)


def find_bounds(
    cuts: Sequence[Cut], streams: Sequence[Stream], marks: Mapping[str, Array], main: Sequence[str]
) -> list[Bounds]:
    """Return the time of each episode. `main` names the streams whose pauses count; () means a pause of all."""
    if not streams:
        raise InputError("--cut needs a stream of numbers, and the recording has only images.")
    integer = any(s.times.dtype == np.int64 for s in streams)
    clocks = [_to_clock(s.times, integer) for s in streams if len(s)]
    low, high = min(t.min() for t in clocks), max(t.max() for t in clocks)
    bounds: list[Bounds] = [(low, high + 1 if integer else math.nextafter(high, math.inf))]
    for cut in cuts:
        parts = _find_parts(cut, streams, marks, main, integer)
        bounds = [(max(a, c), min(b, d)) for a, b in bounds for c, d in parts if max(a, c) < min(b, d)]
    return bounds


def slice_streams(streams: Sequence[Stream], bounds: Bounds, episode: str) -> list[Stream]:
    """Return the samples of an episode; a value that holds until the next one also counts from the start on."""
    integer = any(s.times.dtype == np.int64 for s in streams)
    out = []
    for stream in streams:
        times = _to_clock(stream.times, integer)
        rows = np.flatnonzero((times >= bounds[0]) & (times < bounds[1]))
        own_times = times[rows]
        if stream.resolved_kind == "previous":
            before = np.flatnonzero(times < bounds[0])
            if before.size and not (own_times.size and own_times[0] == bounds[0]):
                rows = np.concatenate([before[-1:], rows])
                own_times = np.concatenate([np.asarray([bounds[0]], times.dtype), own_times])
        out.append(replace(stream, times=own_times, values=stream.values[rows], unit=None, episode=episode))
    return out


def count_inside(times: Array, bounds: Bounds | None) -> Array:
    """Return which stamps lie in an episode; None is the whole recording."""
    if bounds is None:
        return np.ones(len(times), bool)
    clock = _to_clock(times, isinstance(bounds[0], int | np.integer))
    return np.asarray((clock >= bounds[0]) & (clock < bounds[1]))


def drop_short(
    episodes: Iterable[tuple[Bounds, Sequence[Stream]]], needed: Sequence[str], report: Callable[[str], None]
) -> list[tuple[Bounds, Sequence[Stream]]]:
    """Return the episodes in which every needed stream has two stamps; report the others."""
    out = []
    for number, (bounds, streams) in enumerate(episodes):
        names = [s.name for s in streams]
        required = {n for word in needed for n in match_names(names, word)}
        moving = [s.name for s in streams if len(s) > 1 and s.times.min() != s.times.max()]
        if lacks := sorted(required - set(moving)) or ([] if moving else ["any stream"]):
            report(f"part {number} of the recording is left out: it has fewer than two stamps of {lacks[0]}.")
        else:
            out.append((bounds, streams))
    return out


def _to_clock(times: Array, integer: bool) -> Array:
    """Return stamps in the unit of the recording: int64 nanoseconds if one stream has them."""
    return np.rint(times * 1e9).astype(np.int64) if integer and times.dtype != np.int64 else times


def _find_parts(
    cut: Cut, streams: Sequence[Stream], marks: Mapping[str, Array], main: Sequence[str], integer: bool
) -> list[Bounds]:
    """Return the parts of time that one rule makes."""
    names = [s.name for s in streams]
    if cut.rule == "gap":
        limit = float(cut.value) * (1e9 if integer else 1)
        chosen = {n for word in main for n in match_names(names, word)}
        clocks = [_to_clock(s.times, integer) for s in streams if s.name in chosen and len(s)]
        if not clocks:
            clocks = [np.concatenate([_to_clock(s.times, integer) for s in streams])]
        pauses = [pause for clock in clocks for pause in _find_pauses(np.unique(clock), limit)]
        return _remove(pauses)
    if cut.rule == "marker":
        times = marks.get(cut.value)
        if times is None:
            times = next((s.times for s in streams if s.name in set(match_names(names, cut.value))), np.zeros(0))
        edges = np.unique(_to_clock(times, integer)).tolist()
        return list(zip([-math.inf, *edges], [*edges, math.inf], strict=True))
    chosen_name = match_names(names, cut.value)[0]
    stream = next(s for s in streams if s.name == chosen_name)
    order = np.argsort(stream.times, kind="stable")
    times, values = _to_clock(stream.times, integer)[order], stream.values[order].reshape(len(order), -1)
    if cut.rule == "while":
        values = np.any(values != 0, axis=1)[:, None]
    starts = np.flatnonzero(np.concatenate([[True], (values[1:] != values[:-1]).any(axis=1)])).tolist()
    ends = [*times[starts[1:]].tolist(), math.inf]
    parts = list(zip(times[starts].tolist(), ends, strict=True))
    if cut.rule == "while":
        return [part for part, at in zip(parts, starts, strict=True) if values[at, 0]]
    return [(-math.inf, parts[0][1]), *parts[1:]]


def _find_pauses(clock: Array, limit: float) -> list[Bounds]:
    """Return (last stamp before it, first stamp after it) of each pause."""
    at = np.flatnonzero(np.diff(clock) > limit)
    return list(zip(clock[at].tolist(), clock[at + 1].tolist(), strict=True))


def _remove(pauses: Sequence[Bounds]) -> list[Bounds]:
    """Return the time outside the pauses; the stamp at the start of a pause still belongs to the episode before it."""
    parts: list[Bounds] = []
    start: Any = -math.inf
    for a, b in sorted(pauses):
        last = a + 1 if isinstance(a, int) else math.nextafter(a, math.inf)
        if last > start:
            parts.append((start, last))
        start = max(start, b)
    return [*parts, (start, math.inf)]
