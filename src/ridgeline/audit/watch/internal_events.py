"""Internal events: the watcher records its own actions in the log, bound to other entries by index and leaf hash.

They are never scored.

| action                      | meaning                                                                      |
|-----------------------------|------------------------------------------------------------------------------|
| ridgeline.watch.start       | a watcher is ready: its sources, its settings, its position in the log       |
| ridgeline.watch.scores      | the scores of consecutive entries, in ten-thousandths; null: internal event  |
| ridgeline.watch.alert       | an alert about one entry: what fired, severity, score, reason, nearest normal entries |
| ridgeline.watch.label       | a person labelled an entry: normal or bad                                    |
| ridgeline.watch.drops       | a source dropped this many events                                            |
| ridgeline.watch.refused     | a source sent something that is no event                                     |
| ridgeline.watch.gap         | a source could not continue at its saved position                            |
| ridgeline.watch.down        | a source failed, or the log could not be written; an alert follows           |
| ridgeline.watch.up          | a source works again: how long it was down                                   |
| ridgeline.watch.keys        | the idempotency keys of the events just before it                            |
| ridgeline.watch.undelivered | a webhook did not accept an alert                                            |
| ridgeline.watch.stop        | a watcher has ended: its counts                                              |

`read_alerts` reads alerts and labels back from the signed entries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.audit.ledger.event import decode
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.merkle import HASH
from ridgeline.audit.ledger.tiles import WIDTH
from ridgeline.audit.sources.http import RecordedRequest
from ridgeline.audit.watch.rules import DEFAULT_SEVERITY, SEVERITIES
from ridgeline.errors import InputError, Unverified

if TYPE_CHECKING:
    from ridgeline.audit.sources.source import KeyedEvents

SOURCE = "ridgeline.watch"
START, SCORES, ALERT, LABEL, DROPS, REFUSED, GAP, DOWN, UP, KEYS, UNDELIVERED, STOP = (
    f"{SOURCE}.{word}"
    for word in (
        "start", "scores", "alert", "label", "drops", "refused", "gap", "down", "up", "keys", "undelivered", "stop",
    )
)  # fmt: skip
UNIT = 10_000  # recorded value of a score of 1
KEYS_AT_ONCE = 256  # keys in one event
REMEMBERED = 1 << 18  # entries at the end of a log in which to look for keys
_PREFIX = "ridgeline."
Where = Callable[[dict[str, Any]], bool]


def is_internal(event: Mapping[str, Any]) -> bool:
    """Whether the watcher or the ledger wrote the event: then it is not scored and not searched."""
    return str(event["action"]).startswith(_PREFIX)


def make_event(
    action: str, subject: str | None, attributes: Mapping[str, Any], actor: str | None = None
) -> dict[str, Any]:
    return {
        "time": time.time_ns(),
        "source": SOURCE,
        "actor": actor,
        "action": action,
        "subject": subject,
        "attributes": dict(attributes),
    }


def mark_foreign(event: dict[str, Any]) -> dict[str, Any]:
    """Rename the action of an outside event that claims to be internal; it is scored like any other event."""
    action = event.get("action")
    if isinstance(action, str) and action.startswith(_PREFIX):
        return {**event, "action": f"foreign.{action}"}
    return event


def make_scores_event(first: int, scores: Sequence[float | None], leaves: bytes) -> dict[str, Any]:
    """Make the event with the scores of the entries from `first` on; the hash of `leaves` binds it to them."""
    count = len(scores)
    return make_event(
        SCORES,
        f"entries {first} to {first + count - 1}",
        {
            "first": first,
            "count": count,
            "leaves_sha256": sha256(leaves).hexdigest(),
            "scores": [None if s is None else round(s * UNIT) for s in scores],
        },
    )


def make_key_events(keyed: Sequence[KeyedEvents], count: int, source: str) -> list[dict[str, Any]]:
    """Make the events that name the keys of a batch of `count` events.

    They follow the batch in the same append, and refer to its events by their distance back.
    """
    events = list[dict[str, Any]]()
    for start in range(0, len(keyed), KEYS_AT_ONCE):
        at = count + len(events)
        some = keyed[start : start + KEYS_AT_ONCE]
        keys = [{"key": k.key, "sha256": k.digest, "back": at - k.first, "count": k.count} for k in some]
        events.append(make_event(KEYS, source, {"keys": keys}))
    return events


def read_request_keys(ledger: Ledger) -> Iterator[RecordedRequest]:
    """Yield the keyed requests recorded at the end of the log, in order."""
    size = ledger.checkpoint().size
    for index, event in read_internal_events(ledger, KEYS, start=max(0, size - REMEMBERED), end=size):
        for words in event["attributes"]["keys"]:
            yield RecordedRequest(words["key"], words["sha256"], index - words["back"], words["count"])


def leaf_hex(leaves: bytes, k: int) -> str:
    return leaves[k * HASH : (k + 1) * HASH].hex()


def entry_prefix(action: str) -> bytes:
    """Return the first bytes of the entry of such an event: canonical JSON puts the action first."""
    return b'{"action":"' + action.encode() + b'"'


def read_internal_events(
    ledger: Ledger, *actions: str, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (index, event) of the events with these actions, in order; skip pruned and malformed ones.

    Other processes may append to the log, so an event with such an action may have any content.
    """
    marks = tuple(entry_prefix(action) for action in actions)
    end = ledger.checkpoint().size if end is None else end
    while start < end:
        try:
            for index, raw in ledger.raw_entries(start, end):
                start = index + 1
                if raw.startswith(marks):
                    event = ledger.load_event(decode(raw, f"entry {index}"))
                    if well_formed(event):
                        yield index, event
            return
        except Unverified as error:
            if error.kind != "missing":
                raise
            start = (start // WIDTH + 1) * WIDTH


def well_formed(event: Mapping[str, Any]) -> bool:
    """Whether an internal event has the attributes that its action requires."""
    words = event["attributes"]
    if event["action"] == SCORES:
        scores = words.get("scores")
        complete = _is_count(words.get("first")) and isinstance(scores, list) and words.get("count") == len(scores)
        return bool(complete and all(s is None or _is_count(s) for s in scores or ()))
    if event["action"] == ALERT:
        named = isinstance(words.get("leaf"), str) and isinstance(words.get("reason"), str)
        rated = words.get("severity", DEFAULT_SEVERITY) in SEVERITIES and isinstance(words.get("fired", []), list)
        score = words.get("score")  # None: it was not scored
        return named and rated and _is_count(words.get("entry")) and (score is None or isinstance(score, int | float))
    if event["action"] == KEYS:
        keys = words.get("keys")
        return isinstance(keys, list) and all(isinstance(k, dict) and _is_key(k) for k in keys)
    if event["action"] == LABEL:
        return _is_count(words.get("entry")) and words.get("verdict") in ("normal", "bad")
    return True


def _is_key(words: Mapping[str, Any]) -> bool:
    named = isinstance(words.get("key"), str) and isinstance(words.get("sha256"), str)
    return named and _is_count(words.get("back")) and _is_count(words.get("count"))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


def read_alerts(
    ledger: Ledger, *, since: int | None = None, until: int | None = None, where: Where | None = None
) -> list[dict[str, Any]]:
    """Return every alert with its event, its index in the log and its last label; highest severity and score first.

    `since` and `until` (ns since 1970) and `where` select by the event. An alert whose leaf hash does not fit its entry
    was not written by a watcher and is left out.
    """
    alerts: list[dict[str, Any]] = []
    labels: dict[int, dict[str, Any]] = {}
    for index, event in read_internal_events(ledger, ALERT, LABEL):
        words = event["attributes"]
        if event["action"] == LABEL:
            labels[words["entry"]] = {
                "verdict": words["verdict"],
                "by": event["actor"],
                "note": words.get("note", ""),
                "index": index,
                "time": str(event["time"]),
            }
            continue
        if not _is_bound(ledger, words):
            continue
        event_labelled = _read_event(ledger, words["entry"])
        if event_labelled is not None and not _matches(event_labelled, words["entry"], since, until, where):
            continue
        if event_labelled is None and where is not None:
            continue  # pruned: whether it matches is unknown
        rated = {"severity": DEFAULT_SEVERITY, "fired": ["score"], **words}  # earlier versions had only scores
        alerts.append({**rated, "index": index, "event": event_labelled, "label": None})
    for alert in alerts:
        alert["label"] = labels.get(alert["entry"])
    return _sort_worst_first(alerts)


def make_label_event(log: Path, entry: int, verdict: str, by: str, note: str = "") -> dict[str, Any]:
    """Make the event that labels an entry as "normal" or "bad", bound to it by its leaf hash."""
    with Ledger.open(log) as ledger:
        if not 0 <= entry < ledger.size:
            raise InputError(f"there is no entry {entry} in {log}: it has {ledger.size}.")
        leaf = ledger.leaf(entry)
    words: dict[str, Any] = {"entry": entry, "leaf": leaf.hex(), "verdict": verdict}
    return make_event(LABEL, f"entry {entry}", {**words, **({"note": note} if note else {})}, actor=by)


def _is_bound(ledger: Ledger, words: dict[str, Any]) -> bool:
    return bool(words["entry"] < ledger.checkpoint().size and ledger.leaf(words["entry"]).hex() == words["leaf"])


def _read_event(ledger: Ledger, entry: int) -> dict[str, Any] | None:
    try:
        return ledger.entry(entry)
    except Unverified as error:
        if error.kind != "missing":
            raise
        return None


def _matches(event: dict[str, Any], entry: int, since: int | None, until: int | None, where: Where | None) -> bool:
    if since is not None and event["time"] < since:
        return False
    if until is not None and event["time"] >= until:
        return False
    return where is None or where({**event, "index": entry})


def _sort_worst_first(alerts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(
        alerts,
        key=lambda alert: (-SEVERITIES.index(alert["severity"]), -(alert["score"] or 0.0), alert["entry"]),
    )
