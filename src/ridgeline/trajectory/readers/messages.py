"""Decoded messages, one after the other, become columns; MCAP and ROS bags share this.

The stamp is the message's own (`header.stamp`, `timestamp`) where every message of a topic carries one from the same
clock as the recorder's; else the time it was logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

import numpy as np

from ridgeline.trajectory.readers.fields import Ask, numeric, reason, said, streams_of
from ridgeline.trajectory.stream import Stream
from ridgeline.trajectory.timeline import Array

SAME_CLOCK_S = 60.0  # farther apart, stamp and log time are of different clocks
_STAMPS = ("header.stamp", "timestamp", "stamp")


class Topic:
    """The columns of one topic while it is being read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._logged: list[int] = []
        self._stamped: list[int] = []
        self._getters: dict[str, Callable[[Any], Any]] = {}
        self._columns: dict[str, list[Any]] = {}
        self._stamp: Callable[[Any], int] | None = None

    def add(self, message: Any, logged_ns: int) -> None:
        if not self._logged:
            # The first message says what fields there are; looking anew at each would cost more than decoding it.
            self._getters = {p: _getter(message, p) for p in _paths(message) if not _bookkeeping(p)}
            self._columns = {path: [] for path in self._getters}
            self._stamp = _stamp_of(message)
        self._logged.append(logged_ns)
        if self._stamp is not None:
            self._stamped.append(_value(self._stamp, message, 0))
        for path, get in self._getters.items():
            self._columns[path].append(_value(get, message, float("nan")))

    def __len__(self) -> int:
        return len(self._logged)

    def streams(self, ask: Ask) -> list[Stream]:
        fields: dict[str, Array] = {}
        left: list[str] = []
        for path, values in self._columns.items():
            found = numeric(values)
            if found is None:
                left.append(path)
            else:
                fields[path] = found
        said(ask, self.name, left)
        return streams_of(self.name, self._times(ask), fields)

    def _times(self, ask: Ask) -> Array:
        logged = np.asarray(self._logged, np.int64)
        stamped = np.asarray(self._stamped, np.int64)
        if len(stamped) != len(logged) or (stamped == 0).any():
            return logged
        if float(np.median(np.abs(stamped - logged))) > SAME_CLOCK_S * 1e9:
            ask.say(f"{self.name}: its own stamps are of another clock; the time of logging is used.")
            return logged
        return stamped


class Lost:
    """Messages that cannot be decoded: passed over and counted, by topic."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._why: dict[str, str] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def note(self, topic: str, error: Exception) -> None:
        self._counts[topic] = self._counts.get(topic, 0) + 1
        self._why.setdefault(topic, reason(error))

    def tell(self, ask: Ask, held: Mapping[str, Topic]) -> None:
        for topic, count in self._counts.items():
            if topic in held:
                whole = count + len(held[topic])
                ask.say(f"{topic}: {count} of {whole} messages cannot be decoded ({self._why[topic]}), left out.")
            else:
                ask.say(f"{topic}: left out, none of its messages can be decoded ({self._why[topic]}).")


def _members(message: Any) -> list[str] | None:
    """The names of a message's fields; None for a leaf."""
    if isinstance(message, Mapping):
        return [str(k) for k in message]
    if hasattr(message, "DESCRIPTOR"):
        return [f.name for f in message.DESCRIPTOR.fields]
    if hasattr(message, "__dataclass_fields__"):
        return [n for n in message.__dataclass_fields__ if not n.startswith("__")]
    slots = getattr(type(message), "__slots__", None)
    return list(slots) if slots and hasattr(message, "_type") else None


def _paths(message: Any, before: str = "") -> list[str]:
    out: list[str] = []
    for name in _members(message) or ():
        inner = message[name] if isinstance(message, Mapping) else getattr(message, name)
        path = f"{before}{name}"
        out += _paths(inner, f"{path}.") if _members(inner) is not None else [path]
    return out


def _bookkeeping(path: str) -> bool:
    return path.startswith(("header.", "timestamp.", "stamp."))


def _getter(message: Any, path: str) -> Callable[[Any], Any]:
    if not isinstance(message, Mapping):
        return attrgetter(path)
    keys = path.split(".")

    def get(found: Any) -> Any:
        for key in keys:
            found = found[key]
        return found

    return get


def _stamp_of(message: Any) -> Callable[[Any], int] | None:
    for path in _STAMPS:
        get = _getter(message, path)
        stamp = _value(get, message, None)
        names = _members(stamp) if stamp is not None else None
        if names and names[0] in ("sec", "seconds", "secs"):
            whole, rest = _getter(stamp, names[0]), _getter(stamp, names[1])

            def nanoseconds(
                message: Any, get: Any = get, whole: Any = whole, rest: Any = rest
            ) -> int:  # the loop's names, as they are now
                found = get(message)
                return int(whole(found)) * 10**9 + int(rest(found))

            return nanoseconds
    return None


def _value(get: Callable[[Any], Any], message: Any, missing: Any) -> Any:
    try:
        return get(message)
    except (KeyError, AttributeError, TypeError):
        return missing
