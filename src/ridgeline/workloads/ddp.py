"""`ddp`: one step of data-parallel training on CPUs, gradients summed by DDP over this project's engine or gloo.

    ridgeline bench ddp --ranks 2

`alone` trains every rank for itself: what is left of a step without communication, the ceiling. The share of
communication in a contender's step is 1 − alone ÷ its time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from ridgeline.lab import OURS, Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.machine import Placement, topology
from ridgeline.workloads import _ddp_models as models
from ridgeline.workloads._fabric_torch import GLOO, unbound

ALONE = "alone"
TOLERANCE = 1e-5
QUICK, FULL = {"bert": 1}, {"bert": 4, "resnet": 16}  # rows of each rank


class Ddp:
    name = "ddp"
    devices = ("cpu",)
    controls = (ALONE,)
    note = "alone: the ranks train each for itself; communication's share of a step is 1 − alone ÷ its time."

    def cases(self, profile: Profile) -> Iterable[Case]:
        ranks = min(16, max(2, len(topology().usable_cpus)))
        if not installed("torch"):
            return []
        sizes = [*QUICK.items(), *(FULL.items() if profile is Profile.FULL else ())]
        return [Case({"model": model, "rows": rows}, "cpu", ranks) for model, rows in sizes]

    def work(self, case: Case) -> Work:
        """The products, and the weights read and written once by every rank."""
        flops = models.flops(case["model"], case["rows"]) * case.ranks
        moved = {"memory": 2 * 4 * models.parameters(case["model"]) * case.ranks}
        return Work(case["rows"] * case.ranks, "samples", flops=flops, bytes=moved, threads=case.ranks)

    def contenders(self, case: Case) -> Sequence[str]:
        return [OURS, GLOO, ALONE]

    def libraries(self, case: Case, contender: str) -> Sequence[str]:
        return ("torch.distributed", "ridgeline.fabric.torch")

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        import torch
        import torch.distributed as dist

        import ridgeline.fabric.torch  # noqa: F401

        torch.set_num_threads(1)
        rank, name, rows = int(os.environ.get("RANK", "0")), case["model"], case["rows"]
        backend = "ridgeline" if contender == OURS else "gloo"
        if contender == GLOO:
            unbound()
        if not dist.is_initialized():
            dist.init_process_group(backend)
        plain = models.build(name)
        model = plain if contender == ALONE else torch.nn.parallel.DistributedDataParallel(plain)
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9)
        state: dict[str, Any] = {"turn": 0}

        def reset() -> None:
            state["turn"] += 1
            state["data"] = models.batch(name, rows, rank, state["turn"])

        def step() -> None:
            optimizer.zero_grad()
            models.loss_of(model, *state["data"]).backward()
            optimizer.step()

        def result() -> dict[str, Any]:
            """The gradients of one more pass, beside the mean of what each rank's batch gives on its own."""
            optimizer.zero_grad()
            models.loss_of(model, *state["data"]).backward()
            got = [p.grad.clone() for p in plain.parameters()]
            wanted = [torch.zeros_like(g, dtype=torch.float64) for g in got]
            whose = [rank] if contender == ALONE else range(case.ranks)
            for other in whose:
                optimizer.zero_grad()
                models.loss_of(plain, *models.batch(name, rows, other, state["turn"])).backward()
                for total, p in zip(wanted, plain.parameters(), strict=True):
                    total += p.grad.double() / len(whose)
            optimizer.zero_grad()
            scale = max(float(w.abs().max()) for w in wanted)
            error = max(float((g - w).abs().max()) for g, w in zip(got, wanted, strict=True)) / scale
            return {"error": error, "apart": 0.0 if contender == ALONE else _apart(plain)}

        def agree(value: int) -> int:
            told = torch.tensor([value])
            dist.all_reduce(told, dist.ReduceOp.MAX)
            return int(told.item())

        reset()
        settings = {"backend": backend, "bucket MB": 25, "threads": 1, "torch": torch.__version__}
        if contender == ALONE:
            settings |= {"does": "training by itself", "lacks": "the exchange of gradients"}
        return Steps(step, result, reset, dist.barrier, settings, agree=agree)

    def check(self, case: Case, result: dict[str, Any]) -> Check:
        ok = result["error"] <= TOLERANCE and result["apart"] == 0
        return Check(ok, result["error"], {}, "gradients against the mean over ranks; weights equal on all of them")


def _apart(plain: Any) -> float:
    """How far the ranks' weights lie from each other: 0, or they have not trained the same model."""
    import torch
    import torch.distributed as dist

    mine = torch.cat([p.detach().flatten() for p in plain.parameters()])
    least, most = mine.clone(), mine.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float((most - least).abs().max())


workload = Ddp()
