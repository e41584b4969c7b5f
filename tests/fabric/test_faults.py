"""Faults: every rank names a rank that died, stopped or made another call; no process is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from tests.fabric import ranks as jobs
from tests.fabric.chaos import TRANSPORTS

from ridgeline import fabric, native

pytestmark = pytest.mark.ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "call", "other_call"),
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
def test_the_error_for_different_calls_names_both_and_the_ranks_can_go_on(what, call, other_call):
    errors = fabric.spawn(jobs.make_different_calls, 3, args=(what,), timeout=60)
    for rank, message in enumerate(errors):
        assert re.search(call, message), (rank, message)
        assert re.search(other_call, message), (rank, message)
        assert "rank 1 calls" in message


def check_death(message: str) -> None:
    """A death is noticed by itself: the call has a timeout of minutes, and its error names no timeout."""
    assert "rank 1" in message, message
    assert "rank 1 died" in message, message
    assert "within" not in message


def check_stop(message: str) -> None:
    assert "rank 1" in message, message
    assert re.search(r"rank 1 did not come .* within the timeout of 1.5 s|gave up waiting for rank 1", message), message


@pytest.mark.parametrize("how", ["kill", "raises", "stop"])
def test_all_other_ranks_name_a_rank_that_ends_or_stops(how):
    results = fabric.spawn(jobs.stop_rank, 3, args=(how,), on_error="collect", timeout=60)
    assert isinstance(results[1], fabric.RankError)
    for rank in (0, 2):
        error, next_error = results[rank]
        (check_stop if how == "stop" else check_death)(error)
        assert "all_reduce #" in error
        assert "rank 1" in next_error


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("call", ["all_reduce in parts", *jobs.CALLS])
def test_the_other_ranks_name_a_rank_that_ends_within_any_call(call, how):
    results = fabric.spawn(jobs.stop_rank_in_call, 3, args=(call, how, 0.2), on_error="collect", timeout=60)
    assert isinstance(results[1], fabric.RankError)
    for rank in (0, 2):
        (check_death if how == signal.SIGKILL else check_stop)(results[rank])
        assert call.split()[0] in results[rank]


def test_a_rank_that_waits_for_a_short_message_can_be_interrupted():
    assert "has failed: rank 1 was interrupted in recv #0" in fabric.spawn(jobs.interrupt_recv, 2, timeout=60)[1]


def test_the_first_failure_is_raised_with_its_rank():
    with pytest.raises(fabric.RankError, match="rank 1: ValueError: by itself") as caught:
        fabric.spawn(jobs.stop_rank, 2, args=("raises",), timeout=60)
    assert caught.value.rank == 1
    assert "raise ValueError" in caught.value.trace


def test_ranks_that_exceed_the_timeout_of_a_spawn_are_ended():
    with pytest.raises(fabric.RankError, match="was not done within 3 s"):
        fabric.spawn(jobs.sleep_long, 2, timeout=3)


def test_no_rank_outlives_a_killed_parent():
    code = "from tests.fabric.ranks import sleep_long\nfrom ridgeline import fabric\nfabric.spawn(sleep_long, 2)"
    before = set(os.listdir("/dev/shm"))
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    pids = [int(parent.stderr.readline()) for _ in range(2)]
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(_is_running(pid) for pid in pids):
        time.sleep(0.05)
    assert not any(_is_running(pid) for pid in pids)
    assert not [f for f in set(os.listdir("/dev/shm")) - before if "ridgeline" in f]
    parent.stderr.close()


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_after_kills_at_random_points_the_others_shrink_and_go_on(transport):
    if transport.startswith("ucx") and native.find_ucx_problem():
        pytest.skip(f"needs libucx0: {native.find_ucx_problem()}")
    command = [sys.executable, "-m", "tests.fabric.chaos", transport, "6", "1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
