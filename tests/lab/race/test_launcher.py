"""Contenders whose ranks a launcher starts: they connect by named pipes, race, and end.

python -m pytest tests/lab/race/test_launcher.py

A script replaces mpirun: it starts ranks in their own sessions, sets the number of each in the environment, passes no
file descriptors on, and ends all ranks if one fails.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.lab.judge import analyse_record

FAKE_MPIRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys, time
count, command = int(sys.argv[2]), sys.argv[3:]
environments = [{{**os.environ, "FAKE_RANK": str(rank)}} for rank in range(count)]
ranks = [subprocess.Popen(command, env=env, start_new_session=True) for env in environments]
for number, rank in enumerate(ranks):
    with open(os.path.join(os.path.dirname(sys.argv[0]), f"pid.{{number}}"), "w") as file:
        file.write(str(rank.pid))
def stop(*_):
    for rank in ranks:
        rank.terminate()
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
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
    """Race a launched contender with two ranks against ours."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(FAKE_MPIRUN)
    mpirun.chmod(0o755)

    def race(contender: str, **options):
        record = run(f"who={contender},mark={mpirun}", ranks=2, **options)[0]
        return {row.result.contender: row for row in analyse_record(record)}

    return race


def have_ended(folder: Path) -> bool:
    """Whether the processes of both ranks have ended."""
    pids = [int((folder / f"pid.{rank}").read_text()) for rank in range(2)]
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not any(_is_alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_launched_ranks_race_and_leave_no_file_or_process(launch, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    rows = launch("launched")
    result = rows["launched"].result
    assert result.failure is None
    assert result.samples_ns
    assert rows["ridgeline"].result.samples_ns
    assert result.settings["tuned"] == "yes"
    assert have_ended(tmp_path)
    assert not os.listdir(tmp_path / "tmp")


def test_launched_ranks_are_bound_like_other_ranks(launch):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU")
    rows = launch("launched")
    assert rows["launched"].result.placed["cpus"] == rows["ridgeline"].result.placed["cpus"]
    assert len(rows["launched"].result.placed["cpus"]) == 1


def test_the_death_of_a_launched_rank_removes_only_that_contender(launch, tmp_path):
    rows = launch("launched dies")
    assert "exited with code 5: a rank ended" in rows["launched dies"].assessment.advice
    assert rows["ridgeline"].assessment.time
    assert have_ended(tmp_path)


@pytest.mark.slow
def test_a_launched_rank_that_hangs_and_ignores_sigterm_is_ended(launch, tmp_path):
    rows = launch("launched hangs", timeout_s=2.0)
    assert "gave no answer within 2 s" in rows["launched hangs"].assessment.advice
    assert have_ended(tmp_path)


def test_a_missing_launcher_removes_only_that_contender(run):
    record = run("who=launched,mark=/nowhere/mpirun", ranks=2)[0]
    rows = {row.result.contender: row for row in analyse_record(record)}
    assert "could not start /nowhere/mpirun" in rows["launched"].assessment.advice
    assert rows["ridgeline"].assessment.time


def test_a_missing_peer_takes_part_with_another_interpreter(run):
    record = run("who=slow", pythons={"unheard-of": sys.executable})[0]
    assert record.missing == {}
    assert [result.contender for result in record.contenders] == ["ridgeline", "slow", "unheard-of"]


def test_an_interpreter_for_an_unknown_peer_is_refused(run):
    with pytest.raises(InputError, match="no peer 'solw'; did you mean 'slow'"):
        run("who=slow", pythons={"solw": sys.executable})
