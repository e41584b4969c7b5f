"""Bad input is refused with a clear message.

python -m pytest tests/search/test_input.py
"""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline import Index
from ridgeline.errors import InputError, RidgelineError


def fill_index(rows: int = 6, dim: int = 4, **more) -> Index:
    index = Index("Flat", device="cpu", **more)
    index.add(np.random.default_rng(0).standard_normal((rows, dim)))
    return index


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_with_its_row(bad: float):
    index = fill_index()
    vectors = np.ones((5, 4), np.float32)
    vectors[3, 2] = bad
    with pytest.raises(InputError, match=r"row 3 of the vectors holds -?(nan|inf) in column 2"):
        index.add(vectors)
    assert len(index) == 6
    with pytest.raises(InputError, match="row 3 of the queries"):
        index.search(vectors, 1)


def test_a_float64_beyond_float32_is_refused_too():
    with pytest.raises(InputError, match="row 1 "):
        fill_index().add(np.array([[1.0, 1, 1, 1], [1e300, 0, 0, 0]]))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda i: i.add(np.zeros((1, 7))), "7 dimensions, the index has 4"),
        (lambda i: i.search(np.zeros((1, 7)), 1), "7 dimensions, the index has 4"),
        (lambda i: i.add(np.zeros(4)), r"one vector as vector\[None\]"),
        (lambda i: i.add(np.zeros((2, 2, 4))), r"give \[n, dim\]"),
        (lambda i: i.add([["a", "b", "c", "d"]]), "give numbers"),
        (lambda i: i.add([[1, 2], [1]]), "no matrix"),
        (lambda i: i.search(np.zeros((1, 4)), 0), "k is 0"),
        (lambda i: i.search(np.zeros((1, 4)), -3), "k is -3"),
        (lambda i: i.search(np.zeros((1, 4)), 2.5), "k is 2.5"),
        (lambda i: i.search(np.zeros((1, 4)), 10**12), "1 × 1000000000000 neighbours are too many; there are 6 rows"),
        (lambda i: i.add(np.ones((1, 4)), meta={"a": 5}), "meta"),
        (lambda i: i.search(np.zeros((1, 4)), 1, nprobe=0), "nprobe is 0"),
        (lambda i: i.search(np.zeros((1, 4)), 1, recall=1.5), "recall is 1.5"),
        (lambda i: i.search(np.zeros((1, 4)), 1, recall=0.5, nprobe=2), "not both"),
        (lambda i: i.range_search(np.zeros((1, 4)), float("nan")), "radius is nan"),
        (lambda i: i.add(np.zeros((2, 4)), ids=[7, 7]), "id 7 is given twice"),
        (lambda i: i.add(np.zeros((2, 4)), ids=[9, 3]), "id 3 is in the index already"),
        (lambda i: i.add(np.zeros((2, 4)), ids=[9]), "1 ids for 2 vectors"),
        (lambda i: i.add(np.zeros((1, 4)), ids=[-1]), "id -1 is negative"),
        (lambda i: i.add(np.zeros((1, 4)), ids=[0.5]), "whole numbers"),
        (lambda i: i.remove([2, 77]), "id 77 is not in the index"),
        (lambda i: i.reconstruct([77, 78]), "id 77 and 1 more is not in the index"),
        (lambda i: i.train(np.zeros((9, 4))), "holds 6 rows"),
        (lambda i: i.measure_recall(sample=0), "sample is 0"),
        (lambda i: i.search(np.zeros((1, 4)), 1, where="a > 1"), "have no meta"),
        (lambda i: i.search(np.zeros((1, 4)), 1, where=np.ones(5, bool)), r"shape \(5,\) for 6 rows"),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(call, words: str):
    index = fill_index()
    before = index.ids
    with pytest.raises(InputError, match=words) as error:
        call(index)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")
    assert np.array_equal(index.ids, before)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"metric": "dot"}, "no metric 'dot'"),
        ({"device": "gpu"}, "no device 'gpu'"),
        ({"device": "cpu:1"}, "no device 'cpu:1'"),
        ({"dtype": "int8"}, "no dtype 'int8'"),
        ({"dim": 0}, "dim is 0"),
        ({"spec": "IVF4,PQ5", "dim": 12}, "'PQ5' does not divide 12 dimensions into equal parts; use PQ6"),
    ],
)
def test_bad_settings_are_refused(settings: dict, words: str):
    with pytest.raises(InputError, match=words):
        Index(**{"device": "cpu", **settings})


def test_an_untrained_index_refuses_add_and_search():
    index = Index("IVF8,Flat", device="cpu")
    with pytest.raises(InputError, match="trained before search"):
        index.search(np.zeros((1, 4)), 1)
    with pytest.raises(InputError, match="trained before add"):
        index.add(np.ones((9, 4)))
    with pytest.raises(InputError, match="needs 8 vectors or more to learn from and was given 5"):
        index.train(np.ones((5, 4)))
    with pytest.raises(InputError, match="no vectors"):
        Index("SQ8", device="cpu", dim=4).train(np.ones((0, 4)))
    assert not index.trained


def test_a_failed_add_changes_nothing():
    index = Index("Flat", metric="ip", device="cpu")
    index.add(np.eye(4)[:2], meta={"a": [1, 2]})
    for bad in ({"a": [1]}, {"b": [1, 2]}, {"a": ["x", "y"]}, None, 5):
        with pytest.raises(RidgelineError):
            index.add(np.eye(4)[2:], meta=bad)
    index.add(np.eye(4)[2:], meta={"a": [3, 4]})
    assert index.search(np.eye(4), 1)[1].ravel().tolist() == [0, 1, 2, 3]
    assert index.meta["a"].to_pylist() == [1, 2, 3, 4]


def test_the_last_id_is_the_last():
    index = Index("Flat", device="cpu")
    index.add(np.eye(4)[:1], ids=[2**63 - 2])
    index.add(np.eye(4)[1:2])
    assert index.ids.tolist() == [2**63 - 2, 2**63 - 1]
    with pytest.raises(InputError, match="beyond 64 bits; give ids="):
        index.add(np.eye(4)[2:])
    index.add(np.eye(4)[2:], ids=[1, 2])
    index.add(np.zeros((0, 4)))
    assert len(index) == 4


def test_numpy_integers_are_accepted():
    index = Index("IVF2,Flat,Refine(Flat)", device="cpu", dim=np.int64(4))
    vectors = np.random.default_rng(0).standard_normal((60, 4))
    index.train(vectors)
    index.add(vectors)
    expected = index.search(vectors, 3, nprobe=2, depth=2)[1]
    assert np.array_equal(index.search(vectors, np.int32(3), nprobe=np.int64(2), depth=np.uint8(2))[1], expected)


@pytest.mark.parametrize("make", [np.asarray, list, tuple])
def test_one_vector_is_one_query(make):
    index = Index("Flat", metric="ip", device="cpu")
    index.add(np.eye(4, dtype=np.float32), meta={"n": [0, 1, 2, 3]})
    query = make([0.1, 0.2, 0.9, 0.3])
    scores, ids = index.search(query, 2)
    assert ids.tolist() == [2, 3]
    assert scores == pytest.approx([0.9, 0.3])
    assert index.search(query, 1, where="n < 2")[1].tolist() == [1]
    assert index.range_search(query, 0.25)[2].tolist() == [2, 3]
    with Index.shard(["cpu", "cpu"], metric="ip") as shards:
        shards.add(np.eye(4, dtype=np.float32))
        assert shards.search(query, 2)[1].tolist() == [2, 3]
        assert shards.range_search(query, 0.25)[2].tolist() == [2, 3]
    with pytest.raises(InputError, match="3 dimensions, the index has 4"):
        index.search([0.1, 0.2, 0.3], 1)


def test_one_tensor_is_one_query():
    torch = pytest.importorskip("torch")
    index = Index("Flat", metric="ip", device="cpu")
    index.add(np.eye(4, dtype=np.float32))
    scores, ids = index.search(torch.tensor([0.1, 0.2, 0.9, 0.3]), 2)
    assert isinstance(ids, torch.Tensor)
    assert ids.tolist() == [2, 3]
    assert scores.shape == (2,)
