"""Lists that differ: maximal marginal relevance and what is measured beside accuracy, against plain loops.

python -m pytest tests/recommend/test_diversity.py
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.recommend import Options, choose_diverse
from ridgeline.recommend.data import Ratings, build_histories
from ridgeline.recommend.diversity import rerank
from ridgeline.recommend.evaluation import measure_lists


def draw_vectors(rng, count):
    vectors = rng.standard_normal((count, 4)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@settings(max_examples=30, deadline=None)
@given(count=st.integers(0, 12), k=st.integers(1, 15), weight=st.sampled_from([0.0, 0.3, 1.0]), seed=st.integers(0, 99))
def test_the_next_item_has_the_highest_marginal_relevance(count, k, weight, seed):
    rng = np.random.default_rng(seed)
    scores, vectors = rng.random(count).astype(np.float32), draw_vectors(rng, count)
    chosen: list[int] = []
    scaled = (scores - scores.min()) / np.ptp(scores) if count > 1 else np.ones(count)
    while len(chosen) < min(k, count):
        values = {
            i: (1 - weight) * scaled[i] - weight * max((float(vectors[i] @ vectors[j]) for j in chosen), default=0.0)
            for i in range(count)
            if i not in chosen
        }
        chosen.append(max(values, key=lambda i: (round(values[i], 5), -i)))
    got = choose_diverse(scores, vectors, k, weight).tolist()
    assert sorted(set(got)) == sorted(got)
    if weight < 1:  # with 1 alone the first one is any
        assert got == chosen


def test_reordered_scores_hide_nothing_and_show_nothing_hidden():
    rng = np.random.default_rng(0)
    scores, vectors = rng.standard_normal((3, 30)).astype(np.float32), draw_vectors(rng, 30)
    scores[:, 5] = -np.inf
    before = scores.copy()
    rerank(scores, vectors, 0.5, candidates=8)
    for old, new in zip(before, scores, strict=True):
        assert set(np.argsort(-new)[:8]) == set(np.argsort(-old)[:8])
        assert new.argmax() == old.argmax(), "the best one stays first"
        assert np.isneginf(new[5])
        assert np.argsort(-new).tolist() != np.argsort(-old).tolist()


def test_results_differ_more_and_the_first_stays(model):
    plain, diverse = model.recommend(3, Options(10)), model.recommend(3, Options(10, diversify=0.7))
    assert plain[0].item == diverse[0].item

    def likeness(found):
        rows = [model.find_item(a.item) for a in found]
        return float((model.hybrid.semantic.items[rows] @ model.hybrid.semantic.items[rows].T).mean())

    assert likeness(diverse) < likeness(plain)


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")])
def test_a_wrong_weight_is_an_error(weight):
    with pytest.raises(InputError, match="give 0"):
        Options(10, diversify=weight)


def test_novelty_diversity_and_popularity_bias_follow_their_definitions():
    rng = np.random.default_rng(1)
    users, items = np.nonzero(rng.random((20, 12)) < 0.4)
    history = build_histories(Ratings(users, items, np.ones(len(users), np.float32), np.zeros(len(users), int)), 20, 12)
    likes, vectors = np.bincount(items, minlength=12), draw_vectors(rng, 12)
    first = np.array([rng.permutation(12)[:5] for _ in range(20)])
    first[0, 3:] = -1
    got = measure_lists(first, history, likes, 20, vectors)
    for user in range(20):
        rows = [r for r in first[user].tolist() if r >= 0]
        own = items[users == user]
        assert got["novelty"][user] == pytest.approx(np.mean([-math.log2(max(likes[r], 1) / 20) for r in rows]))
        pairs = [1 - float(vectors[a] @ vectors[b]) for a in rows for b in rows if a != b]
        assert got["diversity"][user] == pytest.approx(np.mean(pairs), abs=1e-5)
        if len(own):
            assert got["popularity_bias"][user] == pytest.approx(likes[rows].mean() / likes[own].mean() - 1)
    assert "diversity" not in measure_lists(first, history, likes, 20, np.zeros((12, 0), np.float32))
