"""Sessions: events with the same session attribute, else events of one source and actor in one minute.

A session has the count of each template, its last template, and the largest surprises of its events. Counts of a
template are compared in steps (1, 2, 3, 4, 6, 8, 12, 16 …), once per session and step, so that a long burst is one
observation and not a thousand.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

NAMES = ("session", "session_id", "block", "block_id", "trace_id", "request_id", "transaction_id", "job_id")
WINDOW_NS = 60 * 10**9
IDLE_NS = 600 * 10**9  # a session without an event for this long has ended
OPEN = 10_000
STEPS = [1, 2, 3] + [2**n + half for n in range(2, 30) for half in (0, 2 ** (n - 1))]


def find_step(count: int) -> int:
    """Return the number of the step that a count has reached, from 0.

    >>> [find_step(n) for n in (1, 2, 3, 4, 5, 6, 8, 11, 12)]
    [0, 1, 2, 3, 3, 4, 5, 5, 6]
    """
    return bisect_right(STEPS, count) - 1


@dataclass(slots=True)
class Session:
    key: str
    named: bool  # identified by an attribute; else a window of one minute
    counts: dict[int, int] = field(default_factory=dict)  # template → count
    last: int = -1  # template
    entry: int = -1  # of the last event
    time: int = 0  # of the last event
    most: dict[str, float] = field(default_factory=dict)  # part → its largest surprise
    why: str = ""  # reason of its most unusual event
    weight: float = 0.0  # sum of the parts of that event, in nats

    def take(
        self, entry: int, time: int, template: int, raw: Mapping[str, float], parts: Mapping[str, float], why: str
    ) -> None:
        """Add one event."""
        self.counts[template] = self.counts.get(template, 0) + 1
        self.last, self.entry, self.time = template, entry, time
        for part, surprise in raw.items():
            if surprise > self.most.get(part, 0.0):
                self.most[part] = surprise
        if why and (weight := sum(parts.values())) > self.weight:
            self.why, self.weight = why, weight

    def state(self) -> dict[str, Any]:
        return asdict(self) | {"counts": list(self.counts.items())}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        return cls(**{**state, "counts": dict(map(tuple, state["counts"]))})


class Sessions:
    """The open sessions, least recently active first."""

    def __init__(self, names: Sequence[str] = NAMES, window: int = WINDOW_NS, idle: int = IDLE_NS) -> None:
        self.names, self.window, self.idle = tuple(names), window, idle
        self._open: OrderedDict[str, Session] = OrderedDict()

    def assign(self, event: Mapping[str, Any], time: int) -> tuple[Session, Session | None]:
        """Return the session of an event, and the session that it ends: its last window, or the oldest session."""
        attributes = event.get("attributes")
        if attributes:
            for name in self.names:
                value = attributes.get(name)
                if value is not None and value != "":
                    key = f"{name}={value}"
                    same = self._open.pop(key, None)
                    self._open[key] = same or Session(key, named=True)
                    return self._open[key], self._too_many()
        key = f"{event.get('source', '')}\0{event.get('actor') or ''}"
        before = self._open.pop(key, None)
        goes_on = before is not None and before.time // self.window == time // self.window
        session = before if before is not None and goes_on else Session(key, named=False)
        self._open[key] = session
        return session, self._too_many() if goes_on or before is None else before

    def _too_many(self) -> Session | None:
        return self._open.popitem(last=False)[1] if len(self._open) > OPEN else None

    def end_sessions(self, now: int | None = None) -> list[Session]:
        """Close and return the sessions that are idle at `now` (ns); None: all sessions."""
        done = []
        for key, session in list(self._open.items()):
            idle = self.idle if session.named else self.window
            if now is not None and now - session.time < idle:
                if now - session.time < self.window:
                    break  # the following sessions are younger
                continue
            del self._open[key]
            done.append(session)
        return done

    def __len__(self) -> int:
        return len(self._open)

    def state(self) -> dict[str, Any]:
        rows = [session.state() for session in self._open.values()]
        return {"names": list(self.names), "window": self.window, "idle": self.idle, "open": rows}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Sessions:
        sessions = cls(state["names"], state["window"], state["idle"])
        for row in state["open"]:
            sessions._open[row["key"]] = Session.restore(row)
        return sessions
