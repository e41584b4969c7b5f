"""`copy`: move bytes from one buffer to another, on the CPU by the native loop, on a GPU by a graph.

    ridgeline bench copy --case bytes=67108864

One thread each on the CPU. Our contender is the ceiling's own loop: its share of the ceiling shows how steady the
machine is, not how clever the loop is. What counts here are the ratios to the peers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ridgeline.lab import Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.machine import Placement

STREAMING_FROM = 32 << 20  # working sets beyond the caches gain from stores that go around them


class Copy:
    name = "copy"
    devices = ("cpu", "cuda")
    note = (
        "Ours is the ceiling's own loop: its share shows how steady the machine is; the peers' ratios are the result."
    )

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

    def libraries(self, case: Case, contender: str) -> Sequence[str]:
        return ("torch",) if contender == "torch" or case.device != "cpu" else ()

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        return _on_gpu(case, contender) if case.device != "cpu" else _on_cpu(case, contender)

    def check(self, case: Case, result: tuple[Any, Any]) -> Check:
        source, target = result
        wrong = int((source != target).sum())
        return Check(ok=wrong == 0, error=float(wrong), note="bytes that differ")


class _Buffers:
    """Source and target, taken anew before every turn.

    Which physical pages a process happens to hold can decide how they collide in its caches. Fresh pages each turn
    make that noise between turns instead of a bias for the whole race.
    """

    def __init__(self, size: int) -> None:
        self._size, self._turn = size, 0
        self.source = self.target = _aligned(0)
        self.renew()

    def renew(self) -> None:
        import numpy as np

        self._turn += 1
        source, target = _aligned(self._size), _aligned(self._size)  # before the old ones are let go
        words = np.arange(self._size // 8, dtype=np.uint64)
        source[: words.nbytes] = (words * 0x9E3779B97F4A7C15 + self._turn).view(np.uint8)
        target[:] = 0
        self.source, self.target = source, target

    def both(self) -> tuple[Any, Any]:
        return self.source, self.target


def _on_cpu(case: Case, contender: str) -> Run:
    held = _Buffers(case["bytes"])
    if contender == "ridgeline":
        from ridgeline import native

        streaming = 2 * case["bytes"] >= STREAMING_FROM
        settings = {"streaming": streaming, "isa": native.chosen_instruction_set()}
        return Steps(lambda: native.copy(held.target, held.source, streaming), held.both, held.renew, settings=settings)
    if contender == "numpy":
        import numpy as np

        return Steps(lambda: np.copyto(held.target, held.source), held.both, held.renew)
    import torch

    torch.set_num_threads(1)
    tensors = {}

    def renew() -> None:
        held.renew()
        tensors["to"], tensors["of"] = torch.from_numpy(held.target), torch.from_numpy(held.source)

    renew()
    return Steps(lambda: tensors["to"].copy_(tensors["of"]), held.both, renew, settings={"threads": 1})


def _aligned(size: int) -> Any:
    """Streaming stores want 64-byte alignment, which numpy does not promise."""
    import numpy as np

    room = np.empty(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size]


def _on_gpu(case: Case, contender: str) -> Run:
    """Ours is the library's copy inside a CUDA graph: the same bytes, a shorter way to the device."""
    import torch

    source, target = (torch.empty(case["bytes"], dtype=torch.uint8, device=case.device) for _ in range(2))

    def reset() -> None:
        source.random_()
        target.zero_()

    def eager() -> None:
        target.copy_(source)

    if contender != "ridgeline":
        return Steps(eager, lambda: (source, target), reset)
    eager()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        eager()
    return Steps(graph.replay, lambda: (source, target), reset, settings={"launch": "graph"})


workload = Copy()
