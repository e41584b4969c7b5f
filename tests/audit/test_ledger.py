"""The ledger: an append is on the disk, in tiles that any tlog client can read."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.audit import naive
from tests.audit.conftest import event, events

import ridgeline.audit.ledger.writer as writer_module
from ridgeline.audit import Ledger, new_signer
from ridgeline.audit.ledger.checkpoint import Signer
from ridgeline.audit.ledger.layout import LedgerPaths, write_key
from ridgeline.audit.ledger.tile_store import TileStore
from ridgeline.errors import InputError, StoreError, Unverified

ONE_APPEND = (
    "import sys; from ridgeline.audit import Ledger; Ledger.open(sys.argv[1]).append([{'source': 'x', 'action': 'a'}])"
)


def stranger(folder) -> list[bytes]:
    """Read the log from the specifications alone."""
    _, size, root, entries = naive.read_log(folder)
    assert len(entries) == size
    assert base64.b64encode(naive.root([naive.leaf(e) for e in entries])).decode() == root
    naive.check_tiles(folder, entries)
    return entries


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 300), min_size=1, max_size=6), st.booleans())
def test_any_series_of_appends_is_a_log_a_stranger_can_verify(tmp_path_factory, sizes, reopen):
    folder = tmp_path_factory.mktemp("l") / "log"
    ledger, count = Ledger.create(folder, origin="example.test/log"), 0
    for size in sizes:
        receipts = ledger.append(events(count, count + size))
        assert [r.index for r in receipts] == list(range(count, count + size))
        count += size
        assert ledger.size == count
        if reopen:
            ledger.close()
            ledger = Ledger.open(folder)
        else:
            ledger.checkpoint()
    ledger.close()
    entries = stranger(folder)
    assert len(entries) == count
    opened = Ledger.open(folder)
    assert list(opened.entries()) == events(0, count)
    leaves = [naive.leaf(e) for e in entries]
    for index in {0, count // 3, count - 1} if count else ():
        assert opened.prove_inclusion(index) == naive.path(index, leaves)
        assert opened.prove_inclusion(index, index + 1) == naive.path(index, leaves[: index + 1])
        assert opened.prove_consistency(index, count) == naive.consistency(index, leaves)
        assert opened.root(index) == naive.root(leaves[:index])


def test_receipts_say_index_leaf_hash_and_the_size_that_covers_them(tmp_path):
    with Ledger.create(tmp_path / "log", origin="a") as ledger:
        ledger.append(events(0, 3))
        receipts = ledger.append(events(3, 5))
        assert [(r.index, r.checkpoint_size) for r in receipts] == [(3, 5), (4, 5)]
        assert receipts[-1].leaf_hash == naive.leaf(ledger.raw(4)) == ledger.leaf(4)
        assert [r.index for r in receipts[0:2]] == [3, 4]
        assert len(ledger.append([])) == 0


def test_threads_share_commits_and_nothing_is_lost_or_mixed(tmp_path, monkeypatch):
    commits = []
    real = writer_module.Journal.append

    def count_commits(self, first, count, *rest):
        commits.append(count)
        return real(self, first, count, *rest)

    monkeypatch.setattr(writer_module.Journal, "append", count_commits)
    indices_by_thread: dict[int, list[int]] = {}
    with Ledger.create(tmp_path / "log", origin="a") as ledger:
        barrier = threading.Barrier(16)

        def work(thread_number: int) -> None:
            barrier.wait()
            indices_by_thread[thread_number] = [
                ledger.append([event(1000 * thread_number + k)])[0].index for k in range(25)
            ]

        threads = [threading.Thread(target=work, args=(thread_number,)) for thread_number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(i for indices in indices_by_thread.values() for i in indices) == list(range(400))
        assert all(indices == sorted(indices) for indices in indices_by_thread.values())
        for thread_number, indices in indices_by_thread.items():
            assert [ledger.entry(i)["subject"] for i in indices[:3]] == [
                f"br{1000 * thread_number + k}" for k in range(3)
            ]
    assert sum(commits) == 400
    assert len(commits) < 400, "no two appends ever shared a commit"
    stranger(tmp_path / "log")


def test_threads_whose_first_append_is_at_the_same_time_share_one_writer(log):
    for _ in range(5):
        with Ledger.open(log) as ledger:
            size, start = ledger.size, threading.Barrier(8)

            def append(ledger=ledger, start=start):
                start.wait(30)
                return ledger.append([event(1)]).first

            with ThreadPoolExecutor(8) as pool:
                indexes = [future.result(60) for future in [pool.submit(append) for _ in range(8)]]
            assert sorted(indexes) == list(range(size, size + 8))


def test_a_log_that_needs_repair_is_opened_by_several_threads(log):
    def die():
        ledger = Ledger.open(log, checkpoint_s=3600)
        ledger.append(events(700, 720))
        os._exit(0)

    child = os.fork()
    if child == 0:
        die()
    os.waitpid(child, 0)
    with ThreadPoolExecutor(4) as pool:
        opened = [future.result(60) for future in [pool.submit(Ledger.open, log) for _ in range(4)]]
    assert max(ledger.size for ledger in opened) == 720


def test_an_event_that_is_wrong_takes_none_of_its_batch(tmp_path):
    with Ledger.create(tmp_path / "log", origin="a") as ledger:
        with pytest.raises(InputError, match="event 1"):
            ledger.append([event(0), {"source": "x"}])
        assert ledger.size == 0
        ledger.append([event(0)])
        assert ledger.size == 1


def test_a_second_writer_is_refused_with_the_name_of_the_first(log):
    with Ledger.open(log) as first:
        first.append([event(1)])
        done = subprocess.run([sys.executable, "-c", ONE_APPEND, str(log)], capture_output=True, text=True)
        assert done.returncode != 0
        assert f"locked by process {os.getpid()} on" in done.stderr
        assert first.size == 701


def test_a_reader_needs_no_lock_and_sees_what_is_signed(log):
    with Ledger.open(log) as writer:
        writer.append([event(700)])
        writer.checkpoint()
        reader = Ledger.open(log)
        assert reader.size == 701
        assert reader.entry(700) == event(700)
        reader.verify()


def test_a_checkpoint_follows_an_append_by_itself(tmp_path):
    import time

    with Ledger.create(tmp_path / "log", origin="a", checkpoint_s=0.05) as ledger:
        ledger.append(events(0, 10))
        reader, until = Ledger.open(tmp_path / "log"), time.monotonic() + 60
        while reader.size < 10 and time.monotonic() < until:
            time.sleep(0.01)
        assert reader.size == 10


def test_journals_take_turns_and_shrink(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "_TURN", 20_000)
    with Ledger.create(tmp_path / "log", origin="a", checkpoint_s=0.01) as ledger:
        for start in range(0, 4000, 50):
            ledger.append(events(start, start + 50))
    assert len(stranger(tmp_path / "log")) == 4000
    assert all(LedgerPaths(tmp_path / "log").journal(k).stat().st_size <= 4096 for k in range(2))
    left = {p.parent.name for p in (tmp_path / "log/tile/0").rglob("*") if p.is_file() and p.parent.name.endswith(".p")}
    assert left <= {"015.p"}, "partial tiles stay only where there is no full one"


def test_a_slow_log_settles_by_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "_SYNC_S", 0.0)
    with Ledger.create(tmp_path / "log", origin="a", checkpoint_s=3600) as ledger:
        for start in range(0, 600, 40):
            ledger.append(events(start, start + 40))
            ledger.checkpoint()
        left = {p.name for p in (tmp_path / "log/tile").rglob("*.p")}
        assert left == {"002.p", "000.p"}, "of full tiles no partial ones stay (level 1 has its first)"
        assert not (tmp_path / "log/tile/0/000.p").exists()
    assert len(stranger(tmp_path / "log")) == 600


def test_a_large_event_is_given_back_whole(tmp_path):
    big = event(1) | {"attributes": {"text": "x" * 200_000}}
    with Ledger.create(tmp_path / "log", origin="a") as ledger:
        ledger.append([event(0), big])
        assert ledger.entry(1) == big
        ledger.verify()
    stranger(tmp_path / "log")


def test_the_key_is_outside_the_served_tree_and_only_ours(log):
    paths = LedgerPaths(log)
    assert stat.S_IMODE(paths.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.private.stat().st_mode) == 0o700
    secret = paths.key.read_text().strip()[-30:]
    assert not any(secret.encode() in p.read_bytes() for p in log.rglob("*") if p.is_file())


def test_a_key_others_can_read_is_refused(log):
    os.chmod(LedgerPaths(log).key, 0o644)
    with pytest.raises(StoreError, match="chmod 600"):
        Ledger.open(log).append([event(1)])


def test_a_key_of_ones_own_is_used_where_it_lies(tmp_path):
    write_key(tmp_path / "own", new_signer("a"))
    Ledger.create(tmp_path / "log", origin="a", key=tmp_path / "own").close()
    assert not LedgerPaths(tmp_path / "log").key.exists()
    with Ledger.open(tmp_path / "log") as ledger:
        ledger.append([event(0)])
    with pytest.raises(InputError, match="bears its name"):
        Ledger.create(tmp_path / "other", origin="b", key=tmp_path / "own")
    (tmp_path / "third").mkdir()
    write_key(tmp_path / "third/key", new_signer("a"))
    with pytest.raises(InputError, match="already"):
        Ledger.create(tmp_path / "third", origin="a", key=tmp_path / "third/key")


def test_a_signer_that_is_not_stored_must_be_given_again(tmp_path):
    signer = Signer("a", bytes(32))
    Ledger.create(tmp_path / "log", origin="a", key=signer).close()
    with pytest.raises(InputError, match="give it with key="):
        Ledger.open(tmp_path / "log").append([event(0)])
    with pytest.raises(InputError, match="is not the key of"):
        Ledger.open(tmp_path / "log", key=new_signer("a"))
    with Ledger.open(tmp_path / "log", key=signer) as ledger:
        ledger.append([event(0)])


def test_a_copy_without_its_private_part_is_read_with_the_key(log, tmp_path):
    verifier = Ledger.open(log).verifier
    copy = tmp_path / "elsewhere" / "log"
    copy.parent.mkdir()
    log.rename(copy)
    with pytest.raises(InputError, match="--key"):
        Ledger.open(copy)
    assert Ledger.open(copy, verifier=verifier).verify().entries == 700
    with pytest.raises(Unverified, match="not signed by"):
        Ledger.open(copy, verifier=new_signer("example.test/log").verifier).verify()


@pytest.mark.parametrize("name", ["there", "file"])
def test_what_is_there_is_not_made_into_a_ledger(tmp_path, name):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/x").touch()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="exists already"):
        Ledger.create(tmp_path / name, origin="a")
    with pytest.raises(InputError):
        Ledger.open(tmp_path / name)


def test_a_missing_entry_is_named(log):
    opened = Ledger.open(log)
    with pytest.raises(InputError, match="has 700"):
        opened.entry(700)
    with pytest.raises(InputError, match="700 entries"):
        opened.prove_inclusion(700)
    with pytest.raises(InputError, match="700 entries"):
        opened.prove_inclusion(5, 701)
    with pytest.raises(InputError, match="700 entries"):
        opened.prove_consistency(5, 701)


def test_after_closing_nothing_is_appended(log):
    ledger = Ledger.open(log)
    ledger.close()
    with pytest.raises(StoreError, match="closed"):
        ledger.append([event(0)])


def test_a_forgotten_ledger_still_signs_and_lets_go(log):
    subprocess.run([sys.executable, "-c", ONE_APPEND, str(log)], check=True)
    assert len(stranger(log)) == 701


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_forked_child_does_not_write_for_its_parent(log):
    with Ledger.open(log) as ledger:
        ledger.append([event(0)])
        child = os.fork()
        if child == 0:
            try:
                ledger.append([event(1)])
            except StoreError as error:
                os._exit(0 if "parent of this process" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        ledger.append([event(2)])
    assert len(stranger(log)) == 702


def test_an_error_of_closing_does_not_hide_the_first_error(tmp_path, monkeypatch):
    def refuse(self, files):
        raise StoreError("the disk is full.")

    def fail(ledger):
        ledger.append(events(0, 3))
        monkeypatch.setattr(TileStore, "put", refuse)
        raise KeyError("first")

    with pytest.raises(KeyError, match="first"), Ledger.create(tmp_path / "log", origin="a") as ledger:
        fail(ledger)
    monkeypatch.undo()
    with Ledger.open(tmp_path / "log") as ledger:
        ledger.append([])
        assert ledger.size == 3
