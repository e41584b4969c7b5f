"""Whole sessions by how often each template came in them: which are usual, and how far is one from the nearest?

A session whose counts were seen before is as unusual as they are rare. One whose counts were never seen is as unusual
as new ones are rare, and more so the further it lies from the nearest known one. Where every session is different, only
the distance speaks.
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
MOST = 2_048  # different sessions held
WIDEST = 4_096  # templates in them; beyond, what is held is forgotten
FIRST = (16, 16)
SCALE = 8.0  # a distance of 1 (nothing in common) is so many "nats" on the scale of the ranks


class Counts:
    def __init__(self, span: int = SPAN) -> None:
        self._often = Frequencies(span)
        self._away = Ranks(span)  # how far from all others sessions were
        self._rows: OrderedDict[str, int] = OrderedDict()  # counts → row, oldest first
        self._columns: dict[int, int] = {}  # template → column
        self._matrix: NDArray[np.float32] = np.zeros(FIRST, np.float32)  # log(1 + count)
        self._sums: NDArray[np.float64] = np.zeros(FIRST[0])  # of its rows
        self._asked: tuple[str, tuple[float, float]] | None = None  # the last answer, until more is learnt

    def surprise(self, counts: Mapping[int, int]) -> tuple[float, float]:
        """In nats, and the distance in [0, 1] to the nearest known session."""
        key = _key(counts)
        if self._asked is None or self._asked[0] != key:
            self._asked = key, self._surprise(key, counts)
        return self._asked[1]

    def _surprise(self, key: str, counts: Mapping[int, int]) -> tuple[float, float]:
        rare = -math.log(self._often.p(key))
        if key in self._often:
            return rare, 0.0
        distance = self.distance(counts)
        return rare - math.log(self._away.p(distance * SCALE)), distance

    def distance(self, counts: Mapping[int, int]) -> float:
        """To the nearest known session: the share of log counts in which they differ (Bray–Curtis).

        Only the templates of this session are looked at: with what both have, Σ min(a, b), and with what each has,
        they differ by Σ a + Σ b − 2 Σ min(a, b). Sums of so few float32 numbers are exact in float64.
        """
        if not self._rows:
            return 0.0
        shared = [(self._columns[template], n) for template, n in counts.items() if template in self._columns]
        columns, own = [column for column, _ in shared], np.log1p([n for _, n in shared]).astype(np.float32)
        strange = sum(math.log1p(n) for template, n in counts.items() if template not in self._columns)
        held = len(self._rows)
        both = np.minimum(self._matrix[:held, columns], own).sum(1, dtype=np.float64)
        all = self._sums[:held] + own.sum(dtype=np.float64) + strange
        return float(((all - 2 * both) / np.maximum(all, 1e-9)).min())

    def learn(self, counts: Mapping[int, int], distance: float) -> None:
        key, self._asked = _key(counts), None
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
            grown, sums = np.zeros((rows, columns), np.float32), np.zeros(rows)
            grown[: len(self._matrix), : self._matrix.shape[1]] = self._matrix
            sums[: len(self._sums)] = self._sums
            self._matrix, self._sums = grown, sums
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
        made = cls()
        made._often, made._away = Frequencies.restore(state["often"]), Ranks.restore(state["away"])
        made._rows = OrderedDict(map(tuple, state["known"]))
        made._columns = {template: column for column, template in enumerate(state["columns"])}
        made._matrix, made._sums = np.zeros(state["shape"], np.float32), np.zeros(state["shape"][0])
        for key, row in made._rows.items():
            items = (item.partition(":") for item in key.split())
            made._write(row, {int(template): int(count) for template, _, count in items})
        return made


def _key(counts: Mapping[int, int]) -> str:
    return " ".join(f"{template}:{counts[template]}" for template in sorted(counts))
