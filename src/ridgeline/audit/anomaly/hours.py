"""At which hours does something happen? Days are counted: an hour with many events is still one hour of one day.

>>> usual = Hours()
>>> day, hour = 86_400 * 10**9, 3_600 * 10**9
>>> for d in range(30):
...     usual.learn("backup.run", d * day + 3 * hour)
>>> round(usual.p("backup.run", 30 * day + 3 * hour), 2), round(usual.p("backup.run", 30 * day + 14 * hour), 2)
(1.0, 0.03)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

HOUR_NS = 3_600 * 10**9
ACTIONS = 4_096
DAYS = 60  # beyond, the old ones count for half


class Hours:
    def __init__(self) -> None:
        # action → [last day, days, then for each of 24 hours (UTC) the last day and the days]
        self._held: dict[str, list[int]] = {}

    def p(self, action: str, time: int) -> float:
        """The share of days, today included, that had this at this hour or one next to it."""
        held = self._held.get(action)
        if held is None:
            return 1.0
        day, hour = divmod(time // HOUR_NS, 24)
        days = held[1] - (held[0] == day)
        near = max(held[3 + 2 * h] - (held[2 + 2 * h] == day) for h in ((hour - 1) % 24, hour, (hour + 1) % 24))
        return (near + 1) / (days + 1)

    def learn(self, action: str, time: int) -> None:
        day, hour = divmod(time // HOUR_NS, 24)
        held = self._held.get(action)
        if held is None:
            if len(self._held) >= ACTIONS:
                del self._held[next(iter(self._held))]
            held = self._held[action] = [-1, 0] + [-1, 0] * 24
        for at in (0, 2 + 2 * hour):
            if held[at] != day:
                held[at] = day
                held[at + 1] += 1
        if held[1] > DAYS:
            held[1::2] = [(n + 1) // 2 for n in held[1::2]]

    def state(self) -> list[Any]:
        return [[action, held] for action, held in self._held.items()]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> Self:
        made = cls()
        made._held = {action: list(held) for action, held in state}
        return made
