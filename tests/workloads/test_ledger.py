"""The ledger workload: every stage of every contender is correct, and a lost event is noticed."""

from __future__ import annotations

import pytest

from ridgeline.errors import InputError
from ridgeline.lab import Case, Profile
from ridgeline.lab.race import load_workload
from ridgeline.machine import Placement
from ridgeline.workloads import _ledger_peers as peers
from ridgeline.workloads import get_reference
from ridgeline.workloads import ledger as module
from ridgeline.workloads.ledger import BASE, STAGES

workload = load_workload(get_reference("ledger"))


@pytest.fixture(autouse=True)
def work_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RIDGELINE_DISK", str(tmp_path))
    return tmp_path


def make_case(**change):
    return Case({**BASE, **change}, "cpu")


def run_steps(case, contender, turns=2):
    run = workload.prepare(case, contender, Placement())
    for _ in range(turns):
        run.reset()
        run.step()
        run.step()
    return run


@pytest.mark.parametrize("writers", [1, 16])
@pytest.mark.parametrize("batch", [1, 300])
@pytest.mark.parametrize("contender", ["ridgeline", "sqlite", "jsonl"])
def test_appending_is_right_and_leaves_nothing_behind(work_folder, contender, batch, writers):
    case = make_case(batch=batch, writers=writers)
    assert contender in workload.contenders(case)
    run = workload.prepare(case, contender, Placement())
    run.reset()
    run.step()
    assert workload.check(case, run.result()).ok
    assert run.extras()["fsync_ns"] > 0
    assert run.settings
    run.close()
    assert not list(work_folder.iterdir())


@pytest.mark.parametrize("stage", STAGES[1:])
def test_questions_are_answered_right(stage):
    case = make_case(stage=stage, batch=0, entries=1500)
    for contender in workload.contenders(case):
        run = run_steps(case, contender)
        assert workload.check(case, run.result()).ok, (stage, contender)
        run.close()


@pytest.mark.parametrize("contender", ["ridgeline", "sqlite", "jsonl"])
def test_an_event_that_is_lost_is_seen(contender, monkeypatch):
    case = make_case(batch=20)
    run = workload.prepare(case, contender, Placement())
    run.reset()
    kind = {"ridgeline": peers.Ours, "sqlite": peers.SQLite, "jsonl": peers.Lines}[contender]
    real = kind.append
    monkeypatch.setattr(kind, "append", lambda self, events: real(self, events[:-1]))
    run.step()
    assert not workload.check(case, run.result()).ok
    run.close()


def test_a_long_log_is_begun_anew(monkeypatch):
    monkeypatch.setattr(module, "MOST", 50)
    case = make_case(batch=20)
    run = run_steps(case, "ridgeline", turns=4)
    assert run.result()()[0]
    run.close()


def test_a_disk_that_answers_too_soon_is_named(monkeypatch):
    monkeypatch.setattr(module, "_fsync_here", lambda _: 50_000.0)
    assert "An fsync takes 50 µs here" in workload.note
    monkeypatch.setattr(module, "_fsync_here", lambda _: 5_000_000.0)
    assert "fsync takes" not in workload.note


def test_the_full_profile_has_every_batch_size_and_both_numbers_of_writers():
    cases = list(workload.cases(Profile.FULL))
    assert {(c["batch"], c["writers"]) for c in cases if c["stage"] == "append"} == {
        (n, w) for n in (1, 10, 100, 1000, 10_000) for w in (1, 16)
    }
    assert {c["entries"] for c in cases if c["stage"] == "prove"} == {100_000, 1_000_000}
    assert all(workload.work(c).items >= 1 for c in cases)
    with pytest.raises(InputError, match="there are"):
        workload.contenders(make_case(stage="sing"))
