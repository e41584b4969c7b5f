"""The keys of the persons whose data is in a log: one key per person, which can be destroyed.

    keys = PersonKeys(folder)
    key = keys.get(["ann"])["ann"]       # created if it is missing, and on the disk
    with keys.destroying("ann", by="dpo", reason="article 17") as ids:
        ...                              # record it in the log

subjects/               in LOG.private, mode 0700
  secret                names the records: HMAC-SHA256(secret, person)
  ab/cdef….json         the keys of one person; a destroyed key leaves its id, who destroyed it, when and why
  pending.json          a destruction that is not recorded in the log yet
  changed               rewritten when a key is destroyed: other processes then read their keys again
  lock                  held while records are written

The name of a person is in no file. A person who occurs again after his key was destroyed gets a new one.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, StoreError
from ridgeline.store import explain_errors, lock, publish, sync_filesystem, sync_folder

_BYTES = 32
_WAIT_S = 30.0  # for the lock
_CACHED = 100_000  # persons
_FORMAT = 1


@dataclass(frozen=True)
class PersonKey:
    """One key of a person; `secret` is empty if it was destroyed."""

    id: str
    secret: bytes
    created: int  # ns since 1970
    destroyed: int | None = None  # ns since 1970
    by: str = ""
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "secret": base64.b64encode(self.secret).decode()}


class PersonKeys:
    """The keys in a folder, which is created with the first key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._secret: bytes | None = None
        self._cache: dict[str, PersonKey] = {}
        self._changed: tuple[int, int] | None = None

    def get(self, persons: Iterable[str]) -> dict[str, PersonKey]:
        """Return the key of each person; create and sync those that are missing."""
        self._forget_old()
        requested = dict.fromkeys(persons)
        missing = [person for person in requested if person not in self._cache]
        if missing:
            if len(self._cache) + len(missing) > _CACHED:
                self._cache = {person: key for person, key in self._cache.items() if person in requested}
            with self._hold_lock():
                self._cache.update(self._create(missing))
        return {person: self._cache[person] for person in requested}

    def find(self, person: str) -> list[PersonKey]:
        """Return all keys of a person, oldest first; empty if the person never occurred."""
        return self._read(self._path(person)) if (self.folder / "secret").exists() else []

    def secret(self) -> bytes:
        """Return the secret of this folder; create it if there are no keys yet."""
        if self._secret is None:
            with self._hold_lock():
                self._secret = self._load_secret()
        return self._secret

    def list_all(self) -> Iterator[PersonKey]:
        """Yield all keys, in no order."""
        for path in self.folder.glob("??/*.json"):
            yield from self._read(path)

    @contextmanager
    def destroying(self, person: str, by: str, reason: str) -> Iterator[list[str]]:
        """Destroy the keys of a person and yield their ids; the block records the destruction in the log.

        If the process is killed in the block, `find_unrecorded` returns the destruction until it is recorded.
        """
        if not by:
            raise InputError("the name of the person who erases is empty; give it: the log keeps it for ever.")
        with self._hold_lock():
            path = self._path(person)
            words = {"record": str(path.relative_to(self.folder)), "by": by, "reason": reason, "time": time.time_ns()}
            with publish(self._pending, mode=0o600) as tmp:
                tmp.write_text(json.dumps(words), encoding="utf-8")
            yield self._destroy(words)
            self._end_destroying()

    @contextmanager
    def finishing(self) -> Iterator[tuple[list[str], str, str] | None]:
        """Yield ids, name and reason of a destruction that the log does not have, because its process was killed."""
        if not self._pending.exists():
            yield None
            return
        with self._hold_lock():
            try:
                words = json.loads(self._pending.read_text(encoding="utf-8"))
                unfinished = self._destroy(words), str(words["by"]), str(words["reason"])
            except FileNotFoundError:  # another process has finished it
                yield None
                return
            yield unfinished
            self._end_destroying()

    @property
    def _pending(self) -> Path:
        return self.folder / "pending.json"

    def _destroy(self, words: Mapping[str, Any]) -> list[str]:
        """Destroy the keys of a record; return the ids of those that this destruction destroyed."""
        path, now = self.folder / words["record"], int(words["time"])
        keys = self._read(path)
        if any(key.secret for key in keys):
            with explain_errors(path), path.open("r+b") as old:
                destroyed = [
                    replace(key, secret=b"", destroyed=now, by=words["by"], reason=words["reason"])
                    if key.secret
                    else key
                    for key in keys
                ]
                with publish(path, mode=0o600) as tmp:
                    tmp.write_text(_format_keys(destroyed), encoding="utf-8")
                # `old` is the replaced file, which no folder names any more: overwrite its bytes where they are.
                old.write(b"\0" * os.fstat(old.fileno()).st_size)
                old.flush()
                os.fsync(old.fileno())
            path.with_suffix(".new").unlink(missing_ok=True)
        with publish(self.folder / "changed", mode=0o600) as tmp:
            tmp.write_text(str(time.time_ns()), encoding="utf-8")
        self._forget_old()
        return [key.id for key in self._read(path) if key.destroyed == now]

    def _end_destroying(self) -> None:
        with explain_errors(self._pending):
            self._pending.unlink(missing_ok=True)
            sync_folder(self.folder)

    def _hold_lock(self) -> AbstractContextManager[Any]:
        with explain_errors(self.folder):
            self.folder.mkdir(mode=0o700, exist_ok=True)
        return lock(self.folder / "lock", timeout=_WAIT_S)

    def _load_secret(self) -> bytes:
        path = self.folder / "secret"
        if not path.exists():
            if any(self.folder.glob("??/*.json")):
                raise StoreError(f"{path} is missing, so no key can be found by its person; restore it from a backup.")
            with publish(path, mode=0o600) as tmp:
                tmp.write_text(secrets.token_hex(_BYTES) + "\n", encoding="utf-8")
        try:
            secret = bytes.fromhex(path.read_text(encoding="utf-8"))
        except ValueError:
            secret = b""
        if len(secret) != _BYTES:
            raise StoreError(f"{path} is damaged; restore it from a backup.")
        return secret

    def _path(self, person: str) -> Path:
        if self._secret is None:
            self._secret = self._load_secret()
        name = hmac.new(self._secret, person.encode("utf-8", "surrogatepass"), sha256).hexdigest()
        return self.folder / name[:2] / f"{name[2:]}.json"

    def _read(self, path: Path) -> list[PersonKey]:
        try:
            words = json.loads(path.read_text(encoding="utf-8"))
            if words["format"] != _FORMAT:
                raise ValueError("of another version")
            return [_parse_key(row) for row in words["keys"]]
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{path} is damaged ({error}); restore it from a backup: it holds a person's key."
            ) from None

    def _write(self, path: Path, keys: list[PersonKey]) -> None:
        with publish(path, mode=0o600) as tmp:
            tmp.write_text(_format_keys(keys), encoding="utf-8")

    def _create(self, persons: list[str]) -> dict[str, PersonKey]:
        """Return the keys of these persons, created where there is none; the caller holds the lock."""
        created, files, folders = dict[str, PersonKey](), list[tuple[Path, Path]](), set[Path]()
        for person in persons:
            path = self._path(person)
            keys = self._read(path)
            if keys and keys[-1].secret:
                created[person] = keys[-1]
                continue
            created[person] = PersonKey(secrets.token_hex(8), secrets.token_bytes(_BYTES), time.time_ns())
            with explain_errors(path):
                path.parent.mkdir(mode=0o700, exist_ok=True)
                tmp = path.with_suffix(".new")  # a crash leaves it; the next one overwrites it
                fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                with os.fdopen(fd, "w", encoding="utf-8") as file:
                    file.write(_format_keys([*keys, created[person]]))
            files.append((tmp, path))
            folders.add(path.parent)
        if files:
            with explain_errors(self.folder):
                sync_filesystem(self.folder)  # once for all, before the first event is encrypted
                for tmp, path in files:
                    os.replace(tmp, path)
                for folder in (*folders, self.folder):
                    sync_folder(folder)
        return created

    def _forget_old(self) -> None:
        """Drop the cached keys if another process destroyed one."""
        try:
            status = os.stat(self.folder / "changed")
            changed = (status.st_ino, status.st_mtime_ns)
        except FileNotFoundError:
            changed = None
        if changed != self._changed:
            self._cache, self._changed = {}, changed


def _parse_key(row: Mapping[str, Any]) -> PersonKey:
    return PersonKey(**{**row, "secret": base64.b64decode(row["secret"], validate=True)})


def _format_keys(keys: list[PersonKey]) -> str:
    return json.dumps({"format": _FORMAT, "keys": [key.to_json() for key in keys]}) + "\n"
