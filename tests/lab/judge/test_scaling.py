"""Laws of scaling: exact without noise, with intervals that cover, and careful beyond the data.

python -m pytest tests/lab/judge/test_scaling.py
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import curve_fit
from tests.draws import choose_draws

from ridgeline.errors import InputError
from ridgeline.lab.judge import draw_scaling, find_scalings, fit_scaling_law, t_quantile
from ridgeline.lab.judge.laws import SCALING_LAWS, _limit
from ridgeline.lab.judge.scaling import ScalingPoint, analyze_scaling

N = np.array([1.0, 2, 4, 8, 16, 32])


def compute_rates(law: str, *parameters: float, scale: float = 7.0, at: np.ndarray = N) -> np.ndarray:
    return scale * SCALING_LAWS[law].growth(at, np.array(parameters))


def test_each_law_follows_its_formula():
    """Amdahl: a tenth serial, ten workers: 1 / (0.1 + 0.9 / 10). Gustafson: 10 - 0.1 · 9. USL at n = 2."""
    ten, two = np.array([10.0]), np.array([2.0])
    assert compute_rates("amdahl", 0.1, scale=1, at=ten)[0] == pytest.approx(1 / (0.1 + 0.09))
    assert compute_rates("gustafson", 0.1, scale=1, at=ten)[0] == pytest.approx(9.1)
    assert compute_rates("usl", 0.1, 0.05, scale=1, at=two)[0] == pytest.approx(2 / (1 + 0.1 + 0.1))


@settings(max_examples=30, deadline=None)
@given(
    law=st.sampled_from(["amdahl", "gustafson", "usl"]),
    a=st.floats(0, 0.9),
    b=st.sampled_from([0.0, 1e-4, 3e-3, 0.05]),
    scale=st.floats(1e-6, 1e9),
)
def test_without_noise_every_parameter_is_recovered(law, a, b, scale):
    phi = (a, b) if law == "usl" else (a,)
    fit = fit_scaling_law(law, N, compute_rates(law, *phi, scale=scale))
    assert [v.value for v in fit.values.values()] == pytest.approx(phi, abs=2e-6)
    assert fit.one == pytest.approx(scale, rel=1e-6)
    assert fit.rate(100) == pytest.approx(compute_rates(law, *phi, scale=scale, at=np.array([100.0]))[0], rel=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_the_fit_is_that_of_scipy(seed):
    rng = np.random.default_rng(seed)
    measured = compute_rates("usl", 0.05, 0.002) * np.exp(rng.normal(0, 0.02, len(N)))

    def model(n, scale, contention, coherence):
        return scale + np.log(n / (1 + contention * (n - 1) + coherence * n * (n - 1)))

    expected, _ = curve_fit(model, N, np.log(measured), p0=(2, 0.01, 0.001), bounds=([-9, 0, 0], [9, 9, 9]), ftol=1e-12)
    fit = fit_scaling_law("usl", N, measured)
    assert [math.log(fit.one), *(v.value for v in fit.values.values())] == pytest.approx(list(expected), abs=1e-5)


@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 10, 11, 15, 40, 200])
def test_the_limit_of_the_squared_error_uses_students_t(freedom):
    assert _limit(2.0, freedom) == pytest.approx(2.0 * (1 + t_quantile(0.95, freedom) ** 2 / freedom))


@pytest.mark.parametrize(
    ("law", "phi", "races"),
    [
        ("amdahl", (0.03,), choose_draws(40, 80)),
        ("gustafson", (0.08,), choose_draws(40, 80)),
        ("usl", (0.04, 7e-4), choose_draws(20, 40)),
    ],
)
def test_intervals_cover_the_truth_as_stated(law, phi, races):
    """Stated: 95 %. 87.5 % of the intervals must cover, of the few for USL 82.5 %."""
    rng = np.random.default_rng(1)
    truth = compute_rates(law, *phi, at=np.array([64.0]))[0]
    hits = np.zeros(len(phi) + 1)
    widths = []
    for _ in range(races):
        fit = fit_scaling_law(law, N, compute_rates(law, *phi) * np.exp(rng.normal(0, 0.03, len(N))))
        prediction = fit.estimate_rate(64)
        inside = [v.low <= p <= v.high for v, p in zip(fit.values.values(), phi, strict=True)]
        hits += [*inside, prediction.low <= truth <= prediction.high]
        widths.append((prediction.high - prediction.low) / truth)
    assert hits.min() >= (0.825 if law == "usl" else 0.875) * races, hits
    assert np.median(widths) < 0.6, "an interval that covers everything is useless"


def test_strong_and_weak_efficiency_by_hand():
    strong = analyze_scaling([ScalingPoint(1, 10), ScalingPoint(2, 6), ScalingPoint(4, 4)])
    assert strong.kind == "strong"
    assert [s.speedup for s in strong.steps] == pytest.approx([1, 10 / 6, 2.5])
    assert [s.efficiency for s in strong.steps] == pytest.approx([1, 10 / 12, 0.625])
    weak = analyze_scaling([ScalingPoint(1, 10, 5), ScalingPoint(2, 11, 10), ScalingPoint(4, 12.5, 20)])
    assert weak.kind == "weak"
    assert [s.efficiency for s in weak.steps] == pytest.approx([1, 10 / 11, 0.8])
    assert set(strong.laws) == {"amdahl", "usl"}
    assert set(weak.laws) == {"gustafson", "usl"}


def test_the_baseline_is_the_smallest_n_and_a_note_says_so():
    result = analyze_scaling([ScalingPoint(8, 1), ScalingPoint(2, 3), ScalingPoint(4, 1.6)])
    assert [s.at.n for s in result.steps] == [2, 4, 8]
    assert result.steps[-1].efficiency == pytest.approx(0.75)
    assert any("n = 2" in note for note in result.notes)


def test_a_note_says_that_work_neither_stays_nor_grows():
    result = analyze_scaling(
        [ScalingPoint(1, 1, 10), ScalingPoint(2, 1, 13), ScalingPoint(4, 1, 15), ScalingPoint(8, 1, 30)]
    )
    assert result.kind == "mixed"
    assert set(result.laws) == {"usl"}
    assert any("neither" in note for note in result.notes)


def test_a_note_says_superlinear_and_no_law_fits_it():
    result = analyze_scaling([ScalingPoint(1, 10), ScalingPoint(2, 4), ScalingPoint(4, 1.8), ScalingPoint(8, 0.8)])
    assert any("superlinear" in note for note in result.notes)
    assert result.laws["amdahl"].fit.values["serial"].value == 0


def test_a_prediction_beyond_the_data_has_the_held_out_error():
    result = analyze_scaling(
        [ScalingPoint(n, 1 / r) for n, r in zip(N, compute_rates("usl", 0.02, 0.004), strict=True)]
    )
    inside, beyond = (result.predict("usl", n) for n in (16, 64))
    assert not inside.predicted
    assert beyond.predicted
    assert beyond.held_out == pytest.approx(0, abs=1e-6)
    wrong = result.predict("amdahl", 64)
    assert wrong.held_out > 0.2, "Amdahl has no coherence, and its held-out error shows that"
    without_last = fit_scaling_law("amdahl", N[:-1], compute_rates("usl", 0.02, 0.004)[:-1]).rate(32)
    assert wrong.held_out == pytest.approx(without_last / compute_rates("usl", 0.02, 0.004)[-1] - 1)
    assert wrong.rate.value > beyond.rate.value
    assert result.laws["usl"].fit.peak == pytest.approx(math.sqrt(0.98 / 0.004))


def test_too_few_points_give_a_fit_without_an_interval():
    result = analyze_scaling([ScalingPoint(1, 1), ScalingPoint(2, 0.55)])
    amdahl = result.laws["amdahl"]
    assert amdahl.fit.values["serial"].value == pytest.approx(0.1)
    assert (amdahl.fit.values["serial"].low, amdahl.fit.values["serial"].high) == (0, 1)
    assert amdahl.held_out is None
    assert any("untested" in doubt for doubt in amdahl.doubts)
    assert "usl" not in result.laws
    assert any("usl needs at least 3" in note for note in result.notes)
    assert result.predict("amdahl", 8).rate.high == math.inf
    json.dumps(result.to_json([8]), allow_nan=False)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [ScalingPoint(1, 1)],
        [ScalingPoint(2, 1), ScalingPoint(2, 1.1)],
        [ScalingPoint(1, 0), ScalingPoint(2, 1)],
        [ScalingPoint(0, 1), ScalingPoint(2, 1)],
        [ScalingPoint(1, math.nan), ScalingPoint(2, 1)],
        [ScalingPoint(1, 1, math.inf), ScalingPoint(2, 1)],
    ],
)
def test_impossible_points_are_an_error(points):
    with pytest.raises(InputError):
        analyze_scaling(points)


def test_an_unknown_law_and_an_impossible_point_are_errors():
    with pytest.raises(InputError, match="did you mean 'amdahl'"):
        fit_scaling_law("amdal", N, N)
    with pytest.raises(InputError, match="one rate belongs to each"):
        fit_scaling_law("amdahl", [1, 2], [1])
    result = analyze_scaling([ScalingPoint(1, 1), ScalingPoint(2, 0.6), ScalingPoint(4, 0.4)])
    with pytest.raises(InputError, match="not fitted"):
        result.predict("gustafson", 4)
    with pytest.raises(InputError, match="cannot be predicted"):
        result.predict("amdahl", 0)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 64), st.floats(1e-6, 1e6)), min_size=2, max_size=8))
def test_any_points_give_an_answer_or_an_error(points):
    """For any points: intervals contain their values, parameters stay within their bounds."""
    try:
        result = analyze_scaling([ScalingPoint(n, s) for n, s in points])
    except InputError:
        return
    for law in result.laws.values():
        for value in law.fit.values.values():
            assert 0 <= value.low <= value.value <= value.high
        prediction = law.fit.estimate_rate(128)
        assert prediction.low <= prediction.value * (1 + 1e-9)
        assert prediction.value <= prediction.high * (1 + 1e-9)


def test_records_that_differ_in_ranks_only_form_a_family(record):
    records = []
    for cpu, slow in (("one", 1.0), ("other", 3.0)):
        for ranks in (1, 2, 4, 8):
            time = slow * 1e6 * (0.1 + 0.9 / ranks)
            one = record({"ridgeline": [time] * 8}, case={"n": 5, "device": "cpu", "ranks": ranks})
            records.append(type(one)(**{**one.__dict__, "machine": {**one.machine, "fingerprint": cpu, "cpu": cpu}}))
    wrong = {"ridgeline": {"ok": False, "error": 1.0}}
    records.append(record({"ridgeline": [1.0] * 8}, checks=wrong, case={"n": 5, "device": "cpu", "ranks": 16}))
    families = find_scalings(records)
    assert [len(f.steps) for f in families] == [4, 4], "the wrong one has no time, and machines are not mixed"
    for family in families:
        assert family.laws["amdahl"].fit.values["serial"].value == pytest.approx(0.1)
    assert find_scalings(records, over="n") == [], "one size only"
    assert "speed-up" in draw_scaling(families[0], to=64)
    assert "PREDICTED" in draw_scaling(families[0], to=64)
    assert "PREDICTED" not in draw_scaling(families[0])


def test_weak_scaling_needs_the_name_of_the_size_that_grows(record):
    records = []
    for ranks in (1, 2, 4, 8, 16):
        items, rate = 100 * ranks, 5e4 * (0.1 + 0.9 * ranks)
        case = {"batch": items, "device": "cpu", "ranks": ranks}
        one = record({"ridgeline": [1e9 * items / rate] * 8}, case=case)
        records.append(type(one)(**{**one.__dict__, "work": {**one.work, "items": items}}))
    assert find_scalings(records) == [], "the batch differs too"
    (result,) = find_scalings(records, along="batch")
    assert result.kind == "weak"
    assert result.laws["gustafson"].fit.values["serial"].value == pytest.approx(0.1)
    assert result.steps[-1].efficiency == pytest.approx((0.1 + 0.9 * 16) / 16)
