"""Change points in noisy series: few false alarms and few misses, for any distribution of the noise.

python -m pytest tests/lab/judge/test_change_points.py
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import theilslopes

from ridgeline.lab.judge import change_points

MARGIN = math.log(1.03)
NOISE = {
    "normal": lambda rng, m: rng.normal(0, 0.03, m),
    "heavy tails": lambda rng, m: 0.01 * rng.standard_cauchy(m),
    "outliers": lambda rng, m: rng.normal(0, 0.01, m) + 0.5 * (rng.random(m) < 0.1),
    "many equals": lambda rng, m: 0.05 * rng.integers(0, 2, m),
}


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("m", [10, 25])
def test_false_alarms_are_at_most_as_frequent_as_stated(noise, m):
    """alpha is 5 %: at most 12 of 100 series without a step show one (exceeded once in a thousand runs)."""
    rng = np.random.default_rng(7)
    alarms = sum(bool(change_points.find_change_points(NOISE[noise](rng, m), alpha=0.05).steps) for _ in range(100))
    assert alarms <= 12


def test_false_alarms_follow_alpha():
    """At alpha 0.5 about half are false alarms: the test is not conservative."""
    rng = np.random.default_rng(1)
    small = [change_points.permutation_p(rng.normal(0, 1, 20)) for _ in range(100)]
    assert 30 <= sum(p <= 0.5 for p in small) <= 70
    assert sum(p <= 0.1 for p in small) <= 22


@pytest.mark.parametrize(("m", "start"), [(10, 5), (14, 11), (20, 3), (30, 15), (40, 36)])
@pytest.mark.parametrize("size", [0.1, -0.1])
def test_a_step_of_ten_percent_is_located(m, start, size):
    rng = np.random.default_rng(m)
    hits = 0
    for _ in range(20):
        points = change_points.find_change_points(
            rng.normal(0, 0.015, m) + size * (np.arange(m) >= start), margin=MARGIN
        )
        hits += len(points.steps) == 1 and abs(points.steps[0] - start) <= 1
    assert hits >= 17


def test_several_steps_are_found_in_order():
    rng = np.random.default_rng(0)
    level = np.repeat([0.0, 0.2, -0.1], 15)
    points = change_points.find_change_points(level + rng.normal(0, 0.01, 45), margin=MARGIN)
    assert points.steps == (15, 30)
    assert max(points.p) <= change_points.ALPHA


def test_one_or_two_slow_runs_are_not_a_step():
    x = np.random.default_rng(0).normal(0, 0.01, 20)
    x[[7, 8]] += 0.5
    assert change_points.find_change_points(x).steps == ()


def test_a_step_within_the_margin_is_ignored():
    x = np.random.default_rng(0).normal(0, 0.002, 30) + 0.02 * (np.arange(30) >= 15)
    assert change_points.find_change_points(x, margin=MARGIN).steps == ()
    assert change_points.find_change_points(x).steps == (15,)


def test_a_ramp_is_a_drift_and_not_several_steps():
    x = np.random.default_rng(0).normal(0, 0.01, 30) + 0.01 * np.arange(30)
    points = change_points.find_change_points(x, margin=MARGIN)
    assert points.steps == ()
    assert points.slope == pytest.approx(0.01, rel=0.1)


def test_noise_has_no_drift():
    rng = np.random.default_rng(0)
    assert sum(change_points.find_change_points(rng.normal(0, 0.01, 20)).slope != 0 for _ in range(100)) <= 5


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(-1, 1), min_size=6, max_size=30))
def test_the_slope_is_that_of_scipy(x):
    assert change_points.estimate_drift(np.array(x))[0] == pytest.approx(theilslopes(x)[0], abs=1e-12)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(-5, 5), max_size=40), st.floats(-3, 3), st.floats(0.1, 10))
def test_the_result_does_not_depend_on_unit_and_level(x, shift, scale):
    values = np.round(np.array(x), 3)
    points = change_points.find_change_points(values)
    assert change_points.find_change_points(values * scale + shift).steps == points.steps
    assert all(0 < start < len(values) for start in points.steps)
    assert list(points.steps) == sorted(set(points.steps))


@pytest.mark.parametrize("x", [[], [1.0], [1.0] * 30, [0.0, 1.0]])
def test_an_empty_or_constant_series_has_no_step(x):
    points = change_points.find_change_points(x)
    assert points == change_points.ChangePoints(slope_p=points.slope_p)


def test_the_minimum_of_records_is_the_shortest_series_that_can_reach_alpha():
    """Of all orders of m values, two halves separate: 2 / C(10, 5) is below 1 %, 2 / C(9, 4) is not."""
    assert change_points.MIN_RECORDS == 10
    assert change_points.compute_min_records(0.05) == 8
    assert change_points.find_change_points([0.0] * 5 + [1.0] * 5).steps == (5,)
    assert change_points.find_change_points([0.0] * 4 + [1.0] * 5).steps == ()
