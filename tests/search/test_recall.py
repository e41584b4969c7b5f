"""Recall is measured, saved with the index, and used to choose settings.

python -m pytest tests/search/test_recall.py
"""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
from tests.search.reference import nearest

from ridgeline import Index
from ridgeline.errors import InputError
from ridgeline.search import RecallWarning
from ridgeline.search.recall import Curve, Point, compute_interval, compute_recall, drop_own_rows, list_settings
from ridgeline.search.spec import parse_spec
from ridgeline.search.truth import hold_out_truth_sample


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
        assert point.low - 0.02 <= share(found_rows, truth) <= point.high + 0.02


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
    with pytest.warns(
        RecallWarning, match=r"recall=0.99 .* the highest measured one is 0\.\d+ \(0\.\d+ to 0\.\d+\) at nprobe"
    ):
        make_index.search(cloud(3, 5), 10, recall=0.99)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_index.search(cloud(3, 5), 10, recall=0.99)


def make_coded_index(spec: str = "IVF8,PQ2", rows: int = 600, metric: str = "l2") -> Index:
    make_index = Index(spec, metric=metric, device="cpu")
    make_index.train(cloud(rows))
    return make_index


@pytest.mark.parametrize(("spec", "metric"), [("IVF4,PQ2", "l2"), ("IVF4,PQ2", "cosine"), ("SQ8", "ip")])
def test_codes_are_measured_against_the_vectors_that_were_added(spec: str, metric: str):
    make_index = make_coded_index(spec, metric=metric)
    for part in np.array_split(cloud(600), [1, 5, 100, 350]):
        make_index.add(part)
    measured = make_index.measure_recall(sample=200)
    assert (measured.truth, measured.sample) == ("vectors", 128)
    exact = make_index.measure_recall(sample=200, originals=cloud(600))
    for point, same in zip(measured.points, exact.points, strict=False):
        assert point.recall == pytest.approx(same.recall, abs=0.07)


def test_a_recall_that_codes_cannot_reach_is_a_warning_with_the_measured_one():
    make_index = make_coded_index()
    make_index.add(cloud(600))
    make_index.measure_recall(sample=100)
    true_rows = nearest(cloud(200, 5), cloud(600), 10, "l2")[1]
    with pytest.warns(RecallWarning, match=r"recall=0.95 .* highest measured one is 0\.\d+") as caught:
        found_rows = make_index.search(cloud(200, 5), 10, recall=0.95)[1]
    said = float(re.search(r"measured one is (0\.\d+)", str(caught[0].message))[1])
    assert share(found_rows, true_rows) == pytest.approx(said, abs=0.07)


@pytest.mark.parametrize("seed", range(3))
def test_the_truth_of_codes_follows_removals_and_later_rows(seed: int):
    """Also with ids that are removed and given again to other vectors."""
    rng = np.random.default_rng(seed)
    make_index = make_coded_index()
    vectors = dict(enumerate(cloud(600)))
    make_index.add(cloud(600))
    for _ in range(6):
        gone = rng.choice(sorted(vectors), 60, replace=False)
        make_index.remove(gone)
        fresh = rng.standard_normal((60, 16)).astype(np.float32)
        make_index.add(fresh[:20], ids=gone[:20])
        make_index.add(fresh[20:])
        for number in gone.tolist():
            del vectors[number]
        vectors.update(zip(make_index.ids[-60:].tolist(), fresh, strict=True))
    ids = np.array(sorted(vectors))
    stored = np.stack([vectors[number] for number in ids.tolist()])
    rows = make_index._snapshot.rows
    queries, own_rows, found_rows = make_index._snapshot.truth.find_neighbours(rows, 5)
    assert len(queries) >= 100
    true_ids = ids[nearest(queries, stored, 6, "l2")[1]]
    own = np.where(own_rows >= 0, rows.ids.rows[own_rows], -1)
    for found, true, mine in zip(rows.ids.rows[found_rows], true_ids, own, strict=True):
        assert found.tolist() == [number for number in true.tolist() if number != mine][:5]


def test_an_older_index_of_codes_says_that_its_recall_is_against_codes(tmp_path):
    make_index = make_coded_index()
    make_index.add(cloud(600))
    make_index.save(tmp_path / "new")
    assert Index.load(tmp_path / "new").measure_recall(sample=100).truth == "vectors"
    make_index._snapshot = replace(make_index._snapshot, truth=None)
    make_index.save(tmp_path / "old")
    old = Index.load(tmp_path / "old")
    curve = old.measure_recall(sample=100)
    assert (curve.truth, curve.best().recall) == ("codes", 1)
    with pytest.warns(RecallWarning, match=r"against its codes.*measure_recall\(originals=vectors\)"):
        old.search(cloud(3, 5), 10, recall=0.95)


def test_an_unmeasured_index_searches_all_lists_with_a_warning():
    make_index = Index("IVF32,Flat", metric="l2", device="cpu")
    make_index.train(cloud(2000))
    make_index.add(cloud(2000))
    requested = cloud(20, 3)
    with pytest.warns(RecallWarning, match="no recall was measured"):
        found_rows = make_index.search(requested, 10, recall=0.9)[1]
    assert np.array_equal(found_rows, nearest(requested, cloud(2000), 10, "l2")[1])


def test_a_curve_of_far_fewer_rows_is_used_with_a_warning():
    make_index = Index("IVF4,Flat", metric="l2", device="cpu")
    make_index.train(cloud(300))
    make_index.add(cloud(300))
    make_index.measure_recall(sample=50)
    make_index.add(cloud(300, 1))
    with pytest.warns(RecallWarning, match="measured over 300 rows and the index has 600"):
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


@pytest.mark.parametrize(("mean", "alike"), [(0.95, 0.0), (0.95, 0.8), (0.7, 0.5), (0.995, 0.3)])
def test_the_interval_holds_the_recall_of_other_queries(mean: float, alike: float):
    """Neighbours of one query are found or missed together (`alike`); 95 of 100 samples hold the true recall."""
    rng = np.random.default_rng(0)
    scale = (1 - alike) / max(alike, 1e-3)
    held = 0
    for _ in range(400):
        chance = rng.beta(mean * scale, (1 - mean) * scale, 300)
        shares = rng.binomial(10, chance) / 10
        _, low, high = compute_interval(shares)
        held += low <= mean <= high
    assert held >= 0.92 * 400


def test_the_interval_of_a_sample_without_a_miss_is_no_point():
    assert compute_interval(np.ones(100)) == (1, pytest.approx(0.963, abs=1e-3), 1)
    assert compute_interval(np.zeros(0)) == (1, 0, 1)
    assert compute_interval(np.zeros(5))[:2] == (0, 0)


def test_a_query_is_not_its_own_neighbour():
    found_rows = np.array([[4, 7, 9], [1, 2, 3], [5, -1, -1]])
    assert drop_own_rows(found_rows, np.array([7, 8, 5]), 2).tolist() == [[4, 9], [1, 2], [-1, -1]]
    assert compute_recall(np.array([[4, 9]]), np.array([[9, 3]])) == 0.5
    assert compute_recall(np.array([[4, -1]]), np.array([[4, -1]])) == 1


def test_the_grid_ends_with_all_lists():
    assert [p for p, _ in list_settings(parse_spec("IVF20,Flat"))[0]] == [1, 2, 4, 8, 16, 20]
    assert [p for p, _ in list_settings(parse_spec("IVF16,Flat"))[0]] == [1, 2, 4, 8, 16]
    assert list_settings(parse_spec("SQ8")) == [[(1, 1)]]


def test_queries_of_the_truth_are_not_trained_on():
    vectors = np.random.default_rng(0).standard_normal((3000, 4)).astype(np.float32)
    for count, kept in ((2500, 2500), (3000, 3000 - 128)):
        rest, sample = hold_out_truth_sample(vectors[:count], 0, 8)
        assert (len(rest), len(sample.queries)) == (kept, 128)
    assert not (rest[:, None, 0] == sample.queries[None, :, 0]).any()
    assert len(hold_out_truth_sample(vectors, 0, 2900)[0]) == 3000
