"""What the page shows of a log: its newest events with their scores, its alerts, how it stands. Read-only, lock-free.

Alerts are gathered as the log grows, a bounded piece at a time, so that a long log does not hold up the first answer.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from typing import TYPE_CHECKING, Any

from ridgeline.audit.ledger.checkpoint import parse_checkpoint
from ridgeline.audit.ledger.event import decode
from ridgeline.audit.ledger.layout import Home
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.proof import prove
from ridgeline.audit.ledger.retention import read_history
from ridgeline.audit.ledger.where import parse_where
from ridgeline.audit.ledger.witness import cosigned_files
from ridgeline.audit.watch import own
from ridgeline.audit.watch.meaning import open_meaning
from ridgeline.audit.watch.state import Places
from ridgeline.errors import Unverified
from ridgeline.store import owner

if TYPE_CHECKING:
    from ridgeline.audit.watch.meaning import Meaning

_STEP = 100_000  # entries looked through for alerts at one go
_FRESH_S = 10.0  # a status older than this is that of a watcher who is gone
_REMEMBERED = 1_000
_BEFORE = 2_048  # entries after an event among which its score is looked for


class Live:
    """One log, looked at by any number of readers."""

    def __init__(self, ledger: Ledger, model: str, device: str = "cpu") -> None:
        self.ledger, self._home = ledger, Home(ledger.path)
        self._places = Places(self._home)
        self._model, self._device = model, device
        self._meaning: Meaning | None = None
        self._lock, self._search_lock = threading.Lock(), threading.Lock()
        self._seen = 0  # entries looked through for alerts
        self._alerts: list[dict[str, Any]] = []
        self._labels: dict[int, dict[str, Any]] = {}
        self._events: dict[int, dict[str, Any]] = {}  # that alerts are about
        self._scored = 0  # entries that have a recorded score

    def status(self) -> dict[str, Any]:
        """Size, root, who signs, witnesses and writes; the watcher's own words where one is running."""
        checkpoint = self.ledger.checkpoint()
        self._look(checkpoint.size)
        watcher = self.watcher()
        return {
            "origin": checkpoint.origin,
            "key": str(self.ledger.verifier),
            "size": checkpoint.size,
            "root": checkpoint.root.hex(),
            "checkpoint": str(checkpoint),
            "signed_ns": str(self._home.checkpoint.stat().st_mtime_ns),
            "witnesses": self._witnesses(),
            "writer": str(held) if (held := owner(self._home.lock)) else None,
            "pruned": [{k: row[k] for k in ("from", "to", "by", "at", "reason")} for row in read_history(self._home)],
            "alerts": len(self._alerts),
            "looked_through": self._seen,
            "scored": self._scored,
            "backlog": watcher["backlog"] if watcher else max(0, checkpoint.size - self._scored),
            "watcher": watcher,
        }

    def watcher(self) -> dict[str, Any] | None:
        """What the running watcher says of itself."""
        try:
            found: dict[str, Any] = json.loads(self._places.status.read_text(encoding="utf-8"))
            return found if abs(time.time() - float(found["at"])) < _FRESH_S else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def events(self, after: int, k: int) -> list[dict[str, Any]]:
        """The newest `k` events from entry `after` on, oldest first, each with its score where it has one."""
        size = self.ledger.checkpoint().size
        start = max(after, size - k, self._kept())
        if start >= size:
            return []
        found = [{**e, "index": i} for i, e in enumerate(self.ledger.entries(start, size), start=start)]
        scores: dict[int, float] = {}
        for event in found:
            if event["action"] == own.SCORES and own.well_formed(event):
                scores.update(_scores(event["attributes"]))
        return [{**_shown(e), "score": scores.get(e["index"]), "own": own.is_own(e)} for e in found]

    def alerts(self, k: int) -> list[dict[str, Any]]:
        """The newest `k` alerts, newest first."""
        self._look(self.ledger.checkpoint().size)
        with self._lock:
            newest = self._alerts[-k:][::-1]
            labels, kept = dict(self._labels), self._kept()
            events = [self._event(alert["entry"], kept) for alert in newest]
        return [
            {**alert, "event": event, "label": labels.get(alert["entry"])}
            for alert, event in zip(newest, events, strict=True)
        ]

    def search(self, text: str, k: int, since: int | None, where: str | None) -> dict[str, Any]:
        matches = parse_where(where) if where else None
        with self._search_lock:  # one at a time: it is the only question that costs
            if self._meaning is None:
                self._meaning = open_meaning(self.ledger, self._model, self._device)
            self._meaning.catch_up(self.ledger)
            hits = self._meaning.search(text, k, self.ledger, since=since, where=matches)
            complete = self._meaning.complete
        rows = [{"entry": h.entry, "score": h.score, "template": h.template, "event": _shown(h.event)} for h in hits]
        return {"hits": rows, "complete": complete, "size": self.ledger.checkpoint().size}

    def entry(self, index: int) -> dict[str, Any]:
        """One event with all that proves it: the entry's bytes, the path to the root, the signed checkpoint."""
        proof = prove(self.ledger, index)
        size = proof.checkpoint.size
        return {
            "index": index,
            "event": _shown(self.ledger.whole(decode(proof.extra))) if proof.extra is not None else None,
            "entry": base64.b64encode(proof.extra).decode() if proof.extra is not None else None,
            "leaf": self.ledger.leaf(index).hex(),
            "path": [base64.b64encode(node).decode() for node in proof.path],
            "size": size,
            "checkpoint": str(proof.checkpoint),
            "key": str(self.ledger.verifier),
            "score": self._score(index, size),
            "proof": str(proof),
        }

    def _look(self, size: int) -> None:
        """Go on looking for alerts, labels and scores."""
        with self._lock:
            end = min(size, self._seen + _STEP)
            if end <= self._seen:
                return
            for index, event in own.own_events(
                self.ledger, own.ALERT, own.LABEL, own.SCORES, start=self._seen, end=end
            ):
                words = event["attributes"]
                if event["action"] == own.SCORES:
                    self._scored = max(self._scored, int(words["first"]) + int(words["count"]))
                elif event["action"] == own.LABEL:
                    self._labels[words["entry"]] = {"verdict": words["verdict"], "by": event["actor"]}
                elif words["entry"] < index and self.ledger.leaf(words["entry"]).hex() == words["leaf"]:
                    self._alerts.append({**words, "index": index})
            self._seen = end

    def _score(self, index: int, size: int) -> float | None:
        if index < self._kept():
            return None
        for _, event in own.own_events(self.ledger, own.SCORES, start=index, end=min(size, index + _BEFORE)):
            found = _scores(event["attributes"])
            if index in found:
                return found[index]
        return None

    def _event(self, entry: int, kept: int) -> dict[str, Any] | None:
        """An entry never changes, so it is read once; pruned ones are forgotten."""
        if entry < kept:
            self._events.pop(entry, None)
            return None
        if entry not in self._events:
            while len(self._events) >= _REMEMBERED:
                self._events.pop(next(iter(self._events)), None)
            self._events[entry] = _shown(self.ledger.entry(entry))
        return self._events[entry]

    def _kept(self) -> int:
        """The first entry whose payload is here."""
        history = read_history(self._home)
        return int(history[-1]["to"]) if history else 0

    def _witnesses(self) -> list[dict[str, Any]]:
        """As the files beside the log say; whoever needs certainty has the witness's key: audit verify --witness."""
        found = []
        for name, data in cosigned_files(self._home):
            try:
                seen = parse_checkpoint(data, name)
            except Unverified:
                continue
            names = [s.name for s in seen.note.signatures if s.name != seen.origin] if seen.note else []
            found.append({"names": names, "size": seen.size})
        return found


def _scores(words: dict[str, Any]) -> dict[int, float]:
    return {int(words["first"]) + k: s / own.UNIT for k, s in enumerate(words["scores"]) if s is not None}


def _shown(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "time": str(event["time"])}
