"""One query over lists on a CPU: one native call has the results and the errors of the normal search.

python -m pytest tests/search/test_one_query.py
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.search.test_exact import METRICS, make_clusters

from ridgeline import Index, native
from ridgeline.errors import InputError
from ridgeline.search.cpu import CpuEngine
from ridgeline.search.inverted_lists import OneQuerySearch
from ridgeline.search.snapshot import _make_host_fast_path

ISAS = native.instruction_sets()


def build_lists(vectors, metric: str, lists: int = 9, **more) -> Index:
    index = Index(f"IVF{lists},Flat", metric=metric, device="cpu", **more)
    index.train(vectors)
    index.add(vectors)
    return index


def fast_paths(index: Index) -> list:
    return list(index._snapshot.fast_paths.values())


def clearly_chosen(index: Index, query, nprobe: int) -> bool:
    """Whether no other list is as near as the last probed one; of equal lists any may be probed."""
    centres = index._snapshot.engine.row_scorer.centres.astype(np.float64)
    find_nearest = np.sort(centres @ query[0] - (centres**2).sum(1) / 2 * (index.metric == "l2"))[::-1]
    return (
        nprobe >= len(find_nearest)
        or find_nearest[nprobe - 1] - find_nearest[nprobe] > 1e-4 * np.abs(find_nearest).max()
    )


@settings(max_examples=60, deadline=None)
@given(
    metric=st.sampled_from(METRICS),
    count=st.integers(9, 400),
    dim=st.integers(1, 70),
    k=st.integers(1, 40),
    nprobe=st.integers(1, 12),
    coarse=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_the_fast_path_matches_the_normal_search(metric, count, dim, k, nprobe, coarse, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((count, dim)).astype(np.float32)
    if coarse:  # many equal rows and scores
        vectors = np.round(vectors)
    index = build_lists(vectors, metric)
    for _ in range(3):
        query = np.round(rng.standard_normal((1, dim)), 1 if coarse else 9).astype(np.float32)
        assume(clearly_chosen(index, query, nprobe))
        index._snapshot.fast_paths.clear()
        scores, ids = index.search(query, k, nprobe=nprobe)
        assert len(fast_paths(index)) == 1
        again, actual = index.search(query, k, nprobe=nprobe)
        assert again.dtype == scores.dtype == np.float32
        assert actual.dtype == ids.dtype == np.int64
        assert np.array_equal(actual, ids)
        assert np.allclose(again, scores, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", [1, 3, 8, 31, 64, 97])
def test_every_instruction_set_finds_the_same(isa, dim):
    rng = np.random.default_rng(dim)
    vectors, query = (
        rng.standard_normal((300, dim)).astype(np.float32),
        rng.standard_normal((1, dim)).astype(np.float32),
    )
    index = build_lists(vectors, "l2")
    index.search(query, 12, nprobe=4)
    (fast_path,) = fast_paths(index)
    closure = fast_path.__closure__
    search = next(cell.cell_contents for cell in closure if isinstance(cell.cell_contents, OneQuerySearch))._search
    scores, rows = np.empty(12, np.float32), np.empty(12, np.int64)
    assert search(query[0], scores, rows, isa)
    expected = index.search(np.repeat(query, 2, 0), 12, nprobe=4)  # two queries use blocks
    assert np.array_equal(rows, expected[1][0])
    assert np.allclose(scores, expected[0][0], rtol=1e-6)


def test_custom_ids_and_added_and_removed_rows():
    vectors = make_clusters(600, 24)
    index = build_lists(vectors[:500], "cosine")
    query = vectors[3:4]
    for _ in range(2):
        assert index.search(query, 3)[1][0, 0] == 3
    index.remove([3])
    for _ in range(2):
        assert 3 not in index.search(query, 3)[1]
    index.add(vectors[500:], ids=np.arange(9_000, 9_100))
    for _ in range(2):
        assert index.search(vectors[550:551], 3, nprobe=9)[1][0, 0] == 9_050
        assert 3 not in index.search(query, 3, nprobe=9)[1]


def test_a_loaded_index_has_the_same_fast_path(tmp_path):
    vectors = make_clusters(500, 24)
    build_lists(vectors, "cosine").save(tmp_path / "index")
    index = Index.load(tmp_path / "index", device="cpu")
    expected = index.search(np.repeat(vectors[9:10], 2, 0), 6)
    for _ in range(2):
        scores, ids = index.search(vectors[9:10], 6)
        assert np.array_equal(ids[0], expected[1][0])
        assert np.allclose(scores[0], expected[0][0], rtol=1e-6)
    assert len(fast_paths(index)) == 2  # of two queries, and of one


def test_several_threads_search_at_once():
    vectors = make_clusters(3_000, 200)
    index = build_lists(vectors, "l2", 12)
    expected = index.search(vectors[:40], 5, nprobe=6)[1]
    index.search(vectors[:1], 5, nprobe=6)
    with ThreadPoolExecutor(6) as crew:
        actual = list(crew.map(lambda k: index.search(vectors[k : k + 1], 5, nprobe=6)[1][0], [*range(40)] * 5))
    assert np.array_equal(actual, np.tile(expected, (5, 1)))


def test_queries_of_other_types_and_layouts():
    vectors = make_clusters(400, 20)
    index = build_lists(vectors, "ip")
    expected = index.search(np.repeat(vectors[7:8], 2, 0), 5)
    for query in (
        vectors[7:8].astype(np.float64),
        np.asfortranarray(np.repeat(vectors[7:8], 2, 0))[:1],
        np.repeat(vectors[7:8], 2, 1)[:, ::2],
    ):
        for _ in range(2):
            scores, ids = index.search(query, 5)
            assert np.array_equal(ids[0], expected[1][0])
            assert np.allclose(scores[0], expected[0][0], rtol=1e-6)


@pytest.mark.parametrize("metric", METRICS)
def test_values_that_are_not_finite_are_named_and_large_ones_work(metric):
    vectors = make_clusters(300, 16)
    index = build_lists(vectors, metric)
    index.search(vectors[:1], 4)
    for bad in (np.nan, np.inf):
        query = vectors[:1].copy()
        query[0, 5] = bad
        with pytest.raises(InputError, match=r"row 0 of the queries holds .* in column 5"):
            index.search(query, 4)
    index.search(vectors[:1].astype(np.float64), 4)
    with pytest.raises(InputError, match=r"row 0 of the queries holds inf in column 0"):
        index.search(np.full((1, 16), 1e300), 4)
    large = vectors[:1] * np.float32(1e34)
    expected = index.search(np.repeat(large, 2, 0), 4)
    for _ in range(2):
        scores, ids = index.search(large, 4)
        assert np.array_equal(ids[0], expected[1][0])
        assert np.allclose(scores[0], expected[0][0], rtol=1e-6)
    for _ in range(2):
        assert index.search(np.zeros((1, 16), np.float32), 4)[1].shape == (1, 4)


@pytest.mark.parametrize("spec", ["IVF9,SQ8", "IVF9,PQ4", "IVF9,Flat,Refine(Flat)", "Flat"])
def test_other_indexes_and_filters_use_the_normal_search(spec):
    vectors = make_clusters(400, 16)
    index = Index(spec, metric="l2", device="cpu")
    index.train(vectors)
    index.add(vectors)
    index.search(vectors[:1], 5)
    assert not fast_paths(index)
    lists = build_lists(vectors, "l2")
    allowed = np.zeros(400, bool)
    allowed[::2] = True
    for _ in range(2):
        assert (lists.search(vectors[1:2], 5, where=allowed)[1] % 2 == 0).all()
    assert not fast_paths(lists)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("spec", ["IVF9,Flat", "IVF9,SQ8", "IVF9,PQ4", "IVF9,PQ4,Refine(Flat)"])
def test_one_native_call_matches_list_by_list(spec, metric):
    """A single query uses `probe_one_query`, a batch uses blocks; with two segments, with and without a filter."""
    vectors = make_clusters(900, 16)
    index = Index(spec, metric=metric, device="cpu")
    index.train(vectors)
    index.add(vectors[:800])
    index.add(vectors[800:])
    assert len(index._snapshot.engine.row_scorer.segments) == 2
    allowed = np.arange(900) % 3 > 0
    for row in range(0, 900, 90):
        query = vectors[row : row + 1] + np.float32(0.01)
        for where in (None, allowed):
            expected = index.search(np.repeat(query, 2, 0), 7, nprobe=4, where=where)
            scores, ids = index.search(query, 7, nprobe=4, where=where)
            assert np.array_equal(ids[0], expected[1][0])
            assert np.allclose(scores[0], expected[0][0], rtol=1e-6, atol=1e-6)


def test_the_native_call_refuses_wrong_shapes():
    centres, values = np.zeros((2, 4), np.float32), np.zeros((3, 4), np.float32)
    offsets, rows = np.array([0, 1, 3]), np.arange(3)
    rest = (None, True, False, 1, 2, 1.0, 2.0**-24, 0.0, 1e30, 8)
    search = native.SingleQuery(centres, None, values, offsets, rows, *rest)
    with pytest.raises(ValueError, match="shapes do not fit"):
        search(np.zeros(3, np.float32), np.empty(2, np.float32), np.empty(2, np.int64))
    for wrong in (
        (centres[:, :3].copy(), None, values, offsets, rows),
        (centres, None, values, offsets, rows[:2].copy()),
        (centres, None, values, np.array([0, 1, 2]), rows),
        (centres, None, values, np.array([0, 4, 3]), rows),
        (centres, np.zeros(3, np.float32), values, offsets, rows),
    ):
        with pytest.raises(ValueError, match=r"fit|decrease|number of rows|wrong length"):
            native.SingleQuery(*wrong, *rest)


@pytest.mark.parametrize("metric", METRICS)
def test_a_few_queries_together_have_the_results_of_each_alone(metric):
    vectors = make_clusters(300, 8)
    index = build_lists(vectors, metric)
    assert isinstance(index._snapshot.engine, CpuEngine)
    alone = [index.search(vectors[row], 3, nprobe=2) for row in range(4)]
    for _ in range(2):  # the second one is the fast path
        scores, ids = index.search(vectors[:4], 3, nprobe=2)
        assert np.array_equal(ids, [each[1] for each in alone])
        assert np.array_equal(scores, [each[0] for each in alone])
    with pytest.raises(InputError, match="row 1 of the queries holds nan"):
        index.search(np.stack([vectors[0], vectors[0] * np.nan, vectors[1], vectors[2]]), 3, nprobe=2)


def test_many_queries_have_no_fast_path():
    vectors = make_clusters(200, 8)
    index = build_lists(vectors, "cosine")
    index.search(vectors[:20], 3)
    assert not fast_paths(index)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("queries", "rows", "dim"), [(1, 0, 4), (2, 1, 1), (3, 7, 5), (5, 70, 64), (9, 301, 33), (4, 600, 384)]
)
def test_products_of_a_few_queries_with_many_rows(isa, queries, rows, dim):
    rng = np.random.default_rng(rows)
    some, values = (rng.standard_normal((n, dim)).astype(np.float32) for n in (queries, rows))
    out = np.empty((queries, rows), np.float32)
    native.dot_few(some, values, out, 2, isa)
    assert np.allclose(out, some.astype(np.float64) @ values.T.astype(np.float64), atol=1e-4)
    with pytest.raises(ValueError, match="shapes do not fit"):
        native.dot_few(some, values, np.empty((queries, rows + 1), np.float32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("rows", "dim"), [(0, 4), (1, 1), (3, 7), (5, 64), (1_001, 33), (700, 384)])
def test_products_of_one_query_with_many_rows(isa, threads, rows, dim):
    rng = np.random.default_rng(rows)
    query, values = rng.standard_normal(dim).astype(np.float32), rng.standard_normal((rows, dim)).astype(np.float32)
    out = np.empty(rows, np.float32)
    native.dot_floats(query, values, out, threads, isa)
    assert np.allclose(out, values.astype(np.float64) @ query, atol=1e-4)
    with pytest.raises(ValueError, match="shapes do not fit"):
        native.dot_floats(query, values, np.empty(rows + 1, np.float32))


def test_a_recorded_search_on_the_host_names_the_query_that_is_not_finite():
    class Recording:  # of a GPU: a query that is not finite has no result there
        def search_on_host(self, queries):
            finite = np.isfinite(queries).all(1)
            rows = np.where(finite, np.arange(len(queries)), -1)[:, None]
            return np.where(finite, 1.0, np.nan).astype(np.float32)[:, None], rows

    vectors = np.eye(6, dtype=np.float32)
    index = build_lists(vectors, "cosine", 2)
    search = _make_host_fast_path(index._snapshot, Recording())
    assert search(vectors)[1].ravel().tolist() == list(range(6))
    vectors[3, 2] = np.inf
    with pytest.raises(InputError, match="row 3 of the queries holds inf in column 2"):
        search(vectors)
