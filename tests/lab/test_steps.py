"""Steps in noisy series: found where they are, rarely where they are not, whatever the noise looks like.

python -m pytest tests/lab/test_steps.py
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import theilslopes

from ridgeline.lab.judge import steps

MARGIN = math.log(1.03)
NOISE = {
    "normal": lambda rng, m: rng.normal(0, 0.03, m),
    "heavy tails": lambda rng, m: 0.01 * rng.standard_cauchy(m),
    "strays": lambda rng, m: rng.normal(0, 0.01, m) + 0.5 * (rng.random(m) < 0.1),
    "many equals": lambda rng, m: 0.05 * rng.integers(0, 2, m),
}


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("m", [10, 25])
def test_false_alarms_are_as_rare_as_stated(noise, m):
    """alpha is 5 %: of 100 series without a step at most 12 have one (exceeded once in a thousand runs)."""
    rng = np.random.default_rng(7)
    alarms = sum(bool(steps.find(NOISE[noise](rng, m), alpha=0.05).steps) for _ in range(100))
    assert alarms <= 12


def test_false_alarms_follow_alpha():
    """At a half, about half: the rate is used, not merely kept."""
    rng = np.random.default_rng(1)
    small = [steps.order_p(rng.normal(0, 1, 20)) for _ in range(100)]
    assert 30 <= sum(p <= 0.5 for p in small) <= 70
    assert sum(p <= 0.1 for p in small) <= 22


@pytest.mark.parametrize(("m", "at"), [(10, 5), (14, 11), (20, 3), (30, 15), (40, 36)])
@pytest.mark.parametrize("size", [0.1, -0.1])
def test_a_step_of_ten_percent_is_found_where_it_is(m, at, size):
    rng = np.random.default_rng(m)
    hits = 0
    for _ in range(20):
        found = steps.find(rng.normal(0, 0.015, m) + size * (np.arange(m) >= at), margin=MARGIN)
        hits += len(found.steps) == 1 and abs(found.steps[0] - at) <= 1
    assert hits >= 17


def test_several_steps_are_found_in_order():
    rng = np.random.default_rng(0)
    level = np.repeat([0.0, 0.2, -0.1], 15)
    found = steps.find(level + rng.normal(0, 0.01, 45), margin=MARGIN)
    assert found.steps == (15, 30)
    assert max(found.p) <= steps.ALPHA


def test_one_or_two_slow_runs_are_no_step():
    x = np.random.default_rng(0).normal(0, 0.01, 20)
    x[[7, 8]] += 0.5
    assert steps.find(x).steps == ()


def test_a_step_within_the_margin_is_not_worth_a_word():
    x = np.random.default_rng(0).normal(0, 0.002, 30) + 0.02 * (np.arange(30) >= 15)
    assert steps.find(x, margin=MARGIN).steps == ()
    assert steps.find(x).steps == (15,)


def test_a_ramp_is_a_drift_and_not_a_staircase():
    x = np.random.default_rng(0).normal(0, 0.01, 30) + 0.01 * np.arange(30)
    found = steps.find(x, margin=MARGIN)
    assert found.steps == ()
    assert found.slope == pytest.approx(0.01, rel=0.1)


def test_no_drift_is_said_of_noise():
    rng = np.random.default_rng(0)
    assert sum(steps.find(rng.normal(0, 0.01, 20)).slope != 0 for _ in range(100)) <= 5


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(-1, 1), min_size=6, max_size=30))
def test_the_slope_is_that_of_scipy(x):
    assert steps.drift(np.array(x))[0] == pytest.approx(theilslopes(x)[0], abs=1e-12)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(-5, 5), max_size=40), st.floats(-3, 3), st.floats(0.1, 10))
def test_the_answer_moves_with_the_series(x, shift, scale):
    """Another unit or level is the same history."""
    values = np.round(np.array(x), 3)
    there = steps.find(values)
    assert steps.find(values * scale + shift).steps == there.steps
    assert all(0 < at < len(values) for at in there.steps)
    assert list(there.steps) == sorted(set(there.steps))


@pytest.mark.parametrize("x", [[], [1.0], [1.0] * 30, [0.0, 1.0]])
def test_nothing_is_found_in_nothing(x):
    assert steps.find(x) == steps.Found(slope_p=steps.find(x).slope_p)


def test_the_fewest_records_are_those_that_can_reach_alpha():
    """All orders of m values, two halves apart: 2 / C(10, 5) is below 1 %, 2 / C(9, 4) is not."""
    assert steps.FEWEST == 10
    assert steps.fewest(0.05) == 8
    assert steps.find([0.0] * 5 + [1.0] * 5).steps == (5,)
    assert steps.find([0.0] * 4 + [1.0] * 5).steps == ()
