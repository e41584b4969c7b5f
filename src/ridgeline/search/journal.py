"""The journal of an index that was opened for updates: `Index.open(path)`.

The folder `path` holds a saved index, and `path.journal` beside it the changes since, one record each. A change is on
the disk before `add` or `remove` returns, so it survives `kill -9`; an incomplete last record was never acknowledged,
and is removed. `Index.load` and `Index.open` apply the records to what the folder holds. When the journal has grown, a
thread writes the folder anew, with the number of the last record in it, and then shortens the journal: a crash between
the two repeats nothing, because records up to that number are skipped.

One process at a time changes an index: from its first change on it holds the lock `path.journal.lock`.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import uuid
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline import store
from ridgeline.errors import Locked, StoreError
from ridgeline.search.arrays import Floats, Integers

SUFFIX, LOCK_SUFFIX = ".journal", ".lock"
MAGIC = b"RLINDEX1"
FRAME = struct.Struct("<QI")  # bytes of the payload, their CRC-32
HEAD = struct.Struct("<QBQQ")  # number of the record, kind, rows, dimensions
HEADER, ADD, REMOVE = 0, 1, 2
MIN_COMPACTION = 32 << 20  # bytes; a shorter journal is read in less time than a folder is written
COMPACTION_SHARE = 0.5  # of the folder's bytes


@dataclass(frozen=True)
class Change:
    """One record: rows that were added, or ids that were removed (then `vectors` is None)."""

    number: int
    ids: Integers
    vectors: Floats | None
    meta: Any  # a pyarrow Table, or None

    def encode(self) -> bytes:
        rows, dim = (0, 0) if self.vectors is None else self.vectors.shape
        kind = REMOVE if self.vectors is None else ADD
        parts = [HEAD.pack(self.number, kind, rows or len(self.ids), dim), self.ids.astype("<i8").tobytes()]
        if self.vectors is not None:
            parts.append(self.vectors.astype("<f4").tobytes())
        if self.meta is not None:
            import pyarrow as pa

            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self.meta.schema) as writer:
                writer.write_table(self.meta)
            parts.append(sink.getvalue().to_pybytes())
        return _frame(b"".join(parts))


@dataclass(frozen=True)
class JournalContent:
    """What a journal holds: its identity, the hash of the manifest it began with, and where it ends."""

    identity: str
    base: str
    changes: tuple[Change, ...]
    end: int  # bytes up to the last complete record


def find_journal(folder: Path) -> Path:
    """The path of the journal of an index, whether it exists or not."""
    absolute = Path(os.path.abspath(folder))
    return absolute.with_name(absolute.name + SUFFIX)


def read_journal(path: Path) -> JournalContent | None:
    """Read a journal; None if there is none. An incomplete last record is left out; other damage is a StoreError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}; check its mode and the disk.") from error
    if data[: len(MAGIC)] != MAGIC:
        raise StoreError(f"{path} is no journal of an index; move it away, or restore it from a copy.")
    changes: list[Change] = []
    header: dict[str, Any] = {}
    end = len(MAGIC)
    for payload in _split_records(path, data):
        end += FRAME.size + len(payload)
        number, kind, rows, dim = HEAD.unpack_from(payload)
        if kind == HEADER:
            header = json.loads(payload[HEAD.size :])
        else:
            changes.append(_decode_change(payload, number, kind, rows, dim))
    if not header:
        raise StoreError(f"{path} has lost its first record; restore it from a copy.")
    return JournalContent(header["journal"], header["base"], tuple(changes), end)


def read_changes(folder: Path, meta: Any) -> tuple[Change, ...] | None:
    """Return the changes since the folder was written, whose manifest has `meta`; None: read the folder again, it was
    written meanwhile.
    """
    content = read_journal(find_journal(folder))
    if content is None:
        return ()
    if content.identity != meta.get("journal"):
        if content.base == hash_manifest(folder):
            return content.changes
        warnings.warn(
            f"{find_journal(folder)} belongs to another index than {folder} holds now, and is left out; remove it.",
            stacklevel=4,
        )
        return ()
    applied = int(meta["applied"])
    if content.changes and content.changes[0].number > applied + 1:
        return None
    return tuple(change for change in content.changes if change.number > applied)


def hash_manifest(folder: Path) -> str | None:
    """Return the SHA-256 of the manifest of a folder; None if there is none."""
    try:
        return hashlib.sha256((folder / store.MANIFEST).read_bytes()).hexdigest()
    except OSError:
        return None


@dataclass(frozen=True)
class Version:
    """What was read from the disk, to see whether another process changed it since."""

    manifest: str | None
    journal_bytes: int


def find_version(folder: Path) -> Version:
    try:
        size = find_journal(folder).stat().st_size
    except OSError:
        size = 0
    return Version(hash_manifest(folder), size)


class IndexJournal:
    """The journal of one opened index; the index calls it under its own lock."""

    def __init__(self, folder: Path, last: int, identity: str | None) -> None:
        self.folder, self.path = Path(os.path.abspath(folder)), find_journal(folder)
        self.last = last  # number of the last change that the index has
        self.identity = identity or ""
        self._file_lock: Any = None
        self._fd = -1
        self.size = 0

    @property
    def locked(self) -> bool:
        return self._file_lock is not None

    def acquire(self) -> None:
        """Become the one process that changes the index; raises Locked if another one is."""
        lock_path = self.path.with_name(self.path.name + LOCK_SUFFIX)
        self._file_lock = store.try_lock(lock_path)
        if self._file_lock is None:
            raise Locked(f"another process changes the index {self.folder}; close it there first.")

    def start(self) -> None:
        """Open the journal for appending, and create it if there is none; an incomplete last record is removed."""
        content = read_journal(self.path)
        if content is not None and not self._belongs(content):
            os.replace(self.path, self.path.with_name(f"{self.path.name}.{content.identity[:8]}"))
            content = None
        if content is None:
            self.identity = self.identity or uuid.uuid4().hex
            self._write_anew(b"")
        else:
            self.identity = content.identity
        self._open()
        if content is not None and self.size > content.end:
            os.ftruncate(self._fd, content.end)
            os.fsync(self._fd)
            self.size = content.end

    def append(self, change: Change) -> None:
        """Write a change; it is on the disk when this returns. If it cannot be, nothing of it stays."""
        data = change.encode()
        with store.explain_errors(self.path):
            try:
                done = 0
                while done < len(data):
                    done += os.write(self._fd, data[done:] if done else data)
                os.fdatasync(self._fd)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(self._fd, self.size)
                raise
        self.size += len(data)
        self.last = change.number

    def shorten(self, offset: int) -> None:
        """Drop the records before `offset`: the folder has them."""
        with store.explain_errors(self.path):
            tail = os.pread(self._fd, self.size - offset, offset)
            self._write_anew(tail)
            os.close(self._fd)
            self._open()

    def needs_compaction(self) -> bool:
        if self.size < MIN_COMPACTION:
            return False
        folder_bytes = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        return self.size > COMPACTION_SHARE * folder_bytes

    def close(self) -> None:
        """Free the lock; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._file_lock is not None:
            store.release(self._file_lock)
            self._file_lock = None

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def _belongs(self, content: JournalContent) -> bool:
        return content.identity == self.identity or content.base == hash_manifest(self.folder)

    def _open(self) -> None:
        with store.explain_errors(self.path):
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            self.size = os.fstat(self._fd).st_size

    def _write_anew(self, tail: bytes) -> None:
        header = json.dumps({"journal": self.identity, "base": hash_manifest(self.folder)}).encode()
        with store.publish(self.path) as tmp:
            tmp.write_bytes(MAGIC + _frame(HEAD.pack(0, HEADER, 0, 0) + header) + tail)


@contextmanager
def hold_journal(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder that is to be replaced, if it has a journal; Locked if another process holds it."""
    journal = IndexJournal(folder, 0, None)
    if journal.path.exists():
        journal.acquire()
    try:
        yield
    finally:
        journal.close()


def discard_journal(folder: Path) -> None:
    """Remove the journal of a folder that another index replaced."""
    find_journal(folder).unlink(missing_ok=True)


def join_changes(changes: tuple[Change, ...]) -> Iterator[Change]:
    """Join additions that follow each other, so that thousands of small ones are applied at once."""
    group: list[Change] = []
    for change in changes:
        fits = group and change.vectors is not None and (change.meta is None) == (group[0].meta is None)
        if group and not fits:
            yield _join(group)
            group = []
        if change.vectors is None:
            yield change
        else:
            group.append(change)
    if group:
        yield _join(group)


def _join(group: list[Change]) -> Change:
    if len(group) == 1:
        return group[0]
    meta = None
    if group[0].meta is not None:
        import pyarrow as pa

        meta = pa.concat_tables([change.meta for change in group], promote_options="permissive")
    vectors = [change.vectors for change in group if change.vectors is not None]
    return Change(group[-1].number, np.concatenate([c.ids for c in group]), np.concatenate(vectors), meta)


def _frame(payload: bytes) -> bytes:
    return FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _split_records(path: Path, data: bytes) -> Iterator[bytes]:
    at = len(MAGIC)
    while len(data) - at >= FRAME.size:
        size, check = FRAME.unpack_from(data, at)
        start, stop = at + FRAME.size, at + FRAME.size + size
        if stop > len(data):
            if _is_complete(data[start:], check):
                raise StoreError(f"{path} is damaged at byte {at}; restore it from a copy.")
            return  # its writer died
        payload = data[start:stop]
        if size < HEAD.size or zlib.crc32(payload) != check:
            if stop == len(data) or not any(data[start:]):
                return
            raise StoreError(f"{path} is damaged at byte {at}; restore it from a copy.")
        yield payload
        at = stop


def _is_complete(rest: bytes, check: int) -> bool:
    """Whether `rest` begins with the payload of this checksum, so that only its length is damaged."""
    if len(rest) < HEAD.size:
        return False
    _, kind, rows, dim = HEAD.unpack_from(rest)
    end = HEAD.size + 8 * rows + (4 * rows * dim if kind == ADD else 0)
    if end > len(rest):
        return False
    if zlib.crc32(rest[:end]) == check:
        return True
    with suppress(Exception):  # what follows the vectors is the table of a change, or nothing
        import pyarrow as pa

        source = pa.BufferReader(rest[end:])
        pa.ipc.open_stream(source).read_all()
        return zlib.crc32(rest[: end + source.tell()]) == check
    return False


def _decode_change(payload: bytes, number: int, kind: int, rows: int, dim: int) -> Change:
    at = HEAD.size
    ids = np.frombuffer(payload, "<i8", rows, at).astype(np.int64)
    at += 8 * rows
    if kind == REMOVE:
        return Change(number, ids, None, None)
    vectors = np.frombuffer(payload, "<f4", rows * dim, at).astype(np.float32).reshape(rows, dim)
    at += 4 * rows * dim
    meta = None
    if at < len(payload):
        import pyarrow as pa

        meta = pa.ipc.open_stream(payload[at:]).read_all()
    return Change(number, ids, vectors, meta)
