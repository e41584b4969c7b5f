"""Durable writes: fsync, atomic exchange of two names, and operating-system errors as sentences.

A rename is atomic, but it survives a power cut only after the *directory* is synced. The new name must not survive
without its bytes, so files are synced first. The order is always: files, rename, directory.
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

# System call numbers, because musl and older glibc have no wrapper; they are valid for 64-bit processes only.
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276, "riscv64": 276, "ppc64le": 357, "s390x": 347}
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
# An old kernel, a filesystem without exchange, a sandbox that forbids it: use two renames instead.
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP}

_WRITE_RANGE = 2  # SYNC_FILE_RANGE_WRITE
_FULL = {errno.ENOSPC, errno.EDQUOT}
NO_SPACE = {*_FULL, errno.EFBIG}  # no space on the disk, or more than the process may write


def sync_file(path: Path) -> None:
    """Wait until the bytes and the mode of `path` are on the disk."""
    # Open for reading: fsync flushes the inode, and a published file may be read-only.
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
        if error.errno != errno.EINVAL:  # some network filesystems do not sync folders; their names are durable at once
            raise
    finally:
        os.close(fd)


def sync_tree(path: Path) -> None:
    """Wait until everything below `path`, and `path` itself, is on the disk."""
    for folder, _, names in os.walk(path, onerror=_raise):
        for name in names:
            file = Path(folder, name)
            if stat.S_ISREG(file.lstat().st_mode):
                sync_file(file)
        sync_folder(Path(folder))


def sync_filesystem(path: Path) -> None:
    """Wait until everything on the filesystem of `path` is on the disk: one call instead of one for each file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if call is None:
            os.sync()
        elif call(fd):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(fd)


def start_writing(paths: Iterable[Path]) -> None:
    """Ask the kernel to start writing files to the disk, without waiting, so that many are written together.

    This is only a hint. Without such a system call, the later syncs do all the work.
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
    """Exchange two names in a single step; return False if kernel or filesystem cannot."""
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


def explain_error(error: OSError, path: StrPath) -> StoreError:
    """Return the error message for an operating-system error on `path`."""
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
def explain_errors(path: StrPath) -> Iterator[None]:
    """Turn every OSError of the block into a StoreError about `path`."""
    try:
        yield
    except OSError as error:
        raise explain_error(error, path) from error


@contextmanager
def explain_errors_within(folder: Path, path: StrPath) -> Iterator[None]:
    """Turn an OSError of the block into a StoreError if it concerns `folder` or disk space.

    The block may also read other files; errors about those stay as they are.
    """
    try:
        yield
    except OSError as error:
        filename = error.filename
        is_target = isinstance(filename, str | os.PathLike) and folder in Path(filename).parents
        if is_target or error.errno in NO_SPACE:
            raise explain_error(error, path) from error
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
