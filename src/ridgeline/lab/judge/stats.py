"""Statistics of noisy times: medians with distribution-free intervals, and ratios of medians.

Times have heavy right tails, and the load of the machine changes. So no function here assumes a distribution. A turn
(a burst of samples) is one observation, because samples inside a turn share the load. Contenders of one race are
compared round by round, which cancels the load that they share.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

CONFIDENCE = 0.95
HIGH_CONFIDENCE = 0.999
MIN_OBSERVATIONS = 6  # the range of five observations covers the median with 94 % only
RESAMPLES = 4000
MIN_FOR_AUTOCORRELATION = 24  # fewer values do not show how similar neighbours are
ENOUGH_FOR_AUTOCORRELATION = 100  # fewer values often hide how similar neighbours are
BATCHES = 10
MAX_FOR_T = 11  # a sign test of so few observations cannot reach HIGH_CONFIDENCE; Student's t can


@dataclass(frozen=True)
class Estimate:
    """A value, its confidence interval [low, high], and the number `n` of observations."""

    value: float
    low: float
    high: float
    n: int

    @property
    def relative(self) -> float:
        """Half of the interval's width divided by the value."""
        return (self.high - self.low) / 2 / abs(self.value) if self.value else math.inf


def turn_medians(samples: Sequence[float], per_turn: int) -> list[float]:
    """Return the median of each turn of `per_turn` samples."""
    return [statistics.median(samples[i : i + per_turn]) for i in range(0, len(samples), per_turn)]


def median(values: Sequence[float], confidence: float = CONFIDENCE, effective: int | None = None) -> Estimate:
    """Return the median with the interval between two order statistics, which is exact for any distribution.

    `effective`: the number of independent values that dependent `values` are worth (see `effective_sample_size`).
    """
    ordered = sorted(values)
    n = len(ordered)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    independent = min(n, effective or n)
    rank = _rank(independent, confidence) * n // independent
    return Estimate(statistics.median(ordered), ordered[rank], ordered[n - 1 - rank], n)


def paired_ratio(peer: Sequence[float], ours: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return the median of peer / ours over rounds; above 1 the peer takes longer.

    The interval inverts a sign test. Each round shuffles the order, so either of two equal contenders is ahead with
    probability one half under any load that both share. Load that affects one contender for several rounds makes
    neighbouring rounds similar; such a race counts as fewer rounds (`effective_sample_size`).
    """
    logs = [math.log(t / o) for t, o in zip(peer, ours, strict=False)]
    if confidence == HIGH_CONFIDENCE and 2 <= len(logs) <= MAX_FOR_T:
        return _exp(_mean_interval(logs, confidence))
    rounds = effective_sample_size(logs)
    if confidence == HIGH_CONFIDENCE and rounds <= MAX_FOR_T < len(logs):
        interval = _robust_interval(logs, confidence, rounds)
    else:
        interval = median(logs, confidence, rounds)
    if confidence == HIGH_CONFIDENCE and MIN_FOR_AUTOCORRELATION <= len(logs) < ENOUGH_FOR_AUTOCORRELATION:
        interval = _widen(interval, _batch_interval(logs, confidence))
    return _exp(interval)


def effective_sample_size(values: Sequence[float]) -> int:
    """Return how many independent values a series with similar neighbours is worth.

    It sums the autocorrelations of the signs (above or below the median) up to the first that is not positive. A
    series below MIN_FOR_AUTOCORRELATION values counts in full.
    """
    if len(values) < MIN_FOR_AUTOCORRELATION:
        return len(values)
    n, middle = len(values), statistics.median(values) if values else 0.0
    signs = [(value > middle) - (value < middle) for value in values]
    power = sum(sign * sign for sign in signs)
    inflation = 1.0
    for lag in range(1, n // 4 + 1):
        correlation = sum(a * b for a, b in zip(signs, signs[lag:], strict=False)) / power if power else 0.0
        if correlation <= 0:
            break
        inflation += 2 * correlation
    return min(n, max(2, int(n / inflation)))


def execution_ratios(peer: Sequence[float], ours: Sequence[float], executions: Sequence[int]) -> list[float]:
    """Return peer / ours of each execution (a start of fresh processes): the median over its rounds.

    `executions`: the number of rounds of each execution.
    """
    ratios, start = [], 0
    for rounds in executions:
        pairs = zip(peer[start : start + rounds], ours[start : start + rounds], strict=True)
        ratios.append(math.exp(statistics.median(math.log(t / o) for t, o in pairs)))
        start += rounds
    return ratios


def mean_execution_ratio(ratios: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return the geometric mean of the executions' ratios with Student's interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, half = statistics.fmean(logs), execution_half_width(statistics.stdev(logs), len(logs), confidence)
    return _exp(Estimate(mean, mean - half, mean + half, len(logs)))


def execution_half_width(deviation: float, executions: int, confidence: float) -> float:
    """Return half of the width of the interval over executions, of the logarithm of the ratio.

    After MIN_OBSERVATIONS executions the race stops as soon as the interval is narrow, so intervals come out too
    narrow. Half of the degrees of freedom corrects this (tests/lab/test_calibration.py).
    """
    freedom = executions - 1 if executions <= MIN_OBSERVATIONS else max(MIN_OBSERVATIONS - 1, (executions - 1) // 2)
    return t_quantile(confidence, freedom) * deviation / math.sqrt(executions)


def geometric_mean_ratio(peer: Sequence[float], ours: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return the geometric mean of peer / ours with Student's interval, for pairs too few for a sign test (≥ 2)."""
    return _exp(_mean_interval([math.log(t / o) for t, o in zip(peer, ours, strict=True)], confidence))


def unpaired_ratio(peer: Sequence[float], ours: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return peer / ours from separate races: the ratio of the medians, with a bootstrap interval over turns.

    The two sides may have different numbers of turns.
    """
    if not peer or not ours:
        return Estimate(math.nan, math.nan, math.nan, 0)
    rng = random.Random(0)  # noqa: S311  the same records give the same verdict
    draws = sorted(
        statistics.median(rng.choices(peer, k=len(peer))) / statistics.median(rng.choices(ours, k=len(ours)))
        for _ in range(RESAMPLES)
    )
    cut = int((1 - confidence) / 2 * RESAMPLES)
    value = statistics.median(peer) / statistics.median(ours)
    return Estimate(value, draws[cut], draws[-1 - cut], min(len(peer), len(ours)))


def _robust_interval(logs: Sequence[float], confidence: float, effective: int) -> Estimate:
    """Return Student's interval around the median; its width comes from the median deviation, so outliers do not
    widen it."""
    middle = statistics.median(logs)
    deviation = 1.4826 * statistics.median(abs(x - middle) for x in logs)  # a normal distribution's standard deviation
    half = t_quantile(confidence, effective - 1) * 1.2533 * deviation / math.sqrt(effective)
    return Estimate(middle, middle - half, middle + half, len(logs))


def _batch_interval(logs: Sequence[float], confidence: float) -> Estimate:
    """Return Student's interval over the medians of batches of neighbours.

    The autocorrelation of 40 values is itself a guess: where it came out as zero by chance, one of 200 races of equal
    contenders under drawn load had a verdict (benchmarks/lab_rates.py). Batches do not need it.
    """
    cuts = [round(k * len(logs) / BATCHES) for k in range(BATCHES + 1)]
    return _mean_interval([statistics.median(logs[a:b]) for a, b in pairwise(cuts)], confidence)


def _widen(interval: Estimate, other: Estimate) -> Estimate:
    """Return an interval that contains both."""
    return Estimate(interval.value, min(interval.low, other.low), max(interval.high, other.high), interval.n)


def _mean_interval(logs: Sequence[float], confidence: float) -> Estimate:
    mean = statistics.fmean(logs)
    half = t_quantile(confidence, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Estimate(mean, mean - half, mean + half, len(logs))


def _exp(logs: Estimate) -> Estimate:
    low, value, high = (math.exp(min(v, 700.0)) for v in (logs.low, logs.value, logs.high))
    return Estimate(value, low, high, logs.n)


@lru_cache(maxsize=1024)
def t_quantile(confidence: float, freedom: int) -> float:
    """Return Student's t: the standard errors that a two-sided interval spans to either side of the mean.

    `freedom` is the number of degrees of freedom; below 1 the quantile is infinite.

    >>> round(t_quantile(0.95, 4), 3), round(t_quantile(0.95, 1000), 2)
    (2.776, 1.96)
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + confidence) / 2)) if freedom >= 1 else math.inf


@lru_cache(maxsize=4096)
def _rank(n: int, confidence: float) -> int:
    """Return the largest rank r for which order statistics r and n-1-r still cover the median; 0 if none does.

    They miss it on one side if at most r of n values fall below it: the lower tail of a fair coin.
    """
    tail, total, rank = (1 - confidence) / 2, 0.0, 0
    for k in range(n // 2):
        total += math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2))
        if total > tail:
            break
        rank = k
    return min(rank, (n - 1) // 2)
