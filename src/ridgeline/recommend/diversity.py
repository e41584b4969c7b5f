"""Lists of items that differ from each other: maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998).

An item is chosen for its score and against its likeness to the items chosen before it:
(1 − weight) · score − weight · highest cosine. Scores are scaled to 0 … 1 over the candidates.
"""

from __future__ import annotations

import numpy as np

from ridgeline.errors import InputError
from ridgeline.recommend.data import Floats, Ints

CANDIDATES = 100  # best items to choose from, and at least 4 for each item of the list


def check_diversity(weight: float) -> None:
    if not 0 <= weight <= 1:
        raise InputError(f"diversify is {weight:g}; give 0 (scores alone) to 1 (differences alone).")


def choose_diverse(scores: Floats, vectors: Floats, k: int, weight: float) -> Ints:
    """Return the places of `k` candidates in the order of the list; `scores` [n], `vectors` [n, dim] of unit length."""
    count = len(scores)
    spread = float(np.ptp(scores)) if count else 0.0
    relevance = (scores - scores.min()) / spread if spread > 0 else np.ones(count)
    likeness = vectors.astype(np.float64) @ vectors.T
    highest = np.zeros(count)
    chosen = np.empty(min(k, count), np.int64)
    is_free = np.ones(count, bool)
    for place in range(len(chosen)):
        values = np.where(is_free, (1 - weight) * relevance - weight * highest, -np.inf)
        chosen[place] = np.argmax(values)
        is_free[chosen[place]] = False
        highest = np.maximum(highest, likeness[chosen[place]]) if place else likeness[chosen[place]]
    return chosen


def rerank(scores: Floats, vectors: Floats, weight: float, candidates: int = CANDIDATES) -> None:
    """Raise the best items of each row of `scores` [n, items] above all others, in the order of `choose_diverse`."""
    count = min(candidates, scores.shape[1])
    best = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    for line, rows in zip(scores, best, strict=True):
        rows = rows[~np.isneginf(line[rows])]
        rows = rows[np.lexsort((rows, -line[rows]))]
        if len(rows):
            order = rows[choose_diverse(line[rows], vectors[rows], len(rows), weight)]
            line[order] = line[order].max() + np.arange(len(order), 0, -1, dtype=np.float32)
