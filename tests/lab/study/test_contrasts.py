"""Paired tests, their correction, trends: exact where stated, and without false alarms.

python -m pytest tests/lab/study/test_contrasts.py
"""

from __future__ import annotations

import itertools
import math
import random
import statistics

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.study.sample_rows import row, two_nodes

from ridgeline.lab.study import Columns, study, tabulate
from ridgeline.lab.study.contrasts import (
    _kendall_variance,
    compare_factors,
    compare_pairs,
    correct_holm,
    fit_trend,
    judge_contrasts,
    pair_trials,
    sign_test,
)
from ridgeline.lab.study.placement import compare_distances

FACTORS = {
    "dtype": ("float16", "float32"),
    "compile_mode": ("", "default"),
    "numa_node": (0, 1),
    "pinned": (False, True),
}


def factorial(rng, *, noise, batches=(8, 16, 32, 64), slow=None):
    """Return every combination of the factors; `slow` is {(factor, level): factor of time}."""
    rows = []
    for batch, *levels in itertools.product(batches, *FACTORS.values()):
        setting = dict(zip(FACTORS, levels, strict=True))
        seconds = 1e-4 * batch * math.prod((slow or {}).get(pair, 1.0) for pair in setting.items())
        distance = 10 + 11 * setting["numa_node"]
        rows.append(row(rng, seconds, noise=noise, samples=0, batch_size=batch, distance=distance, **setting))
    return rows


def judge_rows(rows):
    table = tabulate(rows, Columns())
    return {
        (f.contrast.factor, f.contrast.other): f
        for f in judge_contrasts([*compare_distances(table), *compare_factors(table)])
    }


@settings(deadline=None)
@given(st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=12))
def test_the_sign_test_is_the_binomial_test(signs):
    values = [1.0 + 0.1 * s for s in signs]
    unequal = [s for s in signs if s]
    known = scipy.stats.binomtest(sum(s > 0 for s in unequal), len(unequal)).pvalue if unequal else 1.0
    assert sign_test(values, [1.0] * len(signs)) == pytest.approx(known)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), max_size=8))
def test_holms_correction_follows_its_definition(ps):
    """Corrected below α exactly if the step-down procedure at level α rejects it."""
    corrected = correct_holm(ps)
    for alpha in (0.01, 0.05, 0.2):
        rejected: set[int] = set()
        for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
            if ps[i] * (len(ps) - rank) >= alpha:
                break
            rejected.add(i)
        assert {i for i, p in enumerate(corrected) if p < alpha} == rejected
    assert all(c >= p for c, p in zip(corrected, ps, strict=True))


def test_factors_without_effect_give_no_findings():
    """The noise is far beyond the margin, so only the correction prevents false findings."""
    rng, alarms, studies = random.Random(1), 0, 150
    for _ in range(studies):
        results = judge_rows(factorial(rng, noise=0.3))
        alarms += any(f.word in ("SLOWER", "FASTER") for f in results.values())
    assert alarms / studies <= 0.08


def test_true_effects_are_detected_and_other_factors_are_not():
    slow = {("dtype", "float32"): 2.0, ("compile_mode", "default"): 0.8, ("numa_node", 1): 1.15}
    results = judge_rows(factorial(random.Random(2), noise=0.02, slow=slow))
    assert results["dtype", "float32"].word == "SLOWER"
    assert results["compile_mode", "default"].word == "FASTER"
    assert results["node distance", 21].word == "SLOWER"
    assert results["pinned", True].word in ("SAME", "UNCLEAR")
    assert results["node distance", 21].contrast.ratio.value == pytest.approx(1.15, rel=0.02)
    section = next(
        s for s in study(factorial(random.Random(2), noise=0.02, slow=slow)).sections if "distinguished" in s.title
    )
    assert "dtype float32 against float16" in " ".join(section.sentences)


def test_equal_levels_are_the_same():
    results = judge_rows(factorial(random.Random(3), noise=0.001))
    assert {f.word for (factor, _), f in results.items() if factor != "batch_size"} == {"SAME"}


def test_too_few_pairs_give_no_verdict_and_a_note():
    rows = two_nodes(random.Random(4), {"a": 3.0}, batches=(8,))
    (one,) = judge_rows(rows).values()
    assert (one.word, one.corrected, one.contrast.ratio.n) == ("too few pairs", None, 2)
    assert "too few pairs" in study(rows).markdown


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_pairs_differ_in_the_factor_only_and_share_no_run(data):
    row_strategy = st.fixed_dictionaries(
        {"model": st.sampled_from("ab"), "dtype": st.sampled_from("xy"), "ring": st.integers(1, 2)}
    )
    rows = data.draw(st.lists(row_strategy, max_size=12))
    table = tabulate([{**r, "batch_seconds": 1.0 + i} for i, r in enumerate(rows)], Columns())
    sides = [[t for t in table.trials if t.level("dtype") == level] for level in "xy"]
    paired = pair_trials(*sides, Columns().identity, ("dtype",))
    used = [id(t) for pair in paired for t in pair]
    assert len(used) == len(set(used))
    for a, b in paired:
        assert (a.level("dtype"), b.level("dtype")) == ("x", "y")
        assert all(a.level(n) == b.level(n) for n in ("model", "ring"))
    possible = sum(
        min(*(sum((t.level("model"), t.level("ring")) == kind for t in side) for side in sides))
        for kind in itertools.product("ab", (1, 2))
    )
    assert len(paired) == possible


def test_runs_of_one_round_are_paired_even_if_others_failed():
    rows = [{"dtype": d, "repeat": r, "batch_seconds": 1.0 + r} for d, rounds in (("x", (1, 2, 3)), ("y", (3, 2, 4)))
            for r in rounds]  # fmt: skip
    table = tabulate(rows, Columns())
    paired = pair_trials(table.trials[:3], table.trials[3:], Columns().identity, ("dtype",))
    assert [(a.level("repeat"), b.level("repeat")) for a, b in paired] == [(3, 3), (2, 2), (1, 4)]


def test_the_interval_of_one_pair_covers_the_noise_within_its_runs():
    rng, covered, trials = random.Random(5), 0, 200
    for _ in range(trials):
        table = tabulate(
            [row(rng, s, within=0.05, samples=50, numa_node=n) for n, s in ((0, 1e-3), (1, 1.3e-3))], Columns()
        )
        result = compare_pairs([(table.trials[0], table.trials[1])], "n", 0, 1)
        covered += result.ratio.low <= 1.3 <= result.ratio.high
    assert covered / trials >= 0.93


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=6, max_size=30))
def test_a_trend_is_kendalls_score_and_the_median_of_slopes(points):
    xs, ys = [float(x) for x, _ in points], [float(y) for _, y in points]
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        assert fit_trend(xs, ys).p is None
        return
    result = fit_trend(xs, ys)
    known = scipy.stats.kendalltau(xs, ys, method="asymptotic")
    score = sum(
        ((x > u) - (x < u)) * ((y > v) - (y < v))
        for (x, y), (u, v) in itertools.combinations(zip(xs, ys, strict=True), 2)
    )
    z = score / math.sqrt(_kendall_variance(np.array(xs), np.array(ys)))
    assert 2 * scipy.stats.norm.sf(abs(z)) == pytest.approx(known.pvalue, rel=1e-6, abs=1e-12)
    corrected = max(abs(score) - 1, 0) / abs(score) * abs(z) if score else 0.0
    assert result.p == pytest.approx(2 * scipy.stats.norm.sf(corrected)), "with a continuity correction"
    slopes = [(y - v) / (x - u) for (x, y), (u, v) in itertools.combinations(points, 2) if x != u]
    assert result.slope == pytest.approx(statistics.median(slopes))
