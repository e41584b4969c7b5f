"""The file source: read a file of lines to its end, or follow it as it grows and rotates, from the saved position.

A position is the inode, the offset, and hashes of the first bytes and of the bytes before the offset. So a file that
was replaced under the same name, or truncated and rewritten, is recognised as another file. A file that was rotated
while no watcher ran is found beside the file and read to its end first; then those that were rotated after it, oldest
first; one that was compressed meanwhile is unpacked. If one of them is gone or damaged, or the file was truncated, the
batch has a gap. A compressed file that was never plain is read once, by `CompressedFile`.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from ridgeline.audit.sources.compressed import COMPRESSED, DAMAGED, can_unpack, open_unpacked, unpack
from ridgeline.audit.sources.lines import LONGEST, JoiningReader, LineReader, parse_lines
from ridgeline.audit.sources.source import Batch, Position
from ridgeline.errors import InputError

CHUNK = 256 << 10  # bytes in one batch
_POLL_S = 0.1
PARTS_S = 2.0  # how long the parts of a line of a container wait for its last one
# "a.log.1", "a.log-20261118", "a.log.2026-11-18.1.gz", but not "a.log.bak"
ROTATED = r"(?:[.-]\d[\dT:_-]*)+(?:\.(?:gz|bz2|xz|zst))?"
_CLOCK_NS = 10**8  # by which the clock of a file system may be behind
_HEAD, _TAIL = 256, 64  # bytes at the beginning and before the offset that identify a file


@dataclass(frozen=True)
class _Lines:
    """Bytes of a file to make events of; of a line that is too long, its first bytes."""

    data: bytes
    tail: bytes  # the last bytes before the place after them
    more: int = 0  # bytes of the first line that were left out

    @property
    def size(self) -> int:
        return len(self.data) + self.more

    def cut(self, size: int) -> _Lines:
        return self if size == self.size else _Lines(self.data[:size], self.data[max(0, size - _TAIL) : size])


@dataclass(frozen=True)
class _Place:
    """How far a file was read, and the bytes that identify it."""

    inode: int
    offset: int = 0
    head: bytes = b""
    tail: bytes = b""

    def after(self, lines: _Lines) -> _Place:
        head, tail = (self.head + lines.data[:_HEAD])[:_HEAD], (self.tail + lines.tail)[-_TAIL:]
        return _Place(self.inode, self.offset + lines.size, head, tail)

    def stands(self, file: BinaryIO) -> bool:
        """Whether the file still has the bytes that were read; costs two short reads."""
        return _read_marks(file, self.offset) == (self.head, self.tail)

    def position(self) -> Position:
        return {
            "inode": self.inode,
            "offset": self.offset,
            "head": sha256(self.head).hexdigest(),
            "head_bytes": len(self.head),
            "tail": sha256(self.tail).hexdigest(),
        }


class LineFile:
    """Reads one file.

    path    the file
    kind    "lines" or "jsonl", part of the source's name
    read    makes an event of a line
    follow  wait for more lines at the end of the file
    chunk   bytes in one batch
    skip    whether an opened file is read elsewhere; then wait for another one under the name
    """

    def __init__(
        self,
        path: Path,
        kind: str,
        read: LineReader,
        *,
        follow: bool = True,
        chunk: int = CHUNK,
        skip: Callable[[BinaryIO], bool] = lambda file: False,
    ) -> None:
        if path.is_dir():
            raise InputError(f"'{path}' is a folder; give a file.")
        if path.exists() and not path.is_file():
            raise _irregular_error(path)
        if not follow and not path.is_file():
            raise InputError(f"there is no file '{path}'; check the name, or follow it to wait for it.")
        self.path, self.name = path, f"{kind}:{path.absolute()}"
        self._read, self._follow, self._chunk, self._skip = read, follow, chunk, skip
        self.poll_s = _POLL_S
        self.identity: tuple[int, int] | None = None  # device and inode of the file being read
        self._stop = asyncio.Event()
        self._gaps: list[str] = []
        self._finished: deque[bytes] = deque(maxlen=100)  # first bytes of the files read to their end: skip copies
        self._searched = (0, 0), 0  # (inode, offset) of a long line, and how far its end was looked for
        self._copied = False  # the file being read is a copy of one that was cut
        self._intact_ns = time.time_ns()  # when the bytes that were read were last seen in the file
        self._waiting = -1, 0.0  # the offset of parts that wait for the rest of their line, and since when
        self._number: int | None = None  # lines read so far, if this process read from the beginning of the file

    def stop(self) -> None:
        self._stop.set()

    async def batches(self, position: Position | None) -> AsyncGenerator[Batch, None]:
        file, place = self._begin(position)
        known = position is not None or not self._follow
        try:
            while True:
                if file is None:
                    if self._stop.is_set() or not self._follow:
                        return
                    file, place = self._open_from_start()
                    if file is None:
                        await self._pause()
                        continue
                if not known:  # save which file it is before the first lines, so that it is found if it is rotated
                    known = True
                    yield Batch([], place.position())
                status = os.fstat(file.fileno())
                self.identity = status.st_dev, status.st_ino
                lines, ends_line = self._read_lines(file, place.offset)
                if not place.stands(file):  # checked after the read, so that it is valid for the bytes read
                    copied = self._open_copy(file, place)
                    if copied is not None:
                        file.close()
                        (file, place), self._copied = copied, True
                    else:
                        place = self._restart_after_cut(file, place)
                    continue
                self._intact_ns = time.time_ns()
                if lines is not None:
                    complete = self._count_whole(lines)
                    if not complete and self._waits_for_rest(lines, place.offset, file):
                        await self._pause()
                        continue
                    lines = lines.cut(complete) if complete else lines
                    place = place.after(lines)
                    yield self._batch(lines, place)
                    continue
                if self._gaps:
                    yield Batch([], place.position(), gaps=self._take_gaps())
                last = not self._follow or self._stop.is_set()
                moved = self._moved(file)
                if not ends_line and (moved or not self._follow):  # no writer will finish that line
                    rest = _read_lines_to(file, place.offset, max(place.offset, _size(file)))
                    place = place.after(rest)
                    yield self._batch(rest, place)
                    continue
                if moved:
                    finished, end, file = file, place.offset, None
                    with finished:
                        file, place = self._open_next(finished)
                    if self._copied and file is not None:
                        place = _skip_zeros(file, place, end)
                    self._copied = False
                    continue
                if last:
                    return
                await self._pause()
        finally:
            if file is not None:
                file.close()

    def _begin(self, position: Position | None) -> tuple[BinaryIO | None, _Place]:
        """Open the file of the position, which may be rotated, and return it with its place."""
        file, start = self._open_from_start()
        if position is None:
            return file, start
        if file is not None and (place := find_place(file, position)) is not None:
            return file, place
        for other in sorted(self.path.parent.glob(escape(self.path.name) + "*")):
            if other == self.path or not other.is_file():
                continue
            if (rotated := self._open_rotated(other, position)) is not None:
                if file is not None:
                    file.close()
                return rotated
        if file is not None:
            read = position["offset"]
            self._gaps.append(
                f"{self.path} is another file than the one read to byte {read}; the rest of that file is lost"
            )
        return file, start

    def _open_from_start(self) -> tuple[BinaryIO | None, _Place]:
        """Open the file that has the name now, at its beginning."""
        file = self._open()
        return file, _Place(os.fstat(file.fileno()).st_ino if file is not None else 0)

    def _open_next(self, finished: BinaryIO) -> tuple[BinaryIO | None, _Place]:
        """Open the file that was written after `finished`, which was rotated: the name may have moved on since."""
        self._finished.append(_read_at(finished, 0, _HEAD))
        for path, inode in self._list_later(finished):
            try:
                file = open_regular(path)
            except (OSError, InputError):
                continue  # it is being rotated further, or removed
            if os.fstat(file.fileno()).st_ino != inode:  # rotated between the two calls: look again
                file.close()
                return self._open_next(finished)
            start = _read_at(file, 0, _HEAD)
            if can_unpack(start):
                unpacked = self._unpack(file, path)
                if unpacked is None:
                    continue
                file, inode = unpacked, os.fstat(unpacked.fileno()).st_ino
                start = _read_at(file, 0, _HEAD)
            elif start.startswith(COMPRESSED):
                self._gaps.append(f"{path} was compressed before it was read; its lines are lost")
                start = b""
            if start and start not in self._finished:
                self._number = None
                return file, _Place(inode)
            file.close()
        return self._open_from_start()

    @staticmethod
    def _open_rotated(path: Path, position: Position) -> tuple[BinaryIO, _Place] | None:
        """Open a rotated file at a position, unpacked if it was compressed; None if it is another file."""
        try:
            file = open_regular(path)
            if can_unpack(_read_at(file, 0, _TAIL)) and find_place(file, position) is None:
                with file as packed:
                    file = unpack(packed)
                position = position | {"inode": os.fstat(file.fileno()).st_ino}
        except (*DAMAGED, InputError):
            return None
        place = find_place(file, position)
        if place is None:
            file.close()
            return None
        return file, place

    def _unpack(self, file: BinaryIO, path: Path) -> BinaryIO | None:
        """Return the unpacked bytes of a rotated file and close it; None, and a gap, if that cannot be done."""
        with file:
            try:
                return unpack(file)
            except DAMAGED as error:
                self._gaps.append(f"{path} cannot be unpacked ({error}); lines that were not read before are lost")
                return None

    def _list_later(self, finished: BinaryIO) -> list[tuple[Path, int]]:
        """List the rotated files that were written later than `finished`, oldest first, with their inodes."""
        done = os.fstat(finished.fileno()).st_mtime_ns
        return self._list_rotated(finished, lambda status: status.st_mtime_ns > done)

    def _list_rotated(self, file: BinaryIO, fits: Callable[[os.stat_result], bool]) -> list[tuple[Path, int]]:
        """List the rotated files but `file` that fit, oldest first, with their inodes."""
        current, rotated = os.fstat(file.fileno()).st_ino, re.compile(re.escape(self.path.name) + ROTATED)
        copies = list[tuple[int, Path, int]]()
        for path in self.path.parent.glob(escape(self.path.name) + "[.-]*"):
            if rotated.fullmatch(path.name) is None:
                continue
            with suppress(OSError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode) and status.st_ino != current and fits(status):
                    copies.append((status.st_mtime_ns, path, status.st_ino))
        return [(path, inode) for _, path, inode in sorted(copies)]

    def _open_copy(self, file: BinaryIO, place: _Place) -> tuple[BinaryIO, _Place] | None:
        """Open the copy that logrotate's copytruncate made before it cut the file: it has the lines not read yet.

        An older copy with the same bytes was read before, so the copy must be younger than the last look at the file.
        """
        for path, inode in self._list_rotated(file, lambda status: status.st_ctime_ns >= self._intact_ns - _CLOCK_NS):
            with suppress(OSError, InputError):
                copy, at = open_regular(path), replace(place, inode=inode)
                if place.offset and os.fstat(copy.fileno()).st_ino == inode and at.stands(copy):
                    self._gaps.append(
                        f"{self.path} was cut after it was copied to {path}; lines written between the two are lost"
                    )
                    return copy, at
                copy.close()
        return None

    def _restart_after_cut(self, file: BinaryIO, place: _Place) -> _Place:
        """Return the place to continue at in a truncated file."""
        size = _size(file)
        how = f"was cut to {size} bytes" if size < place.offset else "was cut and written anew"
        self._gaps.append(f"{self.path} {how} after {place.offset} bytes had been read")
        self._number = None
        return _skip_zeros(file, _Place(place.inode), place.offset)

    def _read_lines(self, file: BinaryIO, offset: int) -> tuple[_Lines | None, bool]:
        """Return complete lines from `offset` on (None: there are none), and whether no unfinished line follows."""
        data = _read_at(file, offset, self._chunk)
        if not data:
            return None, True
        end = data.rfind(b"\n") + 1
        if end:
            return _Lines(data[:end], data[max(0, end - _TAIL) : end]), end == len(data)
        if len(data) < self._chunk:
            return None, False
        # One long line: look for its end in pieces, and at the next call only in what was added since.
        at = max(
            offset + len(data),
            self._searched[1] if self._searched[0] == (os.fstat(file.fileno()).st_ino, offset) else 0,
        )
        while piece := _read_at(file, at, max(self._chunk, CHUNK)):
            end = piece.find(b"\n") + 1
            if end:
                return _read_lines_to(file, offset, at + end), end == len(piece)
            at += len(piece)
        self._searched = (os.fstat(file.fileno()).st_ino, offset), at
        return None, False

    def _count_whole(self, lines: _Lines) -> int:
        """Return the bytes before the parts of a line, at the end of `lines`, that continue after them."""
        if isinstance(self._read, JoiningReader) and not lines.more:
            return self._read.find_unfinished(lines.data)
        return lines.size

    def _waits_for_rest(self, lines: _Lines, offset: int, file: BinaryIO) -> bool:
        """Whether to wait for the rest of a line of which there are only parts: not for long, nor for a long line."""
        if self._waiting[0] != offset:
            self._waiting = offset, time.monotonic()
        ends = not self._follow or self._stop.is_set() or self._moved(file) or len(lines.data) > self._chunk // 2
        return not ends and time.monotonic() - self._waiting[1] < PARTS_S

    def _batch(self, lines: _Lines, place: _Place) -> Batch:
        """Make a batch of `lines`, which end at `place`; they are numbered if the file was read from its beginning."""
        start = place.offset - lines.size
        if start == 0:
            self._number = 0
        cut = lines.more - lines.tail.endswith(b"\n") if lines.more else 0  # bytes of the line, without its end
        events, places, refused = parse_lines(lines.data, self._read, f"of {self.path}", self._number, start, cut)
        if self._number is not None:
            self._number += lines.data.count(b"\n") + (1 if lines.more else 0)
        return Batch(events, place.position(), refused=tuple(refused), gaps=self._take_gaps(), places=places)

    def _take_gaps(self) -> tuple[str, ...]:
        gaps, self._gaps = tuple(self._gaps), []
        return gaps

    def _open(self) -> BinaryIO | None:
        try:
            file = open_regular(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"'{self.path}' cannot be read ({error.strerror}).") from None
        if self._skip(file):
            file.close()
            return None
        return file

    def _moved(self, file: BinaryIO) -> bool:
        """Whether another file has taken the name."""
        try:
            now = os.stat(self.path)
        except OSError:
            return False  # between two files: wait for the new one
        return now.st_ino != os.fstat(file.fileno()).st_ino

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), self.poll_s)


class CompressedFile:
    """Reads a compressed file once.

    A position is that of a plain file once the file was read to its end; before that it has the bytes unpacked so far.
    """

    def __init__(self, path: Path, kind: str, read: LineReader, *, chunk: int = CHUNK) -> None:
        self.path, self.name, self.poll_s = path, f"{kind}:{path.absolute()}", _POLL_S
        self._read, self._chunk = read, chunk
        self.identity: tuple[int, int] | None = None
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    async def batches(self, position: Position | None) -> AsyncGenerator[Batch, None]:
        with open_regular(self.path) as file:
            status, size = os.fstat(file.fileno()), _size(file)
            self.identity = status.st_dev, status.st_ino
            head = sha256(_read_at(file, 0, _HEAD)).hexdigest()
            start = {"inode": status.st_ino, "offset": 0, "packed_bytes": size, "packed_head": head}
            if position is not None and position["offset"] and find_place(file, position) is not None:
                return  # it was read to its end
            skip = 0
            if position is not None and position | start == position:
                skip = int(position["unpacked"])
            at, number, rest = 0, 0, b""
            try:
                with open_unpacked(file) as stream:
                    while data := stream.read(self._chunk):
                        # A line longer than any event may be is cut, and what follows is a line of its own.
                        end = len(data) if len(rest) > LONGEST else data.rfind(b"\n") + 1
                        lines, rest = (rest + data[:end], data[end:]) if end else (b"", rest + data)
                        known = min(len(lines), max(0, skip - at))  # at the end of a line
                        at, number, lines = at + known, number + lines.count(b"\n", 0, known), lines[known:]
                        if lines:
                            yield self._batch(lines, number, at, start | {"unpacked": at + len(lines)})
                            if self._stopped:
                                return
                        at, number = at + len(lines), number + lines.count(b"\n")
                        await asyncio.sleep(0)
                gaps: tuple[str, ...] = ()
            except DAMAGED as error:
                gaps = (f"{self.path} is damaged after {at} unpacked bytes ({error}); the rest of it is lost",)
            done = _Place(status.st_ino, size, *_read_marks(file, size)).position()
            batch = self._batch(rest, number, at, done)
            yield replace(batch, gaps=gaps)

    def _batch(self, lines: bytes, number: int, start: int, position: Position) -> Batch:
        events, places, refused = parse_lines(lines, self._read, f"of {self.path}", number, start)
        return Batch(events, position, refused=tuple(refused), places=places)


def is_compressed(path: Path) -> bool:
    """Whether a path names a compressed file that can be unpacked."""
    try:
        with open_regular(path) as file:
            return can_unpack(_read_at(file, 0, _TAIL))
    except (OSError, InputError):
        return False


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file; raise `InputError` for a pipe, without waiting for its writer."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _irregular_error(path)
    return os.fdopen(fd, "rb")


def _irregular_error(path: Path) -> InputError:
    return InputError(f"'{path}' is not a regular file; use - for a pipe.")


def _skip_zeros(file: BinaryIO, start: _Place, offset: int) -> _Place:
    """Return `start`, or the offset at which the file was cut if zeros precede it.

    A writer without O_APPEND continues at its old offset and leaves zeros before it.
    """
    zeros = _Place(start.inode, offset, bytes(min(_HEAD, offset)), bytes(min(_TAIL, offset)))
    return zeros if offset and zeros.stands(file) else start


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    return os.pread(file.fileno(), size, offset)


def _read_lines_to(file: BinaryIO, offset: int, end: int) -> _Lines:
    """Read from `offset` to `end`; of one line longer than LONGEST only its beginning."""
    tail = min(_TAIL, end - offset)
    if end - offset <= LONGEST + 1:
        data = _read_at(file, offset, end - offset)
        return _Lines(data, data[len(data) - tail :])
    data = _read_at(file, offset, LONGEST)
    return _Lines(data, _read_at(file, end - tail, tail), end - offset - len(data))


def _read_marks(file: BinaryIO, offset: int) -> tuple[bytes, bytes]:
    """Read the bytes that identify a file read to `offset`; fewer if the file is shorter."""
    tail = min(_TAIL, offset)
    return _read_at(file, 0, min(_HEAD, offset)), _read_at(file, offset - tail, tail)


def find_place(file: BinaryIO, position: Position) -> _Place | None:
    """Return the place of a position, if this is its file and it was not truncated."""
    offset = int(position["offset"])
    place = _Place(os.fstat(file.fileno()).st_ino, offset, *_read_marks(file, offset))
    known = {"tail": sha256(place.tail).hexdigest(), **position}  # old positions have no tail
    return place if _size(file) >= offset and place.position() == known else None
