"""Rhythms: events that come at even intervals, and those of them that have stopped.

>>> rhythms, second = Rhythms(), 10**9
>>> for k in range(40):
...     rhythms.learn(("heartbeat", "web1"), k * 60 * second, k)
>>> rhythms.find_absent(39 * 60 * second + 100 * second)
[]
>>> [absence] = rhythms.find_absent(39 * 60 * second + 200 * second)
>>> absence.key, absence.entry, absence.silent_s, absence.interval_s
(('heartbeat', 'web1'), 39, 200.0, 60.0)

An event has a rhythm if all of its last 32 intervals were at most twice their median: of events that come by chance
one series in ten thousand looks like that. It is absent when it has not come for three times its longest interval, and
for half a minute at least. It is reported once, until it comes again.

Times are those of the events. `restart` says that no watcher ran: what did not come meanwhile is no absence.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, Self

INTERVALS = 32  # in memory; a rhythm needs all of them
EVEN = 2.0  # the longest interval of a rhythm, in medians
ABSENT_AFTER = 3.0  # an event is absent after this many times the longest interval …
SHORTEST_NS = 30 * 10**9  # … but not before this time
MOST_NEW, MOST = 20_000, 4_096  # keys with few events, and with several; the least recent are forgotten first
SEVERAL = 4  # events
STEP_NS = 10**9  # between two looks at all rhythms

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Absence:
    """An event that was expected: `entry` is the last one, `limit_s` the time after which it is absent."""

    key: Key
    entry: int
    silent_s: float
    interval_s: float  # median
    limit_s: float


@dataclass(slots=True)
class Series:
    """The times of one kind of event, in ns."""

    last: int
    entry: int
    since: int  # the time from which on it is awaited
    intervals: list[int]
    count: int = 1
    reported: bool = False  # as absent
    settled: bool = False  # until the next event there is nothing more to report

    @property
    def limit(self) -> int:
        """The time without an event after which it is absent; 0 if there is no rhythm."""
        if len(self.intervals) < INTERVALS:
            return 0
        longest = max(self.intervals)
        if longest > EVEN * statistics.median(self.intervals):
            return 0
        return max(int(ABSENT_AFTER * longest), SHORTEST_NS)


class Rhythms:
    """Learns when events come, each by its key."""

    def __init__(self) -> None:
        self._new: OrderedDict[Key, Series] = OrderedDict()
        self._known: OrderedDict[Key, Series] = OrderedDict()
        self._looked = 0  # time of the last look

    def learn(self, key: Key, time: int, entry: int) -> None:
        series = self._known.get(key)
        if series is not None:
            self._known.move_to_end(key)
        else:
            series = self._new.pop(key, None)
            if series is None:
                self._new[key] = Series(time, entry, time, [])
                if len(self._new) > MOST_NEW:
                    self._new.popitem(last=False)
                return
            (self._known if series.count >= SEVERAL else self._new)[key] = series
            if len(self._known) > MOST:
                self._known.popitem(last=False)
        interval = time - series.last
        if interval < 0:  # a line that was read late
            return
        series.settled = False
        if series.reported:
            series.reported = False  # the pause does not belong to the rhythm
        elif series.since <= series.last:  # nor does one in which no watcher ran
            series.intervals.append(interval)
            del series.intervals[:-INTERVALS]
        series.last, series.entry, series.since = time, entry, time
        series.count += 1

    def find_absent(self, now: int) -> list[Absence]:
        """Return what should have come by `now` (ns), each once."""
        if 0 <= now - self._looked < STEP_NS:
            return []
        self._looked, absent = now, []
        for key, series in self._known.items():
            silent = now - max(series.last, series.since)
            if silent < SHORTEST_NS and series.since <= series.last:
                break  # the following ones have come later
            if series.settled or silent < SHORTEST_NS:
                continue
            limit = series.limit
            if not limit:
                series.settled = True
            elif silent > limit:
                series.reported = series.settled = True
                median = statistics.median(series.intervals)
                absent.append(Absence(key, series.entry, (now - series.last) / 1e9, median / 1e9, limit / 1e9))
        return absent

    def restart(self, now: int) -> None:
        """Await every event from `now` on."""
        for series in self._known.values():
            series.since, series.settled = max(series.since, now), series.reported

    def state(self) -> dict[str, Any]:
        kinds = {"new": self._new, "known": self._known}
        rows = {kind: [[list(key), *astuple(s)] for key, s in series.items()] for kind, series in kinds.items()}
        return {**rows, "looked": self._looked}

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Self:
        rhythms = cls()
        for rows, series in ((state["new"], rhythms._new), (state["known"], rhythms._known)):
            series.update((tuple(key), _restore_series(row)) for key, *row in rows)
        rhythms._looked = state["looked"]
        return rhythms


def _restore_series(row: Sequence[Any]) -> Series:
    last, entry, since, intervals, *others = row
    return Series(last, entry, since, list(intervals), *others)
