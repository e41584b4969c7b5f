"""Ceilings of an experiment: measured once, stored in its folder, in every record and on its pages.

python -m pytest tests/lab/experiment/test_ceilings.py
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.lab import Work
from ridgeline.lab.experiment import ProgressHooks, RunOptions, run_points
from ridgeline.lab.experiment.ceilings import DeviceCeilings
from ridgeline.lab.experiment.folder import write_state
from ridgeline.lab.experiment.report import write_report
from ridgeline.lab.study import build_rows
from ridgeline.machine import Ceiling, Ceilings, topology


class FakeMeasurement:
    """Returns ceilings of 1 GFLOP/s and 1 GB/s, and lists the devices of its calls."""

    def __init__(self, error: str | None = None):
        self.devices: list[str] = []
        self._error = error

    def __call__(self, device: str) -> Ceilings:
        self.devices.append(device)
        if self._error:
            raise RidgelineError(self._error)
        measured = (
            Ceiling("matmul", 1.0, 1.0, "GFLOP/s", dtype="float32", how="synthetic"),
            Ceiling("read", 1.0, 1.0, "GB/s", bytes=1 << 28, threads=1),
            Ceiling("h2d", 50.0, 50.0, "GB/s", bytes=1 << 28, how="pinned"),
            Ceiling("d2h", 40.0, 40.0, "GB/s", bytes=1 << 28, how="pinned"),
        )
        return Ceilings(device, "synthetic", measured)


def run(points, folder, measure, report=None):
    hooks = ProgressHooks(on_message=report or (lambda _: None))
    run_points(points, folder, topology(), RunOptions(measure_ceilings=measure), hooks)


def make_point(point, name: str, flops: float, parameters: float):
    """Return a point that computes for 0.9 ms, with this number of FLOPs and of four-byte weights."""
    moved = {"staged": 40, "staged_back": 20, "memory": 60 + 4 * parameters}
    work = Work(10, "images", flops=flops, bytes=moved, mix="read")
    base = point(work=work, facts={"parameters": parameters})
    return replace(base, name=name, params={"model": name, "n": 1})


def test_ceilings_are_measured_once_stored_in_the_folder_and_in_every_record(point, folder):
    measure = FakeMeasurement()
    run([make_point(point, "products", 5e5, 0), make_point(point, "weights", 1e5, 1.5e5)], folder, measure)
    assert measure.devices == ["cpu"]
    (file,) = (folder.path / "ceilings").glob("*-cpu.json")
    assert Ceilings.from_json(json.loads(file.read_text())) == FakeMeasurement()("cpu")
    for one in folder.records():
        assert one.ceilings["compute"]["rate"] == 1e9
        assert one.ceilings["memory"]["rate"] == 1e9
    run([make_point(point, "little", 1e5, 0)], folder, measure)
    assert measure.devices == ["cpu"], "a resumed experiment uses the ceilings of its start"
    assert folder.records()[-1].ceilings["compute"]["rate"] == 1e9


def test_the_study_separates_memory_from_arithmetic_and_draws_a_roofline(point, folder):
    run(
        [
            make_point(point, "products", 5e5, 0),
            make_point(point, "weights", 1e5, 1.5e5),
            make_point(point, "little", 1e3, 0),
        ],
        folder,
        FakeMeasurement(),
    )
    state = {"name": "synthetic", "description": "", "command": "", "started": "", "finished": ""}
    write_state(folder, state)
    write_report(folder, folder.state())
    runs = json.loads((folder.path / "study.json").read_text())["What limits it"]["runs"]
    assert {r["run"].partition("-")[0]: r["bound"] for r in runs} == {
        "products": "compute",
        "weights": "memory",
        "little": "overhead",
    }
    assert runs[0]["share_of_limit"] == pytest.approx(0.5)
    assert "Roofline of cpu" in (folder.path / "report.html").read_text()
    assert "No ceilings are known" not in (folder.path / "summary.md").read_text()


def test_a_point_that_is_faster_than_a_ceiling_raises_it(point, folder):
    run([make_point(point, "products", 4e6, 0)], folder, FakeMeasurement())  # 4 MFLOP in a millisecond
    (one,) = folder.records()
    assert one.ceilings["compute"]["rate"] == pytest.approx(4e9)
    assert "raised" in one.ceilings["compute"]["what"]


def test_an_experiment_continues_without_ceilings_and_reports_the_reason(point, folder):
    messages = []
    run(
        [make_point(point, "products", 1e5, 0)],
        folder,
        FakeMeasurement("the ceilings of cpu could not be measured: no."),
        messages.append,
    )
    assert messages == ["no roofline: the ceilings of cpu could not be measured: no."]
    (row,) = build_rows(folder.records())
    assert row["success"]
    assert folder.records()[0].ceilings == {}
    assert not (folder.path / "ceilings").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', '{"schema": 99, "measured": []}'])
def test_ceilings_of_a_damaged_file_are_measured_again(point, folder, text):
    measure = FakeMeasurement()
    ceilings = DeviceCeilings(folder, topology())
    ceilings.load("cpu", measure, print)
    (file,) = (folder.path / "ceilings").glob("*-cpu.json")
    file.write_text(text)
    ceilings.load("cpu", measure, print)
    assert measure.devices == ["cpu", "cpu"]


def test_a_gpu_has_its_own_ceilings_with_those_of_its_link(point, folder):
    ceilings = DeviceCeilings(folder, topology())
    one = point(gpu=1, work=Work(4, "images", flops=8.0, bytes={"pcie": 1e7, "pcie_back": 1e3, "memory": 2e7}))
    assert ceilings.describe(one, vars(one.work)) == {}, "no ceilings are loaded yet"
    ceilings.load("cuda:1", FakeMeasurement(), print)
    described = ceilings.describe(one, vars(one.work))
    assert {name: ceiling["rate"] for name, ceiling in described.items()} == {
        "compute": 1e9,
        "pcie": 50e9,
        "pcie_back": 40e9,
    }
    assert ceilings.is_missing("cuda:0")
