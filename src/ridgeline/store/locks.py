"""Locks that die with their owner.

The lock is `flock` on an open file, so the kernel frees it the moment the owner is gone, whatever killed it;
no stale pid is ever judged. The file itself stays (removing it would let two owners in) and names the owner
while there is one:

    with lock("runs/night/lock", timeout=5):
        ...

`flock` belongs to the open file, which a forked child shares. Left alone, a worker that outlives its killed
parent would keep the lock. So the descriptor closes on exec, and children forked by Python close it at once
and, leaving the block, neither free nor wipe what is their parent's.
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
from ridgeline.store.disk import StrPath, explained

# A peek (`owner`) or a process between fork and exec may hold the lock for a moment: that is not an owner.
_GRACE_S = 0.05
_COMMAND_CHARS = 200


@dataclass(frozen=True)
class Owner:
    """Who holds a lock, as the holder wrote it down."""

    pid: int
    host: str
    command: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since} ({self.command})"


@dataclass(frozen=True, eq=False)
class Grip:
    """One held flock, known by identity: a descriptor's number may be reused after a fork."""

    fd: int


@contextmanager
def lock(path: StrPath, timeout: float | None = 0.0) -> Iterator[Owner]:
    """Hold the lock file `path`, made if need be; `timeout` in seconds, None waits for ever.

    A lock that stays taken is a StoreError that names its owner.
    """
    with explained(path):
        held = _wait(Path(path), timeout)
    command = shlex.join(sys.argv)[:_COMMAND_CHARS]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    mine = Owner(os.getpid(), socket.gethostname(), command, now)
    try:
        with suppress(OSError):  # on a full disk the lock still holds, only without a name
            os.ftruncate(held.fd, 0)
            os.pwrite(held.fd, json.dumps(asdict(mine)).encode(), 0)
        yield mine
    finally:
        release(held, wipe=True)


def owner(path: StrPath) -> Owner | None:
    """Who holds the lock file `path` now; None if it is free or not there."""
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
        return _written(fd)
    finally:
        os.close(fd)
    return None


def grip(path: Path) -> Grip | None:
    """Try once to flock the file `path`, made if need be; None while someone else holds it."""
    with _guard:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The file may have been removed between open and flock: that lock would exclude nobody.
            held = Grip(fd) if os.path.samestat(os.fstat(fd), os.stat(path)) else None
        except (BlockingIOError, FileNotFoundError):
            held = None
        except BaseException:
            os.close(fd)
            raise
        if held is None:
            os.close(fd)
        else:
            _grips.add(held)
        return held


def release(held: Grip, *, wipe: bool = False) -> None:
    """Let go of a grip, unless this is a forked child, which never had it."""
    with _guard:
        if held not in _grips:
            return
        _grips.discard(held)
        try:
            if wipe:
                os.ftruncate(held.fd, 0)
            # Said aloud, not left to close: a child forked by foreign C code may still share the open file.
            fcntl.flock(held.fd, fcntl.LOCK_UN)
        finally:
            os.close(held.fd)


def _wait(path: Path, timeout: float | None) -> Grip:
    start = time.monotonic()
    pause = 0.005
    while True:
        held = grip(path)
        if held is not None:
            return held
        waited = time.monotonic() - start
        if timeout is not None and waited >= max(timeout, _GRACE_S):
            by = owner(path)
            who = by if by is not None and by.pid else "another process"
            raise Locked(f"{path} is locked by {who}; wait for it to end, or stop it, and run again.")
        time.sleep(pause)
        pause = min(pause * 2, 0.1)


def _written(fd: int) -> Owner:
    try:
        found = json.loads(os.pread(fd, 64 * 1024, 0))
        return Owner(int(found["pid"]), str(found["host"]), str(found["command"]), str(found["since"]))
    except (ValueError, KeyError, TypeError):
        return Owner(0, "?", "?", "?")  # the holder has not signed yet


_grips: set[Grip] = set()
# Reentrant, because a signal handler may fork while its own thread is inside.
_guard = threading.RLock()


def _forget_in_child() -> None:
    for held in _grips:
        os.close(held.fd)
    _grips.clear()
    _guard.release()


# The guard is held across every fork, so no thread can be between opening a lock and noting it down.
os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_forget_in_child)
