"""SQ8, IVF, PQ and Refine are exact over the stored values when all lists are read, after any history.

python -m pytest tests/search/test_families.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.search.reference import assert_exact, nearest
from tests.search.test_exact import METRICS, make_clusters

from ridgeline import Index
from ridgeline.search.codecs import encode_whole_vectors
from ridgeline.search.cpu import CpuBackend
from ridgeline.search.engine import SearchOptions

LISTS = 8
SPECS = ("SQ8", "IVF8,Flat", "IVF8,SQ8", "IVF8,PQ4")


def build_index(spec: str, metric: str, vectors, **more) -> Index:
    index = Index(spec, metric=metric, device="cpu", **more)
    if not index.trained:
        index.train(vectors)
    index.add(vectors)
    return index


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("queries", [1, 3, 40])
def test_over_all_lists_the_result_is_exact_over_the_stored_values(spec: str, metric: str, queries: int):
    vectors, query_vectors = make_clusters(1501, 16), make_clusters(queries, 16, 1)
    index = build_index(spec, metric, vectors)
    stored = index.reconstruct(np.arange(1501))
    if metric == "cosine":  # stored values can differ from length 1: only the query is normalised
        query_vectors, metric = query_vectors / np.linalg.norm(query_vectors, axis=1, keepdims=True), "ip"
    assert_exact(index.search(query_vectors, 10, nprobe=LISTS), query_vectors, stored, 10, metric, tolerance=2e-6)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("spec", ["SQ8", "IVF8,SQ8", "IVF8,PQ4"])
def test_a_decoded_vector_is_close_to_the_original(spec: str, metric: str):
    vectors = make_clusters(1501, 16)
    complete = vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if metric == "cosine" else vectors
    off = build_index(spec, metric, vectors).reconstruct(np.arange(1501)) - complete
    share = np.linalg.norm(off) / np.linalg.norm(complete)
    assert share < (0.35 if "PQ" in spec else 0.01)


@pytest.mark.parametrize("refine", ["Flat", "SQ8"])
@pytest.mark.parametrize("base", ["Flat", *SPECS])
def test_with_enough_depth_the_refiner_decides(base: str, refine: str):
    vectors, query_vectors = make_clusters(600, 16), make_clusters(9, 16, 1)
    index = build_index(f"{base},Refine({refine})", "l2", vectors)
    stored = index.reconstruct(np.arange(600))
    if refine == "Flat":
        assert np.array_equal(stored, vectors)
    _, found_ids = index.search(query_vectors, 5, nprobe=LISTS, depth=120)
    assert np.array_equal(found_ids, nearest(query_vectors, stored, 5, "l2")[1])


def test_more_lists_find_more():
    r = np.random.default_rng(0)
    vectors, query_vectors = r.standard_normal((4000, 16)).astype("f4"), r.standard_normal((50, 16)).astype("f4")
    index = build_index("IVF32,Flat", "cosine", vectors)
    truth = nearest(query_vectors, index.reconstruct(np.arange(4000)), 10, "cosine")[1]
    shares = []
    for nprobe in (1, 4, 16, 32):
        found_ids = index.search(query_vectors, 10, nprobe=nprobe)[1]
        shares.append(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found_ids, truth, strict=True)]))
    assert shares == sorted(shares)
    assert shares[0] < 0.7
    assert shares[-1] == 1


@pytest.mark.parametrize("spec", ["Flat", "SQ8", "IVF4,Flat", "IVF4,PQ2,Refine(Flat)"])
def test_rows_added_in_parts_match_rows_added_at_once(spec: str):
    vectors, query_vectors = make_clusters(777, 8), make_clusters(6, 8, 1)
    complete = build_index(spec, "l2", vectors)
    parts = Index(spec, metric="l2", device="cpu")
    if not parts.trained:
        parts.train(vectors)
    for at in range(0, 777, 50):
        parts.add(vectors[at : at + 50])
    for one, other in zip(
        complete.search(query_vectors, 9, nprobe=2), parts.search(query_vectors, 9, nprobe=2), strict=True
    ):
        assert np.array_equal(one, other)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "own ids", "remove"]), st.integers(0, 30), st.integers(0, 999)), max_size=9
    ),
    st.sampled_from(["Flat", "IVF2,Flat", "IVF2,SQ8,Refine(Flat)"]),
    st.integers(1, 12),
)
def test_any_history_of_adds_and_removals_leaves_the_live_rows(steps, spec: str, k: int):
    index = Index(spec, metric="l2", device="cpu", dim=3)
    if not index.trained:
        index.train(np.random.default_rng(1).integers(-3, 4, (30, 3)))
    rows: dict[int, np.ndarray] = {}
    highest = -1
    for what, count, seed in steps:
        r = np.random.default_rng(seed)
        fresh = r.integers(-3, 4, (count, 3)).astype(np.float32)
        if what == "remove":
            gone = [i for i in rows if r.random() < count / 30]
            assert index.remove(gone) == len(gone)
            rows = {i: v for i, v in rows.items() if i not in gone}
            continue
        ids = [highest + 1 + n for n in range(count)]
        if what == "own ids":  # also ids that were removed before
            ids = [i for i in r.permutation(60).tolist() if i not in rows][:count]
        fresh = fresh[: len(ids)]
        index.add(fresh, ids if what == "own ids" else None)
        rows |= dict(zip(ids, fresh, strict=True))
        highest = max([highest, *ids])
    assert len(index) == len(rows)
    assert sorted(index.ids.tolist()) == sorted(rows)
    if rows:
        names = np.array(list(rows))
        assert np.array_equal(index.reconstruct(names), np.array(list(rows.values())))
        query_vectors = np.random.default_rng(2).integers(-3, 4, (3, 3)).astype(np.float32)
        expected = nearest(query_vectors, np.array(list(rows.values())), k, "l2", names)[1]
        assert np.array_equal(index.search(query_vectors, k, nprobe=2, depth=100)[1], expected)


def test_removed_rows_are_gone_before_and_after_compaction():
    vectors = make_clusters(100, 6)
    index = build_index("Flat", "l2", vectors)
    assert index.remove([3, 3, 5]) == 2
    assert index.stats()["removed"] == 2
    assert {3, 5}.isdisjoint(index.search(vectors[[3, 5]], 98)[1].ravel())
    index.remove(np.arange(50, 90))
    assert index.stats()["removed"] == 0  # enough to be dropped from the engine
    assert len(index) == 58
    assert index.search(vectors[[99]], 1)[1].tolist() == [[99]]


def test_stats_describe_the_index():
    index = build_index("IVF8,PQ4,Refine(SQ8)", "cosine", make_clusters(500, 16), model="some-model")
    index_stats = index.stats()
    assert (index_stats["spec"], index_stats["count"], index_stats["dim"], index_stats["model"]) == (
        "IVF8,PQ4,Refine(SQ8)",
        500,
        16,
        "some-model",
    )
    assert index_stats["bytes"] >= 500 * (4 + 16)


def test_auto_becomes_flat_for_few():
    index = Index("Auto", device="cpu")
    assert index.spec == "Auto"
    index.add(np.eye(3))
    assert index.spec == "Flat"
    assert index.search(np.eye(3), 1)[1].ravel().tolist() == [0, 1, 2]


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_bytes_in_lists_are_differences_to_the_centres(metric, tmp_path):
    random = np.random.default_rng(0)
    centres = 3 * random.standard_normal((8, 24))
    vectors = (centres[random.integers(0, 8, 1200)] + 0.2 * random.standard_normal((1200, 24))).astype(np.float32)
    queries = (centres[random.integers(0, 8, 40)] + 0.2 * random.standard_normal((40, 24))).astype(np.float32)
    index = Index("IVF8,SQ8", metric=metric, device="cpu")
    index.train(vectors)
    index.add(vectors)
    stored = vectors if metric != "cosine" else vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    asked = queries if metric != "cosine" else queries / np.linalg.norm(queries, axis=1, keepdims=True)
    assert np.abs(index.reconstruct(np.arange(1200)) - stored).max() < 0.006 * np.abs(stored).max()
    exact = asked.astype(np.float64) @ stored.T.astype(np.float64)
    if metric == "l2":
        exact = 2 * exact - (stored.astype(np.float64) ** 2).sum(1) - (asked**2).sum(1)[:, None]
    truth = np.argsort(-exact, 1)[:, :10]

    def measure(ids) -> float:
        return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ids.tolist(), truth.tolist(), strict=True)]))

    together = index.search(queries, 10, nprobe=8)
    assert measure(together[1]) > (0.6 if metric == "cosine" else 0.95)  # of a cluster all cosines are within 1e-3
    for row in range(3):  # the native loop for one query
        assert (index.search(queries[row], 10, nprobe=8)[1] == together[1][row]).all()
    index.save(tmp_path / "bytes")
    again = Index.load(tmp_path / "bytes")
    assert (again.search(queries, 10, nprobe=8)[1] == together[1]).all()

    engine = index._snapshot.engine
    whole = CpuBackend().restore_engine(engine.config, encode_whole_vectors(engine.arrays()))  # as a GPU reads it
    found = whole.search(np.ascontiguousarray(asked, np.float32), SearchOptions(10, nprobe=8))[1]
    assert 0.2 < measure(found) < measure(together[1])
