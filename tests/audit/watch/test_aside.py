"""A copy of the process that saves: it sees one moment, keeps nothing of ours, and dies when we do."""

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

from ridgeline.audit.watch import own, scorer
from ridgeline.audit.watch.background import Aside
from ridgeline.errors import RidgelineError


def test_the_copy_sees_one_moment(tmp_path):
    held = list(range(200_000))
    aside = Aside(lambda: [len(held), sum(held), os.getpid(), os.getppid()])
    held.clear()
    count, total, pid, parent = aside.result()
    assert (count, total) == (200_000, sum(range(200_000)))
    assert (pid != os.getpid(), parent) == (True, os.getpid())
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)  # it was waited for


def test_a_long_answer_comes_whole():
    assert Aside(lambda: "x" * 500_000).result() == "x" * 500_000


def test_work_that_fails_says_why_and_a_copy_that_was_killed_is_noticed():
    def fails():
        raise OSError("no space left")

    with pytest.raises(RidgelineError, match="no space left"):
        Aside(fails).result()
    aside = Aside(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RidgelineError, match="without a word"):
        aside.result()


def test_it_runs_while_we_go_on_and_holds_none_of_our_files(tmp_path):
    held = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    try:
        aside = Aside(lambda: (time.sleep(0.3), os.path.exists(f"/proc/self/fd/{held}"))[1])
        assert aside.running
        assert aside.result() is False
    finally:
        os.close(held)


def test_it_dies_when_we_are_killed(tmp_path):
    told = tmp_path / "pid"
    program = f"""
import os, pathlib, time
from ridgeline.audit.watch.background import Aside
def work():
    pathlib.Path({str(told)!r}).write_text(str(os.getpid()))
    time.sleep(60)
Aside(work)
time.sleep(60)
"""
    us = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 60
    while not (told.exists() and told.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    copy = int(told.read_text())
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

    class Noted(Aside):
        def __init__(self, work):
            super().__init__(work)
            begun.append(self)

    monkeypatch.setattr(scorer, "Aside", Noted)
    write_events(tmp_path / "in", 0, 1_200)
    logs = [make(tmp_path / name) for name in ("often", "never")]
    for log, save_s in zip(logs, (0.0, 1e9), strict=True):
        watch(log, jsonl(tmp_path / "in"), save_s=save_s)
    assert begun
    often, never = (alerts(log) for log in logs)
    assert often == never
    assert [subject for subject, _ in often] == ["deny all inbound traffic"]
    write_events(tmp_path / "in", 1_200, 1_300)  # goes on from what the copies wrote
    assert watch(logs[0], jsonl(tmp_path / "in")).scored == 100


def alerts(log: Path) -> list[tuple[str, float]]:
    """What each was about, and its score; between events lie entries of the watcher's own, now more, now fewer."""
    found = entries(log)
    said = [e["attributes"] for e in found if e["action"] == own.ALERT]
    return [(found[e["entry"]]["subject"], e["score"]) for e in said]


def test_where_no_copy_can_be_had_the_watcher_saves_by_itself(tmp_path, monkeypatch):
    def refused(work):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(scorer, "Aside", refused)
    write_events(tmp_path / "in", 0, 300)
    log = make(tmp_path / "log")
    assert watch(log, jsonl(tmp_path / "in"), save_s=0.0).scored == 300
    assert watching.watch(log, jsonl(tmp_path / "in")).scored == 0
