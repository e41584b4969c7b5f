"""Sessions: events with the same session attribute, else events of one source and actor in one minute.

A session has the count of each template and of each key (sequence.py), how surprising the order of its events is, and
its most unusual event. Counts of a template are compared in steps (1, 2, 3, 4, 6, 8, 12, 16 …), once per session and
step, so that a long burst is one observation and not a thousand.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from ridgeline.audit.anomaly.sequence import START
from ridgeline.audit.ledger.personal import name_pseudonym

NAMES = ("session", "session_id", "block", "block_id", "trace_id", "request_id", "transaction_id", "job_id")
WINDOW_NS = 60 * 10**9
IDLE_NS = 600 * 10**9  # a session without an event for this long has ended
OPEN = 10_000
WINDOW = 10  # events in a row whose surprises are added
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
    number: int = 0  # of the session, in the order of their first events
    counts: dict[int, int] = field(default_factory=dict)  # template → count
    last: int = -1  # template
    entry: int = -1  # of the last event
    time: int = 0  # of the last event
    weight: float = 0.0  # sum of the parts of its most unusual event, in nats
    why: str = ""  # reason of that event
    keys: list[int] = field(default_factory=lambda: [START, START])  # not learnt yet, with the two before them
    key_counts: dict[int, int] = field(default_factory=dict)
    events: int = 0
    order_sum: float = 0.0  # surprises of the order of all events, in nats
    order_window: list[float] = field(default_factory=list)  # surprises of the last events
    order_most: float = 0.0  # the largest sum of such a window
    odd_order: tuple[float, int, int] = (0.0, -1, -1)  # the largest of those surprises, its template, the one before

    def take(self, entry: int, time: int, template: int, weight: float, why: str) -> None:
        """Add one event."""
        self.counts[template] = self.counts.get(template, 0) + 1
        self.last, self.entry, self.time = template, entry, time
        if weight > self.weight:
            self.why, self.weight = why, weight

    def take_key(self, key: int, template: int, surprise: float) -> None:
        """Add the key of an event, before `take`; `surprise` is that of its order."""
        self.keys.append(key)
        self.key_counts[key] = self.key_counts.get(key, 0) + 1
        self.events += 1
        self.order_sum += surprise
        window = self.order_window
        window.append(surprise)
        if len(window) > WINDOW:
            del window[0]
        if (total := sum(window)) > self.order_most:
            self.order_most = total
        if surprise > self.odd_order[0]:
            self.odd_order = surprise, template, self.last

    def state(self) -> dict[str, Any]:
        return asdict(self) | {name: list(getattr(self, name).items()) for name in ("counts", "key_counts")}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        maps = {name: dict(map(tuple, state[name])) for name in ("counts", "key_counts")}
        return cls(**{**state, **maps, "odd_order": tuple(state["odd_order"])})


class Sessions:
    """The open sessions, least recently active first."""

    def __init__(self, names: Sequence[str] = NAMES, window: int = WINDOW_NS, idle: int = IDLE_NS) -> None:
        self.names, self._names, self.window, self.idle = tuple(names), frozenset(names), window, idle
        self._open: OrderedDict[str, Session] = OrderedDict()
        self._count = 0  # sessions so far

    def assign(self, event: Mapping[str, Any], time: int) -> tuple[Session, Session | None]:
        """Return the session of an event, and the session that it ends: its last window, or the oldest session."""
        attributes = event.get("attributes")
        if attributes and not self._names.isdisjoint(attributes):
            for name in self.names:
                value = attributes.get(name)
                if value is not None and value != "":
                    key = f"{name}={name_pseudonym(str(value))}"
                    same = self._open.pop(key, None)
                    self._open[key] = same or self._make(key, named=True)
                    return self._open[key], self._too_many()
        key = f"{event.get('source', '')}\0{name_pseudonym(str(event.get('actor') or ''))}"
        before = self._open.pop(key, None)
        goes_on = before is not None and before.time // self.window == time // self.window
        session = before if before is not None and goes_on else self._make(key, named=False)
        self._open[key] = session
        return session, self._too_many() if goes_on or before is None else before

    def _make(self, key: str, named: bool) -> Session:
        self._count += 1
        return Session(key, named, self._count)

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
        settings = {"names": list(self.names), "window": self.window, "idle": self.idle}
        return settings | {"open": rows, "count": self._count}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Sessions:
        sessions = cls(state["names"], state["window"], state["idle"])
        sessions._count = state["count"]
        for row in state["open"]:
            sessions._open[row["key"]] = Session.restore(row)
        return sessions
