"""Auto: which index it makes, and the recall that it aims at, with fewer rows than in real use."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeline.search import Index, RecallWarning, choose_spec
from ridgeline.search import spec as spec_module

DIM = 32


def draw(count: int, seed: int = 0) -> Any:
    axes = np.random.default_rng(9).standard_normal((12, DIM))
    random = np.random.default_rng(seed)
    values = random.standard_normal((count, 12)) @ axes + 0.5 * random.standard_normal((count, DIM))
    return values.astype(np.float32)


def measure(index: Index, vectors: Any, k: int) -> float:
    exact = Index("Flat", metric=index.metric, device="cpu")
    exact.add(vectors)
    queries = draw(200, seed=7)
    truth, ids = exact.search(queries, k)[1], index.search(queries, k)[1]
    return float(np.mean([len(set(a) & set(b)) / k for a, b in zip(ids.tolist(), truth.tolist(), strict=True)]))


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph from 1,000 rows on."""
    monkeypatch.setattr(spec_module, "GRAPH_ROWS", 1000)
    monkeypatch.setattr("ridgeline.search.index.GRAPH_ROWS", 1000)


def test_the_spec_follows_from_the_number_of_rows() -> None:
    assert [str(choose_spec(n, graph=True)) for n in (0, 19_999, 20_000, 1_000_000)] == ["Flat"] * 2 + ["HNSW32"] * 2
    assert choose_spec(1_000_001, graph=True).lists == choose_spec(1_000_001).lists == 2048
    assert [str(choose_spec(n)) for n in (20_000, 200_000)] == ["Flat", "Flat"]
    assert choose_spec(200_001).lists == 1024


@pytest.mark.usefixtures("few_rows")
def test_enough_rows_become_a_graph_and_fewer_do_not() -> None:
    vectors = np.random.default_rng(0).standard_normal((1_000, 4)).astype(np.float32)
    for count, spec in ((999, "Flat"), (1_000, "HNSW32")):
        index = Index("Auto", metric="l2", device="cpu")
        index.add(vectors[:count])
        assert index.spec == spec
    half = Index("Auto", metric="l2", device="cpu", dtype="float16")
    half.add(vectors)
    assert half.spec == "Flat"  # a graph keeps float32


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_auto_reaches_its_recall_without_being_told_how(metric: str, tmp_path: Path) -> None:
    vectors = draw(4000)
    index = Index("Auto", metric=metric, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecallWarning)
        index.add(vectors)
        for k in (1, 10, 60):
            assert measure(index, vectors, k) >= 0.95
    assert index.spec == "HNSW32"
    assert index.curve is not None
    index.save(tmp_path / "auto")
    again = Index.load(tmp_path / "auto")
    assert again.ef == index.ef
    assert measure(again, vectors, 10) >= 0.95


@pytest.mark.usefixtures("few_rows")
def test_an_index_that_grows_becomes_a_graph_and_is_measured_again() -> None:
    vectors = draw(4000)
    index = Index("Auto", metric="l2", device="cpu")
    index.add(vectors[:900], ids=np.arange(900) + 50)
    index.remove([50, 51])
    assert index.spec == "Flat"
    index.add(vectors[900:1200])
    assert index.spec == "HNSW32"
    assert index.curve is not None
    assert index.curve.rows == 1200
    index.add(vectors[1200:1500])
    assert index.curve.rows == 1200
    index.add(vectors[1500:])
    assert index.curve.rows == 4000
    assert len(index) == 3998
    scores, ids = index.search(vectors[2:40], 1)
    assert np.allclose(scores, 0, atol=1e-6)
    assert (ids[:, 0] == np.arange(2, 40) + 50).all()


@pytest.mark.usefixtures("few_rows")
def test_a_recall_below_the_aim_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.search.recall.GRAPH_EFFORTS", (1,))
    index = Index("Auto", metric="l2", device="cpu")
    with pytest.warns(RecallWarning, match="Auto.*highest measured"):
        index.add(np.random.default_rng(0).standard_normal((3000, DIM)).astype(np.float32))


def test_the_default_effort_can_be_set_and_is_saved(tmp_path: Path) -> None:
    vectors = draw(2000)
    index = Index("HNSW8", metric="l2", device="cpu")
    index.add(vectors)
    assert index.ef == 64
    index.ef = 400
    assert (index.search(vectors[:50], 5)[1] == index.search(vectors[:50], 5, ef=400)[1]).all()
    index.save(tmp_path / "graph")
    assert Index.load(tmp_path / "graph").ef == 400
    index.ef = None
    assert index.ef == 64


def test_a_recall_measured_for_fewer_neighbours_is_said() -> None:
    index = Index("HNSW8", metric="l2", device="cpu")
    index.add(draw(2000))
    index.measure_recall(100, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecallWarning)
        index.search(draw(3, 1), 10, recall=0.9)
    with pytest.warns(RecallWarning, match=r"for 10 neighbours and 50 are requested"):
        index.search(draw(3, 1), 50, recall=0.9)
