"""What an opened index acknowledged is there after any crash.

python -m pytest tests/search/test_durable.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.search.test_exact import make_clusters

from ridgeline import Index
from ridgeline.errors import InputError, Locked, StoreError
from ridgeline.search import journal as journal_module

VECTORS = make_clusters(300, 8)


def make_saved(path: Path, spec: str = "Flat", meta: bool = False) -> Path:
    index = Index(spec, metric="l2", device="cpu")
    if not index.trained:
        index.train(VECTORS)
    index.add(VECTORS[:100], meta={"n": np.arange(100)} if meta else None)
    index.save(path)
    return path


def content(index: Index) -> dict[int, bytes]:
    return {int(i): v.tobytes() for i, v in zip(index.ids, index.reconstruct(index.ids), strict=True)}


def copy(path: Path, name: str) -> Path:
    """A copy of index and journal, as a crash would leave them."""
    target = path.with_name(name)
    for suffix in ("", ".journal"):
        source, copied = Path(f"{path}{suffix}"), Path(f"{target}{suffix}")
        if copied.is_dir():
            shutil.rmtree(copied)
        copied.unlink(missing_ok=True)
        if source.is_dir():
            shutil.copytree(source, copied)
        elif source.exists():
            shutil.copyfile(source, copied)
    return target


@pytest.mark.parametrize("spec", ["Flat", "IVF4,Flat", "SQ8,Refine(Flat)", "IVF4,PQ2"])
def test_changes_are_there_when_the_index_is_opened_again(tmp_path: Path, spec: str):
    path = make_saved(tmp_path / "ix", spec, meta=True)
    with Index.open(path) as index:
        index.add(VECTORS[100:150], meta={"n": np.arange(50)})
        index.remove([3, 120])
        index.add(VECTORS[150:153], ids=[3, 900, 901], meta={"n": [7, 8, 9]})
        for other in (Index.load(path, verify=True), Index.open(path), Index.open(copy(path, "crash"))):
            assert content(other) == content(index)
            assert other.meta["n"].to_pylist() == index.meta["n"].to_pylist()
            query = VECTORS[:5]
            assert np.array_equal(other.search(query, 9)[1], index.search(query, 9)[1])


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(["add", "remove", "compact", "open"]), min_size=1, max_size=8),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
)
def test_a_journal_cut_anywhere_holds_every_change_before_the_cut(tmp_path: Path, steps, share: float, seed: int):
    rng = np.random.default_rng(seed)
    shutil.rmtree(tmp_path / "ix", ignore_errors=True)
    (tmp_path / "ix.journal").unlink(missing_ok=True)
    path = make_saved(tmp_path / "ix")
    index, states, journal = Index.open(path), {}, Path(f"{path}.journal")
    for step in [*steps, "add"]:
        if step == "add":
            index.add(rng.standard_normal((int(rng.integers(1, 4)), 8)).astype(np.float32))
        elif step == "remove":
            index.remove(rng.choice(index.ids, 2, replace=False))
        elif step == "compact":
            index.save(path)
            states = {}
        else:
            index.close()
            index = Index.open(path)
        if journal.exists():
            states[journal.stat().st_size] = content(index)
    index.close()
    smallest = min(states)
    cut = int(smallest + share * (journal.stat().st_size - smallest))
    data = journal.read_bytes()
    journal.write_bytes(data[:cut])
    expected = states[max(size for size in states if size <= cut)]
    with Index.open(path) as again:
        assert content(again) == expected
        again.add(VECTORS[:1])
        expected = content(again)
    assert content(Index.load(path, verify=True)) == expected


def test_a_crash_after_the_folder_is_written_repeats_nothing(tmp_path: Path, monkeypatch):
    path = make_saved(tmp_path / "ix")
    index = Index.open(path)
    index.add(VECTORS[100:110])
    index.remove([5])
    monkeypatch.setattr(journal_module.IndexJournal, "shorten", lambda *_: None)
    index.save(path)
    index.add(VECTORS[110:112])
    assert content(Index.open(copy(path, "crash"))) == content(index)
    assert len(Index.load(path)) == 111


def test_a_large_journal_is_compacted_while_rows_are_added(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(journal_module, "MIN_COMPACTION", 2000)
    path = make_saved(tmp_path / "ix", "IVF4,Flat")
    with Index.open(path) as index:
        threads = [
            threading.Thread(target=lambda: [index.add(VECTORS[n : n + 9]) for n in range(0, 200, 9)]) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = content(index)
        assert content(Index.load(path)) == expected
        for thread in threading.enumerate():  # a copy is not made at one moment, as a crash is
            if thread.name == "ridgeline-compaction":
                thread.join()
        assert content(Index.open(copy(path, "crash"))) == expected
    assert Path(f"{path}.journal").stat().st_size < 3 * 23 * 9 * 40 / 2  # half of all records
    assert len(expected) == 100 + 3 * sum(len(VECTORS[n : n + 9]) for n in range(0, 200, 9))


def test_one_process_at_a_time_changes_an_index(tmp_path: Path):
    path = make_saved(tmp_path / "ix")
    one, other = Index.open(path), Index.open(path)
    one.add(VECTORS[100:101])
    with pytest.raises(Locked, match="another process changes the index"):
        other.add(VECTORS[:1])
    with pytest.raises(Locked):
        Index.load(path).save(path)
    one.close()
    other.add(VECTORS[101:102])  # reads first what the other one added
    assert other.ids[-2:].tolist() == [100, 101]
    with pytest.raises(Locked):
        one.add(VECTORS[:1])
    del other
    one.remove([101])
    assert len(Index.load(path)) == 101


def test_an_index_saved_over_it_replaces_the_journal(tmp_path: Path):
    path = make_saved(tmp_path / "ix")
    with Index.open(path) as index:
        index.add(VECTORS[100:101])
    saved = Path(f"{path}.journal").read_bytes()
    make_saved(path)
    assert len(Index.load(path)) == 100
    Path(f"{path}.journal").write_bytes(saved)  # same manifest: the journal fits
    assert len(Index.load(path)) == 101
    make_saved(path, "SQ8")
    Path(f"{path}.journal").write_bytes(saved)
    with pytest.warns(UserWarning, match="belongs to another index"):
        assert len(Index.load(path)) == 100


def test_damage_is_named_and_bad_input_leaves_no_record(tmp_path: Path):
    path = make_saved(tmp_path / "ix")
    with Index.open(path) as index:
        index.add(VECTORS[100:103])
        size = Path(f"{path}.journal").stat().st_size
        for call in (lambda: index.add(VECTORS[:1] * np.nan), lambda: index.add(VECTORS[:1], ids=[3])):
            with pytest.raises(InputError):
                call()
        with pytest.raises(InputError, match="is trained"):
            index.train(VECTORS)
        assert Path(f"{path}.journal").stat().st_size == size
        index.add(VECTORS[103:105])
    data = bytearray(Path(f"{path}.journal").read_bytes())
    data[size - 20] ^= 1
    Path(f"{path}.journal").write_bytes(data)
    with pytest.raises(StoreError, match=r"ix\.journal is damaged at byte \d+"):
        Index.open(path)
    Path(f"{path}.journal").write_bytes(b"else")
    with pytest.raises(StoreError, match="is no journal"):
        Index.load(path)


VICTIM = """
import sys, numpy as np
from ridgeline.search import Index, journal
journal.MIN_COMPACTION = 20_000
index = Index.open(sys.argv[1])
while True:
    index.add(np.random.default_rng(len(index)).standard_normal((20, 8)).astype("f4"))
    if index.ids[-1] % 3 == 0:
        index.remove(index.ids[:2])
    print(len(index), index.ids[-1], flush=True)
"""


@pytest.mark.slow  # starts processes and kills them
def test_kills_lose_nothing_that_was_acknowledged(tmp_path: Path):
    path, rng = make_saved(tmp_path / "ix"), np.random.default_rng(0)
    for _ in range(20):
        victim = subprocess.Popen([sys.executable, "-c", VICTIM, str(path)], stdout=subprocess.PIPE, text=True)
        said = victim.stdout.readline()
        time.sleep(float(rng.uniform(0, 0.5)))
        victim.kill()
        lines = [said, *victim.stdout.read().splitlines()]
        victim.wait()
        victim.stdout.close()
        largest = max(int(line.split()[1]) for line in lines if len(line.split()) == 2)
        index = Index.load(path, verify=True)
        assert index.ids[-1] >= largest
        assert len(np.unique(index.ids)) == len(index)


@pytest.mark.parametrize("meta", [False, True])
def test_a_damaged_length_loses_no_changes_without_a_word(tmp_path: Path, meta: bool):
    path = make_saved(tmp_path / "ix", meta=meta)
    journal, starts = Path(f"{path}.journal"), []
    with Index.open(path) as index:
        for at in (100, 103, 106):
            index.add(VECTORS[at : at + 3], meta={"n": [1, 2, 3]} if meta else None)
            starts.append(journal.stat().st_size)
        index.remove([3])
    data = journal.read_bytes()
    for start in starts:  # the second and third addition, and the removal
        damaged = bytearray(data)
        damaged[start + 3] ^= 1  # 16 MB more than there are
        journal.write_bytes(damaged)
        with pytest.raises(StoreError, match=rf"damaged at byte {start}"):
            Index.load(path)
