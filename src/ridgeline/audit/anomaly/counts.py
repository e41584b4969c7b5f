"""Sessions by how often each key occurs in them: the distance to the nearest known session.

Two distances (Bray–Curtis, the share of log counts that differ): one counts all keys the same, one counts a key the
more the fewer sessions have it (tf-idf). The first sees a step that is missing or too many, the second a few rare
events in a long session.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

MOST = 4_096  # different sessions in memory
WIDEST = 2_048  # columns; beyond that, keys share them
FIRST = (16, 16)
LEAST = 0.1  # weight of a key that every session has
REFRESH = 1.1  # the weights are computed again when there are this many times more sessions


class Counts:
    def __init__(self) -> None:
        self._rows: OrderedDict[str, int] = OrderedDict()  # counts → row, oldest first
        self._columns: dict[int, int] = {}  # key → column
        self._matrix: NDArray[np.float32] = np.zeros(FIRST, np.float32)  # log(1 + count)
        self._sums: NDArray[np.float64] = np.zeros(FIRST[0])  # row sums
        self._weights: NDArray[np.float64] = np.zeros(0)  # of the columns, at the last refresh
        self._weighted: NDArray[np.float64] = np.zeros(FIRST[0])  # weighted row sums
        self._learnt = self._refreshed = 0  # sessions added, and those at the last refresh

    def distances(self, counts: Mapping[int, int]) -> tuple[float, float]:
        """Return both distances, in [0, 1], to the nearest known session; 0 if there is none.

        Only the columns of this session are read: sessions a and b differ by Σ a + Σ b − 2 Σ min(a, b).
        """
        known = len(self._rows)
        if not known or _name(counts) in self._rows:
            return 0.0, 0.0
        columns, values, strange = self._project(counts)
        shared = np.minimum(self._matrix[:known, columns], values)
        plain = _nearest(shared.sum(1, dtype=np.float64), self._sums[:known], values.sum(dtype=np.float64) + strange)
        weights = self._column_weights(columns)
        total = float(values @ weights) + strange * self._unknown_weight()
        return plain, _nearest(shared @ weights, self._weighted[:known], total)

    def learn(self, counts: Mapping[int, int]) -> None:
        name = _name(counts)
        if name in self._rows or not counts:
            return
        row = len(self._rows)
        if row >= MOST:
            row = self._rows.popitem(last=False)[1]
            self._matrix[row] = 0
        self._rows[name] = row
        for key in counts:
            if key not in self._columns and len(self._columns) < WIDEST:
                self._columns[key] = len(self._columns)
        self._grow()
        self._write(row, counts)
        self._learnt += 1
        if self._learnt > REFRESH * self._refreshed or self._learnt >= self._refreshed + MOST // 8:
            self._refreshed = self._learnt
            self._refresh()

    def _project(self, counts: Mapping[int, int]) -> tuple[list[int], NDArray[np.float32], float]:
        """Return the columns of a session, its log counts in them, and the sum of those without a column."""
        by_column: dict[int, int] = {}
        strange = 0.0
        for key, count in counts.items():
            column = self._columns.get(key)
            if column is None and len(self._columns) >= WIDEST:
                column = key % WIDEST
            if column is None:
                strange += math.log1p(count)
            else:
                by_column[column] = by_column.get(column, 0) + count
        return list(by_column), np.log1p(np.fromiter(by_column.values(), np.float32, len(by_column))), strange

    def _unknown_weight(self) -> float:
        return math.log(self._refreshed + 1) + LEAST

    def _column_weights(self, columns: list[int]) -> NDArray[np.float64]:
        """Return the weights of columns; a column that is newer than the weights counts as unknown."""
        known, unknown = len(self._weights), self._unknown_weight()
        return np.array([self._weights[column] if column < known else unknown for column in columns])

    def _refresh(self) -> None:
        known, used = len(self._rows), len(self._columns)
        sessions = (self._matrix[:known, :used] > 0).sum(0)
        self._weights = np.log((known + 1) / (sessions + 1)) + LEAST
        self._weighted = self._matrix[:, :used] @ self._weights

    def _grow(self) -> None:
        rows, columns = self._matrix.shape
        if len(self._rows) <= rows and len(self._columns) <= columns:
            return
        rows = 2 * rows if len(self._rows) > rows else rows
        while columns < len(self._columns):
            columns *= 2
        larger, sums, weighted = np.zeros((rows, columns), np.float32), np.zeros(rows), np.zeros(rows)
        larger[: len(self._matrix), : self._matrix.shape[1]] = self._matrix
        sums[: len(self._sums)], weighted[: len(self._weighted)] = self._sums, self._weighted
        self._matrix, self._sums, self._weighted = larger, sums, weighted

    def _write(self, row: int, counts: Mapping[int, int]) -> None:
        columns, values, _ = self._project(counts)
        self._matrix[row, columns] = values
        self._sums[row] = values.sum(dtype=np.float64)
        self._weighted[row] = float(values @ self._column_weights(columns))

    def state(self) -> dict[str, Any]:
        return {
            "known": list(self._rows.items()),
            "columns": list(self._columns),
            "shape": self._matrix.shape,
            "weights": self._weights.tolist(),
            "learnt": [self._learnt, self._refreshed],
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        restored = cls()
        restored._rows = OrderedDict(map(tuple, state["known"]))
        restored._columns = {key: column for column, key in enumerate(state["columns"])}
        restored._matrix = np.zeros(state["shape"], np.float32)
        restored._sums, restored._weighted = (np.zeros(state["shape"][0]) for _ in range(2))
        restored._weights = np.array(state["weights"])
        restored._learnt, restored._refreshed = state["learnt"]
        for name, row in restored._rows.items():
            items = (item.partition(":") for item in name.split())
            restored._write(row, {int(key): int(count) for key, _, count in items})
        return restored


def _nearest(shared: NDArray[np.float64], sums: NDArray[np.float64], total: float) -> float:
    both = sums + total
    # Rounding, so that the order of additions on a machine makes no difference.
    return max(0.0, round(float(((both - 2 * shared) / np.maximum(both, 1e-9)).min()), 6))


def _name(counts: Mapping[int, int]) -> str:
    return " ".join(f"{key}:{count}" for key, count in sorted(counts.items()))
