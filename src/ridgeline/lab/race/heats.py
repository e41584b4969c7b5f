"""The second look at versions of one code: the time that is left goes to the lines that the first look left open.

Where a process's memory lies, what it found when it tuned itself, on which core a thread of it woke: such luck stays
with a process for all of a race and looks like a difference. So a line goes on in heats with processes of their own:

    wide open     as many rounds again as there were, until they are worth a first look: the same, or not?
    not the same  six heats, and on until their ratio is known so well that a difference of the margin would be sure

What goes on and when it ends hangs on the widths of intervals, never on where they lie, but for that one first look;
otherwise looking again and again would find differences in noise. Lines that need the least time come first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ridgeline.lab.judge import stats, verdict
from ridgeline.lab.judge.verdict import Comparison
from ridgeline.lab.race.measure import Watch, heat
from ridgeline.lab.race.plan import Race
from ridgeline.lab.race.points import Point

START_S = 4.0  # what a first heat is thought to take at least: its processes start anew


@dataclass
class Line:
    """One case of a bench and its race so far."""

    point: Point
    race: Race
    looked: bool = False  # whether its rounds were found to be worth a first look, and not to show the same
    heat_s: float = 0.0  # what its last heat took, or is thought to take from what its first start took

    @property
    def wants(self) -> tuple[int, int | None]:
        """How many more heats, and the rounds of the next (None: as many as fit); no heats: it is decided."""
        ours, *others = self.race.lanes
        if not ours.racing or not all(lane.racing for lane in others) or not all(self.race.heats):
            return 0, None
        us, heats = ours.medians(), self.race.heats
        pairs = [(lane.medians(), us) for lane in others]
        if not self.looked:
            if any(verdict.wide_open(*pair) for pair in pairs):
                return 1, sum(heats)
            self.looked = any(verdict.of_versions(*pair, heats)[1] is not Comparison.SAME for pair in pairs)
            if not self.looked:
                return 0, None
        return max(verdict.heats_wanted(stats.heat_ratios(*pair, heats)) for pair in pairs), None

    def next_s(self, rounds: int | None) -> float:
        """What its next heat is thought to take."""
        whole = self.heat_s if len(self.race.heats) > 1 else max(self.heat_s, START_S)
        return whole if rounds is None else whole + rounds * self.race.seconds / self.race.heats[0]


def settle(
    lines: list[Line],
    end: float,
    watch: Callable[[Line], Watch],
    clock: Callable[[], float] = time.monotonic,
    race_on: Callable[[Race, int | None, Watch], None] = heat,
) -> Iterator[Line]:
    """Race the lines on until the time is out; each comes back when it is decided, the others at the end."""
    waiting = list(lines)
    while waiting:
        asked = {id(line): line.wants for line in waiting}
        for line in [line for line in waiting if not asked[id(line)][0]]:
            waiting.remove(line)
            yield line
        costs = [(asked[id(line)][0] * line.next_s(asked[id(line)][1]), k) for k, line in enumerate(waiting)]
        for _, k in sorted(costs):
            line, began = waiting[k], clock()
            rounds = asked[id(line)][1]
            if began + line.next_s(rounds) <= end:
                race_on(line.race, rounds, watch(line))
                line.heat_s = clock() - began
                break
        else:
            yield from waiting
            return
