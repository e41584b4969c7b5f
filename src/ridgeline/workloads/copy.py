"""`copy`: move bytes from one buffer to another, on the CPU by the native loop, on a GPU by a graph.

    ridgeline bench copy --case bytes=67108864

One thread each on the CPU. Our contender is the loop that measures the ceiling: its share of the ceiling shows how
stable the machine is. The result of this workload is the ratio to the peers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ridgeline.lab import Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.machine import Placement

STREAMING_FROM = 32 << 20  # working sets larger than the caches gain from stores that bypass them


class Copy:
    name = "copy"
    devices = ("cpu", "cuda")
    note = "Ours is the loop of the ceiling: its share shows how stable the machine is; the ratios are the result."

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
        return _prepare_gpu(case, contender) if case.device != "cpu" else _prepare_cpu(case, contender)

    def check(self, case: Case, result: tuple[Any, Any]) -> Check:
        source, target = result
        wrong = int((source != target).sum())
        return Check(ok=wrong == 0, error=float(wrong), note="bytes that differ")


class _Buffers:
    """Source and target, allocated again before every turn.

    The physical pages of a process decide how they collide in its caches. Fresh pages in each turn make that noise
    between turns instead of a bias for the complete race.
    """

    def __init__(self, size: int) -> None:
        self._size, self._turn = size, 0
        self.source = self.target = _allocate_aligned(0)
        self.renew()

    def renew(self) -> None:
        import numpy as np

        self._turn += 1
        source, target = _allocate_aligned(self._size), _allocate_aligned(self._size)  # before the old ones are freed
        words = np.arange(self._size // 8, dtype=np.uint64)
        source[: words.nbytes] = (words * 0x9E3779B97F4A7C15 + self._turn).view(np.uint8)
        target[:] = 0
        self.source, self.target = source, target

    def both(self) -> tuple[Any, Any]:
        return self.source, self.target


def _prepare_cpu(case: Case, contender: str) -> Run:
    buffers = _Buffers(case["bytes"])
    if contender == "ridgeline":
        from ridgeline import native

        streaming = 2 * case["bytes"] >= STREAMING_FROM
        settings = {"streaming": streaming, "isa": native.chosen_instruction_set()}
        return Steps(
            lambda: native.copy(buffers.target, buffers.source, streaming),
            buffers.both,
            buffers.renew,
            settings=settings,
        )
    if contender == "numpy":
        import numpy as np

        return Steps(lambda: np.copyto(buffers.target, buffers.source), buffers.both, buffers.renew)
    import torch

    torch.set_num_threads(1)
    tensors = {}

    def renew() -> None:
        buffers.renew()
        tensors["target"], tensors["source"] = torch.from_numpy(buffers.target), torch.from_numpy(buffers.source)

    renew()
    return Steps(lambda: tensors["target"].copy_(tensors["source"]), buffers.both, renew, settings={"threads": 1})


def _allocate_aligned(size: int) -> Any:
    """Streaming stores need 64-byte alignment, which numpy does not guarantee."""
    import numpy as np

    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size]


def _prepare_gpu(case: Case, contender: str) -> Run:
    """Ours is the copy of the library inside a CUDA graph: the same bytes with less work of the host."""
    import torch

    source, target = (torch.empty(case["bytes"], dtype=torch.uint8, device=case.device) for _ in range(2))

    def reset() -> None:
        source.random_()
        target.zero_()

    def copy_eagerly() -> None:
        target.copy_(source)

    if contender != "ridgeline":
        return Steps(copy_eagerly, lambda: (source, target), reset)
    copy_eagerly()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        copy_eagerly()
    return Steps(graph.replay, lambda: (source, target), reset, settings={"launch": "graph"})


workload = Copy()
