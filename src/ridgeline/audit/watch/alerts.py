"""Alerts and labels as the log has them; everything here is read back from signed entries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.watch import own
from ridgeline.errors import InputError, Unverified

if TYPE_CHECKING:
    from collections.abc import Iterable

Where = Callable[[dict[str, Any]], bool]


def read_alerts(
    ledger: Ledger, *, since: int | None = None, until: int | None = None, where: Where | None = None
) -> list[dict[str, Any]]:
    """Every alert with the event it is about, its place in the log and the last label, worst first.

    `since` and `until` (ns) and `where` speak of the event. One whose leaf hash is not that of the entry it names was
    not written by a watcher: it is left out.
    """
    found: list[dict[str, Any]] = []
    labels: dict[int, dict[str, Any]] = {}
    for index, event in own.own_events(ledger, own.ALERT, own.LABEL):
        words = event["attributes"]
        if event["action"] == own.LABEL:
            labels[words["entry"]] = {
                "verdict": words["verdict"],
                "by": event["actor"],
                "note": words.get("note", ""),
                "index": index,
                "time": str(event["time"]),
            }
            continue
        if not _bound(ledger, words):
            continue
        about = _about(ledger, words["entry"])
        if about is not None and not _takes(about, words["entry"], since, until, where):
            continue
        if about is None and where is not None:
            continue  # pruned: nobody can say whether it matches
        found.append({**words, "index": index, "event": about, "label": None})
    for alert in found:
        alert["label"] = labels.get(alert["entry"])
    return _worst_first(found)


def label_event(log: Path, entry: int, verdict: str, by: str, note: str = "") -> dict[str, Any]:
    """The event that labels an entry, bound to it by its leaf hash."""
    with Ledger.open(log) as ledger:
        if not 0 <= entry < ledger.size:
            raise InputError(f"there is no entry {entry} in {log}: it has {ledger.size}.")
        leaf = ledger.leaf(entry)
    words: dict[str, Any] = {"entry": entry, "leaf": leaf.hex(), "verdict": verdict}
    return own.own(own.LABEL, f"entry {entry}", {**words, **({"note": note} if note else {})}, actor=by)


def _bound(ledger: Ledger, words: dict[str, Any]) -> bool:
    return bool(words["entry"] < ledger.checkpoint().size and ledger.leaf(words["entry"]).hex() == words["leaf"])


def _about(ledger: Ledger, entry: int) -> dict[str, Any] | None:
    try:
        return ledger.entry(entry)
    except Unverified as error:
        if error.kind != "missing":
            raise
        return None


def _takes(event: dict[str, Any], entry: int, since: int | None, until: int | None, where: Where | None) -> bool:
    if since is not None and event["time"] < since:
        return False
    if until is not None and event["time"] >= until:
        return False
    return where is None or where({**event, "index": entry})


def _worst_first(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda alert: (-alert["score"], alert["entry"]))
