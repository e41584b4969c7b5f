"""Appending to a log whoever holds it: by oneself, or through the door of the process that does.

    with Appender("log") as log:
        log.append([{"source": "me", "action": "bridge.create", "subject": "br0"}])

Processes come and go, so who holds it may change between two calls: what was surely not taken is sent again, to whoever
holds it then. Events are taken once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from ridgeline.audit.ledger import layout as homes
from ridgeline.audit.ledger.checkpoint import parse_checkpoint
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.writer_socket import Guest, Lost, NotTaken
from ridgeline.errors import Locked
from ridgeline.store import StrPath, owner

PATIENCE_S = 10.0  # for a writer that is opening, closing, or pruning
_PAUSE_S = 0.02

T = TypeVar("T")


class Appender:
    """A way into a log, and another one when that is closed; is itself the writer where nobody else is."""

    def __init__(self, log: StrPath, patience_s: float = PATIENCE_S) -> None:
        self._log, self._home, self._patience_s = log, homes.find(log), patience_s
        self._way: Guest | Ledger | None = None
        self._entered(time.monotonic() + patience_s)  # what cannot be written is said at once

    def append(self, events: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
        """(index of the first, entries in the log then); on the disk when this returns."""

        def take(way: Guest | Ledger) -> tuple[int, int]:
            if isinstance(way, Guest):
                first, _, size = way.append(events)
                return first, size
            receipts = way.append(events)
            return receipts.first, receipts.checkpoint_size

        return self._by_some_way(take, NotTaken)

    def finish(self) -> int:
        """Have all of it signed; how many entries there are."""

        def sign(way: Guest | Ledger) -> int:
            if isinstance(way, Guest):
                return parse_checkpoint(way.checkpoint().encode(), "the checkpoint").size
            return way.checkpoint().size

        return self._by_some_way(sign, Lost)  # asked twice it is the same

    def close(self) -> None:
        way, self._way = self._way, None
        if way is not None:
            way.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _by_some_way(self, do: Callable[[Guest | Ledger], T], again: type[Lost]) -> T:
        until = time.monotonic() + self._patience_s
        while True:
            try:
                return do(self._entered(until))
            except again:
                self.close()
                if time.monotonic() > until:
                    raise

    def _entered(self, until: float) -> Guest | Ledger:
        while self._way is None:
            try:
                self._way = Guest(self._home) if owner(self._home.lock) is not None else self._writing()
            except (Lost, Locked):  # it is opening or closing, or at some other work for a moment
                if time.monotonic() > until:
                    raise
                time.sleep(_PAUSE_S)
        return self._way

    def _writing(self) -> Ledger:
        ledger = Ledger.open(self._log)
        try:
            ledger.append([])  # takes the lock
        except BaseException:
            ledger.close()
            raise
        return ledger
