"""The workload `pipeline`: every contender computes right results, and a wrong result is detected.

python -m pytest tests/workloads/test_pipeline.py
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from ridgeline.lab import Case, Profile  # noqa: E402
from ridgeline.machine import Placement, topology  # noqa: E402
from ridgeline.workloads.pipeline import BASE, SMALL, make_vit, workload  # noqa: E402

CUDA = torch.cuda.is_available()
PLACE = Placement(None, tuple(topology().usable_cpus), "local", 0 if CUDA else None)


def make_case(device: str = "cpu", **changes) -> Case:
    return Case({**BASE, **SMALL, "dtype": "float32" if device == "cpu" else "float16", **changes}, device)


DEVICES = ["cpu", *(["cuda"] if CUDA else [])]
RUNS = [(device, name) for device in DEVICES for name in workload.contenders(make_case(device))]


@pytest.mark.parametrize("changes", [{}, {"depth": 0, "output": "tokens"}, {"output": "pooled", "batches": 1}])
@pytest.mark.parametrize(("device", "contender"), RUNS)
def test_every_contender_computes_right_results_in_every_step(device, contender, changes):
    case = make_case(device, **changes)
    run = workload.prepare(case, contender, PLACE)
    for _ in range(2):
        run.reset()
        run.step()
        check = workload.check(case, run.result())
        assert check.ok, check
    run.reset()
    assert not workload.check(case, run.result()).ok, "results that were not computed are wrong"
    run.close()


def test_the_work_equals_that_of_the_model():
    case = make_case("cuda", batch=3, batches=5)
    work, vit = workload.work(case), make_vit(case)
    assert work.items == 15
    assert work.flops == vit.flops(15)
    up, down = vit.up_bytes(15, 2), vit.down_bytes(15, 2)
    assert work.bytes == {"memory": up + down, "pcie": up, "pcie_back": down}
    assert workload.work(make_case("cuda", depth=0)).flops == 0


def test_every_case_has_a_valid_model():
    for profile in Profile:
        for case in workload.cases(profile):
            make_vit(case)
