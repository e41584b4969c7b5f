"""Indexes of FAISS are read as they are, and its calls have its results. Skipped without faiss-cpu.

python -m pytest tests/search/test_faiss.py
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.search.reference import compute_scores
from tests.search.test_exact import make_clusters

from ridgeline import Index
from ridgeline.errors import InputError
from ridgeline.search.compat import faiss as ours

theirs = pytest.importorskip("faiss")
VECTORS, QUERIES = make_clusters(600, 8), make_clusters(20, 8, 1)


QUERIES_16 = np.random.default_rng(1).standard_normal((30, 16)).astype(np.float32)


def make_theirs(text: str, metric: int = theirs.METRIC_L2, ids=None):
    index = theirs.index_factory(8, text, metric)
    if "IVF" in text:
        theirs.extract_index_ivf(index).cp.niter = 3
    index.train(VECTORS)
    if ids is None:
        index.add(VECTORS)
    else:
        index.add_with_ids(VECTORS, ids)
    return index


@pytest.mark.parametrize("metric", [theirs.METRIC_L2, theirs.METRIC_INNER_PRODUCT])
@pytest.mark.parametrize("text", ["Flat", "SQ8", "SQfp16", "IVF6,Flat", "IVF6,SQfp16", "IVF6,SQ8", "SQ8,RFlat"])
def test_an_index_of_faiss_has_the_same_results_here(tmp_path, text: str, metric: int):
    index = make_theirs(text, metric)
    if "IVF" in text:
        theirs.extract_index_ivf(index).nprobe = 3
    theirs.write_index(index, str(tmp_path / "x.faiss"))
    expected, ids = index.search(QUERIES, 9)
    for source in (index, tmp_path / "x.faiss"):
        found = Index.from_faiss(source)
        assert len(found) == 600
        scores, found_ids = found.search(QUERIES, 9)
        same = np.mean([len(set(a) & set(b)) / 9 for a, b in zip(ids, found_ids, strict=True)])
        assert same >= 0.97
        # Values of residuals in float16 are rounded again as those of whole vectors.
        tolerance = {"IVF6,SQ8": 1e-4, "SQ8": 1e-4, "SQ8,RFlat": 1e-5}.get(text, 1e-2 if "fp16" in text else 1e-5)
        assert np.abs(scores - expected).max() <= tolerance
    if "IVF" in text:
        assert found.nprobe == 3


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_a_graph_is_built_anew_from_the_same_vectors(tmp_path, metric: str):
    index = Index("HNSW8", metric=metric, device="cpu")
    index.add(VECTORS, ids=np.arange(600)[::-1])
    index.ef = 100
    index.export_faiss(tmp_path / "y.faiss")
    assert Index.from_faiss(tmp_path / "y.faiss").ef == 100
    index.ef = None
    index.export_faiss(tmp_path / "x.faiss")
    read, again = theirs.read_index(str(tmp_path / "x.faiss")), Index.from_faiss(tmp_path / "x.faiss")
    assert (again.spec, again.ids.tolist(), again.ef) == ("HNSW8", index.ids.tolist(), 64)
    unit = QUERIES / np.linalg.norm(QUERIES, axis=1, keepdims=True)
    values = unit if metric == "cosine" else QUERIES
    assert np.array_equal(again.search(values, 5)[1], index.search(values, 5)[1])
    assert np.mean(read.search(values, 5)[1] == index.search(values, 5)[1]) >= 0.9


def pretend_trained(text: str):
    index = theirs.index_factory(8, text)
    index.is_trained = True
    return index


def test_parts_refiners_and_maps_of_faiss_are_read(tmp_path):
    ids = np.random.default_rng(0).permutation(10_000)[:600] + (1 << 40)
    index = Index("IVF4,PQ4,Refine(Flat)", metric="l2", device="cpu")  # FAISS trains parts for seconds
    index.train(VECTORS)
    index.add(VECTORS, ids=ids)
    index.export_faiss(tmp_path / "x.faiss")
    index = theirs.read_index(str(tmp_path / "x.faiss"))
    base = theirs.downcast_index(index.index)
    base.k_factor, theirs.extract_index_ivf(theirs.downcast_index(base.base_index)).nprobe = 5, 4
    found = Index.from_faiss(index)
    assert (found.spec, found.nprobe, found.depth, found.ids.tolist()) == ("IVF4,PQ4,Refine(Flat)", 4, 5, ids.tolist())
    assert np.array_equal(found.search(QUERIES, 5)[1], index.search(QUERIES, 5)[1])
    found.add(VECTORS[:3] + 1)
    found.remove(ids[:5])
    assert len(found) == 598


@pytest.mark.parametrize("spec", ["Flat", "SQ8", "IVF9,Flat", "IVF9,SQ8", "IVF9,PQ2", "IVF9,PQ2,Refine(SQ8)"])
@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_what_is_exported_to_faiss_searches_as_much_and_returns_unchanged(tmp_path, spec: str, metric: str):
    index = Index(spec, metric=metric, device="cpu")
    if not index.trained:
        index.train(VECTORS)
    index.add(VECTORS, ids=np.arange(600) * 3 + 1)
    index.export_faiss(tmp_path / "x.faiss")
    again, read = Index.from_faiss(tmp_path / "x.faiss"), theirs.read_index(str(tmp_path / "x.faiss"))
    unit = QUERIES / np.linalg.norm(QUERIES, axis=1, keepdims=True)
    values = unit if metric == "cosine" else QUERIES
    expected = index.search(values, 5)
    assert (again.nprobe, again.depth, again.spec) == (index.nprobe, index.depth, spec)
    assert np.array_equal(again.search(values, 5)[1], expected[1])
    assert np.mean(read.search(values, 5)[1] == expected[1]) >= 0.97  # FAISS ranks by float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: theirs.IndexLSH(8, 16), "IndexLSH"),
        (lambda: pretend_trained("IVF4,PQ4x4"), "IndexIVFPQ with 4 bits"),
        (lambda: theirs.IndexFlat(8, theirs.METRIC_L1), "metric 2"),
        (lambda: make_theirs("IVF4,Flat", ids=np.zeros(600, np.int64)), "id 0 twice"),
        (lambda: make_theirs("IVF4,Flat", ids=np.arange(600) - 1), "id -1"),
        (lambda: theirs.index_factory(8, "IVF4,Flat"), "not trained"),
        (lambda: "/no/such.faiss", "no file '/no/such.faiss'"),
        (lambda: 3, "not int"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_its_name(make, message: str):
    with pytest.raises(InputError, match=message):
        Index.from_faiss(make())


def test_a_damaged_file_is_refused_by_its_name(tmp_path):
    (tmp_path / "x.faiss").write_bytes(b"IxF2" + bytes(9))
    with pytest.raises(InputError, match=r"x\.faiss"):
        Index.from_faiss(tmp_path / "x.faiss")


def build_flat(library):
    index = library.IndexFlat(8, library.METRIC_INNER_PRODUCT)
    index.add(VECTORS)
    index.remove_ids(np.array([3, 5, 700]))
    return index


def build_lists(library):
    quantizer = library.IndexFlatL2(8)
    quantizer.add(VECTORS[:7])
    index = library.IndexIVFFlat(quantizer, 8, 7)
    index.train(VECTORS)
    index.add_with_ids(VECTORS, np.arange(600) + 50)
    index.remove_ids(library.IDSelectorRange(100, 200))
    index.nprobe = 2
    return index


def build_map(library):
    index = library.index_factory(8, "IDMap2,Flat")
    index.add_with_ids(VECTORS, np.arange(600)[::-1] * 5)
    index.remove_ids(np.arange(0, 100))
    return index


@pytest.mark.parametrize("build", [build_flat, build_lists, build_map])
def test_the_calls_of_faiss_have_its_results(tmp_path, build):
    one, other = build(ours), build(theirs)
    assert (one.ntotal, one.d, one.is_trained, one.metric_type) == (
        other.ntotal,
        other.d,
        other.is_trained,
        other.metric_type,
    )
    for k in (1, 7, 650):
        (scores, ids), (expected, expected_ids) = one.search(QUERIES, k), other.search(QUERIES, k)
        assert np.array_equal(ids, expected_ids)
        assert np.allclose(scores, expected, rtol=1e-5, atol=1e-5)
    radius = float(np.median(expected[:, :300]))
    (limits, scores, ids), (ends, _, near) = one.range_search(QUERIES, radius), other.range_search(QUERIES, radius)
    assert limits.tolist() == ends.tolist()
    assert [set(ids[a:b]) for a, b in pairwise(limits)] == [set(near[a:b]) for a, b in pairwise(ends)]
    key = int(ids[0])
    if not isinstance(other, theirs.IndexIVF):  # which cannot, with ids of its caller
        assert np.array_equal(one.reconstruct(key), other.reconstruct(key))
    ours.write_index(one, tmp_path / "x")
    again = theirs.read_index(str(tmp_path / "x"))
    assert np.array_equal(again.search(QUERIES, 4)[1], one.search(QUERIES, 4)[1])
    assert np.array_equal(ours.read_index(tmp_path / "x").search(QUERIES, 4)[1], one.search(QUERIES, 4)[1])
    one.reset()
    assert (one.ntotal, one.is_trained) == (0, True)


def test_parameters_of_one_search_select_rows_and_lists():
    index = build_lists(ours)
    selector = ours.IDSelectorNot(ours.IDSelectorBatch(np.arange(300)))
    ids = index.search(QUERIES, 4, params=ours.SearchParametersIVF(sel=selector, nprobe=7))[1]
    allowed = np.isin(np.arange(600) + 50, index.rows.ids) & (np.arange(600) + 50 >= 300)
    scores = np.where(allowed, compute_scores(QUERIES, VECTORS, "l2"), np.inf)
    assert np.array_equal(ids, np.argsort(scores, 1, kind="stable")[:, :4] + 50)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ours.IndexFlatL2(8).add_with_ids(VECTORS, np.arange(600)), r"IndexIDMap\(index\)"),
        (lambda: ours.IndexIDMap(ours.IndexFlatL2(8)).add(VECTORS), "add_with_ids"),
        (lambda: ours.index_factory(8, "HNSW32_Q"), "HNSW32_Q"),
        (lambda: ours.index_factory(8, "L2norm,Flat", ours.METRIC_L2), "cosine"),
        (lambda: ours.IndexIVFFlat(ours.IndexFlatL2(7), 8, 4), "7 dimensions"),
        (lambda: ours.IndexIVFPQ(ours.IndexFlatL2(8), 8, 4, 2, 4), "nbits is 4"),
        (lambda: ours.IndexFlat(8, 4), "metric 4"),
    ],
)
def test_a_call_that_cannot_be_is_refused_with_the_cure(call, message: str):
    with pytest.raises(InputError, match=message):
        call()


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "reset"]), st.integers(0, 40)), max_size=8))
def test_any_order_of_changes_has_the_rows_of_faiss(steps):
    one, other = ours.IndexFlatL2(8), theirs.IndexFlatL2(8)
    for what, number in steps:
        for index in (one, other):
            if what == "add":
                index.add(VECTORS[number : number + 9])
            elif what == "remove":
                index.remove_ids(np.arange(number, number + 4))
            else:
                index.reset()
    assert one.ntotal == other.ntotal
    if other.ntotal:
        assert np.array_equal(one.reconstruct_n(), other.reconstruct_n(0, other.ntotal))


def test_rows_are_scaled_in_place():
    values = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
    ours.normalize_L2(values)
    assert values.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0, 0]]


def test_a_graph_has_the_settings_of_faiss(tmp_path):
    vectors = np.random.default_rng(0).standard_normal((1500, 16)).astype(np.float32)
    one, other = ours.IndexHNSWFlat(16, 8), theirs.IndexHNSWFlat(16, 8)
    for index in (one, other):
        index.add(vectors)
        assert index.hnsw.efSearch == 16
        index.hnsw.efSearch = 200
    assert (one.ntotal, one.d, one.is_trained, one.metric_type) == (other.ntotal, other.d, True, other.metric_type)
    (scores, ids), (expected, expected_ids) = one.search(QUERIES_16, 5), other.search(QUERIES_16, 5)
    assert np.mean(ids == expected_ids) > 0.97
    assert np.allclose(scores[ids == expected_ids], expected[ids == expected_ids], rtol=1e-4)
    assert (one.assign(QUERIES_16, 5) == ids).all()
    one.hnsw.efSearch = 16
    wide = one.search(QUERIES_16, 5, params=ours.SearchParametersHNSW(efSearch=200))[1]
    assert (wide == ids).all()
    ours.write_index(one, tmp_path / "graph.faiss")
    again = ours.read_index(tmp_path / "graph.faiss")
    assert isinstance(again, ours.IndexHNSWFlat)
    assert again.hnsw.efSearch == theirs.read_index(str(tmp_path / "graph.faiss")).hnsw.efSearch == 16
    assert isinstance(ours.index_factory(16, "HNSW8"), ours.IndexHNSWFlat)
    assert again.ntotal == 1500
