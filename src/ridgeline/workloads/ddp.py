"""`ddp`: one step of data-parallel training on CPUs; DDP sums gradients with our engine or gloo.

    ridgeline bench ddp --ranks 2

`alone` trains each rank without communication: the limit. The share of communication in the step of a contender is
1 − alone ÷ its time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from ridgeline.lab import OURS, Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.machine import Placement, topology
from ridgeline.workloads import _ddp_models as models
from ridgeline.workloads._fabric_torch import GLOO, unbind_cpus

ALONE = "alone"
TOLERANCE = 1e-5
QUICK, FULL = {"bert": 1}, {"bert": 4, "resnet": 16}  # rows of each rank


class Ddp:
    name = "ddp"
    devices = ("cpu",)
    controls = (ALONE,)
    note = "alone: the ranks train without communication; its share of a step is 1 − alone ÷ the time of the step."

    def cases(self, profile: Profile) -> Iterable[Case]:
        ranks = min(16, max(2, len(topology().usable_cpus)))
        if not installed("torch"):
            return []
        sizes = [*QUICK.items(), *(FULL.items() if profile is Profile.FULL else ())]
        return [Case({"model": model, "rows": rows}, "cpu", ranks) for model, rows in sizes]

    def work(self, case: Case) -> Work:
        """The products, and the weights read and written once by every rank."""
        flops = models.count_flops(case["model"], case["rows"]) * case.ranks
        moved = {"memory": 2 * 4 * models.count_parameters(case["model"]) * case.ranks}
        return Work(case["rows"] * case.ranks, "samples", flops=flops, bytes=moved, threads=case.ranks)

    def contenders(self, case: Case) -> Sequence[str]:
        return [OURS, GLOO, ALONE]

    def libraries(self, case: Case, contender: str) -> Sequence[str]:
        return ("torch.distributed", "ridgeline.fabric.torch")

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        import torch
        import torch.distributed as dist

        from ridgeline.fabric import register_torch_backend

        register_torch_backend()
        torch.set_num_threads(1)
        rank, name, rows = int(os.environ.get("RANK", "0")), case["model"], case["rows"]
        backend = "ridgeline" if contender == OURS else "gloo"
        if contender == GLOO:
            unbind_cpus()
        if not dist.is_initialized():
            dist.init_process_group(backend)
        plain = models.build_model(name)
        model = plain if contender == ALONE else torch.nn.parallel.DistributedDataParallel(plain)
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9)
        state: dict[str, Any] = {"turn": 0}

        def reset() -> None:
            state["turn"] += 1
            state["data"] = models.make_batch(name, rows, rank, state["turn"])

        def step() -> None:
            optimizer.zero_grad()
            models.compute_loss(model, *state["data"]).backward()
            optimizer.step()

        def result() -> dict[str, Any]:
            """The gradients of one more pass, compared with the mean of the gradients of all batches."""
            optimizer.zero_grad()
            models.compute_loss(model, *state["data"]).backward()
            gradients = [p.grad.clone() for p in plain.parameters()]
            expected = [torch.zeros_like(g, dtype=torch.float64) for g in gradients]
            batch_ranks = [rank] if contender == ALONE else range(case.ranks)
            for other in batch_ranks:
                optimizer.zero_grad()
                models.compute_loss(plain, *models.make_batch(name, rows, other, state["turn"])).backward()
                for total, p in zip(expected, plain.parameters(), strict=True):
                    total += p.grad.double() / len(batch_ranks)
            optimizer.zero_grad()
            scale = max(float(w.abs().max()) for w in expected)
            error = max(float((g - w).abs().max()) for g, w in zip(gradients, expected, strict=True)) / scale
            return {"error": error, "spread": 0.0 if contender == ALONE else _measure_spread(plain)}

        def agree(value: int) -> int:
            maximum = torch.tensor([value])
            dist.all_reduce(maximum, dist.ReduceOp.MAX)
            return int(maximum.item())

        reset()
        settings = {"backend": backend, "bucket MB": 25, "threads": 1, "torch": torch.__version__}
        if contender == ALONE:
            settings |= {"does": "training by itself", "lacks": "the exchange of gradients"}
        return Steps(step, result, reset, dist.barrier, settings, agree=agree)

    def check(self, case: Case, result: dict[str, Any]) -> Check:
        ok = result["error"] <= TOLERANCE and result["spread"] == 0
        return Check(ok, result["error"], {}, "gradients against the mean over ranks; weights equal on all of them")


def _measure_spread(plain: Any) -> float:
    """The largest difference between the weights of the ranks: 0, or they have not trained the same model."""
    import torch
    import torch.distributed as dist

    weights = torch.cat([p.detach().flatten() for p in plain.parameters()])
    least, most = weights.clone(), weights.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float((most - least).abs().max())


workload = Ddp()
