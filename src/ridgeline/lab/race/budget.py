"""Divide the time of a benchmark: over workloads by weight, over the cases of a workload by what they cost.

Wall-clock time counts: it includes starting processes, loading, building and checking. How long these take is not
known in advance, so the budget learns it from case to case. If the time is too short for all cases, the benchmark
leaves some out, spread evenly over the sweeps of the workload, those of the quick profile last, and names them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ridgeline.lab.workload import Profile

T = TypeVar("T")
Clock = Callable[[], float]
RaceTime = Callable[[float], float]  # seconds of preparation -> seconds for the race

START_S = 6.0  # assumed time to start the processes of a workload
SETUP_S = 2.0  # assumed time to prepare one of its cases
AFTER_FIRST = 0.25  # the first case also starts processes and loads libraries: assume this share for the next ones
HEADLINE = 2.0  # a case of the quick profile may race this many times as long as another case


@dataclass(frozen=True)
class TimeLimits:
    """How long a benchmark may take: in total, and per case."""

    total_s: float  # for all races and their preparation
    least_s: float  # a shorter race says too little: rather leave a case out
    most_s: float  # a longer race takes time from the other cases


LIMITS = {
    Profile.QUICK: TimeLimits(total_s=240.0, least_s=0.5, most_s=5.0),
    Profile.FULL: TimeLimits(total_s=450.0, least_s=0.75, most_s=20.0),
}

# Two versions of one code seldom differ much: it takes many rounds to show that they are the same. The remaining time
# confirms the cases that a first race of this length leaves open (confirmation.py).
LIMITS_AGAINST = {
    Profile.QUICK: TimeLimits(total_s=840.0, least_s=4.0, most_s=10.0),
    Profile.FULL: TimeLimits(total_s=2700.0, least_s=6.0, most_s=20.0),
}


def divide(total_s: float, needs: Sequence[tuple[float, float]]) -> list[float]:
    """Divide the time by (weight, needed seconds): by weight, but what one does not need goes to the others first.

    The shares always add up to the total.

    >>> divide(100, [(1, 10), (1, 1000), (2, 1000)]), divide(100, [(1, 10), (3, 10)])
    ([10.0, 30.0, 60.0], [30.0, 70.0])
    """
    shares, left, open_needs = [0.0] * len(needs), max(0.0, total_s), set(range(len(needs)))
    while open_needs:
        weight = sum(needs[i][0] for i in open_needs)
        satisfied = [i for i in open_needs if needs[i][1] <= left * needs[i][0] / weight]
        for i in satisfied or open_needs:
            shares[i] = float(needs[i][1]) if satisfied else left * needs[i][0] / weight
        left = max(0.0, left - sum(shares[i] for i in satisfied or open_needs))  # rounding must not make it negative
        open_needs -= set(satisfied or open_needs)
    total_weight = sum(weight for weight, _ in needs)
    return [share + left * weight / total_weight for share, (weight, _) in zip(shares, needs, strict=True)]


def estimate_need_s(cases: int, limits: TimeLimits) -> float:
    """Estimate the seconds that a workload needs for all of its cases, before it starts."""
    return START_S + cases * (SETUP_S + limits.most_s)


def order_evenly(count: int) -> list[int]:
    """Return 0 … count - 1 in an order of which every beginning covers the range evenly.

    >>> order_evenly(8)
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    width = max(1, (count - 1).bit_length())
    return sorted(range(count), key=lambda i: int(f"{i:0{width}b}"[::-1], 2))


class TimeBudget:
    """The time of one workload; it allots the time of each case."""

    def __init__(self, seconds: float, limits: TimeLimits, clock: Clock = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._end = clock() + seconds
        self._setups: list[float] = []

    @property
    def left_s(self) -> float:
        """The seconds that are left."""
        return self._end - self._clock()

    @property
    def setup_s(self) -> float:
        """The estimated seconds of the next case besides its race."""
        if len(self._setups) > 1:
            return statistics.median(self._setups[1:])
        return AFTER_FIRST * self._setups[0] if self._setups else 0.0

    def count_fitting(self, waiting: int) -> int:
        """Return how many of the `waiting` cases fit into the time that is left.

        The first case always fits: each workload measures at least one.
        """
        if not self._setups:
            return waiting
        return max(0, min(waiting, int(self.left_s // (self.setup_s + self._limits.least_s))))

    def race_s(self, setup_s: float, waiting: int, least: float = 1.0) -> float:
        """Return the seconds for the race of a case that took `setup_s` to prepare.

        `waiting`: the number of cases that are left, this one included. `least`: times the shortest race.
        """
        even = (self.left_s + setup_s) / waiting - setup_s
        return min(self._limits.most_s, max(least * self._limits.least_s, even))

    def add_setup(self, setup_s: float) -> None:
        """Learn how long a case took besides its race."""
        self._setups.append(setup_s)

    def allot(self, cases: Sequence[T], headline: Sequence[T]) -> Iterator[tuple[T, RaceTime]]:
        """Yield the cases that fit, each with the function that gives the seconds of its race.

        Headline cases come first. Of the others as many follow as fit by then, in their own order, because
        neighbours often share what was built; then the same again with the time that is left.
        """
        first, rest = ([case for case in cases if (case in headline) is flag] for flag in (True, False))
        ranked = [rest[i] for i in order_evenly(len(rest))]
        if not first:
            first, ranked = ranked[:1], ranked[1:]
        yield from self._allot_group(first, len(ranked), HEADLINE if ranked else 1.0)
        while chosen := ranked[: self.count_fitting(len(ranked))]:
            ranked = ranked[len(chosen) :]
            yield from self._allot_group([case for case in rest if case in chosen], len(ranked), 1.0)

    def _allot_group(self, cases: Sequence[T], others: int, least: float) -> Iterator[tuple[T, RaceTime]]:
        for i, case in enumerate(cases):
            if not self.count_fitting(1):
                return
            yield case, partial(self.race_s, waiting=len(cases) - i + others, least=least)
