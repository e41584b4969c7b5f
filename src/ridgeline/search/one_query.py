"""The way of one query over lists on a CPU that has been asked before: one native call from the query to its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ridgeline.native import SingleQuery
from ridgeline.search.arrays import Floats, Whole, Wide
from ridgeline.search.engine import Ask
from ridgeline.search.lists import Lists
from ridgeline.search.metric import MORE_TERMS, ROUNDING, TOO_LARGE, UNDERFLOW

Answer = tuple[Wide, Whole]


class OnLists:
    """`otherwise`: the ordinary way, which has words for what is wrong and float64 for what is large."""

    def __init__(self, lists: Lists, metric: str, ask: Ask, otherwise: Callable[[Any], Answer]) -> None:
        segment = lists.segments[0]
        self._k, self._otherwise = ask.k, otherwise
        self._search = SingleQuery(
            lists.centres,
            lists.halves if metric == "l2" else None,
            segment.codes,
            segment.offsets,
            segment.rows,
            segment.biases,
            metric == "cosine",
            metric == "l2",
            ask.nprobe,
            ask.k,
            lists.longest,
            ROUNDING,
            UNDERFLOW,
            TOO_LARGE,
            MORE_TERMS,
        )

    @staticmethod
    def fits(lists: Lists, ask: Ask) -> bool:
        """Whether all rows count, lie in one segment as float32, and have ids in their own order."""
        return ask.allowed is None and ask.ids is None and len(lists.segments) == 1 and lists.floats

    def on_host(self, queries: Any) -> tuple[Floats, Whole]:
        """(scores float32 [1, k], rows [1, k]) of queries [1, d]."""
        scores, rows = np.empty((1, self._k), np.float32), np.empty((1, self._k), np.int64)
        with np.errstate(over="ignore"):  # what does not fit is not finite, and goes the other way
            if self._search(np.ascontiguousarray(queries[0], np.float32), scores[0], rows[0]):
                return scores, rows
            wide, rows = self._otherwise(queries)
            return wide.astype(np.float32), rows
