"""An index that is built on disk is the index that is built in memory.

python -m pytest tests/search/test_disk_build.py
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.search.reference import nearest
from tests.search.test_exact import METRICS, make_clusters

from ridgeline import Index
from ridgeline.errors import InputError
from ridgeline.search import disk_build, index_files


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_build, "ROWS_PER_BLOCK", 130)
    monkeypatch.setattr(index_files, "MIN_LARGE", 1)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("spec", ["IVF8,RaBitQ2,Refine(Flat)", "IVF8,SQ8,Refine(Flat)", "RaBitQ4,Refine(Flat)"])
def test_a_search_finds_the_nearest_rows_of_the_file(spec: str, metric: str, tmp_path):
    vectors, queries = make_clusters(1_000, 32), make_clusters(20, 32, 1)
    np.save(tmp_path / "vectors.npy", vectors)
    index = Index.build(tmp_path / "index", tmp_path / "vectors.npy", spec, metric=metric, ids=np.arange(1_000) + 7)
    how = {"nprobe": 8} if "IVF" in spec else {}
    rows = index.search(queries, 10, **how)[1]
    expected = nearest(queries, vectors, 10, metric)[1] + 7
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows.tolist(), expected.tolist(), strict=True)]) > 0.98
    stored = index.reconstruct(np.arange(5) + 7)
    wanted = vectors[:5] / np.linalg.norm(vectors[:5], axis=1, keepdims=True) if metric == "cosine" else vectors[:5]
    assert np.allclose(stored, wanted, atol=1e-6)
    index.add(vectors[:3] + 1, ids=[0, 1, 2])
    assert index.search(vectors[:1] + 1, 1, **how)[1][0, 0] == 0
    assert index.measure_recall(sample=50, k=5).truth == "vectors"


def test_lists_hold_the_same_rows_as_those_built_in_memory(tmp_path):
    vectors = make_clusters(700, 24)
    on_disk = Index.build(tmp_path / "index", vectors, "IVF6,SQ8,Refine(Flat)", metric="l2")._snapshot.engine
    in_memory = Index("IVF6,SQ8,Refine(Flat)", metric="l2", device="cpu")
    in_memory.train(vectors)
    in_memory.add(vectors)
    one, other = on_disk.arrays(), in_memory._snapshot.engine.arrays()
    for name in ("codes", "rows", "offsets", "biases", "centres", "refine_codes"):
        assert np.array_equal(one[name], other[name]), name


def test_what_does_not_fit_is_refused_and_leaves_no_folder(tmp_path):
    with pytest.raises(InputError, match="cannot be built on disk"):
        Index.build(tmp_path / "index", np.eye(9, dtype=np.float32), "IVF4,Flat")
    vectors = make_clusters(400, 8)
    vectors[301, 3] = np.nan
    with pytest.raises(InputError, match="row 301 of the vectors holds nan in column 3"):
        Index.build(tmp_path / "index", vectors, "IVF4,RaBitQ2,Refine(Flat)")
    assert not (tmp_path / "index").exists()
