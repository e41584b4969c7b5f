"""A report as files: JSON (all of it, with proofs), CSV (a row per event), one HTML page that checks itself."""

from __future__ import annotations

import base64
import csv
import io
import json
from pathlib import Path
from typing import Any

from ridgeline import web
from ridgeline.audit.compliance.derived_tables import listed, tables
from ridgeline.audit.ledger.moment import show_moment
from ridgeline.store import publish_dir

_HERE = "ridgeline.audit"
COLUMNS = (
    "index", "time", "source", "actor", "action", "subject", "attributes", "controls", "score", "alert", "label",
    "note", "leaf", "proof",
)  # fmt: skip
SHOWN = 2_000  # events the page lists; the others are in its data, and in the CSV


def write(report: dict[str, Any], folder: Path) -> None:
    """The folder, whole or not there."""
    with publish_dir(folder) as tmp:
        for name, text in files(report).items():
            (tmp / name).write_bytes(text.encode("utf-8"))


def files(report: dict[str, Any]) -> dict[str, str]:
    """What the data make: written once, and made again by whoever checks."""
    full = {**report, "tables": tables(report)}
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
    for row in listed(report):
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
    rows = listed(full)
    span = [None if full[name] is None else show_moment(int(full[name]))[:19] + "Z" for name in ("from", "to")]
    body = web.render(
        "report.html",
        templates=_HERE,
        report=full,
        tables=full["tables"],
        rows=rows[:SHOWN],
        more=max(0, len(rows) - SHOWN),
        anomalies=[row for row in rows if row["alert"]],
        start=span[0] or "its beginning",
        end=span[1] or "its end",
        made=show_moment(int(full["made"]))[:19] + "Z",
        size=int(full["checkpoint"].split("\n")[1]),
    )
    data = {name: full[name] for name in ("key", "checkpoint", "hashes", "rows")}
    scripts = [web.asset("proof.js", _HERE), web.asset("report.js", _HERE)]
    return web.page(f"Audit report: {full['origin']}", body, data=data, scripts=scripts)
