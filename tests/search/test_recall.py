"""Recall is measured, saved with the index, and used to choose settings.

python -m pytest tests/search/test_recall.py
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from tests.search.reference import nearest

from ridgeline import Index
from ridgeline.errors import InputError
from ridgeline.search.recall import Curve, Point, compute_recall, drop_own_rows, list_settings
from ridgeline.search.spec import parse_spec


def cloud(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def index() -> Index:
    make_index = Index("IVF32,PQ4,Refine(Flat)", metric="l2", device="cpu")
    make_index.train(cloud(4000))
    make_index.add(cloud(4000))
    make_index.measure_recall(sample=200, k=10)
    return make_index


def share(found_rows, truth) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found_rows, truth, strict=True)]))


def test_new_queries_have_the_measured_recall(index: Index):
    requested = cloud(200, 7)
    truth = nearest(requested, cloud(4000), 10, "l2")[1]
    shallow = [p for p in index.curve.points if p.depth in (1, 4, 16)]
    assert len(shallow) > 9
    for point in shallow:
        found_rows = index.search(requested, 10, nprobe=point.nprobe, depth=point.depth)[1]
        assert share(found_rows, truth) == pytest.approx(point.recall, abs=0.06)


@pytest.mark.parametrize("expected", [0.5, 0.8, 0.95])
def test_a_requested_recall_is_reached(index: Index, expected: float):
    requested = cloud(200, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found_rows = index.search(requested, 10, recall=expected)[1]
    assert share(found_rows, nearest(requested, cloud(4000), 10, "l2")[1]) >= expected - 0.05


def test_the_fastest_sufficient_setting_is_picked():
    points = (Point(1, 1, 0.4, 1e-5), Point(8, 1, 0.8, 5e-5), Point(16, 4, 0.97, 2e-4), Point(32, 1, 0.96, 1e-4))
    curve = Curve(10, 100, 1000, "vectors", points)
    assert curve.pick(0.5) == points[1]
    assert curve.pick(0.9) == points[3]
    assert curve.pick(0.99) is None
    assert curve.best() == points[2]
    assert Curve.from_json(curve.to_json()) == curve


def test_of_similarly_fast_settings_the_smaller_is_picked():
    points = (Point(8, 8, 0.99, 1.00e-4), Point(2, 4, 0.96, 1.05e-4))
    assert Curve(10, 100, 1000, "vectors", points).pick(0.95) == points[1]


def test_an_unreachable_recall_is_one_warning():
    make_index = Index("IVF8,PQ2", metric="l2", device="cpu")
    make_index.train(cloud(600))
    make_index.add(cloud(600))
    curve = make_index.measure_recall(sample=100, k=10, originals=cloud(600))
    assert curve.truth == "vectors"
    assert curve.best().recall < 0.9
    with pytest.warns(UserWarning, match=r"recall=0.99 .* the highest measured one is 0\.\d+ at nprobe"):
        make_index.search(cloud(3, 5), 10, recall=0.99)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_index.search(cloud(3, 5), 10, recall=0.99)


def test_codes_alone_are_measured_against_codes():
    make_index = Index("IVF8,PQ2", metric="l2", device="cpu")
    make_index.train(cloud(600))
    make_index.add(cloud(600))
    curve = make_index.measure_recall(sample=100)
    assert curve.truth == "codes"
    assert curve.best().recall == 1


def test_an_unmeasured_index_searches_all_lists_with_a_warning():
    make_index = Index("IVF32,Flat", metric="l2", device="cpu")
    make_index.train(cloud(2000))
    make_index.add(cloud(2000))
    requested = cloud(20, 3)
    with pytest.warns(UserWarning, match="no recall was measured"):
        found_rows = make_index.search(requested, 10, recall=0.9)[1]
    assert np.array_equal(found_rows, nearest(requested, cloud(2000), 10, "l2")[1])


def test_a_curve_of_far_fewer_rows_is_used_with_a_warning():
    make_index = Index("IVF4,Flat", metric="l2", device="cpu")
    make_index.train(cloud(300))
    make_index.add(cloud(300))
    make_index.measure_recall(sample=50)
    make_index.add(cloud(300, 1))
    with pytest.warns(UserWarning, match="measured over 300 rows and the index has 600"):
        make_index.search(cloud(1, 2), 5, recall=0.5)


def test_an_exact_index_has_every_recall():
    make_index = Index("Flat", metric="l2", device="cpu")
    make_index.add(cloud(100))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_index.search(cloud(1, 2), 5, recall=1.0)
    assert [p.recall for p in make_index.measure_recall(sample=20).points] == [1.0]


def test_small_indexes_can_be_measured_and_empty_ones_cannot():
    make_index = Index("Flat", metric="l2", device="cpu", dim=16)
    with pytest.raises(InputError, match="empty"):
        make_index.measure_recall()
    make_index.add(cloud(1))
    assert make_index.measure_recall().points[0].recall == 1


def test_a_query_is_not_its_own_neighbour():
    found_rows = np.array([[4, 7, 9], [1, 2, 3], [5, -1, -1]])
    assert drop_own_rows(found_rows, np.array([7, 8, 5]), 2).tolist() == [[4, 9], [1, 2], [-1, -1]]
    assert compute_recall(np.array([[4, 9]]), np.array([[9, 3]])) == 0.5
    assert compute_recall(np.array([[4, -1]]), np.array([[4, -1]])) == 1


def test_the_grid_ends_with_all_lists():
    assert [p for p, _ in list_settings(parse_spec("IVF20,Flat"))[0]] == [1, 2, 4, 8, 16, 20]
    assert [p for p, _ in list_settings(parse_spec("IVF16,Flat"))[0]] == [1, 2, 4, 8, 16]
    assert list_settings(parse_spec("SQ8")) == [[(1, 1)]]
