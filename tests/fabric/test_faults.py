"""Faults: who died, stands still or calls something else is named, soon, on every rank; nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from tests.fabric import ranks as work

from ridgeline import fabric

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize(
    ("what", "ours", "theirs"),
    [
        ("dtype", r"all_reduce #\d+ of 6 float32", r"all_reduce #\d+ of 6 float64"),
        ("op", r"all_reduce #\d+", r"broadcast #\d+"),
        ("reduction", r"\(sum\)", r"\(max\)"),
        ("algorithm", "by tree", "by ring"),
        ("root", "with root 0", "with root 1"),
        ("length in parts", "of 6 float32", "of 7 float32"),
        ("length of much", "of 600,000 float32", "of 700,000 float32"),
    ],
)
def test_ranks_that_call_different_things_are_told_both_sides_and_go_on(what, ours, theirs):
    said = fabric.spawn(work.differs, 3, args=(what,), timeout=60)
    for rank, words in enumerate(said):
        assert re.search(ours, words), (rank, words)
        assert re.search(theirs, words), (rank, words)
        assert "rank 1 calls" in words


@pytest.mark.parametrize(("how", "within"), [("kill", 1.0), ("raises", 1.5), ("stop", 2.5)])
def test_a_rank_that_ends_or_stands_still_is_named_to_all_others(how, within):
    told = fabric.spawn(work.ends, 3, args=(how,), on_error="collect", timeout=30)
    assert isinstance(told[1], fabric.RankError)
    for rank in (0, 2):
        said, took, again = told[rank]
        assert "rank 1" in said, said
        assert "all_reduce #" in said
        assert took < within
        assert "rank 1" in again  # and whoever calls once more hears it at once


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("call", ["all_reduce in parts", *work.CALLS])
def test_a_rank_that_ends_within_any_call_is_named(call, how):
    told = fabric.spawn(work.ends_in, 3, args=(call, how, 0.2), on_error="collect", timeout=30)
    assert isinstance(told[1], fabric.RankError)
    for rank in (0, 2):
        said, took = told[rank]
        assert "rank 1" in said, said
        assert call.split()[0] in said
        assert took < (1.0 if how == signal.SIGKILL else 2.5)


def test_a_rank_that_waits_for_a_short_message_can_be_interrupted():
    said, took = fabric.spawn(work.interrupted, 2, timeout=30)[1]
    assert said == "interrupted"
    assert took < 1.0


def test_the_first_failure_is_raised_with_its_rank():
    with pytest.raises(fabric.RankError, match="rank 1: ValueError: by itself") as told:
        fabric.spawn(work.ends, 2, args=("raises",), timeout=30)
    assert told.value.rank == 1
    assert "raise ValueError" in told.value.trace


def test_a_spawn_past_its_time_is_ended():
    began = time.perf_counter()
    with pytest.raises(fabric.RankError, match="was not done within 3 s"):
        fabric.spawn(work.sleeps, 2, timeout=3)
    assert time.perf_counter() - began < 10


def test_nothing_is_left_when_the_parent_is_killed():
    code = "from tests.fabric.ranks import sleeps\nfrom ridgeline import fabric\nfabric.spawn(sleeps, 2)"
    before = set(os.listdir("/dev/shm"))
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    pids = [int(parent.stderr.readline()) for _ in range(2)]
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    until = time.monotonic() + 10
    while time.monotonic() < until and any(_runs(pid) for pid in pids):
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in pids)
    assert not [f for f in set(os.listdir("/dev/shm")) - before if "ridgeline" in f]
    parent.stderr.close()


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
