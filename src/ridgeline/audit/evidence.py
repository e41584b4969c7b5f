"""From many surprises to one calibrated score.

Every part (a new template, an unusual actor, a broken count …) has its own history of surprises. A surprise counts by
how rare one as large has been lately in that part: a part that is always noisy says little, one that is always quiet
says much. What stands out (rarer than 1 in 10) is added up, and the sum is held against the recent sums.

    p      how rare a sum as large has been lately
    score  L / (L + L₀) with L = −log p and L₀ = −log(alert rate): 0.5 is where alerts begin
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

from ridgeline.audit.calibration import MEMORY, Ranks

STANDS_OUT = math.log(10)


class Scale:
    """Histories of the parts and of their sum."""

    def __init__(self, parts: Sequence[str], memory: int = MEMORY) -> None:
        self.parts = {part: Ranks(memory) for part in parts}
        self.sums = Ranks(memory)

    def weigh(self, raw: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        """The sum, and what stands out of it by part; all in nats."""
        found = {}
        for part, surprise in raw.items():
            if surprise > 0.0 and (weight := -math.log(self.parts[part].p(surprise))) > STANDS_OUT:
                found[part] = weight
        return sum(found.values()), found

    def rarity(self, total: float) -> float:
        """L of a sum."""
        return -math.log(self.sums.p(total))

    def learn(self, raw: Mapping[str, float], total: float) -> None:
        for part, ranks in self.parts.items():
            ranks.add(raw.get(part, 0.0))
        self.sums.add(total)

    def state(self) -> dict[str, Any]:
        return {"parts": {part: ranks.state() for part, ranks in self.parts.items()}, "sums": self.sums.state()}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        made = cls(())
        made.parts = {part: Ranks.restore(held) for part, held in state["parts"].items()}
        made.sums = Ranks.restore(state["sums"])
        return made


def score_of(rarity: float, alert_rate: float) -> float:
    """
    >>> score_of(-math.log(0.001), 0.001)
    0.5
    """
    line = -math.log(alert_rate)
    return rarity / (rarity + line)
