"""The kinds of array search speaks of, and one that grows without disturbing those who read it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Wide = NDArray[np.float64]
Whole = NDArray[np.int64]
Flags = NDArray[np.uint8]
Array = NDArray[Any]

LEAST_ROOM = 64  # rows; below, every add would copy


@dataclass(frozen=True)
class Grown:
    """The first `count` rows of a buffer that may be longer.

    Rows are only ever written behind `count`, so whoever holds an older one goes on reading what it had. There must
    be one writer at a time, and each must go on from the latest.
    """

    buffer: Array
    count: int

    @property
    def rows(self) -> Array:
        return self.buffer[: self.count]

    def appended(self, more: Array) -> Grown:
        """With `more` behind; copies only when the buffer is full, and then makes room for as much again."""
        count = self.count + len(more)
        buffer = self.buffer
        if count > len(buffer) or not buffer.flags.writeable:
            room = max(count, LEAST_ROOM) if not self.count else max(count, self.count + self.count // 2, LEAST_ROOM)
            buffer = np.empty((room, *buffer.shape[1:]), buffer.dtype)
            buffer[: self.count] = self.rows
        buffer[self.count : count] = more
        return Grown(buffer, count)


def grown(rows: Array) -> Grown:
    """What is there already, taken as it is."""
    return Grown(rows, len(rows))


def threads() -> int:
    """As many as may run here."""
    return len(os.sched_getaffinity(0))
