"""The runner: a crash, a hang or a wrong output is a failed row, other points continue, no point runs twice.

python -m pytest tests/lab/experiment/test_run.py
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.lab import load_experiments
from ridgeline.lab.experiment import (
    ExperimentRequest,
    ProgressHooks,
    ResultsWriter,
    RunOptions,
    open_folder,
    run_experiment,
    run_points,
)
from ridgeline.lab.experiment.folder import SUMMARY, read_state, write_state
from ridgeline.lab.experiment.report import write_report
from ridgeline.lab.study import build_rows
from ridgeline.machine import topology

HOSTILE = "<script>alert(1)</script>|x"


def run(points, folder, **options):
    finished = []
    hooks = ProgressHooks(on_end=lambda point, row: finished.append(row))
    run_points(points, folder, topology(), RunOptions(**options), hooks)
    return finished


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.05)


def test_a_crash_a_hang_and_a_wrong_output_are_failed_rows_and_other_points_continue(point, folder, tmp_path):
    faults = ("raises", "kills_itself", "exits", "wrong", "exits_with_a_sleeping_child", "returns_nan")
    points = [point(), *map(point, faults), point("hangs", timeout_s=5.0), point(n=2)]
    by_name = {row["run_id"].partition("-")[0]: row for row in run(points, folder)}
    assert [by_name[name]["success"] for name in ("good1", "good2")] == [True, True]
    errors = {name: by_name[f"{name}1"]["error"] for name in (*faults, "hangs")}
    assert errors["raises"] == "raised ValueError: no more"
    assert errors["kills_itself"].startswith("was killed by SIGKILL")
    assert errors["exits"] == "exited with code 7: last words"
    assert errors["exits_with_a_sleeping_child"].startswith("exited with code 9")
    assert errors["returns_nan"] == "returned a time that is not a positive number"
    assert errors["hangs"] == "gave no answer within 5 s and was stopped"
    assert "failed its check (error 0.5): far off" in errors["wrong"]
    failed_rows = [row for row in by_name.values() if not row["success"]]
    assert all(row["throughput"] is None for row in failed_rows), "a wrong output has no throughput"
    pids = (tmp_path / "pids").read_text().split()  # processes that wrote their ID
    wait_until(lambda: all(has_ended(int(pid)) for pid in pids))
    log = (folder.path / "experiment.log").read_text()
    assert log.count("FAILED") == 7
    assert "measuring 2" in (folder.runs / f"{points[-1].run_id}.log").read_text()


def test_a_point_runs_on_its_placement_and_the_row_has_it(point, folder):
    one = point(n=4)
    (row,) = run([one], folder)
    (record,) = folder.records()
    result, machine = record.contenders[0], topology()
    cpus = sorted(set(machine.node(one.node).cpus) & set(machine.usable_cpus))
    assert result.extras["process"]["cpus"] == cpus == list(record.placement[0]["cpus"])
    assert result.extras["process"]["pid"] != os.getpid()
    if result.placed["staging"]["memory"] == "bind":
        assert set(result.extras["pages"]) == {one.node}
    assert (row["numa_node"], row["gpu_id"], row["distance"]) == (one.node, None, 10)
    assert row["throughput"] == pytest.approx(10 / 4e-3)
    assert row["batch_seconds"] == pytest.approx(4e-3)
    assert row["overlap"] == pytest.approx(9e5 / 4e6)
    assert (row["h2d_seconds"], row["h2d_bytes"], row["d2h_bytes"]) == (4e-4, 40, 20)
    assert (row["samples"], row["flops"], row["n"]) == ([4e-3] * 8, 100, 4)
    assert (folder.runs / f"{one.run_id}.trace.json").is_file()


def test_done_points_are_skipped_and_failed_points_run_again(point, folder, tmp_path):
    points = [point(), point("second_try")]
    assert [row["success"] for row in run(points, folder)] == [True, False]
    (tmp_path / "fixed").touch()
    assert [row["run_id"] for row in run(points, folder)] == [points[1].run_id]
    assert run(points, folder) == []
    assert [row["success"] for row in build_rows(folder.records())] == [True, True]


def test_points_of_another_version_of_the_code_run_again(point, folder):
    run([point()], folder)
    file = folder.path / "records.jsonl"
    line = json.loads(file.read_text())
    line["code"]["tree"] = "another"
    file.write_text(json.dumps(line) + "\n")
    assert len(run([point()], folder)) == 1
    assert len(build_rows(folder.records())) == 1, "the newest record of a point counts"


@pytest.mark.parametrize("contention", [False, True])
def test_several_workers_share_no_cpu_without_contention(point, folder, contention):
    run([point("slow", n) for n in range(1, 4)], folder, workers=2, contention=contention)
    cpus = [tuple(one.placement[0]["cpus"]) for one in folder.records()]
    node_cpus = sorted(set(topology().node(point().node).cpus) & set(topology().usable_cpus))
    if contention or len(node_cpus) == 1:
        assert set(cpus) == {tuple(node_cpus)}
    else:
        first, second = sorted(set(cpus))
        assert not set(first) & set(second)


SCRIPT = """
import sys
from pathlib import Path
from ridgeline.lab.experiment import ExperimentRequest, RunOptions, Point, ProgressHooks, run_experiment
from ridgeline.machine import topology

node = topology().memory_nodes[0]
points = [Point("synthetic", f"slow{n}", "faulty_subjects:slow", {"n": n}, node, node) for n in range(1, 5)]
request = ExperimentRequest("synthetic", "", "", RESUME, RunOptions(workers=1, command="made"))
result = run_experiment(request, points, Path("outputs"), topology(), ProgressHooks())
print(result.folder.path.name, sum(r["success"] for r in result.rows))
"""


def start(resume: bool | None, **environment) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.replace("RESUME", repr(resume))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def read_records(tmp_path) -> list[dict]:
    lines = [line for f in tmp_path.glob("outputs/*/records.jsonl") for line in f.read_text().split("\n")]
    return [json.loads(line) for line in lines if line.endswith("}")]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_resumes_without_repeats_and_leaves_no_process(tmp_path, number):
    stopped = start(None, SLOW_S="3600")
    wait_until(lambda: len(read_records(tmp_path)) == 1)
    wait_until(lambda: len((tmp_path / "pids").read_text().split()) == 2)
    stopped.send_signal(number)
    stopped.communicate()
    wait_until(lambda: all(has_ended(int(pid)) for pid in (tmp_path / "pids").read_text().split()))
    (folder,) = (tmp_path / "outputs").iterdir()
    assert read_state(folder)["finished"] is None
    resumed = start(None, SLOW_S="0")
    out, err = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, err
    assert out.split() == [folder.name, "4"]
    ids = [line["plan"]["run_id"] for line in read_records(tmp_path)]
    assert len(ids) == len(set(ids)) == 4
    assert read_state(folder)["finished"]


def test_ctrl_c_loses_no_finished_point(tmp_path):
    stopped = start(None, SLOW_S="3600")
    wait_until(lambda: len(read_records(tmp_path)) == 1)
    wait_until(lambda: len((tmp_path / "pids").read_text().split()) == 2)
    stopped.send_signal(signal.SIGINT)
    _, err = stopped.communicate(timeout=60)
    assert "KeyboardInterrupt" in err
    (folder,) = (tmp_path / "outputs").iterdir()
    assert len(json.loads((folder / "results.json").read_text())) == 1
    assert read_state(folder)["finished"] is None
    wait_until(lambda: all(has_ended(int(pid)) for pid in (tmp_path / "pids").read_text().split()))


def test_a_folder_is_resumed_only_on_request_or_after_a_stop(tmp_path):
    outputs = tmp_path / "outputs"

    def make_folder(finished, failed=0, digest="same"):
        one = open_folder(outputs, "synthetic", False, digest)
        write_state(one, {"name": "synthetic", "finished": finished, "failed": failed, "asked": digest})
        return one.path

    done = make_folder("yes")
    assert open_folder(outputs, "synthetic", True, "same").path == done, "True resumes the newest in any state"
    assert open_folder(outputs, "synthetic", None, "same").path != done, "a finished experiment is not resumed"
    stopped = make_folder(None)
    assert open_folder(outputs, "synthetic", None, "same").path == stopped
    assert open_folder(outputs, "synthetic", None, "other").path != stopped, "another configuration has another folder"
    assert open_folder(outputs, "synthetic", False, "same").path != stopped
    failed = make_folder("yes", failed=1)
    assert open_folder(outputs, "synthetic", None, "same").path == failed, "failed points run again"
    assert open_folder(outputs, done.name, None, "same").path == done, "a complete name selects that folder"
    assert open_folder(outputs, "synth", None, "same").resumed is False


def test_an_error_names_the_folder_of_another_version(tmp_path, point, folder):
    write_state(folder, {"name": "synthetic", "finished": None, "asked": ""})
    state = json.loads((folder.path / SUMMARY).read_text())
    (folder.path / SUMMARY).write_text(json.dumps({**state, "schema": 99}))
    with pytest.raises(InputError, match=f"{folder.path.name}.*another version.*schema 99"):
        open_folder(tmp_path / "outputs", "synthetic", True, "")
    with pytest.raises(InputError, match="another version"):
        load_experiments(tmp_path / "outputs")


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden"])
def test_a_name_that_cannot_be_a_folder_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="cannot name a folder"):
        open_folder(tmp_path, name, None, "")


def test_nothing_is_written_if_the_machine_lacks_a_node(tmp_path, point):
    absent = dataclasses.replace(point(), node=99)
    with pytest.raises(InputError, match="no NUMA node 99"):
        run_experiment(
            ExperimentRequest("synthetic", "", "", None, RunOptions()),
            [absent],
            tmp_path / "outputs",
            topology(),
            ProgressHooks(),
        )
    assert not (tmp_path / "outputs").exists()


def test_the_pages_are_complete_and_escape_a_hostile_name(tmp_path, point, folder):
    bad = dataclasses.replace(point("raises"), params={"model": HOSTILE, "n": 1}, name=HOSTILE)
    good = dataclasses.replace(point(), params={"model": HOSTILE, "n": 2}, name=HOSTILE)
    run([point(), bad, good], folder)
    writer = ResultsWriter(folder, {"name": "synthetic", "description": HOSTILE, "command": HOSTILE})
    rows_written = writer.write(finished=True)
    write_report(folder, folder.state())
    html = (folder.path / "report.html").read_text()
    assert "<script>alert" not in html
    assert "batch 0 · compute" in html, "the timeline is drawn"
    assert "One node: there is no far node to measure." in html
    text = (folder.path / "summary.md").read_text()
    summary = text.partition("## Recommendation")[0]
    assert summary.count("\n| ") == 1 + 2, "a head and two good rows"
    assert "<script>" not in summary.replace(f"`{HOSTILE}`", ""), "except in the command, which is code"
    assert "raised ValueError" in text
    assert json.loads((folder.path / "results.json").read_text()) == rows_written
    state = read_state(folder.path)
    assert (state["points"], state["succeeded"], state["failed"]) == (3, 2, 1)


def test_all_experiments_load_as_one_table(tmp_path, point):
    pytest.importorskip("pyarrow")
    for name in ("one", "two"):
        folder = open_folder(tmp_path / "outputs", name, False, "")
        run([point(n=3)] if name == "one" else [point(n=3), point("raises")], folder)
        ResultsWriter(folder, {"name": name}).write(finished=True)
    table = load_experiments(tmp_path / "outputs")
    assert table.num_rows == 3
    assert sorted({name.partition("-")[0] for name in table["folder"].to_pylist()}) == ["one", "two"]
    assert table["success"].to_pylist() == [True, True, False]
    assert table["throughput"].to_pylist()[2] is None
    with pytest.raises(InputError, match="no experiment in"):
        load_experiments(tmp_path / "nowhere")


def test_the_summary_and_the_page_show_a_crossover(point, folder):
    points = [
        dataclasses.replace(base, params={**base.params, "model": "layered", "depth": n})
        for n in (0, 1, 2, 3, 4, 6, 8, 12)
        for base in [point("crosses_at_five_layers", n)]
    ]
    run(points, folder)
    state = {"name": "synthetic", "description": "", "command": "", "started": "", "finished": ""}
    write_state(folder, state)
    write_report(folder, folder.state())
    (one,) = json.loads((folder.path / "study.json").read_text())["Where compute overtakes transfers"]["crossovers"]
    assert (one["below"], one["above"], one["control"], one["inside"]) == ("transfer", "compute", "transfer", True)
    assert one["low"] < 5 < one["high"]
    words = f"Along depth transfer gives way to compute at {one['at']:.3g}, {one['low']:.3g} to {one['high']:.3g}."
    for page in ("summary.md", "report.html"):
        assert words in (folder.path / page).read_text()
    assert "Stages over depth" in (folder.path / "report.html").read_text()
