"""torch.distributed as contenders: gloo on CPUs, NCCL on GPUs.

    ridgeline bench allreduce --device cuda [--ranks GPUS]

On GPUs each rank has one of its own, and ours hands tensors to NCCL too: the race shows what our calls cost beside
torch's. Not measured on hardware with more than one GPU; with one there is nobody to talk to: the bare call is timed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ridgeline.workloads._fabric_calls import Calls

GLOO, NCCL = "torch gloo", "torch NCCL"


def unbound() -> None:
    """Let this rank onto all CPUs of its parent, as torchrun would: gloo's own threads need a core beside the rank's.
    Bound to one, every message waits for the scheduler's tick, some milliseconds."""
    with suppress(OSError):
        os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))


def gloo(op: str, ranks: int, count: int, device: str) -> Calls:
    import torch

    if not torch.distributed.is_initialized():
        unbound()
    calls = _calls("gloo", op, ranks, count, torch.device("cpu"))
    calls.settings |= {"threads": torch.get_num_threads(), "cpus": len(os.sched_getaffinity(0))}
    return calls


def nccl(op: str, ranks: int, count: int, device: str) -> Calls:
    import torch

    calls = _calls("nccl", op, ranks, count, gpu(device, ranks))
    calls.settings["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return calls


def gpu(device: str, ranks: int) -> Any:
    """The GPU of this rank, made the current one."""
    import torch

    asked = int(device.partition(":")[2] or 0)
    mine = torch.device("cuda", int(os.environ["LOCAL_RANK"]) if ranks > 1 else asked)
    torch.cuda.set_device(mine)
    return mine


def buffers(op: str, ranks: int, count: int, device: Any) -> tuple[Any, Any]:
    """Input and output: one and the same, but for an all-gather."""
    import torch

    given = torch.empty(count, device=device)
    return given, torch.empty(count * ranks, device=device) if op == "all_gather" else given


def _calls(backend: str, op: str, ranks: int, count: int, device: Any) -> Calls:
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():  # it stays from one case to the next
        alone: dict[str, Any] = {"store": dist.HashStore(), "rank": 0, "world_size": 1} if ranks == 1 else {}
        dist.init_process_group(backend, **alone)
    (given, out), rank = buffers(op, ranks, count, device), dist.get_rank()

    def there_and_back() -> None:
        first, second = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)
        first(given, 1 - rank)
        second(given, 1 - rank)

    run: Callable[[], Any] = {
        "all_reduce": lambda: dist.all_reduce(given),
        "all_gather": lambda: dist.all_gather_into_tensor(out, given),
        "broadcast": lambda: dist.broadcast(given, 0),
        "p2p": there_and_back,
    }[op]

    def agree(value: int) -> int:
        told = torch.tensor([value], device=device)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return int(told.item())

    return Calls(given.fill_, run, lambda: out.cpu().numpy(), rank, agree, {"torch": torch.__version__})
