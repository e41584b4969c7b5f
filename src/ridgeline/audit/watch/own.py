"""The watcher's own events: recorded like any other, bound to what they speak of by index and leaf hash, never scored.

| action                    | says                                                                     |
|---------------------------|--------------------------------------------------------------------------|
| ridgeline.watch.start     | a watcher is ready: its sources, its settings, from which entry it goes on |
| ridgeline.watch.scores    | the scores of some entries in a row, in ten-thousandths; null is an own event |
| ridgeline.watch.alert     | one entry: score, reason, the nearest normal entries                     |
| ridgeline.watch.label     | somebody judged an entry: normal or bad                                  |
| ridgeline.watch.drops     | a source lost events, and how many                                       |
| ridgeline.watch.refused   | something came that was no event                                         |
| ridgeline.watch.gap       | a source could not be read on where it was left                          |
| ridgeline.watch.keys      | under which keys the events just before it came, so that none is taken twice |
| ridgeline.watch.undelivered | an alert that its webhook did not take                                 |
| ridgeline.watch.stop      | a watcher has ended, and what it had done                                |
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ridgeline.audit.ledger.event import decode
from ridgeline.audit.ledger.merkle import HASH
from ridgeline.audit.ledger.tiles import WIDTH
from ridgeline.audit.sources.requests import Known
from ridgeline.errors import Unverified

if TYPE_CHECKING:
    from ridgeline.audit.ledger.ledger import Ledger
    from ridgeline.audit.sources.source import Keyed

SOURCE = "ridgeline.watch"
START, SCORES, ALERT, LABEL, DROPS, REFUSED, GAP, KEYS, UNDELIVERED, STOP = (
    f"{SOURCE}.{word}"
    for word in ("start", "scores", "alert", "label", "drops", "refused", "gap", "keys", "undelivered", "stop")
)
UNIT = 10_000  # a score of 1 is recorded as this
KEYS_AT_ONCE = 256  # keys that one event names
REMEMBERED = 1 << 18  # entries at the end of a log whose keys are remembered
_CLAIMED = "ridgeline."


def is_own(event: Mapping[str, Any]) -> bool:
    """Whether an event is the watcher's or the ledger's: those are not scored and not searched."""
    return str(event["action"]).startswith(_CLAIMED)


def own(action: str, subject: str | None, attributes: Mapping[str, Any], actor: str | None = None) -> dict[str, Any]:
    return {
        "time": time.time_ns(),
        "source": SOURCE,
        "actor": actor,
        "action": action,
        "subject": subject,
        "attributes": dict(attributes),
    }


def foreign(event: dict[str, Any]) -> dict[str, Any]:
    """An event from outside that claims to be one of ours becomes one that says so, and is scored like any other."""
    action = event.get("action")
    if isinstance(action, str) and action.startswith(_CLAIMED):
        return {**event, "action": f"foreign.{action}"}
    return event


def scores_event(first: int, scores: Sequence[float | None], leaves: bytes) -> dict[str, Any]:
    """`leaves`: the leaf hashes of the entries from `first` on, 32 bytes each; their hash binds the scores to them."""
    count = len(scores)
    return own(
        SCORES,
        f"entries {first} to {first + count - 1}",
        {
            "first": first,
            "count": count,
            "leaves_sha256": sha256(leaves).hexdigest(),
            "scores": [None if s is None else round(s * UNIT) for s in scores],
        },
    )


def keys_events(keyed: Sequence[Keyed], count: int, source: str) -> list[dict[str, Any]]:
    """What follows the `count` events of a batch in the same append; where they lie is told as so many entries back."""
    found = list[dict[str, Any]]()
    for start in range(0, len(keyed), KEYS_AT_ONCE):
        at = count + len(found)
        some = keyed[start : start + KEYS_AT_ONCE]
        words = [{"key": k.key, "sha256": k.digest, "back": at - k.first, "count": k.count} for k in some]
        found.append(own(KEYS, source, {"keys": words}))
    return found


def known_keys(ledger: Ledger) -> Iterator[Known]:
    """The keys under which events came, as the end of the log tells them, in its order."""
    size = ledger.checkpoint().size
    for index, event in own_events(ledger, KEYS, start=max(0, size - REMEMBERED), end=size):
        for words in event["attributes"]["keys"]:
            yield Known(words["key"], words["sha256"], index - words["back"], words["count"])


def leaf_of(leaves: bytes, k: int) -> str:
    return leaves[k * HASH : (k + 1) * HASH].hex()


def mark(action: str) -> bytes:
    """What the entry of such an event begins with: canonical JSON puts the action first."""
    return b'{"action":"' + action.encode() + b'"'


def own_events(
    ledger: Ledger, *actions: str, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Events of these actions with their index, in order; only they are decoded. What was pruned is passed over, and so
    is what bears such a name and does not have its shape: others may append to the log too."""
    marks = tuple(mark(action) for action in actions)
    end = ledger.checkpoint().size if end is None else end
    while start < end:
        try:
            for index, raw in ledger.raws(start, end):
                start = index + 1
                if raw.startswith(marks):
                    event = ledger.whole(decode(raw, f"entry {index}"))
                    if well_formed(event):
                        yield index, event
            return
        except Unverified as error:
            if error.kind != "missing":
                raise
            start = (start // WIDTH + 1) * WIDTH


def well_formed(event: Mapping[str, Any]) -> bool:
    """Whether an own event says what its kind must say."""
    words = event["attributes"]
    if event["action"] == SCORES:
        scores = words.get("scores")
        whole = _whole(words.get("first")) and isinstance(scores, list) and words.get("count") == len(scores)
        return bool(whole and all(s is None or _whole(s) for s in scores or ()))
    if event["action"] == ALERT:
        named = isinstance(words.get("leaf"), str) and isinstance(words.get("reason"), str)
        return named and _whole(words.get("entry")) and isinstance(words.get("score"), int | float)
    if event["action"] == KEYS:
        keys = words.get("keys")
        return isinstance(keys, list) and all(isinstance(k, dict) and _is_key(k) for k in keys)
    if event["action"] == LABEL:
        return _whole(words.get("entry")) and words.get("verdict") in ("normal", "bad")
    return True


def _is_key(words: Mapping[str, Any]) -> bool:
    named = isinstance(words.get("key"), str) and isinstance(words.get("sha256"), str)
    return named and _whole(words.get("back")) and _whole(words.get("count"))


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53
