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
    lock,
    owner,
    publish,
    publish_dir,
    read_lines,
    recover,
    verify,
)

ROUNDS = 30
LINES = 3000


def kill_a_loop(nursery, rng: random.Random) -> list[int]:
    """One child loops, dies at a random moment; the versions it acknowledged."""
    nursery.tell("loop")
    pid = nursery.hear("pid")
    # half of them die at birth or in their first write, the others after it, however slow the disk is
    acks = [nursery.hear("ack")] if rng.random() < 0.5 else []
    time.sleep(rng.uniform(0, 0.02))
    os.kill(pid, signal.SIGKILL)
    return acks + nursery.acks_until_death()


def version_of(path: Path) -> int:
    lines = path.read_text().split("\n")
    assert len(lines) == LINES + 1
    assert lines.pop() == ""
    assert len(set(lines)) == 1
    return int(lines[0])


def version_of_dir(path: Path) -> int:
    version = verify(path).meta["version"]
    assert {version_of(path / part) for part in ("a.txt", "b.txt", "deep/c.txt")} == {version}
    return version


def nothing_but(folder: Path, *names: str) -> bool:
    return sorted(p.name for p in folder.iterdir()) == sorted(names)


@pytest.mark.parametrize("kind", ["write_file", "write_dir", "write_dir_in_two_steps"])
def test_a_killed_publisher_leaves_the_last_acknowledged_version_or_the_one_after(nursery, memory_path, kind):
    rng = random.Random(kind)
    victims = nursery(kind, memory_path)
    look = version_of if kind == "write_file" else version_of_dir
    target = memory_path / "target"
    seen = 0
    for round_number in range(ROUNDS):
        acks = kill_a_loop(victims, rng)
        recover(target)
        if not target.exists():
            assert not acks
            assert seen == 0
            continue
        found = look(target)
        first = 1 + 100_000 * round_number
        last = acks[-1] if acks else None
        assert found in ({last, last + 1} if last else {seen, first})
        seen = found
    assert seen > 0
    if kind == "write_file":
        with publish(target) as tmp:
            tmp.write_text("after")
    else:
        with publish_dir(target):
            pass
    assert nothing_but(memory_path, "target")


def test_killed_chunk_writers_lose_no_acknowledged_chunk_and_keep_no_broken_one(nursery, memory_path):
    rng = random.Random(1)
    victims = nursery("write_chunk", memory_path)
    acked: set[int] = set()
    for _ in range(ROUNDS):
        acked.update(kill_a_loop(victims, rng))
        with ChunkSet(memory_path / "job", key="kill", total=10_000_000) as chunks:
            done = chunks.done()
            assert acked <= set(done)
            for number in rng.sample(done, min(3, len(done))):
                assert version_of(chunks.file(number)) == number
    assert acked


def test_a_killed_journal_writer_loses_no_acknowledged_line(nursery, memory_path):
    rng = random.Random(2)
    victims = nursery("write_journal", memory_path)
    journal = memory_path / "journal.jsonl"
    acked: list[int] = []
    for _ in range(ROUNDS):
        acked += kill_a_loop(victims, rng)
        if journal.exists():
            versions = [item["version"] for item in read_lines(journal).objects]
            assert versions == sorted(set(versions))
            assert set(acked) <= set(versions)
    assert acked
    append_lines(journal, [{"version": -1}])
    assert not read_lines(journal).torn


def test_a_killed_owner_frees_its_lock_at_once(nursery, memory_path):
    rng = random.Random(3)
    victims = nursery("take_lock", memory_path)
    for _ in range(ROUNDS):
        kill_a_loop(victims, rng)
        with lock(memory_path / "lock"):
            pass


def every_stop(victims):
    number = 1
    while victims.stop_before_call(number):
        yield number
        number += 1
    assert number > 5, "hardly any call was watched"


def test_a_file_is_old_or_new_whichever_call_was_the_last(nursery, memory_path):
    victims = nursery("write_file", memory_path)
    target = memory_path / "target"
    target.write_text("1\n" * LINES)
    found = []
    for _ in every_stop(victims):
        found.append(version_of(target))
        with publish(target) as tmp:
            tmp.write_text("1\n" * LINES)
        assert nothing_but(memory_path, "target")
    assert found == sorted(found)
    assert set(found) == {1, 2}


@pytest.mark.parametrize("kind", ["write_dir", "write_dir_in_two_steps"])
def test_a_folder_is_old_or_new_whichever_call_was_the_last(nursery, memory_path, kind):
    victims = nursery(kind, memory_path)
    target = memory_path / "target"

    def restore():
        with publish_dir(target, {"version": 1}) as tmp:
            (tmp / "deep").mkdir()
            for part in ("a.txt", "b.txt", "deep/c.txt"):
                (tmp / part).write_text("1\n" * LINES)

    restore()
    found = []
    gone = 0
    for _ in every_stop(victims):
        gone += not target.exists()
        found.append(version_of_dir(target))  # reading the manifest recovers by itself
        restore()
        assert nothing_but(memory_path, "target")
    assert found == sorted(found)
    assert set(found) == {1, 2}
    # one step: the target is never away; two steps: between them, and recovered
    assert gone == (0 if kind == "write_dir" else 1)


def test_the_next_publish_finishes_a_swap_that_was_stopped_and_then_fails_clean(nursery, memory_path):
    victims = nursery("write_dir_in_two_steps", memory_path)
    target = memory_path / "target"
    for number in range(1, 1000):
        with publish_dir(target, {"version": 1}):
            pass
        assert victims.stop_before_call(number)
        if not target.exists():
            break
    with pytest.raises(ZeroDivisionError), publish_dir(target):
        raise ZeroDivisionError
    assert version_of_dir(target) == 2
    assert nothing_but(memory_path, "target")


def test_finishing_a_job_can_be_stopped_anywhere_and_run_again(nursery, memory_path):
    victims = nursery("finish_chunks", memory_path)
    target = memory_path / "target"
    whole = "".join(f"{n}\n" * LINES for n in range(3))
    for _ in every_stop(victims):
        with ChunkSet(memory_path / "job", key="kill", total=3) as chunks:
            for number in chunks.missing():
                chunks.put(number, (f"{number}\n" * LINES).encode())
            chunks.finish(target)
        assert target.read_text() == whole
        assert nothing_but(memory_path, "target")


def test_a_journal_keeps_its_lines_whichever_call_was_the_last(nursery, memory_path):
    victims = nursery("write_journal", memory_path)
    journal = memory_path / "journal.jsonl"
    append_lines(journal, [{"version": 1}])
    for stop in every_stop(victims):
        assert read_lines(journal).objects[0] == {"version": 1}
        append_lines(journal, [{"version": 3, "stop": stop}])
        assert read_lines(journal).objects[-1] == {"version": 3, "stop": stop}
        assert not read_lines(journal).torn


def test_a_lock_is_named_while_it_is_held_and_free_when_its_owner_is_killed(nursery, memory_path):
    victims = nursery("hold_lock", memory_path)
    victims.tell("loop")
    pid = victims.hear("pid")
    victims.hear("ack")
    assert owner(memory_path / "lock").pid == pid
    os.kill(pid, signal.SIGKILL)
    victims.acks_until_death()
    assert owner(memory_path / "lock") is None
    with lock(memory_path / "lock"):
        pass


def test_workers_that_outlive_the_owner_do_not_keep_its_lock(nursery, memory_path):
    victims = nursery("hold_lock_with_workers", memory_path)
    victims.tell("loop")
    pid = victims.hear("pid")
    survivors = [victims.hear("ack"), victims.hear("ack")]
    try:
        os.kill(pid, signal.SIGKILL)
        victims.acks_until_death()
        for survivor in survivors:
            os.kill(survivor, 0)
        with lock(memory_path / "lock"):
            pass
    finally:
        for survivor in survivors:
            os.kill(survivor, signal.SIGKILL)


def test_a_fork_that_leaves_the_block_neither_frees_nor_wipes_its_parents_lock(nursery, memory_path):
    victims = nursery("hold_lock_while_a_fork_leaves", memory_path)
    victims.tell("loop")
    pid = victims.hear("pid")
    victims.hear("ack")
    assert owner(memory_path / "lock").pid == pid
    assert (memory_path / "bystander").read_text() == "keep"
    os.kill(pid, signal.SIGKILL)
    victims.acks_until_death()


def test_a_fork_that_leaves_the_block_neither_publishes_nor_removes(nursery, memory_path):
    victims = nursery("publish_while_a_fork_leaves", memory_path)
    assert not victims.stop_before_call(10**9)
    assert (memory_path / "target").read_text() == "by the parent"
    assert verify(memory_path / "folder").files.keys() == {"part"}
    assert nothing_but(memory_path, "target", "folder")
