"""What a bench is asked for: the right device for each workload, and which cases are told as the main ones.

python -m pytest tests/lab/test_points.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ridgeline.errors import InputError
from ridgeline.lab.race.baton import Entrant
from ridgeline.lab.race.points import Ask, entrants, plan_points
from ridgeline.lab.workload import Profile

SORT = """
from ridgeline.lab import Case, Profile
class Sort:
    name = "{name}"
    devices = {devices}
    def cases(self, profile):
        sizes = {sizes} if profile is Profile.QUICK else (1, 2, 3)
        return [Case({{"n": n}}) for n in sizes]
    def work(self, case): ...
    def contenders(self, case): return ["ridgeline", "peer"]
    def prepare(self, case, contender, place): ...
    def check(self, case, result): ...
workload = Sort()
"""
PLAIN, WITH_GPU = SimpleNamespace(gpus=()), SimpleNamespace(gpus=("H200",), gpu=lambda index: None)


@pytest.fixture
def ask(tmp_path):
    """Write a workload file for each (name, devices, sizes of the quick profile), and ask for all of them."""

    def make(*told, **more) -> Ask:
        files = []
        for name, devices, sizes in told:
            file = Path(tmp_path / f"{name}.py")
            file.write_text(SORT.format(name=name, devices=devices, sizes=sizes))
            files.append(str(file))
        return Ask(files, tmp_path / "out", **more)

    return make


BOTH, CPU = ("both", ("cpu", "cuda"), (1,)), ("plain", ("cpu",), (1, 2))


def planned(ask, here):
    said: list[str] = []
    return [(p.workload.name, p.case.device, p.case["n"]) for p in plan_points(ask, here, said.append)], said


def test_a_workload_runs_on_the_gpu_if_it_can_and_else_on_the_cpu(ask):
    pytest.importorskip("torch")
    assert planned(ask(BOTH, CPU), WITH_GPU) == ([("both", "cuda", 1), ("plain", "cpu", 1), ("plain", "cpu", 2)], [])
    assert {device for _, device, _ in planned(ask(BOTH, CPU), PLAIN)[0]} == {"cpu"}


def test_a_device_that_was_asked_for_leaves_others_out_and_says_so(ask):
    found, said = planned(ask(BOTH, CPU, device="cuda:0"), WITH_GPU)
    assert found == [("both", "cuda:0", 1)]
    assert said == ["plain does not run on cuda:0; it is left out."]
    with pytest.raises(InputError, match="nothing to measure on cuda"):
        planned(ask(CPU, device="cuda"), WITH_GPU)


def test_a_workload_without_a_case_is_named(ask):
    found, said = planned(ask(("empty", ("cpu",), ()), CPU), PLAIN)
    assert {name for name, *_ in found} == {"plain"}
    assert said == ["empty has no case that can run here on cpu; it is left out."]


def test_cases_of_the_quick_profile_and_those_asked_for_are_the_main_ones(ask):
    full = plan_points(ask(BOTH, profile=Profile.FULL), PLAIN, print)
    assert [(p.case["n"], p.headline) for p in full] == [(1, True), (2, False), (3, False)]
    ranked = plan_points(ask(BOTH, profile=Profile.FULL, ranks=4), PLAIN, print)
    assert [(p.case.ranks, p.headline) for p in ranked] == [(4, True), (4, False), (4, False)]
    own = plan_points(ask(BOTH, profile=Profile.FULL, cases=["n=7"]), PLAIN, print)
    assert [(p.case["n"], p.headline) for p in own] == [(7, True)]


def test_versions_race_without_peers(ask):
    rival = Entrant("ridgeline@1a2b3c4", "ridgeline", tree="elsewhere")
    alone, beside = ask(BOTH), ask(BOTH, rivals=[rival])
    (point,) = plan_points(alone, PLAIN, print)
    assert [e.name for e in entrants(point, alone)] == ["ridgeline", "peer"]
    assert [e.name for e in entrants(point, beside)] == ["ridgeline", "ridgeline@1a2b3c4"]


def test_a_workload_may_stay_on_the_cpu_until_a_gpu_is_asked_for(ask):
    asked = ask(BOTH)
    file = Path(asked.workloads[0])
    file.write_text(file.read_text().replace("    devices", '    default_device = "cpu"\n    devices', 1))
    assert planned(asked, WITH_GPU)[0] == [("both", "cpu", 1)]
    assert planned(replace(asked, device="cuda"), WITH_GPU)[0] == [("both", "cuda", 1)]


def test_a_number_of_ranks_that_makes_no_sense_for_one_workload_is_for_the_others(ask):
    asked = ask(BOTH, CPU, ranks=4)
    file = Path(asked.workloads[0])
    file.write_text(file.read_text().replace("    devices", "    only_ranks = 2\n    devices", 1))
    said: list[str] = []
    points = plan_points(asked, PLAIN, said.append)
    assert [(p.workload.name, p.case.ranks) for p in points] == [("both", 2), ("plain", 4), ("plain", 4)]
    assert said == ["both is between 2 ranks; --ranks 4 is for the others."]
