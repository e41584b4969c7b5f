"""An append-only journal: one JSON object per line, on the disk when `append_lines` returns.

    append_lines("runs.jsonl", [{"case": "copy", "seconds": [0.011, 0.012]}])
    read_lines("runs.jsonl").objects

A crash can only tear the end: whole lines stay, and the piece after them is reported by the reader and cut
off by the next append. Anything unreadable before the end is damage and raises.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ridgeline.errors import InputError, StoreError
from ridgeline.store.disk import StrPath, explain, explained, sync_folder

_BLOCK = 64 * 1024


@dataclass(frozen=True)
class Appended:
    """What one append did."""

    lines: int
    torn_bytes: int  # what was cut off first, because an earlier writer died in the middle of a line


@dataclass(frozen=True)
class Journal:
    """What a journal holds."""

    objects: tuple[dict[str, Any], ...]
    torn_at: int | None  # where the piece of a line begins at the end: its writer died, or is writing now

    @property
    def torn(self) -> bool:
        return self.torn_at is not None


def append_lines(path: StrPath, objects: Iterable[Mapping[str, Any]]) -> Appended:
    """Append one line per object, all or none of them; they are on the disk when this returns."""
    lines = [_line(path, number, item) for number, item in enumerate(objects, start=1)]
    with explained(path), _opened(path) as fd:
        size = os.fstat(fd).st_size
        if size == 0:
            # First the name, then the bytes: whoever finds bytes need not wonder whether the name will last.
            sync_folder(Path(os.path.realpath(path)).parent)
        whole, tail = _tail(fd, size)
        if tail and _parse(tail) is not None:
            # A whole object without its newline, as editors leave it: keep it. No part of an object is one.
            whole, tail = size, b""
            lines.insert(0, b"\n")
        if tail:
            os.ftruncate(fd, whole)
        count = len(lines) - lines.count(b"\n")
        if count:
            _write_all(fd, b"".join(lines), whole)
        elif tail:
            os.fsync(fd)
        return Appended(count, len(tail))


def read_lines(path: StrPath) -> Journal:
    """Read a journal; a torn end is left out and reported, damage before it raises with its line number."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise StoreError(f"the journal {path} does not exist; check the name, or append to it first.") from None
    except OSError as error:
        raise explain(error, path) from error
    *lines, tail = data.split(b"\n")
    objects = []
    for number, line in enumerate(lines, start=1):
        found = _parse(line)
        if found is None:
            raise StoreError(
                f"{path}, line {number}, is damaged (not one JSON object); "
                "restore the file from a copy, or remove that line."
            )
        objects.append(found)
    torn_at = None
    if tail:
        found = _parse(tail)
        if found is None:
            torn_at = len(data) - len(tail)
        else:
            objects.append(found)
    return Journal(tuple(objects), torn_at)


@contextmanager
def _opened(path: StrPath) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        # One writer at a time: without this, a line that is just being written looks torn and would be cut.
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield fd
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # aloud: a child forked meanwhile shares this open file
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes, start: int) -> None:
    try:
        done = 0
        while done < len(data):  # one write, but for a nearly full disk, where the next one says so
            done += os.write(fd, data[done:] if done else data)
        os.fsync(fd)
    except BaseException:
        with suppress(OSError):  # all or none, as far as the disk still lets us
            os.ftruncate(fd, start)
        raise


def _tail(fd: int, size: int) -> tuple[int, bytes]:
    """Where the last whole line ends, and the bytes after it."""
    tail: list[bytes] = []
    at = size
    while at > 0:
        step = min(_BLOCK, at)
        block = os.pread(fd, step, at - step)
        newline = block.rfind(b"\n")
        if newline >= 0:
            tail.append(block[newline + 1 :])
            return at - step + newline + 1, b"".join(reversed(tail))
        tail.append(block)
        at -= step
    return 0, b"".join(reversed(tail))


def _line(path: StrPath, number: int, item: Mapping[str, Any]) -> bytes:
    try:
        # ASCII only: no separator of Unicode splits a line for other readers, no name fails to encode.
        return (json.dumps(dict(item), allow_nan=False, separators=(",", ":")) + "\n").encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"object {number} for {path} must hold plain JSON values only: {error}.") from error


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN and Infinity are not JSON, and are never written here
