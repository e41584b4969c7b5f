"""Threads and shards: a search sees all of an add or nothing; shards match one index; torch is not needed.

python -m pytest tests/search/test_together.py
"""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.search.test_exact import METRICS, make_clusters

from ridgeline import Index
from ridgeline.errors import InputError, RidgelineError, StoreError
from ridgeline.search import SHARDS, ShardedIndex, format_shard_list, load_index


@pytest.mark.parametrize("spec", ["Flat", "IVF2,Flat"])
def test_a_search_during_adds_sees_complete_adds(spec: str):
    batch, dim = 64, 4
    index = Index(spec, metric="l2", device="cpu", dim=dim)
    if not index.trained:
        index.train(make_clusters(50, dim))
    stop, seen, wrong = threading.Event(), set(), []

    def look() -> None:
        while not stop.is_set():
            limits, _, ids = index.range_search(np.zeros((1, dim)), 1e9, nprobe=2)
            count = int(limits[-1])
            seen.add(count)
            if count % batch or sorted(ids) != list(range(count)):
                wrong.append(count)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    append = 0
    while append < 60 or (len(seen) < 3 and append < 600):  # on a busy machine the readers may not run for a while
        index.add(np.full((batch, dim), append, np.float32))
        append += 1
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong
    assert len(seen) > 1
    assert len(index) == append * batch


def test_writers_in_several_threads_lose_nothing():
    index = Index("Flat", metric="l2", device="cpu", dim=3)
    writers = [threading.Thread(target=lambda: [index.add(np.ones((5, 3))) for _ in range(20)]) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(index.ids.tolist()) == list(range(400))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(0, 60), st.integers(1, 70), st.sampled_from(METRICS), st.integers(0, 99))
def test_shards_match_one_index(shards: int, rows: int, k: int, metric: str, seed: int):
    r = np.random.default_rng(seed)
    vectors, queries = (r.integers(-2, 3, (n, 3)).astype(np.float32) for n in (rows, 4))
    ids = r.permutation(500)[:rows]
    one = Index("Flat", metric=metric, device="cpu", dim=3)
    with Index.shard(["cpu"] * shards, "Flat", metric=metric, dim=3) as several:
        for index in (one, several):
            index.add(vectors[: rows // 3], ids[: rows // 3])
            index.add(vectors[rows // 3 :], ids[rows // 3 :])
            index.remove(ids[: rows // 5])
        assert len(one) == len(several)
        for a, b in zip(one.search(queries, k), several.search(queries, k), strict=True):
            assert np.array_equal(a, b)
        mask = one.ids % 2 == 0
        assert np.array_equal(one.search(queries, k, where=mask)[1], several.search(queries, k, where=mask)[1])


def test_shards_filter_train_and_measure():
    vectors = make_clusters(900, 8)
    with Index.shard(["cpu", "cpu", "cpu"], "IVF4,Flat", metric="l2") as index:
        index.train(vectors)
        index.add(vectors, meta={"n": np.arange(900)})
        assert [len(s) for s in index.shards] == [300, 300, 300]
        assert all(index.search(vectors[:5], 3, nprobe=4, where="n >= 600")[1].ravel() >= 600)
        assert index.search(vectors[:5], 1, nprobe=4)[1].ravel().tolist() == [0, 1, 2, 3, 4]
        assert len(index.measure_recall(sample=30)) == 3
        assert index.stats()["count"] == 900


def test_saved_shards_answer_as_before_and_a_damaged_list_is_refused(tmp_path):
    vectors = make_clusters(300, 8)
    with Index.shard(["cpu", "cpu", "cpu"], "Flat", metric="l2", model="m") as index:
        for first, last in ((0, 100), (100, 300)):  # the rows of the shards are not in the order of the ids
            index.add(vectors[first:last], meta={"n": np.arange(first, last)})
        index.save(tmp_path / "shards")
        expected = index.search(vectors[:7], 5, where="n >= 40")
        columns = index.meta
    with load_index(tmp_path / "shards", verify=True) as loaded:
        assert (len(loaded), loaded.dim, loaded.spec, loaded.model, loaded.exact) == (300, 8, "Flat", "m", True)
        for a, b in zip(loaded.search(vectors[:7], 5, where="n >= 40"), expected, strict=True):
            assert np.array_equal(a, b)
        assert loaded.meta.take(loaded.find_rows([250, 3]))["n"].to_pylist() == [250, 3]
        assert columns["n"].to_pylist() == list(range(300)), "in the order of ids"
    (tmp_path / "shards/shards.json").write_text('{"kind": "ridgeline index shards", "format": 9, "shards": ["a"]}')
    with pytest.raises(StoreError, match="format 9"):
        ShardedIndex.load(tmp_path / "shards")
    (tmp_path / "shards/shards.json").write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        ShardedIndex.load(tmp_path / "shards")


def test_shards_that_share_an_id_are_refused(tmp_path):
    for name in ("a", "b"):
        index = Index("Flat", metric="l2", device="cpu")
        index.add(np.ones((2, 3)), ids=[7, ord(name)])
        index.save(tmp_path / name)
    (tmp_path / SHARDS).write_text(format_shard_list(["a", "b"]))
    with pytest.raises(StoreError, match="id 7 is given twice"):
        ShardedIndex.load(tmp_path)


def test_shards_refuse_bad_input_without_a_change():
    with Index.shard(["cpu", "cpu"], metric="l2") as index:
        index.add(np.ones((4, 3)), ids=[1, 2, 3, 4])
        bad = np.ones((4, 3))
        bad[3, 0] = np.nan
        for vectors, ids in ((bad, [5, 6, 7, 8]), (np.ones((2, 3)), [9, 4]), (np.ones((2, 5)), [9, 10])):
            with pytest.raises(RidgelineError):
                index.add(vectors, ids)
        with pytest.raises(InputError, match="id 9 "):
            index.remove([1, 9])
        assert index.ids.tolist() == [1, 2, 3, 4]
        assert index.search(np.ones((1, 3)), 5)[1].tolist() == [[1, 2, 3, 4, -1]]
    with pytest.raises(InputError, match="give a list"):
        Index.shard("cpu")


def test_search_on_a_cpu_needs_neither_torch_nor_faiss_nor_pyarrow():
    code = """
import sys
for name in ("torch", "faiss", "pyarrow", "triton"):
    sys.modules[name] = None
import numpy as np, ridgeline
x = np.random.default_rng(0).standard_normal((300, 8)).astype("f4")
for spec in ("Flat", "SQ8", "IVF4,PQ2,Refine(Flat)"):
    index = ridgeline.Index(spec)
    if not index.trained: index.train(x)
    index.add(x)
    assert index.search(x, 1, nprobe=4)[1].ravel().tolist() == list(range(300)) or spec == "SQ8"
    assert index.device == "cpu"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_shards_search_a_range_and_reconstruct(metric: str):
    vectors = np.random.default_rng(3).standard_normal((60, 4)).astype("f4")
    ids = np.random.default_rng(4).permutation(1000)[:60]
    one = Index("Flat", metric=metric, device="cpu")
    one.add(vectors, ids=ids)
    with Index.shard(["cpu"] * 3, "Flat", metric=metric) as several:
        several.add(vectors, ids=ids)
        for expected, actual in zip(
            one.range_search(vectors[:5], 1.0), several.range_search(vectors[:5], 1.0), strict=True
        ):
            np.testing.assert_allclose(actual, expected, rtol=1e-6)
        np.testing.assert_array_equal(several.reconstruct(ids[::-7]), one.reconstruct(ids[::-7]))
        with pytest.raises(InputError, match="id 5000 is not in the index"):
            several.reconstruct([5000])


def _make_shards(**more) -> Index:
    return Index.shard(["cpu", "cpu"], "Flat", metric="ip", **more)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.add(np.where(np.arange(50)[:, None] == 40, 1e6, np.ones((50, 8)))), "counted from 25: row 15 "),
        (lambda s: s.add(np.ones((10, 8)), meta={"a": range(10)}), "no meta"),
        (lambda s: s.add([[1, 2], [3]]), "no matrix"),
        (lambda s: s.remove([0, 77]), "id 77 is not in the index"),
    ],
)
def test_a_failed_add_changes_no_shard(call, words: str):
    index = _make_shards(dtype="float16")
    index.add(np.ones((1, 8)), ids=[0])  # one shard has rows, the other none
    with pytest.raises(InputError, match=words):
        call(index)
    assert [len(shard) for shard in index.shards] == [0, 1]
    index.add(np.ones((10, 8)))
    assert sorted(index.ids.tolist()) == list(range(11))
    assert sorted(index.search(np.ones((1, 8)), 11)[1][0].tolist()) == list(range(11))


def test_range_searches_over_shards_see_complete_adds(monkeypatch: pytest.MonkeyPatch):
    index = _make_shards(dim=4)
    index.add(np.ones((10, 4)))
    first = index.shards[0]
    search_radius = first._search_radius

    def add_between(*words):
        monkeypatch.setattr(first, "_search_radius", search_radius)
        index.add(np.ones((10, 4)))  # while the first shard is searched
        return search_radius(*words)

    monkeypatch.setattr(first, "_search_radius", add_between)
    assert index.range_search(np.ones((1, 4)), 0.0)[0].tolist() == [0, 10]
    assert index.range_search(np.ones((1, 4)), 0.0)[0].tolist() == [0, 20]
