"""Change points: find steps and drifts in a short, noisy series, for any distribution of the noise.

    python -m pytest tests/lab/judge/test_change_points.py

A permutation test looks for a step at every split at once: it compares the largest two-sample statistic over all
splits with the same maximum over random orders of the same values. If the order has no meaning, the probability of a
false alarm is at most alpha, for any number of splits and any noise. A series with a step is cut at the split with
the smallest absolute deviations from the two medians; then each part is tested again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ALPHA = 0.01
SIDE = 3  # values on each side of a step: one slow run is not a new level, and two are not either
ORDERS = 1999
OUTLIER = 4.0  # median absolute deviations: clips outliers, and keeps a step of few values
Vector = NDArray[np.float64]


def compute_min_records(alpha: float = ALPHA) -> int:
    """Return the length of the shortest series that can show a step at this `alpha`."""
    m = 2 * SIDE
    while 2 / math.comb(m, m // 2) > alpha:
        m += 1
    return m


MIN_RECORDS = compute_min_records()


@dataclass(frozen=True)
class ChangePoints:
    """The steps and the drift of a series of logarithms. `steps`: index of the first value of each new level."""

    steps: tuple[int, ...] = ()
    p: tuple[float, ...] = ()  # the p-value of each step
    slope: float = 0.0  # of the last level, logarithm per value; 0 if there is no drift
    slope_p: float = 1.0


def find_change_points(values: Sequence[float], alpha: float = ALPHA, margin: float = 0.0) -> ChangePoints:
    """Return the steps larger than `margin` (in logarithms), in order, and the drift after the last step."""
    x = np.asarray(values, float)
    steps: list[tuple[int, float]] = []
    _split(x, 0, alpha, margin, steps)
    steps.sort()
    last = x[steps[-1][0] if steps else 0 :]
    slope, p = estimate_drift(last)
    drifts = p <= alpha and abs(slope) * (len(last) - 1) > margin
    return ChangePoints(tuple(start for start, _ in steps), tuple(p for _, p in steps), slope if drifts else 0.0, p)


def estimate_drift(x: Vector) -> tuple[float, float]:
    """Return the Theil–Sen slope (median over all pairs) and the p-value of Kendall's test for no drift."""
    m = len(x)
    if m < 2 * SIDE:
        return 0.0, 1.0
    i, j = np.triu_indices(m, 1)
    rises = x[j] - x[i]
    z = (abs(float(np.sign(rises).sum())) - 1) / math.sqrt(m * (m - 1) * (2 * m + 5) / 18)
    return float(np.median(rises / (j - i))), math.erfc(max(0.0, z) / math.sqrt(2))


def permutation_p(x: Vector) -> float:
    """Return the share of random orders of these values that look at least as much like a step."""
    m, clipped = len(x), _clip_outliers(x)
    k = np.arange(SIDE, m - SIDE + 1)
    weight = 1 / np.sqrt(k * (m - k))
    statistic = float(np.max(np.abs(np.cumsum(clipped)[k - 1]) * weight))
    if statistic <= 1e-12:
        return 1.0
    shuffled = np.random.default_rng(0).permuted(np.tile(clipped, (ORDERS, 1)), axis=1)
    largest = np.max(np.abs(np.cumsum(shuffled, axis=1)[:, k - 1]) * weight, axis=1)
    return float((1 + np.sum(largest >= statistic * (1 - 1e-9))) / (1 + ORDERS))


def _split(x: Vector, start: int, alpha: float, margin: float, steps: list[tuple[int, float]]) -> None:
    if len(x) < compute_min_records(alpha):
        return
    p = permutation_p(x)
    if p > alpha:
        return
    costs = {k: _spread(x[:k]) + _spread(x[k:]) for k in range(SIDE, len(x) - SIDE + 1)}
    k = min(costs, key=lambda i: costs[i])
    slope, _ = estimate_drift(x)
    if _spread(x - slope * np.arange(len(x))) < costs[k] or abs(np.median(x[k:]) - np.median(x[:k])) <= margin:
        return  # a drift, or a step that is too small
    steps.append((start + k, p))
    _split(x[:k], start, alpha, margin, steps)
    _split(x[k:], start + k, alpha, margin, steps)


def _spread(x: Vector) -> float:
    return float(np.sum(np.abs(x - np.median(x))))


def _clip_outliers(x: Vector) -> Vector:
    """Centre the values and clip outliers, so that one bad run cannot hide a level. Independent of the order."""
    deviations = x - np.median(x)
    limit = OUTLIER * float(np.median(np.abs(deviations)))
    clipped: Vector = np.clip(deviations, -limit, limit) if limit > 0 else deviations
    centred: Vector = clipped - clipped.mean()
    return centred
