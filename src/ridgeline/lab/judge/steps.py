"""Steps and drifts in a short, noisy series, without assuming a shape of the noise.

    python -m pytest tests/lab/test_steps.py

A step is asked for at every split at once: the largest of their two-sample statistics is compared with the same
maximum over random orders of the very same values. If the order means nothing, a false alarm comes with probability
alpha at most, however many splits were looked at and whatever the noise looks like. A series that holds a step is cut
where the absolute deviations from the two medians are least, and each part is looked at again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ALPHA = 0.01
SIDE = 3  # values on each side of a step: one slow run is not a new level, nor are two
ORDERS = 1999
OUTLIER = 4.0  # median absolute deviations: tame enough for strays, wide enough for a young step
Vector = NDArray[np.float64]


def fewest(alpha: float = ALPHA) -> int:
    """The shortest series in which a step could be shown at all."""
    m = 2 * SIDE
    while 2 / math.comb(m, m // 2) > alpha:
        m += 1
    return m


FEWEST = fewest()


@dataclass(frozen=True)
class Found:
    """What a series of logarithms does. Indices of the first value of each new level; slope per value."""

    steps: tuple[int, ...] = ()
    p: tuple[float, ...] = ()  # of each step
    slope: float = 0.0  # of the last level, logarithm per value; 0 where no drift was shown
    slope_p: float = 1.0


def find(values: Sequence[float], alpha: float = ALPHA, margin: float = 0.0) -> Found:
    """Steps larger than `margin` (in logarithms), in order, and the drift of what follows the last of them."""
    x = np.asarray(values, float)
    found: list[tuple[int, float]] = []
    _cut(x, 0, alpha, margin, found)
    found.sort()
    last = x[found[-1][0] if found else 0 :]
    slope, p = drift(last)
    shown = p <= alpha and abs(slope) * (len(last) - 1) > margin
    return Found(tuple(at for at, _ in found), tuple(p for _, p in found), slope if shown else 0.0, p)


def drift(x: Vector) -> tuple[float, float]:
    """The median slope between all pairs (Theil, Sen) and the p of Kendall's test that there is none."""
    m = len(x)
    if m < 2 * SIDE:
        return 0.0, 1.0
    i, j = np.triu_indices(m, 1)
    rises = x[j] - x[i]
    z = (abs(float(np.sign(rises).sum())) - 1) / math.sqrt(m * (m - 1) * (2 * m + 5) / 18)
    return float(np.median(rises / (j - i))), math.erfc(max(0.0, z) / math.sqrt(2))


def order_p(x: Vector) -> float:
    """How often a random order of these values looks as much like a step as theirs."""
    m, tamed = len(x), _tamed(x)
    k = np.arange(SIDE, m - SIDE + 1)
    weight = 1 / np.sqrt(k * (m - k))
    seen = float(np.max(np.abs(np.cumsum(tamed)[k - 1]) * weight))
    if seen <= 1e-12:
        return 1.0
    shuffled = np.random.default_rng(0).permuted(np.tile(tamed, (ORDERS, 1)), axis=1)
    largest = np.max(np.abs(np.cumsum(shuffled, axis=1)[:, k - 1]) * weight, axis=1)
    return float((1 + np.sum(largest >= seen * (1 - 1e-9))) / (1 + ORDERS))


def _cut(x: Vector, start: int, alpha: float, margin: float, found: list[tuple[int, float]]) -> None:
    if len(x) < fewest(alpha):
        return
    p = order_p(x)
    if p > alpha:
        return
    costs = {k: _spread(x[:k]) + _spread(x[k:]) for k in range(SIDE, len(x) - SIDE + 1)}
    k = min(costs, key=lambda at: costs[at])
    slope, _ = drift(x)
    if _spread(x - slope * np.arange(len(x))) < costs[k] or abs(np.median(x[k:]) - np.median(x[:k])) <= margin:
        return  # a ramp, or too small to care
    found.append((start + k, p))
    _cut(x[:k], start, alpha, margin, found)
    _cut(x[k:], start + k, alpha, margin, found)


def _spread(x: Vector) -> float:
    return float(np.sum(np.abs(x - np.median(x))))


def _tamed(x: Vector) -> Vector:
    """Centred, with outliers pulled in: a stray run should not hide a level. The same for every order of the values."""
    away = x - np.median(x)
    reach = OUTLIER * float(np.median(np.abs(away)))
    held: Vector = np.clip(away, -reach, reach) if reach > 0 else away
    centred: Vector = held - held.mean()
    return centred
