"""`kill -9` at random moments and before every single call that changes the disk."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from ridgeline.store import (
    ChunkSet,
    append_lines,
    get_owner,
    lock,
    publish,
    publish_dir,
    read_lines,
    recover,
    verify,
)

ROUNDS = 30
LINES = 3000


def kill_a_loop(crash_worker, rng: random.Random) -> list[int]:
    """One child loops, dies at a random moment; the versions it acknowledged."""
    crash_worker.send("loop")
    pid = crash_worker.receive("pid")
    # half of them die at birth or in their first write, the others after it, however slow the disk is
    acks = [crash_worker.receive("ack")] if rng.random() < 0.5 else []
    time.sleep(rng.uniform(0, 0.02))
    os.kill(pid, signal.SIGKILL)
    return acks + crash_worker.read_acks_until_exit()


def read_version(path: Path) -> int:
    lines = path.read_text().split("\n")
    assert len(lines) == LINES + 1
    assert lines.pop() == ""
    assert len(set(lines)) == 1
    return int(lines[0])


def version_of_dir(path: Path) -> int:
    version = verify(path).meta["version"]
    assert {read_version(path / part) for part in ("a.txt", "b.txt", "deep/c.txt")} == {version}
    return version


def nothing_but(folder: Path, *names: str) -> bool:
    return sorted(p.name for p in folder.iterdir()) == sorted(names)


@pytest.mark.parametrize("kind", ["write_file", "write_dir", "write_dir_in_two_steps"])
def test_a_killed_publisher_leaves_the_last_acknowledged_version_or_the_one_after(crash_worker, memory_path, kind):
    rng = random.Random(kind)
    worker = crash_worker(kind, memory_path)
    look = read_version if kind == "write_file" else version_of_dir
    target = memory_path / "target"
    seen = 0
    for round_number in range(ROUNDS):
        acks = kill_a_loop(worker, rng)
        recover(target)
        if not target.exists():
            assert not acks
            assert seen == 0
            continue
        version = look(target)
        first = 1 + 100_000 * round_number
        last = acks[-1] if acks else None
        assert version in ({last, last + 1} if last else {seen, first})
        seen = version
    assert seen > 0
    if kind == "write_file":
        with publish(target) as tmp:
            tmp.write_text("after")
    else:
        with publish_dir(target):
            pass
    assert nothing_but(memory_path, "target")


def test_killed_chunk_writers_lose_no_acknowledged_chunk_and_keep_no_broken_one(crash_worker, memory_path):
    rng = random.Random(1)
    worker = crash_worker("write_chunk", memory_path)
    acked: set[int] = set()
    for _ in range(ROUNDS):
        acked.update(kill_a_loop(worker, rng))
        with ChunkSet(memory_path / "job", key="kill", total=10_000_000) as chunks:
            done = chunks.done()
            assert acked <= set(done)
            for number in rng.sample(done, min(3, len(done))):
                assert read_version(chunks.file(number)) == number
    assert acked


def test_a_killed_journal_writer_loses_no_acknowledged_line(crash_worker, memory_path):
    rng = random.Random(2)
    worker = crash_worker("write_journal", memory_path)
    journal = memory_path / "journal.jsonl"
    acked: list[int] = []
    for _ in range(ROUNDS):
        acked += kill_a_loop(worker, rng)
        if journal.exists():
            versions = [item["version"] for item in read_lines(journal).objects]
            assert versions == sorted(set(versions))
            assert set(acked) <= set(versions)
    assert acked
    append_lines(journal, [{"version": -1}])
    assert not read_lines(journal).torn


def test_a_killed_owner_frees_its_lock_at_once(crash_worker, memory_path):
    rng = random.Random(3)
    worker = crash_worker("take_lock", memory_path)
    for _ in range(ROUNDS):
        kill_a_loop(worker, rng)
        with lock(memory_path / "lock"):
            pass


def every_stop(worker):
    number = 1
    while worker.stop_before_call(number):
        yield number
        number += 1
    assert number > 5, "hardly any call was watched"


def test_a_file_is_old_or_new_whichever_call_was_the_last(crash_worker, memory_path):
    worker = crash_worker("write_file", memory_path)
    target = memory_path / "target"
    target.write_text("1\n" * LINES)
    version = []
    for _ in every_stop(worker):
        version.append(read_version(target))
        with publish(target) as tmp:
            tmp.write_text("1\n" * LINES)
        assert nothing_but(memory_path, "target")
    assert version == sorted(version)
    assert set(version) == {1, 2}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["write_dir", "write_dir_in_two_steps"])
def test_a_folder_is_old_or_new_whichever_call_was_the_last(crash_worker, memory_path, kind):
    worker = crash_worker(kind, memory_path)
    target = memory_path / "target"

    def restore():
        with publish_dir(target, {"version": 1}) as tmp:
            (tmp / "deep").mkdir()
            for part in ("a.txt", "b.txt", "deep/c.txt"):
                (tmp / part).write_text("1\n" * LINES)

    restore()
    version = []
    gone = 0
    for _ in every_stop(worker):
        gone += not target.exists()
        version.append(version_of_dir(target))  # reading the manifest recovers by itself
        restore()
        assert nothing_but(memory_path, "target")
    assert version == sorted(version)
    assert set(version) == {1, 2}
    # one step: the target is never away; two steps: between them, and recovered
    assert gone == (0 if kind == "write_dir" else 1)


def test_the_next_publish_finishes_a_swap_that_was_stopped_and_then_fails_clean(crash_worker, memory_path):
    worker = crash_worker("write_dir_in_two_steps", memory_path)
    target = memory_path / "target"
    for number in range(1, 1000):
        with publish_dir(target, {"version": 1}):
            pass
        assert worker.stop_before_call(number)
        if not target.exists():
            break
    with pytest.raises(ZeroDivisionError), publish_dir(target):
        raise ZeroDivisionError
    assert version_of_dir(target) == 2
    assert nothing_but(memory_path, "target")


@pytest.mark.slow
def test_finishing_a_job_can_be_stopped_anywhere_and_run_again(crash_worker, memory_path):
    worker = crash_worker("finish_chunks", memory_path)
    target = memory_path / "target"
    expected = "".join(f"{n}\n" * LINES for n in range(3))
    for _ in every_stop(worker):
        with ChunkSet(memory_path / "job", key="kill", total=3) as chunks:
            for number in chunks.missing():
                chunks.put(number, (f"{number}\n" * LINES).encode())
            chunks.finish(target)
        assert target.read_text() == expected
        assert nothing_but(memory_path, "target")


def test_a_journal_keeps_its_lines_whichever_call_was_the_last(crash_worker, memory_path):
    worker = crash_worker("write_journal", memory_path)
    journal = memory_path / "journal.jsonl"
    append_lines(journal, [{"version": 1}])
    for stop in every_stop(worker):
        assert read_lines(journal).objects[0] == {"version": 1}
        append_lines(journal, [{"version": 3, "stop": stop}])
        assert read_lines(journal).objects[-1] == {"version": 3, "stop": stop}
        assert not read_lines(journal).torn


def test_a_lock_is_named_while_it_is_held_and_free_when_its_owner_is_killed(crash_worker, memory_path):
    worker = crash_worker("hold_lock", memory_path)
    worker.send("loop")
    pid = worker.receive("pid")
    worker.receive("ack")
    assert get_owner(memory_path / "lock").pid == pid
    os.kill(pid, signal.SIGKILL)
    worker.read_acks_until_exit()
    assert get_owner(memory_path / "lock") is None
    with lock(memory_path / "lock"):
        pass


def test_workers_that_outlive_the_owner_do_not_keep_its_lock(crash_worker, memory_path):
    worker = crash_worker("hold_lock_with_workers", memory_path)
    worker.send("loop")
    pid = worker.receive("pid")
    survivors = [worker.receive("ack"), worker.receive("ack")]
    try:
        os.kill(pid, signal.SIGKILL)
        worker.read_acks_until_exit()
        for survivor in survivors:
            os.kill(survivor, 0)
        with lock(memory_path / "lock"):
            pass
    finally:
        for survivor in survivors:
            os.kill(survivor, signal.SIGKILL)


def test_a_fork_that_leaves_the_block_neither_frees_nor_wipes_its_parents_lock(crash_worker, memory_path):
    worker = crash_worker("hold_lock_while_a_fork_leaves", memory_path)
    worker.send("loop")
    pid = worker.receive("pid")
    worker.receive("ack")
    assert get_owner(memory_path / "lock").pid == pid
    assert (memory_path / "bystander").read_text() == "keep"
    os.kill(pid, signal.SIGKILL)
    worker.read_acks_until_exit()


def test_a_fork_that_leaves_the_block_neither_publishes_nor_removes(crash_worker, memory_path):
    worker = crash_worker("publish_while_a_fork_leaves", memory_path)
    assert not worker.stop_before_call(10**9)
    assert (memory_path / "target").read_text() == "by the parent"
    assert verify(memory_path / "folder").files.keys() == {"part"}
    assert nothing_but(memory_path, "target", "folder")
