"""How often does something as surprising as this happen lately? Ranks against recent history, which fades.

>>> lately = Ranks()
>>> for _ in range(999):
...     lately.add(0.5)
>>> round(lately.p(3.0), 4), round(lately.p(0.2), 2)
(0.0003, 1.0)

Surprises are in nats (−log p). p is the weighted share of recent ones that were as large, the present one counted with
them. Beyond everything in memory p goes on falling, slowly, so that the stronger of two unheard-of things stays ahead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

MEMORY = 20_000  # after so many, an old one counts for 1/e
WIDTH = 0.125  # nats of a bin
BINS = 512
NEAR = 0.25  # nats: what differs by less is as large; estimates move a little as they grow sharper


class Ranks:
    """A histogram of recent surprises."""

    __slots__ = ("_bins", "_growth", "_top", "_total", "_weight", "memory")

    def __init__(self, memory: int = MEMORY) -> None:
        self.memory = memory
        self._bins = [0.0] * BINS
        self._top = -1  # the highest bin in use
        self._total = 0.0
        self._weight = 1.0  # of the next one; instead of fading the old, the new count for more
        self._growth = math.exp(1 / memory)

    @property
    def count(self) -> float:
        """How many there are in memory, faded ones counted in part."""
        return self._total / self._weight

    def p(self, surprise: float) -> float:
        if surprise <= NEAR:
            return 1.0
        weight, at = self._weight, (surprise - NEAR) / WIDTH
        bin = min(int(at), BINS - 1)
        if bin > self._top:
            above = weight / (1.0 + (at - self._top - 1) * WIDTH)
        else:
            # Within a bin as if spread evenly, so that p never rises with surprise.
            above = weight + sum(self._bins[bin + 1 : self._top + 1]) + self._bins[bin] * max(0.0, bin + 1 - at)
        return above / (self._total + weight)

    def add(self, surprise: float) -> None:
        bin = min(int(surprise / WIDTH), BINS - 1) if surprise > 0.0 else 0
        self._bins[bin] += self._weight
        self._top = max(self._top, bin)
        self._total += self._weight
        self._weight *= self._growth
        if self._weight > 1e12:
            self._rescale()

    def _rescale(self) -> None:
        scale = 1 / self._weight
        self._bins = [value if (value := held * scale) > 1e-6 else 0.0 for held in self._bins]
        self._total, self._weight = sum(self._bins), 1.0
        self._top = max((i for i, held in enumerate(self._bins) if held), default=-1)

    def state(self) -> list[Any]:
        return [self.memory, self._weight, self._total, self._top, self._bins]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> Self:
        made = cls(state[0])
        _, made._weight, made._total, made._top, bins = state
        made._bins = list(bins)
        return made
