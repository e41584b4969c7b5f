"""Ranking many users on a device, in blocks: equal to a full sort without seen items.

python -m pytest tests/recommend/test_ranking.py
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ridgeline.errors import InputError
from ridgeline.recommend import ranking
from ridgeline.recommend.data import Ratings, build_histories
from ridgeline.recommend.models.content import Semantic

USERS, ITEMS = 23, 31


@pytest.fixture
def seen():
    users, items = np.nonzero(np.random.default_rng(1).random((USERS, ITEMS)) < 0.3)
    nothing = np.zeros(len(users))
    return build_histories(Ratings(users, items, nothing.astype(np.float32), nothing.astype(int)), USERS, ITEMS)


def full_sort(scores, seen, k):
    scores = scores.copy()
    scores[seen.users, seen.items] = -np.inf
    order = np.argsort(-scores, axis=1)[:, :k]
    best = np.take_along_axis(scores, order, axis=1)
    return np.where(np.isneginf(best), -1, order), best


@pytest.mark.parametrize("k", [1, 5, 40])
def test_both_rankers_equal_a_full_sort(seen, k, monkeypatch):
    monkeypatch.setitem(ranking.USER_BLOCKS, "cpu", 7)
    rng = np.random.default_rng(0)
    users, items = (rng.normal(size=(n, 6)).astype(np.float32) for n in (USERS, ITEMS))
    rows, scores = ranking.rank_vectors(users, items, seen, k)
    want, best = full_sort(users.astype(float) @ items.T.astype(float), seen, k)
    assert (rows == want).all()
    assert np.allclose(scores, best, atol=1e-5)
    item_rows = np.arange(0, ITEMS, 2)
    weights = rng.normal(size=(len(item_rows), len(item_rows))).astype(np.float32)
    rows, scores = ranking.rank_ease(seen, item_rows, weights, seen, k)
    full = np.zeros((USERS, ITEMS))
    full[:, item_rows] = seen.matrix()[:, item_rows] @ weights.astype(float)
    want, best = full_sort(full, seen, k)
    assert np.allclose(scores, best, atol=1e-5)
    assert (rows >= 0).sum() == (want >= 0).sum()


@pytest.mark.parametrize("k", [1, 5, 31, 40])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_small_batch_on_a_cpu_equals_a_large_one(seen, k, count, monkeypatch):
    some = seen.select(np.arange(count))
    rng = np.random.default_rng(3)
    ranker = ranking.VectorRanker(Semantic(rng.normal(size=(ITEMS, 6)).astype(np.float32)).items)
    small_batch = ranker.embed_users(some)
    rows, scores = ranker.top_items(small_batch, some, k)
    monkeypatch.setattr(ranking, "SMALL_BATCH_USERS", 0)
    many = ranker.embed_users(some)
    assert isinstance(small_batch, np.ndarray)
    assert np.allclose(small_batch, many, atol=1e-6)
    want, best = ranker.top_items(many, some, k)
    assert rows.dtype == want.dtype
    assert scores.dtype == best.dtype == np.float32
    assert np.array_equal(rows, want)
    assert np.allclose(scores, best, atol=1e-6)


def test_a_user_who_has_seen_all_items_gets_no_items():
    users, items = np.nonzero(np.ones((2, 4)))
    nothing = np.zeros(len(users))
    seen = build_histories(Ratings(users, items, nothing.astype(np.float32), nothing.astype(int)), 2, 4)
    rows, _ = ranking.rank_vectors(np.ones((2, 3), np.float32), np.ones((4, 3), np.float32), seen, 3)
    assert (rows == -1).all()


def test_wrong_arguments_are_errors(seen):
    with pytest.raises(InputError, match="23 histories of seen items for 2 users"):
        ranking.rank_vectors(np.ones((2, 3), np.float32), np.ones((ITEMS, 3), np.float32), seen, 3)
    with pytest.raises(InputError, match="k is 0"):
        ranking.rank_vectors(np.ones((USERS, 3), np.float32), np.ones((ITEMS, 3), np.float32), seen, 0)


def test_memory_mapped_models_give_no_warning(seen):
    rng = np.random.default_rng(0)
    users, items = (rng.normal(size=(n, 6)).astype(np.float32) for n in (USERS, ITEMS))
    known = ranking.rank_vectors(users, items, seen, 5)
    items.flags.writeable = False
    torch.set_warn_always(True)  # else torch speaks of it once
    try:
        top = ranking.rank_vectors(users, items, seen, 5)
    finally:
        torch.set_warn_always(False)
    assert all(np.array_equal(a, b) for a, b in zip(known, top, strict=True))


@pytest.mark.gpu
def test_a_gpu_ranks_as_a_cpu_does(seen):
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    rng = np.random.default_rng(0)
    users, items = (rng.normal(size=(n, 6)).astype(np.float32) for n in (USERS, ITEMS))
    on_gpu, on_cpu = (ranking.rank_vectors(users, items, seen, 5, device) for device in ("cuda", "cpu"))
    assert np.allclose(on_gpu[1], on_cpu[1], atol=0.05)
    item_rows, weights = np.arange(ITEMS), rng.normal(size=(ITEMS, ITEMS)).astype(np.float32)
    on_gpu, on_cpu = (ranking.rank_ease(seen, item_rows, weights, seen, 5, device) for device in ("cuda", "cpu"))
    assert np.allclose(on_gpu[1], on_cpu[1], atol=1e-4)


@given(
    likes=arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 12)), elements=st.booleans()),
    k=st.integers(1, 14),
    small_users=st.sampled_from([0, 4]),
    seed=st.integers(0, 99),
)
@settings(max_examples=90, deadline=None)
def test_a_gpu_ranks_as_a_full_sort_in_float64(likes, k, small_users, seed):
    """The GPU's steps on this device: weights and sums on the device (a small batch on the host), float16 finds,
    float32 decides, rows added up."""
    rng = np.random.default_rng(seed)
    users, items = np.nonzero(likes)
    stars, times = rng.integers(1, 6, len(users)).astype(np.float32), rng.integers(0, 99, len(users))
    seen = build_histories(Ratings(users, items, stars, times), *likes.shape)
    model = Semantic(rng.normal(size=(likes.shape[1], 6)).astype(np.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "SMALL_HISTORY", 0)
        patch.setattr(ranking, "SMALL_BATCH_USERS", small_users)
        patch.setitem(ranking.USER_BLOCKS, "cpu", 4)
        ranker = ranking.VectorRanker(model.items, dtype=torch.float16)
        vectors = ranker.embed_users(seen)
        rows, scores = ranker.top_items(vectors, seen, k)
        assert isinstance(vectors, np.ndarray) == (len(seen) <= small_users)
        assert np.allclose(np.asarray(vectors), model.embed_users(seen), atol=1e-5)
        same(rows, scores, model.embed_users(seen).astype(float) @ model.items.T.astype(float), seen, k)
        item_rows = np.flatnonzero(rng.random(likes.shape[1]) < 0.7)
        weights = rng.normal(size=(len(item_rows), len(item_rows))).astype(np.float32)
        rows, scores = ranking.EaseRanker(item_rows, weights).top_items(seen, seen, k, sparse=False)
        full = np.zeros(likes.shape)
        full[:, item_rows] = seen.matrix()[:, item_rows] @ weights.astype(float)
        same(rows, scores, full, seen, k)


@pytest.mark.parametrize("small_users", [0, 10_000])
def test_a_user_vector_does_not_depend_on_other_users(small_users, monkeypatch):
    """By the weights made on the device, and by those of the host."""
    monkeypatch.setattr(ranking, "SMALL_HISTORY", small_users)
    monkeypatch.setattr(ranking, "SMALL_BATCH_USERS", 0)
    stars = np.array([2.0, 1.0, 10.0, 4.0, 5.0, 0.5], np.float32)
    users, items = np.array([0, 0, 2, 2, 3, 3]), np.array([0, 1, 2, 3, 4, 5])  # no user has fewer likes than user 1
    liked = build_histories(Ratings(users, items, stars, np.arange(6)), 5, 6)
    ranker = ranking.VectorRanker(Semantic(np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)).items)
    together = np.asarray(ranker.embed_users(liked))
    alone = np.concatenate([np.asarray(ranker.embed_users(liked.select(np.array([user])))) for user in range(5)])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert not together[[1, 4]].any()


def same(rows, scores, truth, seen, k):
    want, best = full_sort(truth, seen, min(k, seen.width))
    assert np.allclose(scores, best, atol=1e-5)
    assert ((rows >= 0) == (want >= 0)).all()
    present = rows >= 0
    true_scores = np.take_along_axis(truth, np.maximum(rows, 0), axis=1)
    assert np.allclose(true_scores[present], scores[present], atol=1e-5)
    assert all(len(set(row[row >= 0])) == (row >= 0).sum() for row in rows)
