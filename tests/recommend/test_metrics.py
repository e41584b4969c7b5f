"""The metrics against a plain loop, written from their definitions.

python -m pytest tests/recommend/test_metrics.py
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.recommend.data import Ratings
from ridgeline.recommend.histories import histories_of
from ridgeline.recommend.metrics import best, checked_metrics, interval, measured

NAMES = ["recall@1", "recall@3", "ndcg@2", "ndcg@10", "mrr"]


def obvious(scores: list[float], wanted: set[int]) -> dict[str, float]:
    ranking = sorted((i for i in range(len(scores)) if scores[i] != -math.inf), key=lambda i: (-scores[i], i))
    found = {}
    for name in NAMES[:-1]:
        kind, k = name.split("@")
        first = ranking[: int(k)]
        if kind == "recall":
            found[name] = sum(i in wanted for i in first) / len(wanted)
        else:
            gain = sum(1 / math.log2(place + 2) for place, i in enumerate(first) if i in wanted)
            found[name] = gain / sum(1 / math.log2(place + 2) for place in range(min(int(k), len(wanted))))
    found["mrr"] = 1 / next(place + 1 for place, i in enumerate(ranking) if i in wanted)
    return found


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(1, 6))
def test_every_metric_is_what_its_definition_says(seed, items, users):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 4, (users, items)).astype(np.float32)  # few values: many ties
    wanted = [rng.choice(items, rng.integers(1, items), replace=False) for _ in range(users)]
    for row, own in enumerate(wanted):
        rest = np.setdiff1d(np.arange(items), own)
        scores[row, rest[: len(rest) // 2]] = -np.inf
    who = np.repeat(np.arange(users), [len(w) for w in wanted])
    what = np.concatenate(wanted).astype(np.int64)
    test = histories_of(Ratings(who, what, np.ones(len(what), np.float32), np.zeros(len(what), np.int64)), users, items)
    found, _ = measured(scores, test, NAMES)
    for row, own in enumerate(wanted):
        for name, value in obvious(scores[row].tolist(), set(own.tolist())).items():
            assert found[name][row] == pytest.approx(value), name


def test_the_best_are_those_of_a_full_sort_and_masked_ones_never_come():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 3, (40, 50)).astype(np.float32)
    for k in (1, 7, 50, 99):
        assert (best(scores, k) == np.argsort(-scores, axis=1, kind="stable")[:, :k]).all()
    scores[:, 5:] = -np.inf
    assert (best(scores, 8)[:, 5:] == -1).all()
    assert set(best(scores, 8)[:, :5].ravel()) == {0, 1, 2, 3, 4}


def test_the_interval_holds_the_mean_and_narrows_with_more_users():
    values = np.random.default_rng(0).random(4_000)
    narrow, wide = interval(values), interval(values[:100])
    assert narrow[0] < values.mean() < narrow[1]
    assert narrow[1] - narrow[0] < (wide[1] - wide[0]) / 3
    assert interval(values) == narrow


@pytest.mark.parametrize("words", ["recall", "ndcg@0", "precision@3", "recall@x", " , "])
def test_a_metric_that_is_not_there_is_refused(words):
    with pytest.raises(InputError, match="metric"):
        checked_metrics(words)
    assert checked_metrics("NDCG@10, mrr,ndcg@10") == ["ndcg@10", "mrr"]
