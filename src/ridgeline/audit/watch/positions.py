"""Where each source was left, so that a restart neither loses nor doubles anything.

A position and the events it stands behind must become true together, but lie in two files. So the position is written
first, as an intent: "if the log has these entries from size S on, go on after them, else before them". After a crash
the log itself answers. One small file per source, replaced in one step.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.audit.ledger.merkle import HASH, leaf_hash
from ridgeline.audit.sources.source import Position
from ridgeline.errors import StoreError
from ridgeline.store import publish

if TYPE_CHECKING:
    from ridgeline.audit.ledger.ledger import Ledger


class Positions:
    """The folder of a log's positions; `ledger` is asked whether an intent came true."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self._folder, self._ledger = folder, ledger
        self._last: dict[str, dict[str, Any]] = {}
        folder.mkdir(mode=0o700, exist_ok=True)

    def find(self, source: str) -> Position | None:
        """Where to go on; None for a source that was never read."""
        words = self._read(source)
        if words is None:
            return None
        came = words.get("count", 0) == 0 or self._came(words)
        found: Position | None = words["after"] if came else words["before"]
        self._last[source] = {"source": source, "before": found, "after": found, "count": 0}
        return found

    def intend(self, source: str, after: Position, size: int, leaves: bytes) -> None:
        """Before the append of entries with these leaf hashes to a log of `size` or more."""
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

    def settle(self, source: str) -> None:
        """After that append: the next restart need not search the log for it."""
        words = self._last.get(source)
        if words is not None and words["count"]:
            self._write(source, {"source": source, "before": words["after"], "after": words["after"], "count": 0})

    @property
    def unsettled(self) -> list[str]:
        return [source for source, words in self._last.items() if words["count"]]

    def _came(self, words: dict[str, Any]) -> bool:
        """One append is one piece of the log, so its leaf hashes stand in a row."""
        first, count, hashes = bytes.fromhex(words["first_leaf"]), int(words["count"]), list[bytes]()
        size = self._ledger.checkpoint().size
        hashes = [leaf_hash(raw) for _, raw in self._ledger.raws(min(int(words["size"]), size))]
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
