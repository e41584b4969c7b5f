"""The rights of a person whose data is in a log: a copy of it (GDPR article 15), and its erasure (article 17).

    export = export_person(log, "ann", by="dpo")
    forget_person(log, "ann", by="dpo", reason="article 17")

Both are events of the log (`ridgeline.subject.…`), with the ids of the keys and without the name of the person.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.audit.ledger.appender import Appender
from ridgeline.audit.ledger.event import decode
from ridgeline.audit.ledger.layout import find_ledger
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.moment import show_moment
from ridgeline.audit.ledger.personal import NO_PERSON, Policy, list_key_ids, read_policy, write_policy
from ridgeline.audit.ledger.persons import PersonKeys
from ridgeline.audit.ledger.tiles import WIDTH
from ridgeline.errors import InputError, Unverified
from ridgeline.store import StrPath

SOURCE = "ridgeline.subject"
POLICY, EXPORT, FORGET = (f"{SOURCE}.{word}" for word in ("policy", "export", "forget"))


@dataclass(frozen=True)
class PersonalExport:
    """What a log has about a person.

    events   the events of the person, with their personal values, and each with its index
    erased   events whose personal values were erased; `erasures` says when, by whom and why
    lost     ids of keys that are missing though no one destroyed them
    pruned   entries whose payloads were removed from the log
    """

    person: str
    events: list[dict[str, Any]]
    erased: int
    erasures: list[dict[str, Any]]
    lost: list[str]
    pruned: int
    entry: int = -1  # the event that records the export


@dataclass
class KeyUse:
    """How the tokens of a log fit its keys, by key id."""

    known: dict[str, int] = field(default_factory=dict)  # id → entries with its tokens
    destroyed: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)


def set_policy(ledger: Ledger, policy: Policy) -> bool:
    """Make this the policy of a log, for all who append to it; record it as an event if it is another one."""
    paths = find_ledger(ledger.path)
    if read_policy(paths) == policy:
        return False
    write_policy(paths, policy)
    ledger.reload_policy()
    ledger.append([_make_event(POLICY, None, policy.to_json())])
    return True


def export_person(
    log: StrPath, person: str, *, by: str, progress: Callable[[str], None] = lambda line: None
) -> PersonalExport:
    """Return everything that the log has about a person; the log records who asked.

    Raises `InputError` if there is nothing about the person.
    """
    finish_forgetting(log)
    paths = find_ledger(log)
    with Appender(log) as into:
        into.finish()  # sign, so that the newest entries are read too
        export = _read_person(log, person, progress)
        if not export.events and not export.erasures:
            raise InputError(f"{log} has nothing about the person '{person}'; check the name.")
        words = {
            "keys": [key.id for key in PersonKeys(paths.persons).find(person)],
            "events": len(export.events),
            "erased": export.erased,
        }
        entry, _ = into.append([_make_event(EXPORT, by, words)])
        into.finish()
    return PersonalExport(**{**vars(export), "entry": entry})


def forget_person(log: StrPath, person: str, *, by: str, reason: str) -> tuple[list[str], int]:
    """Destroy the keys of a person, and record that; return the ids of the keys and the index of the event.

    Raises `InputError` if the person has no key, `Unverified` if it was destroyed before.
    """
    finish_forgetting(log)
    keys = PersonKeys(find_ledger(log).persons)
    known = keys.find(person)
    if not known:
        raise InputError(f"{log} has no personal fields of '{person}'; check the name.")
    if not any(key.secret for key in known):
        last = known[-1]
        raise Unverified(
            "erased", f"'{person}' was erased before, on {show_moment(last.destroyed or 0)[:19]}Z by {last.by}."
        )
    with Appender(log) as into, keys.destroying(person, by, reason) as ids:
        entry, _ = into.append([_make_event(FORGET, by, {"keys": ids, "reason": reason})])
        into.finish()
    return ids, entry


def finish_forgetting(log: StrPath) -> None:
    """Record an erasure whose process was killed before the log had its event."""
    with PersonKeys(find_ledger(log).persons).finishing() as unfinished:
        if unfinished is None:
            return
        ids, by, reason = unfinished
        with Appender(log) as into:
            into.append([_make_event(FORGET, by, {"keys": ids, "reason": reason})])
            into.finish()


def count_key_use(ledger: Ledger, keys: PersonKeys) -> KeyUse:
    """Count the entries that use each key; a key that is neither there nor destroyed was lost."""
    use, all_keys = KeyUse(), {key.id: key for key in keys.list_all()}
    for _, raw in _read_entries(ledger, [0]):
        for key_id in list_key_ids(raw):
            key = all_keys.get(key_id)
            counts = use.lost if key is None else use.known if key.secret else use.destroyed
            counts[key_id] = counts.get(key_id, 0) + 1
    return use


def _read_person(log: StrPath, person: str, progress: Callable[[str], None]) -> PersonalExport:
    with Ledger.open(log) as ledger:
        personal = ledger.personal
        keys = personal.keys.find(person)
        ids = {key.id for key in keys}
        secrets = {key.id: key.secret for key in keys if key.secret}
        marks = [key_id.encode() for key_id in ids] + [b'"stored":'] + ([person.encode()] if person.isascii() else [])
        events, erased, lost, pruned = list[dict[str, Any]](), 0, set[str](), [0]
        for index, raw in _read_entries(ledger, pruned):
            if index % 100_000 == 0:
                progress(f"{index:,} entries read, {len(events):,} of the person")
            if person.isascii() and not any(mark in raw for mark in marks):
                continue
            event = ledger.load_event(decode(raw, f"entry {index}"))
            if str(event["action"]).startswith("ridgeline."):
                continue
            used = list_key_ids(_to_bytes(event))
            named = personal.name_person(event) == person and person != NO_PERSON
            if not used & ids and not named:
                continue
            if used & ids - secrets.keys():
                erased += 1
            lost |= used - ids if named else set()
            events.append({"index": index, **personal.decrypt(event, secrets)})
    erasures = [
        {"key": key.id, "time": key.destroyed, "by": key.by, "reason": key.reason} for key in keys if not key.secret
    ]
    others = {key.id for key in personal.keys.list_all()} if lost else set()
    return PersonalExport(person, events, erased, erasures, sorted(lost - others), pruned[0])


def _read_entries(ledger: Ledger, pruned: list[int]) -> Iterator[tuple[int, bytes]]:
    """Yield (index, bytes) of all entries that are not pruned; count the others in `pruned`."""
    size = ledger.checkpoint().size
    for first in range(0, size, WIDTH):
        last = min(first + WIDTH, size)
        try:
            yield from list(ledger.raw_entries(first, last))
        except Unverified as error:
            if error.kind != "missing":
                raise
            pruned[0] += last - first


def _to_bytes(event: Mapping[str, Any]) -> bytes:
    return json.dumps({name: event.get(name) for name in ("actor", "subject", "attributes")}).encode()


def _make_event(action: str, by: str | None, words: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "time": time.time_ns(),
        "source": SOURCE,
        "actor": by,
        "action": action,
        "subject": None,
        "attributes": dict(words),
    }
