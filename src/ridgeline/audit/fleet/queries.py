"""Questions to a whole fleet: verify every copy, list all alerts, search all events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.audit.fleet.alerts import read_fleet_alerts, read_pruned_copies
from ridgeline.audit.fleet.copies import FleetPaths, read_collected, read_origins
from ridgeline.audit.ledger.checkpoint import Verifier
from ridgeline.audit.ledger.layout import read_key
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.tiles import Tiles, check_continues
from ridgeline.audit.ledger.verify import Report, examine
from ridgeline.audit.watch.doctor import Finding
from ridgeline.audit.watch.internal_events import read_alerts
from ridgeline.audit.watch.meaning import Hit, Meaning, Where, make_encoder
from ridgeline.audit.watch.rules import SEVERITIES
from ridgeline.errors import StoreError, Unverified
from ridgeline.store import release, try_lock


@dataclass(frozen=True)
class FleetHit:
    """A hit of a search, and the log that has it."""

    origin: str
    hit: Hit


def list_copies(fleet: Path) -> Iterator[tuple[str, Path, Verifier]]:
    """Yield origin, folder and key of every copy that has a checkpoint."""
    paths = FleetPaths(fleet.absolute())
    for origin, key in sorted(read_origins(paths).items()):
        if (paths.copy(origin) / "checkpoint").exists():
            yield origin, paths.copy(origin), key


def examine_fleet(
    fleet: Path, *, full: bool = True, progress: Callable[[str], object] = lambda _: None
) -> list[tuple[str, Report]]:
    """Verify the collector's own ledger and every copy; return (origin, report) of each.

    A copy must have the collector's co-signature, and continue what the collector had on the disk.
    """
    paths = FleetPaths(fleet.absolute())
    collector = read_key(paths.key).verifier
    with Ledger.open(fleet) as ledger:  # first moves the journal of a killed collector into its ledger
        reports = [(ledger.origin, examine(fleet, ledger.verifier, full=full))]
        pruned = read_pruned_copies(ledger)
    keys = read_origins(paths)
    collected = read_collected(paths, keys)  # read before the copies, so that no copy is older
    for origin, key in sorted(keys.items()):
        progress(origin)
        folder, then = paths.copy(origin), collected.get(origin)
        if not (folder / "checkpoint").exists():
            if then is not None:
                report = Report(origin, full=full)
                report.add_finding("missing", f"{folder} is missing: {then.size} entries were stored there.")
                reports.append((origin, report))
            continue
        report = examine(folder, key, full=full, witnesses=[collector], require=1, pruned=pruned.get(origin, ()))
        if then is not None and report.checkpoint is not None and report.ok:
            try:
                check_continues(then, report.checkpoint, Tiles(folder), "what the collector stored")
            except Unverified as error:
                report.add_finding(error.kind, str(error))
        reports.append((origin, report))
    return reports


def diagnose_copies(fleet: Path) -> list[Finding]:
    """Return what the doctor says about each copy of a fleet, after a quick verification."""
    findings = []
    for origin, report in examine_fleet(fleet, full=False)[1:]:
        size = report.checkpoint.size if report.checkpoint is not None else 0
        wrong = "; ".join(finding.sentence for finding in report.findings)[:1_000]
        sentence = (
            f"{origin}: {wrong}" if wrong else f"{origin}: a quick verification of {size:,} entries found nothing."
        )
        findings.append(Finding("copy", not wrong, sentence))
    return findings


def read_alerts_of_fleet(fleet: Path, *, since: int | None = None, where: Where | None = None) -> list[dict[str, Any]]:
    """Return the alerts about hosts, and those of the watchers of all hosts; highest severity and score first."""
    with Ledger.open(fleet) as ledger:
        alerts = [
            alert
            for alert in read_fleet_alerts(ledger, since)
            if where is None or where({**alert["event"], "index": alert["entry"]})
        ]
    for origin, folder, key in list_copies(fleet):
        with Ledger.open(folder, verifier=key) as ledger:
            alerts += [{"origin": origin, **alert} for alert in read_alerts(ledger, since=since, where=where)]
    return sorted(
        alerts, key=lambda a: (-SEVERITIES.index(a["severity"]), -(a["score"] or 0.0), a["origin"], a["entry"])
    )


def search_fleet(
    fleet: Path,
    text: str,
    k: int,
    *,
    model: str,
    device: str = "auto",
    since: int | None = None,
    where: Where | None = None,
    progress: Callable[[str], object] = lambda _: None,
) -> list[FleetHit]:
    """Return the `k` events of all copies that fit `text` best, by meaning and words, best first.

    Every copy has its own index in the private folder; the search first brings each up to date. A sentence that several
    hosts have is encoded once.
    """
    paths = FleetPaths(fleet.absolute())
    encode, vectors = make_encoder(model, device), dict[str, np.ndarray[Any, Any]]()

    def encode_once(texts: list[str]) -> np.ndarray[Any, Any]:
        missing = [t for t in dict.fromkeys(texts) if t not in vectors]
        if missing:
            vectors.update(zip(missing, encode(missing), strict=True))
        return np.stack([vectors[t] for t in texts])

    def search_copy(origin: str, folder: Path, key: Verifier) -> list[Hit]:
        with Ledger.open(folder, verifier=key) as ledger:
            meaning = Meaning(paths.index(origin), str(key), model, encode_once)
            before = meaning.complete
            meaning.catch_up(ledger)
            if meaning.complete > before and saver is not None:
                with suppress(StoreError, OSError):  # a read-only place: it is built again next time
                    meaning.save()
            return meaning.search(text, k, ledger, since=since, where=where)

    hits: list[FleetHit] = []
    saver = try_lock(paths.local.private / "meaning.lock")  # two searches at once must not write the same files
    try:
        for origin, folder, key in list_copies(fleet):
            progress(origin)
            hits += [FleetHit(origin, hit) for hit in search_copy(origin, folder, key)]
    finally:
        if saver is not None:
            release(saver)
    return sorted(hits, key=lambda result: -result.hit.relevance)[:k]
