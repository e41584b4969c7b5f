"""The workload `pipeline`: every way through gives the right answers, and a wrong one is seen.

python -m pytest tests/workloads/test_pipeline.py
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from ridgeline.lab import Case, Profile  # noqa: E402
from ridgeline.machine import Placement, topology
from ridgeline.workloads.pipeline import BASE, SMALL, vit_of, workload  # noqa: E402

CUDA = torch.cuda.is_available()
PLACE = Placement(None, tuple(topology().usable_cpus), "local", 0 if CUDA else None)


def case(device: str = "cpu", **changes) -> Case:
    return Case({**BASE, **SMALL, "dtype": "float32" if device == "cpu" else "float16", **changes}, device)


DEVICES = ["cpu", *(["cuda"] if CUDA else [])]
WAYS = [(device, name) for device in DEVICES for name in workload.contenders(case(device))]


@pytest.mark.parametrize("changes", [{}, {"depth": 0, "output": "tokens"}, {"output": "pooled", "batches": 1}])
@pytest.mark.parametrize(("device", "contender"), WAYS)
def test_every_way_gives_right_answers_for_every_step(device, contender, changes):
    one = case(device, **changes)
    run = workload.prepare(one, contender, PLACE)
    for _ in range(2):
        run.reset()
        run.step()
        check = workload.check(one, run.result())
        assert check.ok, check
    run.reset()
    assert not workload.check(one, run.result()).ok, "what was not computed is not right"
    run.close()


def test_work_is_counted_as_the_model_counts_itself():
    one = case("cuda", batch=3, batches=5)
    work, vit = workload.work(one), vit_of(one)
    assert work.items == 15
    assert work.flops == vit.flops(15)
    up, down = vit.up_bytes(15, 2), vit.down_bytes(15, 2)
    assert work.bytes == {"memory": up + down, "pcie": up, "pcie_back": down}
    assert workload.work(case("cuda", depth=0)).flops == 0


def test_the_cases_can_all_be():
    for profile in Profile:
        for one in workload.cases(profile):
            vit_of(one)
