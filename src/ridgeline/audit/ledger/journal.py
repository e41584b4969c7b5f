"""The journal: an append writes its events here, durably, before they are in any tile.

A commit costs one write and one fdatasync. The file's space is allocated in advance, so no file name and no file length
must reach the disk with the commit. Tiles and checkpoints follow later and can be rebuilt from the journal; once they
are durable, the writer clears the journal and reuses it.

    block 0   magic, salt, number, first entry, digest
    then      records: mark, number of entries, first entry, bytes, digest, and the entries as in a bundle

A record may also hold the positions that sources have reached with its entries, as JSON before the entries. So the
entries and the position after them become durable in the same commit: a restart neither repeats nor skips events.

The digest of a record covers the leaf hashes of its entries, the positions, and the salt, which changes whenever the
journal is cleared. So old bytes from before the last clearing, and records that a crash cut short, never count as
records.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from ridgeline.errors import StoreError
from ridgeline.native import bundle_hashes
from ridgeline.store import explain_errors, sync_folder

_MAGIC = b"RLEDGER2"
_MAGICS = (b"RLEDGER1", _MAGIC)  # the first format had no positions
_HEADER = struct.Struct("<8s16sQQ24s")
_RECORD = struct.Struct("<4sIQQ24s")
_MARK = b"\x9dRL\xe1"
_MARK_POSITIONS = b"\x9dRL\xe2"  # a record with positions: their number of bytes, the positions, the entries
_LENGTH = struct.Struct("<I")
_START = 4096
_AHEAD = 4 << 20  # bytes allocated at a time
_NONE = (1 << 64) - 1


@dataclass(frozen=True)
class JournalRecord:
    """One commit, as recovery reads it."""

    first: int
    count: int
    entries: bytes
    hashes: bytes
    size: int  # bytes of the record
    positions: dict[str, Any] = field(default_factory=dict)  # by source


class Journal:
    """One journal file, open for its writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with explain_errors(path):
            fresh = not path.exists()
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if fresh:
                sync_folder(path.parent)
        self.number, self.first, self._salt = 0, _NONE, b""
        self.end = _START
        self._allocated = 0

    @property
    def empty(self) -> bool:
        return self.first == _NONE

    @property
    def used(self) -> bool:
        return self.end > _START

    def read(self) -> list[JournalRecord]:
        """Read every complete record, in order. An incomplete last record was never acknowledged."""
        with explain_errors(self.path):
            data = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        self._allocated = len(data)
        header = _parse_header(data)
        if header is None:
            if data.strip(b"\0"):  # it is only rewritten when no record is needed any more
                raise StoreError(f"{self.path} is damaged at its beginning; restore the file from a copy.")
            return []
        self._salt, self.number, self.first = header
        records: list[JournalRecord] = []
        at, expected = _START, self.first
        while not self.empty:
            record = _parse_record(data, at, self._salt, expected)
            if record is None:
                break
            records.append(record)
            at += record.size
            expected += record.count
        self.end = at
        self._refuse_damage(data, expected)
        return records

    def begin(self, number: int, first: int) -> None:
        """Clear it; its next record starts with entry `first`."""
        self._write_header(number, first)
        self.end = _START

    def clear(self) -> None:
        self._write_header(self.number, _NONE)
        self.end = _START

    def append(
        self, first: int, count: int, entries: bytes, hashes: bytes, positions: Mapping[str, Any] | None = None
    ) -> None:
        """Write one record; it is on the disk when this returns. After an error it does not count."""
        mark, body, noted = _MARK, entries, b""
        if positions:
            noted = json.dumps(positions).encode()
            mark, body = _MARK_POSITIONS, _LENGTH.pack(len(noted)) + noted + entries
        head = _RECORD.pack(mark, count, first, len(body), _digest(self._salt, first, count, len(body), hashes, noted))
        with explain_errors(self.path):
            self._allocate(self.end + len(head) + len(body))
            try:
                _write(self._fd, head + body, self.end)
                os.fdatasync(self._fd)
            except OSError:
                with suppress(OSError):  # recovery must not read it as acknowledged
                    os.pwrite(self._fd, bytes(_RECORD.size), self.end)
                raise
        self.end += len(head) + len(body)

    def close(self) -> None:
        with suppress(OSError):
            if self.empty:
                os.ftruncate(self._fd, _START)
        os.close(self._fd)

    def _allocate(self, size: int) -> None:
        if size <= self._allocated:
            return
        rounded_size = -(-size // _AHEAD) * _AHEAD
        try:
            os.posix_fallocate(self._fd, 0, rounded_size)
            self._allocated = rounded_size
        except OSError:
            self._allocated = size  # the disk is nearly full, or cannot allocate: plain writes decide

    def _write_header(self, number: int, first: int) -> None:
        salt = secrets.token_bytes(16)
        plain = struct.pack("<8s16sQQ", _MAGIC, salt, number, first)
        with explain_errors(self.path):
            _write(self._fd, (plain + sha256(plain).digest()[:24]).ljust(_START, b"\0"), 0)
            os.fdatasync(self._fd)
        self.number, self.first, self._salt = number, first, salt

    def _refuse_damage(self, data: bytes, expected: int) -> None:
        """Raise if a complete record follows a broken one: then the disk lost acknowledged entries."""
        for mark in (_MARK, _MARK_POSITIONS):
            at = data.find(mark, self.end + 1)
            while at >= 0:
                record = _parse_record(data, at, self._salt, None)
                if record is not None and record.first >= expected:
                    raise StoreError(
                        f"{self.path} is damaged at byte {self.end}: entries {expected} to {record.first - 1} were "
                        "acknowledged and cannot be read; restore the file from a copy."
                    )
                at = data.find(mark, at + 1)


def _digest(salt: bytes, first: int, count: int, size: int, hashes: bytes, noted: bytes) -> bytes:
    return sha256(salt + struct.pack("<QIQ", first, count, size) + hashes + noted).digest()[:24]


def _parse_header(data: bytes) -> tuple[bytes, int, int] | None:
    if len(data) < _HEADER.size:
        return None
    magic, salt, number, first, digest = _HEADER.unpack_from(data)
    plain = data[: _HEADER.size - 24]
    if magic not in _MAGICS or sha256(plain).digest()[:24] != digest:
        return None
    return salt, number, first


def _parse_record(data: bytes, at: int, salt: bytes, expected: int | None) -> JournalRecord | None:
    if len(data) - at < _RECORD.size:
        return None
    mark, count, first, size, digest = _RECORD.unpack_from(data, at)
    body = at + _RECORD.size
    if mark not in (_MARK, _MARK_POSITIONS) or (expected is not None and first != expected) or size > len(data) - body:
        return None
    entries, noted = data[body : body + size], b""
    if mark == _MARK_POSITIONS:
        length = _LENGTH.unpack_from(entries)[0] if size >= _LENGTH.size else size
        noted, entries = entries[_LENGTH.size : _LENGTH.size + length], entries[_LENGTH.size + length :]
    try:
        hashes = bundle_hashes(entries)
    except ValueError:
        return None
    if len(hashes) != 32 * count or _digest(salt, first, count, size, hashes, noted) != digest:
        return None
    return JournalRecord(first, count, entries, hashes, _RECORD.size + size, json.loads(noted) if noted else {})


def _write(fd: int, data: bytes, at: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:] if done else data, at + done)


def has_records(path: Path) -> bool:
    """Whether a journal file may hold records; reads only its header and needs no lock."""
    try:
        with path.open("rb") as file:
            header = _parse_header(file.read(_HEADER.size))
            return header is not None and header[2] != _NONE and len(file.read(_START)) > _START - _HEADER.size
    except OSError:
        return False
