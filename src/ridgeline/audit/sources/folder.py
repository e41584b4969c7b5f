"""The folder source: follow every log file below a folder, or every file that matches a pattern, each line once.

A scan finds new files. Each file is read by a `LineFile`, which follows its rotation. So a file with the name
of a rotated one ("a.log.1" beside "a.log") is not read on its own. A file that was renamed otherwise ("a.log.old") is
recognised by its inode and the bytes that were read. A compressed file that is no rotated one is read once. Binary
files, and those compressed with zstd, are left out.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from ridgeline.audit.sources.compressed import COMPRESSED, can_unpack
from ridgeline.audit.sources.files import ROTATED, CompressedFile, LineFile, find_place, is_compressed, open_regular
from ridgeline.audit.sources.lines import LineReader
from ridgeline.audit.sources.source import Batch, Position
from ridgeline.errors import InputError

SCAN_S = 1.0
GONE_S = 10.0  # a file that is missing for longer is closed
_POLL_PER_FILE_S = 0.002  # with many files, each is looked at less often
_FIRST = 4096  # bytes in which a zero marks a binary file
_ROTATED_NAME = re.compile(f"(.+?){ROTATED}")

_Identity = tuple[int, int]  # device and inode
_Queue = asyncio.Queue[tuple[str, Batch] | None]


def is_pattern(path: Path) -> bool:
    """Whether a path has wildcards and is not the name of a file."""
    return any(c in str(path) for c in "*?[") and not path.exists()


class LineFolder:
    """Reads all files below a folder.

    path      the folder, or a pattern: logs/*.log, logs/**/*.log
    kind      "lines" or "jsonl", part of the source's name
    reader    makes the reader of a file's lines
    follow    wait for more lines and for new files
    exclude   folders that are not read, like the log's own
    announce  called with a sentence about files that are left out
    """

    def __init__(
        self,
        path: Path,
        kind: str,
        reader: Callable[[Path], LineReader],
        *,
        follow: bool = True,
        exclude: Sequence[Path] = (),
        announce: Callable[[str], object] = lambda sentence: None,
        scan_s: float = SCAN_S,
        gone_s: float = GONE_S,
    ) -> None:
        self.name = f"{kind}:{path.absolute()}"
        self._root, self._pattern = _split_pattern(path.absolute())
        if not self._root.is_dir():
            raise InputError(f"there is no folder '{self._root}'; check the name.")
        self._kind, self._reader, self._follow, self._announce = kind, reader, follow, announce
        self._exclude = [folder.resolve() for folder in exclude]
        self._scan_s, self._gone_s = scan_s, gone_s
        self._stop = asyncio.Event()
        self._files: dict[str, LineFile | CompressedFile] = {}  # being read, by their paths below the root
        self._missing: dict[str, float] = {}  # since when
        self._left_out: dict[str, _Identity] = {}
        self._unreadable: set[str] = set()
        self._named_bases: set[str | None] = set()  # files whose rotated files were named
        self._read_inodes: set[int] = set()  # of files read so far: a rotated one needs no note
        self._positions: dict[str, Position] = {}
        self._finished: list[Position] = []  # of files that were read to their end and rotated

    def stop(self) -> None:
        self._stop.set()
        for file in self._files.values():
            file.stop()

    async def batches(self, position: Position | None) -> AsyncGenerator[Batch, None]:
        saved = position or {"files": {}, "finished": []}
        self._positions, self._finished = dict(saved["files"]), list(saved["finished"])
        self._files, self._left_out, self._missing = {}, {}, {}
        queue: _Queue = asyncio.Queue(1)  # so that files wait for the log
        reading = asyncio.create_task(self._read_all(queue))
        try:
            while (item := await queue.get()) is not None:
                yield self._merge(*item)
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_all(self, queue: _Queue) -> None:
        """Scan, and read every new file in a task of its own; None ends the queue."""
        try:
            async with asyncio.TaskGroup() as group:
                while not self._stop.is_set():  # `stop` does not reach a file that a later scan opens
                    for name, file in self._scan():
                        group.create_task(self._read_file(name, file, queue))
                    if not self._follow:
                        break
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._stop.wait(), self._scan_s)
        except Exception:
            await queue.put(None)
            raise
        await queue.put(None)

    async def _read_file(self, name: str, file: LineFile | CompressedFile, queue: _Queue) -> None:
        try:
            async for batch in file.batches(self._positions.get(name)):
                self._unreadable.discard(name)
                await queue.put((name, batch))
        except (InputError, OSError) as error:
            if name not in self._unreadable:  # once; a later scan tries again
                self._unreadable.add(name)
                await queue.put((name, Batch([], gaps=(str(error),))))
        if self._files.get(name) is file:
            del self._files[name]

    def _merge(self, name: str, batch: Batch) -> Batch:
        """Return a batch of one file with the positions of all files."""
        if batch.position is not None:
            before = self._positions.get(name)
            if before is not None and before["inode"] != batch.position["inode"] and before["offset"]:
                self._finished.append(before)
            self._positions[name] = batch.position
        position = {"files": dict(self._positions), "finished": list(self._finished)}
        return replace(batch, position=position)

    def _scan(self) -> list[tuple[str, LineFile | CompressedFile]]:
        """Return the files to read from now on, and forget those that are gone."""
        present = dict(self._list_files())
        known = {*present, *self._positions, *self._files}
        rotated = {name for name in known if _find_base(name, known) is not None}
        self._forget(present, rotated)
        new, notes = list[tuple[str, LineFile | CompressedFile]](), list[str]()
        self._read_inodes |= {position["inode"] for position in self._positions.values()}
        self._read_inodes |= {file.identity[1] for file in self._files.values() if file.identity is not None}
        for name, status in sorted(present.items()):
            identity = status.st_dev, status.st_ino
            if name in self._files or self._left_out.get(name) == identity:
                continue
            if name in self._unreadable and not os.access(self._root / name, os.R_OK):
                continue
            base = _find_base(name, known)
            why = f"taken for a rotated file of {base}" if base is not None else self._find_reason(name, identity)
            if why is not None:
                self._left_out[name] = identity
                if why and base not in self._named_bases and (base is None or status.st_ino not in self._read_inodes):
                    notes.append(f"{name} ({why})")
                    self._named_bases |= {base} - {None}  # once for each: every rotation brings such a file
                continue
            with suppress(InputError):  # it is gone again
                self._files[name] = file = self._make_file(name, identity)
                new.append((name, file))
        if notes:
            more = f" and {len(notes) - 3} more" if len(notes) > 3 else ""
            self._announce(f"left out below {self._root}: {', '.join(notes[:3])}{more}.")
        inodes = {status.st_ino for name, status in present.items() if name not in rotated}
        self._finished = [place for place in self._finished if place["inode"] in inodes]
        for file in self._files.values():
            file.poll_s = max(file.poll_s, _POLL_PER_FILE_S * len(self._files))
        return new

    def _make_file(self, name: str, identity: _Identity) -> LineFile | CompressedFile:
        path = self._root / name
        read = self._reader(path)
        file: LineFile | CompressedFile = (
            CompressedFile(path, self._kind, read)
            if is_compressed(path)
            else LineFile(path, self._kind, read, follow=self._follow, skip=lambda f: self._is_read(name, f))
        )
        file.identity = identity
        return file

    def _list_files(self) -> Iterator[tuple[str, os.stat_result]]:
        for path in self._root.glob(self._pattern):
            with suppress(OSError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode) and not self._is_excluded(path):
                    yield str(path.relative_to(self._root)), status

    def _is_excluded(self, path: Path) -> bool:
        return bool(self._exclude) and any(path.resolve().is_relative_to(folder) for folder in self._exclude)

    def _forget(self, present: dict[str, os.stat_result], rotated: set[str]) -> None:
        """Close files that are gone, or that turned out to be rotated ones; forget their positions."""
        now, bases = (
            time.monotonic(),
            {_find_base(name, rotated | set(self._positions)) for name in rotated & set(present)},
        )
        for name in list(self._files):
            if name in present:
                self._missing.pop(name, None)
            elif now - self._missing.setdefault(name, now) < self._gone_s:
                continue
            if name not in present or name in rotated:
                file = self._files.pop(name)
                file.stop()
                self._left_out = {
                    n: i for n, i in self._left_out.items() if i != file.identity
                }  # judge renamed ones again
        for name in set(self._positions) - set(self._files):
            # The position of a rotated file tells that it was read, until a new file has the name.
            if name in rotated or (name not in present and name not in bases and not self._was_renamed(name, present)):
                del self._positions[name]
        self._left_out = {name: i for name, i in self._left_out.items() if name in present}

    def _was_renamed(self, name: str, present: dict[str, os.stat_result]) -> bool:
        return any(status.st_ino == self._positions[name]["inode"] for status in present.values())

    def _find_reason(self, name: str, identity: _Identity) -> str | None:
        """Return why a new file is left out ("": it was read under another name), or None."""
        if any(file.identity == identity for file in self._files.values()):
            return ""
        try:
            file = open_regular(self._root / name)
        except (OSError, InputError):
            return None  # reading it says why
        with file:
            if name not in self._positions and (other := self._find_renamed(file)) is not None:
                self._positions[name] = self._positions.pop(other)  # continue under the new name
                return None
            if self._is_read(name, file):
                return ""
            first = file.read(_FIRST)
        if first.startswith(COMPRESSED):
            if not can_unpack(first):
                return "compressed with zstd"
            with open_regular(self._root / name) as again:
                return "" if name in self._positions and _is_file_of(again, self._positions[name]) else None
        return "binary" if b"\0" in first and name not in self._positions else None

    def _find_renamed(self, file: BinaryIO) -> str | None:
        """Return the name under which a file was read, if that name is no longer in use."""
        for name, position in self._positions.items():
            if name not in self._files and not (self._root / name).exists() and _is_file_of(file, position):
                return name
        return None

    def _is_read(self, name: str, file: BinaryIO) -> bool:
        """Whether a file is read, or was read, under another name."""
        status = os.fstat(file.fileno())
        identity = status.st_dev, status.st_ino
        if any(other.identity == identity for n, other in self._files.items() if n != name):
            return True
        others = [position for n, position in self._positions.items() if n != name]
        return any(_is_file_of(file, position) for position in (*others, *self._finished))


def _is_file_of(file: BinaryIO, position: Position) -> bool:
    return (
        position["offset"] > 0
        and position["inode"] == os.fstat(file.fileno()).st_ino
        and find_place(file, position) is not None
    )


def _find_base(name: str, known: set[str]) -> str | None:
    """Return the known file that has this one as its rotated file: "a.log" for "a.log.1"."""
    match = _ROTATED_NAME.fullmatch(name)
    return match[1] if match is not None and match[1] in known else None


def _split_pattern(path: Path) -> tuple[Path, str]:
    """Split a path at its first part with a wildcard; a folder's pattern is everything below it."""
    if path.is_dir():
        return path, "**/*"
    at = next((i for i, part in enumerate(path.parts) if any(c in part for c in "*?[")), len(path.parts))
    return Path(*path.parts[:at]), "/".join(path.parts[at:])
