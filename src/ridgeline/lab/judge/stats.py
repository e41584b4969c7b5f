"""The statistics of noisy times: medians with distribution-free intervals, and ratios of them.

Times have heavy right tails and come in weather, so nothing here assumes a shape. A turn (a burst of samples)
is one observation: samples inside a turn share their weather. Contenders of one race are compared turn by
turn, round by round, which takes the weather out.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ridgeline.lab.judge import student

CONFIDENCE = 0.95
FEWEST = 6  # observations: the whole range of five covers the median with 94 % only
RESAMPLES = 4000
SURE = 0.999
TELLING = 24  # values: fewer do not show how much neighbours are alike
SHORT = 11  # observations: too few for a sign test to be that sure, so Student's t is asked


@dataclass(frozen=True)
class Estimate:
    """A median and its interval; `n` observations stand behind it."""

    value: float
    low: float
    high: float
    n: int

    @property
    def relative(self) -> float:
        """Half the interval's width as a part of the value."""
        return (self.high - self.low) / 2 / abs(self.value) if self.value else math.inf


def turns(samples: Sequence[float], per_turn: int) -> list[float]:
    """The median of each turn."""
    return [statistics.median(samples[i : i + per_turn]) for i in range(0, len(samples), per_turn)]


def median(values: Sequence[float], confidence: float = CONFIDENCE, worth: int | None = None) -> Estimate:
    """The median with the interval between two order statistics (exact for any distribution).

    Values that are `worth` fewer independent ones get the interval that so many would have.
    """
    ordered = sorted(values)
    n = len(ordered)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    fewer = min(n, worth or n)
    rank = _rank(fewer, confidence) * n // fewer
    return Estimate(statistics.median(ordered), ordered[rank], ordered[n - 1 - rank], n)


def paired_ratio(theirs: Sequence[float], ours: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """theirs / ours, round by round; over 1 means they took longer.

    The interval inverts a sign test. Because each round's order is shuffled, either of two equal contenders is
    ahead with probability one half whatever weather both share. Weather that stays with one of them for some rounds
    makes neighbouring rounds alike: such a race counts as the fewer rounds that it is worth (`worth`).
    """
    logs = [math.log(t / o) for t, o in zip(theirs, ours, strict=False)]
    if confidence == SURE and 2 <= len(logs) <= SHORT:
        return _exp(_student(logs, confidence))
    rounds = worth(logs)
    if confidence == SURE and rounds <= SHORT < len(logs):
        return _exp(_steady(logs, confidence, rounds))
    return _exp(median(logs, confidence, rounds))


def worth(values: Sequence[float]) -> int:
    """How many independent values a series is worth whose neighbours lie on the same side of the median too often.

    The signs' autocorrelations are added up to the first that is not positive, as for any mean of a series. A short
    one says too little about itself and is taken as it is.
    """
    if len(values) < TELLING:
        return len(values)
    n, middle = len(values), statistics.median(values) if values else 0.0
    signs = [(value > middle) - (value < middle) for value in values]
    told = sum(sign * sign for sign in signs)
    inflated = 1.0
    for lag in range(1, n // 4 + 1):
        alike = sum(a * b for a, b in zip(signs, signs[lag:], strict=False)) / told if told else 0.0
        if alike <= 0:
            break
        inflated += 2 * alike
    return min(n, max(2, int(n / inflated)))


def heat_ratios(theirs: Sequence[float], ours: Sequence[float], heats: Sequence[int]) -> list[float]:
    """theirs / ours of each heat, the median over its rounds; `heats` are their numbers of rounds."""
    found, start = [], 0
    for rounds in heats:
        pairs = zip(theirs[start : start + rounds], ours[start : start + rounds], strict=True)
        found.append(math.exp(statistics.median(math.log(t / o) for t, o in pairs)))
        start += rounds
    return found


def over_heats(ratios: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The geometric mean of the heats' ratios with Student's interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, reach = statistics.fmean(logs), heats_reach(statistics.stdev(logs), len(logs), confidence)
    return _exp(Estimate(mean, mean - reach, mean + reach, len(logs)))


def heats_reach(deviation: float, heats: int, confidence: float) -> float:
    """How far the interval of so many heats reaches to either side, of the logarithm.

    More than the fewest are raced until the interval is narrow, so it is narrow a little too early; counting half of
    the freedom makes up for that (tests/lab/test_calibration.py).
    """
    freedom = heats - 1 if heats <= FEWEST else max(FEWEST - 1, (heats - 1) // 2)
    return student.quantile(confidence, freedom) * deviation / math.sqrt(heats)


def geometric(theirs: Sequence[float], ours: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The geometric mean of theirs / ours with Student's interval: for pairs too few for a sign test (two or more)."""
    return _exp(_student([math.log(t / o) for t, o in zip(theirs, ours, strict=True)], confidence))


def unpaired_ratio(theirs: Sequence[float], ours: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """theirs / ours from separate races: medians, with an interval by resampling each side's turns.

    Counts may differ.
    """
    if not theirs or not ours:
        return Estimate(math.nan, math.nan, math.nan, 0)
    rng = random.Random(0)  # noqa: S311  the same records give the same verdict
    draws = sorted(
        statistics.median(rng.choices(theirs, k=len(theirs))) / statistics.median(rng.choices(ours, k=len(ours)))
        for _ in range(RESAMPLES)
    )
    cut = int((1 - confidence) / 2 * RESAMPLES)
    value = statistics.median(theirs) / statistics.median(ours)
    return Estimate(value, draws[cut], draws[-1 - cut], min(len(theirs), len(ours)))


def _steady(logs: Sequence[float], confidence: float, worth: int) -> Estimate:
    """Student's interval about the median, its width from the median deviation: outliers do not widen it."""
    middle = statistics.median(logs)
    deviation = 1.4826 * statistics.median(abs(x - middle) for x in logs)  # a normal distribution's standard deviation
    reach = student.quantile(confidence, worth - 1) * 1.2533 * deviation / math.sqrt(worth)
    return Estimate(middle, middle - reach, middle + reach, len(logs))


def _student(logs: Sequence[float], confidence: float) -> Estimate:
    mean = statistics.fmean(logs)
    reach = student.quantile(confidence, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Estimate(mean, mean - reach, mean + reach, len(logs))


def _exp(logs: Estimate) -> Estimate:
    low, value, high = (math.exp(min(v, 700.0)) for v in (logs.low, logs.value, logs.high))
    return Estimate(value, low, high, logs.n)


@lru_cache(maxsize=4096)
def _rank(n: int, confidence: float) -> int:
    """The largest rank r for which order statistics r and n-1-r still cover the median; 0 when none does.

    They miss it on one side when at most r of n values fall below it: the lower tail of a fair coin.
    """
    tail, total, rank = (1 - confidence) / 2, 0.0, 0
    for k in range(n // 2):
        total += math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2))
        if total > tail:
            break
        rank = k
    return min(rank, (n - 1) // 2)
