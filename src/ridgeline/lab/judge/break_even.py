"""When does the larger machine pay? Whole machines are bought, so both costs are stairs over the rate.

python -m pytest tests/lab/test_cost.py
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LOOKED_AT = 10_000  # stairs; two kinds of nearly one price cross that often and more
SLIP = 1e-12


@dataclass(frozen=True)
class BreakEven:
    """Rates in items/s, just above which the larger kind is not dearer; None: at none that was looked at."""

    first: float | None  # for a while at least
    always: float | None  # and never again


def break_even(small: tuple[float, float], large: tuple[float, float]) -> BreakEven:
    """Two kinds of unit, each as ($/h, items/s it may be planned for).

    >>> break_even((1.0, 10.0), (4.0, 100.0))  # above 30/s it takes four small ones, as dear as one large
    BreakEven(first=30.0, always=30.0)
    """
    (c1, m1), (c2, m2) = small, large
    cheaper = c2 / m2 < c1 / m1 * (1 - SLIP)
    # Beyond these rates a stair of the one cannot reach the slope of the other any more.
    gap = abs(c1 / m1 - c2 / m2)
    bound = (c2 if cheaper else c1) / gap if gap > SLIP * c1 / m1 else math.inf
    first, always = None, 0.0
    for j in range(1, LOOKED_AT):
        # So many large ones are not dearer once the small ones number j · c2 / c1, which is just above `reached`.
        reached = (math.ceil(j * c2 / c1 * (1 - SLIP)) - 1) * m1
        if first is None and reached < j * m2 * (1 - SLIP):
            first = reached
        if reached > (j - 1) * m2 * (1 + SLIP):
            always = max(always, reached)
        if (j - 1) * m2 > bound:
            return BreakEven(first, always if cheaper else None)
    return BreakEven(first, 0.0 if c2 <= c1 and m2 >= m1 else None)
