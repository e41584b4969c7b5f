"""JSON lines from standard input (or any descriptor): taken as they come, in large pieces when they come fast."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncIterator

from ridgeline.audit.sources import Batch, Position
from ridgeline.audit.sources.text import LONGEST, Reader, lines_to_events

CHUNK = 256 << 10
_POLL_S = 0.1


class Piped:
    """A pipe waits for us, so nothing is lost; it cannot be read twice, so there is no position."""

    def __init__(self, read: Reader, fd: int = 0, name: str = "stdin") -> None:
        self.name, self._read, self._fd = name, read, fd
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    async def batches(self, position: Position | None) -> AsyncIterator[Batch]:
        rest, number = b"", 0
        while (data := await asyncio.to_thread(self._some)) is not None:
            whole, newline, rest = (rest + data).rpartition(b"\n")
            if newline or len(rest) > LONGEST:
                whole, rest = (whole, rest) if newline else (rest, b"")
                events, refused = lines_to_events(whole, self._read, f"of {self.name}", number, 0)
                number += whole.count(b"\n") + 1
                yield Batch(events, refused=tuple(refused))
        if rest.strip():
            events, refused = lines_to_events(rest, self._read, f"of {self.name}", number, 0)
            yield Batch(events, refused=tuple(refused))

    def _some(self) -> bytes | None:
        """What is there, or None at the end; looks up now and then whether it was told to stop."""
        while not self._stopped:
            if select.select([self._fd], [], [], _POLL_S)[0]:
                return os.read(self._fd, CHUNK) or None
        return None
