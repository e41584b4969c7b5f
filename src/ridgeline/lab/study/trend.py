"""Does one thing rise with another: Kendall's test and the median of slopes, which no outlier moves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.lab.judge.stats import FEWEST


@dataclass(frozen=True)
class Trend:
    slope: float  # the median over all pairs of points (Theil and Sen)
    p: float | None  # None: fewer than six points, or nothing varies
    n: int

    def factor(self, step: float) -> float:
        """What a step along x multiplies y by, where y is a logarithm."""
        return math.exp(min(max(step * self.slope, -100.0), 100.0))


def trend(xs: Sequence[float], ys: Sequence[float]) -> Trend:
    """Points in any order; equal values are minded.

    >>> found = trend([1, 2, 3, 4, 5, 6, 7], [2, 4, 6, 8, 10, 12, 70])
    >>> found.slope, found.p < 0.01
    (2.0, True)
    """
    x, y = np.asarray(xs, dtype=float), np.asarray(ys, dtype=float)
    i, j = np.triu_indices(len(x), 1)
    run, rise = x[j] - x[i], y[j] - y[i]
    slopes = rise[run != 0] / run[run != 0]
    slope = float(np.median(slopes)) if len(slopes) else math.nan
    if len(x) < FEWEST or not (np.ptp(x) and np.ptp(y)):
        return Trend(slope, None, len(x))
    score = float(np.sum(np.sign(run) * np.sign(rise)))
    spread = _variance(x, y)
    # The normal approximation, a step of the score towards zero: good from about six points on.
    z = max(abs(score) - 1, 0.0) / math.sqrt(spread)
    return Trend(slope, math.erfc(z / math.sqrt(2)), len(x))


def _variance(x: np.ndarray, y: np.ndarray) -> float:
    """Of Kendall's score if there is no trend, with ties."""
    n = len(x)
    tied = [[c for c in Counter(v.tolist()).values() if c > 1] for v in (x, y)]
    first = [sum(c * (c - 1) * (2 * c + 5) for c in t) for t in tied]
    second = [sum(c * (c - 1) for c in t) for t in tied]
    third = [sum(c * (c - 1) * (c - 2) for c in t) for t in tied]
    total = (n * (n - 1) * (2 * n + 5) - first[0] - first[1]) / 18
    total += second[0] * second[1] / (2 * n * (n - 1))
    if n > 2:
        total += third[0] * third[1] / (9 * n * (n - 1) * (n - 2))
    return float(total)
