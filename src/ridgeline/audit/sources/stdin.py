"""The pipe source: lines from standard input or any file descriptor, in large batches if they arrive fast."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncGenerator

from ridgeline.audit.sources.lines import LONGEST, LineReader, parse_lines
from ridgeline.audit.sources.source import Batch, Position

CHUNK = 256 << 10
_POLL_S = 0.1


class PipeSource:
    """Reads a pipe. A pipe waits, so nothing is lost; it cannot be read twice, so it has no position."""

    def __init__(self, read: LineReader, fd: int = 0, name: str = "stdin") -> None:
        self.name, self._read, self._fd = name, read, fd
        self._stopped = False
        self._number = 0  # lines read so far

    def stop(self) -> None:
        self._stopped = True

    async def batches(self, position: Position | None) -> AsyncGenerator[Batch, None]:
        rest, more = b"", 0  # of an unfinished line: its first bytes, and the number of bytes discarded
        while (data := await asyncio.to_thread(self._read_chunk)) is not None:
            if len(rest) > LONGEST:  # the line is too long: only count the further bytes
                ending, newline, data = data.partition(b"\n")
                more += len(ending)
                if not newline:
                    continue
                yield self._batch(rest, more)
                rest, more = b"", 0
            lines, newline, rest = (rest + data).rpartition(b"\n")
            if newline:
                yield self._batch(lines)
        if rest.strip() or more:
            yield self._batch(rest, more)

    def _batch(self, lines: bytes, more: int = 0) -> Batch:
        events, places, refused = parse_lines(lines, self._read, f"of {self.name}", self._number, 0, more)
        self._number += lines.count(b"\n") + 1
        return Batch(events, refused=tuple(refused), places=places)

    def _read_chunk(self) -> bytes | None:
        """Read what is available; None at the end or after `stop`."""
        while not self._stopped:
            if select.select([self._fd], [], [], _POLL_S)[0]:
                return os.read(self._fd, CHUNK) or None
        return None
