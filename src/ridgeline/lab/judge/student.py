"""Student's t without SciPy: the quantile that small samples need.

The distribution function is a regularised incomplete beta function, here by its continued fraction; the quantile
is found by halving, which is slow (some microseconds), obvious and exact to the last digits.
"""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300


@lru_cache(maxsize=1024)
def quantile(confidence: float, freedom: int) -> float:
    """How many standard errors reach to either side for a two-sided interval; infinite without freedom.

    >>> round(quantile(0.95, 4), 3), round(quantile(0.95, 1000), 2)
    (2.776, 1.96)
    """
    if freedom < 1:
        return math.inf
    low, high = 0.0, 1.0
    while outside(high, freedom) > 1 - confidence:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if outside(middle, freedom) > 1 - confidence else (low, middle)
    return (low + high) / 2


def outside(t: float, freedom: int) -> float:
    """The chance that |T| exceeds t: the two-sided p-value."""
    if not math.isfinite(t):
        return 0.0
    square = t * t
    if square < freedom:  # the other tail: near zero this one would be a difference of equals
        return 1 - _beta(square / (freedom + square), 0.5, freedom / 2)
    return _beta(freedom / (freedom + square), freedom / 2, 0.5)


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x > (a + 1) / (a + b + 2):  # the fraction converges quickly on one side only
        return 1 - front * _fraction(1 - x, b, a) / b
    return front * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """Its continued fraction, by Lentz's method."""
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    total = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for term in (even, odd):
            d, c = 1 / _away(1 + term * d), _away(1 + term / c)
            change = d * c
            total *= change
        if abs(change - 1) < 1e-15:
            break
    return total


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
