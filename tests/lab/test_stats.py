"""Intervals that cover what they say they cover, whatever the shape of the noise.

python -m pytest tests/lab/test_stats.py
"""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.lab.judge import stats

times = st.lists(st.floats(1.0, 1e9), min_size=1, max_size=60)


@given(times)
def test_the_median_lies_in_its_interval_and_the_interval_among_the_values(values):
    found = stats.median(values)
    assert min(values) <= found.low <= found.value <= found.high <= max(values)
    assert found.value == statistics.median(values)
    assert found.n == len(values)


@given(times, st.floats(0.001, 1000))
def test_a_ratio_does_not_care_for_the_unit(values, scale):
    other = [v * 1.5 for v in values]
    one = stats.paired_ratio(other, values)
    scaled = stats.paired_ratio([v * scale for v in other], [v * scale for v in values])
    assert one.value == pytest.approx(1.5) == scaled.value


@given(times)
def test_more_confidence_means_a_wider_interval(values):
    usual, sure = (stats.median(values, c) for c in (0.95, 0.999))
    assert sure.low <= usual.low
    assert usual.high <= sure.high


@given(st.integers(1, 400))
def test_the_order_statistics_cover_the_median_as_often_as_promised(n):
    """Exact: with the median strictly between ranks r and n-1-r, coverage is P(r < Binomial(n, ½) < n-r)."""
    rank = stats._rank(n, 0.95)
    coverage = sum(math.comb(n, k) for k in range(rank + 1, n - rank)) / 2**n
    if n >= 6:
        assert coverage >= 0.95
        deeper = sum(math.comb(n, k) for k in range(rank + 2, n - rank - 1)) / 2**n
        assert deeper < 0.95 or rank == (n - 1) // 2, "the narrowest interval that does"


def test_turns_are_the_medians_of_bursts():
    assert stats.turns([1, 9, 2, 5, 5, 5], 3) == [2, 5]
    assert stats.turns([4, 4, 8], 2) == [4, 8]


@pytest.mark.parametrize("ratio", [stats.paired_ratio, stats.unpaired_ratio])
def test_an_interval_holds_the_truth_about_as_often_as_it_says(ratio):
    rng, held = random.Random(5), 0
    trials = 200 if ratio is stats.paired_ratio else 60
    for _ in range(trials):
        ours = [100 * rng.lognormvariate(0, 0.05) for _ in range(25)]
        theirs = [120 * rng.lognormvariate(0, 0.05) for _ in range(25)]
        found = ratio(theirs, ours)
        held += found.low <= 1.2 <= found.high
    assert held / trials >= 0.9


def test_counts_may_differ_and_nothing_is_nothing():
    assert stats.unpaired_ratio([2.0] * 7, [1.0] * 30).value == pytest.approx(2)
    assert math.isnan(stats.unpaired_ratio([], [1.0]).value)
    assert math.isnan(stats.median([]).value)


def test_a_short_race_can_be_sure_of_a_large_difference_but_not_of_a_small_one():
    ours = [100, 103, 98, 101, 99]
    assert stats.paired_ratio([5000, 5100, 4900, 5050, 4950], ours, stats.SURE).low > 1
    assert stats.paired_ratio([104, 101, 103, 106, 98], ours, stats.SURE).low < 1
