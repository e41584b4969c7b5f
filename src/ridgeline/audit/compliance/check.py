"""Check a report without the log: signature, the proof of every row, no missing row, derived tables, CSV and page."""

from __future__ import annotations

import json
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ridgeline.audit.compliance.report import FORMAT, derive_tables, render_files
from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.checkpoint import Checkpoint, Verifier, read_checkpoint
from ridgeline.audit.ledger.event import decode, encode
from ridgeline.audit.ledger.verify import Finding
from ridgeline.errors import InputError, RidgelineError, Unverified
from ridgeline.store import verify

_LARGEST = 1 << 30
_NAMES = (
    "origin",
    "key",
    "made",
    "from",
    "to",
    "first",
    "last",
    "control_map",
    "checkpoint",
    "hashes",
    "rows",
    "tables",
)


def read_report(folder: Path) -> dict[str, Any]:
    """Read the data of a report, unchecked; raise `InputError` if `folder` has no report."""
    path = folder / "report.json" if folder.is_dir() else folder
    if not path.is_file():
        raise InputError(f"there is no report at '{folder}'; give the folder that `audit report` wrote.")
    if path.stat().st_size > _LARGEST:
        raise InputError(f"'{path}' is larger than any report.")
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        if report["format"] != FORMAT or not all(name in report for name in _NAMES):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"'{path}' is no report; give the folder that `audit report` wrote.") from None
    return dict(report)


def check_report(folder: Path, verifier: Verifier) -> tuple[dict[str, Any], list[Finding]]:
    """Check a report against the log's public key; return its data and the findings."""
    report = read_report(folder)
    findings: list[Finding] = []
    try:
        checkpoint = read_checkpoint(str(report["checkpoint"]).encode(), verifier, "the report's checkpoint")
    except Unverified as error:
        return report, [Finding(error.kind, str(error))]
    if report["key"] != str(verifier) or report["origin"] != checkpoint.origin:
        findings.append(
            Finding("wrong key", f"the report names the log {report['origin']} and the key {report['key']}.")
        )
    try:
        findings += _rows(report, checkpoint)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        findings.append(Finding("malformed", f"the report's rows cannot be read ({error!r})."))
    if not findings:
        findings += _check_derived(report, folder)
    if not findings and folder.is_dir():
        findings += _check_manifest(folder)
    return report, findings


def _rows(report: dict[str, Any], checkpoint: Checkpoint) -> list[Finding]:
    hashes = [bytes.fromhex(node) for node in report["hashes"]]
    findings: list[Finding] = []
    indices = [row["index"] for row in report["rows"]]
    if indices != sorted(set(indices)):
        findings.append(Finding("reordered", "the rows are not in the order of the log, each once."))
    findings += _gaps(report["first"], report["last"], set(indices), checkpoint.size)
    for row in report["rows"]:
        raw, index = row["entry"].encode("utf-8"), row["index"]
        try:
            path = [hashes[k] for k in row["path"]]
            root = merkle.root_from_inclusion(index, checkpoint.size, merkle.leaf_hash(raw), path)
            if root != checkpoint.root:
                raise Unverified("altered", f"entry {index} does not lead to the signed root: it was altered.")
            event = decode(raw, f"entry {index}")
            if ("stored" in event) != ("stored" in row) or ("stored" in row and not _stored(row["stored"], event)):
                raise Unverified("altered", f"entry {index} is not the event whose hash it carries.")
        except RidgelineError as error:
            findings.append(Finding(getattr(error, "kind", "malformed"), str(error)))
    return findings


def _gaps(first: int, last: int, present: set[int], size: int) -> list[Finding]:
    """Find entries of the report's span that it does not have."""
    if not 0 <= first <= last + 1 <= size:
        return [Finding("malformed", f"the report claims entries {first} to {last} of {size}.")]
    missing = last + 1 - first - sum(first <= index <= last for index in present)
    if not missing:
        return []
    gap = next(index for index in range(first, last + 1) if index not in present)
    return [Finding("dropped", f"{missing} entries are left out, the first is {gap}.")]


def _stored(event_stored: dict[str, Any], event: dict[str, Any]) -> bool:
    """Whether a large event has the hash that its entry names."""
    encoded = encode([event_stored], internal=True)
    data = encoded.large[0][2] if encoded.large else encoded.entries[2:]
    return bool(sha256(data).hexdigest() == event["stored"]["sha256"])


def _check_manifest(folder: Path) -> list[Finding]:
    """Check that manifest.json lists the files of the report as they are."""
    if not (folder / "manifest.json").is_file():
        return [Finding("missing", "manifest.json is missing.")]
    try:
        extra = verify(folder).meta
    except RidgelineError as error:
        return [Finding("altered", f"manifest.json and the files do not fit: {error}")]
    return [Finding("altered", "manifest.json has metadata, which no report has.")] if extra else []


def _check_derived(report: dict[str, Any], folder: Path) -> list[Finding]:
    """Check that tables, CSV and page follow from the proved rows."""
    data = {name: value for name, value in report.items() if name != "tables"}
    findings = []
    if derive_tables(data) != report["tables"]:
        findings.append(Finding("altered", "the tables of report.json do not follow from its rows."))
    if not folder.is_dir():
        return findings
    for name, text in render_files(data).items():
        path = folder / name
        if not path.is_file():
            findings.append(Finding("missing", f"{name} is missing."))
        elif path.read_bytes() != text.encode("utf-8"):
            other = (
                ""
                if report["ridgeline"] == version("ridgeline")
                else f" (it was made by ridgeline {report['ridgeline']})"
            )
            findings.append(Finding("altered", f"{name} does not follow from the rows of report.json{other}."))
    return findings
