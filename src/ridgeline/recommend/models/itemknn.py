"""Item-kNN: items liked by the same people (cosine), each item looking at its nearest neighbours only."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from ridgeline.recommend.data import Real
from ridgeline.recommend.histories import Histories
from ridgeline.recommend.metrics import best

NEIGHBOURS = 100
BLOCK = 512  # items whose likeness to all others is held at a time


class ItemKnn:
    name = "itemknn"

    def __init__(self, neighbours: int = NEIGHBOURS) -> None:
        """With 0 neighbours it scores nothing and costs nothing: for a blend that has no use for it."""
        self.neighbours = neighbours
        self._turned: tuple[Any, Any] = (None, None)  # `near`, and the same with its columns as rows

    def fit(self, train: Histories) -> Self:
        from scipy.sparse import csr_matrix

        liked = train.matrix().tocsc()
        length = np.sqrt(np.maximum(np.bincount(train.items, minlength=train.width), 1)).astype(np.float32)
        liked = liked.multiply(1 / length[None, :]).tocsc()
        by_item = liked.T.tocsr()
        rows, columns, values = ([np.zeros(0, t)] for t in (np.int64, np.int64, np.float32))
        for start in range(0, train.width if self.neighbours else 0, BLOCK):
            near = (by_item[start : start + BLOCK] @ liked).toarray()
            own = np.arange(len(near))
            near[own, start + own] = 0
            near[near == 0] = -np.inf
            # Equal likenesses are common here (few raters): they go by the item's row, so the choice is repeatable.
            top = best(near, self.neighbours)
            item, place = np.nonzero(top >= 0)
            rows.append(item + start)
            columns.append(top[item, place])
            values.append(near[item, top[item, place]])
        shape = (train.width, train.width)
        where = (np.concatenate(rows), np.concatenate(columns))
        self.near = csr_matrix((np.concatenate(values), where), shape=shape)
        return self

    def scores(self, users: Histories) -> Real:
        if self._turned[0] is not self.near:  # turned once: for one user it would be most of the time
            self._turned = self.near, self.near.T.tocsr()
        found: Real = (users.matrix() @ self._turned[1]).toarray().astype(np.float32, copy=False)
        return found

    def similar(self, item: int) -> Real:
        row: Real = self.near[[item]].toarray()[0]
        return row
