"""Unpack compressed log files: .gz, .bz2 and .xz."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from typing import IO, Any, BinaryIO, cast

_OPEN: dict[bytes, Callable[[BinaryIO], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
COMPRESSED = (*_OPEN, b"\x28\xb5\x2f\xfd")  # the first bytes of a compressed file; the last, of zstd, is not read
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, OSError)


def can_unpack(first: bytes) -> bool:
    """Whether a file with these first bytes can be unpacked."""
    return first.startswith(tuple(_OPEN))


def open_unpacked(file: BinaryIO) -> IO[bytes]:
    """Return a stream of the unpacked bytes of an open file; reading it may raise one of DAMAGED."""
    first = os.pread(file.fileno(), 8, 0)
    file.seek(0)
    return cast("IO[bytes]", next(open_ for magic, open_ in _OPEN.items() if first.startswith(magic))(file))


def unpack(file: BinaryIO) -> BinaryIO:
    """Return a temporary file with the unpacked bytes of an open file, as old as that."""
    plain = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115  (the caller closes it)
    try:
        with open_unpacked(file) as stream:
            shutil.copyfileobj(stream, plain, 1 << 20)
        plain.flush()
        status = os.fstat(file.fileno())
        os.utime(plain.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
    except BaseException:
        plain.close()
        raise
    return plain
