"""Documents of many vectors: MaxSim is exact, on any order of changes, and a sketch finds most of it.

python -m pytest tests/search/test_multi.py
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError, StoreError
from ridgeline.search import MultiIndex
from ridgeline.search.token_codes import make_token_codec


def draw(count: int, dim: int = 16, seed: int = 0, longest: int = 9) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal((rng.integers(1, longest + 1), dim)).astype(np.float32) for _ in range(count)]
    return [part / np.linalg.norm(part, axis=1, keepdims=True) for part in parts]


def score(queries, documents) -> np.ndarray:
    """The obvious reference, in float64."""
    return np.array([[(q.astype(float) @ d.astype(float).T).max(1).sum() for d in documents] for q in queries]).reshape(
        len(queries), len(documents)
    )


def best(scores: np.ndarray, ids: np.ndarray, k: int) -> np.ndarray:
    return np.stack([ids[np.lexsort((ids, -row))][:k] for row in scores])


def join(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate(parts), np.cumsum([0, *map(len, parts)])


FORMS = [("Flat", "float32"), ("Flat", "float16"), ("SQ8", "float32"), ("RaBitQ", "float32")]


@pytest.mark.parametrize(("codes", "dtype"), FORMS)
def test_the_answer_is_the_exact_top_k_of_what_is_stored(codes: str, dtype: str):
    documents, queries = draw(120), draw(7, seed=1, longest=40)
    index = MultiIndex(codes, device="cpu", dtype=dtype)
    index.add(*join(documents[:50]), ids=np.arange(50)[::-1] + 1000)
    index.add(documents[50:])
    stored = index.reconstruct(index.ids)
    assert max(np.abs(a - b).max() for a, b in zip(stored, documents, strict=True)) < (1e-3 if codes == "Flat" else 0.2)
    expected = score(queries, stored)
    as_encoded = SimpleNamespace(vectors=join(queries)[0], offsets=join(queries)[1])
    for given_queries in (queries, join(queries), as_encoded):
        scores, ids = index.search(given_queries, 12)
        assert np.array_equal(ids, best(expected, index.ids, 12))
        assert np.allclose(scores, -np.sort(-expected, 1)[:, :12], atol=1e-6)
    one_scores, one_ids = index.search(queries[3], 12)
    assert np.array_equal(one_ids, ids[3])
    assert np.array_equal(one_scores, scores[3])


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(st.sampled_from(["add", "remove"]), st.integers(1, 6)), min_size=1, max_size=8),
    st.integers(1, 30),
    st.booleans(),
)
def test_any_order_of_changes_leaves_the_exact_answer(seed: int, steps, k: int, twins: bool):
    rng = np.random.default_rng(seed)
    index, kept = MultiIndex(device="cpu"), {}
    for what, count in steps:
        if what == "add":
            new = draw(count, 4, int(rng.integers(1 << 30)), 5)
            new = [new[0]] * count if twins else new  # equal scores
            ids = rng.choice(np.setdiff1d(np.arange(200), list(kept)), count, replace=False)
            index.add(new, ids=ids)
            kept.update(zip(ids.tolist(), new, strict=True))
        elif kept:
            gone = rng.choice(list(kept), min(count, len(kept)), replace=False)
            assert index.remove(gone) == len(gone)
            for number in gone.tolist():
                del kept[number]
    queries = draw(3, 4, seed % 1000, 6)
    scores, ids = index.search(queries, k)
    allowed = rng.random(len(kept)) < 0.5
    filtered = index.search(queries, k, where=allowed)[1]
    assert index.ids.tolist() == list(kept)
    found = score(queries, list(kept.values()))
    names, count = np.array(list(kept), np.int64), min(k, len(kept))
    assert np.array_equal(ids[:, :count], best(found, names, count))
    assert (ids[:, count:] == -1).all()
    assert np.isneginf(scores[:, count:]).all()
    passing = min(k, int(allowed.sum()))
    assert np.array_equal(filtered[:, :passing], best(found[:, allowed], names[allowed], passing))
    assert (filtered[:, passing:] == -1).all()


@pytest.mark.parametrize("dim", [1, 7, 64])
def test_four_bits_keep_inner_products_without_bias(dim: int):
    vectors, queries = np.concatenate(draw(400, dim, 1)), np.concatenate(draw(20, dim, 2))
    codec = make_token_codec("RaBitQ", "float32", vectors)
    codes = codec.encode(np.concatenate([vectors, np.zeros((1, dim), np.float32)]))
    stored = codec.decode(codes)
    assert codes.shape[1] == -(-dim // 2) + 4
    assert not stored[-1].any()
    lost = stored[:-1] - vectors
    assert np.abs(np.einsum("ij,ij->i", lost, vectors)).max() < 1e-5  # the error is at right angles to the vector
    assert np.linalg.norm(lost, axis=1).mean() < 0.11
    assert abs((queries @ lost.T).mean()) < 2e-3
    assert np.allclose(codec.rotate(queries) @ codec.decode_rotated(codes).T, queries @ stored.T, atol=1e-5)


def test_values_that_float32_cannot_sum_are_scored_in_float64():
    index = MultiIndex(device="cpu")
    index.add([np.array([[3e30, 1.0]]), np.array([[3e30, 2.0]])])
    scores, ids = index.search(np.array([[0.0, 1.0], [1e9, 0.0]]), 2)
    assert ids.tolist() == [0, 1]
    assert np.isinf(scores).all()


def test_conditions_choose_documents():
    documents = draw(40)
    index = MultiIndex(device="cpu")
    index.add(documents, meta={"year": np.arange(40) + 1980})
    ids = index.search(documents[:5], 40, where="year >= 1990 and year < 1993")[1]
    assert np.array_equal(np.sort(ids[:, :3], 1), [[10, 11, 12]] * 5)
    assert (ids[:, 3:] == -1).all()
    assert index.meta["year"].to_pylist()[0] == 1980


@pytest.mark.parametrize("sketch", [False, True])
@pytest.mark.parametrize("codes", ["Flat", "SQ8", "RaBitQ"])
def test_a_saved_index_has_the_same_results_and_can_grow(tmp_path, codes: str, sketch: bool):
    documents, queries = draw(60), draw(4, seed=2)
    index = MultiIndex(codes, device="cpu", sketch=sketch, model="m")
    index.add(documents, meta={"n": range(60)})
    index.remove([3, 4])
    index.save(tmp_path / "m")
    again = MultiIndex.load(tmp_path / "m", verify=True)
    for _ in range(2):
        for one, other in zip(again.search(queries, 9), index.search(queries, 9), strict=True):
            assert np.array_equal(one, other)
        for each in (index, again):
            each.add(draw(5, seed=7), meta={"n": range(5)})
    assert (again.model, again.ids[-1], again.stats()["count"]) == ("m", 69, 68)
    (tmp_path / "m" / "offsets.npy").write_bytes(b"x")
    with pytest.raises(StoreError, match=r"offsets\.npy"):
        MultiIndex.load(tmp_path / "m")


def test_a_sketch_finds_most_and_its_recall_is_measured():
    rng = np.random.default_rng(0)
    topics = rng.standard_normal((40, 32))
    documents = [
        (topics[rng.choice(40, 3)].repeat(4, 0) + 0.5 * rng.standard_normal((12, 32))).astype(np.float32)
        for _ in range(400)
    ]
    queries = [documents[n][::2] + 0.3 * rng.standard_normal((6, 32)).astype(np.float32) for n in range(0, 400, 20)]
    index = MultiIndex(device="cpu", sketch=True)
    index.add(documents)
    points = index.measure_recall(queries, k=5)
    recalls = [recall for _, recall, _, _ in points]
    assert recalls[0] < 1  # else the test shows nothing
    assert recalls == sorted(recalls)
    assert points[-1][1] == 1
    assert all(low <= recall <= high and low < high for _, recall, low, high in points)
    candidates = next(n for n, recall, _, _ in points if recall >= 0.9)
    assert candidates <= 160
    exact = index.search(queries, 5, candidates=400)[1]
    found = index.search(queries, 5, candidates=candidates)[1]
    assert np.mean([len(set(a) & set(b)) / 5 for a, b in zip(found, exact, strict=True)]) >= 0.9
    assert (index.search(queries, 5, candidates=20, where=np.arange(30))[1] < 30).all()


BAD = [
    (lambda i: i.add(np.ones((3, 4)), [0, 2]), "offsets go from 0 to 2 for 3 vectors"),
    (lambda i: i.add(np.ones((3, 4)), [0, 2, 2, 3]), "document 1 has no vector"),
    (lambda i: i.add(np.ones((3, 4)), [0, 2, 1, 3]), "document 1 has offsets that decrease"),
    (lambda i: i.add(np.ones((3, 4)), [0.0, 3.0]), "whole numbers"),
    (lambda i: i.add([np.ones((1, 4)), np.ones((1, 5))]), "document 1 has vectors of 5 dimensions"),
    (lambda i: i.add([np.ones((1, 5))]), "document 0 has vectors of 5 dimensions, others have 4"),
    (lambda i: i.add([np.array([[1, np.nan, 0, 0]])]), "row 0 of the vectors holds nan"),
    (lambda i: i.add([np.ones((1, 4))], ids=[0]), "id 0 is in the index already"),
    (lambda i: i.search(np.ones(4), 1), "queries are a list of matrices"),
    (lambda i: i.search([np.ones((0, 4))], 1), "query 0 has no vector"),
    (lambda i: i.search(np.ones((2, 4)), 0), "k is 0"),
    (lambda i: i.search(np.ones((2, 5)), 1), "5 dimensions, the index has 4"),
    (lambda i: i.remove([9]), "id 9 is not in the index"),
    (lambda i: MultiIndex("PQ4"), "no codes 'PQ4'"),
    (lambda i: MultiIndex(device="cpu").save("/tmp/none"), "holds nothing yet"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input_is_one_sentence_and_changes_nothing(call, message: str):
    index = MultiIndex(device="cpu")
    index.add([np.ones((2, 4))])
    with pytest.raises(InputError, match=message):
        call(index)
    assert index.ids.tolist() == [0]


def test_an_empty_index_has_no_results():
    scores, ids = MultiIndex(device="cpu").search([np.ones((2, 4))], 3)
    assert ids.tolist() == [[-1, -1, -1]]
    assert np.isneginf(scores).all()


def test_tensors_return_tensors():
    torch = pytest.importorskip("torch")
    index = MultiIndex(device="cpu")
    index.add(torch.ones(3, 4), torch.tensor([0, 1, 3]))
    scores, ids = index.search([torch.ones(2, 4)], 2)
    assert isinstance(scores, torch.Tensor)
    assert ids.tolist() == [[0, 1]]
