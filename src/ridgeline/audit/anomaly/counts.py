"""Sessions by how often each template occurs in them: how unusual the counts are, and how far from the nearest session.

A session whose counts were seen before is as unusual as those counts are rare. A session with new counts is as unusual
as new counts are rare, and more so the further it is from the nearest known session. If every session is different,
only the distance matters.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ridgeline.audit.anomaly.calibration import Ranks
from ridgeline.audit.anomaly.frequency import Frequencies

SPAN = 10_000
MOST = 2_048  # different sessions in memory
WIDEST = 4_096  # templates in them; beyond that, all sessions are forgotten
FIRST = (16, 16)
SCALE = 8.0  # nats of a distance of 1 (nothing in common), for the ranks


class Counts:
    def __init__(self, span: int = SPAN) -> None:
        self._often = Frequencies(span)
        self._away = Ranks(span)  # distances of earlier sessions
        self._rows: OrderedDict[str, int] = OrderedDict()  # counts → row, oldest first
        self._columns: dict[int, int] = {}  # template → column
        self._matrix: NDArray[np.float32] = np.zeros(FIRST, np.float32)  # log(1 + count)
        self._sums: NDArray[np.float64] = np.zeros(FIRST[0])  # row sums
        self._last_answer: tuple[str, tuple[float, float]] | None = None  # of `surprise`, valid until the next `learn`

    def surprise(self, counts: Mapping[int, int]) -> tuple[float, float]:
        """Return the surprise in nats, and the distance in [0, 1] to the nearest known session."""
        key = _key(counts)
        if self._last_answer is None or self._last_answer[0] != key:
            self._last_answer = key, self._surprise(key, counts)
        return self._last_answer[1]

    def _surprise(self, key: str, counts: Mapping[int, int]) -> tuple[float, float]:
        rare = -math.log(self._often.p(key))
        if key in self._often:
            return rare, 0.0
        distance = self.distance(counts)
        return rare - math.log(self._away.p(distance * SCALE)), distance

    def distance(self, counts: Mapping[int, int]) -> float:
        """Return the distance to the nearest known session: the share of log counts that differ (Bray–Curtis).

        Only the templates of this session are read: sessions a and b differ by Σ a + Σ b − 2 Σ min(a, b). Float64 sums
        of this few float32 numbers are exact.
        """
        if not self._rows:
            return 0.0
        shared = [(self._columns[template], n) for template, n in counts.items() if template in self._columns]
        columns, log_counts = [column for column, _ in shared], np.log1p([n for _, n in shared]).astype(np.float32)
        strange = sum(math.log1p(n) for template, n in counts.items() if template not in self._columns)
        known = len(self._rows)
        both = np.minimum(self._matrix[:known, columns], log_counts).sum(1, dtype=np.float64)
        total = self._sums[:known] + log_counts.sum(dtype=np.float64) + strange
        return float(((total - 2 * both) / np.maximum(total, 1e-9)).min())

    def learn(self, counts: Mapping[int, int], distance: float) -> None:
        key, self._last_answer = _key(counts), None
        self._often.learn(key)
        self._away.add(distance * SCALE)
        if key in self._rows or not 0 < len(counts) <= WIDEST:
            return
        if len(self._columns) + sum(template not in self._columns for template in counts) > WIDEST:
            self._rows, self._columns = OrderedDict(), {}
            self._matrix, self._sums = np.zeros(FIRST, np.float32), np.zeros(FIRST[0])
        row = len(self._rows)
        if row >= MOST:
            row = self._rows.popitem(last=False)[1]
            self._matrix[row] = 0
        self._rows[key] = row
        for template in counts:
            self._columns.setdefault(template, len(self._columns))
        rows, columns = self._matrix.shape
        if len(self._rows) > rows or len(self._columns) > columns:
            rows = 2 * rows if len(self._rows) > rows else rows
            while columns < len(self._columns):
                columns *= 2
            larger, sums = np.zeros((rows, columns), np.float32), np.zeros(rows)
            larger[: len(self._matrix), : self._matrix.shape[1]] = self._matrix
            sums[: len(self._sums)] = self._sums
            self._matrix, self._sums = larger, sums
        self._write(row, counts)

    def _write(self, row: int, counts: Mapping[int, int]) -> None:
        columns = [self._columns[template] for template in counts]
        self._matrix[row, columns] = np.log1p(list(counts.values()))
        self._sums[row] = self._matrix[row, columns].sum(dtype=np.float64)

    def state(self) -> dict[str, Any]:
        return {
            "often": self._often.state(),
            "away": self._away.state(),
            "known": list(self._rows.items()),
            "columns": list(self._columns),
            "shape": self._matrix.shape,
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        restored = cls()
        restored._often, restored._away = Frequencies.restore(state["often"]), Ranks.restore(state["away"])
        restored._rows = OrderedDict(map(tuple, state["known"]))
        restored._columns = {template: column for column, template in enumerate(state["columns"])}
        restored._matrix, restored._sums = np.zeros(state["shape"], np.float32), np.zeros(state["shape"][0])
        for key, row in restored._rows.items():
            items = (item.partition(":") for item in key.split())
            restored._write(row, {int(template): int(count) for template, _, count in items})
        return restored


def _key(counts: Mapping[int, int]) -> str:
    return " ".join(f"{template}:{counts[template]}" for template in sorted(counts))
