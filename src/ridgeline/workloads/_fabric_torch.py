"""torch.distributed as contenders: gloo on CPUs, NCCL on GPUs.

    ridgeline bench allreduce --device cuda [--ranks GPUS]

On GPUs each rank has a separate GPU, and ours uses NCCL too: the race compares the cost of our calls with that of
torch. Not measured on hardware with more than one GPU; with one GPU there is no peer, and the bare call is timed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ridgeline.workloads._fabric_calls import Calls, make_buffers, select_gpu

GLOO, NCCL = "torch gloo", "torch NCCL"


def unbind_cpus() -> None:
    """Let this rank use all CPUs of its parent, as torchrun does: the threads of gloo need another core than the rank.
    On one core every message waits for a tick of the scheduler, some milliseconds."""
    with suppress(OSError):
        os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))


def make_gloo(op: str, ranks: int, count: int, device: str) -> Calls:
    import torch

    if not torch.distributed.is_initialized():
        unbind_cpus()
    calls = _make_calls("gloo", op, ranks, count, torch.device("cpu"))
    calls.settings |= {"threads": torch.get_num_threads(), "cpus": len(os.sched_getaffinity(0))}
    return calls


def make_nccl(op: str, ranks: int, count: int, device: str) -> Calls:
    import torch

    calls = _make_calls("nccl", op, ranks, count, select_gpu(device, ranks))
    calls.settings["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return calls


def _make_calls(backend: str, op: str, ranks: int, count: int, device: Any) -> Calls:
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():  # the group is used for all cases
        alone: dict[str, Any] = {"store": dist.HashStore(), "rank": 0, "world_size": 1} if ranks == 1 else {}
        dist.init_process_group(backend, **alone)
    (tensor, out), rank = make_buffers(op, ranks, count, device), dist.get_rank()

    def exchange() -> None:
        first, second = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)
        first(tensor, 1 - rank)
        second(tensor, 1 - rank)

    run: Callable[[], Any] = {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "all_gather": lambda: dist.all_gather_into_tensor(out, tensor),
        "broadcast": lambda: dist.broadcast(tensor, 0),
        "p2p": exchange,
    }[op]

    def agree(value: int) -> int:
        maximum = torch.tensor([value], device=device)
        dist.all_reduce(maximum, dist.ReduceOp.MAX)
        return int(maximum.item())

    return Calls(tensor.fill_, run, lambda: out.cpu().numpy(), rank, agree, {"torch": torch.__version__})
