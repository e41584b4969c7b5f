"""EASE for large catalogues: each item is predicted from its nearest items only, instead of from all others.

For each item, EASE's ridge regression is solved over the NEIGHBOURS items with the highest cosine. The result is a
sparse matrix, so memory and time grow with the number of items, not with its square. On MovieLens its rankings are as
good as those of the dense model (docs/recommend.md).

The regression needs the number of users who like both, for all pairs of neighbours. They are exact for pairs of the
HEADS most liked items, and for pairs where either item is among the COUNTED most frequent companions of the other; the
remaining pairs count as 0.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.recommend.data import Floats, Histories, Ints
from ridgeline.recommend.models.ease import DEFAULT_PENALTY, Ease, count_co_likes
from ridgeline.recommend.models.fold_in import FoldIn
from ridgeline.recommend.weights import weigh_likes

NEIGHBOURS = 100
COUNTED = 200  # most frequent companions of an item whose numbers are kept
HEADS = 8_192  # most liked items: all pairs of them are counted
BLOCK = 50_000  # items per call of the native loops
FEW_USERS = 8  # up to here a sum of rows is faster than SciPy's sparse product


class NeighbourEase:
    name = "ease"

    def __init__(self, penalty: float = DEFAULT_PENALTY, *, neighbours: int = NEIGHBOURS, device: str = "cpu") -> None:
        Ease(penalty)  # check it
        self.penalty, self.neighbours, self.device = penalty, neighbours, device
        self.fold: FoldIn | None = None  # items that arrived after the fit
        self.counts: CoLikeCounts | None = None

    def fit(self, train: Histories, counts: CoLikeCounts | None = None) -> Self:
        """Fit; with the `counts` of an earlier fit on the same data, another λ costs the solution alone."""
        from scipy.sparse import csc_matrix

        from ridgeline.native import solve_neighbours

        self.counts = counts or count_likes(train, self.neighbours, self.device)
        nearest, width = self.counts.nearest, train.width
        weights = np.empty(nearest.items.shape, np.float32)
        for first in range(0, width, BLOCK):
            part = slice(first, first + BLOCK)
            solve_neighbours(
                nearest.frequent,
                nearest.frequent_likes,
                self.counts.user_counts,
                self.counts.head_at,
                self.counts.head,
                nearest.items[part],
                nearest.likes[part],
                self.penalty,
                weights[part],
                _count_threads(),
            )
        is_filled = nearest.items >= 0
        starts = np.r_[0, np.cumsum(is_filled.sum(1))]
        self.weights = csc_matrix((weights[is_filled], nearest.items[is_filled], starts), shape=(width, width)).tocsr()
        self.item_rows: Ints = np.flatnonzero(self.counts.user_counts)
        self.width = width
        return self

    def forget_counts(self) -> Self:
        """Free what only another fit needs."""
        self.counts = None
        return self

    def scores(self, users: Histories, weights: Any = None) -> Floats:
        """Score all items: float32 [n, items]. `weights` has one number per entry of the histories (default: 1)."""
        likes = users.matrix(weights)
        likes = likes if self.fold is None else self.fold.spread(likes)
        fitted = self.weights.shape[0]
        scores = np.zeros((len(users), self.width), np.float32)
        if likes.shape[0] <= FEW_USERS:
            add_rows(likes[:, :fitted].tocsr(), self.weights, scores)
        else:
            scores[:, :fitted] = (likes[:, :fitted] @ self.weights).toarray()
        if self.fold is not None:
            self.fold.fill(scores)
        return scores

    def score_user(self, items: Ints, half_lives: Sequence[float | None]) -> Floats:
        """Score all items for the likes of one user, the latest last: float32 [half-lives, items]."""
        weights = weigh_likes(len(items), half_lives)
        if self.fold is not None:
            shared, shares = self.fold.share_likes(items, weights)
            items, weights = np.concatenate([items, shared]), np.concatenate([weights, shares], axis=1)
        fitted = self.weights.shape[0]
        items, weights = items[items < fitted], weights[:, items < fitted]
        scores = np.zeros((len(weights), self.width), np.float32)
        scores[:, :fitted] = (self.weights[items].T @ np.ascontiguousarray(weights.T)).T
        if self.fold is not None:
            self.fold.fill(scores)
        return scores

    def extend(self, width: int, fold: FoldIn) -> NeighbourEase:
        """Return this model for a catalogue of `width` items, with the new ones folded in; the weights are shared."""
        model = copy(self)
        model.width, model.fold = width, fold
        return model

    def similar(self, item: int) -> Floats:
        scores = np.zeros(self.width, np.float32)
        if item < self.weights.shape[0]:
            part = slice(self.weights.indptr[item], self.weights.indptr[item + 1])
            scores[self.weights.indices[part]] = self.weights.data[part]
        return scores

    def get_weights(self, liked: Ints, items: Ints) -> Floats:
        """Return the weights of liked items for other items: float32 [items, liked], 0 for items it does not know."""
        fitted = self.weights.shape[0]
        block = np.zeros((len(items), len(liked)), np.float32)
        rows, columns = np.flatnonzero(liked < fitted), np.flatnonzero(items < fitted)
        if len(rows) and len(columns):
            part = self.weights[liked[rows]][:, items[columns]].toarray()
            block[np.ix_(columns, rows)] = part.T
        return block


class Neighbours:
    """The nearest items of each item by cosine, and the most frequent ones: arrays [items, count] of int32 (−1: no
    more), each with the number of users who like both, float32."""

    def __init__(self, width: int, count: int, counted: int) -> None:
        self.items, self.frequent = (np.empty((width, n), np.int32) for n in (count, counted))
        self.likes, self.frequent_likes = (np.empty((width, n), np.float32) for n in (count, counted))


@dataclass(frozen=True)
class CoLikeCounts:
    """Users who like two items: `head` [heads, heads] for the most liked items, `head_at` [items] their places there
    (−1: none), and `nearest`; `user_counts` [items] users of each item."""

    nearest: Neighbours
    user_counts: Floats
    head_at: NDArray[np.int32]
    head: Floats


def count_likes(train: Histories, neighbours: int, device: str) -> CoLikeCounts:
    nearest = find_neighbours(train, neighbours, COUNTED)
    user_counts = np.bincount(train.items, minlength=train.width).astype(np.float32)
    heads = np.argsort(-user_counts, kind="stable")[: min(HEADS, int((user_counts > 0).sum()))]
    head_at = np.full(train.width, -1, np.int32)
    head_at[heads] = np.arange(len(heads))
    head = count_co_likes(train.matrix()[:, heads].tocsr(), device)
    return CoLikeCounts(nearest, user_counts, head_at, head)


def find_neighbours(train: Histories, count: int, counted: int = 0) -> Neighbours:
    """Find the `count` nearest items of every item by cosine, and the `counted` most frequent companions.

    Best first; equal ones go by item.
    """
    from ridgeline import native

    if train.width > np.iinfo(np.int32).max or len(train) > np.iinfo(np.int32).max:
        raise InputError(f"{train.width:,} items and {len(train):,} users are too many; 2³¹ − 1 of each fit.")
    nearest = Neighbours(train.width, min(count, max(1, train.width - 1)), min(counted, train.width))
    starts, items = np.ascontiguousarray(train.starts, np.int64), train.items.astype(np.int32)
    item_starts = np.r_[0, np.cumsum(np.bincount(items, minlength=train.width))].astype(np.int64)
    item_users = train.users.astype(np.int32)[np.argsort(items, kind="stable")]
    threads = _count_threads()
    for first in range(0, train.width, BLOCK):
        part = slice(first, first + BLOCK)
        native.find_neighbours(
            starts,
            items,
            item_starts,
            item_users,
            first,
            nearest.items[part],
            nearest.likes[part],
            nearest.frequent[part],
            nearest.frequent_likes[part],
            threads,
        )
    return nearest


def add_rows(likes: Any, weights: Any, scores: Floats) -> None:
    """Add the product of two CSR matrices to `scores`: the rows of `weights` that a few users like."""
    for user, line in enumerate(scores):
        for at in range(likes.indptr[user], likes.indptr[user + 1]):
            row = likes.indices[at]
            part = slice(weights.indptr[row], weights.indptr[row + 1])
            line[weights.indices[part]] += likes.data[at] * weights.data[part]


def make_ease(penalty: float, items: int, device: str) -> Ease | NeighbourEase:
    """Return the dense model where its matrix of `items` x `items` is affordable, else the sparse one."""
    from ridgeline.recommend.models.ease import MAX_ITEMS

    return Ease(penalty, device=device) if items <= MAX_ITEMS else NeighbourEase(penalty, device=device)


def _count_threads() -> int:
    return len(os.sched_getaffinity(0))
