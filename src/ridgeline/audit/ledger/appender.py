"""Append to a log, whether this process writes it or another one: directly, or through the writer's socket.

    with Appender("log") as log:
        log.append([{"source": "me", "action": "bridge.create", "subject": "br0"}])

Processes start and end, so the writer may change between two calls. A request that the writer certainly did not take is
sent again to the next writer; so every event is appended once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from ridgeline.audit.ledger.checkpoint import parse_checkpoint
from ridgeline.audit.ledger.layout import find_ledger, read_settings
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.personal import Personal
from ridgeline.audit.ledger.writer_socket import NotAppended, WriterClient, WriterLost
from ridgeline.errors import Locked
from ridgeline.store import StrPath, get_owner

TIMEOUT_S = 10.0  # a writer may be opening, closing or pruning for this long
_PAUSE_S = 0.02

T = TypeVar("T")


class Appender:
    """Appends to a log through its writer's socket; becomes the writer if the log has none.

    log        the folder of the ledger
    timeout_s  how long to wait for a writer that does not answer
    """

    def __init__(self, log: StrPath, timeout_s: float = TIMEOUT_S) -> None:
        self._log, self._paths, self._timeout_s = log, find_ledger(log), timeout_s
        self._personal: Personal | None = None
        self._target: WriterClient | Ledger | None = None
        self._connect(time.monotonic() + timeout_s)  # an unwritable log is an error at once

    def append(self, events: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
        """Append events; they are on the disk when this returns. Returns (index of the first, size of the log)."""

        def take(target: WriterClient | Ledger) -> tuple[int, int]:
            if isinstance(target, WriterClient):
                first, _, size = target.append(self.personal.encrypt(events))  # a ledger does it itself
                return first, size
            receipts = target.append(events)
            return receipts.first, receipts.checkpoint_size

        return self._retry(take, NotAppended)

    @property
    def personal(self) -> Personal:
        """Encrypts the personal fields of events."""
        if self._personal is None:
            self._personal = Personal(self._paths, read_settings(self._paths)[0].name)
        return self._personal

    def finish(self) -> int:
        """Let the writer sign a checkpoint of everything; return its size."""

        def sign(target: WriterClient | Ledger) -> int:
            if isinstance(target, WriterClient):
                return parse_checkpoint(target.checkpoint().encode(), "the checkpoint").size
            return target.checkpoint().size

        return self._retry(sign, WriterLost)  # signing twice does no harm

    def close(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            target.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _retry(self, do: Callable[[WriterClient | Ledger], T], again: type[WriterLost]) -> T:
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                return do(self._connect(until))
            except again:
                self.close()
                if time.monotonic() > until:
                    raise

    def _connect(self, until: float) -> WriterClient | Ledger:
        while self._target is None:
            try:
                self._target = (
                    WriterClient(self._paths) if get_owner(self._paths.lock) is not None else self._open_ledger()
                )
            except (WriterLost, Locked):  # the writer is opening, closing or busy
                if time.monotonic() > until:
                    raise
                time.sleep(_PAUSE_S)
        return self._target

    def _open_ledger(self) -> Ledger:
        ledger = Ledger.open(self._log)
        try:
            ledger.append([])  # takes the lock
        except BaseException:
            ledger.close()
            raise
        return ledger
