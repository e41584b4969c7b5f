"""Where the samples of a batch come from, kept by columns.

A batch crosses from a worker to the process that trains, which has launches to make meanwhile: two arrays and a few
names are read there in microseconds, hundreds of objects in a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np

from ridgeline.trajectory.sample import Where
from ridgeline.trajectory.timeline import Array


class Places(Sequence[Where]):
    """A `Where` for each of B samples, made when it is asked for."""

    def __init__(self, of: Iterable[Where]) -> None:
        named: dict[tuple[str, str], int] = {}
        rows = [(w.index, w.start_ns, w.end_ns, named.setdefault((w.file, w.episode), len(named))) for w in of]
        self._rows = np.array(rows, np.int64).reshape(-1, 4)
        self._named = tuple(named)

    @property
    def indices(self) -> Array:
        """[B] int64: which items of the dataset they are."""
        return self._rows[:, 0]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Where: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Where, ...]: ...
    def __getitem__(self, place: int | slice) -> Where | tuple[Where, ...]:
        if isinstance(place, slice):
            return tuple(self[i] for i in range(*place.indices(len(self))))
        index, start, end, name = self._rows[place].tolist()
        file, episode = self._named[name]
        return Where(index, file, episode, start, end)

    def __eq__(self, other: Any) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, (Places, tuple)) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))
