"""The calls of one rank in the fabric workloads, and the contenders without a peer: ours, and a plain copy."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Calls:
    """One rank's part of a collective, ready to run."""

    fill: Callable[[float], Any]  # write the input
    run: Callable[[], Any]
    read: Callable[[], Any]  # the output, as a NumPy array
    rank: int = 0
    agree: Callable[[int], int] | None = None  # the maximum over the ranks
    settings: dict[str, Any] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None


def make_ours(op: str, ranks: int, count: int, device: str, *, registered: bool = False) -> Calls:
    from ridgeline import fabric

    comm = fabric.init()
    settings: dict[str, Any] = {}
    array: Any
    out: Any
    if device == "cpu":
        allocate = fabric.empty if registered else np.empty
        array = allocate(count, np.float32)
        out = allocate(count * ranks, np.float32) if op == "all_gather" else array
        fill, read = array.fill, lambda: out
        settings["algorithm"] = comm.config.collective_algorithm
        if op != "p2p":
            settings["schedule"] = comm.algorithm(op, array.nbytes)
    else:
        array, out = make_buffers(op, ranks, count, select_gpu(device, ranks))
        fill, read = array.fill_, lambda: out.cpu().numpy()
    run: Callable[[], Any] = {
        "all_reduce": lambda: comm.all_reduce(array),
        "all_gather": lambda: comm.all_gather(array, out=out),
        "broadcast": lambda: comm.broadcast(array),
        "p2p": lambda: _exchange(comm, array),
    }[op]

    def agree(value: int) -> int:
        return int(comm.all_reduce(np.array([value], np.int64), "max")[0])

    return Calls(fill, run, read, comm.rank, agree, settings, comm.close)


def _exchange(comm: Any, array: Any) -> None:
    first, second = (comm.send, comm.recv) if comm.rank == 0 else (comm.recv, comm.send)
    first(array, 1 - comm.rank)
    second(array, 1 - comm.rank)


def make_memcpy(op: str, ranks: int, count: int, device: str) -> Calls:
    rank = int(os.environ.get("RANK", "0"))
    settings = {"numpy": np.__version__, "does": "copying the bytes", "lacks": "the exchange between ranks"}
    if device == "cpu":
        array, out = np.empty(count, np.float32), np.empty(count, np.float32)
        return Calls(array.fill, lambda: np.copyto(out, array), lambda: out, rank, settings=settings)
    source, target = (make_buffers("", 1, count, select_gpu(device, ranks))[0] for _ in range(2))
    return Calls(source.fill_, lambda: target.copy_(source), lambda: target.cpu().numpy(), rank, settings=settings)


def select_gpu(device: str, ranks: int) -> Any:
    """Make the GPU of this rank the current one; return it."""
    import torch

    requested = int(device.partition(":")[2] or 0)
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]) if ranks > 1 else requested)
    torch.cuda.set_device(gpu)
    return gpu


def make_buffers(op: str, ranks: int, count: int, device: Any) -> tuple[Any, Any]:
    """Input and output: the same tensor, except for an all-gather."""
    import torch

    tensor = torch.empty(count, device=device)
    return tensor, torch.empty(count * ranks, device=device) if op == "all_gather" else tensor
