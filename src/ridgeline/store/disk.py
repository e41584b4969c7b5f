"""What the kernel offers for files that are whole or not there: fsync, exchange, and its errors in words.

A rename is atomic, but it lasts through a power cut only after the *directory* was synced; and the new name
must never last longer than the bytes under it, so files are synced first. The order is always: files, rename,
directory.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from ridgeline.errors import StoreError

StrPath = str | os.PathLike[str]

# By number, because musl and older glibc carry no wrapper; the numbers hold for 64-bit processes only.
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276, "riscv64": 276, "ppc64le": 357, "s390x": 347}
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
# An old kernel, a filesystem without exchange, a sandbox that forbids it: all mean "take the other way".
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP}

_WRITE_RANGE = 2  # SYNC_FILE_RANGE_WRITE
_FULL = {errno.ENOSPC, errno.EDQUOT}
NO_ROOM = {*_FULL, errno.EFBIG}  # on the disk, or within what a process may write


def sync_file(path: Path) -> None:
    """Wait until the bytes and the mode of `path` are on the disk."""
    # Opened for reading: fsync flushes the inode, whoever wrote it, and a file may be published read-only.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(path: Path) -> None:
    """Wait until the names in the folder `path` are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network filesystems sync no folders; their names are durable at once
            raise
    finally:
        os.close(fd)


def sync_tree(path: Path) -> None:
    """Wait until everything below `path`, and `path` itself, is on the disk."""
    for here, _, names in os.walk(path, onerror=_raise):
        for name in names:
            file = Path(here, name)
            if stat.S_ISREG(file.lstat().st_mode):
                sync_file(file)
        sync_folder(Path(here))


def start_writing(paths: Iterable[Path]) -> None:
    """Have the kernel begin to write files out, without waiting: many of them then reach the disk together.

    A hint only. Where the system has no such call, the syncs that follow do all the work.
    """
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is None:
        return
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            call(fd, 0, 0, _WRITE_RANGE)
        finally:
            os.close(fd)


def exchange(one: Path, other: Path) -> bool:
    """Swap two names in a single step; False where kernel or filesystem cannot."""
    number = _RENAMEAT2.get(platform.machine())
    if not sys.platform.startswith("linux") or sys.maxsize <= 2**32 or number is None:
        return False
    failed = _syscall()(number, _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if not failed:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def explain(error: OSError, path: StrPath) -> StoreError:
    """The sentence for an operating-system error met while writing or reading `path`."""
    if error.errno in _FULL:
        return StoreError(f"the disk is full, so {path} was not written; free some space and run it again.")
    if error.errno == errno.EFBIG:
        return StoreError(f"{path} would be larger than this process may write; raise the limit (ulimit -f).")
    if error.errno in (errno.EACCES, errno.EPERM):
        return StoreError(f"no permission for {path}; check the owner and mode of it and of its folder.")
    if error.errno == errno.EROFS:
        return StoreError(f"{path} lies on a read-only filesystem; choose another place.")
    if error.errno == errno.ENOENT:
        return StoreError(f"{path} or its folder is not there; check the name, or create the folder first.")
    if error.errno in (errno.EISDIR, errno.ENOTDIR):
        return StoreError(f"{path} is a folder where a file must be, or lies in a file; choose another name.")
    if error.errno == errno.ENAMETOOLONG:
        return StoreError(f"the name of {path} is too long for its filesystem; choose a shorter one.")
    if error.errno == errno.EXDEV:
        return StoreError(
            f"{path} cannot be moved in one step (a mount point, or a container's lower layer); choose another place."
        )
    return StoreError(f"{path} failed: {error.strerror or error}; check the disk and run it again.")


@contextmanager
def explained(path: StrPath) -> Iterator[None]:
    """Turn every OSError of the block into a sentence about `path`."""
    try:
        yield
    except OSError as error:
        raise explain(error, path) from error


@contextmanager
def explained_within(folder: Path, path: StrPath) -> Iterator[None]:
    """Turn an OSError of the caller's own block into a sentence, but only if it is about our disk.

    The caller may well read other files there; an error about those is not ours to rename.
    """
    try:
        yield
    except OSError as error:
        named = error.filename
        ours = isinstance(named, str | os.PathLike) and folder in Path(named).parents
        if ours or error.errno in NO_ROOM:
            raise explain(error, path) from error
        raise


@cache
def _syscall() -> Callable[..., int]:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes = [
        ctypes.c_long,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint,
    ]
    call.restype = ctypes.c_long
    return call


def _raise(error: OSError) -> None:
    raise error
