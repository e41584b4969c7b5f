"""`copy`: move bytes from one buffer to another, on the CPU by the native loop, on a GPU by a Triton kernel.

    ridgeline bench copy --case bytes=67108864

One thread each on the CPU. Our contender is the ceiling's own loop: its share of the ceiling shows how steady the
machine is, not how clever the loop is. What counts here are the ratios to the peers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ridgeline.lab import Case, Check, Profile, Run, Steps, Work
from ridgeline.lab.workload import installed
from ridgeline.machine import Placement

STREAMING_FROM = 32 << 20  # working sets beyond the caches gain from stores that go around them


class Copy:
    name = "copy"
    devices = ("cpu", "cuda")

    def cases(self, profile: Profile) -> Iterable[Case]:
        sizes = (1 << 20, 64 << 20) if profile is Profile.QUICK else tuple(1 << k for k in range(12, 30, 2))
        return [Case({"bytes": size}) for size in sizes]

    def work(self, case: Case) -> Work:
        """Each byte is read once and written once."""
        moved = 2 * case["bytes"] * case.ranks
        return Work(moved, "bytes", bytes={"memory": moved}, mix="copy", working_set=moved, threads=case.ranks)

    def contenders(self, case: Case) -> Sequence[str]:
        if case.device != "cpu":
            return ["ridgeline", "torch"]
        return ["ridgeline", "numpy", *(["torch"] if installed("torch") else [])]

    def missing(self, case: Case) -> dict[str, str]:
        return {} if installed("torch") else {"torch": "torch"}

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        return _on_gpu(case, contender) if case.device != "cpu" else _on_cpu(case, contender)

    def check(self, case: Case, result: tuple[Any, Any]) -> Check:
        source, target = result
        wrong = int((source != target).sum())
        return Check(ok=wrong == 0, error=float(wrong), note="bytes that differ")


def _on_cpu(case: Case, contender: str) -> Run:
    import numpy as np

    # Streaming stores want 64-byte alignment, which numpy does not promise.
    source, target = (_aligned(case["bytes"]) for _ in range(2))
    state = {"turn": 0}

    def reset() -> None:
        state["turn"] += 1
        source.view(np.uint64)[:] = np.arange(len(source) // 8, dtype=np.uint64) * 0x9E3779B97F4A7C15 + state["turn"]

    def result() -> tuple[Any, Any]:
        return source, target

    streaming = 2 * case["bytes"] >= STREAMING_FROM
    if contender == "ridgeline":
        from ridgeline import native

        settings = {"streaming": streaming, "isa": native.chosen_instruction_set()}
        return Steps(lambda: native.copy(target, source, streaming), result, reset, settings=settings)
    if contender == "numpy":
        return Steps(lambda: np.copyto(target, source), result, reset)
    import torch

    torch.set_num_threads(1)
    to, of = torch.from_numpy(target), torch.from_numpy(source)
    return Steps(lambda: to.copy_(of), result, reset, settings={"threads": 1})


def _aligned(size: int) -> Any:
    import numpy as np

    room = np.empty(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size]


def _on_gpu(case: Case, contender: str) -> Run:
    import torch

    from ridgeline.kernels import bandwidth

    source, target = (torch.empty(case["bytes"] // 4, dtype=torch.int32, device=case.device) for _ in range(2))
    step = bandwidth.copier(target, source) if contender == "ridgeline" else lambda: target.copy_(source)

    def reset() -> None:
        source.random_()

    return Steps(step, lambda: (source, target), reset)


workload = Copy()
