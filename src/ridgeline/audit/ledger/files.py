"""Reading what anyone may have put there: a log's served tree is believed only once it was hashed.

So a pipe under a tile's name must not hang the reader, nor a file without end fill its memory.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

LARGEST_NOTE = 1 << 20
LARGEST_BUNDLE = 256 * (2 + 65_535)


def read_note(path: Path) -> bytes | None:
    """A checkpoint or what is to be one; None where there is no such file."""
    try:
        return read_regular(path, LARGEST_NOTE)
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_regular(path: Path, most: int = LARGEST_BUNDLE) -> bytes:
    """The bytes of a plain file, `most` and one more of them at most; FileNotFoundError for what is no file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe without a writer opens at once
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(errno.ENOENT, "no plain file", str(path))
        parts, left = list[bytes](), min(found.st_size, most) + 1
        while left and (part := os.read(fd, left)):  # some network filesystems give less than was asked for
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)
