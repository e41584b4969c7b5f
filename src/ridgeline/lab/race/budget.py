"""How the time of a bench is divided: over workloads by their weight, over a workload's cases by what they cost.

The wall's clock counts: starting processes, loading, building, checking are in it. What those take is not known before,
so it is learnt as the cases go by. Where the time does not reach for all cases, some are left out, spread evenly over
the workload's sweeps, those of the quick profile last; the bench says which.
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
RaceTime = Callable[[float], float]  # from the seconds a set-up took

START_S = 6.0  # what starting a workload's processes is thought to take before anybody knows
SETUP_S = 2.0  # and preparing one of its cases
AFTER_FIRST = 0.25  # the first case also starts processes and loads libraries: the next is thought to take this part
HEADLINE = 2.0  # a case of the quick profile may race this many times as long as another must


@dataclass(frozen=True)
class Pace:
    """How long to look: at everything, and at one case."""

    total_s: float  # for all races and what prepares them
    least_s: float  # a shorter race says too little: rather one case fewer
    most_s: float  # a longer race takes time from the other cases


PACES = {
    Profile.QUICK: Pace(total_s=240.0, least_s=0.5, most_s=5.0),
    Profile.FULL: Pace(total_s=450.0, least_s=0.75, most_s=20.0),
}

# Two versions of one code seldom differ by much: it takes many rounds to say that they are the same. What a first look
# of this length leaves open is looked at again with the time that is left (heats.py).
PACES_AGAINST = {
    Profile.QUICK: Pace(total_s=840.0, least_s=4.0, most_s=10.0),
    Profile.FULL: Pace(total_s=2700.0, least_s=6.0, most_s=20.0),
}


def divide(total_s: float, wants: Sequence[tuple[float, float]]) -> list[float]:
    """Each one's share of the time, from its (weight, what it is thought to need): by weight, but what is more than one
    needs goes to the others first. All of it is given out.

    >>> divide(100, [(1, 10), (1, 1000), (2, 1000)]), divide(100, [(1, 10), (3, 10)])
    ([10.0, 30.0, 60.0], [30.0, 70.0])
    """
    shares, left, hungry = [0.0] * len(wants), max(0.0, total_s), set(range(len(wants)))
    while hungry:
        weight = sum(wants[i][0] for i in hungry)
        fed = [i for i in hungry if wants[i][1] <= left * wants[i][0] / weight]
        for i in fed or hungry:
            shares[i] = float(wants[i][1]) if fed else left * wants[i][0] / weight
        left = max(0.0, left - sum(shares[i] for i in fed or hungry))  # not below by rounding
        hungry -= set(fed or hungry)
    weight = sum(weight for weight, _ in wants)
    return [share + left * own / weight for share, (own, _) in zip(shares, wants, strict=True)]


def want_s(cases: int, pace: Pace) -> float:
    """What a workload is thought to need for all of its cases, before it has begun."""
    return START_S + cases * (SETUP_S + pace.most_s)


def spread(count: int) -> list[int]:
    """0 … count - 1 in an order whose every beginning is spread evenly over the whole.

    >>> spread(8)
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    width = max(1, (count - 1).bit_length())
    return sorted(range(count), key=lambda i: int(f"{i:0{width}b}"[::-1], 2))


class Purse:
    """The time of one workload, handed out case by case."""

    def __init__(self, seconds: float, pace: Pace, clock: Clock = time.monotonic) -> None:
        self._pace, self._clock = pace, clock
        self._end = clock() + seconds
        self._setups: list[float] = []

    @property
    def left_s(self) -> float:
        return self._end - self._clock()

    @property
    def setup_s(self) -> float:
        """What the next case is thought to take besides its race."""
        if len(self._setups) > 1:
            return statistics.median(self._setups[1:])
        return AFTER_FIRST * self._setups[0] if self._setups else 0.0

    def fitting(self, waiting: int) -> int:
        """How many of so many cases fit into what is left; one is begun in any case: no path is left out for others."""
        if not self._setups:
            return waiting
        return max(0, min(waiting, int(self.left_s // (self.setup_s + self._pace.least_s))))

    def race_s(self, setup_s: float, waiting: int, least: float = 1.0) -> float:
        """How long a case may race whose preparation took so long, with so many waiting, itself among them."""
        even = (self.left_s + setup_s) / waiting - setup_s
        return min(self._pace.most_s, max(least * self._pace.least_s, even))

    def took(self, setup_s: float) -> None:
        """Learn what a case took besides its race."""
        self._setups.append(setup_s)

    def served(self, cases: Sequence[T], headline: Sequence[T]) -> Iterator[tuple[T, RaceTime]]:
        """The cases that fit, each with the seconds its race may take once those of its set-up are known.

        Headline cases come first. Of the others as many are chosen as fit by what is known then, and these go in their
        own order, for neighbours often share what was built; then the same again with the time that is left.
        """
        first, rest = ([case for case in cases if (case in headline) is wanted] for wanted in (True, False))
        ranked = [rest[i] for i in spread(len(rest))]
        if not first:
            first, ranked = ranked[:1], ranked[1:]
        yield from self._wave(first, len(ranked), HEADLINE if ranked else 1.0)
        while chosen := ranked[: self.fitting(len(ranked))]:
            ranked = ranked[len(chosen) :]
            yield from self._wave([case for case in rest if case in chosen], len(ranked), 1.0)

    def _wave(self, cases: Sequence[T], others: int, least: float) -> Iterator[tuple[T, RaceTime]]:
        for at, case in enumerate(cases):
            if not self.fitting(1):
                return
            yield case, partial(self.race_s, waiting=len(cases) - at + others, least=least)
