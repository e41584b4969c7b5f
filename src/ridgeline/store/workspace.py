"""Workspaces: temporary folders beside a target in which its next version is written.

    folder/
      name                   the target: always complete, old or new
      .name.tmp/             exists during a write, or after a crash
        3f9c…/owner          locked while the writer lives
        3f9c…/new/name       the next version; it has the name of the target, so writers that depend on the
                             suffix (np.save, Parquet) behave as usual
        3f9c…/old/0          the last version, while a folder is swapped in two steps

A leftover is a workspace whose lock is free. Locks, unlike pids, also work between containers. With one root per
target, finding leftovers takes one lookup, however many files the folder has.
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
from ridgeline.store.disk import StrPath, explain_error, explain_errors, sync_folder
from ridgeline.store.locks import FileLock, release, try_lock

_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF}
_MAX_NAME_BYTES = 200  # leaves space for the dot and the ending within the usual 255 bytes
_TRIES = 100


@dataclass(frozen=True)
class Workspace:
    """The place where one version of `target` is written."""

    target: Path  # absolute, symbolic links followed
    folder: Path  # of this writer, removed at the end
    payload: Path  # becomes the target
    pid: int

    @property
    def ours(self) -> bool:
        """False in a child forked inside the block: its parent publishes."""
        return os.getpid() == self.pid


@contextmanager
def open_workspace(path: StrPath, *, private: bool = False) -> Iterator[Workspace]:
    """Create a workspace for `path`, remove leftovers of dead writers, and remove the workspace at the end."""
    target = resolve(path)
    recover(target)
    with explain_errors(path):
        space, file_lock = _create_workspace(target, 0o700 if private else 0o777)
    try:
        yield space
    finally:
        if space.ours:
            shutil.rmtree(space.folder, ignore_errors=True)
            if file_lock is not None:
                release(file_lock)
            with suppress(OSError):  # other writers may use it
                _get_root(target).rmdir()


def resolve(path: StrPath) -> Path:
    """Return the absolute target of `path` through symbolic links; its folder must exist."""
    if Path(path).name in ("", ".."):
        raise InputError(f"'{path}' names no file; give a path with a name at its end.")
    target = Path(os.path.realpath(path))
    try:
        if not stat.S_ISDIR(target.parent.stat().st_mode):
            raise StoreError(f"{target.parent} is a file, so {path} cannot lie in it; choose another place.")
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(f"the folder {target.parent} does not exist; create it to write {path}.") from None
    except OSError as error:
        raise explain_error(error, path) from error
    return target


def recover(path: StrPath) -> bool:
    """Finish a folder swap that a crash stopped between its two steps; return True if there was one.

    Filesystems that exchange two names never need this. Publishing and reading a manifest call it.
    """
    target = Path(os.path.realpath(path))
    with explain_errors(path):
        if os.path.lexists(target):
            return False
        for folder in _list_workspaces(target):
            if not (folder / "old").is_dir():
                continue
            file_lock = _wait_for_lock(folder / "owner")
            if file_lock is None:
                continue
            try:
                # The old version moves only after the new one is complete and synced: finish the swap.
                new_version = folder / "new" / target.name
                if new_version.is_dir() and not os.path.lexists(target):
                    os.rename(new_version, target)
                    sync_folder(target.parent)
                    return True
            finally:
                release(file_lock)
        return False


def _create_workspace(target: Path, mode: int) -> tuple[Workspace, FileLock | None]:
    root = _get_root(target)
    for _ in range(_TRIES):
        folder = root / secrets.token_hex(8)
        try:
            with suppress(FileExistsError):
                root.mkdir()
            folder.mkdir(mode)
            file_lock = _try_lock_if_supported(folder / "owner")
            payload = folder / "new" / target.name
            payload.parent.mkdir()
        except FileNotFoundError:
            continue  # another writer removed the root meanwhile
        _remove_leftovers(target, folder)
        return Workspace(target, folder, payload, os.getpid()), file_lock
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(root))


def _remove_leftovers(target: Path, current: Path) -> None:
    """Remove leftovers of dead writers; a live writer holds its lock."""
    for folder in _list_workspaces(target):
        if folder == current:
            continue
        with suppress(OSError):  # it belongs to another user, or is already removed
            file_lock = try_lock(folder / "owner")
            if file_lock is not None:
                try:
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    release(file_lock)


def _try_lock_if_supported(path: Path) -> FileLock | None:
    try:
        file_lock = try_lock(path)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None  # without locks, leftovers are never removed: safe, but untidy
        raise
    if file_lock is None:  # another writer took the lock to remove this folder
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return file_lock


def _wait_for_lock(path: Path) -> FileLock | None:
    """Wait for the lock of a writer between its two steps: it is dead, or finishes soon."""
    for _ in range(_TRIES):
        try:
            file_lock = try_lock(path)
        except FileNotFoundError:
            return None
        if file_lock is not None:
            return file_lock
        time.sleep(0.01)
    return None


def _get_root(target: Path) -> Path:
    name = target.name
    if len(os.fsencode(name)) > _MAX_NAME_BYTES:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return target.with_name(f".{name}.tmp")


def _list_workspaces(target: Path) -> list[Path]:
    try:
        return sorted(_get_root(target).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
