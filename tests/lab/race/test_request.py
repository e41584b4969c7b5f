"""What a benchmark is asked for: the device of each workload, and the headline cases.

python -m pytest tests/lab/race/test_request.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ridgeline.errors import InputError
from ridgeline.lab.race import BenchRequest, ContenderSpec, list_contenders
from ridgeline.lab.race.request import plan_points
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
CPU_ONLY, WITH_GPU = SimpleNamespace(gpus=()), SimpleNamespace(gpus=("H200",), gpu=lambda index: None)


@pytest.fixture
def make_request(tmp_path):
    """Write a workload file for each (name, devices, sizes of the quick profile), and request all of them."""

    def make(*workloads, **options) -> BenchRequest:
        files = []
        for name, devices, sizes in workloads:
            file = Path(tmp_path / f"{name}.py")
            file.write_text(SORT.format(name=name, devices=devices, sizes=sizes))
            files.append(str(file))
        return BenchRequest(files, tmp_path / "out", **options)

    return make


BOTH, CPU = ("both", ("cpu", "cuda"), (1,)), ("plain", ("cpu",), (1, 2))


def list_points(request, machine):
    messages: list[str] = []
    points = plan_points(request, machine, messages.append)
    return [(p.workload.name, p.case.device, p.case["n"]) for p in points], messages


def test_a_workload_runs_on_the_gpu_if_it_can_and_else_on_the_cpu(make_request):
    pytest.importorskip("torch")
    assert list_points(make_request(BOTH, CPU), WITH_GPU) == (
        [("both", "cuda", 1), ("plain", "cpu", 1), ("plain", "cpu", 2)],
        [],
    )
    assert {device for _, device, _ in list_points(make_request(BOTH, CPU), CPU_ONLY)[0]} == {"cpu"}


def test_a_requested_device_leaves_other_workloads_out_and_names_them(make_request):
    points, messages = list_points(make_request(BOTH, CPU, device="cuda:0"), WITH_GPU)
    assert points == [("both", "cuda:0", 1)]
    assert messages == ["plain does not run on cuda:0; it is left out."]
    with pytest.raises(InputError, match="nothing to measure on cuda"):
        list_points(make_request(CPU, device="cuda"), WITH_GPU)


def test_a_workload_without_a_case_is_named(make_request):
    points, messages = list_points(make_request(("empty", ("cpu",), ()), CPU), CPU_ONLY)
    assert {name for name, *_ in points} == {"plain"}
    assert messages == ["empty has no case that can run here on cpu; it is left out."]


def test_cases_of_the_quick_profile_and_requested_cases_are_headline_cases(make_request):
    full = plan_points(make_request(BOTH, profile=Profile.FULL), CPU_ONLY, print)
    assert [(p.case["n"], p.headline) for p in full] == [(1, True), (2, False), (3, False)]
    ranked = plan_points(make_request(BOTH, profile=Profile.FULL, ranks=4), CPU_ONLY, print)
    assert [(p.case.ranks, p.headline) for p in ranked] == [(4, True), (4, False), (4, False)]
    requested = plan_points(make_request(BOTH, profile=Profile.FULL, cases=["n=7"]), CPU_ONLY, print)
    assert [(p.case["n"], p.headline) for p in requested] == [(7, True)]


def test_versions_race_without_peers(make_request):
    version = ContenderSpec("ridgeline@1a2b3c4", "ridgeline", tree="elsewhere")
    alone, versions = make_request(BOTH), make_request(BOTH, versions=[version])
    (point,) = plan_points(alone, CPU_ONLY, print)
    assert [e.name for e in list_contenders(point, alone)] == ["ridgeline", "peer"]
    assert [e.name for e in list_contenders(point, versions)] == ["ridgeline", "ridgeline@1a2b3c4"]


def test_a_workload_can_prefer_the_cpu_until_the_user_requests_a_gpu(make_request):
    request = make_request(BOTH)
    file = Path(request.workloads[0])
    file.write_text(file.read_text().replace("    devices", '    default_device = "cpu"\n    devices', 1))
    assert list_points(request, WITH_GPU)[0] == [("both", "cpu", 1)]
    assert list_points(replace(request, device="cuda"), WITH_GPU)[0] == [("both", "cuda", 1)]


def test_a_workload_with_a_required_number_of_ranks_ignores_another_number(make_request):
    request = make_request(BOTH, CPU, ranks=4)
    file = Path(request.workloads[0])
    file.write_text(file.read_text().replace("    devices", "    only_ranks = 2\n    devices", 1))
    messages: list[str] = []
    points = plan_points(request, CPU_ONLY, messages.append)
    assert [(p.workload.name, p.case.ranks) for p in points] == [("both", 2), ("plain", 4), ("plain", 4)]
    assert messages == ["both is between 2 ranks; --ranks 4 is for the others."]
