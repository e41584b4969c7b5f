"""Numbers in a row that only grow, an entry of a log each: adding some never moves what was there before.

>>> column = Column(np.int32)
>>> column.add([1, 2])
>>> column.add([3])
>>> column.since(1).tolist(), len(column)
([2, 3], 3)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

PART = 1 << 16  # numbers; a part this large is left where it is


class Column:
    """Kept in parts, which are joined while they are small, so that nobody waits for a large one to be moved."""

    def __init__(self, dtype: type, numbers: NDArray[Any] | None = None) -> None:
        self._dtype = dtype
        self._parts: list[NDArray[Any]] = [] if numbers is None else [numbers]
        self._count = 0 if numbers is None else len(numbers)

    def __len__(self) -> int:
        return self._count

    def add(self, numbers: Sequence[int]) -> None:
        self._parts.append(np.array(numbers, self._dtype))
        self._count += len(numbers)
        while len(self._parts) > 1 and len(self._parts[-2]) <= len(self._parts[-1]) and len(self._parts[-2]) < PART:
            self._parts[-2:] = [np.concatenate(self._parts[-2:])]

    def since(self, first: int) -> NDArray[Any]:
        """From number `first` on, 0 for all of them."""
        found, begin = list[NDArray[Any]](), self._count
        while begin > first:
            part = self._parts[-1 - len(found)]
            begin -= len(part)
            found.append(part[max(0, first - begin) :])
        return np.concatenate(found[::-1]) if found else np.zeros(0, self._dtype)

    def cut(self, count: int) -> None:
        """Only the first `count` are left."""
        self._parts = [self.since(0)[:count]]
        self._count = len(self._parts[0])
