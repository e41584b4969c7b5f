"""Sparse and hybrid search return the exact top k: compared with dense float64.

python -m pytest tests/search/test_sparse.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline import Index
from ridgeline.errors import InputError, StoreError
from ridgeline.search import HybridIndex, SparseIndex

sp = pytest.importorskip("scipy.sparse")


def draw(rows: int, terms: int = 30, seed: int = 0, density: float = 0.15, signed: bool = True) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, terms)) if signed else rng.random((rows, terms))
    return np.where(rng.random((rows, terms)) < density, np.round(values, 1), 0).astype(np.float32)


def best(scores: np.ndarray, ids: np.ndarray, k: int) -> np.ndarray:
    return np.stack([ids[np.lexsort((ids, -row))][:k] for row in scores])


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(st.sampled_from(["add", "remove"]), st.integers(0, 9)), min_size=1, max_size=8),
    st.integers(1, 40),
)
def test_any_order_of_changes_leaves_the_exact_answer(seed: int, steps, k: int):
    rng = np.random.default_rng(seed)
    index, kept = SparseIndex(device="cpu"), {}
    for what, count in steps:
        if what == "add":
            new = draw(count, seed=int(rng.integers(1 << 30)))
            ids = rng.choice(np.setdiff1d(np.arange(300), list(kept)), count, replace=False)
            index.add(sp.csr_matrix(new), ids=ids)
            kept.update(zip(ids.tolist(), new, strict=True))
        elif kept and count:
            gone = rng.choice(list(kept), min(count, len(kept)), replace=False)
            assert index.remove(gone) == len(gone)
            for number in gone.tolist():
                del kept[number]
    queries = draw(4, seed=seed % 1000, density=0.3)
    rows = np.array(list(kept.values()), float).reshape(len(kept), 30)
    true, names, count = queries.astype(float) @ rows.T, np.array(list(kept), np.int64), min(k, len(kept))
    scores, ids = index.search(sp.csr_array(queries), k)
    assert np.array_equal(np.sort(ids[:, :count]), np.sort(best(true.round(9), names, count))) or count < len(kept)
    assert np.allclose(scores[:, :count], -np.sort(-true, 1)[:, :count], atol=1e-6)
    assert (ids[:, count:] == -1).all()
    shares = (queries != 0).astype(int) @ (rows != 0).T.astype(int) > 0
    matching = index.search(sp.csr_array(queries), k, matching=True)[1]
    for query, found in enumerate(matching):
        assert set(found[found >= 0]) <= set(names[shares[query]])
        assert (found >= 0).sum() == min(k, shares[query].sum())


def test_a_saved_index_has_the_same_results_and_can_grow(tmp_path):
    index, queries = SparseIndex(device="cpu", dim=30), sp.csr_array(draw(3, seed=1))
    index.add(sp.csr_array(draw(50)), meta={"n": range(50)})
    index.remove([4])
    index.save(tmp_path / "s")
    again = SparseIndex.load(tmp_path / "s", verify=True)
    for _ in range(2):
        for one, other in zip(
            again.search(queries, 9, where="n < 40"), index.search(queries, 9, where="n < 40"), strict=True
        ):
            assert np.array_equal(one, other)
        for each in (index, again):
            each.add(sp.csr_array(draw(5, seed=7)), meta={"n": range(5)})
    assert again.ids[-1] == 59
    (tmp_path / "s" / "terms.npy").write_bytes(b"x")
    with pytest.raises(StoreError, match=r"terms\.npy"):
        SparseIndex.load(tmp_path / "s")


def test_entries_of_one_term_count_together_and_other_forms_are_taken():
    index = SparseIndex(device="cpu")
    index.add(([0, 2, 3], [1, 1, 5], [0.5, 0.25, 2.0]))
    assert index.search(([0, 2], [1, 5], [2, 1]), 2)[0].tolist() == [[2.0, 1.5]]
    index.add(sp.coo_matrix(np.eye(6)))
    assert index.search(sp.csr_array(np.eye(6)[[5]]), 2)[1].tolist() == [[1, 7]]


BAD = [
    (lambda i: i.add(np.eye(3)), "SciPy sparse matrix"),
    (lambda i: i.add(sp.csr_array(np.eye(4))), "4 terms, the index has 3"),
    (lambda i: i.add(([0, 1], [-1], [1.0])), "term -1"),
    (lambda i: i.add(([0, 2], [1], [1.0])), "do not fit"),
    (lambda i: i.add(([0, 2, 1, 3], [0, 1, 2], [1.0, 1.0, 1.0])), "decrease"),
    (lambda i: i.add(([0, 1, 2], [0, 2], [1.0, np.nan])), "row 1 of the vectors holds nan for term 2"),
    (lambda i: i.search(sp.csr_array(np.eye(3)), 0), "k is 0"),
    (lambda i: i.remove([3]), "id 3 is not in the index"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input_is_one_sentence_and_changes_nothing(call, message: str):
    index = SparseIndex(device="cpu", dim=3)
    index.add(sp.csr_array(np.eye(3)))
    with pytest.raises(InputError, match=message):
        call(index)
    assert index.ids.tolist() == [0, 1, 2]


def build_hybrid(metric: str, rows: int = 400, seed: int = 0, spec: str = "Flat"):
    vectors = np.random.default_rng(seed).standard_normal((rows, 8)).astype(np.float32)
    words = draw(rows, seed=seed + 1)
    dense, sparse = Index(spec, metric=metric, device="cpu"), SparseIndex(device="cpu")
    if not dense.trained:
        dense.train(vectors)
    index = HybridIndex(dense=dense, sparse=sparse)
    ids = np.random.default_rng(seed).permutation(rows * 3)[:rows]
    index.add(dense=vectors, sparse=sp.csr_array(words), ids=ids, meta={"y": np.arange(rows) % 10})
    return index, vectors.astype(float), words.astype(float), ids


def score_dense(queries, vectors, metric: str) -> np.ndarray:
    if metric == "l2":
        return -((queries[:, None] - vectors[None]) ** 2).sum(2)
    if metric == "cosine":
        queries, vectors = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (queries, vectors))
    return queries @ vectors.T


@pytest.mark.parametrize("metric", ["ip", "cosine", "l2"])
@pytest.mark.parametrize("weights", [(0.7, 0.3), (0.01, 5), (0, 1), (1, 0)])
def test_weights_rank_all_rows_exactly(metric: str, weights):
    index, vectors, words, ids = build_hybrid(metric)
    queries, asked = np.random.default_rng(9).standard_normal((6, 8)), draw(6, seed=9, density=0.3)
    true = weights[0] * score_dense(queries, vectors, metric) + weights[1] * (asked.astype(float) @ words.T)
    for where, allowed in ((None, np.ones(400, bool)), ("y == 3", np.arange(400) % 10 == 3)):
        scores, found = index.search(dense=queries, sparse=sp.csr_array(asked), k=7, where=where, fuse=weights)
        order = -np.sort(-true[:, allowed], 1)[:, :7]
        assert np.allclose(scores, order, atol=1e-5)
        for row, names in zip(true, found, strict=True):
            rows = [int(np.flatnonzero(ids == name)[0]) for name in names]
            assert allowed[rows].all()
            assert np.allclose(row[rows], scores[np.flatnonzero((found == names).all(1))[0]], atol=1e-5)


def test_ranks_are_fused_as_published():
    index, vectors, words, ids = build_hybrid("ip")
    queries, asked = np.random.default_rng(9).standard_normal((5, 8)), draw(5, seed=9, density=0.3)
    near, lexical = score_dense(queries, vectors, "ip"), asked.astype(float) @ words.T
    shares = (asked != 0).astype(int) @ (words != 0).T.astype(int) > 0
    _, found = index.search(dense=queries, sparse=sp.csr_array(asked), k=5, ranked=50)
    for query in range(5):
        fused = dict.fromkeys(ids.tolist(), 0.0)
        for place, name in enumerate(best(near[[query]], ids, 50)[0]):
            fused[int(name)] += 1 / (61 + place)
        kept = ids[shares[query]]
        for place, name in enumerate(best(lexical[[query]][:, shares[query]].round(9), kept, 50)[0]):
            fused[int(name)] += 1 / (61 + place)
        top = sorted(fused.values(), reverse=True)[:5]
        assert np.allclose([fused[int(name)] for name in found[query]], top)


def test_rows_of_one_side_take_part_and_changes_keep_both_in_step():
    index, _, _, ids = build_hybrid("ip", rows=60)
    index.dense.remove(ids[:5])
    queries, asked = np.random.default_rng(2).standard_normal((2, 8)), draw(2, seed=3, density=0.4)
    _, found = index.search(dense=queries, sparse=sp.csr_array(asked), k=60, fuse=(1, 1))
    assert all(set(row) == set(ids) for row in found)
    assert index.remove(ids[:9]) == 9
    assert (len(index), len(index.dense), len(index.sparse)) == (51, 51, 51)
    with pytest.raises(InputError, match="already"):
        index.add(dense=np.eye(8)[:1], sparse=sp.csr_array(draw(1)), ids=ids[20:21], meta={"y": [0]})
    with pytest.raises(InputError, match="row 0"):
        index.add(dense=np.full((1, 8), np.nan), sparse=sp.csr_array(draw(1)), ids=[9999], meta={"y": [0]})
    assert len(index.dense) == len(index.sparse) == 51


@pytest.mark.parametrize("fuse", ["ranks", (1,), (1, -1), (0, 0), (1, np.nan), None])
def test_a_wrong_fusion_is_refused(fuse):
    index, *_ = build_hybrid("ip", rows=20)
    with pytest.raises(InputError, match="fuse is"):
        index.search(dense=np.ones((1, 8)), sparse=sp.csr_array(draw(1)), k=2, fuse=fuse)
