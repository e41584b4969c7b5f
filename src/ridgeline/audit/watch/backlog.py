"""The backlog: entries that are in the log and not yet scored. The log is the queue; memory buffers its newest part.

`add` buffers the events of an append. Entries that do not fit the buffer, and entries that other processes appended
through the writer's socket, are read back from the log. So scoring may fall behind without limit: no append waits for
it, and no event is lost.
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

CAPACITY = 100_000  # events in memory
_LOOK_S = 0.2  # how often to look for entries of other processes
_LATE_S = 0.05  # how long to wait for a running append before reading it back


@dataclass(frozen=True)
class Piece:
    """Consecutive entries; `leaves` are their leaf hashes, 32 bytes each."""

    first: int
    events: list[dict[str, Any]]
    leaves: bytes
    arrival_s: float | None = None  # of the first event (monotonic clock); None if it was read back from the log

    @property
    def end(self) -> int:
        return self.first + len(self.events)

    def cut(self, count: int) -> tuple[Piece, Piece]:
        """Split into the first `count` entries and the rest."""
        return (
            Piece(self.first, self.events[:count], self.leaves[: count * HASH], self.arrival_s),
            Piece(self.first + count, self.events[count:], self.leaves[count * HASH :], self.arrival_s),
        )


class Backlog:
    """The entries from `position` on; `durable()` returns the number of entries in the log.

    capacity  the most events in memory
    """

    def __init__(self, ledger: Ledger, position: int, durable: Callable[[], int], capacity: int = CAPACITY) -> None:
        self.position = position  # the next entry to take
        self._ledger, self._durable, self._capacity = ledger, durable, capacity
        self._pieces: dict[int, Piece] = {}
        self._buffered = 0
        self._change = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        return max(0, self._durable() - self.position)

    def add(self, first: int, events: list[dict[str, Any]], leaves: bytes) -> None:
        """Buffer events that were appended at index `first`; threads may call this in any order."""
        with self._change:
            if first >= self.position and self._buffered + len(events) <= self._capacity and events:
                self._pieces[first] = Piece(first, events, leaves, time.monotonic())
                self._buffered += len(events)
            self._change.notify_all()

    def close(self) -> None:
        """No more events will come: `take` returns the rest, then None."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def take(self, size: int, wait_s: float, until: int | None = None, most: int | None = None) -> Piece | None:
        """Return about `size` entries, never beyond entry `until`; None at the end.

        After the first entry, wait up to `wait_s` seconds for `size` of them. If more are available already, return up
        to `most`, so that a slow scorer catches up.
        """
        self._wait_for_some()
        deadline = time.monotonic() + wait_s
        with self._change:
            while len(self) < size and not self._closed and (left := deadline - time.monotonic()) > 0:
                self._change.wait(left)
        available = len(self)
        if not available:
            return None
        size = max(size, min(available, most or size))
        size = size if until is None or until <= self.position else min(size, until - self.position)
        return self._next(size)

    def _wait_for_some(self) -> None:
        with self._change:
            while not len(self) and not self._closed:
                self._change.wait(_LOOK_S)

    def _next(self, size: int) -> Piece:
        """Join consecutive pieces from memory; if the first entry is not in memory, read from the log."""
        parts: list[Piece] = []
        count, late = 0, time.monotonic() + _LATE_S
        while count < size:
            with self._change:
                piece = self._pieces.pop(self.position, None)
                if piece is not None:
                    self._buffered -= len(piece.events)
                    if len(piece.events) > size - count:
                        piece, rest = piece.cut(size - count)
                        self._pieces[rest.first] = rest
                        self._buffered += len(rest.events)
                    self.position = piece.end
                    parts.append(piece)
                    count += len(piece.events)
                    continue
                following = min((f for f in self._pieces if f > self.position), default=self._durable())
            if parts or self.position >= self._durable():
                break
            if time.monotonic() < late and not self._closed:
                time.sleep(0.002)  # its thread is about to add it
                continue
            return self._read(following, size)
        events, leaves = [e for p in parts for e in p.events], b"".join(p.leaves for p in parts)
        return Piece(parts[0].first, events, leaves, parts[0].arrival_s)

    def _read(self, following: int, size: int) -> Piece:
        """Read entries from the log, up to the next piece in memory; skip pruned entries."""
        events, leaves, first = list[dict[str, Any]](), list[bytes](), self.position
        while first < following and not events:
            try:
                for index, raw in self._ledger.raw_entries(first, min(following, first + size)):
                    leaves.append(leaf_hash(raw))
                    events.append(self._ledger.load_event(decode(raw, f"entry {index}")))
            except Unverified as error:
                if error.kind != "missing":
                    raise
                if not events:
                    first = min((first // WIDTH + 1) * WIDTH, following)
        with self._change:
            self.position = first + len(events)
            for late in [f for f in self._pieces if f < self.position]:  # added after it was read back
                self._buffered -= len(self._pieces.pop(late).events)
        return Piece(first, events, b"".join(leaves))
