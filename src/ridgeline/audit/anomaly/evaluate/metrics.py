"""How well do scores tell anomalies from the rest? Precision, recall and F1 at a threshold, AUROC, intervals.

>>> auroc(np.array([0, 0, 1, 1], bool), np.array([0.1, 0.4, 0.4, 0.9]))
0.875
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.bool_]
Scores = NDArray[np.float64]

DRAWS = 1_000
LEVEL = 0.95
GAP = 0.75


@dataclass(frozen=True)
class Judged:
    """Test units: which are anomalies, what one method says, where its threshold is."""

    labels: Labels
    scores: Scores
    threshold: float

    def taken(self, rows: NDArray[np.int64]) -> Judged:
        return Judged(self.labels[rows], self.scores[rows], self.threshold)


def auroc(labels: Labels, scores: Scores) -> float:
    """The chance that an anomaly scores above a normal unit, equal scores counted half; NaN without both kinds."""
    bad = int(labels.sum())
    good = len(labels) - bad
    if not bad or not good:
        return math.nan
    _, where, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[where]
    return float((ranks[labels].sum() - bad * (bad + 1) / 2) / (bad * good))


def figures(judged: Judged) -> dict[str, float]:
    """precision, recall, f1 (0 where nothing is found) and auroc."""
    found = judged.scores > judged.threshold
    hits = int((found & judged.labels).sum())
    precision = hits / int(found.sum()) if found.any() else 0.0
    recall = hits / int(judged.labels.sum()) if judged.labels.any() else math.nan
    f1 = 2 * hits / int(found.sum() + judged.labels.sum()) if judged.labels.any() else math.nan
    return {"precision": precision, "recall": recall, "f1": f1, "auroc": auroc(judged.labels, judged.scores)}


def threshold_for(labels: Labels, scores: Scores, weights: Scores) -> tuple[float, float]:
    """Where F1 is best on these, and that F1; each unit counts by its weight. What is above is found.

    Of equally good ones the highest, in the upper part of its gap (`GAP`): what is normal scores a little higher once
    more is known and time has passed, while anomalies were never learnt.

    >>> threshold_for(np.array([0, 0, 1, 1], bool), np.array([0.0, 1.0, 2.0, 3.0]), np.ones(4))
    (1.75, 1.0)
    """
    values = np.unique(scores)
    rank = np.searchsorted(values, scores)

    def at_least(kind: Labels) -> Scores:
        return np.bincount(rank[kind], weights[kind], len(values))[::-1].cumsum()[::-1]

    hits = at_least(labels)
    f1 = 2 * hits / (hits + at_least(~labels) + weights[labels].sum())
    best = int(np.flatnonzero(f1 >= f1.max() - 1e-9)[-1])
    below = values[best - 1] if best else values[0] - 1.0
    return float(below + GAP * (values[best] - below)), float(f1[best])


def exceeded_by(scores: Scores, rate: float) -> float:
    """What a share `rate` of the scores exceeds, or fewer."""
    return float(np.quantile(scores, 1 - rate, method="inverted_cdf"))


def intervals(
    methods: Mapping[str, Judged], block: int = 1, draws: int = DRAWS, seed: int = 0
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Bootstrap: `draws` values of each figure of each method, all methods on the same draws.

    block: so many neighbours are drawn together (lines of a log come in bursts, and are not independent).
    """
    first = next(iter(methods.values()))
    count = len(first.labels)
    rng = np.random.default_rng(seed)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in methods}
    for _ in range(draws):
        starts = rng.integers(0, count, -(-count // block))
        rows = ((starts[:, None] + np.arange(block)) % count).ravel()[:count]
        for name, judged in methods.items():
            for figure, value in figures(judged.taken(rows)).items():
                found[name].setdefault(figure, []).append(value)
    return {name: {figure: np.array(values) for figure, values in held.items()} for name, held in found.items()}


def middle(values: NDArray[np.float64], level: float = LEVEL) -> tuple[float, float] | None:
    """The interval that holds the middle `level` of the draws; draws without a value (no anomaly in them) left out."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
