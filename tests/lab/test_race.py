"""Races with contenders that misbehave: each leaves with its reason, and the others go on.

python -m pytest tests/lab/test_race.py
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.lab.conftest import SUBJECTS, make_record

from ridgeline.errors import InputError
from ridgeline.lab import workload
from ridgeline.lab.judge import analyse
from ridgeline.lab.race.baton import Entrant
from ridgeline.lab.race.benchmark import Watcher, bench
from ridgeline.lab.race.points import Ask
from ridgeline.lab.record import record as records
from ridgeline.lab.record.record import FILE

pytestmark = pytest.mark.ranks


def judged(record):
    return {row.lane.contender: row for row in analyse.rows(record)}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("crash", "exited with code 7: last words"),
        ("killed", "was killed by SIGKILL"),
        ("refuse", "it raised RuntimeError: this peer wants another version"),
        ("raises", "it raised ValueError: no more"),
        ("intruder", "wrote into the lab's own pipe: 'hello'"),
    ],
)
def test_a_contender_that_fails_is_incomplete_with_its_reason_and_the_rest_goes_on(run, fault, reason):
    rows = judged(run(f"who={fault}+slow")[0])
    assert rows[fault].judged.validity == "INCOMPLETE"
    assert reason in rows[fault].judged.advice
    assert rows[fault].judged.time is None
    assert rows["ridgeline"].judged.time
    assert rows["slow"].comparison == "SLOWER"
    assert rows["slow"].ratio.value == pytest.approx(5, rel=0.25)


def test_a_contender_that_hangs_is_stopped_at_its_timeout(run, tmp_path):
    began = time.monotonic()
    run("who=slow", timeout_s=2.0)
    without = time.monotonic() - began
    rows = judged(run("who=hang+slow", timeout_s=2.0, out=tmp_path / "hang")[0])
    with_it = time.monotonic() - began - without
    assert with_it < 2 * without + 10, "the same race, and the wait for who hangs: in calm and in crowded hours"
    assert "no answer within 2 s" in rows["hang"].judged.advice
    assert rows["slow"].comparison == "SLOWER"


def test_a_contender_that_dies_is_noticed_though_its_children_live_and_they_end_with_it(run):
    began = time.monotonic()
    rows = judged(run("who=parent")[0])
    assert time.monotonic() - began < 30
    assert "exited with code 9" in rows["parent"].judged.advice
    child = Path(f"/proc/{rows['parent'].lane.settings['child']}")
    deadline = time.monotonic() + 5
    while _alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(child)


def test_an_error_that_is_no_number_is_wrong_and_recorded(run, tmp_path):
    row = judged(run("who=nan")[0])["nan"]
    assert row.judged.validity == "WRONG"
    assert (row.lane.check["error"], row.lane.check["quality"]) == (None, {"recall": None})
    assert json.loads((tmp_path / "out" / FILE).read_text())


def test_a_wrong_output_has_no_time_and_leaves_before_the_race(run):
    record = run("who=wrong")[0]
    row = judged(record)["wrong"]
    assert row.judged.validity == "WRONG"
    assert row.to_json()["median_ns"] is None
    assert row.to_json()["error"] == 1.0
    assert not row.lane.samples_ns


def test_an_output_that_turns_wrong_during_the_race_is_found_in_the_timed_buffers(run):
    row = judged(run("who=late", budget_s=4.0)[0])["late"]
    assert row.lane.samples_ns, "it was right at first"
    assert row.judged.validity == "WRONG"
    assert row.judged.time is None


def test_what_a_library_prints_does_not_disturb_the_race(run):
    assert judged(run("who=chatty")[0])["chatty"].judged.time


def test_inputs_are_rewritten_before_every_turn_and_extras_are_kept(run):
    record = run("who=slow")[0]
    lane = record.contenders[0]
    turns = len(lane.samples_ns) // lane.samples_per_turn
    assert len(lane.turn_overhead_ns) == turns == record.race["rounds"]
    assert lane.extras["steps"] >= len(lane.samples_ns) * lane.calls_per_sample
    assert lane.extras["peak_host_bytes"] > 1 << 20
    assert lane.extras["cpu_user_ns"] > 0


def test_a_cold_race_times_single_calls(run):
    assert {lane.calls_per_sample for lane in run("who=slow", cold=True)[0].contenders} == {1}


def test_several_ranks_take_part_and_know_who_they_are(run):
    record = run("who=slow", ranks=2)[0]
    assert record.case["ranks"] == 2
    assert record.contenders[0].settings["rank"] == "0"
    assert len(record.placement) == 2
    if len(os.sched_getaffinity(0)) > 1:
        assert not set(record.placement[0]["cpus"]) & set(record.placement[1]["cpus"])


def test_a_crash_of_one_rank_loses_the_contender_only(run):
    rows = judged(run("who=crash+slow", ranks=2)[0])
    assert rows["crash"].judged.validity == "INCOMPLETE"
    assert rows["ridgeline"].judged.time


def test_a_peer_can_run_in_an_interpreter_of_its_own(run):
    other = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    if not other.exists() or sys.base_prefix == sys.prefix:
        pytest.skip("no second interpreter here")
    lanes = {lane.contender: lane for lane in run("who=slow", pythons={"slow": str(other)})[0].contenders}
    assert lanes["slow"].failure is None
    assert lanes["slow"].settings["prefix"] != lanes["ridgeline"].settings["prefix"]


def test_a_peer_that_is_not_installed_is_named_with_its_extra(run):
    assert run("who=slow")[0].missing == {"unheard-of": "peers"}


def test_a_difference_between_versions_must_show_again_with_fresh_processes(run, tmp_path):
    """What is luck of one process is not called a difference; what is none shows in every heat."""
    lucky, slow = (Entrant(f"ridgeline@{name}", name) for name in ("luck", "slow"))
    began = time.monotonic()
    record = run("who=chatty", rivals=[slow], most_rounds=12, budget_s=180.0, out=tmp_path / "slow")[0]
    six_heats_s = time.monotonic() - began
    assert len(record.race["heats"]) >= 6
    assert sum(record.race["heats"]) == record.race["rounds"] == len(record.contenders[0].turn_overhead_ns)
    assert judged(record)["ridgeline@slow"].comparison == "SLOWER"
    assert [lane.contender for lane in record.contenders] == ["ridgeline", "ridgeline@slow"], "peers stay out"
    # Luck is never decided and races for as long as it may: time for six heats, in this hour and in a worse one.
    case, budget_s = f"who=chatty,mark={tmp_path / 'once'}", max(20.0, 3 * six_heats_s)
    record = run(case, rivals=[lucky], most_rounds=12, budget_s=budget_s, out=tmp_path / "luck")[0]
    assert len(record.race["heats"]) >= 6
    row = judged(record)["ridgeline@luck"]
    assert row.comparison == "UNCLEAR"
    assert row.ratio.low < 1 < row.ratio.high


def test_a_stopped_bench_keeps_its_records_and_goes_on_where_it_was(run, tmp_path):
    out, measured, said = tmp_path / "out", [], []

    def stop_at_the_second(point):
        if point.case["who"] == "slow":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(out=out, most_rounds=12, watcher=Watcher(case=stop_at_the_second))
    assert len((out / FILE).read_text().splitlines()) == 1
    watcher = Watcher(case=lambda point: measured.append(point.case["who"]), say=said.append)
    records = run(out=out, most_rounds=12, watcher=watcher)
    assert measured == ["slow", "wrong"]
    assert [r.case["who"] for r in records] == ["chatty", "slow", "wrong"]
    assert "1 cases are done already" in said[0]
    measured.clear()
    run(out=out, most_rounds=12, watcher=watcher)
    assert measured == ["chatty", "slow", "wrong"], "a finished run is closed; the next measures anew"
    assert len((out / FILE).read_text().splitlines()) == 6


@pytest.mark.parametrize("state", ["[1, 2]", '{"started": 5}', '{"started": ["x"]}', "null", '"a"', "{", ""])
def test_a_state_that_is_none_begins_a_new_run(run, tmp_path, state):
    records.append(tmp_path, make_record({"ridgeline": [1.0] * 6}))
    (tmp_path / "run.json").write_text(state)
    found = run("who=chatty", out=tmp_path, most_rounds=2)
    assert [r.case["who"] for r in found] == ["chatty"]
    told = json.loads((tmp_path / "run.json").read_text())
    assert told["started"] <= told["finished"]


def test_what_the_time_did_not_reach_is_named_and_the_run_is_over(run, tmp_path):
    said: list[str] = []
    ask = Ask([SUBJECTS], tmp_path / "o", device="cpu", budget_s=0.01)
    outcome = bench(ask, Watcher(say=said.append))
    assert [r.case["who"] for r in outcome.records] == ["chatty"], "something is always measured"
    assert [p.case["who"] for p in outcome.left_out] == ["slow", "wrong"]
    state = json.loads((tmp_path / "o" / "run.json").read_text())
    assert state["finished"]
    assert [label.partition(" · ")[0] for label in state["left_out"]] == [
        "subjects who=slow n=1000 mark=",
        "subjects who=wrong n=1000 mark=",
    ]


def test_a_stopped_run_is_not_taken_for_another_question(run, tmp_path):
    """Cold caches, or other contenders: the same case, but not the same race."""
    measured: list[str] = []

    def stop_at_the_second(point):
        if point.case["who"] == "slow":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "o", most_rounds=12, watcher=Watcher(case=stop_at_the_second))
    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "o", cold=True, most_rounds=12, watcher=Watcher(case=stop_at_the_second))
    watcher = Watcher(case=lambda point: measured.append(point.case["who"]))
    found = run(out=tmp_path / "o", cold=True, most_rounds=12, watcher=watcher)
    assert measured == ["slow", "wrong"]
    assert [r.cold for r in found] == [True] * 3
    assert "cold" in found[0].label
    assert found[0].command.endswith("--cold")


def test_two_benches_cannot_write_into_one_folder_at_once(run, tmp_path):
    from ridgeline.store import lock

    (tmp_path / "out").mkdir()
    with lock(tmp_path / "out" / ".lock"), pytest.raises(Exception, match="lock"):
        run("who=slow")


@pytest.mark.parametrize(
    ("case", "says"),
    [("bytes=3", "no 'bytes'; they have: who, n, mark"), ("n", "not of the form"), ("n=many", "something like 1000")],
)
def test_a_case_that_does_not_fit_is_refused_with_what_would(run, case, says):
    with pytest.raises(InputError, match=says):
        run(case)


def test_sizes_may_be_written_as_people_do():
    template = workload.Case({"n": 4, "share": 0.5, "on": True, "name": "x"})
    made = workload.own_case(template, "n=1e6,share=0.25,on=false,name=y")
    assert dict(made.params) == {"n": 1_000_000, "share": 0.25, "on": False, "name": "y"}
    assert workload.own_case(template, "n=64MiB")["n"] == 64 << 20
    with pytest.raises(InputError, match="something like 4"):
        workload.own_case(template, "n=1e999")


def test_sizes_are_shown_round_only_when_they_are():
    shown = [workload.Case({"bytes": n}, "cpu").label for n in (64 << 20, 1025 << 10, 1000, 0)]
    assert shown == ["bytes=64 MiB · cpu", "bytes=1025 KiB · cpu", "bytes=1000 · cpu", "bytes=0 · cpu"]


def _burn(until: float) -> None:
    while time.monotonic() < until:
        sum(range(1000))


@pytest.mark.xdist_group("busy")
def test_spin_is_judged_right_beside_a_busy_neighbour(run, tmp_path):
    """The lab's own subject, with as many burning processes as there are CPUs."""
    context = multiprocessing.get_context("spawn")
    until = time.monotonic() + 40
    neighbours = [context.Process(target=_burn, args=(until,)) for _ in os.sched_getaffinity(0)]
    for process in neighbours:
        process.start()
    try:
        for attempt in range(3):
            record = run(workload="ridgeline.workloads.spin", budget_s=6.0, out=tmp_path / str(attempt))[0]
            rows = judged(record)
            assert rows["same"].comparison in ("SAME", "UNCLEAR")
            assert rows["slow5"].comparison in ("SLOWER", "UNCLEAR")
            assert rows["wrong"].judged.validity == "WRONG"
            assert rows["wrong"].judged.time is None
    finally:
        for process in neighbours:
            process.kill()
            process.join()


@pytest.mark.xdist_group("busy")
def test_spin_says_same_slower_and_wrong(run, tmp_path):
    words = []
    for attempt in range(4):
        record = run(workload="ridgeline.workloads.spin", budget_s=5.0, out=tmp_path / str(attempt))[0]
        rows = judged(record)
        words.append((rows["same"].comparison, rows["slow5"].comparison, rows["wrong"].judged.validity))
    assert words.count(("SAME", "SLOWER", "WRONG")) >= 3, words


def test_ctrl_c_leaves_whole_records_and_no_process_behind(tmp_path, known_ceilings):
    command = [sys.executable, "-m", "ridgeline", "bench", "spin", "--profile", "full", "--out", str(tmp_path / "o")]
    bench = subprocess.Popen([*command, "--device", "cpu", "--budget", "60s"], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "o" / FILE).exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(0.5)
    children = _children(bench.pid)
    assert children, "contenders are running"
    bench.send_signal(2)
    _, said = bench.communicate(timeout=30)
    assert bench.returncode == 130, said
    assert "goes on from there" in " ".join(said.split())
    for line in (tmp_path / "o" / FILE).read_text().splitlines():
        assert json.loads(line)["workload"] == "spin"
    time.sleep(0.2)
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def _alive(process: Path) -> bool:
    """Not gone, and not merely waiting to be buried by whoever inherited it."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    return [int(p) for task in Path(f"/proc/{pid}/task").iterdir() for p in (task / "children").read_text().split()]
