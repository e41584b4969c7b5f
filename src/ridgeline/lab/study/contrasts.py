"""What a factor does: trials that differ in one factor only, compared pair by pair, with a correction for many tests.

A run is the unit. Samples of one run share its process, its memory and the load of the machine, so a thousand samples
are not a thousand runs; two runs of equal code differ by several percent. Therefore:

    6 pairs or more   the median ratio, with the interval that inverts a sign test, and that test's p-value
    2 to 5 pairs      the geometric mean, with Student's interval; too few for a test
    1 pair            the ratio of medians, with an interval from the samples of the two runs: noise between runs is
                      not in it, and the report says so

Holm's correction keeps the chance of even one false difference in the table below 5 %. A difference needs to exceed the
margin too; two levels are the SAME if the interval lies within the margin.

A trend says whether one quantity rises with another: Kendall's test and the median of slopes, which no outlier moves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.lab.judge import (
    CONFIDENCE,
    MARGIN,
    MIN_OBSERVATIONS,
    Comparison,
    Estimate,
    geometric_mean_ratio,
    median,
    paired_ratio,
    turn_medians,
)
from ridgeline.lab.study.section import DASH, Grid, Section, format_change, format_interval, to_json
from ridgeline.lab.study.table import NONE, Table, Trial, group_trials, trial_key

ALPHA = 0.05
REPEAT = "repeat"  # the column that counts rounds, where rows have one
BLOCKS = 24  # per run, for an interval from its samples: neighbouring samples are correlated, blocks are less so
TOO_FEW = "too few pairs"
# Below every table of contrasts.
PAIRS_NOTE = "Fewer than 6 pairs are too few for a test; 1 pair has an interval from within its two runs only."
MAX_SENTENCES = 12
Response = Callable[[Trial], float | None]
Pair = tuple[Trial, Trial]


@dataclass(frozen=True)
class Contrast:
    """Time with level `other` over time with level `base` of a factor; above 1 the other level is slower."""

    factor: str
    base: Any
    other: Any
    ratio: Estimate  # n is the number of pairs
    p: float | None  # None: too few pairs for a test
    within: str = ""  # which part of the study the pairs come from
    one_run: bool = False  # the interval holds the noise within two runs only

    @property
    def basis(self) -> str:
        return f"{self.ratio.n} pair" + ("" if self.ratio.n == 1 else "s")


@dataclass(frozen=True)
class Finding:
    """A contrast and its verdict among all contrasts of the study."""

    contrast: Contrast
    corrected: float | None  # p after Holm's correction
    word: str  # of the other level against the base: SLOWER | FASTER | SAME | UNCLEAR | too few pairs


@dataclass(frozen=True)
class Trend:
    """How y changes with x."""

    slope: float  # the median over all pairs of points (Theil and Sen)
    p: float | None  # None: fewer than six points, or nothing varies
    n: int

    def factor(self, step: float) -> float:
        """Return the factor of y for a step along x, where y is a logarithm."""
        return math.exp(min(max(step * self.slope, -100.0), 100.0))


def read_per_item(trial: Trial) -> float | None:
    return trial.per_item


def read_column(name: str) -> Response:
    """Return a response that reads a column of times, where its value is above zero."""
    return lambda trial: trial.positive(name)


def pair_trials(
    base: Iterable[Trial], other: Iterable[Trial], names: Sequence[str], without: Sequence[str]
) -> list[Pair]:
    """Pair each trial of `other` with a trial of `base` that did the same work, of the same round if possible.

    No trial is in two pairs: pairs that share a run are not independent.
    """
    waiting: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in base:
        waiting.setdefault(trial_key(trial, names, without), []).append(trial)
    pairs, late = [], []
    for trial in other:
        queue = waiting.get(trial_key(trial, names, without), [])
        twin = next((t for t in queue if t.level(REPEAT) == trial.level(REPEAT)), None)
        if twin is None:
            late.append((queue, trial))
        else:
            queue.remove(twin)
            pairs.append((twin, trial))
    return pairs + [(queue.pop(0), trial) for queue, trial in late if queue]


def compare_pairs(
    pairs: Sequence[Pair], factor: str, base: Any, other: Any, *, response: Response = read_per_item, within: str = ""
) -> Contrast:
    """Return the effect over these pairs, without pairs that lack a positive response on either side."""
    responses = [(a, b, response(a), response(b)) for a, b in pairs]
    usable = [(a, b, x, y) for a, b, x, y in responses if x is not None and y is not None and x > 0 and y > 0]
    base_times, other_times = [x for _, _, x, _ in usable], [y for _, _, _, y in usable]
    if len(usable) >= MIN_OBSERVATIONS:
        ratio = paired_ratio(other_times, base_times)
        return Contrast(factor, base, other, ratio, sign_test(other_times, base_times), within)
    if len(usable) > 1:
        return Contrast(factor, base, other, geometric_mean_ratio(other_times, base_times), None, within)
    if not usable:
        return Contrast(factor, base, other, Estimate(math.nan, math.nan, math.nan, 0), None, within)
    (a, b, x, y) = usable[0]
    ratio = Estimate(y / x, math.nan, math.nan, 1)
    if response is read_per_item and min(len(a.samples), len(b.samples)) >= 2 * MIN_OBSERVATIONS:
        # Both medians lie in their intervals at once with the required confidence.
        first, second = (median(_block_medians(t), math.sqrt(CONFIDENCE)) for t in (a, b))
        low, high = second.low / first.high, second.high / first.low
        ratio = Estimate(y / x, min(low, y / x), max(high, y / x), 1)
    return Contrast(factor, base, other, ratio, None, within, one_run=True)


def compare_factors(table: Table) -> list[Contrast]:
    """Return a contrast for every level of every factor against its base (no value, else the lowest level)."""
    columns, contrasts = table.columns, []
    for factor in columns.factors:
        groups = group_trials(table.trials, (factor,))
        known = [value for value in table.levels(factor) if value != NONE or factor == columns.compile]
        base = NONE if NONE in known else known[0] if known else NONE
        for other in known:
            if other != base:
                pairs = pair_trials(groups.get((base,), []), groups[(other,)], columns.identity, (factor,))
                if pairs:
                    contrasts.append(compare_pairs(pairs, factor, base, other, within="all points"))
    return contrasts


def sign_test(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p-value of "either is larger with probability one half"; ties are left out.

    >>> sign_test([2, 2, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1])
    0.03125
    """
    above = sum(a > b for a, b in zip(first, second, strict=True))
    below = sum(a < b for a, b in zip(first, second, strict=True))
    n, fewer = above + below, min(above, below)
    tail = sum(math.comb(n, k) for k in range(fewer + 1))
    return min(1.0, 2 * tail / int(1 << n))


def correct_holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method, in the order given.

    >>> [round(p, 3) for p in correct_holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, p_values[i] * (len(p_values) - rank)))
        corrected[i] = highest
    return corrected


def fit_trend(xs: Sequence[float], ys: Sequence[float]) -> Trend:
    """Test whether y rises with x; points come in any order, ties are taken into account.

    >>> trend = fit_trend([1, 2, 3, 4, 5, 6, 7], [2, 4, 6, 8, 10, 12, 70])
    >>> trend.slope, trend.p < 0.01
    (2.0, True)
    """
    x, y = np.asarray(xs, dtype=float), np.asarray(ys, dtype=float)
    i, j = np.triu_indices(len(x), 1)
    run, rise = x[j] - x[i], y[j] - y[i]
    slopes = rise[run != 0] / run[run != 0]
    slope = float(np.median(slopes)) if len(slopes) else math.nan
    if len(x) < MIN_OBSERVATIONS or not (np.ptp(x) and np.ptp(y)):
        return Trend(slope, None, len(x))
    score = float(np.sum(np.sign(run) * np.sign(rise)))
    # The normal approximation, with a continuity correction of 1: good from about six points on.
    z = max(abs(score) - 1, 0.0) / math.sqrt(_kendall_variance(x, y))
    return Trend(slope, math.erfc(z / math.sqrt(2)), len(x))


def judge_contrasts(contrasts: Sequence[Contrast]) -> list[Finding]:
    """Give every contrast a verdict; all tests share one correction."""
    tested = [c for c in contrasts if c.p is not None]
    corrected = dict(zip(map(id, tested), correct_holm([c.p or 0.0 for c in tested]), strict=True))
    return [Finding(c, corrected.get(id(c)), _choose_word(c, corrected.get(id(c)))) for c in contrasts]


def describe_contrasts(findings: Sequence[Finding]) -> Section:
    """Return the section with every comparison, its interval and its verdict."""
    title = "What can be distinguished"
    if not findings:
        return Section(title, ["No two runs differ in one factor only: there is nothing to test."])
    tested = [f for f in findings if f.corrected is not None]
    sure = [f for f in tested if f.word in (Comparison.SLOWER, Comparison.FASTER)]
    sentences = [
        f"Of {len(findings)} comparisons {len(tested)} have the {MIN_OBSERVATIONS} pairs a test needs; "
        f"in {len(sure)} of these a difference beyond {100 * MARGIN:.0f} % survives the correction."
    ]
    sentences += [_describe_finding(f) for f in sure[:MAX_SENTENCES]]
    if len(tested) < len(findings):
        sentences.append(
            "The others had too few pairs: their ratios are shown, nothing is claimed. Repeat the runs to test them."
        )
    head = ("factor", "level", "against", "time", "95 % interval", "pairs", "p", "p corrected", "verdict")
    rows = [
        [
            f.contrast.factor,
            str(f.contrast.other),
            str(f.contrast.base) or "none",
            format_change(f.contrast.ratio.value),
            format_interval(f.contrast.ratio),
            str(f.contrast.ratio.n),
            _format_p(f.contrast.p),
            _format_p(f.corrected),
            f.word,
        ]
        for f in findings
    ]
    return Section(title, sentences, [Grid(head, rows, head[3:8])], findings=to_json({"comparisons": findings}))


def _block_medians(trial: Trial) -> list[float]:
    """Return the medians of consecutive blocks of samples, in seconds per item."""
    per_block = -(-len(trial.samples) // BLOCKS)
    return [seconds / trial.items for seconds in turn_medians(trial.samples, per_block)]


def _kendall_variance(x: np.ndarray, y: np.ndarray) -> float:
    """Return the variance of Kendall's score if there is no trend, with ties."""
    n = len(x)
    ties = [[c for c in Counter(v.tolist()).values() if c > 1] for v in (x, y)]
    first = [sum(c * (c - 1) * (2 * c + 5) for c in t) for t in ties]
    second = [sum(c * (c - 1) for c in t) for t in ties]
    third = [sum(c * (c - 1) * (c - 2) for c in t) for t in ties]
    total = (n * (n - 1) * (2 * n + 5) - first[0] - first[1]) / 18
    total += second[0] * second[1] / (2 * n * (n - 1))
    if n > 2:
        total += third[0] * third[1] / (9 * n * (n - 1) * (n - 2))
    return float(total)


def _choose_word(c: Contrast, corrected: float | None) -> str:
    if corrected is None:
        return TOO_FEW
    if c.ratio.low >= 1 / (1 + MARGIN) and c.ratio.high <= 1 + MARGIN:
        return Comparison.SAME
    if corrected < ALPHA and c.ratio.value > 1 + MARGIN:
        return Comparison.SLOWER
    if corrected < ALPHA and c.ratio.value < 1 / (1 + MARGIN):
        return Comparison.FASTER
    return Comparison.UNCLEAR


def _describe_finding(f: Finding) -> str:
    c = f.contrast
    base = str(c.base) or "none"
    change, interval = format_change(c.ratio.value), format_interval(c.ratio)
    return f"{c.factor} {c.other} against {base}: {change} time ({interval}, {c.basis})."


def _format_p(p: float | None) -> str:
    return DASH if p is None or math.isnan(p) else f"{p:.2g}"
