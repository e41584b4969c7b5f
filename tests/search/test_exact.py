"""Flat is exact over any stored values.

python -m pytest tests/search/test_exact.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.search.reference import assert_exact, nearest

from ridgeline import Index

METRICS = ("cosine", "ip", "l2")


def make_clusters(rows: int, dim: int, seed: int = 0, centres: int = 20) -> np.ndarray:
    r = np.random.default_rng(seed)
    middle = np.random.default_rng(99).standard_normal((centres, dim))
    return (middle[r.integers(0, centres, rows)] + 0.5 * r.standard_normal((rows, dim))).astype(np.float32)


def flat(vectors, metric: str, **more) -> Index:
    index = Index("Flat", metric=metric, device="cpu", **more)
    index.add(vectors)
    return index


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("rows", "dim", "queries", "k"), [(1, 1, 1, 1), (17, 3, 5, 4), (3001, 33, 7, 10), (999, 64, 70, 100)]
)
def test_flat_returns_the_true_neighbours(metric: str, rows: int, dim: int, queries: int, k: int):
    vectors, query_vectors = make_clusters(rows, dim), make_clusters(queries, dim, 1)
    index = flat(vectors, metric)
    assert_exact(index.search(query_vectors, k), query_vectors, index.reconstruct(np.arange(rows)), k, metric)


@pytest.mark.parametrize("metric", METRICS)
def test_float16_is_exact_over_the_values_it_stores(metric: str):
    vectors, query_vectors = make_clusters(2000, 24), make_clusters(9, 24, 1)
    index = flat(vectors, metric, dtype="float16")
    stored = index.reconstruct(np.arange(2000))
    assert np.array_equal(stored, stored.astype(np.float16))
    scale = np.linalg.norm(query_vectors, axis=1, keepdims=True) if metric == "cosine" else 1
    answer = index.search(query_vectors, 10)
    assert_exact(answer, query_vectors / scale, stored, 10, "ip" if metric == "cosine" else metric)


# A few values, repeated and of very different size: ties, zeros, cancellation, underflow, overflow of float32.
VALUES = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e-3, 1e3, 1e-20, 1e-38, 3e18, -3e18, 1e38])


@st.composite
def hostile(draw):
    dim = draw(st.integers(1, 9))
    row = st.lists(VALUES, min_size=dim, max_size=dim)
    vectors = np.array(draw(st.lists(row, max_size=40)), np.float32).reshape(-1, dim)
    queries = np.array(draw(st.lists(row, min_size=1, max_size=4)), np.float32).reshape(-1, dim)
    return vectors, queries, draw(st.integers(1, 45)), draw(st.sampled_from(METRICS))


@settings(max_examples=200, deadline=None)
@given(hostile())
def test_hostile_values_change_nothing(case):
    vectors, queries, k, metric = case
    index = Index("Flat", dim=queries.shape[1], metric=metric, device="cpu")
    index.add(vectors)
    scores, ids = index.search(queries, k)
    stored = index.reconstruct(index.ids)
    expected, order = nearest(queries, stored, k, metric)
    assert ((ids >= 0) == (order >= 0)).all()
    with np.errstate(over="ignore"):
        narrow = expected.astype(np.float32)
    # 3e18 - 3e18 + 1 is 1 or 0 in float64 too, by the order of summation: the tolerance is relative to the largest
    # term.
    terms = np.abs(queries.astype(float)) @ np.abs(stored.astype(float)).T
    allowed = 1e-6 + 1e-14 * (0 if metric == "cosine" else terms.max(1, initial=0)[:, None])
    with np.errstate(invalid="ignore"):  # ∞ − ∞ if both are infinite
        close = (np.abs(scores.astype(float) - narrow) <= allowed + 1e-5 * np.abs(narrow)) | (scores == narrow)
    assert close.all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 200), st.integers(1, 8), st.integers(1, 30), st.sampled_from(METRICS), st.integers(0, 99))
def test_equal_vectors_are_ordered_by_id(rows: int, kinds: int, k: int, metric: str, seed: int):
    r = np.random.default_rng(seed)
    vectors = r.integers(-2, 3, (kinds, 4)).astype(np.float32)[r.integers(0, kinds, rows)]
    ids = r.permutation(1000)[:rows]
    index = Index("Flat", dim=4, metric=metric, device="cpu")
    half = rows // 2
    index.add(vectors[:half], ids[:half])
    index.add(vectors[half:], ids[half:])
    queries = r.integers(-2, 3, (3, 4)).astype(np.float32)
    stored = index.reconstruct(ids)
    _, expected = nearest(queries, stored, k, metric, ids)
    _, actual = index.search(queries, k)
    if metric == "cosine":  # normalisation rounds its scores, also in the reference
        assert_exact(index.search(queries, k), queries, stored, k, metric, ids)
    else:
        assert np.array_equal(actual, expected)


def test_thousands_of_equal_vectors_give_the_lowest_ids():
    index = flat(np.ones((5000, 8), np.float32), "cosine")
    assert index.search(np.ones((2, 8)), 7)[1].tolist() == [[0, 1, 2, 3, 4, 5, 6]] * 2


def test_a_zero_query_is_equally_near_to_all_rows():
    index = flat(make_clusters(50, 5), "cosine")
    scores, ids = index.search(np.zeros((1, 5)), 3)
    assert ids.tolist() == [[0, 1, 2]]
    assert scores.tolist() == [[0, 0, 0]]


def test_float32_alone_would_be_wrong():
    # Far from the origin and close to each other: q·x − ‖x‖²/2 in float32 cannot represent the differences.
    r = np.random.default_rng(5)
    vectors = (1000 + r.standard_normal((500, 16)) * 1e-2).astype(np.float32)
    queries = (1000 + r.standard_normal((20, 16)) * 1e-2).astype(np.float32)
    _, actual = flat(vectors, "l2").search(queries, 5)
    assert np.array_equal(actual, nearest(queries, vectors, 5, "l2")[1])
    rough = queries @ vectors.T - (vectors**2).sum(1) / 2
    assert not np.array_equal(actual, np.argsort(-rough, 1, kind="stable")[:, :5])


@pytest.mark.parametrize("metric", METRICS)
def test_more_results_than_rows_are_padded(metric: str):
    scores, ids = flat(make_clusters(5, 6), metric).search(make_clusters(1, 6, 1), 8)
    assert (ids[0, 5:] == -1).all()
    assert (ids[0, :5] >= 0).all()
    assert np.isinf(scores[0, 5:]).all()


def test_a_batch_of_queries_matches_single_ones():
    vectors, queries = make_clusters(400, 12), make_clusters(2500, 12, 2)
    index = flat(vectors, "cosine")
    together = index.search(queries, 3)[1]
    difference = np.concatenate([index.search(queries[i : i + 1], 3)[1] for i in range(0, 2500, 50)])
    assert np.array_equal(together[::50], difference)


def test_an_empty_index_has_no_results():
    index = Index("Flat", metric="ip", device="cpu")
    assert index.search(np.ones((2, 3)), 2)[1].tolist() == [[-1, -1], [-1, -1]]
    index.add(np.ones((0, 3)))
    assert len(index) == 0
    assert index.search(np.ones((2, 3)), 1)[1].tolist() == [[-1], [-1]]
    assert index.range_search(np.ones((2, 3)), 0.0)[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("spec", ["Flat", "IVF4,Flat"])
def test_a_range_search_returns_exactly_the_rows_within_the_radius(metric: str, spec: str):
    from tests.search.reference import compute_scores

    vectors, queries = make_clusters(700, 10), make_clusters(6, 10, 3)
    index = Index(spec, metric=metric, device="cpu")
    if spec != "Flat":
        index.train(vectors)
    index.add(vectors)
    stored = index.reconstruct(np.arange(700))
    true = compute_scores(queries, stored, metric)
    radius = float(np.median(true))
    limits, scores, ids = index.range_search(queries, radius, nprobe=4)
    for number in range(6):
        mine = ids[limits[number] : limits[number + 1]]
        expected = np.flatnonzero(true[number] < radius if metric == "l2" else true[number] > radius)
        assert sorted(mine) == expected.tolist()
        part = scores[limits[number] : limits[number + 1]]
        assert (np.diff(part) >= 0).all() if metric == "l2" else (np.diff(part) <= 0).all()


@pytest.mark.parametrize("metric", METRICS)
def test_a_tensor_query_returns_tensors(metric: str):
    torch = pytest.importorskip("torch")
    vectors, queries = make_clusters(300, 8), make_clusters(4, 8, 1)
    index, plain = Index(metric=metric, device="cpu"), flat(vectors, metric)
    index.add(torch.from_numpy(vectors))
    scores, ids = index.search(torch.from_numpy(queries), 5)
    assert isinstance(scores, torch.Tensor)
    assert scores.dtype == torch.float32
    assert ids.dtype == torch.int64
    assert np.array_equal(ids.numpy(), plain.search(queries, 5)[1])
    assert isinstance(index.reconstruct(torch.tensor([1, 2])), torch.Tensor)
