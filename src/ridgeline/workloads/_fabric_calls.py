"""What a contender of fabric's workloads hands over, and the ones that need no peer: ours, and a plain copy."""

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
    seen: Callable[[], Any]  # the output, as a NumPy array
    rank: int = 0
    agree: Callable[[int], int] | None = None  # the largest of what the ranks say
    settings: dict[str, Any] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None


def ours(op: str, ranks: int, count: int, device: str, *, registered: bool = False) -> Calls:
    from ridgeline import fabric

    comm = fabric.init()
    settings: dict[str, Any] = {}
    given: Any
    out: Any
    if device == "cpu":
        new = fabric.empty if registered else np.empty
        given = new(count, np.float32)
        out = new(count * ranks, np.float32) if op == "all_gather" else given
        fill, seen = given.fill, lambda: out
        settings["algorithm"] = comm.config.collective_algorithm
        if op != "p2p":
            settings["schedule"] = comm.algorithm(op, given.nbytes)
    else:
        from ridgeline.workloads._fabric_torch import buffers, gpu

        given, out = buffers(op, ranks, count, gpu(device, ranks))
        fill, seen = given.fill_, lambda: out.cpu().numpy()
    run: Callable[[], Any] = {
        "all_reduce": lambda: comm.all_reduce(given),
        "all_gather": lambda: comm.all_gather(given, out=out),
        "broadcast": lambda: comm.broadcast(given),
        "p2p": lambda: _there_and_back(comm, given),
    }[op]

    def agree(value: int) -> int:
        return int(comm.all_reduce(np.array([value], np.int64), "max")[0])

    return Calls(fill, run, seen, comm.rank, agree, settings, comm.close)


def _there_and_back(comm: Any, given: Any) -> None:
    first, second = (comm.send, comm.recv) if comm.rank == 0 else (comm.recv, comm.send)
    first(given, 1 - comm.rank)
    second(given, 1 - comm.rank)


def memcpy(op: str, ranks: int, count: int, device: str) -> Calls:
    rank = int(os.environ.get("RANK", "0"))
    told = {"numpy": np.__version__, "does": "copying the bytes", "lacks": "the exchange between ranks"}
    if device == "cpu":
        given, out = np.empty(count, np.float32), np.empty(count, np.float32)
        return Calls(given.fill, lambda: np.copyto(out, given), lambda: out, rank, settings=told)
    from ridgeline.workloads._fabric_torch import buffers, gpu

    there, back = (buffers("", 1, count, gpu(device, ranks))[0] for _ in range(2))
    return Calls(there.fill_, lambda: back.copy_(there), lambda: back.cpu().numpy(), rank, settings=told)
