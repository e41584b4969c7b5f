"""Saved indexes have the same results, are mapped, verified and complete after a kill; FAISS reads exports.

python -m pytest tests/search/test_files.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.draws import choose_draws
from tests.search.test_exact import make_clusters

from ridgeline import Index
from ridgeline.errors import InputError, StoreError

SPECS = ["Flat", "SQ8", "IVF4,Flat", "IVF4,SQ8", "IVF4,PQ2", "SQ8,Refine(Flat)", "IVF4,PQ2,Refine(SQ8)"]


def build_index(spec: str, metric: str = "l2", rows: int = 500, **more) -> Index:
    vectors = make_clusters(rows, 8)
    index = Index(spec, metric=metric, device="cpu", **more)
    if not index.trained:
        index.train(vectors)
    index.add(vectors)
    return index


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("spec", SPECS)
def test_a_saved_index_has_the_same_results_and_can_grow(tmp_path: Path, spec: str, metric: str):
    index, query_vectors = build_index(spec, metric, model="m"), make_clusters(6, 8, 1)
    index.add(make_clusters(40, 8, 2), ids=np.arange(1000, 960, -1))
    index.remove([3, 990])
    index.measure_recall(sample=30)
    index.save(tmp_path / "ix")
    for mmap in (True, False):
        again = Index.load(tmp_path / "ix", verify=True, mmap=mmap)
        assert (again.spec, again.metric, again.dim, again.model) == (spec, metric, 8, "m")
        assert again.curve == index.curve
        for one, other in zip(again.search(query_vectors, 9), index.search(query_vectors, 9), strict=True):
            assert np.array_equal(one, other)
        again.add(make_clusters(5, 8, 4))
        assert again.ids[-5:].tolist() == [1001, 1002, 1003, 1004, 1005]
        with pytest.raises(InputError, match="already"):
            again.add(make_clusters(1, 8), ids=[999])
        again.remove([1001])
        assert len(again) == 542
    assert len(index) == 538


@pytest.mark.parametrize("spec", ["Flat", "SQ8", "IVF4,Flat"])
def test_a_loaded_index_with_added_rows_can_be_saved(tmp_path: Path, spec: str):
    index = build_index(spec)
    for step in range(3):  # before saving, and after loading
        index.add(make_clusters(5, 8, step))
        index.save(tmp_path / "ix")
        index = Index.load(tmp_path / "ix", verify=True)
        assert index.ids.tolist() == list(range(505 + 5 * step))


def test_columns_are_saved(tmp_path: Path):
    index = Index("Flat", metric="l2", device="cpu")
    index.add(np.eye(4), meta={"name": ["a", "b", None, "d"]})
    index.save(tmp_path / "ix")
    again = Index.load(tmp_path / "ix")
    assert again.search(np.eye(4)[[0]], 4, where="name is null or name == 'd'")[1].tolist() == [[2, 3, -1, -1]]


def test_a_mapped_index_is_not_read_into_memory(tmp_path: Path):
    build_index("Flat").save(tmp_path / "ix")
    state = Index.load(tmp_path / "ix")._snapshot
    base = state.engine.row_scorer.codes.buffer
    while not isinstance(base, np.memmap) and base is not None:
        base = base.base
    assert isinstance(base, np.memmap)


@pytest.mark.parametrize("spec", ["Flat", "IVF4,PQ2,Refine(SQ8)"])
def test_a_flipped_bit_anywhere_is_found_and_the_file_named(tmp_path: Path, spec: str):
    build_index(spec).save(tmp_path / "ix")
    for file in sorted(p for p in (tmp_path / "ix").rglob("*") if p.is_file()):
        complete = file.read_bytes()
        bent = bytearray(complete)
        bent[len(bent) // 2] ^= 1
        file.write_bytes(bent)
        with pytest.raises(StoreError, match=file.name):
            Index.load(tmp_path / "ix", verify=True)
        file.write_bytes(complete)
    (tmp_path / "ix" / "arrays" / "codes.npy").write_bytes(b"")
    with pytest.raises(StoreError, match=r"codes\.npy"):
        Index.load(tmp_path / "ix")  # a wrong length is detected without reading


def test_a_folder_that_is_not_an_index_is_refused(tmp_path: Path):
    from ridgeline.store import publish_dir

    with pytest.raises(StoreError, match="does not exist"):
        Index.load(tmp_path / "none")
    with publish_dir(tmp_path / "other", {"kind": "else"}) as folder:
        (folder / "x").write_text("x")
    with pytest.raises(StoreError, match="is no index"):
        Index.load(tmp_path / "other")
    with pytest.raises(InputError, match="holds nothing yet"):
        Index("Flat", device="cpu").save(tmp_path / "empty")
    foreign = tmp_path / "mine"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years")
    with pytest.raises(StoreError, match="not published here"):
        build_index("Flat").save(foreign)
    assert (foreign / "thesis.txt").read_text() == "years"


VICTIM = """
import sys, numpy as np
from ridgeline import Index
version = 0
while True:
    version += 1
    index = Index("Flat", metric="l2", device="cpu")
    index.add(np.full((20_000, 16), version, np.float32), meta={"v": np.full(20_000, version)})
    index.save(sys.argv[1])
    print(version, flush=True)
"""


def test_a_kill_during_save_leaves_a_complete_index(tmp_path: Path):
    for number in range(choose_draws(2, 4)):
        folder = tmp_path / f"ix{number}"
        victim = subprocess.Popen([sys.executable, "-c", VICTIM, str(folder)], stdout=subprocess.PIPE, text=True)
        assert victim.stdout is not None
        saved = int(victim.stdout.readline())
        time.sleep(0.013 * number)  # somewhere in the next save
        os.kill(victim.pid, signal.SIGKILL)
        saved = max([saved, *map(int, victim.stdout.read().split())])
        victim.wait()
        victim.stdout.close()
        index = Index.load(folder, verify=True)
        values = np.unique(index.reconstruct(index.ids))
        assert len(index) == 20_000
        assert len(values) == 1
        assert values[0] in (saved, saved + 1)  # the last saved index, or the next one, complete
        assert index.meta["v"][0].as_py() == values[0]


def test_an_index_survives_the_replacement_of_its_folder(tmp_path: Path):
    build_index("Flat").save(tmp_path / "ix")
    old = Index.load(tmp_path / "ix")
    before = old.search(make_clusters(3, 8, 1), 5)
    other = Index("Flat", metric="l2", device="cpu")
    other.add(np.zeros((10, 8)))
    other.save(tmp_path / "ix")
    for one, again in zip(before, old.search(make_clusters(3, 8, 1), 5), strict=True):
        assert np.array_equal(one, again)


@pytest.mark.parametrize("own_ids", [False, True])
@pytest.mark.parametrize("metric", ["ip", "l2"])
@pytest.mark.parametrize("spec", [*SPECS, "Flat float16", "IVF4,Flat float16"])
def test_faiss_reads_an_export_with_the_same_results(tmp_path: Path, spec: str, metric: str, own_ids: bool):
    faiss = pytest.importorskip("faiss")
    spec, _, dtype = spec.partition(" ")
    vectors = make_clusters(600, 8)
    index = Index(spec, metric=metric, device="cpu", dtype=dtype or "auto")
    if not index.trained:
        index.train(vectors)
    index.add(vectors, ids=np.random.default_rng(3).permutation(5000)[:600] if own_ids else None)
    index.remove(index.ids[[5, 17]])
    index.export_faiss(tmp_path / "x.faiss")
    faiss_index = faiss.read_index(str(tmp_path / "x.faiss"))
    assert faiss_index.ntotal == 598
    queries = make_clusters(30, 8, 1)
    if "IVF" in spec:
        inner = faiss.downcast_index(faiss_index.index) if hasattr(faiss_index, "id_map") else faiss_index
        inner = faiss.downcast_index(inner.base_index) if hasattr(inner, "base_index") else inner
        faiss.extract_index_ivf(inner).nprobe = 2
    if "Refine" in spec:
        outer = faiss.downcast_index(faiss_index.index) if hasattr(faiss_index, "id_map") else faiss_index
        outer.k_factor = 60
    scores, ids = index.search(queries, 5, nprobe=2, depth=60)
    distances, actual = faiss_index.search(queries, 5)
    assert np.allclose(scores, distances, rtol=1e-4, atol=1e-3)
    assert (ids == actual).mean() > (0.9 if "PQ2" in spec else 0.99)  # equal codes are ties, which FAISS does not order


def test_without_faiss_the_export_names_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from ridgeline.errors import MissingExtra

    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[faiss\]'"):
        build_index("Flat").export_faiss(tmp_path / "x.faiss")
