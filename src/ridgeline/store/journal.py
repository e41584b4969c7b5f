"""An append-only journal: one JSON object per line, on the disk when `append_lines` returns.

    append_lines("runs.jsonl", [{"case": "copy", "seconds": [0.011, 0.012]}])
    read_lines("runs.jsonl").objects

A crash can only leave an incomplete last line: the reader reports it, and the next append removes it. Any other
unreadable line is damage and raises.
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
from ridgeline.store.disk import StrPath, explain_error, explain_errors, sync_folder

_BLOCK = 64 * 1024


@dataclass(frozen=True)
class AppendResult:
    """The result of one append."""

    lines: int
    torn_bytes: int  # removed first: an incomplete line of an earlier writer


@dataclass(frozen=True)
class Journal:
    """The content of a journal."""

    objects: tuple[dict[str, Any], ...]
    torn_at: int | None  # offset of an incomplete last line: its writer died, or is writing now

    @property
    def torn(self) -> bool:
        return self.torn_at is not None


def append_lines(path: StrPath, objects: Iterable[Mapping[str, Any]]) -> AppendResult:
    """Append one line per object, all or none of them; they are on the disk when this returns."""
    lines = [_encode_line(path, number, item) for number, item in enumerate(objects, start=1)]
    with explain_errors(path), _open_locked(path) as fd:
        size = os.fstat(fd).st_size
        if size == 0:
            # Sync the name before the bytes, so that a file with bytes has a durable name.
            sync_folder(Path(os.path.realpath(path)).parent)
        complete_size, tail = _read_tail(fd, size)
        if tail and _parse(tail) is not None:
            # A complete object without its newline, as editors leave it: keep it. A part of an object never parses.
            complete_size, tail = size, b""
            lines.insert(0, b"\n")
        if tail:
            os.ftruncate(fd, complete_size)
        count = len(lines) - lines.count(b"\n")
        if count:
            _write_all(fd, b"".join(lines), complete_size)
        elif tail:
            os.fsync(fd)
        return AppendResult(count, len(tail))


def read_lines(path: StrPath) -> Journal:
    """Read a journal; report an incomplete last line, raise `StoreError` with the line number for other damage."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise StoreError(f"the journal {path} does not exist; check the name, or append to it first.") from None
    except OSError as error:
        raise explain_error(error, path) from error
    *lines, tail = data.split(b"\n")
    objects = []
    for number, line in enumerate(lines, start=1):
        parsed = _parse(line)
        if parsed is None:
            raise StoreError(
                f"{path}, line {number}, is damaged (not one JSON object); "
                "restore the file from a copy, or remove that line."
            )
        objects.append(parsed)
    torn_at = None
    if tail:
        parsed = _parse(tail)
        if parsed is None:
            torn_at = len(data) - len(tail)
        else:
            objects.append(parsed)
    return Journal(tuple(objects), torn_at)


@contextmanager
def _open_locked(path: StrPath) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        # One writer at a time: else a line that another process is writing looks incomplete and is removed.
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield fd
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # explicitly: a child forked meanwhile shares this open file
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes, start: int) -> None:
    try:
        done = 0
        while done < len(data):  # usually one write; on a nearly full disk the next one raises
            done += os.write(fd, data[done:] if done else data)
        os.fsync(fd)
    except BaseException:
        with suppress(OSError):  # all lines or none
            os.ftruncate(fd, start)
        raise


def _read_tail(fd: int, size: int) -> tuple[int, bytes]:
    """Return the offset where the last complete line ends, and the bytes after it."""
    tail: list[bytes] = []
    offset = size
    while offset > 0:
        step = min(_BLOCK, offset)
        block = os.pread(fd, step, offset - step)
        newline = block.rfind(b"\n")
        if newline >= 0:
            tail.append(block[newline + 1 :])
            return offset - step + newline + 1, b"".join(reversed(tail))
        tail.append(block)
        offset -= step
    return 0, b"".join(reversed(tail))


def _encode_line(path: StrPath, number: int, item: Mapping[str, Any]) -> bytes:
    try:
        # ASCII only: Unicode line separators do not split a line, and every name can be encoded.
        return (json.dumps(dict(item), allow_nan=False, separators=(",", ":")) + "\n").encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"object {number} for {path} must hold plain JSON values only: {error}.") from error


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN and Infinity are not JSON
