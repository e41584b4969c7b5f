"""Calibration: how rare a surprise is against recent surprises, and how many surprises become one score.

>>> lately = Ranks()
>>> for _ in range(999):
...     lately.add(3.0)
>>> lately.p(6.0) < 0.005 < 0.99 < lately.p(2.0)
True

`Ranks`: surprises are in nats (−log p). p is the weighted share of recent surprises that were as large, the current one
included. A slightly smaller one counts in part (estimates move as they get sharper), so p falls strictly with surprise.
Beyond the largest one in memory p still falls, slowly: of two events without precedent the stronger one ranks higher.

Old surprises lose weight at a constant rate in the long run. At the start they lose it faster, so that most weight is
always on the later part of the history: everything is new on the first day, which says nothing about the second.

`Scale`: every part (a rare template, an unusual actor, an unusual count …) has its own history of surprises. A surprise
counts by how rare one as large was recently in that part: a part that is always noisy counts little. `new`, `meaning`
and `tone` exist for new templates only and are conditional on that, so they add to `template`.

Parts that stand out (rarer than 1 in 10) are summed: the largest counts in full, the next by half, the next by a
quarter, because the parts depend on each other and one clear anomaly must not be hidden by several small ones. The sum
is ranked against recent sums:

    p      how rare a sum as large was recently
    score  L / (L + L₀) with L = −log p and L₀ = −log(alert rate): 0.5 is the threshold of an alert

`SessionScale` does the same for sessions, with all parts, since there are few and each ranks sessions by itself. Ranks
of all sessions would never let more than the alert rate through, however many anomalies there are. So sessions far
beyond the threshold do not enter the ranks, and those that are just beyond it enter as if they were at it. If more
sessions raise alerts than anomalies can be, normal sessions have changed (`drifts`), and all are learnt until that has
passed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import mul
from typing import Any, Self

MEMORY = 20_000  # after this many surprises, an old one counts for 1/e
EARLY = 2  # before that, the n-th of N counts for (n/N)²
WIDTH = 0.125  # nats per bin
BINS = 512
LARGEST = 1e12  # largest weight before all weights are scaled down
DECAY = 0.2  # nats: a surprise that is smaller by this counts for 1/e
REACH = 16  # bins below that count in part
_PARTS = [math.exp(-n * WIDTH / DECAY) for n in range(REACH, 0, -1)]
STANDS_OUT = math.log(10)
NEXT = 0.5  # weight of the next largest part
CLEAR = 2.0  # nats beyond the threshold at which a session is clearly an anomaly; few normal ones are that far
SHARE = 200  # sessions over which the share of alerts is averaged
DRIFT = 0.5  # share of sessions with alerts that means drift
GIVEN = ("new", "meaning", "tone")  # parts of a new template only


class Clock:
    """The weight of the next surprise: it grows, which has the same effect as reducing the old weights."""

    __slots__ = ("memory", "rate", "total", "weight")

    def __init__(self, memory: int = MEMORY) -> None:
        self.memory, self.rate, self.weight, self.total = memory, float(EARLY), 1.0, 0.0

    def tick(self) -> float | None:
        """Count one more; return a factor for all weights if they have become too large, else None."""
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
        clock = cls(state[0])
        _, clock.rate, clock.weight, clock.total = state
        return clock


class Ranks:
    """A histogram of recent surprises. Several may share a clock that their owner ticks; then zero needs no `add`."""

    __slots__ = ("_bins", "_clock", "_owns_clock", "_top")

    def __init__(self, memory: int = MEMORY, clock: Clock | None = None) -> None:
        self._clock, self._owns_clock = clock or Clock(memory), clock is None
        self._bins = [0.0] * BINS
        self._top = -1  # highest bin in use

    @property
    def count(self) -> float:
        """The number of surprises in memory, old ones counted in part."""
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
        smaller: float = sum(map(mul, below, _PARTS[REACH - len(below) :])) * math.exp((bin - at) * WIDTH / DECAY)
        above = smaller + sum(bins[bin : self._top + 1])
        new = weight if above >= weight else weight / (1.0 + self._beyond(at))
        return min(1.0, (above + new) / (self._clock.total + weight))

    def beyond(self, surprise: float) -> float:
        """Return the distance, in nats, from the largest surprises in memory; 0 if it is not beyond them."""
        return self._beyond(surprise / WIDTH)

    def find_exceeded(self, share: float) -> float:
        """Return the surprise that this share of the surprises in memory exceeds, to the next bin."""
        left, bin = share * self._clock.total, self._top
        while bin >= 0 and self._bins[bin] <= left:
            left -= self._bins[bin]
            bin -= 1
        return (bin + 1) * WIDTH

    def _beyond(self, at: float) -> float:
        """Return the distance, in nats, beyond the point above which less than one surprise remains."""
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
        if self._owns_clock and (scale := self._clock.tick()) is not None:
            self.rescale(scale)

    def rescale(self, scale: float) -> None:
        self._bins = [value if (value := weight * scale) > 1e-6 else 0.0 for weight in self._bins]
        self._top = max((i for i, weight in enumerate(self._bins) if weight), default=-1)

    def state(self) -> list[Any]:
        return [self._clock.state() if self._owns_clock else None, self._top, self._bins]

    @classmethod
    def restore(cls, state: Sequence[Any], clock: Clock | None = None) -> Self:
        ranks = cls(clock=clock or Clock.restore(state[0]))
        ranks._owns_clock = clock is None
        ranks._top, ranks._bins = state[1], list(state[2])
        return ranks


class Scale:
    """The histories of the parts and of their sum."""

    def __init__(self, parts: Sequence[str], memory: int = MEMORY) -> None:
        self._clock = Clock(memory)
        self.parts = {part: Ranks(clock=self._clock) for part in parts if part not in GIVEN}
        self.sums = Ranks(clock=self._clock)

    def weigh(self, raw: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        """Return the sum, and the parts that stand out; all in nats."""
        weights = {}
        for part, surprise in raw.items():
            if part in GIVEN:
                if surprise > 0.0:
                    weights[part] = surprise
            elif surprise > STANDS_OUT:  # its weight is never larger
                weight = min(surprise, self.parts[part].rarity(surprise))
                if weight > STANDS_OUT:
                    weights[part] = weight
        if not weights:
            return 0.0, weights
        new = weights.get("template", 0.0) + sum(weights.get(part, 0.0) for part in GIVEN)
        if new <= STANDS_OUT:
            new = 0.0
            weights = {part: weight for part, weight in weights.items() if part not in GIVEN}
        others = [weight for part, weight in weights.items() if part != "template" and part not in GIVEN]
        return _add_parts([new, *others]), weights

    def rarity(self, total: float) -> float:
        """Return L of a sum."""
        return self.sums.rarity(total)

    def learn(self, raw: Mapping[str, float], total: float) -> None:
        parts = self.parts
        for part, surprise in raw.items():
            if surprise > 0.0 and part not in GIVEN:
                parts[part].add(surprise)
        if total > 0.0:
            self.sums.add(total)
        scale = self._clock.tick()
        if scale is not None:
            for ranks in (*self.parts.values(), self.sums):
                ranks.rescale(scale)

    def state(self) -> dict[str, Any]:
        parts = {part: ranks.state() for part, ranks in self.parts.items()}
        return {"clock": self._clock.state(), "parts": parts, "sums": self.sums.state()}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        restored = cls(())
        restored._clock = Clock.restore(state["clock"])
        restored.parts = {
            part: Ranks.restore(part_state, restored._clock) for part, part_state in state["parts"].items()
        }
        restored.sums = Ranks.restore(state["sums"], restored._clock)
        return restored


class SessionScale(Scale):
    """The histories of the parts of sessions and of their sum.

    rate  the share of ordinary sessions that may raise alerts
    """

    def __init__(self, parts: Sequence[str], memory: int = MEMORY, rate: float = 0.01) -> None:
        super().__init__(parts, memory)
        self.rate = rate
        self.alert_share = rate  # of recent sessions

    @property
    def drifts(self) -> bool:
        """Whether more sessions raise alerts than anomalies can be."""
        return self.alert_share > DRIFT

    def rarity(self, total: float) -> float:
        """Return L of a sum. Beyond all sums in memory it grows with the sum, by half: sums have exponential tails."""
        beyond = self.sums.beyond(total)
        return super().rarity(total) + max(0.0, beyond / 2 - math.log1p(beyond))

    def weigh(self, raw: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        weights = {part: self.parts[part].rarity(value) for part, value in raw.items()}
        return _add_parts(weights.values()), {part: w for part, w in weights.items() if w > STANDS_OUT}

    def learn(self, raw: Mapping[str, float], total: float, alert: bool = False) -> None:
        self.alert_share += (alert - self.alert_share) / SHARE
        if alert and not self.drifts:
            threshold = self.sums.find_exceeded(self.rate)
            if total > threshold + CLEAR:
                return
            total = min(total, threshold)
            raw = {part: min(value, self.parts[part].find_exceeded(self.rate)) for part, value in raw.items()}
        super().learn(raw, total)

    def state(self) -> dict[str, Any]:
        return super().state() | {"rate": self.rate, "share": self.alert_share}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        restored = super().restore(state)
        restored.rate, restored.alert_share = state["rate"], state["share"]
        return restored


def _add_parts(weights: Iterable[float]) -> float:
    """Add the weights of parts: the largest in full, each next one by half of the share before."""
    total, share = 0.0, 1.0
    for weight in sorted(weights, reverse=True):
        total += weight * share
        share *= NEXT
    return total


def scale_score(rarity: float, alert_rate: float) -> float:
    """Scale a rarity to [0, 1), with the alert threshold at 0.5.

    >>> scale_score(-math.log(0.001), 0.001)
    0.5
    """
    line = -math.log(alert_rate)
    return rarity / (rarity + line)
