"""A report checked without the log: signature, every row's proof, no row left out, tables, CSV and page as derived."""

from __future__ import annotations

import json
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ridgeline.audit.compliance.collection import FORMAT
from ridgeline.audit.compliance.derived_tables import tables
from ridgeline.audit.compliance.report_files import files
from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.checkpoint import Checkpoint, read_checkpoint
from ridgeline.audit.ledger.event import decode, encode
from ridgeline.audit.ledger.note import Verifier
from ridgeline.audit.ledger.report import Finding
from ridgeline.errors import InputError, RidgelineError, Unverified

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
    """The report's data; nobody has checked them yet."""
    path = folder / "report.json" if folder.is_dir() else folder
    if not path.is_file():
        raise InputError(f"there is no report at '{folder}'; give the folder that `audit report` wrote.")
    if path.stat().st_size > _LARGEST:
        raise InputError(f"'{path}' is larger than any report.")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT or not all(name in found for name in _NAMES):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"'{path}' is no report of this kind; give what `audit report` wrote.") from None
    return dict(found)


def check_report(folder: Path, verifier: Verifier) -> tuple[dict[str, Any], list[Finding]]:
    """The report, and what is wrong with it."""
    report = read_report(folder)
    findings: list[Finding] = []
    try:
        checkpoint = read_checkpoint(str(report["checkpoint"]).encode(), verifier, "the report's checkpoint")
    except Unverified as error:
        return report, [Finding(error.kind, str(error))]
    if report["key"] != str(verifier) or report["origin"] != checkpoint.origin:
        findings.append(Finding("wrong key", f"the report says it is of {report['origin']} under {report['key']}."))
    try:
        findings += _rows(report, checkpoint)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        findings.append(Finding("malformed", f"the report's rows cannot be read ({error!r})."))
    if not findings:
        findings += _derived(report, folder)
    return report, findings


def _rows(report: dict[str, Any], checkpoint: Checkpoint) -> list[Finding]:
    hashes = [bytes.fromhex(node) for node in report["hashes"]]
    found: list[Finding] = []
    indices = [row["index"] for row in report["rows"]]
    if indices != sorted(set(indices)):
        found.append(Finding("reordered", "the rows are not in the order of the log, each once."))
    found += _gaps(report["first"], report["last"], set(indices), checkpoint.size)
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
            found.append(Finding(getattr(error, "kind", "malformed"), str(error)))
    return found


def _gaps(first: int, last: int, there: set[int], size: int) -> list[Finding]:
    """What the report names as its span and does not hold."""
    if not 0 <= first <= last + 1 <= size:
        return [Finding("malformed", f"the report is said to hold entries {first} to {last} of {size}.")]
    missing = last + 1 - first - sum(first <= index <= last for index in there)
    if not missing:
        return []
    gap = next(index for index in range(first, last + 1) if index not in there)
    return [Finding("dropped", f"{missing} entries are left out, the first is {gap}.")]


def _stored(whole: dict[str, Any], event: dict[str, Any]) -> bool:
    """Whether a large event is the one that its entry has the hash of."""
    encoded = encode([whole], own=True)
    data = encoded.large[0][2] if encoded.large else encoded.entries[2:]
    return bool(sha256(data).hexdigest() == event["stored"]["sha256"])


def _derived(report: dict[str, Any], folder: Path) -> list[Finding]:
    """Tables, CSV and page are what the proved rows make."""
    data = {name: value for name, value in report.items() if name != "tables"}
    found = []
    if tables(data) != report["tables"]:
        found.append(Finding("altered", "the tables of report.json are not what its rows make."))
    if not folder.is_dir():
        return found
    for name, text in files(data).items():
        path = folder / name
        if not path.is_file():
            found.append(Finding("missing", f"{name} is not there."))
        elif path.read_bytes() != text.encode("utf-8"):
            other = (
                ""
                if report["ridgeline"] == version("ridgeline")
                else f" (it was made by ridgeline {report['ridgeline']})"
            )
            found.append(Finding("altered", f"{name} is not what the rows of report.json make{other}."))
    return found
