"""EASE and item-kNN over the nearest items, against float64 solutions, and a model without texts.

python -m pytest tests/recommend/test_neighbours.py
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline import native
from ridgeline.errors import InputError
from ridgeline.recommend import Options, Recommender, demo, evaluation, mask_scores, measure, read, split_dataset
from ridgeline.recommend.data import Ratings, build_histories
from ridgeline.recommend.models import Ease, NeighbourEase, ease, neighbour_ease
from ridgeline.recommend.models.neighbour_ease import find_neighbours


def draw(users, items, share, seed):
    liked = np.random.default_rng(seed).random((users, items)) < share
    liked[0, 0] = True
    rows, columns = np.nonzero(liked)
    many = len(rows)
    ratings = Ratings(rows, columns, np.full(many, 5.0, np.float32), np.zeros(many, int))
    return build_histories(ratings, users, items), liked.astype(float)


CASES = {
    "users": st.integers(1, 40),
    "items": st.integers(1, 30),
    "share": st.sampled_from([0.02, 0.2, 0.9]),
    "seed": st.integers(0, 1 << 16),
}


@settings(max_examples=40, deadline=None)
@given(**CASES, count=st.integers(1, 40), counted=st.integers(0, 40))
def test_neighbours_are_those_of_all_pairs(users, items, share, seed, count, counted):
    train, x = draw(users, items, share, seed)
    both = x.T @ x
    length = np.sqrt(np.maximum(np.diag(both), 1))
    cosine = (both / np.outer(length, length)).astype(np.float32)
    near = find_neighbours(train, count, counted)
    for values, rows, likes in (
        (cosine, near.items, near.likes),
        (both, near.frequent, near.frequent_likes),
    ):
        for item in range(items):
            others = [other for other in range(items) if other != item and both[item, other] > 0]
            want = sorted(others, key=lambda other: (-values[item, other], other))[: rows.shape[1]]
            assert rows[item].tolist() == want + [-1] * (rows.shape[1] - len(want))
            assert likes[item, : len(want)].tolist() == both[item, want].tolist()


@settings(max_examples=30, deadline=None)
@given(**CASES, penalty=st.sampled_from([0.5, 10.0, 1000.0]))
def test_ease_over_all_neighbours_is_ease(users, items, share, seed, penalty):
    train, x = draw(users, items, share, seed)
    model = NeighbourEase(penalty, neighbours=items).fit(train)
    want = np.zeros((items, items))
    gram = x.T @ x
    for item in range(items):  # over the items with a user in common; the weights of others are 0 only for large λ
        near = [other for other in range(items) if other != item and gram[item, other] > 0]
        if near:
            want[near, item] = np.linalg.solve(gram[np.ix_(near, near)] + penalty * np.eye(len(near)), gram[near, item])
    np.testing.assert_allclose(model.weights.toarray(), want, atol=1e-4)
    np.testing.assert_allclose(model.scores(train), x @ want, atol=1e-3)
    assert model.similar(0).tolist() == model.weights.toarray()[0].tolist()
    both = np.arange(items)
    np.testing.assert_array_equal(model.get_weights(both, both), model.weights.toarray().T)


def test_ease_over_dense_data_equals_the_dense_model():
    train, _ = draw(80, 25, 0.4, 3)
    dense, sparse = Ease(10.0).fit(train), NeighbourEase(10.0).fit(train)
    np.testing.assert_allclose(sparse.scores(train), dense.scores(train), atol=2e-3)
    items = np.arange(25)
    np.testing.assert_allclose(sparse.get_weights(items, items), dense.get_weights(items, items), atol=1e-3)


@pytest.mark.parametrize("isa", native.instruction_sets())
def test_pairs_that_are_not_counted_make_no_infinite_weights(isa):
    """An indefinite matrix: users of both items exceed those of either, as lists that are cut off can have it."""
    frequent = np.array([[1], [0], [-1]], np.int32)
    weights = np.empty((1, 2), np.float32)
    native.solve_neighbours(
        frequent,
        np.array([[9], [9], [0]], np.float32),
        np.array([1, 1, 1], np.float32),
        np.full(3, -1, np.int32),
        np.zeros((0, 0), np.float32),
        np.array([[0, 1]], np.int32),
        np.array([[1, 1]], np.float32),
        0.5,
        weights,
        1,
        isa,
    )
    assert np.isfinite(weights).all()


def test_pairs_outside_the_counted_ones_cost_little(monkeypatch):
    train, _ = draw(300, 60, 0.1, 5)
    full = NeighbourEase(10.0).fit(train).scores(train)
    monkeypatch.setattr(neighbour_ease, "BLOCK", 7)
    np.testing.assert_array_equal(NeighbourEase(10.0).fit(train).scores(train), full)
    monkeypatch.setattr(neighbour_ease, "HEADS", 10)
    monkeypatch.setattr(neighbour_ease, "COUNTED", 30)
    part = NeighbourEase(10.0).fit(train).scores(train)
    assert np.corrcoef(full.ravel(), part.ravel())[0, 1] > 0.95


def test_wrong_arrays_are_refused():
    starts, items = np.array([0, 1]), np.array([5], np.int32)
    outputs = [np.empty((1, 2), np.int32), np.empty((1, 2), np.float32)] * 2
    with pytest.raises(ValueError, match="outside"):
        native.find_neighbours(starts, items, starts, np.zeros(1, np.int32), 0, *outputs)
    with pytest.raises(ValueError, match="starts"):
        native.find_neighbours(np.array([0, 2]), items, starts, items, 0, *outputs)
    with pytest.raises(ValueError, match="outside the items"):
        native.find_neighbours(starts, np.zeros(1, np.int32), starts, np.zeros(1, np.int32), 1, *outputs)


@pytest.fixture(scope="module")
def bare():
    return Recommender.fit(demo.draw_dataset(), None)


@pytest.fixture(scope="module")
def wide():
    """The same, as a catalogue that is too large for the dense model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ease, "MAX_ITEMS", 20)
        patch.setattr(evaluation, "MAX_ITEMS", 20)
        patch.setattr(evaluation, "LEARNING_ITEMS", 15)
        yield Recommender.fit(demo.draw_dataset(), None)


@pytest.mark.parametrize("name", ["bare", "wide"])
def test_a_model_without_texts_answers_by_ratings(name, request, tmp_path):
    model = request.getfixturevalue(name)
    assert isinstance(model.hybrid.ease, NeighbourEase if name == "wide" else Ease)
    model.save(tmp_path / "model")
    with Recommender.load(tmp_path / "model") as again:
        assert again.recommend(3, Options(20)) == model.recommend(3, Options(20))
        assert again.similar("Alien")[2] == model.similar("Alien")[2]
        assert any(a.why for a in again.recommend(3))
        assert {a.basis for a in again.recommend(3)} == {"likes"}
        with pytest.raises(InputError, match="fitted without texts"):
            again.search("a shark")
        assert again.add_items([{"id": "x", "title": "X"}]) == {"added": 1}
        fans = [{"user": f"f{n}", "item": item, "rating": 5} for n in range(5) for item in ("x", 1, 2)]
        again.add_ratings(fans)
        liked = next(user for user in range(1, 200) if 1 in [r["item"] for r in again.list_ratings(user)])
        assert "x" in [a.item for a in again.recommend(liked, Options(200))]
        again.add_ratings([{"user": "new", "item": "x", "rating": 2}])
        assert {a.basis for a in again.recommend("new")} == {"popularity"}
        again.add_items([{"id": "y", "title": "Unknown"}])
        with pytest.raises(InputError, match="nothing is known to be similar"):
            again.similar_to(again.find_item("y"))


def test_given_vectors_must_fit_the_items():
    data = demo.draw_dataset()
    with pytest.raises(InputError, match="one row per item"):
        Recommender.fit(data, None, vectors=np.zeros((3, 4), np.float32))
    vectors = np.random.default_rng(0).standard_normal((len(data.catalogue), 4)).astype(np.float32)
    few = dataclasses.replace(data)
    assert Recommender.fit(few, None, vectors=vectors, encoder="mine").encoder == "mine"


@pytest.mark.slow  # fits a real dataset twice
def test_rankings_on_movielens_are_as_good_as_those_of_the_dense_model():
    base = os.environ.get("RIDGELINE_DATA")
    if not base:
        pytest.skip("no RIDGELINE_DATA")
    split = split_dataset(read(Path(base) / "movielens" / "ml-latest-small"), "random", 4.0)
    quality = []
    for model in (Ease(100.0), NeighbourEase(100.0)):
        scores = mask_scores(model.fit(split.train).scores(split.history), split.history, split.candidates)
        quality.append(measure(scores, split.test, ["ndcg@10"])[0]["ndcg@10"].mean())
    assert abs(quality[0] - quality[1]) < 0.004
