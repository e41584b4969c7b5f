"""The background process saves a snapshot, keeps no file of its parent, and ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.audit.watch import watching
from tests.audit.watch.watching import entries, jsonl, make, watch, write_events

from ridgeline.audit.watch import internal_events, scorer
from ridgeline.audit.watch.background import BackgroundProcess
from ridgeline.errors import RidgelineError


def test_the_copy_sees_one_moment(tmp_path):
    numbers = list(range(200_000))
    background = BackgroundProcess(lambda: [len(numbers), sum(numbers), os.getpid(), os.getppid()])
    numbers.clear()
    count, total, pid, parent = background.result()
    assert (count, total) == (200_000, sum(range(200_000)))
    assert (pid != os.getpid(), parent) == (True, os.getpid())
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)  # it was waited for


def test_a_long_answer_comes_whole():
    assert BackgroundProcess(lambda: "x" * 500_000).result() == "x" * 500_000


def test_work_that_fails_says_why_and_a_copy_that_was_killed_is_noticed():
    def fails():
        raise OSError("no space left")

    with pytest.raises(RidgelineError, match="no space left"):
        BackgroundProcess(fails).result()
    background = BackgroundProcess(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RidgelineError, match="without a result"):
        background.result()


def test_the_copy_runs_beside_its_parent_without_its_files(tmp_path):
    lock_file, go_on = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR), tmp_path / "go on"

    def find_file() -> bool:
        while not go_on.exists():
            time.sleep(0.01)
        return os.path.exists(f"/proc/self/fd/{lock_file}")

    try:
        background = BackgroundProcess(find_file)
        assert background.running
        go_on.touch()
        assert background.result() is False
    finally:
        os.close(lock_file)


def test_the_copy_ends_when_its_parent_is_killed(tmp_path):
    pid_file = tmp_path / "pid"
    program = f"""
import os, pathlib, time
from ridgeline.audit.watch.background import BackgroundProcess
def work():
    pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))
    time.sleep(60)
BackgroundProcess(work)
time.sleep(60)
"""
    us = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    copy = int(pid_file.read_text())
    us.kill()
    us.wait()
    while alive(copy) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(copy)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_a_watcher_saves_while_it_scores_and_comes_to_the_same(tmp_path, monkeypatch):
    begun = []

    class Noted(BackgroundProcess):
        def __init__(self, work):
            super().__init__(work)
            begun.append(self)

    monkeypatch.setattr(scorer, "BackgroundProcess", Noted)
    write_events(tmp_path / "in", 0, 1_200)
    logs = [make(tmp_path / name) for name in ("often", "never")]
    for log, save_s in zip(logs, (0.0, 1e9), strict=True):
        watch(log, jsonl(tmp_path / "in"), save_s=save_s, rules=[watching.ODD_RULE])
    assert begun
    often, never = (alerts(log) for log in logs)
    assert often == never
    assert "deny all inbound traffic" in [subject for subject, _ in often]
    write_events(tmp_path / "in", 1_200, 1_300)  # goes on from what the copies wrote
    assert watch(logs[0], jsonl(tmp_path / "in")).scored == 100


def alerts(log: Path) -> list[tuple[str, float]]:
    """What each was about, and its score; between events lie entries of the watcher's own, now more, now fewer."""
    events = entries(log)
    attributes = [e["attributes"] for e in events if e["action"] == internal_events.ALERT]
    return [(events[e["entry"]]["subject"], e["score"]) for e in attributes]


def test_where_no_copy_can_be_had_the_watcher_saves_by_itself(tmp_path, monkeypatch):
    def refuse_process(work):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(scorer, "BackgroundProcess", refuse_process)
    write_events(tmp_path / "in", 0, 300)
    log = make(tmp_path / "log")
    assert watch(log, jsonl(tmp_path / "in"), save_s=0.0).scored == 300
    assert watching.watch(log, jsonl(tmp_path / "in")).scored == 0
