"""Item-kNN: cosine similarity of items by the users who like them, limited to each item's nearest neighbours."""

from __future__ import annotations

from copy import copy
from typing import Any, Self

import numpy as np

from ridgeline.recommend.data import Floats, Histories
from ridgeline.recommend.models.fold_in import FoldIn

NEIGHBOURS = 100
BLOCK = 512  # items per block of similarities


class ItemKnn:
    name = "itemknn"

    def __init__(self, neighbours: int = NEIGHBOURS) -> None:
        """Use this many neighbours per item. With 0, fit and scores cost nothing: for a blend without this model."""
        self.neighbours = neighbours
        self._transposed: tuple[Any, Any] = (None, None)  # `similarities`, and its transpose
        self.fold: FoldIn | None = None  # items that arrived after the fit

    def fit(self, train: Histories) -> Self:
        from scipy.sparse import csr_matrix

        liked = train.matrix()
        length = np.sqrt(np.maximum(np.bincount(train.items, minlength=train.width), 1)).astype(np.float32)
        liked = liked.multiply(1 / length[None, :]).tocsr()
        by_item = liked.T.tocsr()
        rows, columns, values = ([np.zeros(0, t)] for t in (np.int64, np.int64, np.float32))
        for start in range(0, train.width if self.neighbours else 0, BLOCK):
            # Most pairs of items have no user in common, so the products stay sparse.
            products = by_item[start : start + BLOCK] @ liked
            for row in range(products.shape[0]):
                part = slice(products.indptr[row], products.indptr[row + 1])
                items, similarities = _find_nearest(
                    products.indices[part], products.data[part], start + row, self.neighbours
                )
                rows.append(np.full(len(items), start + row))
                columns.append(items)
                values.append(similarities)
        shape = (train.width, train.width)
        where = (np.concatenate(rows), np.concatenate(columns))
        self.similarities = csr_matrix((np.concatenate(values), where), shape=shape)
        return self

    def scores(self, users: Histories) -> Floats:
        if self._transposed[0] is not self.similarities:  # transpose once: for one user it would take most of the time
            self._transposed = self.similarities, self.similarities.T.tocsr()
        if self.fold is None:
            scores: Floats = (users.matrix() @ self._transposed[1]).toarray().astype(np.float32, copy=False)
            return scores
        fitted = self.similarities.shape[0]
        scores = np.zeros((len(users), users.width), np.float32)
        scores[:, :fitted] = (self.fold.spread(users.matrix())[:, :fitted] @ self._transposed[1]).toarray()
        self.fold.fill(scores)
        return scores

    def extend(self, fold: FoldIn) -> ItemKnn:
        """Return this model with the new items folded in; the similarities are shared."""
        model = copy(self)
        model.fold = fold
        return model

    def similar(self, item: int) -> Floats:
        fitted = self.similarities.shape[0]
        row: Floats = self.similarities[[item]].toarray()[0] if item < fitted else np.zeros(fitted, np.float32)
        return row


def _find_nearest(items: Any, similarities: Any, item: int, count: int) -> tuple[Any, Any]:
    """Return the `count` most similar items without `item`. Equal similarities are common, because many items have few
    users; they go by item row, so that the choice is repeatable."""
    other = items != item
    items, similarities = items[other], similarities[other]
    if len(items) <= count:
        return items, similarities
    least = np.partition(similarities, -count)[-count]
    above = np.flatnonzero(similarities > least)
    equal = np.flatnonzero(similarities == least)
    if len(equal) > count - len(above):
        equal = equal[np.argsort(items[equal])[: count - len(above)]]
    chosen = np.concatenate([above, equal])
    return items[chosen], similarities[chosen]
