"""Array types of the search package, and an array that grows while other threads read it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.uint8]
Array = NDArray[Any]

MIN_CAPACITY = 64  # rows; a smaller buffer would be copied on every append


@dataclass(frozen=True)
class GrowableArray:
    """The first `count` rows of a buffer that can be longer.

    New rows are written only after `count`, so a reader of an older object keeps its rows. There must be one writer at
    a time, and each write must start from the latest object.
    """

    buffer: Array
    count: int

    @property
    def rows(self) -> Array:
        return self.buffer[: self.count]

    def append(self, more: Array) -> GrowableArray:
        """Return the rows followed by `more`; a full buffer is copied into one half as large again."""
        count = self.count + len(more)
        buffer = self.buffer
        if count > len(buffer) or not buffer.flags.writeable:
            capacity = (
                max(count, MIN_CAPACITY) if not self.count else max(count, self.count + self.count // 2, MIN_CAPACITY)
            )
            buffer = np.empty((capacity, *buffer.shape[1:]), buffer.dtype)
            buffer[: self.count] = self.rows
        buffer[self.count : count] = more
        return GrowableArray(buffer, count)


def wrap_rows(rows: Array) -> GrowableArray:
    """Use an existing array as a growable one, without a copy."""
    return GrowableArray(rows, len(rows))


def count_threads() -> int:
    """The number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))
