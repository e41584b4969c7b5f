"""Retention of the copies: old payloads of a host's copy are removed, and the collector's own ledger records it.

    pruned = prune_copies(fleet, before_ns, by="ann@collector", origins=["host1.example/audit"])

Complete bundles of 256 entries go, from the beginning of a copy, once every entry in them is old enough. Their hashes
stay, so every proof holds. The log of the host is not touched, and the key that could sign an event in it is not here:
an event of the collector's own ledger, `ridgeline.fleet.prune`, explains to `verify` what is missing. It is durable
before the first file is removed. A collector may run meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ridgeline.audit.fleet.alerts import PRUNE, SOURCE, read_pruned_copies
from ridgeline.audit.fleet.queries import list_copies
from ridgeline.audit.ledger.appender import Appender
from ridgeline.audit.ledger.checkpoint import Verifier
from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.retention import PrunedRange, find_needed_blobs, read_bundle_events
from ridgeline.audit.ledger.tiles import WIDTH, Tiles, tile_path
from ridgeline.errors import InputError
from ridgeline.store import explain_errors, sync_folder


def prune_copies(
    fleet: Path, before: int, *, by: str, reason: str = "", origins: Sequence[str] | None = None
) -> dict[str, int]:
    """Remove the payloads of the copies' entries older than `before` (ns since 1970); return their number by origin.

    origins  the logs (default: all)
    """
    if not by:
        raise InputError("the name of the person who prunes is empty; give it: the log keeps it for ever.")
    copies = {origin: (folder, key) for origin, folder, key in list_copies(fleet)}
    for origin in origins or ():
        if origin not in copies:
            raise InputError(f"{fleet} has no log of '{origin}'; it has: {', '.join(sorted(copies)) or 'none'}.")
    with Ledger.open(fleet) as ledger:
        known = read_pruned_copies(ledger)
    return {
        origin: _prune_copy(fleet, origin, *copies[origin], known.get(origin, []), before, by, reason)
        for origin in origins or copies
    }


def _prune_copy(
    fleet: Path,
    origin: str,
    folder: Path,
    key: Verifier,
    known: Sequence[PrunedRange],
    before: int,
    by: str,
    reason: str,
) -> int:
    paths, tiles, blobs = LedgerPaths(folder), Tiles(folder), set[str]()
    for row in known[-1:]:  # a crash may have left some of these
        _remove(paths, _list_payloads(paths, row.start // WIDTH, row.end // WIDTH))
    start = max((row.end for row in known), default=0)
    with Ledger.open(folder, verifier=key) as ledger:
        now, number = ledger.checkpoint(), start // WIDTH
    while (number + 1) * WIDTH <= now.size:
        events = read_bundle_events(tiles, now, number)
        if events is None:  # pruned on the host before it was sent
            number += 1
            continue
        if any(event["time"] >= before for event in events):
            break
        blobs.update(event["stored"]["sha256"] for event in events if "stored" in event)
        number += 1
    files = list(_list_payloads(paths, start // WIDTH, number))
    if not files:
        return 0
    needed = find_needed_blobs(tiles, now, number, blobs)
    words = {"from": start, "to": number * WIDTH, "entries": number * WIDTH - start, "reason": reason}
    with Appender(fleet) as appender:
        appender.append(
            [
                {
                    "time": time.time_ns(),
                    "source": SOURCE,
                    "actor": by,
                    "action": PRUNE,
                    "subject": origin,
                    "attributes": {**words, "before": str(before)},
                }
            ]
        )
        appender.finish()  # signed, so that a verification in between can read it
    _remove(paths, [*files, *map(paths.blob, sorted(blobs - needed))])
    return number * WIDTH - start


def _list_payloads(paths: LedgerPaths, first: int, end: int) -> Iterator[Path]:
    """Yield the files of the entries of bundles, and where those are that were moved to other storage."""
    for number in range(first, end):
        path = paths.log / tile_path("entries", number)
        if path.is_symlink():
            yield path.readlink()
        if path.is_symlink() or path.exists():
            yield path


def _remove(paths: LedgerPaths, files: Sequence[Path] | Iterator[Path]) -> None:
    folders = set[Path]()
    for path in files:
        with explain_errors(path):
            path.unlink(missing_ok=True)
        folders.add(path.parent)
    for folder in folders:
        if folder.is_dir():
            with explain_errors(folder):
                sync_folder(folder)
