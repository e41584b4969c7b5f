"""The base of the fabric workloads: ranks that the lab starts, and the calls of each contender.

`ridgeline fabric columns` prints their records in the columns of nccl-tests.

An all-reduce is in place, so its input is filled again within the timed step, for every contender: ratios are nearer to
1 than those of the calls alone.
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
from ridgeline.workloads._fabric_calls import Calls, make_memcpy, make_ours
from ridgeline.workloads._fabric_torch import GLOO, NCCL, make_gloo, make_nccl

REGISTERED, MEMCPY = "ridgeline registered", "memcpy"
SIZES = {Profile.QUICK: (1 << 10, 1 << 20), Profile.FULL: tuple(1 << k for k in (3, 6, 10, 12, 15, 18, 20, 24, 27, 30))}
MEMORY_SHARE = 16  # the buffers of all ranks use at most 1/16 of memory
CHECKED = 97  # elements that are compared


@dataclass
class CollectiveWorkload:
    """One collective as a workload; `op` is its operation."""

    name: str
    op: str
    devices: tuple[str, ...] = ("cpu", "cuda")
    default_device: str = "cpu"  # one GPU has no peer
    controls: tuple[str, ...] = (MEMCPY,)
    note: str = "memcpy moves the same bytes within one rank: a ceiling, not a peer."
    only_ranks: int | None = None

    def cases(self, profile: Profile) -> Iterable[Case]:
        machine = topology()
        gpus = self.only_ranks or len(machine.gpus)
        if 0 < gpus <= len(machine.gpus) and installed("torch"):
            yield from (self._make_case(n, "cuda", gpus) for n in SIZES[profile])
        ranks = self.only_ranks or max(2, len(machine.usable_cpus))
        most = machine.usable_memory_bytes // MEMORY_SHARE // ranks
        yield from (self._make_case(n, "cpu", ranks) for n in SIZES[profile] if n <= most)

    def _make_case(self, nbytes: int, device: str, ranks: int) -> Case:
        return Case({"bytes": nbytes, "dtype": "float32"}, device, ranks)

    def work(self, case: Case) -> Work:
        """The bus bytes of nccl-tests: what every contender must move between ranks."""
        from ridgeline.fabric import bus_factor

        moved = 2 * case["bytes"] * max(bus_factor(self.op, case.ranks), 1 / case.ranks)
        return Work(case["bytes"], "bytes", bytes={"memory": moved * case.ranks}, mix="copy", threads=case.ranks)

    def contenders(self, case: Case) -> Sequence[str]:
        if case.device == "cpu":
            return [OURS, REGISTERED, *([GLOO] if installed("torch") else []), *mpi.list_installed(), MEMCPY]
        if case.ranks > (gpus := len(topology().gpus)):
            raise InputError(f"{case.ranks} ranks need a GPU each, there are {gpus}; ask for --ranks {gpus} or fewer.")
        return [OURS, NCCL, MEMCPY]

    def missing(self, case: Case) -> dict[str, str]:
        if case.device != "cpu":
            return {}
        return {**({} if installed("torch") else {GLOO: "torch"}), **mpi.list_missing()}

    def libraries(self, case: Case, contender: str) -> Sequence[str]:
        if contender in mpi.LAUNCHER_NAMES:
            return ("mpi4py.MPI",)
        return ("torch.distributed",) if contender in (GLOO, NCCL) or case.device != "cpu" else ()

    def launcher(self, case: Case, contender: str, interpreter: str) -> Launcher | None:
        return mpi.make_launcher(contender, case.ranks, interpreter) if contender in mpi.LAUNCHER_NAMES else None

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        ranks, count = case.ranks, max(1, case["bytes"] // 4)
        if self.op == "all_gather":
            count = max(1, count // ranks)
        calls = _ENGINES[contender](self.op, ranks, count, case.device)
        state: dict[str, Any] = {"turn": 0}

        def reset() -> None:
            state["turn"] += 1
            state["value"] = _choose_value(calls.rank, state["turn"])
            calls.fill(state["value"])

        def step() -> None:
            if self.op == "all_reduce":
                calls.fill(state["value"])  # in place: a second call would add sums
            calls.run()

        def result() -> dict[str, Any]:
            output = calls.read()
            values = [float(v) for v in output[:: max(1, output.size // CHECKED)]]
            return {
                "values": values,
                "turn": state["turn"],
                "rank": calls.rank,
                "size": int(output.size),
                "alone": contender == MEMCPY,
            }

        return Steps(step, result, reset, calls.close, calls.settings, agree=calls.agree)

    def check(self, case: Case, result: dict[str, Any]) -> Check:
        turn, ranks, values = result["turn"], case.ranks, np.array(result["values"])
        inputs = [_choose_value(r, turn) for r in range(ranks)]
        if result["alone"]:
            expected = np.full(len(values), inputs[result["rank"]])
        elif self.op == "all_reduce":
            expected = np.full(len(values), sum(inputs))
        elif self.op == "all_gather":
            position = np.arange(0, result["size"], max(1, result["size"] // CHECKED))
            expected = np.array(inputs)[position * ranks // result["size"]]
        else:
            expected = np.full(len(values), inputs[0])
        wrong = int((values != expected).sum())
        return Check(wrong == 0, float(wrong), {}, f"#wrong of {len(values)} elements checked")


def _choose_value(rank: int, turn: int) -> float:
    return float(rank + turn % 1000)


_ENGINES: dict[str, Callable[[str, int, int, str], Calls]] = {
    OURS: make_ours,
    REGISTERED: partial(make_ours, registered=True),
    GLOO: make_gloo,
    NCCL: make_nccl,
    mpi.OPENMPI: partial(mpi.make_calls, mpi.OPENMPI),
    mpi.MPICH: partial(mpi.make_calls, mpi.MPICH),
    MEMCPY: make_memcpy,
}
