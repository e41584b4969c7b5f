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
import re
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
        if not isinstance(found, dict) or not _as_written(found, entry):
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


def _as_written(found: dict[str, Any], entry: bytes) -> bool:
    """Whether `encode` would have written just this: one rule for both ways, so what goes in comes out."""
    plain = {name: value for name, value in found.items() if name != "stored"}
    bundle, _, large = encode_events([plain], 0, True)
    if "stored" not in found:
        whole: bytes = large[0][2] if large else bundle[2:]
        return whole == entry
    # A stand-in: the same event without attributes, and where the whole of it lies.
    return (
        bundle[2:] == canonical_json(plain)
        and not plain["attributes"]
        and _is_stored(found["stored"])
        and canonical_json(found) == entry
    )


def _is_stored(words: object) -> bool:
    return (
        isinstance(words, dict)
        and set(words) == {"bytes", "sha256"}
        and type(words["bytes"]) is int
        and isinstance(words["sha256"], str)
        and re.fullmatch("[0-9a-f]{64}", words["sha256"]) is not None
    )
