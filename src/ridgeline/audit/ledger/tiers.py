"""Storage tiers: old payloads move to another, cheaper place; the log reads them through links.

    count = move_payloads("log", "/mnt/archive", before_ns)

Complete bundles of 256 entries move, from the beginning of the log, once every entry in them is old enough. Each is
written and synced at its new place, under ORIGIN/tile/entries/…, before a link takes the place of the file. Hashes and
proofs do not change, and a writer may run meanwhile. Pruning removes moved payloads too. Without its other place a log
has missing entries, and verify says so.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from ridgeline.audit.ledger.checkpoint import Verifier
from ridgeline.audit.ledger.event import decode
from ridgeline.audit.ledger.layout import LARGEST_BUNDLE, LedgerPaths, find_ledger, list_tiers, read_regular
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.retention import read_history
from ridgeline.audit.ledger.tiles import WIDTH, Tiles, read_bundle, tile_path
from ridgeline.errors import InputError
from ridgeline.store import StrPath, explain_errors, publish, sync_folder


def move_payloads(log: StrPath, to: StrPath, before: int, *, verifier: Verifier | None = None) -> int:
    """Move the payloads of entries older than `before` (ns since 1970) below the folder `to`; return their number.

    verifier  the log's public key, for a copy without its private folder
    """
    paths = find_ledger(log)
    folder = Path(os.path.abspath(to))
    if folder == paths.log or paths.log in folder.parents:
        raise InputError(f"{to} lies in the log itself; choose another place.")
    moved = 0
    with Ledger.open(log, verifier=verifier) as ledger:
        checkpoint, tiles = ledger.checkpoint(), Tiles(paths.log)
        tier = folder / ledger.origin.replace("/", "+")
        if paths.private.is_dir():
            _remember(paths, tier)
        for number in range(checkpoint.size // WIDTH):
            name = tile_path("entries", number)
            path = paths.log / name
            if path.is_symlink() or not path.exists():
                continue  # moved or pruned before
            if any(decode(entry, name)["time"] >= before for entry in read_bundle(tiles, checkpoint, number)):
                break
            _move(path, tier / name)
            moved += 1
    if paths.private.is_dir():  # what was pruned meanwhile must not come back
        until = max((int(row["to"]) for row in read_history(paths)), default=0) // WIDTH
        for number in range(until):
            (paths.log / tile_path("entries", number)).unlink(missing_ok=True)
            (tier / tile_path("entries", number)).unlink(missing_ok=True)
    return moved * WIDTH


def _move(path: Path, target: Path) -> None:
    with explain_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    data = read_regular(path, LARGEST_BUNDLE)
    with publish(target) as tmp:
        tmp.write_bytes(data)
    link = path.with_name(f".{path.name}.moved")
    with explain_errors(path):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        os.replace(link, path)
        sync_folder(path.parent)


def _remember(paths: LedgerPaths, tier: Path) -> None:
    known = list_tiers(paths)
    if tier not in known:
        with publish(paths.tiers) as tmp:
            tmp.write_text(json.dumps([*map(str, known), str(tier)]), encoding="utf-8")
