"""A file of lines, read to its end or followed as it grows, through rotation, and from where it was left.

A position is the file's inode, the offset, and a hash of its beginning: a file that was replaced under the same name is
seen as another one. What was rotated away while nobody watched is looked for beside the file by its inode, and read to
its end first. If it is gone, or the file was cut, the batch says so.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from ridgeline.audit.sources import Batch, Position
from ridgeline.audit.sources.text import Reader, lines_to_events
from ridgeline.errors import InputError

CHUNK = 256 << 10  # bytes of one batch
_POLL_S = 0.1
_HEAD = 256  # bytes that tell one file from another


class LineFile:
    """`kind` ("lines", "jsonl") and the path name it; `read` makes an event of a line."""

    def __init__(self, path: Path, kind: str, read: Reader, *, follow: bool = True, chunk: int = CHUNK) -> None:
        if path.is_dir():
            raise InputError(f"'{path}' is a folder; give a file.")
        if not follow and not path.is_file():
            raise InputError(f"there is no file '{path}'; check the name, or follow it to wait for it.")
        self.path, self.name = path, f"{kind}:{path.absolute()}"
        self._read, self._follow, self._chunk = read, follow, chunk
        self._stop = asyncio.Event()
        self._gaps: list[str] = []
        self._lines: dict[int, int] = {}  # read so far, by inode, where this process read from the beginning

    def stop(self) -> None:
        self._stop.set()

    async def batches(self, position: Position | None) -> AsyncIterator[Batch]:
        file, offset = self._begin(position)
        try:
            while True:
                if file is None:
                    if self._stop.is_set() or not self._follow:
                        return
                    file, offset = self._open(), 0
                    if file is None:
                        await self._pause()
                        continue
                data, whole = self._piece(file, offset)
                if data:
                    offset += len(data)
                    yield self._batch(file, data, offset)
                    continue
                if self._gaps:
                    yield Batch([], _position(file, offset), gaps=self._told())
                last = not self._follow or self._stop.is_set()
                moved = self._moved(file)
                if not whole and (moved or not self._follow):  # nobody will end that line any more
                    rest = _read_at(file, offset, os.fstat(file.fileno()).st_size - offset)
                    offset += len(rest)
                    yield self._batch(file, rest, offset)
                    continue
                if (size := os.fstat(file.fileno()).st_size) < offset:
                    self._gaps.append(f"{self.path} was cut to {size} bytes after {offset} had been read")
                    offset = 0
                    continue
                if moved:
                    file.close()
                    file, offset = self._open(), 0
                    continue
                if last:
                    return
                await self._pause()
        finally:
            if file is not None:
                file.close()

    def _begin(self, position: Position | None) -> tuple[BinaryIO | None, int]:
        """The file the position speaks of, wherever it lies now."""
        file = self._open()
        if position is None:
            return file, 0
        offset = int(position["offset"])
        if file is not None and _is(file, position):
            return file, offset
        for other in sorted(self.path.parent.glob(self.path.name + "*")):
            if other == self.path or not other.is_file():
                continue
            rotated = other.open("rb")
            if _is(rotated, position):
                if file is not None:
                    file.close()
                return rotated, offset
            rotated.close()
        if file is not None:
            self._gaps.append(
                f"{self.path} is another file than the one read to byte {offset}; what it had after is lost"
            )
        return file, 0

    def _piece(self, file: BinaryIO, offset: int) -> tuple[bytes, bool]:
        """Whole lines from `offset` on, and whether nothing unfinished follows; a line without end is taken at last."""
        data = _read_at(file, offset, self._chunk)
        if not data:
            return b"", True
        end = data.rfind(b"\n") + 1
        if end == 0 and len(data) == self._chunk:  # one long line: read on until it ends
            size = self._chunk
            while b"\n" not in data and len(data) == size:
                size *= 2
                data = _read_at(file, offset, size)
            end = data.find(b"\n") + 1
        return data[:end], end == len(data)

    def _batch(self, file: BinaryIO, data: bytes, offset: int) -> Batch:
        """`data` ends at `offset`; lines are counted where they were from the file's beginning."""
        inode = os.fstat(file.fileno()).st_ino
        start = offset - len(data)
        number = self._lines.get(inode, 0 if start == 0 else None)
        events, refused = lines_to_events(data, self._read, f"of {self.path}", number, start)
        if number is not None:
            self._lines[inode] = number + data.count(b"\n")
        return Batch(events, _position(file, offset), refused=tuple(refused), gaps=self._told())

    def _told(self) -> tuple[str, ...]:
        told, self._gaps = tuple(self._gaps), []
        return told

    def _open(self) -> BinaryIO | None:
        try:
            return self.path.open("rb")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"'{self.path}' cannot be read ({error.strerror}).") from None

    def _moved(self, file: BinaryIO) -> bool:
        """Whether another file has taken the name."""
        try:
            now = os.stat(self.path)
        except OSError:
            return False  # between two files: wait for the next
        return now.st_ino != os.fstat(file.fileno()).st_ino

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), _POLL_S)


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    return os.pread(file.fileno(), size, offset)


def _position(file: BinaryIO, offset: int) -> Position:
    size = min(_HEAD, offset)
    head = sha256(_read_at(file, 0, size)).hexdigest()
    return {"inode": os.fstat(file.fileno()).st_ino, "offset": offset, "head": head, "head_bytes": size}


def _is(file: BinaryIO, position: Position) -> bool:
    size = int(position["head_bytes"])
    head = _read_at(file, 0, size)
    same = os.fstat(file.fileno()).st_ino == position["inode"]
    return same and len(head) == size and sha256(head).hexdigest() == position["head"]
