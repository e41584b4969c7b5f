"""Retention: pruning removes old payloads and keeps their hashes; an event records actor, time and reason.

Pruning removes complete bundles of 256 entries from the beginning of the log (c2sp.org/tlog-tiles, "Pruning"), once
every entry in them is old enough. The event is durable in the log before the first file is removed: after a crash in
between, too much remains, never too little, and the next writer finishes. Every such event repeats the history of the
earlier ones, because their own entries may be pruned later.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ridgeline.audit.ledger.checkpoint import Checkpoint
from ridgeline.audit.ledger.event import PRUNE, decode, encode
from ridgeline.audit.ledger.layout import LedgerPaths, list_tiers
from ridgeline.audit.ledger.tiles import WIDTH, Tiles, read_bundle, tile_path
from ridgeline.errors import InputError, StoreError, Unverified
from ridgeline.store import publish

if TYPE_CHECKING:
    from ridgeline.audit.ledger.event import EncodedEvents
    from ridgeline.audit.ledger.tile_store import TileStore

_HISTORY = 200  # rows that an event repeats; it must stay small


@dataclass(frozen=True)
class PrunedRange:
    """Pruned payloads: entries `start` to `end` (not included), pruned `by` a person at `time` (ns since 1970)."""

    start: int
    end: int
    by: str
    time: int
    reason: str
    index: int  # of the event that records it


class LogWriter(Protocol):
    """What pruning needs of the writer of a log."""

    def publish(self) -> Checkpoint: ...
    def append(self, encoded: EncodedEvents) -> tuple[int, int]: ...
    def prune(self, remove: Callable[[TileStore], None]) -> None: ...


def prune(paths: LedgerPaths, writer: LogWriter, before: int, by: str, reason: str) -> int:
    """Remove the payloads of entries older than `before` (ns since 1970); return the number of entries."""
    if not by:
        raise InputError("the name of the person who prunes is empty; give it: the log keeps it for ever.")
    history = read_history(paths)
    start = history[-1]["to"] if history else 0
    now = writer.publish()
    tiles, number, blobs = Tiles(paths.log), start // WIDTH, set[str]()
    while (number + 1) * WIDTH <= now.size:
        events = read_bundle_events(tiles, now, number)
        if events is None or any(event["time"] >= before for event in events):
            break
        blobs.update(event["stored"]["sha256"] for event in events if "stored" in event)
        number += 1
    end = number * WIDTH
    if end <= start:
        return 0
    words: dict[str, Any] = {"before": str(before), "entries": end - start, "from": start, "to": end, "reason": reason}
    event = {
        "source": "ridgeline.ledger",
        "actor": by,
        "action": PRUNE,
        "subject": f"entries {start} to {end - 1}",
        "attributes": {**words, "history": history[-_HISTORY:], "earlier": max(0, len(history) - _HISTORY)},
    }
    encoded = encode([event], internal=True)
    index, _ = writer.append(encoded)
    decoded = decode(encoded.entries[2:])
    row = {"from": start, "to": end, "by": by, "at": str(decoded["time"]), "reason": reason, "entry": index}
    later = find_needed_blobs(tiles, now, number, blobs)

    def remove(tile_store: TileStore) -> None:
        _write(paths, [*history, row], sorted(blobs - later))
        finish_pruning(paths, tile_store)

    writer.prune(remove)
    return end - start


def finish_pruning(paths: LedgerPaths, tile_store: TileStore) -> None:
    """Remove the files of the last pruning event, if a crash interrupted that."""
    path = _path(paths)
    if not path.exists():
        return
    words = _read(path)
    if not words["pending"]:
        return
    row, tiers = words["history"][-1], list_tiers(paths)
    for number in range(row["from"] // WIDTH, row["to"] // WIDTH):
        for folder in (*tiers, paths.log):  # moved payloads first; a link is not followed
            tile_store.remove(folder / tile_path("entries", number))
    for digest in words["blobs"]:
        tile_store.remove(paths.blob(digest))
    tile_store.sync()
    _write(paths, words["history"], [], pending=False)


def read_pruned_ranges(index: int, event: dict[str, Any]) -> list[PrunedRange]:
    """Read the pruned ranges of the event at `index`: the history it repeats, then its own."""
    words = event["attributes"]
    try:
        rows = [*words.get("history", ()), {**words, "by": event["actor"], "at": str(event["time"]), "entry": index}]
        return [
            PrunedRange(
                int(r["from"]), int(r["to"]), str(r["by"]), int(r["at"]), str(r.get("reason", "")), int(r["entry"])
            )
            for r in rows
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Unverified("malformed", f"entry {index} records a pruning, but not of which entries.") from None


def read_history(paths: LedgerPaths) -> list[dict[str, Any]]:
    """Read the history of prunings, oldest first: from, to, by, at (ns, as digits), reason, entry."""
    path = _path(paths)
    if not path.exists():
        return []
    history: list[dict[str, Any]] = _read(path)["history"]
    return history


def _read(path: Path) -> dict[str, Any]:
    try:
        words: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if (
            isinstance(words["pending"], bool)
            and isinstance(words["blobs"], list)
            and isinstance(words["history"], list)
        ):
            return words
    except (ValueError, KeyError, TypeError):
        pass
    raise StoreError(f"{path} is damaged; restore it from a copy.")


def _write(paths: LedgerPaths, history: list[dict[str, Any]], blobs: list[str], *, pending: bool = True) -> None:
    with publish(_path(paths)) as tmp:
        tmp.write_text(json.dumps({"pending": pending, "blobs": blobs, "history": history}), encoding="utf-8")


def _path(paths: LedgerPaths) -> Path:
    return paths.private / "pruned.json"


def read_bundle_events(tiles: Tiles, now: Checkpoint, number: int) -> list[dict[str, Any]] | None:
    """Return the events of a full bundle, or None if it is pruned; proved, so that no altered time prunes too early."""
    try:
        name = tile_path("entries", number)
        return [decode(entry, name) for entry in read_bundle(tiles, now, number)]
    except Unverified as error:
        if error.kind == "missing":
            return None
        raise


def find_needed_blobs(tiles: Tiles, now: Checkpoint, first: int, blobs: set[str]) -> set[str]:
    """Return those of `blobs` that an entry from bundle `first` on still refers to."""
    needed = set[str]()
    for number in range(first, -(-now.size // WIDTH)) if blobs else ():
        data = b"".join(read_bundle(tiles, now, number))
        needed |= {digest for digest in blobs if digest.encode() in data}
    return needed
