"""What a factor does: trials that differ in it and in nothing else, pair by pair.

A run is the unit. Samples of one run share its process, its memory and its weather, so a thousand of them are no
thousand runs; two runs of equal code differ by several percent. Hence:

    6 pairs or more   the median ratio, with the interval that inverts a sign test, and that test's p-value
    2 to 5 pairs      the geometric mean, with Student's interval; too few for a test
    1 pair            the ratio of medians, with an interval from within the two runs: what lies between runs is
                      not in it, and that is said
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.lab.judge import stats
from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.study.table import Trial, key

REPEAT = "repeat"  # the column that counts rounds, where there is one
BLOCKS = 24  # per run, for an interval from within it: neighbouring samples are alike, blocks of them less so
# What a table of contrasts must say below it.
FEW = "Fewer than 6 pairs are too few for a test; 1 pair has an interval from within its two runs only."
Response = Callable[[Trial], float | None]
Pair = tuple[Trial, Trial]


@dataclass(frozen=True)
class Contrast:
    """Time under `other` over time under `base`; above 1 the other is slower."""

    factor: str
    base: Any
    other: Any
    ratio: Estimate  # n is the number of pairs
    p: float | None  # None: too few pairs for a test
    within: str = ""  # which part of the study the pairs come from
    one_run: bool = False  # the interval knows the noise within two runs only

    @property
    def basis(self) -> str:
        return f"{self.ratio.n} pair" + ("" if self.ratio.n == 1 else "s")


def per_item(trial: Trial) -> float | None:
    return trial.per_item


def column(name: str) -> Response:
    """A measured time by its column, where it is above zero."""
    return lambda trial: trial.positive(name)


def pairs(base: Iterable[Trial], other: Iterable[Trial], names: Sequence[str], without: Sequence[str]) -> list[Pair]:
    """Each trial of `other` with one of `base` that did the same: of the same round if there is one, else in order.

    No trial stands in two pairs: pairs that share a run would not be independent.
    """
    waiting: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in base:
        waiting.setdefault(key(trial, names, without), []).append(trial)
    found, late = [], []
    for trial in other:
        queue = waiting.get(key(trial, names, without), [])
        twin = next((t for t in queue if t.level(REPEAT) == trial.level(REPEAT)), None)
        if twin is None:
            late.append((queue, trial))
        else:
            queue.remove(twin)
            found.append((twin, trial))
    return found + [(queue.pop(0), trial) for queue, trial in late if queue]


def contrast(
    found: Sequence[Pair], factor: str, base: Any, other: Any, *, response: Response = per_item, within: str = ""
) -> Contrast:
    """The effect over these pairs; those without a positive response on both sides are left out."""
    told = [(a, b, response(a), response(b)) for a, b in found]
    held = [(a, b, x, y) for a, b, x, y in told if x is not None and y is not None and x > 0 and y > 0]
    ours, theirs = [x for _, _, x, _ in held], [y for _, _, _, y in held]
    if len(held) >= stats.FEWEST:
        return Contrast(factor, base, other, stats.paired_ratio(theirs, ours), sign_test(theirs, ours), within)
    if len(held) > 1:
        return Contrast(factor, base, other, stats.geometric(theirs, ours), None, within)
    if not held:
        return Contrast(factor, base, other, Estimate(math.nan, math.nan, math.nan, 0), None, within)
    (a, b, x, y) = held[0]
    ratio = Estimate(y / x, math.nan, math.nan, 1)
    if response is per_item and min(len(a.samples), len(b.samples)) >= 2 * stats.FEWEST:
        # Both medians lie in their intervals at once with the confidence that is asked for.
        first, second = (stats.median(_blocks(t), math.sqrt(stats.CONFIDENCE)) for t in (a, b))
        low, high = second.low / first.high, second.high / first.low
        ratio = Estimate(y / x, min(low, y / x), max(high, y / x), 1)
    return Contrast(factor, base, other, ratio, None, within, one_run=True)


def sign_test(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """The two-sided p-value of "either is ahead with probability one half"; ties say nothing and are left out.

    >>> sign_test([2, 2, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1])
    0.03125
    """
    above = sum(t > o for t, o in zip(theirs, ours, strict=True))
    below = sum(t < o for t, o in zip(theirs, ours, strict=True))
    n, fewer = above + below, min(above, below)
    tail = sum(math.comb(n, k) for k in range(fewer + 1))
    return min(1.0, 2 * tail / int(1 << n))


def _blocks(trial: Trial) -> list[float]:
    """Medians of consecutive blocks, per item."""
    per_block = -(-len(trial.samples) // BLOCKS)
    return [seconds / trial.items for seconds in stats.turns(trial.samples, per_block)]
