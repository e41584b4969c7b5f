"""The runner: what crashes, hangs or is wrong is a failed row, the rest goes on, and nothing is measured twice.

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
from ridgeline.lab.experiment import Manner, Results, Watcher, open_folder, run
from ridgeline.lab.experiment import report as pages
from ridgeline.lab.experiment.conducting import Ask, conduct
from ridgeline.lab.experiment.folder import SUMMARY, read_state, write_state
from ridgeline.lab.experiment.rows import rows
from ridgeline.machine import topology

pytestmark = pytest.mark.xdist_group("experiment")
HOSTILE = "<script>alert(1)</script>|x"


def go(points, folder, **manner):
    told = []
    run(points, folder, topology(), Manner(**manner), Watcher(end=lambda point, row: told.append(row)))
    return told


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until(true, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.05)


def test_a_crash_a_hang_and_a_wrong_answer_are_rows_and_the_rest_goes_on(point, folder, tmp_path):
    faults = ("raises", "killed", "leaves", "wrong", "parent_of_a_sleeper", "timeless")
    points = [point(), *map(point, faults), point("hangs", timeout_s=5.0), point(n=2)]
    told = {row["run_id"].partition("-")[0]: row for row in go(points, folder)}
    assert [told[name]["success"] for name in ("good1", "good2")] == [True, True]
    errors = {name: told[f"{name}1"]["error"] for name in (*faults, "hangs")}
    assert errors["raises"] == "raised ValueError: no more"
    assert errors["killed"].startswith("was killed by SIGKILL")
    assert errors["leaves"] == "exited with code 7: last words"
    assert errors["parent_of_a_sleeper"].startswith("exited with code 9")
    assert errors["timeless"] == "gave a time that is none"
    assert errors["hangs"] == "gave no answer within 5 s and was stopped"
    assert "failed its check (error 0.5): far off" in errors["wrong"]
    assert all(row["throughput"] is None for row in told.values() if not row["success"]), "no time for a wrong answer"
    left = (tmp_path / "pids").read_text().split()  # those that had the time to say so
    wait_until(lambda: all(gone(int(pid)) for pid in left))
    log = (folder.path / "experiment.log").read_text()
    assert log.count("FAILED") == 7
    assert "measuring 2" in (folder.runs / f"{points[-1].run_id}.log").read_text()


def test_a_point_stands_where_it_was_told_and_the_row_says_so(point, folder):
    one = point(n=4)
    (row,) = go([one], folder)
    (made,) = folder.records()
    lane, here = made.contenders[0], topology()
    home = sorted(set(here.node(one.node).cpus) & set(here.usable_cpus))
    assert lane.extras["seen"]["cpus"] == home == list(made.placement[0]["cpus"])
    assert lane.extras["seen"]["pid"] != os.getpid()
    if lane.placed["staging"]["memory"] == "bind":
        assert set(lane.extras["pages"]) == {one.node}
    assert (row["numa_node"], row["gpu_id"], row["distance"]) == (one.node, None, 10)
    assert row["throughput"] == pytest.approx(10 / 4e-3)
    assert row["batch_seconds"] == pytest.approx(4e-3)
    assert row["overlap"] == pytest.approx(9e5 / 4e6)
    assert (row["h2d_seconds"], row["h2d_bytes"], row["d2h_bytes"]) == (4e-4, 40, 20)
    assert (row["samples"], row["flops"], row["n"]) == ([4e-3] * 8, 100, 4)
    assert (folder.runs / f"{one.run_id}.trace.json").is_file()


def test_done_points_are_skipped_and_failures_tried_again(point, folder, tmp_path):
    points = [point(), point("second_try")]
    assert [row["success"] for row in go(points, folder)] == [True, False]
    (tmp_path / "mended").touch()
    assert [row["run_id"] for row in go(points, folder)] == [points[1].run_id]
    assert go(points, folder) == []
    assert [row["success"] for row in rows(folder.records())] == [True, True]


def test_what_another_version_of_the_code_measured_is_measured_again(point, folder):
    go([point()], folder)
    file = folder.path / "records.jsonl"
    line = json.loads(file.read_text())
    line["code"]["tree"] = "another"
    file.write_text(json.dumps(line) + "\n")
    assert len(go([point()], folder)) == 1
    assert len(rows(folder.records())) == 1, "the newest of a point counts"


@pytest.mark.parametrize("contention", [False, True])
def test_several_workers_share_no_cpu_unless_contention_is_asked_for(point, folder, contention):
    go([point("slow", n) for n in range(1, 4)], folder, workers=2, contention=contention)
    cpus = [tuple(one.placement[0]["cpus"]) for one in folder.records()]
    whole = sorted(set(topology().node(point().node).cpus) & set(topology().usable_cpus))
    if contention or len(whole) == 1:
        assert set(cpus) == {tuple(whole)}
    else:
        first, second = sorted(set(cpus))
        assert not set(first) & set(second)


SCRIPT = """
import sys
from pathlib import Path
from ridgeline.lab.experiment import Manner, Point, Watcher, open_folder
from ridgeline.lab.experiment.conducting import Ask, conduct
from ridgeline.machine import topology

node = topology().memory_nodes[0]
points = [Point("made", f"slow{n}", "experiment_faults:slow", {"n": n}, node, node) for n in range(1, 5)]
ask = Ask("made", "", "", RESUME, Manner(workers=1, command="made"))
done = conduct(ask, points, Path("outputs"), topology(), Watcher())
print(done.folder.path.name, sum(r["success"] for r in done.rows))
"""


def start(resume: bool | None, **environment) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.replace("RESUME", repr(resume))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def measured(tmp_path) -> list[dict]:
    found = [line for f in tmp_path.glob("outputs/*/records.jsonl") for line in f.read_text().split("\n")]
    return [json.loads(line) for line in found if line.endswith("}")]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_killed_in_the_middle_it_goes_on_without_repeating_and_leaves_no_process(tmp_path, how):
    stopped = start(None, SLOW_S="3600")
    wait_until(lambda: len(measured(tmp_path)) == 1)
    wait_until(lambda: len((tmp_path / "pids").read_text().split()) == 2)
    stopped.send_signal(how)
    stopped.communicate()
    wait_until(lambda: all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split()))
    (folder,) = (tmp_path / "outputs").iterdir()
    assert read_state(folder)["finished"] is None
    again = start(None, SLOW_S="0")
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert out.split() == [folder.name, "4"]
    ids = [line["plan"]["run_id"] for line in measured(tmp_path)]
    assert len(ids) == len(set(ids)) == 4
    assert read_state(folder)["finished"]


def test_ctrl_c_keeps_what_was_measured(tmp_path):
    stopped = start(None, SLOW_S="3600")
    wait_until(lambda: len(measured(tmp_path)) == 1)
    wait_until(lambda: len((tmp_path / "pids").read_text().split()) == 2)
    stopped.send_signal(signal.SIGINT)
    _, err = stopped.communicate(timeout=60)
    assert "KeyboardInterrupt" in err
    (folder,) = (tmp_path / "outputs").iterdir()
    assert len(json.loads((folder / "results.json").read_text())) == 1
    assert read_state(folder)["finished"] is None
    wait_until(lambda: all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split()))


def test_a_folder_is_gone_on_with_only_when_that_is_meant(tmp_path):
    outputs = tmp_path / "outputs"

    def made(finished, failed=0, asked="same"):
        one = open_folder(outputs, "made", False, asked)
        write_state(one, {"name": "made", "finished": finished, "failed": failed, "asked": asked})
        return one.path

    done = made("yes")
    assert open_folder(outputs, "made", True, "same").path == done, "true: the newest, whatever its state"
    assert open_folder(outputs, "made", None, "same").path != done, "a finished one is a closed chapter"
    stopped = made(None)
    assert open_folder(outputs, "made", None, "same").path == stopped
    assert open_folder(outputs, "made", None, "other").path != stopped, "another question is another folder"
    assert open_folder(outputs, "made", False, "same").path != stopped
    failed = made("yes", failed=1)
    assert open_folder(outputs, "made", None, "same").path == failed, "failures are tried again"
    assert open_folder(outputs, done.name, None, "same").path == done, "a whole name means that one"
    assert open_folder(outputs, "mad", None, "same").resumed is False


def test_a_folder_of_another_version_is_refused_by_its_name(tmp_path, point, folder):
    write_state(folder, {"name": "made", "finished": None, "asked": ""})
    state = json.loads((folder.path / SUMMARY).read_text())
    (folder.path / SUMMARY).write_text(json.dumps({**state, "schema": 99}))
    with pytest.raises(InputError, match=f"{folder.path.name}.*another version.*schema 99"):
        open_folder(tmp_path / "outputs", "made", True, "")
    with pytest.raises(InputError, match="another version"):
        load_experiments(tmp_path / "outputs")


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden"])
def test_a_name_that_cannot_be_a_folder_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="cannot name a folder"):
        open_folder(tmp_path, name, None, "")


def test_nothing_is_made_when_a_point_cannot_stand(tmp_path, point):
    absent = dataclasses.replace(point(), node=99)
    with pytest.raises(InputError, match="no NUMA node 99"):
        conduct(Ask("made", "", "", None, Manner()), [absent], tmp_path / "outputs", topology(), Watcher())
    assert not (tmp_path / "outputs").exists()


def test_the_pages_are_whole_and_a_hostile_name_stays_text(tmp_path, point, folder):
    bad = dataclasses.replace(point("raises"), params={"model": HOSTILE, "n": 1}, name=HOSTILE)
    good = dataclasses.replace(point(), params={"model": HOSTILE, "n": 2}, name=HOSTILE)
    go([point(), bad, good], folder)
    results = Results(folder, {"name": "made", "description": HOSTILE, "command": HOSTILE})
    found = results.write(finished=True)
    pages.write(folder, folder.state())
    html = (folder.path / "report.html").read_text()
    assert "<script>alert" not in html
    assert "batch 0 · compute" in html, "the timeline is drawn"
    assert "One node: no remote to measure." in html
    text = (folder.path / "summary.md").read_text()
    own = text.partition("## Recommendation")[0]
    assert own.count("\n| ") == 1 + 2, "a head and two good rows"
    assert "<script>" not in own.replace(f"`{HOSTILE}`", ""), "but for the command, which is code"
    assert "raised ValueError" in text
    assert json.loads((folder.path / "results.json").read_text()) == found
    state = read_state(folder.path)
    assert (state["points"], state["succeeded"], state["failed"]) == (3, 2, 1)


def test_all_experiments_come_as_one_table(tmp_path, point):
    pytest.importorskip("pyarrow")
    for name in ("one", "two"):
        kept = open_folder(tmp_path / "outputs", name, False, "")
        go([point(n=3)] if name == "one" else [point(n=3), point("raises")], kept)
        Results(kept, {"name": name}).write(finished=True)
    table = load_experiments(tmp_path / "outputs")
    assert table.num_rows == 3
    assert sorted({name.partition("-")[0] for name in table["folder"].to_pylist()}) == ["one", "two"]
    assert table["success"].to_pylist() == [True, True, False]
    assert table["throughput"].to_pylist()[2] is None
    with pytest.raises(InputError, match="no experiment in"):
        load_experiments(tmp_path / "nowhere")


def test_a_crossover_is_said_in_the_summary_and_drawn_in_the_page(point, folder):
    points = [
        dataclasses.replace(made, params={**made.params, "model": "layered", "depth": n})
        for n in (0, 1, 2, 3, 4, 6, 8, 12)
        for made in [point("layered", n)]
    ]
    go(points, folder)
    state = {"name": "made", "description": "", "command": "", "started": "", "finished": ""}
    write_state(folder, state)
    pages.write(folder, folder.state())
    (one,) = json.loads((folder.path / "study.json").read_text())["Where compute overtakes transfers"]["crossovers"]
    assert (one["below"], one["above"], one["control"], one["inside"]) == ("transfer", "compute", "transfer", True)
    assert one["low"] < 5 < one["high"]
    words = f"Along depth transfer gives way to compute at {one['at']:.3g}, {one['low']:.3g} to {one['high']:.3g}."
    for page in ("summary.md", "report.html"):
        assert words in (folder.path / page).read_text()
    assert "Stages over depth" in (folder.path / "report.html").read_text()
