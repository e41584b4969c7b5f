"""Events: an actor did an action to a subject at a time. As canonical JSON (RFC 8785) they are the entries of a ledger.

    {"action":"network.ovs.bridge.create","actor":"root","attributes":{"ip":"192.168.1.1/24"},"source":"dbus",
     "subject":"br0","time":"1700000000000000000"}

`time` is in nanoseconds since 1970. JSON has it as a string, because RFC 8785 has no integers beyond 2^53 and a reader
would round it; Python has it as an int. An event too large for an entry (65,535 bytes) is stored in a file beside the
log, named by its SHA-256, and the field `stored` of its entry refers to that file.

>>> decode(encode([{"source": "test", "action": "a.b", "time": 5, "attributes": {"n": 1}}]).entries[2:])["time"]
5
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ridgeline.audit.ledger.moment import find_other_unit, parse_moment, show_moment
from ridgeline.errors import InputError, Unverified
from ridgeline.native import canonical_json, encode_events
from ridgeline.store import compile_test, parse_where

FIELDS = ("time", "source", "actor", "action", "subject", "attributes")
_EXACT = 1 << 53
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
PRUNE = "ridgeline.ledger.prune"
PRUNE_MARK = b'{"action":"' + PRUNE.encode() + b'"'  # such an entry begins with these bytes


@dataclass(frozen=True)
class EncodedEvents:
    """Events in the form in which the log appends them."""

    count: int
    entries: bytes  # each after its length, as in a bundle
    hashes: bytes  # the leaf hashes, 32 bytes each
    large: list[tuple[int, str, bytes]]  # number of the event, its SHA-256, its bytes


def encode(events: Iterable[Mapping[str, Any]], *, internal: bool = False) -> EncodedEvents:
    """Encode events as entries; raise `InputError` with the number of the first bad event.

    internal  allow the actions `ridgeline.…`, which are reserved for the ledger and the watcher
    """
    if isinstance(events, Mapping | str | bytes):
        raise InputError("append takes several events; put a single one into a list.")
    items: Sequence[Any] = events if isinstance(events, list | tuple) else list(events)
    items = [dict(e) if isinstance(e, Mapping) and type(e) is not dict else e for e in items]
    try:
        entries, hashes, large = encode_events(items, time.time_ns(), internal)
    except ValueError as error:
        raise InputError(f"{error}.") from None
    return EncodedEvents(len(items), entries, hashes, large)


def decode(entry: bytes, what: str = "the entry") -> dict[str, Any]:
    """Decode an entry as an event; it has `stored` only if the event lies in a file beside the log."""
    try:
        fields = json.loads(entry, parse_constant=_refuse, parse_int=_parse_number)
        if not isinstance(fields, dict) or not _as_written(fields, entry):
            raise ValueError
    except (ValueError, RecursionError):
        raise Unverified("malformed", f"{what} is no event in canonical JSON.") from None
    return {name: int(fields[name]) if name == "time" else fields[name] for name in FIELDS} | (
        {"stored": fields["stored"]} if "stored" in fields else {}
    )


def parse_line(line: str | bytes, where: str) -> dict[str, Any]:
    """Parse one line of JSONL as an event; `where` names the line in errors ("line 3 of stdin")."""
    try:
        event = json.loads(line, object_pairs_hook=_refuse_duplicates, parse_constant=_refuse)
    except RecursionError:
        raise InputError(f"{where} is nested too deep; flatten it.") from None
    except ValueError as error:
        raise InputError(f"{where} is not JSON as RFC 8259 has it ({error}); mend it.") from None
    if not isinstance(event, dict):
        raise InputError(f"{where} is not an object; an event has: {', '.join(FIELDS)}.")
    if "time" in event:
        event["time"] = _parse_time(event["time"], where)
    return event


def _parse_time(value: Any, where: str) -> Any:
    """Return nanoseconds since 1970 of a time that a person or another program wrote.

    That is a number of nanoseconds, also as a text, or RFC 3339. A number that means a moment before 1973 is refused:
    it is a number of seconds, milliseconds or microseconds. Other types are left to `encode`, which names them.
    """
    if isinstance(value, str) and _RFC_3339.fullmatch(value):
        try:
            return parse_moment(value.upper().replace(" ", "T"))
        except InputError:
            raise InputError(f"{where}: time is '{value[:40]}', which no calendar or clock has; correct it.") from None
    if isinstance(value, str) and not (value.isascii() and value.isdigit()):
        raise InputError(
            f"{where}: time is {value[:40]!r}; give nanoseconds since 1970, or RFC 3339 like 2026-11-15T08:30:00.5Z."
        )
    if isinstance(value, bool) or not isinstance(value, int | str):
        return value
    number = int(value)
    unit = find_other_unit(number)
    if unit is not None:
        raise InputError(
            f"{where}: time is {number}, which looks like {unit} (as nanoseconds it is {show_moment(number)}); give "
            "nanoseconds since 1970, or RFC 3339 like 2026-11-15T08:30:00.5Z."
        )
    return number


def compile_filter(text: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return a test of events for a condition such as `source == 'dbus' and attributes.n > 2`.

    The language is that of `ridgeline.store.parse_where`; the names are `index` and the fields of an event. A missing
    field is null.

    Raises:
        PointedError: the condition cannot be read, or names no field; a caret points at the place.
    """
    return compile_test(parse_where(text, ("index", *FIELDS), kind="field", nested=True))


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("an object has the same name twice")
    return fields


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _parse_number(digits: str) -> int | float:
    """RFC 8785 has only doubles: it writes 2.0**53 as digits, though it is no integer."""
    return int(digits) if len(digits) < 16 or abs(int(digits)) < _EXACT else float(digits)


def _as_written(fields: dict[str, Any], entry: bytes) -> bool:
    """Whether `encode` writes exactly this entry. So decoding and encoding cannot disagree."""
    plain = {name: value for name, value in fields.items() if name != "stored"}
    bundle, _, large = encode_events([plain], 0, True)
    if "stored" not in fields:
        complete: bytes = large[0][2] if large else bundle[2:]
        return complete == entry
    # The entry of a stored event: the event without attributes, and a reference to its file.
    return (
        bundle[2:] == canonical_json(plain)
        and not plain["attributes"]
        and _is_stored(fields["stored"])
        and canonical_json(fields) == entry
    )


def _is_stored(words: object) -> bool:
    return (
        isinstance(words, dict)
        and set(words) == {"bytes", "sha256"}
        and type(words["bytes"]) is int
        and isinstance(words["sha256"], str)
        and re.fullmatch("[0-9a-f]{64}", words["sha256"]) is not None
    )
