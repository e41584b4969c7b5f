"""Retention: payloads go after their time, hashes stay, and the log says who took them away and when.

Whole bundles of 256 entries go, from the beginning of the log (c2sp.org/tlog-tiles, "Pruning"), once every entry in
them is older than asked. First the event that says so is in the log and on the disk, then the files go: a crash in
between leaves too much, never too little, and the next opening finishes it. The event carries those before it, which
may be pruned themselves by then.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.audit.ledger.checkpoint import Checkpoint
from ridgeline.audit.ledger.event import PRUNE, decode, encode
from ridgeline.audit.ledger.layout import Home
from ridgeline.audit.ledger.reading import read_bundle
from ridgeline.audit.ledger.tiles import WIDTH, Tiles, tile_path
from ridgeline.errors import InputError, StoreError, Unverified
from ridgeline.store import publish

if TYPE_CHECKING:
    from ridgeline.audit.ledger.ledger import Ledger
    from ridgeline.audit.ledger.tile_store import Shelf
    from ridgeline.audit.ledger.writer import Writer

_HISTORY = 200  # rows an event carries; it must stay small


def prune(ledger: Ledger, writer: Writer, before: int, by: str, reason: str) -> int:
    """Take away the payloads of entries older than `before` (ns since 1970); how many entries that were."""
    if not by:
        raise InputError("say who prunes: the log names them for ever.")
    home = Home(ledger.path)
    history = read_history(home)
    start = history[-1]["to"] if history else 0
    now = writer.publish()
    tiles, number, blobs = Tiles(ledger.path), start // WIDTH, set[str]()
    while (number + 1) * WIDTH <= now.size:
        events = _events(tiles, now, number)
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
    encoded = encode([event], own=True)
    index, _ = writer.append(encoded)
    told = decode(encoded.entries[2:])
    row = {"from": start, "to": end, "by": by, "at": str(told["time"]), "reason": reason, "entry": index}
    later = _later_blobs(tiles, now, number, blobs)

    def remove(shelf: Shelf) -> None:
        _write(home, [*history, row], sorted(blobs - later))
        finish(home, shelf)

    writer.prune(remove)
    return end - start


def finish(home: Home, shelf: Shelf) -> None:
    """Take away what the last event said, if that was not done to its end."""
    path = _path(home)
    if not path.exists():
        return
    words = _read(path)
    if not words["pending"]:
        return
    row = words["history"][-1]
    for number in range(row["from"] // WIDTH, row["to"] // WIDTH):
        shelf.remove(home.log / tile_path("entries", number))
    for digest in words["blobs"]:
        shelf.remove(home.blob(digest))
    shelf.settle()
    _write(home, words["history"], [], pending=False)


def read_history(home: Home) -> list[dict[str, Any]]:
    """What was pruned so far: from, to, by, at (ns, as digits), reason, entry."""
    path = _path(home)
    if not path.exists():
        return []
    found: list[dict[str, Any]] = _read(path)["history"]
    return found


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


def _write(home: Home, history: list[dict[str, Any]], blobs: list[str], *, pending: bool = True) -> None:
    with publish(_path(home)) as tmp:
        tmp.write_text(json.dumps({"pending": pending, "blobs": blobs, "history": history}), encoding="utf-8")


def _path(home: Home) -> Path:
    return home.private / "pruned.json"


def _events(tiles: Tiles, now: Checkpoint, number: int) -> list[dict[str, Any]] | None:
    """The events of a full bundle, proved, lest an altered time lets them go early; None where it is gone already."""
    try:
        name = tile_path("entries", number)
        return [decode(entry, name) for entry in read_bundle(tiles, now, number)]
    except Unverified as error:
        if error.kind == "missing":
            return None
        raise


def _later_blobs(tiles: Tiles, now: Checkpoint, first: int, blobs: set[str]) -> set[str]:
    """Those that an entry which stays, from bundle `first` on, still needs."""
    kept = set[str]()
    for number in range(first, -(-now.size // WIDTH)) if blobs else ():
        data = b"".join(read_bundle(tiles, now, number))
        kept |= {digest for digest in blobs if digest.encode() in data}
    return kept
