"""How well scores separate anomalies: precision, recall and F1 at a threshold, AUROC, bootstrap intervals.

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
class MethodScores:
    """The labels of the test units, the scores of one method, and its threshold."""

    labels: Labels
    scores: Scores
    threshold: float

    def select(self, rows: NDArray[np.int64]) -> MethodScores:
        return MethodScores(self.labels[rows], self.scores[rows], self.threshold)


def auroc(labels: Labels, scores: Scores) -> float:
    """Return the chance that an anomaly scores above a normal unit; equal scores count half. NaN without both kinds."""
    bad = int(labels.sum())
    good = len(labels) - bad
    if not bad or not good:
        return math.nan
    _, where, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[where]
    return float((ranks[labels].sum() - bad * (bad + 1) / 2) / (bad * good))


def compute_figures(method: MethodScores) -> dict[str, float]:
    """Return precision, recall, f1 (0 if nothing is flagged) and auroc."""
    flagged = method.scores > method.threshold
    hits = int((flagged & method.labels).sum())
    precision = hits / int(flagged.sum()) if flagged.any() else 0.0
    recall = hits / int(method.labels.sum()) if method.labels.any() else math.nan
    f1 = 2 * hits / int(flagged.sum() + method.labels.sum()) if method.labels.any() else math.nan
    return {"precision": precision, "recall": recall, "f1": f1, "auroc": auroc(method.labels, method.scores)}


def find_threshold(labels: Labels, scores: Scores, weights: Scores) -> tuple[float, float]:
    """Return the threshold with the best F1, and that F1; each unit counts by its weight. Higher scores are flagged.

    Of equally good thresholds it is the highest, in the upper part of its gap (`GAP`): later normal units score a
    little higher than those of the training part, while anomalies are never learnt.

    >>> find_threshold(np.array([0, 0, 1, 1], bool), np.array([0.0, 1.0, 2.0, 3.0]), np.ones(4))
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


def find_tolerance(scores: Scores, rate: float) -> float:
    """Return a threshold that, with 95 % confidence, at most a share `rate` of later scores exceeds.

    It is a tolerance limit: if later scores are like these, as few of these exceed it as make a larger share unlikely.
    With fewer than 598 scores and a rate of 0.5 % that is none, so the threshold is the largest score.

    >>> find_tolerance(np.arange(1000.0), 0.01)
    995.0
    """
    count = len(scores)
    chance = term = (1.0 - rate) ** count  # that at most `exceeding` of them exceed a threshold with this rate
    exceeding = 0
    while exceeding < count:
        if chance > 1.0 - LEVEL:
            break
        term *= (count - exceeding) / (exceeding + 1) * rate / (1.0 - rate)
        if chance + term > 1.0 - LEVEL:
            break
        chance, exceeding = chance + term, exceeding + 1
    return float(np.sort(scores)[count - 1 - exceeding])


def find_share_interval(hits: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval (Wilson) of a share."""
    z, share = 1.96, hits / count
    middle, spread = share + z * z / (2 * count), z * math.sqrt(share * (1 - share) / count + z * z / (4 * count**2))
    return max(0.0, (middle - spread) / (1 + z * z / count)), min(1.0, (middle + spread) / (1 + z * z / count))


def bootstrap(
    methods: Mapping[str, MethodScores], block: int = 1, draws: int = DRAWS, seed: int = 0
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Draw `draws` bootstrap values of each figure of each method; all methods use the same draws.

    block  neighbours that are drawn together: lines of a log come in bursts and are not independent
    """
    first = next(iter(methods.values()))
    count = len(first.labels)
    rng = np.random.default_rng(seed)
    drawn: dict[str, dict[str, list[float]]] = {name: {} for name in methods}
    for _ in range(draws):
        starts = rng.integers(0, count, -(-count // block))
        rows = ((starts[:, None] + np.arange(block)) % count).ravel()[:count]
        for name, method in methods.items():
            for figure, value in compute_figures(method.select(rows)).items():
                drawn[name].setdefault(figure, []).append(value)
    return {
        name: {figure: np.array(values) for figure, values in by_figure.items()} for name, by_figure in drawn.items()
    }


def find_interval(values: NDArray[np.float64], level: float = LEVEL) -> tuple[float, float] | None:
    """Return the interval with the middle `level` of the draws, without draws that have no value (no anomaly)."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
