"""Confirm differences between versions of one code with fresh processes.

The memory layout of a process, its self-tuning, and the core on which its threads wake stay with the process for a
whole race, and can look like a difference between two versions. So after the first race of every case, the remaining
time goes to repeats with fresh processes ("executions", as in Kalibera and Jones, Rigorous Benchmarking in Reasonable
Time, 2013), for the cases that are still open:

    undecided       repeat the same number of rounds, until the rounds are enough for a first comparison: SAME or not?
    not SAME        six executions, then more until a difference of the margin would be certain

The widths of intervals decide which case continues and when it ends, never their values, except in that one first
comparison; otherwise repeated looks would find differences in noise. Cases that need the least time come first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ridgeline.lab.judge import (
    MARGIN,
    Comparison,
    compare_versions,
    count_missing_executions,
    execution_ratios,
    is_undecided,
)
from ridgeline.lab.race.measure import Race, repeat_execution
from ridgeline.lab.race.request import Point

START_S = 4.0  # assumed least duration of the first repeat, whose processes start from scratch


@dataclass
class OpenCase:
    """One case of a benchmark and its race so far."""

    point: Point
    race: Race
    differs: bool = False  # the rounds were enough for a first comparison, and it was not SAME
    execution_s: float = 0.0  # duration of its last execution; before that an estimate
    margin: float = MARGIN
    cases: int = 1  # of the run: more need more confidence each

    @property
    def remaining(self) -> tuple[int, int | None]:
        """How many executions it still needs, and the rounds of the next (None: as many as fit); 0: it is decided."""
        ours, *others = self.race.lanes
        if not ours.racing or not all(lane.racing for lane in others) or not all(self.race.executions):
            return 0, None
        us, executions = ours.turn_medians(), self.race.executions
        pairs = [(lane.turn_medians(), us) for lane in others]
        if not self.differs:
            if any(is_undecided(*pair, self.margin) for pair in pairs):
                return 1, sum(executions)
            self.differs = any(
                compare_versions(*pair, executions, self.margin)[1] is not Comparison.SAME for pair in pairs
            )
            if not self.differs:
                return 0, None
        ratios = [execution_ratios(*pair, executions) for pair in pairs]
        return max(count_missing_executions(each, self.margin, self.cases) for each in ratios), None

    def estimate_s(self, rounds: int | None) -> float:
        """Estimate the seconds of its next execution."""
        least = self.execution_s if len(self.race.executions) > 1 else max(self.execution_s, START_S)
        return least if rounds is None else least + rounds * self.race.seconds / self.race.executions[0]


def confirm_cases(
    cases: list[OpenCase],
    end: float,
    repeat: Callable[[OpenCase, int | None], None] = lambda case, rounds: repeat_execution(case.race, rounds),
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[OpenCase]:
    """Repeat the cases until the time `end`; yield each case when it is decided, the others at the end."""
    waiting = list(cases)
    while waiting:
        remaining = {id(case): case.remaining for case in waiting}
        for case in [case for case in waiting if not remaining[id(case)][0]]:
            waiting.remove(case)
            yield case
        costs = [
            (remaining[id(case)][0] * case.estimate_s(remaining[id(case)][1]), k) for k, case in enumerate(waiting)
        ]
        for _, k in sorted(costs):
            case, start = waiting[k], clock()
            rounds = remaining[id(case)][1]
            if start + case.estimate_s(rounds) <= end:
                repeat(case, rounds)
                case.execution_s = clock() - start
                break
        else:
            yield from waiting
            return
