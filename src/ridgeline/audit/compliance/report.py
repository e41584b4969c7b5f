"""Reports: a span of a log with the proof of every entry, as JSON, CSV and one HTML page that checks itself.

`collect` takes every entry from the first to the last of the requested time, and later entries about them (alerts,
labels, prunings). Neighbouring proofs share most hashes, so each hash is stored once and a path is a list of numbers.
`derive_tables` and `render_files` depend on these rows only, so that a checker derives the same files.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ridgeline import web
from ridgeline.audit.compliance.controls import MAPS, find_controls, find_own_controls, find_title
from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.event import PRUNE, decode
from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.merkle import leaf_hash
from ridgeline.audit.ledger.moment import show_moment
from ridgeline.audit.ledger.retention import read_history
from ridgeline.audit.watch import internal_events
from ridgeline.audit.watch.rules import DEFAULT_SEVERITY
from ridgeline.errors import InputError
from ridgeline.store import publish_dir

FORMAT = 1
MOST = 50_000  # most entries of one report: a browser must be able to open it
_PACKAGE = "ridgeline.audit"
COLUMNS = (
    "index", "time", "source", "actor", "action", "subject", "attributes", "controls", "score", "alert", "label",
    "note", "leaf", "proof",
)  # fmt: skip
LISTED_EVENTS = 2_000  # events on the page; the others are in its data and in the CSV
UNFOLDED, FOLDED = 20, 100  # rows of a table in sight, and rows in each folded part after them


def collect(ledger: Ledger, start: int | None, end: int | None, control_map: str | None) -> dict[str, Any]:
    """Collect the data of a report from `start` to `end` (ns since 1970, None: open), sorted by `control_map`.

    Pruned entries cannot be in it; `pruned_before` tells how many. Raises `InputError` if the span is
    empty or too large.
    """
    checkpoint = ledger.checkpoint()
    history = read_history(LedgerPaths(ledger.path))
    first_retained = int(history[-1]["to"]) if history else 0
    first, last = _span(ledger, first_retained, checkpoint.size, start, end)
    if last - first > MOST:
        raise InputError(
            f"{last - first:,} entries are in this time; a report has at most {MOST:,}: narrow it with --from, --to."
        )
    chosen = list(range(first, last))
    chosen += [
        i
        for i, e in internal_events.read_internal_events(
            ledger, internal_events.ALERT, internal_events.LABEL, PRUNE, start=last
        )
        if _about(e, first, last)
    ]
    hashes: dict[bytes, int] = {}
    rows = []
    for index, raw in _raws(ledger, chosen):
        path = ledger.prove_inclusion(index, checkpoint.size)
        if merkle.root_from_inclusion(index, checkpoint.size, merkle.leaf_hash(raw), path) != checkpoint.root:
            raise InputError(f"entry {index} does not lead to the signed root; see: ridgeline audit verify.")
        row: dict[str, Any] = {"index": index, "entry": raw.decode("utf-8")}
        event = ledger.load_event(decode(raw))
        if "stored" in decode(raw):
            row["stored"] = {**event, "time": str(event["time"])}
        row["path"] = [hashes.setdefault(node, len(hashes)) for node in path]
        rows.append(row)
    return {
        "format": FORMAT,
        "ridgeline": version("ridgeline"),
        "origin": ledger.origin,
        "key": str(ledger.verifier),
        "made": str(time.time_ns()),
        "from": None if start is None else str(start),
        "to": None if end is None else str(end),
        "first": first,
        "last": last - 1,
        "control_map": control_map,
        "pruned_before": first_retained,
        "checkpoint": str(checkpoint),
        "hashes": [node.hex() for node in hashes],
        "rows": rows,
    }


def _span(ledger: Ledger, first_retained: int, size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Return the first entry in the requested time, and the one after the last."""
    if start is None and end is None:
        return first_retained, size
    first, last = size, first_retained
    for index, event in enumerate(ledger.entries(first_retained, size), start=first_retained):
        if (start is None or event["time"] >= start) and (end is None or event["time"] < end):
            first, last = min(first, index), index + 1
    if first >= last:
        raise InputError("the log has no entry in the requested time.")
    return first, last


def _about(event: dict[str, Any], first: int, last: int) -> bool:
    entry = event["attributes"].get("entry")
    return event["action"] == PRUNE or (isinstance(entry, int) and first <= entry < last)


def _raws(ledger: Ledger, chosen: list[int]) -> Any:
    at = 0
    while at < len(chosen):  # consecutive entries together, so that a bundle is read once
        run = at
        while run + 1 < len(chosen) and chosen[run + 1] == chosen[run] + 1:
            run += 1
        yield from ledger.raw_entries(chosen[at], chosen[run] + 1)
        at = run + 1


def list_rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of the requested time that are not internal, with score, alert and label."""
    scores, alerts, labels = _read_judgements(report)
    rows = []
    for row in report["rows"]:
        event = make_event(row)
        if internal_events.is_internal(event) or not _in_span(report, row, event):
            continue
        index = row["index"]
        rows.append(
            {
                **event,
                "index": index,
                "moment": show_moment(event["time"]),
                "leaf": leaf_hash(row["entry"].encode()).hex(),
                "controls": list(find_controls(event, report["control_map"])) if report["control_map"] else [],
                "score": scores.get(index),
                "alert": alerts.get(index),
                "label": labels.get(index),
            }
        )
    return rows


def _in_span(report: dict[str, Any], row: dict[str, Any], event: dict[str, Any]) -> bool:
    """Whether an entry is in the requested time, and not one of the later entries about it."""
    start = None if report["from"] is None else int(report["from"])
    end = None if report["to"] is None else int(report["to"])
    if (start is not None and event["time"] < start) or (end is not None and event["time"] >= end):
        return False
    return bool(report["first"] <= row["index"] <= report["last"])


def derive_tables(report: dict[str, Any]) -> dict[str, Any]:
    """Derive the summary: events by actor, source, action and control, anomalies, completeness."""
    rows = list_rows(report)
    name = report["control_map"]
    completeness = _completeness(report)
    # Own events count too: the start and stop of the watcher are what PCI 10.2.1.6 asks for.
    by_control = Counter(control for row in [*rows, *completeness] for control in row["controls"])
    controls = [
        {"control": control, "what": find_title(name, control), "events": by_control[control]}
        for control, _, _ in (MAPS[name] if name else ())
    ]
    alerts = [row for row in rows if row["alert"]]
    return {
        "events": len(rows),
        "by_actor": _count_values(row["actor"] or "(none)" for row in rows),
        "by_source": _count_values(row["source"] for row in rows),
        "by_action": _count_values(row["action"] for row in rows),
        "by_control": controls,
        "alerts": len(alerts),
        "alerts_open": sum(1 for row in alerts if row["label"] is None),
        "labels": _count_values(row["label"]["verdict"] for row in alerts if row["label"]),
        "completeness": completeness,
    }


def make_event(row: dict[str, Any]) -> dict[str, Any]:
    """Return the event of a row; an event stored beside the log is in `stored`, and its entry has its hash."""
    event = decode(row["entry"].encode(), f"entry {row['index']}")
    if "stored" in row:
        event = {**row["stored"], "time": int(row["stored"]["time"])}
    return event


def _read_judgements(report: dict[str, Any]) -> tuple[dict[int, float], dict[int, Any], dict[int, Any]]:
    """Return scores, alerts and labels by entry; ignore those whose leaf hash does not fit the entry."""
    scores: dict[int, float] = {}
    alerts: dict[int, Any] = {}
    labels: dict[int, Any] = {}
    entries = {row["index"]: row["entry"] for row in report["rows"]}

    def bound(words: dict[str, Any]) -> bool:
        raw = entries.get(words["entry"])
        return raw is not None and leaf_hash(raw.encode()).hex() == words.get("leaf")

    for row in report["rows"]:
        event = make_event(row)
        words = event["attributes"]
        if not internal_events.well_formed(event):
            continue
        if event["action"] == internal_events.SCORES:
            span = enumerate(words["scores"], start=words["first"])
            scores.update({index: score / internal_events.UNIT for index, score in span if score is not None})
        elif event["action"] == internal_events.ALERT and bound(words):
            alerts[words["entry"]] = {
                "index": row["index"],
                "score": words["score"],
                "severity": words.get("severity", DEFAULT_SEVERITY),
                "reason": words["reason"],
            }
        elif event["action"] == internal_events.LABEL and bound(words):
            label = {"by": event["actor"], "verdict": words["verdict"], "note": words.get("note", "")}
            labels[words["entry"]] = {"index": row["index"], "moment": show_moment(event["time"]), **label}
    return scores, alerts, labels


def _completeness(report: dict[str, Any]) -> list[dict[str, Any]]:
    """List the events about completeness, with their controls: drops, gaps, outages, starts, stops, prunings."""
    kinds = {
        internal_events.START: "the watcher started",
        internal_events.STOP: "the watcher stopped",
        internal_events.DROPS: "events were dropped",
        internal_events.REFUSED: "something was no event",
        internal_events.GAP: "a source has a gap",
        internal_events.DOWN: "a source is down",
        internal_events.UP: "a source works again",
        internal_events.UNDELIVERED: "an alert was not delivered",
        PRUNE: "payloads were pruned",
    }
    name = report["control_map"]
    rows = []
    for row in report["rows"]:
        event = make_event(row)
        if event["action"] in kinds and internal_events.well_formed(event):
            rows.append(
                {
                    "index": row["index"],
                    "moment": show_moment(event["time"]),
                    "what": kinds[event["action"]],
                    "subject": event["subject"] or "",
                    "detail": _detail(event),
                    "controls": find_own_controls(event, name) if name and _in_span(report, row, event) else [],
                }
            )
    return rows


def _detail(event: dict[str, Any]) -> str:
    words = event["attributes"]
    if event["action"] == internal_events.DROPS:
        return f"{words.get('dropped')} events"
    if event["action"] == internal_events.REFUSED:
        return f"{words.get('count')} times: {'; '.join(map(str, words.get('why') or ()))}"[:300]
    if event["action"] == PRUNE:
        return (
            f"entries {words['from']} to {words['to'] - 1} by {event['actor']} ({words['reason'] or 'no reason given'})"
        )
    detail = words.get("what") or words.get("why") or ""
    return str(detail)[:300]


def _count_values(values: Any) -> list[list[Any]]:
    return [list(pair) for pair in sorted(Counter(values).items(), key=lambda pair: (-pair[1], str(pair[0])))]


def write(report: dict[str, Any], folder: Path) -> None:
    """Write the files of a report into the new folder `folder`, in one step."""
    with publish_dir(folder) as tmp:
        for name, text in render_files(report).items():
            (tmp / name).write_bytes(text.encode("utf-8"))


def render_files(report: dict[str, Any]) -> dict[str, str]:
    """Render the files of a report from its data: name → text. A checker renders them again and compares."""
    full = {**report, "tables": derive_tables(report)}
    return {
        "report.json": json.dumps(full, ensure_ascii=False, indent=1) + "\n",
        "report.csv": _csv(report),
        "report.html": _html(full),
    }


def _csv(report: dict[str, Any]) -> str:
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(COLUMNS)
    hashes = [base64.b64encode(bytes.fromhex(node)).decode() for node in report["hashes"]]
    paths = {row["index"]: " ".join(hashes[k] for k in row["path"]) for row in report["rows"]}
    for row in list_rows(report):
        label = row["label"] or {}
        table.writerow(
            [
                row["index"],
                row["moment"],
                row["source"],
                row["actor"],
                row["action"],
                row["subject"],
                json.dumps(row["attributes"], ensure_ascii=False, separators=(",", ":"), sort_keys=True),
                " ".join(row["controls"]),
                "" if row["score"] is None else f"{row['score']:.4f}",
                row["alert"]["reason"] if row["alert"] else "",
                label.get("verdict", ""),
                label.get("note", ""),
                row["leaf"],
                paths[row["index"]],
            ]
        )
    return out.getvalue()


def _html(full: dict[str, Any]) -> str:
    rows = list_rows(full)
    span = [None if full[name] is None else show_moment(int(full[name]))[:19] + "Z" for name in ("from", "to")]
    body = web.render_template(
        "report.html",
        templates=_PACKAGE,
        report=full,
        tables=full["tables"],
        rows=rows[:LISTED_EVENTS],
        unfolded=UNFOLDED,
        folded=FOLDED,
        more=max(0, len(rows) - LISTED_EVENTS),
        anomalies=[row for row in rows if row["alert"]],
        start=span[0] or "its beginning",
        end=span[1] or "its end",
        created=show_moment(int(full["made"]))[:19] + "Z",
        size=int(full["checkpoint"].split("\n")[1]),
    )
    data = {name: full[name] for name in ("key", "checkpoint", "hashes", "rows")}
    scripts = [web.read_asset("proof.js", _PACKAGE), web.read_asset("report.js", _PACKAGE)]
    styles = [web.read_asset("report.css", _PACKAGE)]
    return web.build_page(f"Audit report: {full['origin']}", body, data=data, styles=styles, scripts=scripts)
