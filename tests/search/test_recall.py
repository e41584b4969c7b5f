"""Recall is measured honestly, carried along, and chosen by.

python -m pytest tests/search/test_recall.py
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from tests.search.reference import nearest

from ridgeline import Index
from ridgeline.errors import InputError
from ridgeline.search.recall import Curve, Point, grid, recall_of, without
from ridgeline.search.spec import parse


def cloud(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def index() -> Index:
    made = Index("IVF32,PQ4,Refine(Flat)", metric="l2", device="cpu")
    made.train(cloud(4000))
    made.add(cloud(4000))
    made.measure_recall(sample=200, k=10)
    return made


def share(found, truth) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found, truth, strict=True)]))


def test_what_was_measured_is_what_new_queries_get(index: Index):
    asked = cloud(200, 7)
    truth = nearest(asked, cloud(4000), 10, "l2")[1]
    shallow = [p for p in index.curve.points if p.depth in (1, 4, 16)]
    assert len(shallow) > 9
    for point in shallow:
        found = index.search(asked, 10, nprobe=point.nprobe, depth=point.depth)[1]
        assert share(found, truth) == pytest.approx(point.recall, abs=0.06)


@pytest.mark.parametrize("wanted", [0.5, 0.8, 0.95])
def test_a_recall_that_is_asked_for_is_reached(index: Index, wanted: float):
    asked = cloud(200, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = index.search(asked, 10, recall=wanted)[1]
    assert share(found, nearest(asked, cloud(4000), 10, "l2")[1]) >= wanted - 0.05


def test_the_quickest_setting_that_suffices_is_picked():
    points = (Point(1, 1, 0.4, 1e-5), Point(8, 1, 0.8, 5e-5), Point(16, 4, 0.97, 2e-4), Point(32, 1, 0.96, 1e-4))
    curve = Curve(10, 100, 1000, "vectors", points)
    assert curve.pick(0.5) == points[1]
    assert curve.pick(0.9) == points[3]
    assert curve.pick(0.99) is None
    assert curve.best() == points[2]
    assert Curve.from_json(curve.to_json()) == curve


def test_of_settings_about_as_quick_the_smaller_is_picked():
    points = (Point(8, 8, 0.99, 1.00e-4), Point(2, 4, 0.96, 1.05e-4))
    assert Curve(10, 100, 1000, "vectors", points).pick(0.95) == points[1]


def test_what_cannot_be_reached_is_said_once():
    made = Index("IVF8,PQ2", metric="l2", device="cpu")
    made.train(cloud(600))
    made.add(cloud(600))
    curve = made.measure_recall(sample=100, k=10, originals=cloud(600))
    assert curve.truth == "vectors"
    assert curve.best().recall < 0.9
    with pytest.warns(UserWarning, match=r"recall=0.99 .* the most that was measured is 0\.\d+ at nprobe"):
        made.search(cloud(3, 5), 10, recall=0.99)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.search(cloud(3, 5), 10, recall=0.99)


def test_codes_alone_are_measured_against_themselves_and_say_so():
    made = Index("IVF8,PQ2", metric="l2", device="cpu")
    made.train(cloud(600))
    made.add(cloud(600))
    curve = made.measure_recall(sample=100)
    assert curve.truth == "codes"
    assert curve.best().recall == 1


def test_an_unmeasured_index_searches_everything_and_says_so():
    made = Index("IVF32,Flat", metric="l2", device="cpu")
    made.train(cloud(2000))
    made.add(cloud(2000))
    asked = cloud(20, 3)
    with pytest.warns(UserWarning, match="no recall was measured"):
        found = made.search(asked, 10, recall=0.9)[1]
    assert np.array_equal(found, nearest(asked, cloud(2000), 10, "l2")[1])


def test_a_curve_of_far_fewer_rows_is_not_trusted_silently():
    made = Index("IVF4,Flat", metric="l2", device="cpu")
    made.train(cloud(300))
    made.add(cloud(300))
    made.measure_recall(sample=50)
    made.add(cloud(300, 1))
    with pytest.warns(UserWarning, match="measured over 300 rows and the index has 600"):
        made.search(cloud(1, 2), 5, recall=0.5)


def test_an_exact_index_has_every_recall():
    made = Index("Flat", metric="l2", device="cpu")
    made.add(cloud(100))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.search(cloud(1, 2), 5, recall=1.0)
    assert [p.recall for p in made.measure_recall(sample=20).points] == [1.0]


def test_few_rows_can_be_measured_and_none_cannot():
    made = Index("Flat", metric="l2", device="cpu", dim=16)
    with pytest.raises(InputError, match="empty"):
        made.measure_recall()
    made.add(cloud(1))
    assert made.measure_recall().points[0].recall == 1


def test_one_self_is_no_neighbour():
    found = np.array([[4, 7, 9], [1, 2, 3], [5, -1, -1]])
    assert without(found, np.array([7, 8, 5]), 2).tolist() == [[4, 9], [1, 2], [-1, -1]]
    assert recall_of(np.array([[4, 9]]), np.array([[9, 3]])) == 0.5
    assert recall_of(np.array([[4, -1]]), np.array([[4, -1]])) == 1


def test_the_grid_ends_with_all_lists():
    assert [p for p, _ in grid(parse("IVF20,Flat"))[0]] == [1, 2, 4, 8, 16, 20]
    assert [p for p, _ in grid(parse("IVF16,Flat"))[0]] == [1, 2, 4, 8, 16]
    assert grid(parse("SQ8")) == [[(1, 1)]]
