"""A file of lines, read to its end or followed as it grows, through rotation, and from where it was left.

A position is the file's inode, the offset, and hashes of its beginning and of what stands just before the offset: a
file that was replaced under the same name, or cut and written anew, is seen as another one. What was rotated away while
nobody watched is looked for beside the file by its inode, and read to its end first. If it is gone, or the file was
cut, the batch says so.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from ridgeline.audit.sources.source import Batch, Position
from ridgeline.audit.sources.text import Reader, lines_to_events
from ridgeline.errors import InputError

CHUNK = 256 << 10  # bytes of one batch
_POLL_S = 0.1
_HEAD, _TAIL = 256, 64  # bytes at its beginning, and before the offset, that tell one file from another


@dataclass(frozen=True)
class _Place:
    """How far a file was read, and what it must still have there to be the same."""

    inode: int
    offset: int = 0
    head: bytes = b""
    tail: bytes = b""

    def after(self, data: bytes) -> _Place:
        head, tail = (self.head + data[:_HEAD])[:_HEAD], (self.tail + data[-_TAIL:])[-_TAIL:]
        return _Place(self.inode, self.offset + len(data), head, tail)

    def stands(self, file: BinaryIO) -> bool:
        """Whether the file still has what was read of it; two short reads, so it is asked at every look."""
        return _around(file, self.offset) == (self.head, self.tail)

    def position(self) -> Position:
        return {
            "inode": self.inode,
            "offset": self.offset,
            "head": sha256(self.head).hexdigest(),
            "head_bytes": len(self.head),
            "tail": sha256(self.tail).hexdigest(),
        }


class LineFile:
    """`kind` ("lines", "jsonl") and the path name it; `read` makes an event of a line."""

    def __init__(self, path: Path, kind: str, read: Reader, *, follow: bool = True, chunk: int = CHUNK) -> None:
        if path.is_dir():
            raise InputError(f"'{path}' is a folder; give a file.")
        if path.exists() and not path.is_file():
            raise _irregular(path)
        if not follow and not path.is_file():
            raise InputError(f"there is no file '{path}'; check the name, or follow it to wait for it.")
        self.path, self.name = path, f"{kind}:{path.absolute()}"
        self._read, self._follow, self._chunk = read, follow, chunk
        self._stop = asyncio.Event()
        self._gaps: list[str] = []
        self._number: int | None = None  # lines read so far, where this process read from the file's beginning

    def stop(self) -> None:
        self._stop.set()

    async def batches(self, position: Position | None) -> AsyncIterator[Batch]:
        file, place = self._begin(position)
        try:
            while True:
                if file is None:
                    if self._stop.is_set() or not self._follow:
                        return
                    file, place = self._anew()
                    if file is None:
                        await self._pause()
                        continue
                data, whole = self._piece(file, place.offset)
                if not place.stands(file):  # asked after the reading, so that it holds for what was read
                    place = self._cut(file, place)
                    continue
                if data:
                    place = place.after(data)
                    yield self._batch(data, place)
                    continue
                if self._gaps:
                    yield Batch([], place.position(), gaps=self._told())
                last = not self._follow or self._stop.is_set()
                moved = self._moved(file)
                if not whole and (moved or not self._follow):  # nobody will end that line any more
                    rest = _read_at(file, place.offset, max(0, _size(file) - place.offset))
                    place = place.after(rest)
                    yield self._batch(rest, place)
                    continue
                if moved:
                    file.close()
                    file, place = self._anew()
                    continue
                if last:
                    return
                await self._pause()
        finally:
            if file is not None:
                file.close()

    def _begin(self, position: Position | None) -> tuple[BinaryIO | None, _Place]:
        """The file the position speaks of, wherever it lies now."""
        file, start = self._anew()
        if position is None:
            return file, start
        if file is not None and (place := _found(file, position)) is not None:
            return file, place
        for other in sorted(self.path.parent.glob(escape(self.path.name) + "*")):
            if other == self.path or not other.is_file():
                continue
            try:
                rotated = _opened(other)
            except (OSError, InputError):
                continue  # if it was that one, its lines are told as lost
            if (place := _found(rotated, position)) is not None:
                if file is not None:
                    file.close()
                return rotated, place
            rotated.close()
        if file is not None:
            read = position["offset"]
            self._gaps.append(
                f"{self.path} is another file than the one read to byte {read}; what it had after is lost"
            )
        return file, start

    def _anew(self) -> tuple[BinaryIO | None, _Place]:
        """The file that has the name now, at its beginning."""
        file = self._open()
        return file, _Place(os.fstat(file.fileno()).st_ino if file is not None else 0)

    def _cut(self, file: BinaryIO, place: _Place) -> _Place:
        """Where to go on in a file that was cut: at its beginning, unless only zeros stand there, which a writer that
        does not append leaves when it goes on at its own offset."""
        size = _size(file)
        how = f"was cut to {size} bytes" if size < place.offset else "was cut and written anew"
        self._gaps.append(f"{self.path} {how} after {place.offset} bytes had been read")
        self._number = None
        zeros = _Place(place.inode, place.offset, bytes(len(place.head)), bytes(len(place.tail)))
        return zeros if zeros.stands(file) else _Place(place.inode)

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

    def _batch(self, data: bytes, place: _Place) -> Batch:
        """`data` ends at `place`; lines are counted where they were from the file's beginning."""
        start = place.offset - len(data)
        if start == 0:
            self._number = 0
        events, places, refused = lines_to_events(data, self._read, f"of {self.path}", self._number, start)
        if self._number is not None:
            self._number += data.count(b"\n")
        return Batch(events, place.position(), refused=tuple(refused), gaps=self._told(), places=places)

    def _told(self) -> tuple[str, ...]:
        told, self._gaps = tuple(self._gaps), []
        return told

    def _open(self) -> BinaryIO | None:
        try:
            return _opened(self.path)
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


def _opened(path: Path) -> BinaryIO:
    """A regular file; a pipe that has taken its name is told, and not waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _irregular(path)
    return os.fdopen(fd, "rb")


def _irregular(path: Path) -> InputError:
    return InputError(f"'{path}' is not a regular file; use - for a pipe.")


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    return os.pread(file.fileno(), size, offset)


def _around(file: BinaryIO, offset: int) -> tuple[bytes, bytes]:
    """What tells a file read to `offset` from another; shorter where it does not reach so far."""
    tail = min(_TAIL, offset)
    return _read_at(file, 0, min(_HEAD, offset)), _read_at(file, offset - tail, tail)


def _found(file: BinaryIO, position: Position) -> _Place | None:
    """The place that a position speaks of, if this is its file and has not been cut."""
    offset = int(position["offset"])
    place = _Place(os.fstat(file.fileno()).st_ino, offset, *_around(file, offset))
    known = {"tail": sha256(place.tail).hexdigest(), **position}  # earlier positions say nothing of the tail
    return place if _size(file) >= offset and place.position() == known else None
