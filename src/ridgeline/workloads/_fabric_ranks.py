"""What the workloads of fabric share: ranks that the lab started, each contender's calls.

`ridgeline fabric columns` shows their records in nccl-tests' columns.

An all-reduce is in place, so its input is filled again within the timed step, for every contender alike: ratios lie
nearer to 1 than those of the calls alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.lab import OURS, Case, Check, Launcher, Profile, Run, Steps, Work, installed
from ridgeline.machine import Placement, topology
from ridgeline.workloads import _fabric_mpi as mpi
from ridgeline.workloads._fabric_calls import Calls, memcpy, ours
from ridgeline.workloads._fabric_torch import GLOO, NCCL, gloo, nccl

REGISTERED, MEMCPY = "ridgeline registered", "memcpy"
SIZES = {Profile.QUICK: (1 << 10, 1 << 20), Profile.FULL: tuple(1 << k for k in (3, 6, 10, 12, 15, 18, 20, 24, 27, 30))}
SHARE = 16  # of memory: what all ranks' buffers together may take
CHECKED = 97  # elements that are looked at


@dataclass
class Bench:
    """One collective as a workload; `op` is its name in nccl-tests' sense."""

    name: str
    op: str
    devices: tuple[str, ...] = ("cpu", "cuda")
    default_device: str = "cpu"  # one GPU has nobody to talk to
    controls: tuple[str, ...] = (MEMCPY,)
    note: str = "memcpy moves the same bytes within one rank: a ceiling, not a peer."
    only_ranks: int | None = None

    def cases(self, profile: Profile) -> Iterable[Case]:
        here = topology()
        gpus = self.only_ranks or len(here.gpus)
        if 0 < gpus <= len(here.gpus) and installed("torch"):
            yield from (self._case(n, "cuda", gpus) for n in SIZES[profile])
        ranks = self.only_ranks or max(2, len(here.usable_cpus))
        most = here.usable_memory_bytes // SHARE // ranks
        yield from (self._case(n, "cpu", ranks) for n in SIZES[profile] if n <= most)

    def _case(self, nbytes: int, device: str, ranks: int) -> Case:
        return Case({"bytes": nbytes, "dtype": "float32"}, device, ranks)

    def work(self, case: Case) -> Work:
        """nccl-tests' bus bytes: what must cross between ranks, whoever does it."""
        from ridgeline.fabric import bus_factor

        moved = 2 * case["bytes"] * max(bus_factor(self.op, case.ranks), 1 / case.ranks)
        return Work(case["bytes"], "bytes", bytes={"memory": moved * case.ranks}, mix="copy", threads=case.ranks)

    def contenders(self, case: Case) -> Sequence[str]:
        if case.device == "cpu":
            return [OURS, REGISTERED, *([GLOO] if installed("torch") else []), *mpi.here(), MEMCPY]
        if case.ranks > (gpus := len(topology().gpus)):
            raise InputError(f"{case.ranks} ranks need a GPU each, there are {gpus}; ask for --ranks {gpus} or fewer.")
        return [OURS, NCCL, MEMCPY]

    def missing(self, case: Case) -> dict[str, str]:
        if case.device != "cpu":
            return {}
        return {**({} if installed("torch") else {GLOO: "torch"}), **mpi.missing()}

    def libraries(self, case: Case, contender: str) -> Sequence[str]:
        if contender in mpi.SAYS:
            return ("mpi4py.MPI",)
        return ("torch.distributed",) if contender in (GLOO, NCCL) or case.device != "cpu" else ()

    def launcher(self, case: Case, contender: str, interpreter: str) -> Launcher | None:
        return mpi.launcher(contender, case.ranks, interpreter) if contender in mpi.SAYS else None

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        ranks, count = case.ranks, max(1, case["bytes"] // 4)
        if self.op == "all_gather":
            count = max(1, count // ranks)
        calls = _ENGINES[contender](self.op, ranks, count, case.device)
        state: dict[str, Any] = {"turn": 0}

        def reset() -> None:
            state["turn"] += 1
            state["value"] = _value(calls.rank, state["turn"])
            calls.fill(state["value"])

        def step() -> None:
            if self.op == "all_reduce":
                calls.fill(state["value"])  # in place: a second call would sum sums
            calls.run()

        def result() -> dict[str, Any]:
            seen = calls.seen()
            values = [float(v) for v in seen[:: max(1, seen.size // CHECKED)]]
            return {
                "values": values,
                "turn": state["turn"],
                "rank": calls.rank,
                "size": int(seen.size),
                "alone": contender == MEMCPY,
            }

        return Steps(step, result, reset, calls.close, calls.settings, agree=calls.agree)

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


_ENGINES: dict[str, Callable[[str, int, int, str], Calls]] = {
    OURS: ours,
    REGISTERED: partial(ours, registered=True),
    GLOO: gloo,
    NCCL: nccl,
    mpi.OPENMPI: partial(mpi.calls, mpi.OPENMPI),
    mpi.MPICH: partial(mpi.calls, mpi.MPICH),
    MEMCPY: memcpy,
}
