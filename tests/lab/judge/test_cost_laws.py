"""Cost laws with a known truth: recovered within their intervals as often as these state.

python -m pytest tests/lab/judge/test_cost_laws.py
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ridgeline.lab.judge.laws import (
    ONE,
    Observation,
    cross_validate,
    least_squares_above_zero,
    mean_error,
    power_law,
    slowest_stage_law,
    sum_law,
)

A, B, C = 20e-6, 2e-15, 2e-11  # seconds, per FLOP, per byte
SUM = sum_law("sum", ["flops", "bytes"])
POWER = power_law("power", ["flops", "bytes"])


def make_points(rng, count, noise=0.03, a=A, b=B, c=C):
    observations = []
    for _ in range(count):
        flops, moved = 10 ** rng.uniform(9, 12), 10 ** rng.uniform(5, 8)
        seconds = (a + b * flops + c * moved) * rng.lognormvariate(0, noise)
        observations.append(Observation({"flops": flops, "bytes": moved}, seconds))
    return observations


@settings(deadline=None)
@given(st.data())
def test_coefficients_above_zero_meet_the_conditions_of_an_optimum(data):
    """Karush, Kuhn and Tucker: the gradient is zero where a coefficient is positive, and not positive elsewhere."""
    rows, width = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    numbers = st.integers(-20, 20).map(float)
    matrix, target = (
        data.draw(arrays(float, (rows, width), elements=numbers)),
        data.draw(arrays(float, rows, elements=numbers)),
    )
    values = least_squares_above_zero(matrix, target)
    assert (values >= 0).all()
    gradient = matrix.T @ (target - matrix @ values)
    scale = max(1.0, float(np.abs(matrix).max(initial=0.0)) * float(np.abs(target).max(initial=0.0)))
    assert (gradient <= 1e-7 * scale).all()
    assert gradient[values > 0] == pytest.approx(0, abs=1e-7 * scale)


def test_neither_the_size_of_a_column_nor_a_column_of_zeros_matters():
    matrix = np.array([[1.0, 1e12, 0.0], [1.0, 3e12, 0.0], [1.0, 9e12, 0.0]])
    assert least_squares_above_zero(matrix, matrix @ np.array([1e-5, 2e-15, 0.0])) == pytest.approx([1e-5, 2e-15, 0.0])


def test_without_noise_the_coefficients_are_the_true_ones():
    coefficients = SUM(make_points(random.Random(0), 12, noise=0)).coefficients
    for term, truth in ((ONE, A), ("flops", B), ("bytes", C)):
        assert coefficients[term].value == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize(("a", "c"), [(A, C), (0.0, C), (A, 0.0)], ids=["all", "no constant", "no bytes"])
def test_the_intervals_cover_the_true_costs_about_as_often_as_stated(a, c):
    rng, covered, predicted, trials = random.Random(1), dict.fromkeys((ONE, "flops", "bytes"), 0), 0, 150
    for _ in range(trials):
        law = SUM(make_points(rng, 14, a=a, c=c))
        for term, truth in ((ONE, a), ("flops", B), ("bytes", c)):
            e = law.coefficients[term]
            covered[term] += e.low <= truth <= e.high
        (new,) = make_points(rng, 1, a=a, c=c)
        e = law.predict(new.amounts)
        predicted += e.low <= new.seconds <= e.high
    assert min(covered.values()) / trials >= 0.9
    assert predicted / trials >= 0.9
    assert predicted < trials, "an interval that never misses says nothing"


def test_a_power_law_is_recovered_and_its_predictions_hold():
    rng, covered, predicted, trials = random.Random(2), 0, 0, 150
    for _ in range(trials):
        data = [
            Observation(
                d.amounts, 1e-9 * d.amounts["flops"] ** 0.6 * d.amounts["bytes"] ** 0.2 * rng.lognormvariate(0, 0.05)
            )
            for d in make_points(rng, 11)
        ]
        law = POWER(data[:-1])
        e = law.coefficients["flops"]
        covered += e.low <= 0.6 <= e.high
        e = law.predict(data[-1].amounts)
        predicted += e.low <= data[-1].seconds <= e.high
    assert 0.9 <= covered / trials < 1
    assert 0.9 <= predicted / trials < 1


def test_an_amount_that_does_not_vary_becomes_part_of_the_constant():
    data = [
        Observation({**d.amounts, "bytes": 1e6}, A + B * d.amounts["flops"]) for d in make_points(random.Random(3), 8)
    ]
    law = SUM(data)
    assert "bytes" not in law.coefficients
    assert law.predict({"flops": 1e10, "bytes": 1e6}).value == pytest.approx(A + B * 1e10, rel=1e-6)


@pytest.mark.parametrize("fit", [SUM, POWER])
def test_too_few_points_give_no_law(fit):
    assert fit([]) is None
    assert fit(make_points(random.Random(4), 4)) is None


def test_equal_points_give_no_power_and_a_constant_sum():
    same = [Observation({"flops": 1e9, "bytes": 1e6}, 1e-3)] * 6
    assert POWER(same) is None
    assert SUM(same).predict({"flops": 1e9, "bytes": 1e6}).value == pytest.approx(1e-3)


def test_held_out_points_are_not_seen_by_the_law_that_predicts_them():
    """One point is far off: a law fitted with it would follow it; a law of the others predicts its true value."""
    data = make_points(random.Random(5), 9, noise=0.0)
    off = [*data[:-1], Observation(data[-1].amounts, data[-1].seconds * 3)]
    ratios = cross_validate(SUM, off)
    assert min(ratios) == pytest.approx(1 / 3, rel=1e-3)
    assert mean_error(cross_validate(SUM, data)) < 1e-6


def test_repeats_of_a_point_are_held_out_together():
    data = [
        Observation(d.amounts, d.seconds * s) for d in make_points(random.Random(6), 7, noise=0) for s in (1.0, 1.0)
    ]
    off = [*data[:-2], *(Observation(d.amounts, d.seconds * 2) for d in data[-2:])]
    assert sum(abs(r - 0.5) < 1e-3 for r in cross_validate(SUM, off)) == 2


def test_the_slowest_stage_explains_an_overlapped_pipeline_and_a_sum_does_not():
    rng, data = random.Random(7), []
    for _ in range(30):
        flops, moved = 10 ** rng.uniform(9, 12), 10 ** rng.uniform(6, 9)
        stages = {"up": 1e-5 + 2e-11 * moved, "run": 2e-5 + 2e-15 * flops}
        noisy = {k: v * rng.lognormvariate(0, 0.02) for k, v in stages.items()}
        data.append(Observation({"flops": flops, "bytes": moved}, 1.05 * max(noisy.values()), noisy))
    fit = slowest_stage_law("slowest", {"up": [sum_law("", ["bytes"])], "run": [sum_law("", ["flops"])]})
    assert mean_error(cross_validate(fit, data)) < 0.04 < mean_error(cross_validate(SUM, data))
    assert math.isnan(fit(data).predict({"bytes": 1e6}).value), "the unknown stage may be the slowest"
    factor = fit(data).coefficients["× slowest stage"]
    assert factor.low <= 1.05 <= factor.high


def test_missing_and_zero_amounts_give_nan_not_an_error():
    data = make_points(random.Random(8), 8)
    law = SUM(data)
    assert math.isnan(law.predict({}).value)
    assert math.isnan(POWER(data).predict({"flops": 0.0, "bytes": 1.0}).value)
