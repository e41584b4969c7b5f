"""Laws with a known truth: recovered within their intervals as often as these say; NNLS against SciPy.

python -m pytest tests/lab/study/test_law.py
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ridgeline.lab.study.law import ONE, Datum, error, held_out, power_law, slowest_law, sum_law
from ridgeline.lab.study.nnls import nnls

A, B, C = 20e-6, 2e-15, 2e-11  # seconds, per FLOP, per byte
SUM = sum_law("sum", ["flops", "bytes"])
POWER = power_law("power", ["flops", "bytes"])


def points(rng, count, noise=0.03, a=A, b=B, c=C):
    made = []
    for _ in range(count):
        flops, moved = 10 ** rng.uniform(9, 12), 10 ** rng.uniform(5, 8)
        seconds = (a + b * flops + c * moved) * rng.lognormvariate(0, noise)
        made.append(Datum({"flops": flops, "bytes": moved}, seconds))
    return made


@settings(deadline=None)
@given(st.data())
def test_nnls_is_as_good_as_the_known_one(data):
    rows, width = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    numbers = st.integers(-20, 20).map(float)
    matrix, target = (
        data.draw(arrays(float, (rows, width), elements=numbers)),
        data.draw(arrays(float, rows, elements=numbers)),
    )
    found = nnls(matrix, target)
    assert (found >= 0).all()
    known = scipy.optimize.nnls(matrix, target)[1]
    assert np.linalg.norm(matrix @ found - target) == pytest.approx(known, rel=1e-7, abs=1e-7)


def test_nnls_minds_neither_sizes_nor_columns_of_zeros():
    matrix = np.array([[1.0, 1e12, 0.0], [1.0, 3e12, 0.0], [1.0, 9e12, 0.0]])
    assert nnls(matrix, matrix @ np.array([1e-5, 2e-15, 0.0])) == pytest.approx([1e-5, 2e-15, 0.0])


def test_without_noise_the_coefficients_are_the_true_ones():
    found = SUM(points(random.Random(0), 12, noise=0)).coefficients
    for term, truth in ((ONE, A), ("flops", B), ("bytes", C)):
        assert found[term].value == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize(("a", "c"), [(A, C), (0.0, C), (A, 0.0)], ids=["all", "no constant", "no bytes"])
def test_the_intervals_hold_the_true_costs_about_as_often_as_they_say(a, c):
    rng, held, predicted, trials = random.Random(1), dict.fromkeys((ONE, "flops", "bytes"), 0), 0, 150
    for _ in range(trials):
        law = SUM(points(rng, 14, a=a, c=c))
        for term, truth in ((ONE, a), ("flops", B), ("bytes", c)):
            e = law.coefficients[term]
            held[term] += e.low <= truth <= e.high
        (new,) = points(rng, 1, a=a, c=c)
        e = law.predict(new.amounts)
        predicted += e.low <= new.seconds <= e.high
    assert min(held.values()) / trials >= 0.9
    assert predicted / trials >= 0.9
    assert predicted < trials, "an interval that never misses says nothing"


def test_a_power_law_is_recovered_and_its_predictions_hold():
    rng, held, predicted, trials = random.Random(2), 0, 0, 150
    for _ in range(trials):
        made = [
            Datum(d.amounts, 1e-9 * d.amounts["flops"] ** 0.6 * d.amounts["bytes"] ** 0.2 * rng.lognormvariate(0, 0.05))
            for d in points(rng, 11)
        ]
        law = POWER(made[:-1])
        e = law.coefficients["flops"]
        held += e.low <= 0.6 <= e.high
        e = law.predict(made[-1].amounts)
        predicted += e.low <= made[-1].seconds <= e.high
    assert 0.9 <= held / trials < 1
    assert 0.9 <= predicted / trials < 1


def test_what_does_not_vary_cannot_be_told_from_the_constant():
    made = [Datum({**d.amounts, "bytes": 1e6}, A + B * d.amounts["flops"]) for d in points(random.Random(3), 8)]
    law = SUM(made)
    assert "bytes" not in law.coefficients
    assert law.predict({"flops": 1e10, "bytes": 1e6}).value == pytest.approx(A + B * 1e10, rel=1e-6)


@pytest.mark.parametrize("fit", [SUM, POWER])
def test_too_few_points_give_no_law(fit):
    assert fit([]) is None
    assert fit(points(random.Random(4), 4)) is None


def test_equal_points_give_no_power_and_a_constant_sum():
    same = [Datum({"flops": 1e9, "bytes": 1e6}, 1e-3)] * 6
    assert POWER(same) is None
    assert SUM(same).predict({"flops": 1e9, "bytes": 1e6}).value == pytest.approx(1e-3)


def test_held_out_points_are_not_seen_by_the_law_that_predicts_them():
    """One point far off: a law that had seen it would bend towards it; the others say what it should have been."""
    made = points(random.Random(5), 9, noise=0.0)
    off = [*made[:-1], Datum(made[-1].amounts, made[-1].seconds * 3)]
    ratios = held_out(SUM, off)
    assert min(ratios) == pytest.approx(1 / 3, rel=1e-3)
    assert error(held_out(SUM, made)) < 1e-6


def test_repeats_of_a_point_are_held_out_together():
    made = [Datum(d.amounts, d.seconds * s) for d in points(random.Random(6), 7, noise=0) for s in (1.0, 1.0)]
    off = [*made[:-2], *(Datum(d.amounts, d.seconds * 2) for d in made[-2:])]
    assert sum(abs(r - 0.5) < 1e-3 for r in held_out(SUM, off)) == 2


def test_the_slowest_stage_explains_an_overlapped_pipeline_and_a_sum_does_not():
    rng, made = random.Random(7), []
    for _ in range(30):
        flops, moved = 10 ** rng.uniform(9, 12), 10 ** rng.uniform(6, 9)
        stages = {"up": 1e-5 + 2e-11 * moved, "run": 2e-5 + 2e-15 * flops}
        noisy = {k: v * rng.lognormvariate(0, 0.02) for k, v in stages.items()}
        made.append(Datum({"flops": flops, "bytes": moved}, 1.05 * max(noisy.values()), noisy))
    fit = slowest_law("slowest", {"up": [sum_law("", ["bytes"])], "run": [sum_law("", ["flops"])]})
    assert error(held_out(fit, made)) < 0.04 < error(held_out(SUM, made))
    assert math.isnan(fit(made).predict({"bytes": 1e6}).value), "the stage that is not known may be the slowest"
    factor = fit(made).coefficients["× slowest stage"]
    assert factor.low <= 1.05 <= factor.high


def test_odd_amounts_are_no_error():
    made = points(random.Random(8), 8)
    law = SUM(made)
    assert math.isnan(law.predict({}).value)
    assert math.isnan(POWER(made).predict({"flops": 0.0, "bytes": 1.0}).value)
