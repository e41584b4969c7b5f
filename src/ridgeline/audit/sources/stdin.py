"""JSON lines from standard input (or any descriptor): taken as they come, in large pieces when they come fast."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncIterator

from ridgeline.audit.sources.source import Batch, Position
from ridgeline.audit.sources.text import LONGEST, Reader, lines_to_events

CHUNK = 256 << 10
_POLL_S = 0.1


class Piped:
    """A pipe waits for us, so nothing is lost; it cannot be read twice, so there is no position."""

    def __init__(self, read: Reader, fd: int = 0, name: str = "stdin") -> None:
        self.name, self._read, self._fd = name, read, fd
        self._stopped = False
        self._number = 0  # lines so far

    def stop(self) -> None:
        self._stopped = True

    async def batches(self, position: Position | None) -> AsyncIterator[Batch]:
        rest, more = b"", 0  # of a line that has not ended: what is kept, and how many bytes are not
        while (data := await asyncio.to_thread(self._some)) is not None:
            if len(rest) > LONGEST:  # the line is too long already: what follows is counted
                ending, newline, data = data.partition(b"\n")
                more += len(ending)
                if not newline:
                    continue
                yield self._batch(rest, more)
                rest, more = b"", 0
            whole, newline, rest = (rest + data).rpartition(b"\n")
            if newline:
                yield self._batch(whole)
        if rest.strip() or more:
            yield self._batch(rest, more)

    def _batch(self, lines: bytes, more: int = 0) -> Batch:
        events, places, refused = lines_to_events(lines, self._read, f"of {self.name}", self._number, 0, more)
        self._number += lines.count(b"\n") + 1
        return Batch(events, refused=tuple(refused), places=places)

    def _some(self) -> bytes | None:
        """What is there, or None at the end; looks up now and then whether it was told to stop."""
        while not self._stopped:
            if select.select([self._fd], [], [], _POLL_S)[0]:
                return os.read(self._fd, CHUNK) or None
        return None
