"""The data of the page of a log: its newest events with scores, its alerts, its status. Read-only; needs no lock.

Alerts are collected as the log grows, a limited number of entries per call, so that a long log does not delay the first
answer.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from typing import TYPE_CHECKING, Any

from ridgeline.audit.ledger.checkpoint import parse_checkpoint
from ridgeline.audit.ledger.event import compile_filter, decode
from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.proof import prove
from ridgeline.audit.ledger.retention import read_history
from ridgeline.audit.ledger.witness import read_cosigned_files
from ridgeline.audit.watch import internal_events
from ridgeline.audit.watch.meaning import open_meaning
from ridgeline.audit.watch.state import WatchPaths
from ridgeline.errors import Unverified
from ridgeline.store import get_owner

if TYPE_CHECKING:
    from ridgeline.audit.watch.meaning import Meaning

_STEP = 100_000  # entries searched for alerts in one call
_FRESH_S = 10.0  # an older status belongs to a watcher that has ended
_REMEMBERED = 1_000
_OWN_EVENTS_AT_END = 256  # more entries after the last score are no events of a watcher that has ended
_BEFORE = 2_048  # entries after an event in which to look for its score


class Live:
    """Reads one log for any number of clients.

    model, device  the encoder for searches, and where it runs: auto, cpu, cuda or cuda:N
    """

    def __init__(self, ledger: Ledger, model: str, device: str = "cpu") -> None:
        self.ledger, self._paths = ledger, LedgerPaths(ledger.path)
        self._places = WatchPaths(self._paths)
        self._model, self._device = model, device
        self._meaning: Meaning | None = None
        self._lock, self._search_lock = threading.Lock(), threading.Lock()
        self._seen = 0  # entries searched for alerts
        self._alerts: list[dict[str, Any]] = []
        self._labels: dict[int, dict[str, Any]] = {}
        self._events: dict[int, dict[str, Any]] = {}  # the events of alerts, by entry
        self._scored = 0  # entries with a recorded score

    def status(self) -> dict[str, Any]:
        """Return size, root, key, witnesses, writer, and the status of the running watcher."""
        checkpoint = self.ledger.checkpoint()
        self._scan(checkpoint.size)
        watcher = self.watcher()
        return {
            "origin": checkpoint.origin,
            "key": str(self.ledger.verifier),
            "size": checkpoint.size,
            "root": checkpoint.root.hex(),
            "checkpoint": str(checkpoint),
            "signed_ns": str(self._paths.checkpoint.stat().st_mtime_ns),
            "witnesses": self._witnesses(),
            "writer": str(writer) if (writer := get_owner(self._paths.lock)) else None,
            "pruned": [{k: row[k] for k in ("from", "to", "by", "at", "reason")} for row in read_history(self._paths)],
            "alerts": len(self._alerts),
            "looked_through": self._seen,
            "scored": self._scored,
            "backlog": watcher["backlog"] if watcher else self._count_unscored(checkpoint.size),
            "watcher": watcher,
        }

    def watcher(self) -> dict[str, Any] | None:
        """Return the status of the running watcher, or None."""
        try:
            status: dict[str, Any] = json.loads(self._places.status.read_text(encoding="utf-8"))
            return status if abs(time.time() - float(status["at"])) < _FRESH_S else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def events(self, after: int, k: int) -> list[dict[str, Any]]:
        """Return the newest `k` events from entry `after` on, oldest first, with their scores."""
        size = self.ledger.checkpoint().size
        start = max(after, size - k, self._first_retained())
        if start >= size:
            return []
        events = [{**e, "index": i} for i, e in enumerate(self.ledger.entries(start, size), start=start)]
        scores: dict[int, float] = {}
        for event in events:
            if event["action"] == internal_events.SCORES and internal_events.well_formed(event):
                scores.update(_scores(event["attributes"]))
        return [
            {**_with_text_time(e), "score": scores.get(e["index"]), "own": internal_events.is_internal(e)}
            for e in events
        ]

    def alerts(self, k: int) -> list[dict[str, Any]]:
        """Return the newest `k` alerts, newest first, with their events and labels."""
        self._scan(self.ledger.checkpoint().size)
        with self._lock:
            newest = self._alerts[-k:][::-1]
            labels, first_retained = dict(self._labels), self._first_retained()
            events = [self._event(alert["entry"], first_retained) for alert in newest]
        return [
            {**alert, "event": event, "label": labels.get(alert["entry"])}
            for alert, event in zip(newest, events, strict=True)
        ]

    def search(self, text: str, k: int, since: int | None, where: str | None) -> dict[str, Any]:
        matches = compile_filter(where) if where else None
        with self._search_lock:  # one search at a time: it is the only expensive request
            if self._meaning is None:
                self._meaning = open_meaning(self.ledger, self._model, self._device)
            self._meaning.catch_up(self.ledger)
            hits = self._meaning.search(text, k, self.ledger, since=since, where=matches)
            complete = self._meaning.complete
        rows = [
            {"entry": h.entry, "relevance": h.relevance, "template": h.template, "event": _with_text_time(h.event)}
            for h in hits
        ]
        return {"hits": rows, "complete": complete, "size": self.ledger.checkpoint().size}

    def entry(self, index: int) -> dict[str, Any]:
        """Return one event with its proof: the bytes of the entry, the path to the root, the signed checkpoint."""
        proof = prove(self.ledger, index)
        size = proof.checkpoint.size
        return {
            "index": index,
            "event": _with_text_time(self.ledger.load_event(decode(proof.extra))) if proof.extra is not None else None,
            "entry": base64.b64encode(proof.extra).decode() if proof.extra is not None else None,
            "leaf": self.ledger.leaf(index).hex(),
            "path": [base64.b64encode(node).decode() for node in proof.path],
            "size": size,
            "checkpoint": str(proof.checkpoint),
            "key": str(self.ledger.verifier),
            "score": self._score(index, size),
            "proof": str(proof),
        }

    def _count_unscored(self, size: int) -> int:
        """Count the entries that wait for a score. The log's own events have none; a long rest is not read for them."""
        start = max(self._scored, self._first_retained())
        if size - start > _OWN_EVENTS_AT_END:
            return size - start
        return sum(not internal_events.is_internal(event) for event in self.ledger.entries(start, size))

    def _scan(self, size: int) -> None:
        """Search further entries for alerts, labels and scores."""
        with self._lock:
            end = min(size, self._seen + _STEP)
            if end <= self._seen:
                return
            for index, event in internal_events.read_internal_events(
                self.ledger,
                internal_events.ALERT,
                internal_events.LABEL,
                internal_events.SCORES,
                start=self._seen,
                end=end,
            ):
                words = event["attributes"]
                if event["action"] == internal_events.SCORES:
                    self._scored = max(self._scored, int(words["first"]) + int(words["count"]))
                elif event["action"] == internal_events.LABEL:
                    self._labels[words["entry"]] = {"verdict": words["verdict"], "by": event["actor"]}
                elif words["entry"] < index and self.ledger.leaf(words["entry"]).hex() == words["leaf"]:
                    self._alerts.append({**words, "index": index})
            self._seen = end

    def _score(self, index: int, size: int) -> float | None:
        if index < self._first_retained():
            return None
        for _, event in internal_events.read_internal_events(
            self.ledger, internal_events.SCORES, start=index, end=min(size, index + _BEFORE)
        ):
            scores = _scores(event["attributes"])
            if index in scores:
                return scores[index]
        return None

    def _event(self, entry: int, first_retained: int) -> dict[str, Any] | None:
        """Return the event of an entry, from the cache if possible; None if it is pruned."""
        if entry < first_retained:
            self._events.pop(entry, None)
            return None
        if entry not in self._events:
            while len(self._events) >= _REMEMBERED:
                self._events.pop(next(iter(self._events)), None)
            self._events[entry] = _with_text_time(self.ledger.entry(entry))
        return self._events[entry]

    def _first_retained(self) -> int:
        """Return the first entry that is not pruned."""
        history = read_history(self._paths)
        return int(history[-1]["to"]) if history else 0

    def _witnesses(self) -> list[dict[str, Any]]:
        """List the co-signed checkpoints in the witness folder, unverified; `audit verify --witness` verifies them."""
        witnesses = []
        for name, data in read_cosigned_files(self._paths):
            try:
                checkpoint = parse_checkpoint(data, name)
            except Unverified:
                continue
            names = (
                [s.name for s in checkpoint.note.signatures if s.name != checkpoint.origin] if checkpoint.note else []
            )
            witnesses.append({"names": names, "size": checkpoint.size})
        return witnesses


def _scores(words: dict[str, Any]) -> dict[int, float]:
    return {int(words["first"]) + k: s / internal_events.UNIT for k, s in enumerate(words["scores"]) if s is not None}


def _with_text_time(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "time": str(event["time"])}
