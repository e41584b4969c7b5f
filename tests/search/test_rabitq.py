"""RaBitQ: estimates without bias, bounds that hold, and results that are exact over what is read in full.

python -m pytest tests/search/test_rabitq.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.draws import choose_draws
from tests.search.reference import assert_exact, nearest
from tests.search.test_exact import METRICS, make_clusters

from ridgeline import Index, native
from ridgeline.errors import InputError
from ridgeline.search.codecs import make_rabitq_codec

ISAS = native.instruction_sets()


def build_index(spec: str, metric: str, vectors, parts: int = 1) -> Index:
    index = Index(spec, metric=metric, device="cpu")
    index.train(vectors)
    for part in np.array_split(vectors, parts):
        index.add(part)
    return index


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("dim", [48, 128, 100])
def test_estimates_have_no_bias_and_nearly_all_errors_are_within_the_bound(bits: int, dim: int):
    rng = np.random.default_rng(dim)
    rows = rng.standard_normal((3_000, dim)).astype(np.float32) * rng.uniform(0.1, 5, (3_000, 1)).astype(np.float32)
    codec = make_rabitq_codec(dim, bits, True, 0)
    codes = codec.encode(rows)
    ratios, errors = [], []
    for query in rng.standard_normal((20, dim)).astype(np.float32):
        products, bounds = np.empty(len(rows), np.float32), np.empty(len(rows), np.float32)
        codec.native.estimate(query, codes, products, bounds)
        error = products - rows.astype(np.float64) @ query
        ratios.append(np.abs(error) / (bounds * np.linalg.norm(query)))
        errors.append(error / np.linalg.norm(rows, axis=1))
    assert np.mean(np.concatenate(ratios) > 1) < 5e-4
    assert np.median(np.concatenate(ratios)) > 0.05  # and they are not far too wide
    all_errors = np.concatenate(errors)
    assert abs(all_errors.mean()) < 5 * all_errors.std() / np.sqrt(len(rows))


def test_more_bits_store_vectors_more_exactly():
    vectors = make_clusters(500, 96)
    lost = []
    for bits in (1, 2, 3, 4):
        index = build_index(f"RaBitQ{bits}", "l2", vectors)
        lost.append(np.square(index.reconstruct(np.arange(500)) - vectors).sum())
    assert lost[0] > 2 * lost[1] > 4 * lost[2] > 8 * lost[3]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_all_instruction_sets_estimate_the_same(isa: str, bits: int):
    rng = np.random.default_rng(bits)
    rows, query = rng.standard_normal((70, 150)).astype(np.float32), rng.standard_normal(150).astype(np.float32)
    codec = make_rabitq_codec(150, bits, True, 0)
    codes, products, errors = codec.encode(rows), np.empty(70, np.float32), np.empty(70, np.float32)
    codec.native.estimate(query, codes, products, errors, isa)
    decoded = codec.decode(codes).astype(np.float64)
    limit = 2e-4 * np.linalg.norm(decoded, axis=1).max() * np.linalg.norm(query)
    assert np.abs(products - decoded @ query).max() < limit


@settings(max_examples=choose_draws(10, 40), deadline=None)
@given(
    bits=st.integers(1, 4),
    metric=st.sampled_from(METRICS),
    count=st.integers(12, 400),
    dim=st.integers(1, 70),
    lists=st.sampled_from([0, 3, 9]),
    k=st.integers(1, 30),
    parts=st.integers(1, 3),
    coarse=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_without_a_refiner_results_are_exact_over_the_stored_values(
    bits, metric, count, dim, lists, k, parts, coarse, seed
):
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((count, dim)).astype(np.float32)
    if coarse:  # many equal rows and scores
        vectors = np.round(vectors)
    index = build_index(f"IVF{lists},RaBitQ{bits}" if lists else f"RaBitQ{bits}", metric, vectors, parts)
    queries = rng.standard_normal((3, dim)).astype(np.float32)
    stored = index.reconstruct(np.arange(count))
    if metric == "cosine":
        queries, metric = queries / np.linalg.norm(queries, axis=1, keepdims=True), "ip"
    assert_exact(index.search(queries, k, nprobe=lists or 1), queries, stored, k, metric, tolerance=4e-6)
    again = index.search(queries, k, nprobe=lists or 1)  # by the recorded search
    assert_exact(again, queries, stored, k, metric, tolerance=4e-6)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("bits", [1, 4])
def test_with_a_refiner_the_nearest_rows_are_found_and_few_are_read(metric: str, bits: int):
    vectors, queries = make_clusters(2_000, 64), make_clusters(50, 64, 1)
    index = build_index(f"IVF20,RaBitQ{bits},Refine(Flat)", metric, vectors, 2)
    expected = nearest(queries, vectors, 10, metric)[1]
    for _ in range(2):  # the second time by the recorded search
        rows = index.search(queries, 10, nprobe=20)[1]
        assert (
            np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows.tolist(), expected.tolist(), strict=True)]) > 0.999
        )
    engine = index._snapshot.engine
    search = engine.row_scorer.make_rabitq_search(engine.refiner.codes.rows, None, None)
    scores, found = np.empty((50, 10)), np.empty((50, 10), np.int64)
    values = queries / np.linalg.norm(queries, axis=1, keepdims=True) if metric == "cosine" else queries
    read = search(np.ascontiguousarray(values, np.float32), 20, scores, found, 1)
    assert 50 * 10 <= read < 50 * 2_000 * (0.5 if bits == 1 else 0.1)


@pytest.mark.parametrize("spec", ["RaBitQ4", "IVF6,RaBitQ2,Refine(Flat)", "IVF6,RaBitQ3,Refine(SQ8)"])
def test_filters_removals_radius_and_files(spec: str, tmp_path):
    vectors = make_clusters(600, 40)
    index = Index(spec, metric="l2", device="cpu")
    index.train(vectors)
    index.add(vectors, ids=np.arange(600) + 1_000, meta={"kind": np.arange(600) % 7})
    stored = index.reconstruct(np.arange(600) + 1_000)
    queries = vectors[:5] + np.float32(0.01)
    all_lists = {"nprobe": 6} if "IVF" in spec else {}
    ids = index.search(queries, 8, where="kind == 3", **all_lists)[1]
    want = np.flatnonzero(np.arange(600) % 7 == 3)
    distances = np.square(queries[:, None].astype(np.float64) - stored[want]).sum(2)
    best = np.sort(distances, axis=1)[:, :8]
    got = np.take_along_axis(distances, np.searchsorted(want, ids - 1_000), 1)
    assert np.allclose(got, best, rtol=0.05)
    limits, near, _ = index.range_search(queries, 4.0, **all_lists)
    counts = (np.square(queries[:, None].astype(np.float64) - stored).sum(2) < 4.0).sum(1)
    assert np.abs(np.diff(limits) - counts).max() <= max(2, 0.02 * counts.max())
    assert (near < 4.0).all()
    index.remove(np.arange(1_000, 1_050))
    assert (index.search(queries, 20, **all_lists)[1] >= 1_050).all()
    index.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index")
    assert (loaded.search(queries, 9, **all_lists)[1] == index.search(queries, 9, **all_lists)[1]).all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="RaBitQ has 1 to 4 bits"):
        Index("IVF4,RaBitQ5")
    index = build_index("RaBitQ4,Refine(Flat)", "ip", np.eye(8, dtype=np.float32))
    with pytest.raises(InputError, match="row 0 of the queries holds nan"):
        index.search(np.full((1, 8), np.nan, np.float32), 1)
    huge = np.full((1, 8), 1e30, np.float32)
    for _ in range(2):
        assert index.search(huge, 8)[0][0, 0] == pytest.approx(1e30)
