"""Drift and steps of a known size are detected; steady runs give no alarm; tails are exact.

python -m pytest tests/lab/study/test_stability.py
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.study.sample_rows import row

from ridgeline.lab.study import Columns, study, tabulate
from ridgeline.lab.study.stability import CALM, find_step, judge_stability


def run(rng, shape=lambda share: 1.0, *, n=240, noise=0.03, **changes):
    """Return a run whose time per batch follows `shape` of the share that has passed."""
    samples = [1e-3 * shape(i / n) * rng.lognormvariate(0, noise) for i in range(n)]
    return {**row(rng, samples=0, **changes), "samples": samples, "batch_seconds": float(np.median(samples))}


def judge_rows(rows):
    return judge_stability(tabulate(rows, Columns()))


def test_steady_runs_are_called_so_with_few_false_alarms():
    rng, alarms, studies = random.Random(1), 0, 60
    for _ in range(studies):
        # The noise is so large that the margin alone would not prevent alarms.
        alarms += any(p.word not in CALM for p in judge_rows([run(rng, noise=0.5, n=48) for _ in range(12)]))
    assert alarms / studies <= 0.1


@pytest.mark.parametrize("change", [1.1, 0.9])
def test_a_drift_is_found_with_its_size(change):
    rows = [run(random.Random(i), lambda share: change**share) for i in range(5)]
    for p in judge_rows([*rows, *(run(random.Random(9)) for _ in range(5))])[:5]:
        assert p.change == pytest.approx(change, abs=0.03)
        assert p.word == ("drifts" if change > 1 else "speeds up")


def test_a_step_is_found_where_it_is_and_called_throttling():
    p = judge_rows([run(random.Random(2), lambda share: 1.2 if share > 0.6 else 1.0)])[0]
    assert (p.kind, p.word) == ("step", "steps down, as under throttling")
    assert p.at == pytest.approx(0.6 * 240, abs=12)
    assert p.change == pytest.approx(1.2, abs=0.03)
    result = study([run(random.Random(2), lambda share: 1.2 if share > 0.6 else 1.0)])
    assert "steps down, as under throttling" in result.markdown
    assert any("longer, on an idle machine" in point["what"] for point in result.recommendation["next"])


def test_pettitts_test_splits_a_step_at_the_right_place_with_few_false_alarms():
    rng = np.random.default_rng(3)
    at, p = find_step(np.concatenate([rng.normal(0, 1, 14), rng.normal(6, 1, 10)]))
    assert at == 14
    assert p < 0.01
    alarms = sum(find_step(rng.normal(size=24))[1] < 0.05 for _ in range(400))
    assert alarms / 400 <= 0.06


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32))
def test_pettitts_score_is_a_count_of_pairs(seed):
    levels = np.random.default_rng(seed).normal(size=20)
    at, p = find_step(levels)
    levels = levels.tolist()
    scores = [sum((a > b) - (a < b) for a in levels[:k] for b in levels[k:]) for k in range(1, 20)]
    assert abs(scores[at - 1]) == max(map(abs, scores))
    assert p == pytest.approx(min(1.0, 2 * np.exp(-6 * max(map(abs, scores)) ** 2 / (20**3 + 20**2))))


def test_percentiles_are_given_only_where_samples_lie_beyond_them():
    rng = random.Random(4)
    long, short = judge_rows([run(rng, n=400, noise=0.2), run(rng, n=60)])
    values = np.array(long.trial.samples)
    assert long.tail.p99 == pytest.approx(np.quantile(values, 0.99) / np.median(values))
    assert long.tail.worst == pytest.approx(values.max() / np.median(values))
    assert short.tail.p95 is not None
    assert short.tail.p99 is None


def test_the_section_says_that_there_are_too_few_samples():
    assert judge_rows([run(random.Random(5), n=10)])[0].word == "too few samples"
    assert "fewer than 30 samples" in study([run(random.Random(5), n=10)]).markdown
    assert "No row has the samples" in study([{"batch_seconds": 1.0}]).markdown


def test_a_change_that_noise_may_explain_is_unclear():
    words = {p.word for p in judge_rows([run(random.Random(i), noise=0.5, n=48) for i in range(12)])}
    assert words <= {"steady", "unclear"}
    assert "unclear" in words
    assert judge_rows([run(random.Random(7), noise=0.01)])[0].word == "steady"


def test_equal_samples_are_steady():
    steady = row(random.Random(6), samples=0) | {"samples": [1e-3] * 100}
    assert judge_rows([steady])[0].word == "steady"
