"""Fold-in: a new item as a weighted mean of items that a model learnt, until the next fit learns it.

    fold = FoldIn(rows, neighbours, weights)
    scores = model(fold.spread(likes)); fold.fill(scores)

A like of a new item counts as shares of likes of its neighbours, and its score is the weighted mean of their scores. So
a new item is recommended to the people who would get what its fans like, and it says something about its fans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.recommend.data import Floats, Ints

MAX_NEIGHBOURS = 20  # per new item
FEW_USERS = 8  # up to here a gather is faster than a sparse product


@dataclass(frozen=True)
class FoldIn:
    """`rows` [m] of the new items; `neighbours` [m, MAX_NEIGHBOURS] are rows of learnt items, `weights` their shares
    (0 where an item has fewer neighbours). The shares of an item add up to at most 1. `places` gives the place of a row
    in them; it may have later rows too."""

    rows: Ints
    neighbours: Ints
    weights: Floats
    places: Mapping[int, int] | None = None

    def matrix(self, width: int) -> Any:
        """Return the shares as a SciPy CSR matrix [m, width]."""
        from scipy.sparse import csr_matrix

        starts = np.arange(len(self.rows) + 1) * self.neighbours.shape[1]
        return csr_matrix(
            (self.weights.reshape(-1), self.neighbours.reshape(-1), starts), shape=(len(self.rows), width)
        )

    def spread(self, likes: Any) -> Any:
        """Add the shares of liked new items to a CSR matrix of likes [n, width]."""
        if not len(self.rows) or not len(likes.indices):
            return likes
        is_new = np.zeros(likes.shape[1], bool)
        is_new[self.rows] = True
        if not is_new[likes.indices].any():
            return likes
        return (likes + likes[:, self.rows] @ self.matrix(likes.shape[1])).tocsr()

    def share_likes(self, items: Ints, weights: Floats) -> tuple[Ints, Floats]:
        """Return what `spread` adds for the likes `items` [m] of one user, with several `weights` [kinds, m] of them:
        rows of learnt items [n], and their shares [kinds, n]."""
        at = np.flatnonzero(np.isin(items, self.rows)) if len(self.rows) else np.zeros(0, np.int64)
        places = self.places
        if places is None:
            places = {row: place for place, row in enumerate(self.rows.tolist())} if len(at) else {}
        place = np.array([places[item] for item in items[at].tolist()], np.int64)
        shares = weights[:, at, None] * self.weights[place]
        return self.neighbours[place].reshape(-1), shares.reshape(len(weights), -1)

    def fill(self, scores: Floats) -> None:
        """Write the scores of the new items into `scores` [n, width]."""
        if not len(self.rows):
            return
        if len(scores) <= FEW_USERS:
            for line in scores:
                line[self.rows] = np.einsum("mk,mk->m", line[self.neighbours], self.weights)
            return
        scores[:, self.rows] = (self.matrix(scores.shape[1]) @ scores.T).T
