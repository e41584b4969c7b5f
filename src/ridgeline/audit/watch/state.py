"""The files of a watcher: how far it has scored, its detector, the positions of its sources.

The state and the detector can be rebuilt from the log.

log.private/
  watch/state.json     position, and the folder of the detector at that position
  watch/detector-N/    the detector after entry N
  watch/status.json    the status of the running watcher, for `audit serve`
  positions/           the position of each source, one file per source
  meaning/             the meaning index (meaning.py)

A position and its events lie in two files but must become valid together. So the position is written before the append,
as an intent: "if the log has these entries from size S on, continue after them, else before them". After a crash the
log decides.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.ledger.merkle import HASH, leaf_hash
from ridgeline.audit.sources.source import Position
from ridgeline.audit.watch import internal_events
from ridgeline.errors import StoreError
from ridgeline.store import publish

if TYPE_CHECKING:
    from ridgeline.audit.ledger.ledger import Ledger

_STATE_FORMAT = 1


@dataclass(frozen=True)
class WatchPaths:
    """The paths of a log's watcher."""

    paths: LedgerPaths

    @property
    def watch(self) -> Path:
        return self.paths.private / "watch"

    @property
    def positions(self) -> Path:
        return self.paths.private / "positions"

    @property
    def meaning(self) -> Path:
        return self.paths.private / "meaning"

    @property
    def status(self) -> Path:
        return self.watch / "status.json"

    def detector(self, position: int) -> Path:
        return self.watch / f"detector-{position}"


@dataclass(frozen=True)
class SavedState:
    """The saved state of a watcher."""

    position: int = 0  # entries that the detector has scored
    recorded: int = 0  # entries with scores in the log
    detector: Path | None = None


def find_state(places: WatchPaths, ledger: Ledger, settings: dict[str, Any]) -> SavedState:
    """Read the saved state from the files; the log decides which scores are recorded."""
    saved: dict[str, Any] = {}
    try:
        saved = json.loads((places.watch / "state.json").read_text(encoding="utf-8"))
        if saved["format"] != _STATE_FORMAT or saved["log"] != str(ledger.verifier):
            saved = {}
    except (OSError, ValueError, KeyError, TypeError):
        saved = {}
    size = ledger.checkpoint().size
    recorded = int(saved.get("recorded", 0))
    for _, event in internal_events.read_internal_events(
        ledger, internal_events.SCORES, start=min(int(saved.get("size", 0)), size)
    ):
        recorded = max(recorded, int(event["attributes"]["first"]) + int(event["attributes"]["count"]))
    folder = places.watch / str(saved["detector"]) if saved.get("detector") else None
    if folder is None or not folder.is_dir() or saved.get("settings") != settings or saved["position"] > size:
        return SavedState(0, min(recorded, size))
    return SavedState(int(saved["position"]), min(recorded, size), folder)


def write_state(places: WatchPaths, ledger: Ledger, detector: Any, state: SavedState, settings: dict[str, Any]) -> None:
    """Save the detector in a new folder, refer to it in state.json, and remove the old folder."""
    folder = places.detector(state.position)
    if folder.exists():
        shutil.rmtree(folder)
    detector.save(folder)
    saved = {
        "format": _STATE_FORMAT,
        "log": str(ledger.verifier),
        "settings": settings,
        "position": state.position,
        "recorded": state.recorded,
        "size": state.recorded,
        "detector": folder.name,
    }
    with publish(places.watch / "state.json") as tmp:
        tmp.write_text(json.dumps(saved), encoding="utf-8")
    for other in places.watch.glob("detector-*"):
        if other.name != folder.name:
            shutil.rmtree(other, ignore_errors=True)


class Positions:
    """The positions of the sources of a log; `ledger` shows whether an intended append happened."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self._folder, self._ledger = folder, ledger
        self._last: dict[str, dict[str, Any]] = {}
        folder.mkdir(mode=0o700, exist_ok=True)

    def find(self, source: str) -> Position | None:
        """Return the position to continue at; None for a source that was never read."""
        words = self._read(source)
        if words is None:
            return None
        appended = words.get("count", 0) == 0 or self._was_appended(words)
        position: Position | None = words["after"] if appended else words["before"]
        self._last[source] = {"source": source, "before": position, "after": position, "count": 0}
        return position

    def intend(self, source: str, after: Position, size: int, leaves: bytes) -> None:
        """Write the intent, before entries with these leaf hashes are appended to a log of `size` or more entries."""
        before = self._last.get(source, {}).get("after")
        words = {
            "source": source,
            "before": before,
            "after": after,
            "size": size,
            "count": len(leaves) // HASH,
            "leaves_sha256": sha256(leaves).hexdigest(),
            "first_leaf": leaves[:HASH].hex(),
        }
        self._write(source, words)

    def confirm(self, source: str) -> None:
        """Confirm the append, so that the next start need not search the log for it."""
        words = self._last.get(source)
        if words is not None and words["count"]:
            self._write(source, {"source": source, "before": words["after"], "after": words["after"], "count": 0})

    @property
    def unconfirmed(self) -> list[str]:
        return [source for source, words in self._last.items() if words["count"]]

    def _was_appended(self, words: dict[str, Any]) -> bool:
        """Whether the log has the entries; those of one append are consecutive."""
        first, count, hashes = bytes.fromhex(words["first_leaf"]), int(words["count"]), list[bytes]()
        size = self._ledger.checkpoint().size
        hashes = [leaf_hash(raw) for _, raw in self._ledger.raw_entries(min(int(words["size"]), size))]
        for at, leaf in enumerate(hashes):
            if leaf == first and sha256(b"".join(hashes[at : at + count])).hexdigest() == words["leaves_sha256"]:
                return True
        return False

    def _path(self, source: str) -> Path:
        return self._folder / f"{sha256(source.encode()).hexdigest()[:16]}.json"

    def _read(self, source: str) -> dict[str, Any] | None:
        path = self._path(source)
        try:
            words: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if words["source"] == source and {"before", "after"} <= set(words):
                return words
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            pass
        raise StoreError(f"{path} is damaged; remove it to read {source} from its beginning.")

    def _write(self, source: str, words: dict[str, Any]) -> None:
        with publish(self._path(source)) as tmp:
            tmp.write_text(json.dumps(words), encoding="utf-8")
        self._last[source] = words
