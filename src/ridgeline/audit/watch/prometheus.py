"""A watcher's status in Prometheus's text format.

>>> print(format_metrics({"size": 3, "taken": {'lines:"x"': 2}, "scored": 2, "backlog": 1, "wait_p50_s": None}), end="")
# HELP ridgeline_audit_entries Entries in the log.
# TYPE ridgeline_audit_entries gauge
ridgeline_audit_entries 3
# HELP ridgeline_audit_taken_total Events recorded.
# TYPE ridgeline_audit_taken_total counter
ridgeline_audit_taken_total{source="lines:\\"x\\""} 2
# HELP ridgeline_audit_scored_total Events scored.
# TYPE ridgeline_audit_scored_total counter
ridgeline_audit_scored_total 2
# HELP ridgeline_audit_backlog Entries recorded and not yet scored.
# TYPE ridgeline_audit_backlog gauge
ridgeline_audit_backlog 1
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KNOWN = {
    "size": ("entries", "gauge", "Entries in the log."),
    "taken": ("taken_total", "counter", "Events recorded."),
    "dropped": ("dropped_total", "counter", "Events that a source dropped."),
    "refused": ("refused_total", "counter", "Inputs that are no events."),
    "scored": ("scored_total", "counter", "Events scored."),
    "alerts": ("alerts_total", "counter", "Alerts."),
    "undelivered": ("undelivered_total", "counter", "Alerts that a webhook did not accept."),
    "down": ("source_down", "gauge", "1 while a source is down."),
    "backlog": ("backlog", "gauge", "Entries recorded and not yet scored."),
    "wait_p50_s": ("wait_p50_seconds", "gauge", "Time from the disk to the recorded score, median of recent events."),
    "wait_p99_s": ("wait_p99_seconds", "gauge", "The same, 99th percentile."),
    "seconds": ("up_seconds", "gauge", "Seconds since the watcher started."),
}


def format_metrics(status: Mapping[str, Any]) -> str:
    """Format a watcher's status as Prometheus metrics; counts by source get the label `source`."""
    lines = []
    for key, (name, kind, what) in _KNOWN.items():
        value = status.get(key)
        if value is None:
            continue
        full = f"ridgeline_audit_{name}"
        lines += [f"# HELP {full} {what}", f"# TYPE {full} {kind}"]
        if isinstance(value, Mapping):
            lines += [f'{full}{{source="{_label(str(source))}"}} {count}' for source, count in sorted(value.items())]
        else:
            lines.append(f"{full} {value}")
    return "".join(f"{line}\n" for line in lines)


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
