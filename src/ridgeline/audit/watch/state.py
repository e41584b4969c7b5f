"""The files of a watcher: how far it has scored, and its detector.

The state and the detector can be rebuilt from the log.

log.private/
  watch/state.json     position, and the folder of the detector at that position
  watch/detector-N/    the detector after entry N
  watch/status.json    the status of the running watcher, for `audit serve`
  watch/notices.json   incidents that wait for the end of the quiet hours
  watch/checked.json   how far the rules were evaluated, if events are not scored
  meaning/             the meaning index (meaning.py)

The positions of the sources are in the ledger's own commits (`Ledger.get_position`).
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.watch import internal_events
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
    def meaning(self) -> Path:
        return self.paths.private / "meaning"

    @property
    def status(self) -> Path:
        return self.watch / "status.json"

    @property
    def notices(self) -> Path:
        return self.watch / "notices.json"

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


def read_checked(places: WatchPaths, ledger: Ledger) -> int:
    """Return the entry from which on rules must be evaluated; the end of the log if they never were."""
    try:
        saved = json.loads((places.watch / "checked.json").read_text(encoding="utf-8"))
        if saved["log"] == str(ledger.verifier):
            return min(int(saved["position"]), ledger.size)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return ledger.size


def write_checked(places: WatchPaths, ledger: Ledger, position: int) -> None:
    """Save how far rules were evaluated without scores."""
    with publish(places.watch / "checked.json") as tmp:
        tmp.write_text(json.dumps({"log": str(ledger.verifier), "position": position}), encoding="utf-8")
