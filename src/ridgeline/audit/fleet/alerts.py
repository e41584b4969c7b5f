"""Alerts about the hosts of a fleet: events of the collector's own ledger, each about one origin.

| action                     | meaning                                                                         |
|----------------------------|---------------------------------------------------------------------------------|
| ridgeline.fleet.rewritten  | a log does not continue what was seen: its past was rewritten, or it was forked   |
| ridgeline.fleet.replayed   | a forwarder offers an old state again: a log was put back, or its forwarder replays |
| ridgeline.fleet.altered    | the entries of a forwarder are not those that its checkpoint signs                |
| ridgeline.fleet.gap        | entries are missing: skipped, or pruned before they were sent                     |
| ridgeline.fleet.two_keys   | a host uses the name of a known log with another key                              |
| ridgeline.fleet.stranger   | a host that is not trusted                                                        |
| ridgeline.fleet.silent     | a host has sent nothing for too long; ridgeline.fleet.back follows                |
| ridgeline.fleet.clock      | the clock of a host jumped, or its events have times in the future                |
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.retention import PrunedRange
from ridgeline.audit.watch.internal_events import LABEL, read_internal_events
from ridgeline.audit.watch.rules import SEVERITIES

SOURCE = "ridgeline.fleet"
START, STOP, BACK, PRUNE = (f"{SOURCE}.{word}" for word in ("start", "stop", "back", "prune"))
SEVERITY = {
    "rewritten": "critical",
    "replayed": "high",
    "altered": "critical",
    "gap": "high",
    "two_keys": "critical",
    "stranger": "low",
    "silent": "high",
    "clock": "medium",
}
_QUIET_S = 60.0  # the same alert is recorded once in this time, with the number of those left out


class FleetAlerts:
    """Records alerts in the collector's own ledger; several threads may use it. `outlets` get every recorded alert."""

    def __init__(self, ledger: Ledger, outlets: Sequence[Callable[[dict[str, Any]], None]] = ()) -> None:
        self._ledger, self._outlets = ledger, outlets
        self._mutex = threading.Lock()
        self._recent: dict[tuple[str, str], tuple[float, int]] = {}  # (kind, origin) → time, how many since then
        self.count = 0

    def send(self, kind: str, origin: str, reason: str, evidence: Mapping[str, str] | None = None) -> None:
        """Record an alert; it is signed when this returns, unless the same one was recorded a moment ago."""
        self.send_all(kind, [(origin, reason)], evidence)

    def send_all(self, kind: str, hosts: Sequence[tuple[str, str]], evidence: Mapping[str, str] | None = None) -> None:
        """Record the same kind of alert about several (origin, reason), in one commit."""
        events = []
        for origin, reason in hosts:
            left_out = self._count_left_out(kind, origin)
            if left_out is None:
                continue
            words: dict[str, Any] = {"severity": SEVERITY[kind], "reason": reason, **(evidence or {})}
            if left_out:
                words["repeated"] = left_out
            events.append(_make_event(f"{SOURCE}.{kind}", origin, words))
        if not events:
            return
        first = self._ledger.append(events).first
        self._ledger.checkpoint()  # readers see what is signed
        for index, event in enumerate(events, first):
            reason = event["attributes"]["reason"]
            alert = {"entry": index, "severity": SEVERITY[kind], "score": None, "fired": [kind], "reason": reason}
            for outlet in self._outlets:
                outlet({**alert, "origin": event["subject"], "event": event})

    def _count_left_out(self, kind: str, origin: str) -> int | None:
        """Return how many same alerts were left out since the last one; None if this one is left out, too."""
        with self._mutex:
            now = time.monotonic()
            same = kind, origin if kind != "stranger" else ""  # strangers may have any number of names
            at, left_out = self._recent.get(same, (float("-inf"), 0))
            if now - at < _QUIET_S:
                self._recent[same] = at, left_out + 1
                return None
            self._recent[same] = now, 0
            self.count += 1
            return left_out

    def record(self, action: str, subject: str | None, attributes: Mapping[str, Any]) -> None:
        """Record an event; the ledger signs it within a second."""
        self._ledger.append([_make_event(action, subject, attributes)])


def _make_event(action: str, subject: str | None, attributes: Mapping[str, Any]) -> dict[str, Any]:
    event = {"time": time.time_ns(), "source": SOURCE, "action": action, "attributes": dict(attributes)}
    return event | ({"subject": subject} if subject is not None else {})


def read_silent(ledger: Ledger) -> set[str]:
    """Return the origins that were silent when the collector ended."""
    silent = set[str]()
    for _, event in read_internal_events(ledger, f"{SOURCE}.silent", BACK):
        (silent.discard if event["action"] == BACK else silent.add)(event["subject"])
    return silent


def read_fleet_alerts(ledger: Ledger, since: int | None = None) -> list[dict[str, Any]]:
    """Return the alerts of the collector's own ledger, in the form of `read_alerts`, each with its origin."""
    actions = {f"{SOURCE}.{kind}": kind for kind in SEVERITY}
    alerts: list[dict[str, Any]] = []
    labels: dict[int, dict[str, Any]] = {}
    for index, event in read_internal_events(ledger, *actions, LABEL):
        words = event["attributes"]
        if event["action"] == LABEL:
            labels[words["entry"]] = {
                "verdict": words["verdict"],
                "by": event["actor"],
                "note": words.get("note", ""),
                "index": index,
                "time": str(event["time"]),
            }
        elif (since is None or event["time"] >= since) and words.get("severity") in SEVERITIES:
            kind = actions[event["action"]]
            alert = {"entry": index, "severity": words["severity"], "score": None, "fired": [kind]}
            alerts.append({**alert, "reason": str(words.get("reason")), "index": index, "event": event})
    return [{"origin": str(a["event"]["subject"]), **a, "label": labels.get(a["entry"])} for a in alerts]


def read_pruned_copies(ledger: Ledger) -> dict[str, list[PrunedRange]]:
    """Read by origin what was pruned, as the collector's own ledger records it."""
    pruned: dict[str, list[PrunedRange]] = {}
    for index, event in read_internal_events(ledger, PRUNE):
        words = event["attributes"]
        start, end = words.get("from"), words.get("to")
        if isinstance(start, int) and isinstance(end, int) and 0 <= start <= end:
            row = PrunedRange(start, end, str(event["actor"]), event["time"], str(words.get("reason", "")), index)
            pruned.setdefault(str(event["subject"]), []).append(row)
    return pruned
