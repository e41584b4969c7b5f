"""Incidents: alerts of the same kind are one incident, with its first and last time and its count.

Two alerts are of the same kind if the same rules or parts fired, about the same kind of event of the same actor; an
outage is known by its source, an alert about a host by its name.

>>> alert = {"entry": 3, "severity": "high", "fired": ["odd"], "reason": "odd", "score": None,
...          "event": {"time": 5, "action": "disk.wipe", "actor": "guest", "subject": "d1", "attributes": {}}}
>>> incidents = group_alerts([alert, {**alert, "entry": 9, "event": {**alert["event"], "time": 8, "subject": "d2"}}])
>>> [(i.count, i.first, i.last, i.entries) for i in incidents]
[(2, 5, 8, [3, 9])]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.audit.anomaly.sentences import describe_event
from ridgeline.audit.anomaly.template import mask
from ridgeline.audit.ledger.personal import name_pseudonym
from ridgeline.audit.watch.rules import SEVERITIES

_LISTED = 20  # entries of an incident that are listed


@dataclass
class Incident:
    """Alerts of one kind; the severity and the reason are those of the worst one."""

    key: str
    severity: str
    reason: str
    first: int  # ns since 1970
    last: int
    count: int = 0
    entries: list[int] = field(default_factory=list)
    event: dict[str, Any] | None = None  # of the worst alert
    origin: str | None = None

    def add(self, alert: Mapping[str, Any]) -> bool:
        """Add an alert; return whether it is worse than all before it."""
        at = get_time(alert)
        self.first, self.last = (min(self.first, at), max(self.last, at)) if self.count else (at, at)
        self.count += 1
        if alert["entry"] is not None and len(self.entries) < _LISTED:
            self.entries.append(int(alert["entry"]))
        worse = self.count > 1 and SEVERITIES.index(alert["severity"]) > SEVERITIES.index(self.severity)
        if worse or self.count == 1:
            self.severity, self.reason = str(alert["severity"]), str(alert["reason"])
            self.event, self.origin = alert.get("event"), alert.get("origin")
        return worse

    def to_json(self) -> dict[str, Any]:
        """Return the incident; times are texts, because JavaScript would round them."""
        event = {**self.event, "time": str(self.event["time"])} if self.event is not None else None
        return {**vars(self), "first": str(self.first), "last": str(self.last), "event": event}

    @classmethod
    def from_json(cls, words: Mapping[str, Any]) -> Incident:
        event = words["event"]
        event = {**event, "time": int(event["time"])} if event is not None else None
        return cls(**{**words, "first": int(words["first"]), "last": int(words["last"]), "event": event})


def get_time(alert: Mapping[str, Any]) -> int:
    event = alert.get("event")
    return int(event["time"]) if event else 0


def name_incident(alert: Mapping[str, Any]) -> str:
    """Return the key of the incident to which an alert belongs."""
    event = alert.get("event") or {}
    fired = ",".join(sorted(map(str, alert.get("fired") or ["score"])))
    origin = str(alert.get("origin") or "")
    if "outage" in fired:
        return f"outage {event.get('subject')}"
    kind = mask(describe_event(event)) if event else f"entry {alert['entry']}"
    return "\0".join((origin, fired, name_pseudonym(str(event.get("actor") or "")), kind))


def start_incident(key: str, alert: Mapping[str, Any]) -> Incident:
    incident = Incident(key, str(alert["severity"]), str(alert["reason"]), 0, 0)
    incident.add(alert)
    return incident


def group_alerts(alerts: Iterable[Mapping[str, Any]], gap_ns: int | None = None) -> list[Incident]:
    """Group alerts into incidents, worst first; after a pause of `gap_ns` the same kind is another incident."""
    incidents, latest = list[Incident](), dict[str, Incident]()
    for alert in sorted(alerts, key=get_time):
        key = name_incident(alert)
        incident = latest.get(key)
        if incident is None or (gap_ns is not None and get_time(alert) - incident.last > gap_ns):
            incident = latest[key] = start_incident(key, alert)
            incidents.append(incident)
        else:
            incident.add(alert)
    return sorted(incidents, key=lambda i: (-SEVERITIES.index(i.severity), -i.last))
