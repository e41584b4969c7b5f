"""From many surprises to one calibrated score.

Every part (a rare template, an unusual actor, a broken count …) has its own history of surprises. A surprise counts by
how rare one as large has been lately in that part: a part that is always noisy says little, one that is always quiet
says what it claims, but never more. `meaning` and `tone` are asked of new templates only and are surprises given that,
so they add to `template`.

What stands out (rarer than 1 in 10) is added up, the largest in full, the next by half, the next by a quarter: parts
depend on each other (what is new is also new after what came before it), and one clear break must not drown in several
small ones. The sum is held against the recent sums.

    p      how rare a sum as large has been lately
    score  L / (L + L₀) with L = −log p and L₀ = −log(alert rate): 0.5 is where alerts begin
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

from ridgeline.audit.anomaly.calibration import MEMORY, Clock, Ranks

STANDS_OUT = math.log(10)
NEXT = 0.5  # how much the next largest counts
GIVEN = ("new", "meaning", "tone")  # of a new template


class Scale:
    """Histories of the parts and of their sum."""

    def __init__(self, parts: Sequence[str], memory: int = MEMORY) -> None:
        self._clock = Clock(memory)
        self.parts = {part: Ranks(clock=self._clock) for part in parts if part not in GIVEN}
        self.sums = Ranks(clock=self._clock)

    def weigh(self, raw: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        """The sum, and what stands out of it by part; all in nats."""
        found = {}
        for part, surprise in raw.items():
            if surprise > 0.0:
                weight = surprise if part in GIVEN else min(surprise, self.parts[part].rarity(surprise))
                if weight > STANDS_OUT or part in GIVEN:
                    found[part] = weight
        if not found:
            return 0.0, found
        new = found.get("template", 0.0) + sum(found.get(part, 0.0) for part in GIVEN)
        if new <= STANDS_OUT:
            new = 0.0
            found = {part: weight for part, weight in found.items() if part not in GIVEN}
        total, share = 0.0, 1.0
        others = [weight for part, weight in found.items() if part != "template" and part not in GIVEN]
        for weight in sorted([new, *others], reverse=True):
            total += weight * share
            share *= NEXT
        return total, found

    def rarity(self, total: float) -> float:
        """L of a sum."""
        return self.sums.rarity(total)

    def learn(self, raw: Mapping[str, float], total: float) -> None:
        for part, surprise in raw.items():
            if part not in GIVEN:
                self.parts[part].add(surprise)
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
        made = cls(())
        made._clock = Clock.restore(state["clock"])
        made.parts = {part: Ranks.restore(held, made._clock) for part, held in state["parts"].items()}
        made.sums = Ranks.restore(state["sums"], made._clock)
        return made


def score_of(rarity: float, alert_rate: float) -> float:
    """
    >>> score_of(-math.log(0.001), 0.001)
    0.5
    """
    line = -math.log(alert_rate)
    return rarity / (rarity + line)
