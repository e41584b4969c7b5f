"""The place beside a target where its next version is made, and what a crash leaves there.

    folder/
      name                   the target: whole, old or new, at every moment
      .name.tmp/             only while someone writes, or after a crash
        3f9c…/owner          flocked as long as its writer lives
        3f9c…/new/name       the next version; it has the target's own name, so writers that look at the
                             suffix (np.save, Parquet) do the same as they would outside
        3f9c…/old/0          the last version, while a directory is swapped in two steps

Leftovers are judged by the lock, not by a pid, so writers in other containers are safe. One name per target
means finding them costs one lookup, however many files the folder has.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import InputError, StoreError
from ridgeline.store.disk import StrPath, explain, explained, sync_folder
from ridgeline.store.locks import Grip, grip, release

_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF}
_LONGEST_NAME = 200  # bytes; leaves room for the dot and the ending within the usual 255
_TRIES = 100


@dataclass(frozen=True)
class Workspace:
    """Where one version of `target` is being made."""

    target: Path  # absolute, symbolic links followed
    folder: Path  # this writer's own, removed at the end
    payload: Path  # what will become the target
    pid: int

    @property
    def ours(self) -> bool:
        """False in a child forked while the block was open: its parent publishes, not it."""
        return os.getpid() == self.pid


@contextmanager
def workspace(path: StrPath, *, private: bool = False) -> Iterator[Workspace]:
    """A fresh workspace for `path`, after dead writers' leftovers are gone; removed at the end."""
    target = resolve(path)
    recover(target)
    with explained(path):
        space, held = _open(target, 0o700 if private else 0o777)
    try:
        yield space
    finally:
        if space.ours:
            shutil.rmtree(space.folder, ignore_errors=True)
            if held is not None:
                release(held)
            with suppress(OSError):  # other writers may be in there
                _bench(target).rmdir()


def resolve(path: StrPath) -> Path:
    """The absolute target of `path`, through symbolic links; its folder must exist."""
    if Path(path).name in ("", ".."):
        raise InputError(f"'{path}' names no file; give a path with a name at its end.")
    target = Path(os.path.realpath(path))
    try:
        if not stat.S_ISDIR(target.parent.stat().st_mode):
            raise StoreError(f"{target.parent} is a file, so {path} cannot lie in it; choose another place.")
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(f"the folder {target.parent} does not exist; create it to write {path}.") from None
    except OSError as error:
        raise explain(error, path) from error
    return target


def recover(path: StrPath) -> bool:
    """Finish a directory swap that a crash stopped between its two steps; True if there was one.

    Where the filesystem can exchange two names there is never anything to finish. Publishing and reading a
    manifest call this themselves.
    """
    target = Path(os.path.realpath(path))
    with explained(path):
        if os.path.lexists(target):
            return False
        for folder in _folders(target):
            if not (folder / "old").is_dir():
                continue
            held = _grip_when_free(folder / "owner")
            if held is None:
                continue
            try:
                # The old version only moves away once the new one is whole and synced: go forward.
                fresh = folder / "new" / target.name
                if fresh.is_dir() and not os.path.lexists(target):
                    os.rename(fresh, target)
                    sync_folder(target.parent)
                    return True
            finally:
                release(held)
        return False


def _open(target: Path, mode: int) -> tuple[Workspace, Grip | None]:
    bench = _bench(target)
    for _ in range(_TRIES):
        folder = bench / secrets.token_hex(8)
        try:
            with suppress(FileExistsError):
                bench.mkdir()
            folder.mkdir(mode)
            held = _grip_if_possible(folder / "owner")
            payload = folder / "new" / target.name
            payload.parent.mkdir()
        except FileNotFoundError:
            continue  # another writer tidied up between our steps
        _clear(target, folder)
        return Workspace(target, folder, payload, os.getpid()), held
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(bench))


def _clear(target: Path, mine: Path) -> None:
    """Remove what dead writers left; a live one holds its lock and is left alone."""
    for folder in _folders(target):
        if folder == mine:
            continue
        with suppress(OSError):  # another user's, or gone already
            held = grip(folder / "owner")
            if held is not None:
                try:
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    release(held)


def _grip_if_possible(path: Path) -> Grip | None:
    try:
        held = grip(path)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None  # without locks nobody can judge our leftovers, so they stay: safe, if untidy
        raise
    if held is None:  # a tidying writer was here between our mkdir and our lock; it removes the folder
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return held


def _grip_when_free(path: Path) -> Grip | None:
    """The lock of a writer that is between its two steps: dead, or done in a moment."""
    for _ in range(_TRIES):
        try:
            held = grip(path)
        except FileNotFoundError:
            return None
        if held is not None:
            return held
        time.sleep(0.01)
    return None


def _bench(target: Path) -> Path:
    name = target.name
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return target.with_name(f".{name}.tmp")


def _folders(target: Path) -> list[Path]:
    try:
        return sorted(_bench(target).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
