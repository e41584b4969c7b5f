"""What a report says, derived from its rows alone, so that whoever checks them derives the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ridgeline.audit.compliance.controls import MAPS, controls_of, title_of
from ridgeline.audit.ledger.event import PRUNE, decode
from ridgeline.audit.ledger.merkle import leaf_hash
from ridgeline.audit.ledger.moment import show_moment
from ridgeline.audit.watch import own


def listed(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows as events: those from outside that lie in the time asked for, with score, alert and label."""
    first, last = report["first"], report["last"]
    start = None if report["from"] is None else int(report["from"])
    end = None if report["to"] is None else int(report["to"])
    scores, alerts, labels = _said(report)
    found = []
    for row in report["rows"]:
        if not first <= row["index"] <= last:
            continue
        event = event_of(row)
        if (start is not None and event["time"] < start) or (end is not None and event["time"] >= end):
            continue
        if own.is_own(event):
            continue
        index = row["index"]
        found.append(
            {
                **event,
                "index": index,
                "moment": show_moment(event["time"]),
                "leaf": leaf_hash(row["entry"].encode()).hex(),
                "controls": list(controls_of(event, report["control_map"])) if report["control_map"] else [],
                "score": scores.get(index),
                "alert": alerts.get(index),
                "label": labels.get(index),
            }
        )
    return found


def tables(report: dict[str, Any]) -> dict[str, Any]:
    """The summary: changes by actor, source and control, anomalies, completeness."""
    rows = listed(report)
    name = report["control_map"]
    by_control = Counter(control for row in rows for control in row["controls"])
    controls = [
        {"control": control, "what": title_of(name, control), "events": by_control[control]}
        for control, _, _ in (MAPS[name] if name else ())
    ]
    alerts = [row for row in rows if row["alert"]]
    return {
        "events": len(rows),
        "by_actor": _counted(row["actor"] or "(none)" for row in rows),
        "by_source": _counted(row["source"] for row in rows),
        "by_action": _counted(row["action"] for row in rows),
        "by_control": controls,
        "alerts": len(alerts),
        "alerts_open": sum(1 for row in alerts if row["label"] is None),
        "labels": _counted(row["label"]["verdict"] for row in alerts if row["label"]),
        "completeness": _completeness(report),
    }


def event_of(row: dict[str, Any]) -> dict[str, Any]:
    """The event of a row; one that is stored beside the log comes along in `stored`, and its entry has its hash."""
    event = decode(row["entry"].encode(), f"entry {row['index']}")
    if "stored" in row:
        event = {**row["stored"], "time": int(row["stored"]["time"])}
    return event


def _said(report: dict[str, Any]) -> tuple[dict[int, float], dict[int, Any], dict[int, Any]]:
    """Scores, alerts and labels by entry; what is not bound to its entry by the leaf hash counts for nothing."""
    scores: dict[int, float] = {}
    alerts: dict[int, Any] = {}
    labels: dict[int, Any] = {}
    entries = {row["index"]: row["entry"] for row in report["rows"]}

    def bound(words: dict[str, Any]) -> bool:
        raw = entries.get(words["entry"])
        return raw is not None and leaf_hash(raw.encode()).hex() == words.get("leaf")

    for row in report["rows"]:
        event = event_of(row)
        words = event["attributes"]
        if not own.well_formed(event):
            continue
        if event["action"] == own.SCORES:
            span = enumerate(words["scores"], start=words["first"])
            scores.update({index: score / own.UNIT for index, score in span if score is not None})
        elif event["action"] == own.ALERT and bound(words):
            alerts[words["entry"]] = {"index": row["index"], "score": words["score"], "reason": words["reason"]}
        elif event["action"] == own.LABEL and bound(words):
            said = {"by": event["actor"], "verdict": words["verdict"], "note": words.get("note", "")}
            labels[words["entry"]] = {"index": row["index"], "moment": show_moment(event["time"]), **said}
    return scores, alerts, labels


def _completeness(report: dict[str, Any]) -> list[dict[str, Any]]:
    """What a reader must know to judge whether all is there: drops, gaps, refusals, starts, stops, prunings."""
    kinds = {
        own.START: "the watcher started",
        own.STOP: "the watcher stopped",
        own.DROPS: "events were dropped",
        own.REFUSED: "something was no event",
        own.GAP: "a source has a gap",
        own.UNDELIVERED: "an alert was not delivered",
        PRUNE: "payloads were pruned",
    }
    found = []
    for row in report["rows"]:
        event = event_of(row)
        if event["action"] in kinds and own.well_formed(event):
            found.append(
                {
                    "index": row["index"],
                    "moment": show_moment(event["time"]),
                    "what": kinds[event["action"]],
                    "subject": event["subject"] or "",
                    "detail": _detail(event),
                }
            )
    return found


def _detail(event: dict[str, Any]) -> str:
    words = event["attributes"]
    if event["action"] == own.DROPS:
        return f"{words.get('dropped')} events"
    if event["action"] == own.REFUSED:
        return f"{words.get('count')} times: {'; '.join(map(str, words.get('why') or ()))}"[:300]
    if event["action"] == PRUNE:
        return (
            f"entries {words['from']} to {words['to'] - 1} by {event['actor']} ({words['reason'] or 'no reason given'})"
        )
    told = words.get("what") or words.get("why") or ""
    return str(told)[:300]


def _counted(values: Any) -> list[list[Any]]:
    return [list(pair) for pair in sorted(Counter(values).items(), key=lambda pair: (-pair[1], str(pair[0])))]
