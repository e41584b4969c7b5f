"""What the workloads of fabric share: ranks that the lab started, each contender's calls.

`ridgeline fabric columns` shows their records in nccl-tests' columns.

An all-reduce is in place, so its input is filled again within the timed step, for every contender alike: ratios lie
nearer to 1 than those of the calls alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.fabric.prediction import bus_factor
from ridgeline.lab import Case, Check, Profile, Run, Steps, Work
from ridgeline.lab.workload import OURS, installed
from ridgeline.machine import Placement, topology

REGISTERED, GLOO, MEMCPY = "ridgeline registered", "torch gloo", "memcpy"
SIZES = {Profile.QUICK: (1 << 10, 1 << 20), Profile.FULL: tuple(1 << k for k in (3, 6, 10, 12, 15, 18, 20, 24, 27, 30))}
SHARE = 16  # of memory: what all ranks' buffers together may take
CHECKED = 97  # elements that are looked at


@dataclass
class Bench:
    """One collective as a workload; `op` is its name in nccl-tests' sense."""

    name: str
    op: str
    devices: tuple[str, ...] = ("cpu",)
    controls: tuple[str, ...] = (MEMCPY,)
    note: str = "memcpy moves the same bytes within one rank: a ceiling, not a peer. MPI: benchmarks/fabric_mpi.py."

    def cases(self, profile: Profile) -> Iterable[Case]:
        here = topology()
        ranks = max(2, len(here.usable_cpus)) if self.op != "p2p" else 2
        most = here.usable_memory_bytes // SHARE // ranks
        return [Case({"bytes": n, "dtype": "float32"}, "cpu", ranks) for n in SIZES[profile] if n <= most]

    def work(self, case: Case) -> Work:
        """nccl-tests' bus bytes: what must cross between ranks, whoever does it."""
        moved = 2 * case["bytes"] * max(bus_factor(self.op, case.ranks), 1 / case.ranks)
        return Work(case["bytes"], "bytes", bytes={"memory": moved * case.ranks}, mix="copy", threads=case.ranks)

    def contenders(self, case: Case) -> Sequence[str]:
        return [OURS, REGISTERED, *([GLOO] if installed("torch") else []), MEMCPY]

    def missing(self, case: Case) -> dict[str, str]:
        return {} if installed("torch") else {GLOO: "torch"}

    def libraries(self, case: Case, contender: str) -> Sequence[str]:
        return ("torch.distributed",) if contender == GLOO else ()

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        ranks, count = case.ranks, max(1, case["bytes"] // 4)
        if self.op == "all_gather":
            count = max(1, count // ranks)
        calls, settings, close = _ENGINES[contender](self.op, ranks, count)
        rank = int(os.environ.get("RANK", "0"))
        state = {"turn": 0}

        def reset() -> None:
            state["turn"] += 1
            calls.given[:] = _value(rank, state["turn"])
            calls.again = _value(rank, state["turn"])

        def step() -> None:
            if self.op == "all_reduce":
                calls.given.fill(calls.again)  # in place: a second call would sum sums
            calls.run()

        def result() -> dict[str, Any]:
            seen = calls.seen()
            values = [float(v) for v in seen[:: max(1, seen.size // CHECKED)]]
            return {
                "values": values,
                "turn": state["turn"],
                "rank": rank,
                "size": int(seen.size),
                "alone": contender == MEMCPY,
            }

        return Steps(step, result, reset, close, settings, agree=calls.agree)

    def check(self, case: Case, result: dict[str, Any]) -> Check:
        turn, ranks, values = result["turn"], case.ranks, np.array(result["values"])
        own = [_value(r, turn) for r in range(ranks)]
        if result["alone"]:
            wanted = np.full(len(values), own[result["rank"]])
        elif self.op == "all_reduce":
            wanted = np.full(len(values), sum(own))
        elif self.op == "all_gather":
            at = np.arange(0, result["size"], max(1, result["size"] // CHECKED))
            wanted = np.array(own)[at * ranks // result["size"]]
        else:
            wanted = np.full(len(values), own[0])
        wrong = int((values != wanted).sum())
        return Check(wrong == 0, float(wrong), {}, f"#wrong of {len(values)} elements looked at")


def _value(rank: int, turn: int) -> float:
    return float(rank + turn % 1000)


@dataclass
class Calls:
    given: Any
    run: Callable[[], Any]
    seen: Callable[[], Any]
    agree: Callable[[int], int] | None = None
    again: float = 0.0


Made = tuple[Calls, dict[str, Any], Callable[[], None]]


def _ours(op: str, ranks: int, count: int, registered: bool = False) -> Made:
    from ridgeline import fabric

    comm = fabric.init()
    new = fabric.empty if registered else np.empty
    given: Any = new(count, np.float32)
    out: Any = new(count * ranks, np.float32) if op == "all_gather" else given
    run: Callable[[], Any] = {
        "all_reduce": lambda: comm.all_reduce(given),
        "all_gather": lambda: comm.all_gather(given, out=out),
        "broadcast": lambda: comm.broadcast(given),
        "p2p": lambda: _there_and_back(comm, given),
    }[op]

    def agree(value: int) -> int:
        return int(comm.all_reduce(np.array([value], np.int64), "max")[0])

    settings = {"algorithm": comm.config.collective_algorithm}
    if op != "p2p":
        settings["schedule"] = comm.algorithm(op, given.nbytes)
    return Calls(given, run, lambda: out, agree), settings, comm.close


def _there_and_back(comm: Any, given: Any) -> None:
    first, second = (comm.send, comm.recv) if comm.rank == 0 else (comm.recv, comm.send)
    first(given, 1 - comm.rank)
    second(given, 1 - comm.rank)


def unbound() -> None:
    """Let this rank onto all CPUs of its parent, as torchrun would: gloo's own threads need a core beside the rank's.
    Bound to one, every message waits for the scheduler's tick, some milliseconds."""
    with suppress(OSError):
        os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))


def _gloo(op: str, ranks: int, count: int) -> Made:
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        unbound()
        dist.init_process_group("gloo")
    given, out = torch.empty(count), torch.empty(count * ranks if op == "all_gather" else 0)

    def there_and_back() -> None:
        first, second = (dist.send, dist.recv) if dist.get_rank() == 0 else (dist.recv, dist.send)
        first(given, 1 - dist.get_rank())
        second(given, 1 - dist.get_rank())

    run: Callable[[], Any] = {
        "all_reduce": lambda: dist.all_reduce(given),
        "all_gather": lambda: dist.all_gather_into_tensor(out, given),
        "broadcast": lambda: dist.broadcast(given, 0),
        "p2p": there_and_back,
    }[op]
    kept = out if op == "all_gather" else given
    settings = {"torch": torch.__version__, "threads": torch.get_num_threads(), "cpus": len(os.sched_getaffinity(0))}

    def agree(value: int) -> int:
        told = torch.tensor([value])
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return int(told.item())

    return Calls(given.numpy(), run, kept.numpy, agree), settings, lambda: None


def _memcpy(op: str, ranks: int, count: int) -> Made:
    given, out = np.empty(count, np.float32), np.empty(count, np.float32)
    settings = {"numpy": np.__version__, "does": "copying the bytes", "lacks": "the exchange between ranks"}
    return Calls(given, lambda: np.copyto(out, given), lambda: out), settings, lambda: None


_ENGINES: dict[str, Callable[[str, int, int], Made]] = {
    OURS: _ours,
    REGISTERED: lambda op, ranks, count: _ours(op, ranks, count, registered=True),
    GLOO: _gloo,
    MEMCPY: _memcpy,
}
