"""Contenders whose ranks a launcher starts: they meet the lab by named pipes, race, and are gone afterwards.

python -m pytest tests/lab/test_launched.py

A script stands in for mpirun: it starts ranks in sessions of their own, tells each its number in the environment, hands
no descriptors on, and ends all when one fails.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.lab.judge import analyse

STAND_IN = f"""#!{sys.executable}
import os, signal, subprocess, sys, time
count, command = int(sys.argv[2]), sys.argv[3:]
told = [{{**os.environ, "STAND_IN_RANK": str(rank)}} for rank in range(count)]
ranks = [subprocess.Popen(command, env=env, start_new_session=True) for env in told]
for number, rank in enumerate(ranks):
    with open(os.path.join(os.path.dirname(sys.argv[0]), f"pid.{{number}}"), "w") as kept:
        kept.write(str(rank.pid))
def leave(*_):
    for rank in ranks:
        rank.terminate()
    sys.exit(143)
signal.signal(signal.SIGTERM, leave)
while None in [rank.poll() for rank in ranks]:
    if any(rank.returncode for rank in ranks):
        print("a rank ended", [rank.returncode for rank in ranks], flush=True)
        print("-" * 60, flush=True)
        for rank in ranks:
            rank.terminate()
        sys.exit(5)
    time.sleep(0.02)
"""


@pytest.fixture
def launch(run, tmp_path):
    """Race a launched contender with two ranks beside ours."""
    stand_in = tmp_path / "mpirun"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)

    def go(who: str, **more):
        record = run(f"who={who},mark={stand_in}", ranks=2, **more)[0]
        return {row.lane.contender: row for row in analyse.rows(record)}

    return go


def gone(folder: Path) -> bool:
    """Whether both ranks' processes have ended."""
    pids = [int((folder / f"pid.{rank}").read_text()) for rank in range(2)]
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not any(_alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_launched_ranks_race_and_leave_nothing_behind(launch, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    rows = launch("launched")
    lane = rows["launched"].lane
    assert lane.failure is None
    assert lane.samples_ns
    assert rows["ridgeline"].lane.samples_ns
    assert lane.settings["tuned"] == "yes"
    assert gone(tmp_path)
    assert not os.listdir(tmp_path / "tmp")


def test_launched_ranks_stand_where_the_lab_puts_them(launch):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU")
    rows = launch("launched")
    assert rows["launched"].lane.placed["cpus"] == rows["ridgeline"].lane.placed["cpus"]
    assert len(rows["launched"].lane.placed["cpus"]) == 1


def test_the_death_of_a_launched_rank_loses_the_contender_only(launch, tmp_path):
    rows = launch("launched dies")
    assert "exited with code 5: a rank ended" in rows["launched dies"].judged.advice
    assert rows["ridgeline"].judged.time
    assert gone(tmp_path)


def test_a_launched_rank_that_hangs_and_ignores_sigterm_is_ended(launch, tmp_path):
    rows = launch("launched hangs", timeout_s=2.0)
    assert "gave no answer within 2 s" in rows["launched hangs"].judged.advice
    assert gone(tmp_path)


def test_a_launcher_that_is_not_there_loses_the_contender_only(run):
    record = run("who=launched,mark=/nowhere/mpirun", ranks=2)[0]
    rows = {row.lane.contender: row for row in analyse.rows(record)}
    assert "could not start /nowhere/mpirun" in rows["launched"].judged.advice
    assert rows["ridgeline"].judged.time


def test_a_peer_that_is_missing_here_takes_part_by_its_own_interpreter(run):
    record = run("who=slow", pythons={"unheard-of": sys.executable})[0]
    assert record.missing == {}
    assert [lane.contender for lane in record.contenders] == ["ridgeline", "slow", "unheard-of"]


def test_an_interpreter_for_nobody_is_refused(run):
    with pytest.raises(InputError, match="no peer 'solw'; did you mean 'slow'"):
        run("who=slow", pythons={"solw": sys.executable})
