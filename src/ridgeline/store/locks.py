"""Locks that end with their owner.

The lock is `flock` on an open file, so the kernel frees it when the owner ends, for whatever reason; there are no stale
pids. The file itself remains (removing it would allow two owners) and names the current owner:

    with lock("runs/night/lock", timeout=5):
        ...

`flock` belongs to the open file, which a forked child shares, so a worker that outlives its parent would keep the lock.
Therefore the descriptor closes on exec, children forked by Python close it at once, and a child that leaves the block
neither frees the lock nor erases the name of its parent.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from ridgeline.errors import Locked, StoreError
from ridgeline.store.disk import StrPath, explain_errors

# `get_owner` and a process between fork and exec may hold the lock for a moment; they are not owners.
_GRACE_S = 0.05
_COMMAND_CHARS = 200


@dataclass(frozen=True)
class Owner:
    """The process that holds a lock, as written in the lock file."""

    pid: int
    host: str
    command: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since} ({self.command})"


@dataclass(frozen=True, eq=False)
class FileLock:
    """One acquired flock, compared by identity: a descriptor number may be reused after a fork."""

    fd: int


@contextmanager
def lock(path: StrPath, timeout: float | None = 0.0) -> Iterator[Owner]:
    """Hold the lock file `path` and create it if needed; `timeout` is in seconds, None waits for ever.

    If the lock is not free in time, raise `Locked`, which names the owner.
    """
    with explain_errors(path):
        file_lock = _wait_for_lock(Path(path), timeout)
    command = shlex.join(sys.argv)[:_COMMAND_CHARS]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    mine = Owner(os.getpid(), socket.gethostname(), command, now)
    try:
        with suppress(OSError):  # on a full disk the lock works without the name
            os.ftruncate(file_lock.fd, 0)
            os.pwrite(file_lock.fd, json.dumps(asdict(mine)).encode(), 0)
        yield mine
    finally:
        release(file_lock, wipe=True)


def get_owner(path: StrPath) -> Owner | None:
    """Return the owner of the lock file `path`; None if it is free or does not exist."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"the lock {path} cannot be read: {error.strerror}; check its mode.") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
    except BlockingIOError:
        return _read_owner(fd)
    finally:
        os.close(fd)
    return None


def try_lock(path: Path) -> FileLock | None:
    """Try once to flock the file `path`, and create it if needed; return None if another owner holds it."""
    with _fork_mutex:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The file may have been removed between open and flock: such a lock would be useless.
            file_lock = FileLock(fd) if os.path.samestat(os.fstat(fd), os.stat(path)) else None
        except (BlockingIOError, FileNotFoundError):
            file_lock = None
        except BaseException:
            os.close(fd)
            raise
        if file_lock is None:
            os.close(fd)
        else:
            _locks.add(file_lock)
        return file_lock


def release(file_lock: FileLock, *, wipe: bool = False) -> None:
    """Release a lock; in a forked child, which does not own it, do nothing."""
    with _fork_mutex:
        if file_lock not in _locks:
            return
        _locks.discard(file_lock)
        try:
            if wipe:
                os.ftruncate(file_lock.fd, 0)
            # Unlock explicitly: a child forked by other C code may still share the open file.
            fcntl.flock(file_lock.fd, fcntl.LOCK_UN)
        finally:
            os.close(file_lock.fd)


def _wait_for_lock(path: Path, timeout: float | None) -> FileLock:
    start = time.monotonic()
    pause = 0.005
    while True:
        file_lock = try_lock(path)
        if file_lock is not None:
            return file_lock
        waited = time.monotonic() - start
        if timeout is not None and waited >= max(timeout, _GRACE_S):
            current_owner = get_owner(path)
            owner_text = current_owner if current_owner is not None and current_owner.pid else "another process"
            raise Locked(f"{path} is locked by {owner_text}; wait for it to end, or stop it, and run again.")
        time.sleep(pause)
        pause = min(pause * 2, 0.1)


def _read_owner(fd: int) -> Owner:
    try:
        fields = json.loads(os.pread(fd, 64 * 1024, 0))
        return Owner(int(fields["pid"]), str(fields["host"]), str(fields["command"]), str(fields["since"]))
    except (ValueError, KeyError, TypeError):
        return Owner(0, "?", "?", "?")  # the owner has not written its name yet


_locks: set[FileLock] = set()
# Reentrant, because a signal handler may fork while its thread holds the mutex.
_fork_mutex = threading.RLock()


def _forget_in_child() -> None:
    for file_lock in _locks:
        os.close(file_lock.fd)
    _locks.clear()
    _fork_mutex.release()


# The mutex is held across every fork, so no thread is between opening a lock file and recording it.
os.register_at_fork(before=_fork_mutex.acquire, after_in_parent=_fork_mutex.release, after_in_child=_forget_in_child)
