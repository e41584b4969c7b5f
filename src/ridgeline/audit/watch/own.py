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
| ridgeline.watch.undelivered | an alert that its webhook did not take                                 |
| ridgeline.watch.stop      | a watcher has ended, and what it had done                                |
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ridgeline.audit.event import decode
from ridgeline.audit.merkle import HASH
from ridgeline.audit.tiles import WIDTH
from ridgeline.errors import Unverified

if TYPE_CHECKING:
    from ridgeline.audit.ledger import Ledger

SOURCE = "ridgeline.watch"
START, SCORES, ALERT, LABEL, DROPS, REFUSED, GAP, UNDELIVERED, STOP = (
    f"{SOURCE}.{word}"
    for word in ("start", "scores", "alert", "label", "drops", "refused", "gap", "undelivered", "stop")
)
UNIT = 10_000  # a score of 1 is recorded as this
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
    if event["action"] == LABEL:
        return _whole(words.get("entry")) and words.get("verdict") in ("normal", "bad")
    return True


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53
