"""What points are held against: found once for a study, kept with it, carried by every record, told in its pages.

python -m pytest tests/lab/experiment/test_limits.py
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.lab import Work
from ridgeline.lab.experiment import Manner, Watcher, run
from ridgeline.lab.experiment import report as pages
from ridgeline.lab.experiment.folder import write_state
from ridgeline.lab.experiment.limits import Limits
from ridgeline.lab.experiment.rows import rows
from ridgeline.machine import topology
from ridgeline.machine.ceiling import Ceiling, Ceilings

pytestmark = pytest.mark.xdist_group("experiment")


class StandIn:
    """Ceilings nobody measured: a GFLOP/s, a GB/s; counts how often it is asked."""

    def __init__(self, why: str | None = None):
        self.asked: list[str] = []
        self._why = why

    def __call__(self, device: str) -> Ceilings:
        self.asked.append(device)
        if self._why:
            raise RidgelineError(self._why)
        found = (
            Ceiling("matmul", 1.0, 1.0, "GFLOP/s", dtype="float32", how="made"),
            Ceiling("read", 1.0, 1.0, "GB/s", bytes=1 << 28, threads=1),
            Ceiling("h2d", 50.0, 50.0, "GB/s", bytes=1 << 28, how="pinned"),
            Ceiling("d2h", 40.0, 40.0, "GB/s", bytes=1 << 28, how="pinned"),
        )
        return Ceilings(device, "made", found)


def go(points, folder, measure, say=None):
    run(points, folder, topology(), Manner(measure=measure), Watcher(say=say or (lambda _: None)))


def heavy(point, name: str, flops: float, parameters: float):
    """A subject that computes for 0.9 of a millisecond; so many FLOPs, so many weights of four bytes."""
    moved = {"staged": 40, "staged_back": 20, "memory": 60 + 4 * parameters}
    work = Work(10, "images", flops=flops, bytes=moved, mix="read")
    made = point(work=work, facts={"parameters": parameters})
    return replace(made, name=name, params={"model": name, "n": 1})


def test_they_are_found_once_kept_with_the_study_and_in_every_record(point, folder):
    measure = StandIn()
    go([heavy(point, "products", 5e5, 0), heavy(point, "weights", 1e5, 1.5e5)], folder, measure)
    assert measure.asked == ["cpu"]
    (kept,) = (folder.path / "ceilings").glob("*-cpu.json")
    assert Ceilings.from_json(json.loads(kept.read_text())) == StandIn()("cpu")
    for one in folder.records():
        assert one.ceilings["compute"]["rate"] == 1e9
        assert one.ceilings["memory"]["rate"] == 1e9
    go([heavy(point, "little", 1e5, 0)], folder, measure)
    assert measure.asked == ["cpu"], "a study that goes on is held against what it began with"
    assert folder.records()[-1].ceilings["compute"]["rate"] == 1e9


def test_the_study_tells_memory_from_arithmetic_by_them_and_draws_a_roofline(point, folder):
    go(
        [heavy(point, "products", 5e5, 0), heavy(point, "weights", 1e5, 1.5e5), heavy(point, "little", 1e3, 0)],
        folder,
        StandIn(),
    )
    state = {"name": "made", "description": "", "command": "", "started": "", "finished": ""}
    write_state(folder, state)
    pages.write(folder, folder.state())
    found = json.loads((folder.path / "study.json").read_text())["What limits it"]["runs"]
    assert {r["run"].partition("-")[0]: r["bound"] for r in found} == {
        "products": "compute",
        "weights": "memory",
        "little": "overhead",
    }
    assert found[0]["share_of_limit"] == pytest.approx(0.5)
    assert "Roofline of cpu" in (folder.path / "report.html").read_text()
    assert "No ceilings are known" not in (folder.path / "summary.md").read_text()


def test_whoever_is_faster_than_a_ceiling_has_shown_that_it_lies_higher(point, folder):
    go([heavy(point, "products", 4e6, 0)], folder, StandIn())  # 4 MFLOP in a millisecond
    (one,) = folder.records()
    assert one.ceilings["compute"]["rate"] == pytest.approx(4e9)
    assert "raised" in one.ceilings["compute"]["what"]


def test_what_cannot_be_measured_is_said_and_the_study_goes_on(point, folder):
    said = []
    go(
        [heavy(point, "products", 1e5, 0)],
        folder,
        StandIn("the ceilings of cpu could not be measured: no."),
        said.append,
    )
    assert said == ["no roofline: the ceilings of cpu could not be measured: no."]
    (row,) = rows(folder.records())
    assert row["success"]
    assert folder.records()[0].ceilings == {}
    assert not (folder.path / "ceilings").exists()


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"schema": 1}', '{"schema": 99, "measured": []}'])
def test_torn_ones_are_measured_again(point, folder, torn):
    measure = StandIn()
    limits = Limits(folder, topology())
    limits.find("cpu", measure, print)
    (kept,) = (folder.path / "ceilings").glob("*-cpu.json")
    kept.write_text(torn)
    limits.find("cpu", measure, print)
    assert measure.asked == ["cpu", "cpu"]


def test_a_gpu_has_its_own_and_its_link_counts(point, folder):
    limits = Limits(folder, topology())
    one = point(gpu=1, work=Work(4, "images", flops=8.0, bytes={"pcie": 1e7, "pcie_back": 1e3, "memory": 2e7}))
    assert limits.of(one, vars(one.work)) == {}, "none are known yet"
    limits.find("cuda:1", StandIn(), print)
    found = limits.of(one, vars(one.work))
    assert {name: told["rate"] for name, told in found.items()} == {"compute": 1e9, "pcie": 50e9, "pcie_back": 40e9}
    assert limits.missing("cuda:0")
