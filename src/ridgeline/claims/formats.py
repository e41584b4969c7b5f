"""Findings for other programs: SARIF for code scanners, annotations for GitHub, explanations for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ridgeline.claims.finding import Finding

# What a kind of finding means: the relation that the figures break.
RELATIONS = {
    "ratio": "A factor is one of the two figures that it compares, divided by the other.",
    "change": "A change in percent is the difference of two figures, divided by the first.",
    "rate": "A rate is a count divided by a time.",
    "share": "A share is a part divided by its total.",
    "efficiency": "An efficiency is a speed-up divided by the number of workers.",
    "batch": "The time of an item is the time of its batch, divided by the size of the batch.",
    "derived": "Most rows show that this column follows from two others.",
    "total": "A total is the sum of its parts.",
    "mean": "A mean lies between the smallest and the largest value.",
    "peak": "No measurement exceeds the peak of the data sheet.",
    "percentiles": "Percentiles grow: min ≤ p50 ≤ p99 ≤ max.",
    "equation": "Both sides of an equation are equal.",
    "drift": "A bound number equals the value in its record.",
    "missing": "A binding names a record, a line or a value that exists.",
    "reference": "The words of a binding occur once in the page.",
    "unbound": "Every performance number of a project with records is bound to one.",
}
_UNIT = re.compile(r"(?<=\d)\s*[A-Za-zµ%×][A-Za-zµ]*(?:/[A-Za-zµ]+)?")


def explain_finding(finding: Finding) -> list[str]:
    """Return the relation that a finding is about, its arithmetic with bare figures, and what would mend it."""
    relation = RELATIONS.get(finding.kind, "The figures of a report agree with each other.")
    bare = re.sub(r"\s*/\s*(?=\d)", " ÷ ", _UNIT.sub("", finding.arithmetic.partition(": ")[2] or finding.arithmetic))
    certainty = (
        "a statement of the names or of most rows" if finding.confidence >= 0.9 else "the words around the figures"
    )
    return [
        f"relation    {relation}",
        f"figures     {' '.join(bare.split())}",
        f"known from  {certainty}; rounding is allowed for",
        "to mend     correct the stated result, or the figure that it was computed from",
    ]


def format_github(finding: Finding) -> str:
    """Return a workflow command of GitHub, which shows the finding beside its line."""
    properties = {"file": finding.file, "line": str(finding.line), "title": f"ridgeline check: {finding.kind}"}
    words = ",".join(f"{name}={_escape_property(value)}" for name, value in properties.items())
    message = f"{finding.arithmetic} (stated: {finding.says})"
    return f"::{'warning' if finding.is_note else 'error'} {words}::{_escape_data(message)}"


def make_sarif(findings: Iterable[Finding], version: str) -> dict[str, Any]:
    """Return a log of SARIF 2.1.0 with one result for each finding."""
    listed = list(findings)
    kinds = sorted({finding.kind for finding in listed})
    rules = [
        {"id": kind, "shortDescription": {"text": RELATIONS.get(kind, "The figures of a report agree.")}}
        for kind in kinds
    ]
    results = [
        {
            "ruleId": finding.kind,
            "ruleIndex": kinds.index(finding.kind),
            "level": "warning" if finding.is_note else "error",
            "message": {"text": f"{finding.arithmetic}\nStated: {finding.says}"},
            "rank": round(100 * finding.confidence, 1),
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": _make_uri(finding.file)},
                        "region": {"startLine": max(1, finding.line)},
                    }
                }
            ],
        }
        for finding in listed
    ]
    driver = {"name": "ridgeline check", "version": version, "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def write_sarif(findings: Iterable[Finding], version: str, path: Path) -> None:
    """Write the log to a file."""
    path.write_text(json.dumps(make_sarif(findings, version), indent=2) + "\n")


def _make_uri(file: str) -> str:
    path = Path(file)
    if path.is_absolute():
        return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else path.as_uri()
    return path.as_posix()


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")
