"""Item-kNN: cosine similarity of items by the users who like them, limited to each item's nearest neighbours."""

from __future__ import annotations

from copy import copy
from typing import Any, Self

import numpy as np

from ridgeline.recommend.data import Floats, Histories
from ridgeline.recommend.models.fold_in import FoldIn
from ridgeline.recommend.models.neighbour_ease import FEW_USERS, add_rows, find_neighbours

NEIGHBOURS = 100


class ItemKnn:
    name = "itemknn"

    def __init__(self, neighbours: int = NEIGHBOURS) -> None:
        """Use this many neighbours per item. With 0, fit and scores cost nothing: for a blend without this model."""
        self.neighbours = neighbours
        self._transposed: tuple[Any, Any] = (None, None)  # `similarities`, and its transpose
        self.fold: FoldIn | None = None  # items that arrived after the fit

    def fit(self, train: Histories) -> Self:
        from scipy.sparse import csr_matrix

        if not self.neighbours:
            self.similarities = csr_matrix((train.width, train.width), dtype=np.float32)
            return self
        nearest = find_neighbours(train, self.neighbours)
        scale = (1 / np.sqrt(np.maximum(np.bincount(train.items, minlength=train.width), 1))).astype(np.float32)
        is_filled = nearest.items >= 0
        counts = is_filled.sum(1)
        values = nearest.likes[is_filled] * scale[nearest.items[is_filled]] * np.repeat(scale, counts)
        starts = np.r_[0, np.cumsum(counts)]
        self.similarities = csr_matrix((values, nearest.items[is_filled], starts), shape=(train.width, train.width))
        return self

    def scores(self, users: Histories) -> Floats:
        likes = users.matrix()
        likes = likes if self.fold is None else self.fold.spread(likes)
        fitted, by_liked = self.similarities.shape[0], self._get_transposed()
        scores = np.zeros((len(users), users.width), np.float32)
        if len(users) <= FEW_USERS:
            add_rows(likes[:, :fitted].tocsr(), by_liked, scores)
        else:
            scores[:, :fitted] = (likes[:, :fitted] @ by_liked).toarray()
        if self.fold is not None:
            self.fold.fill(scores)
        return scores

    def _get_transposed(self) -> Any:
        if self._transposed[0] is not self.similarities:  # transpose once: for one user it would take most of the time
            self._transposed = self.similarities, self.similarities.T.tocsr()
        return self._transposed[1]

    def extend(self, fold: FoldIn) -> ItemKnn:
        """Return this model with the new items folded in; the similarities are shared."""
        self._get_transposed()  # for all copies
        model = copy(self)
        model.fold = fold
        return model

    def similar(self, item: int) -> Floats:
        fitted = self.similarities.shape[0]
        row: Floats = self.similarities[[item]].toarray()[0] if item < fitted else np.zeros(fitted, np.float32)
        return row
