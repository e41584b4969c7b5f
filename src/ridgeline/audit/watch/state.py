"""What a watcher knows beside the log: how far it has scored, the detector it had learnt. All of it can be made again.

log.private/
  watch/state.json     position, and which folder holds the detector of that position
  watch/detector-N/    the detector after entry N
  watch/status.json    what the running watcher says of itself, for `audit serve`
  positions/           where each source was left (positions.py)
  meaning/             the index of meaning (meaning.py)
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.audit.ledger.layout import Home
from ridgeline.audit.watch import own
from ridgeline.store import publish

if TYPE_CHECKING:
    from ridgeline.audit.ledger.ledger import Ledger

_FORMAT = 1


@dataclass(frozen=True)
class Places:
    """Where a log's watcher keeps what."""

    home: Home

    @property
    def watch(self) -> Path:
        return self.home.private / "watch"

    @property
    def positions(self) -> Path:
        return self.home.private / "positions"

    @property
    def meaning(self) -> Path:
        return self.home.private / "meaning"

    @property
    def status(self) -> Path:
        return self.watch / "status.json"

    def detector(self, position: int) -> Path:
        return self.watch / f"detector-{position}"


@dataclass(frozen=True)
class Left:
    """How a watcher was left."""

    position: int = 0  # entries the detector has seen
    recorded: int = 0  # entries whose scores are in the log
    detector: Path | None = None


def find_left(places: Places, ledger: Ledger, settings: dict[str, Any]) -> Left:
    """From the files, and from the log, which has the last word on what was recorded."""
    words: dict[str, Any] = {}
    try:
        words = json.loads((places.watch / "state.json").read_text(encoding="utf-8"))
        if words["format"] != _FORMAT or words["log"] != str(ledger.verifier):
            words = {}
    except (OSError, ValueError, KeyError, TypeError):
        words = {}
    size = ledger.checkpoint().size
    recorded = int(words.get("recorded", 0))
    for _, event in own.own_events(ledger, own.SCORES, start=min(int(words.get("size", 0)), size)):
        recorded = max(recorded, int(event["attributes"]["first"]) + int(event["attributes"]["count"]))
    folder = places.watch / str(words["detector"]) if words.get("detector") else None
    if folder is None or not folder.is_dir() or words.get("settings") != settings or words["position"] > size:
        return Left(0, min(recorded, size))
    return Left(int(words["position"]), min(recorded, size), folder)


def write_left(places: Places, ledger: Ledger, detector: Any, left: Left, settings: dict[str, Any]) -> None:
    """Save the detector under a new name, point at it, let the old one go."""
    folder = places.detector(left.position)
    if folder.exists():
        shutil.rmtree(folder)
    detector.save(folder)
    words = {
        "format": _FORMAT,
        "log": str(ledger.verifier),
        "settings": settings,
        "position": left.position,
        "recorded": left.recorded,
        "size": left.recorded,
        "detector": folder.name,
    }
    with publish(places.watch / "state.json") as tmp:
        tmp.write_text(json.dumps(words), encoding="utf-8")
    for other in places.watch.glob("detector-*"):
        if other.name != folder.name:
            shutil.rmtree(other, ignore_errors=True)
