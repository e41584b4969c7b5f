"""How often does something as surprising as this happen lately? Ranks against recent history, which fades.

>>> lately = Ranks()
>>> for _ in range(999):
...     lately.add(3.0)
>>> lately.p(6.0) < 0.005 < 0.99 < lately.p(2.0)
True

Surprises are in nats (−log p). p is the weighted share of recent ones that were as large, the present one counted with
them. One that was a little smaller still counts in part (estimates move as they grow sharper), so p falls everywhere
with surprise. Beyond everything in memory it goes on falling, slowly: of two unheard-of things the stronger is ahead.

In the long run old ones fade by a constant rate. In the beginning they fade faster, so that at any time the weight lies
on the latter part of what there was: everything is new on the first day, which says nothing about the second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import Any, Self

MEMORY = 20_000  # after so many, an old one counts for 1/e
EARLY = 2  # before that, the n-th of N counts for (n/N)²
WIDTH = 0.125  # nats of a bin
BINS = 512
LARGEST = 1e12  # a weight
NEAR = 0.2  # nats: one that was smaller by this counts for 1/e
REACH = 16  # bins below that count at all
_PARTS = [math.exp(-n * WIDTH / NEAR) for n in range(REACH, 0, -1)]


class Clock:
    """How much the next one counts: instead of fading the old, the new count for more."""

    __slots__ = ("memory", "rate", "total", "weight")

    def __init__(self, memory: int = MEMORY) -> None:
        self.memory, self.rate, self.weight, self.total = memory, float(EARLY), 1.0, 0.0

    def tick(self) -> float | None:
        """One more was counted; a number to scale all weights by, when they grow too large."""
        self.total += self.weight
        self.weight *= 1.0 + max(self.rate, 1.0 / self.memory)
        self.rate = self.rate / (1.0 + self.rate / EARLY)  # EARLY/1, EARLY/2, EARLY/3 …
        if self.weight < LARGEST:
            return None
        scale = 1.0 / self.weight
        self.total, self.weight = self.total * scale, 1.0
        return scale

    def state(self) -> list[Any]:
        return [self.memory, self.rate, self.weight, self.total]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> Self:
        made = cls(state[0])
        _, made.rate, made.weight, made.total = state
        return made


class Ranks:
    """A histogram. Several may share a clock, whose owner ticks it; no surprise needs no `add` then."""

    __slots__ = ("_bins", "_clock", "_own", "_top")

    def __init__(self, memory: int = MEMORY, clock: Clock | None = None) -> None:
        self._clock, self._own = clock or Clock(memory), clock is None
        self._bins = [0.0] * BINS
        self._top = -1  # the highest bin in use

    @property
    def count(self) -> float:
        """How many there are in memory, faded ones counted in part."""
        return self._clock.total / self._clock.weight

    def rarity(self, surprise: float) -> float:
        """−log p."""
        p = self.p(surprise)
        return -math.log(p) if p < 1.0 else 0.0

    def p(self, surprise: float) -> float:
        if surprise <= 0.0:
            return 1.0
        weight, at = self._clock.weight, surprise / WIDTH
        bin, bins = min(int(at), BINS - 1), self._bins
        below = bins[max(0, bin - REACH) : bin]
        near: float = sum(map(mul, below, _PARTS[REACH - len(below) :])) * math.exp((bin - at) * WIDTH / NEAR)
        above = near + sum(bins[bin : self._top + 1])
        own = weight if above >= weight else weight / (1.0 + self._beyond(at))
        return min(1.0, (above + own) / (self._clock.total + weight))

    def _beyond(self, at: float) -> float:
        """How far beyond the place, in nats, above which less than one is left."""
        left, bin, weight = 0.0, self._top, self._clock.weight
        while bin >= 0 and left + self._bins[bin] < weight:
            left += self._bins[bin]
            bin -= 1
        share = (weight - left) / self._bins[bin] if bin >= 0 else 0.0
        return max(0.0, at - (bin + 1 - share)) * WIDTH

    def add(self, surprise: float) -> None:
        if surprise > 0.0:
            bin = min(int(surprise / WIDTH), BINS - 1)
            self._bins[bin] += self._clock.weight
            if bin > self._top:
                self._top = bin
        if self._own and (scale := self._clock.tick()) is not None:
            self.rescale(scale)

    def rescale(self, scale: float) -> None:
        self._bins = [value if (value := held * scale) > 1e-6 else 0.0 for held in self._bins]
        self._top = max((i for i, held in enumerate(self._bins) if held), default=-1)

    def state(self) -> list[Any]:
        return [self._clock.state() if self._own else None, self._top, self._bins]

    @classmethod
    def restore(cls, state: Sequence[Any], clock: Clock | None = None) -> Self:
        made = cls(clock=clock or Clock.restore(state[0]))
        made._own = clock is None
        made._top, made._bins = state[1], list(state[2])
        return made
