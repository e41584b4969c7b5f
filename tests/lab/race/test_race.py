"""Races with contenders that fail: each leaves with its reason, and the others go on.

python -m pytest tests/lab/race/test_race.py
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.lab.conftest import SUBJECTS, make_record

from ridgeline.errors import InputError
from ridgeline.lab import workload
from ridgeline.lab.judge import analyse_record
from ridgeline.lab.race import BenchRequest, ContenderSpec, ProgressHooks, run_benchmark
from ridgeline.lab.record import RECORDS_FILE, append_record

pytestmark = pytest.mark.ranks


def get_rows(record):
    return {row.result.contender: row for row in analyse_record(record)}


@pytest.mark.slow
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
    rows = get_rows(run(f"who={fault}+slow")[0])
    assert rows[fault].assessment.validity == "INCOMPLETE"
    assert reason in rows[fault].assessment.advice
    assert rows[fault].assessment.time is None
    assert rows["ridgeline"].assessment.time
    assert rows["slow"].comparison == "SLOWER"
    assert rows["slow"].ratio.value == pytest.approx(5, rel=0.25)


def test_a_contender_that_hangs_is_stopped_at_its_timeout(run, tmp_path):
    start = time.monotonic()
    rows = get_rows(run("who=hang+slow", timeout_s=2.0, out=tmp_path / "hang")[0])
    assert time.monotonic() - start < 300, "the race does not wait for the contender, which sleeps for an hour"
    assert "no answer within 2 s" in rows["hang"].assessment.advice
    assert rows["slow"].comparison == "SLOWER"


def test_the_death_of_a_contender_is_detected_and_its_children_end_too(run):
    start = time.monotonic()
    rows = get_rows(run("who=parent")[0])
    assert time.monotonic() - start < 300
    assert "exited with code 9" in rows["parent"].assessment.advice
    child = Path(f"/proc/{rows['parent'].result.settings['child']}")
    deadline = time.monotonic() + 60
    while _is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_alive(child)


def test_an_error_of_nan_is_wrong_and_recorded(run, tmp_path):
    row = get_rows(run("who=nan")[0])["nan"]
    assert row.assessment.validity == "WRONG"
    assert (row.result.check["error"], row.result.check["quality"]) == (None, {"recall": None})
    assert json.loads((tmp_path / "out" / RECORDS_FILE).read_text())


def test_a_wrong_output_has_no_time_and_leaves_before_the_race(run):
    record = run("who=wrong")[0]
    row = get_rows(record)["wrong"]
    assert row.assessment.validity == "WRONG"
    assert row.to_json()["median_ns"] is None
    assert row.to_json()["error"] == 1.0
    assert not row.result.samples_ns


def test_an_output_that_becomes_wrong_during_the_race_is_detected_in_the_timed_buffers(run):
    row = get_rows(run("who=late", budget_s=4.0)[0])["late"]
    assert row.result.samples_ns, "it was correct at first"
    assert row.assessment.validity == "WRONG"
    assert row.assessment.time is None


def test_output_of_a_library_does_not_disturb_the_race(run):
    assert get_rows(run("who=chatty")[0])["chatty"].assessment.time


def test_inputs_are_rewritten_before_every_turn_and_extras_are_recorded(run):
    record = run("who=slow")[0]
    result = record.contenders[0]
    turns = len(result.samples_ns) // result.samples_per_turn
    assert len(result.turn_overhead_ns) == turns == record.race["rounds"]
    assert result.extras["steps"] >= len(result.samples_ns) * result.calls_per_sample
    assert result.extras["peak_host_bytes"] > 1 << 20
    assert result.extras["cpu_user_ns"] > 0


def test_a_cold_race_times_single_calls(run):
    assert {result.calls_per_sample for result in run("who=slow", cold=True, most_rounds=12)[0].contenders} == {1}


def test_several_ranks_take_part_and_know_their_numbers(run):
    record = run("who=slow", ranks=2, most_rounds=24)[0]
    assert record.case["ranks"] == 2
    assert record.contenders[0].settings["rank"] == "0"
    assert len(record.placement) == 2
    if len(os.sched_getaffinity(0)) > 1:
        assert not set(record.placement[0]["cpus"]) & set(record.placement[1]["cpus"])


def test_a_crash_of_one_rank_removes_only_that_contender(run):
    rows = get_rows(run("who=crash+slow", ranks=2, most_rounds=24)[0])
    assert rows["crash"].assessment.validity == "INCOMPLETE"
    assert rows["ridgeline"].assessment.time


def test_a_peer_can_run_with_another_interpreter(run):
    other = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    if not other.exists() or sys.base_prefix == sys.prefix:
        pytest.skip("no second interpreter here")
    results = {result.contender: result for result in run("who=slow", pythons={"slow": str(other)})[0].contenders}
    assert results["slow"].failure is None
    assert results["slow"].settings["prefix"] != results["ridgeline"].settings["prefix"]


def test_a_peer_that_is_not_installed_is_named_with_its_extra(run):
    assert run("who=slow")[0].missing == {"unheard-of": "peers"}


@pytest.mark.slow
def test_a_difference_between_versions_must_show_again_with_fresh_processes(run, tmp_path):
    """A property of one process is not a difference between versions; a real difference shows in every execution."""
    lucky, slow = (ContenderSpec(f"ridgeline@{name}", name) for name in ("luck", "slow"))
    start = time.monotonic()
    record = run("who=chatty", versions=[slow], most_rounds=12, budget_s=180.0, out=tmp_path / "slow")[0]
    execution_s = (time.monotonic() - start) / len(record.race["executions"])
    assert len(record.race["executions"]) >= 6
    assert sum(record.race["executions"]) == record.race["rounds"] == len(record.contenders[0].turn_overhead_ns)
    assert get_rows(record)["ridgeline@slow"].comparison == "SLOWER"
    assert [result.contender for result in record.contenders] == ["ridgeline", "ridgeline@slow"], "peers stay out"
    # The lucky case is not decided and uses all its time: enough for six executions, even on a busier machine.
    case, budget_s = f"who=chatty,mark={tmp_path / 'once'}", max(20.0, 12 * execution_s)
    record = run(case, versions=[lucky], most_rounds=12, budget_s=budget_s, out=tmp_path / "luck")[0]
    assert len(record.race["executions"]) >= 6
    row = get_rows(record)["ridgeline@luck"]
    # One fast start among a few leaves it UNCLEAR; among many it is an exception, and the versions are the SAME.
    assert row.comparison in (("UNCLEAR",) if len(record.race["executions"]) <= 12 else ("UNCLEAR", "SAME"))
    assert row.ratio.low < 1 < row.ratio.high


def test_a_stopped_benchmark_keeps_its_records_and_continues(run, tmp_path):
    out, measured, messages = tmp_path / "out", [], []

    def stop_at_the_second(point):
        if point.case["who"] == "slow":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(out=out, most_rounds=12, hooks=ProgressHooks(on_case=stop_at_the_second))
    assert len((out / RECORDS_FILE).read_text().splitlines()) == 1
    hooks = ProgressHooks(on_case=lambda point: measured.append(point.case["who"]), on_message=messages.append)
    records = run(out=out, most_rounds=12, hooks=hooks)
    assert measured == ["slow", "wrong"]
    assert [r.case["who"] for r in records] == ["chatty", "slow", "wrong"]
    assert "1 cases are done already" in messages[0]
    measured.clear()
    run(out=out, most_rounds=12, hooks=hooks)
    assert measured == ["chatty", "slow", "wrong"], "after a finished run the next one measures again"
    assert len((out / RECORDS_FILE).read_text().splitlines()) == 6


@pytest.mark.slow
@pytest.mark.parametrize("state", ["[1, 2]", '{"started": 5}', '{"started": ["x"]}', "null", '"a"', "{", ""])
def test_an_invalid_state_file_starts_a_new_run(run, tmp_path, state):
    append_record(tmp_path, make_record({"ridgeline": [1.0] * 6}))
    (tmp_path / "run.json").write_text(state)
    records = run("who=chatty", out=tmp_path, most_rounds=2)
    assert [r.case["who"] for r in records] == ["chatty"]
    state = json.loads((tmp_path / "run.json").read_text())
    assert state["started"] <= state["finished"]


def test_cases_without_time_are_named_and_the_run_is_finished(run, tmp_path):
    request = BenchRequest([SUBJECTS], tmp_path / "o", device="cpu", budget_s=0.01)
    result = run_benchmark(request)
    assert [r.case["who"] for r in result.records] == ["chatty"], "one case is always measured"
    assert [p.case["who"] for p in result.left_out] == ["slow", "wrong"]
    state = json.loads((tmp_path / "o" / "run.json").read_text())
    assert state["finished"]
    assert [label.partition(" · ")[0] for label in state["left_out"]] == [
        "subjects who=slow n=1000 mark=",
        "subjects who=wrong n=1000 mark=",
    ]


@pytest.mark.slow
def test_a_stopped_run_with_other_settings_is_not_continued(run, tmp_path):
    """Cold caches make the same case another measurement."""
    measured: list[str] = []

    def stop_at_the_second(point):
        if point.case["who"] == "slow":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "o", most_rounds=12, budget_s=180.0, hooks=ProgressHooks(on_case=stop_at_the_second))
    with pytest.raises(KeyboardInterrupt):
        run(
            out=tmp_path / "o",
            cold=True,
            most_rounds=12,
            budget_s=180.0,
            hooks=ProgressHooks(on_case=stop_at_the_second),
        )
    hooks = ProgressHooks(on_case=lambda point: measured.append(point.case["who"]))
    records = run(out=tmp_path / "o", cold=True, most_rounds=12, budget_s=180.0, hooks=hooks)
    assert measured == ["slow", "wrong"]
    assert [r.cold for r in records] == [True] * 3
    assert "cold" in records[0].label
    assert records[0].command.endswith("--cold")


def test_two_benchmarks_cannot_write_into_one_folder(run, tmp_path):
    from ridgeline.store import lock

    (tmp_path / "out").mkdir()
    with lock(tmp_path / "out" / ".lock"), pytest.raises(Exception, match="lock"):
        run("who=slow")


@pytest.mark.parametrize(
    ("case", "says"),
    [("bytes=3", "no 'bytes'; they have: who, n, mark"), ("n", "not of the form"), ("n=many", "something like 1000")],
)
def test_an_invalid_case_is_refused_with_the_valid_form(run, case, says):
    with pytest.raises(InputError, match=says):
        run(case)


def test_sizes_may_have_units_and_exponents():
    template = workload.Case({"n": 4, "share": 0.5, "on": True, "name": "x"})
    case = workload.parse_case(template, "n=1e6,share=0.25,on=false,name=y")
    assert dict(case.params) == {"n": 1_000_000, "share": 0.25, "on": False, "name": "y"}
    assert workload.parse_case(template, "n=64MiB")["n"] == 64 << 20
    with pytest.raises(InputError, match="something like 4"):
        workload.parse_case(template, "n=1e999")


def test_labels_use_a_unit_only_for_exact_multiples():
    labels = [workload.Case({"bytes": n}, "cpu").label for n in (64 << 20, 1025 << 10, 1000, 0)]
    assert labels == ["bytes=64 MiB · cpu", "bytes=1025 KiB · cpu", "bytes=1000 · cpu", "bytes=0 · cpu"]


def _burn(until: float) -> None:
    while time.monotonic() < until:
        sum(range(1000))


@pytest.mark.slow
def test_spin_gets_no_wrong_verdict_on_a_busy_machine(run, tmp_path):
    """Race the lab's own test workload while one process per CPU burns time."""
    context = multiprocessing.get_context("spawn")
    until = time.monotonic() + 40
    neighbours = [context.Process(target=_burn, args=(until,)) for _ in os.sched_getaffinity(0)]
    for process in neighbours:
        process.start()
    try:
        for attempt in range(3):
            record = run(workload="ridgeline.workloads.spin", budget_s=6.0, out=tmp_path / str(attempt))[0]
            rows = get_rows(record)
            assert rows["same"].comparison in ("SAME", "UNCLEAR")
            assert rows["slow5"].comparison in ("SLOWER", "UNCLEAR")
            assert rows["wrong"].assessment.validity == "WRONG"
            assert rows["wrong"].assessment.time is None
    finally:
        for process in neighbours:
            process.kill()
            process.join()


@pytest.mark.slow
def test_spin_gets_same_slower_and_wrong(run, tmp_path):
    verdicts = []
    for attempt in range(4):
        record = run(workload="ridgeline.workloads.spin", budget_s=5.0, out=tmp_path / str(attempt))[0]
        rows = get_rows(record)
        verdicts.append((rows["same"].comparison, rows["slow5"].comparison, rows["wrong"].assessment.validity))
    assert verdicts.count(("SAME", "SLOWER", "WRONG")) >= 3, verdicts


def test_ctrl_c_leaves_complete_records_and_no_process(tmp_path, known_ceilings):
    command = [sys.executable, "-m", "ridgeline", "bench", "spin", "--profile", "full", "--out", str(tmp_path / "o")]
    process = subprocess.Popen([*command, "--device", "cpu", "--budget", "60s"], stderr=subprocess.PIPE, text=True)
    children: list[int] = []
    _wait_until(lambda: (tmp_path / "o" / RECORDS_FILE).exists())
    _wait_until(lambda: children.extend(_list_children(process.pid)) or children)
    assert children, "contenders are running"
    process.send_signal(2)
    _, output = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "goes on from there" in " ".join(output.split())
    for line in (tmp_path / "o" / RECORDS_FILE).read_text().splitlines():
        assert json.loads(line)["workload"] == "spin"
    _wait_until(lambda: not any(_is_alive(Path(f"/proc/{pid}")) for pid in children))
    assert not [pid for pid in children if _is_alive(Path(f"/proc/{pid}"))]


def _wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)


def _is_alive(process: Path) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _list_children(pid: int) -> list[int]:
    return [int(p) for task in Path(f"/proc/{pid}/task").iterdir() for p in (task / "children").read_text().split()]
