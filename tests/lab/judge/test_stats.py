"""Intervals have their stated coverage for any distribution of the noise.

python -m pytest tests/lab/judge/test_stats.py
"""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.draws import choose_draws

from ridgeline.lab.judge import stats

times = st.lists(st.floats(1.0, 1e9), min_size=1, max_size=60)


@given(times)
def test_the_median_lies_in_its_interval_and_the_interval_among_the_values(values):
    estimate = stats.median(values)
    assert min(values) <= estimate.low <= estimate.value <= estimate.high <= max(values)
    assert estimate.value == statistics.median(values)
    assert estimate.n == len(values)


def test_forty_rounds_with_similar_neighbours_seldom_show_a_difference_that_is_not_there():
    """Their autocorrelation is a guess, which often came out too small: 6 of these 1,000 races had a direction."""
    rng, wrong = random.Random(0), 0
    for _ in range(1000):
        logs = [level + rng.gauss(0, 0.02) for level in (rng.gauss(0, 0.05) for _ in range(8)) for _ in range(5)]
        sure = stats.paired_ratio([math.exp(x) for x in logs], [1.0] * 40, stats.HIGH_CONFIDENCE)
        wrong += sure.low > 1 or sure.high < 1
    assert wrong <= 2


@given(times, st.floats(0.001, 1000))
def test_a_ratio_does_not_depend_on_the_unit(values, scale):
    other = [v * 1.5 for v in values]
    one = stats.paired_ratio(other, values)
    scaled = stats.paired_ratio([v * scale for v in other], [v * scale for v in values])
    assert one.value == pytest.approx(1.5) == scaled.value


@given(times)
def test_more_confidence_means_a_wider_interval(values):
    usual, confident = (stats.median(values, c) for c in (0.95, 0.999))
    assert confident.low <= usual.low
    assert usual.high <= confident.high


@given(st.integers(1, 400))
def test_the_order_statistics_cover_the_median_with_the_stated_confidence(n):
    """Exact: with the median strictly between ranks r and n-1-r, coverage is P(r < Binomial(n, ½) < n-r)."""
    rank = stats._rank(n, 0.95)
    coverage = sum(math.comb(n, k) for k in range(rank + 1, n - rank)) / 2**n
    if n >= 6:
        assert coverage >= 0.95
        deeper = sum(math.comb(n, k) for k in range(rank + 2, n - rank - 1)) / 2**n
        assert deeper < 0.95 or rank == (n - 1) // 2, "the narrowest such interval"


def test_turn_medians_are_the_medians_of_turns():
    assert stats.turn_medians([1, 9, 2, 5, 5, 5], 3) == [2, 5]
    assert stats.turn_medians([4, 4, 8], 2) == [4, 8]


@pytest.mark.parametrize("ratio", [stats.paired_ratio, stats.unpaired_ratio])
def test_an_interval_contains_the_truth_about_as_often_as_stated(ratio):
    rng, covered = random.Random(5), 0
    trials = choose_draws(80, 200) if ratio is stats.paired_ratio else choose_draws(25, 60)
    for _ in range(trials):
        ours = [100 * rng.lognormvariate(0, 0.05) for _ in range(25)]
        peer = [120 * rng.lognormvariate(0, 0.05) for _ in range(25)]
        estimate = ratio(peer, ours)
        covered += estimate.low <= 1.2 <= estimate.high
    assert covered / trials >= 0.9


def test_counts_may_differ_and_empty_input_gives_nan():
    assert stats.unpaired_ratio([2.0] * 7, [1.0] * 30).value == pytest.approx(2)
    assert math.isnan(stats.unpaired_ratio([], [1.0]).value)
    assert math.isnan(stats.median([]).value)


def test_a_short_race_can_show_a_large_difference_but_not_a_small_one():
    ours = [100, 103, 98, 101, 99]
    assert stats.paired_ratio([5000, 5100, 4900, 5050, 4950], ours, stats.HIGH_CONFIDENCE).low > 1
    assert stats.paired_ratio([104, 101, 103, 106, 98], ours, stats.HIGH_CONFIDENCE).low < 1
