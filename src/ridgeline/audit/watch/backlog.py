"""What is in the log and not yet scored: the log itself is the queue, and memory only a short cut to its newest part.

Appends are told here with their events; what memory cannot hold, and what other processes appended through the writer's
door, is read back from the log. So scoring may fall behind as far as it likes: nothing waits for it, nothing is lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ridgeline.audit.ledger.event import decode
from ridgeline.audit.ledger.merkle import HASH, leaf_hash
from ridgeline.audit.ledger.tiles import WIDTH
from ridgeline.errors import Unverified

if TYPE_CHECKING:
    from ridgeline.audit.ledger.ledger import Ledger

HELD = 100_000  # events in memory
_LOOK_S = 0.2  # how often the log is asked for what others appended
_LATE_S = 0.05  # how long an append that is under way is waited for, before it is read back


@dataclass(frozen=True)
class Piece:
    """Entries in a row."""

    first: int
    events: list[dict[str, Any]]
    leaves: bytes
    told: float | None = None  # when the first of them came (monotonic seconds); None where read back from the log

    @property
    def end(self) -> int:
        return self.first + len(self.events)

    def cut(self, count: int) -> tuple[Piece, Piece]:
        """The first `count` entries, and the rest."""
        return (
            Piece(self.first, self.events[:count], self.leaves[: count * HASH], self.told),
            Piece(self.first + count, self.events[count:], self.leaves[count * HASH :], self.told),
        )


class Backlog:
    """From entry `position` on; `durable()` is how many entries the log has."""

    def __init__(self, ledger: Ledger, position: int, durable: Callable[[], int], held: int = HELD) -> None:
        self.position = position  # the next entry to be taken
        self._ledger, self._durable, self._most = ledger, durable, held
        self._pieces: dict[int, Piece] = {}
        self._held = 0
        self._change = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        return max(0, self._durable() - self.position)

    def told(self, first: int, events: list[dict[str, Any]], leaves: bytes) -> None:
        """These events were appended at `first`; threads may come in any order."""
        with self._change:
            if first >= self.position and self._held + len(events) <= self._most and events:
                self._pieces[first] = Piece(first, events, leaves, time.monotonic())
                self._held += len(events)
            self._change.notify_all()

    def close(self) -> None:
        """Nothing more will come: `take` gives what is there, then None."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def take(self, size: int, wait_s: float, until: int | None = None, most: int | None = None) -> Piece | None:
        """`size` entries, waiting `wait_s` for so many once there is one; None at the end. Never beyond `until`.

        Where more are there already, up to `most`: what came meanwhile goes together, so whoever is slow catches up.
        """
        self._wait_for_some()
        deadline = time.monotonic() + wait_s
        with self._change:
            while len(self) < size and not self._closed and (left := deadline - time.monotonic()) > 0:
                self._change.wait(left)
        here = len(self)
        if not here:
            return None
        size = max(size, min(here, most or size))
        size = size if until is None or until <= self.position else min(size, until - self.position)
        return self._next(size)

    def _wait_for_some(self) -> None:
        with self._change:
            while not len(self) and not self._closed:
                self._change.wait(_LOOK_S)

    def _next(self, size: int) -> Piece:
        """Pieces from memory as far as they are in a row; where the first is not there, from the log."""
        parts: list[Piece] = []
        count, late = 0, time.monotonic() + _LATE_S
        while count < size:
            with self._change:
                piece = self._pieces.pop(self.position, None)
                if piece is not None:
                    self._held -= len(piece.events)
                    if len(piece.events) > size - count:
                        piece, rest = piece.cut(size - count)
                        self._pieces[rest.first] = rest
                        self._held += len(rest.events)
                    self.position = piece.end
                    parts.append(piece)
                    count += len(piece.events)
                    continue
                following = min((f for f in self._pieces if f > self.position), default=self._durable())
            if parts or self.position >= self._durable():
                break
            if time.monotonic() < late and not self._closed:
                time.sleep(0.002)  # its thread is about to tell
                continue
            return self._read(following, size)
        events, leaves = [e for p in parts for e in p.events], b"".join(p.leaves for p in parts)
        return Piece(parts[0].first, events, leaves, parts[0].told)

    def _read(self, following: int, size: int) -> Piece:
        """From the log, up to the next piece in memory; what was pruned there is passed over."""
        events, leaves, first = list[dict[str, Any]](), list[bytes](), self.position
        while first < following and not events:
            try:
                for index, raw in self._ledger.raws(first, min(following, first + size)):
                    leaves.append(leaf_hash(raw))
                    events.append(self._ledger.whole(decode(raw, f"entry {index}")))
            except Unverified as error:
                if error.kind != "missing":
                    raise
                if not events:
                    first = min((first // WIDTH + 1) * WIDTH, following)
        with self._change:
            self.position = first + len(events)
            for late in [f for f in self._pieces if f < self.position]:  # told after it was read back
                self._held -= len(self._pieces.pop(late).events)
        return Piece(first, events, b"".join(leaves))
