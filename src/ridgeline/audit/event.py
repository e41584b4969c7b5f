"""Events: who did what to what, when; as canonical JSON (RFC 8785) they are the entries of a ledger.

    {"action":"network.ovs.bridge.create","actor":"root","attributes":{"ip":"192.168.1.1/24"},"source":"dbus",
     "subject":"br0","time":"1700000000000000000"}

`time` is in nanoseconds. It is written as a string, because RFC 8785 has no integers beyond 2^53: a reader would round
it. In Python it is an int, both ways. An event too large for an entry (65,535 bytes) is stored whole under its SHA-256
beside the log, and its entry says so in `stored`.

>>> decode(encode([{"source": "test", "action": "a.b", "time": 5, "attributes": {"n": 1}}]).entries[2:])["time"]
5
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ridgeline.errors import InputError, Unverified
from ridgeline.native import canonical_json, encode_events

NAMES = ("time", "source", "actor", "action", "subject", "attributes")
_EXACT = 1 << 53
PRUNE = "ridgeline.ledger.prune"
PRUNE_MARK = b'{"action":"' + PRUNE.encode() + b'"'  # what such an entry begins with


@dataclass(frozen=True)
class Encoded:
    """Events on their way into the log."""

    count: int
    entries: bytes  # each behind its length, as in a bundle
    hashes: bytes  # their leaf hashes, 32 bytes each
    large: list[tuple[int, str, bytes]]  # which event, its SHA-256, the whole of it


def encode(events: Iterable[Mapping[str, Any]], *, own: bool = False) -> Encoded:
    """Events as entries; one that is not as it must be is an InputError that names it, and none is taken."""
    if isinstance(events, Mapping | str | bytes):
        raise InputError("append takes several events; put a single one into a list.")
    items: Sequence[Any] = events if isinstance(events, list | tuple) else list(events)
    items = [dict(e) if isinstance(e, Mapping) and type(e) is not dict else e for e in items]
    try:
        entries, hashes, large = encode_events(items, time.time_ns(), own)
    except ValueError as error:
        raise InputError(f"{error}.") from None
    return Encoded(len(items), entries, hashes, large)


def decode(entry: bytes, what: str = "the entry") -> dict[str, Any]:
    """An entry as an event; `stored` is in it only if the event lies beside the log."""
    try:
        found = json.loads(entry, parse_constant=_refuse, parse_int=_number)
        if not isinstance(found, dict) or canonical_json(found) != entry:
            raise ValueError
        if set(found) - {"stored"} != set(NAMES) or not isinstance(found["attributes"], dict):
            raise ValueError
        if not all(isinstance(found[k], str) for k in NAMES if k != "attributes"):
            raise ValueError
        moment = found["time"]
        if not (moment.isascii() and moment.isdigit()) or len(moment) > 19:
            raise ValueError
        stored = found.get("stored")
        if stored is not None and not (isinstance(stored, dict) and _is_sha256(stored.get("sha256"))):
            raise ValueError
    except (ValueError, RecursionError):
        raise Unverified("malformed", f"{what} is no event in canonical JSON.") from None
    return {name: int(found[name]) if name == "time" else found[name] for name in NAMES} | (
        {"stored": found["stored"]} if "stored" in found else {}
    )


def parse_line(line: str | bytes, where: str) -> dict[str, Any]:
    """One line of JSONL as an event on its way in; `where` names it ("line 3 of stdin")."""
    try:
        found = json.loads(line, object_pairs_hook=_once, parse_constant=_refuse)
    except RecursionError:
        raise InputError(f"{where} is nested too deep; flatten it.") from None
    except ValueError as error:
        raise InputError(f"{where} is not JSON as RFC 8259 has it ({error}); mend it.") from None
    if not isinstance(found, dict):
        raise InputError(f"{where} is not an object; an event has: {', '.join(NAMES)}.")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _number(digits: str) -> int | float:
    """RFC 8785 knows doubles only: 2.0**53 is written as digits, and was no integer."""
    return int(digits) if len(digits) < 16 or abs(int(digits)) < _EXACT else float(digits)


def _is_sha256(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and not set(text) - set("0123456789abcdef")
