"""HNSW: the walk and what it hands to the exact search, against float64 NumPy."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import ridgeline as rl
from ridgeline.errors import InputError
from ridgeline.native import Graph
from ridgeline.search import RecallWarning
from ridgeline.search.spec import parse_spec

METRICS = ("cosine", "ip", "l2")


def draw(count: int, dim: int = 24, seed: int = 0) -> Any:
    """Vectors of different lengths around a common mean, in a third as many latent dimensions."""
    random = np.random.default_rng(seed)
    axes = np.random.default_rng(99).standard_normal((dim // 3, dim))
    values = random.standard_normal((count, dim // 3)) @ axes + 0.3 * random.standard_normal((count, dim)) + 0.5
    return (values * random.uniform(0.5, 2, (count, 1))).astype(np.float32)


def score(metric: str, queries: Any, vectors: Any) -> Any:
    q, x = queries.astype(np.float64), vectors.astype(np.float64)
    if metric == "l2":
        return -((q[:, None] - x[None]) ** 2).sum(2)
    if metric == "cosine":
        q, x = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (q, x))
    return q @ x.T


def recall(ids: Any, scores: Any, k: int, row_ids: Any = None) -> float:
    """Rows as good as the k-th best one count."""
    bar = np.sort(scores, 1)[:, -k] - 1e-9
    row_ids = np.arange(scores.shape[1]) if row_ids is None else row_ids
    found = [np.isin(row_ids[line >= low], got).sum() for line, low, got in zip(scores, bar, ids, strict=True)]
    return float(np.minimum(found, k).sum() / (k * len(scores)))


@pytest.fixture(scope="module", params=METRICS)
def built(request: Any) -> Any:
    vectors = draw(3000)
    index = rl.Index("HNSW16", metric=request.param, device="cpu")
    for part in np.array_split(vectors, 3):
        index.add(part)
    return request.param, vectors, index


def test_a_walk_finds_the_nearest_and_scores_them_exactly(built: Any) -> None:
    metric, vectors, index = built
    queries = draw(50, seed=1)
    truth = score(metric, queries, vectors)
    scores, ids = index.search(queries, 10, ef=100)
    assert recall(ids, truth, 10) > 0.97
    true_scores = np.take_along_axis(truth, ids, 1)
    assert np.allclose(scores, -true_scores if metric == "l2" else true_scores, rtol=1e-5, atol=1e-5)
    assert (np.diff(true_scores, axis=1) <= 1e-6).all()


def test_all_ways_to_ask_agree(built: Any) -> None:
    _, _, index = built
    queries = draw(30, seed=2)
    first = index.search(queries, 5, ef=40)
    for again in (index.search(queries, 5, ef=40), index.search(queries.astype(np.float64), 5, ef=40)):
        assert (again[1] == first[1]).all()
        assert (again[0] == first[0]).all()
    for row in range(3):
        scores, ids = index.search(queries[row], 5, ef=40)
        assert (ids == first[1][row]).all()
        assert (scores == first[0][row]).all()


def test_more_effort_finds_more_up_to_everything(built: Any) -> None:
    metric, vectors, index = built
    queries = draw(40, seed=3)
    truth = score(metric, queries, vectors)
    found = [recall(index.search(queries, 10, ef=ef)[1], truth, 10) for ef in (10, 40, 3000)]
    assert found[0] <= found[1] + 0.02
    assert found[2] == 1.0


@pytest.mark.parametrize("share", [0.002, 0.05, 0.5, 0.95])
def test_a_filter_loses_no_neighbours(built: Any, share: float) -> None:
    metric, vectors, index = built
    allowed = np.random.default_rng(5).random(len(vectors)) < share
    queries = draw(20, seed=4)
    truth = np.where(allowed, score(metric, queries, vectors), -np.inf)
    k = min(10, int(allowed.sum()))
    ids = index.search(queries, k, ef=64, where=allowed)[1]
    assert allowed[ids].all()
    assert recall(ids, truth, k) > 0.95


def test_a_filter_that_no_near_row_passes_is_searched_exactly() -> None:
    vectors = draw(3000)
    vectors[1000:] += 30
    index = rl.Index("HNSW8", metric="l2", device="cpu")
    index.add(vectors)
    queries = draw(5, seed=6) + 30
    allowed = np.arange(3000) < 1000
    truth = np.where(allowed, score("l2", queries, vectors), -np.inf)
    assert recall(index.search(queries, 10, ef=16, where=allowed)[1], truth, 10) == 1.0


@pytest.mark.parametrize("metric", METRICS)
def test_removed_rows_stay_away_and_new_ones_are_found(metric: str, tmp_path: Path) -> None:
    vectors, random = draw(2000), np.random.default_rng(7)
    ids = random.permutation(10_000)[:2000]
    index = rl.Index("HNSW8", metric=metric, device="cpu")
    index.add(vectors[:1500], ids=ids[:1500])
    gone = random.choice(1500, 700, replace=False)
    for part in np.array_split(gone, 5):  # more than a quarter: the graph is repaired
        index.remove(ids[part])
    index.add(vectors[1500:], ids=ids[1500:])
    live = np.setdiff1d(np.arange(2000), gone)
    queries = draw(30, seed=8)
    truth = score(metric, queries, vectors[live])
    found = index.search(queries, 10, ef=100)
    assert not np.isin(found[1], ids[gone]).any()
    assert recall(found[1], truth, 10, ids[live]) > 0.95
    index.save(tmp_path / "graph")
    again = rl.Index.load(tmp_path / "graph", verify=True)
    assert again.spec == "HNSW8"
    assert len(again) == len(index)
    assert recall(again.search(queries, 10, ef=100)[1], truth, 10, ids[live]) > 0.95
    again.add(draw(50, seed=9))
    assert len(again) == len(index) + 50


@given(
    st.integers(1, 40),
    st.integers(1, 70),
    st.sampled_from(METRICS),
    st.integers(1, 12),
    st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=25)
def test_few_rows_are_searched_exactly(count: int, dim: int, metric: str, k: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.integers(-2, 3, (count, dim)).astype(np.float32)  # ties and zero vectors
    queries = random.standard_normal((3, dim)).astype(np.float32)
    flat, graph = (rl.Index(spec, metric=metric, device="cpu") for spec in ("Flat", "HNSW4"))
    for part in np.array_split(vectors, 3):
        flat.add(part)
        graph.add(part)
    for one, other in zip(flat.search(queries, k), graph.search(queries, k), strict=True):
        assert np.array_equal(one, other)


@given(st.integers(1, 130), st.sampled_from(["", "baseline"]), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=15)
def test_every_instruction_set_and_thread_count_builds_the_same_graph(dim: int, isa: str, seed: int) -> None:
    vectors = np.random.default_rng(seed).standard_normal((200, dim)).astype(np.float32)
    graphs = [Graph(dim, 4, 20, True, False) for _ in range(2)]
    graphs[0].add(vectors, 1)
    graphs[1].add(vectors, 2, isa)
    one, other = (graph.arrays() for graph in graphs)
    assert all(np.array_equal(one[name], other[name]) for name in one)
    links = one["graph_links"]
    assert (links[:, 0] <= 8).all()
    assert (links[:, 1:] < 200).all()


@pytest.mark.parametrize("size", [1e-30, 1e12, 1e20])
def test_values_of_any_size_are_ranked(size: float) -> None:
    vectors = draw(700) * np.float32(size)
    for metric in ("ip", "l2"):
        index = rl.Index("HNSW8", metric=metric, device="cpu")
        index.add(vectors)
        truth = score(metric, draw(5, seed=1) * np.float32(size), vectors)
        with np.errstate(over="ignore"):
            ids = index.search(draw(5, seed=1) * np.float32(size), 5, ef=64)[1]
        best = np.argsort(-truth, 1, kind="stable")[:, :5]
        if size > 1:  # float64 tells these apart; products of 1e-30 are below the smallest float32
            assert np.mean([len(set(a) & set(b)) / 5 for a, b in zip(ids.tolist(), best.tolist(), strict=True)]) > 0.9
        assert (ids >= 0).all()


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_repeated_searches_say_what_the_first_one_says(metric: str) -> None:
    vectors = draw(700) * np.float32(1e-3)
    index = rl.Index("HNSW8", metric=metric, device="cpu")
    index.add(vectors)
    for count in (1, 3):
        queries = draw(count, seed=1)
        scores, ids = index.search(queries, 5, ef=20)
        for _ in range(2):  # the second search of this shape takes the short path
            again = index.search(queries, 5, ef=20)
            assert np.array_equal(again[0], scores)
            assert np.array_equal(again[1], ids)
        far = index.search(queries * np.float32(1e22), 5, ef=20)[0]  # a squared distance that float32 cannot hold
        assert not np.isnan(far).any()
        assert np.isinf(far).all() == (metric == "l2")
        queries[-1, 2] = np.nan
        with pytest.raises(InputError, match=f"row {count - 1} of the queries holds nan"):
            index.search(queries, 5, ef=20)


def test_searches_and_additions_at_the_same_time_see_complete_rows() -> None:
    vectors = draw(4000)
    index = rl.Index("HNSW8", metric="ip", device="cpu")
    index.add(vectors[:500])
    queries, failures, done = draw(8, seed=1), [], threading.Event()

    def search() -> None:
        while not done.is_set():
            count = len(index)
            scores, ids = index.search(queries, 5)
            true = np.einsum("qd,qkd->qk", queries.astype(np.float64), vectors[ids].astype(np.float64))
            if (ids < 0).any() or not np.allclose(scores, true, rtol=1e-4) or (ids >= len(index)).any() or count < 500:
                failures.append(ids)

    readers = [threading.Thread(target=search) for _ in range(2)]
    for reader in readers:
        reader.start()
    for part in np.array_split(vectors[500:], 20):
        index.add(part)
    done.set()
    for reader in readers:
        reader.join()
    assert not failures
    assert recall(index.search(queries, 10, ef=100)[1], score("ip", queries, vectors), 10) > 0.9


def test_the_measured_recall_holds_on_new_queries(built: Any) -> None:
    metric, vectors, index = built
    curve = index.measure_recall(sample=200, k=10)
    assert "ef" in str(curve)
    queries = draw(200, seed=11)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecallWarning)
        ids = index.search(queries, 10, recall=0.95)[1]
    assert recall(ids, score(metric, queries, vectors), 10) > 0.92


def test_the_string_is_that_of_faiss() -> None:
    assert str(parse_spec("hnsw")) == "HNSW32" == str(parse_spec("HNSW32,Flat"))
    for wrong in ("HNSW1", "HNSW32,SQ8", "HNSW9999"):
        with pytest.raises(InputError, match="HNSW"):
            parse_spec(wrong)
    index = rl.Index("HNSW8")
    assert index.device == "cpu"
    index.add(draw(5))
    with pytest.raises(InputError, match="ef="):
        index.search(draw(1), 1, nprobe=3)
    with pytest.raises(InputError, match="row 0 of the queries"):
        index.search(np.full((1, 24), np.nan), 1)
    with pytest.raises(InputError, match="nprobe="):
        rl.Index("Flat").search(draw(1), 1, ef=3)


def copy_rows(values: Any, kind: str) -> Any:
    """`values` with many equal rows."""
    random, out = np.random.default_rng(3), values.copy()
    if kind == "a third is one row":
        out[random.permutation(len(out))[: len(out) // 3]] = out[0]
    elif kind == "copies come first":
        out[: len(out) // 4] = out[0]
    else:
        out = out[random.integers(0, int(kind.split()[0]), len(out))]
    return out


@pytest.mark.parametrize("kind", ["a third is one row", "copies come first", "40 rows", "300 rows"])
@pytest.mark.parametrize("metric", METRICS)
def test_equal_rows_do_not_lower_the_recall(kind: str, metric: str) -> None:
    plain = draw(3000)
    vectors = copy_rows(plain, kind)
    queries = draw(100, seed=1)
    found = []
    for values in (plain, vectors):
        index = rl.Index("HNSW8", metric=metric, device="cpu")
        for part in np.array_split(values, 3):
            index.add(part)
        found.append(recall(index.search(queries, 10, ef=32)[1], score(metric, queries, values), 10))
    assert found[1] >= found[0] - 0.01


@pytest.mark.parametrize("kind", ["a third is one row", "copies come first", "40 rows"])
def test_each_row_is_found_by_its_own_vector_with_all_its_copies(kind: str, tmp_path: Path) -> None:
    vectors = copy_rows(draw(2400), kind)
    ids = np.random.default_rng(2).permutation(5000)[:2400]
    index = rl.Index("HNSW8", metric="l2", device="cpu")
    for part in np.array_split(np.arange(2400), 4):
        index.add(vectors[part], ids=ids[part])
    index.save(tmp_path / "graph")
    again = rl.Index.load(tmp_path / "graph")
    again.add(vectors[:50], ids=np.arange(5000, 5050))  # copies of rows that were saved
    vectors, ids = np.concatenate([vectors, vectors[:50]]), np.concatenate([ids, np.arange(5000, 5050)])
    gone = np.random.default_rng(4).permutation(len(ids))
    for live in (np.arange(len(ids)), np.sort(gone[300:]), np.sort(gone[1500:])):
        if len(live) < len(again):
            again.remove(np.setdiff1d(again.ids, ids[live]))
        values, first, group = np.unique(vectors[live], axis=0, return_index=True, return_inverse=True)
        for number in np.random.default_rng(5).permutation(len(first))[:60]:
            copies = np.sort(ids[live][group == number])
            scores, found = again.search(values[number], len(copies))
            assert (found == copies).all()  # equal scores are sorted by id
            assert (scores == 0).all()
            assert again.search(values[number], 1, where=np.isin(again.ids, copies[-1:]))[1] == copies[-1]


@given(st.integers(2, 12), st.integers(1, 300), st.booleans(), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=15)
def test_a_graph_of_copies_is_the_graph_of_the_rows_that_differ(
    dim: int, distinct: int, signed: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows = random.standard_normal((distinct, dim)).astype(np.float32)
    order = np.concatenate([np.arange(distinct), random.integers(0, distinct, 400)])  # 0, 1, 2, …, then copies
    vectors = rows[order]
    if signed:
        vectors[random.random(vectors.shape) < 0.2] = 0.0
        vectors[vectors == 0] *= np.where(random.random((vectors == 0).sum()) < 0.5, 1, -1)  # 0 and -0 are equal
    graph = Graph(dim, 4, 20, True, False)
    graph.add(vectors, 2)
    arrays = graph.arrays()
    _, first, group = np.unique(vectors, axis=0, return_index=True, return_inverse=True)
    assert np.array_equal(arrays["graph_nodes"], first[group])
    lists = arrays["graph_links"]
    copies = arrays["graph_nodes"] != np.arange(len(vectors))
    assert not lists[copies, 0].any()
    linked = np.concatenate([line[1 : 1 + line[0]] for line in lists]) if len(lists) else lists
    assert not copies[linked.astype(np.int64)].any()
