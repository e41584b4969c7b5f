"""A GPU's ceilings: its memory, its matrix units, the way to and from the host, and the cost of a launch."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ridgeline.errors import MissingExtra
from ridgeline.machine import numa
from ridgeline.machine.ceiling import Ceiling, Progress
from ridgeline.machine.clock import CudaTimer
from ridgeline.machine.hardware import Topology
from ridgeline.machine.placement import Placement, placed

LADDER = tuple(1 << k for k in (20, 22, 24, 26, 28, 30, 32))  # 1 MiB … 4 GiB working set
GLANCED = tuple(1 << k for k in (24, 28, 31))  # 16 MiB … 2 GiB: what a model's weights and batches take
TRANSFERS = tuple(n << 20 for n in (1, 16, 256))
MATMUL_SIZE = 8192
ROUNDS = 20
LAUNCHES = 200


def measure_gpu(here: Topology, index: int, say: Progress) -> list[Ceiling]:
    """Everything `ridgeline machine --ceilings` shows of a GPU; under a minute."""
    try:
        import torch
    except ImportError:
        raise MissingExtra("measuring a GPU", "torch") from None
    device = torch.device("cuda", index)
    timer = CudaTimer(f"cuda:{index}")
    found: list[Ceiling] = []
    with torch.cuda.device(device):
        for mix in ("read", "write", "copy"):
            say(f"GPU {index} memory: {mix}")
            found += [_memory(torch, timer, mix, size, device) for size in LADDER]
        for dtype in ("bfloat16", "float16", "float8_e4m3fn", "int8", "tf32", "float32", "float64"):
            say(f"GPU {index} matmul: {dtype}")
            found += _matmul(torch, timer, dtype, device)
        for node in _host_nodes(here):
            say(f"GPU {index} to and from the host, node {node}")
            memory = "bind" if len(here.nodes) > 1 and numa.supported() else "local"
            with placed(Placement(node=node, memory=memory), on=here):
                found += _transfers(torch, timer, device, node)
        say(f"GPU {index} launches")
        found += _launches(torch, timer, device)
    return found


def glance_gpu(here: Topology, index: int, say: Progress) -> list[Ceiling]:
    """What a study of a model is held against, in seconds: large reads and copies, three types, the pinned way."""
    import torch

    device, timer = torch.device("cuda", index), CudaTimer(f"cuda:{index}")
    found: list[Ceiling] = []
    say(f"GPU {index}: memory, matmul, the way to the host")
    with torch.cuda.device(device):
        for mix in ("read", "copy"):
            found += [_memory(torch, timer, mix, size, device) for size in GLANCED]
        for dtype in ("float16", "bfloat16", "float32"):
            found += _matmul(torch, timer, dtype, device)
        for node in _host_nodes(here):
            memory = "bind" if len(here.nodes) > 1 and numa.supported() else "local"
            with placed(Placement(node=node, memory=memory), on=here):
                found += _transfers(torch, timer, device, node, ways=("pinned",))
        found += _launches(torch, timer, device)
    return found


def again(ceiling: Ceiling, index: int) -> Ceiling | None:
    """Measure one of them once more (memory and matrix products)."""
    import torch

    device, timer = torch.device("cuda", index), CudaTimer(f"cuda:{index}")
    with torch.cuda.device(device):
        if ceiling.kind in ("read", "write", "copy") and ceiling.bytes:
            return _memory(torch, timer, ceiling.kind, ceiling.bytes, device)
        if ceiling.kind == "matmul" and ceiling.dtype:
            return next(_matmul(torch, timer, ceiling.dtype, device), None)
    return None


def _host_nodes(here: Topology) -> list[int]:
    usable = set(here.usable_cpus)
    return [n for n in here.memory_nodes if usable.intersection(here.node(n).cpus)]


def _rounds(timer: CudaTimer, step: Callable[[], Any], calls: int = 1) -> list[float]:
    """Nanoseconds per call of each round, rising, after a warm-up."""
    timer.time(step, 3 * calls)
    return sorted(timer.time(step, calls) / calls for _ in range(ROUNDS))


def _rate(kind: str, amount: float, rounds: list[float], unit: str, **where: Any) -> Ceiling:
    return Ceiling(kind, amount / rounds[0], amount / statistics.median(rounds), unit, **where)


def _memory(torch: Any, timer: CudaTimer, mix: str, size: int, device: Any) -> Ceiling:
    """`size` is the whole working set; a copy's halves are read and written.

    Sets are walked many times, also inside one CUDA graph: the ceiling is the memory's, not the launch's.
    """
    passes = max(1, min(64, (1 << 31) // size))
    buffer = torch.randint(0, 1 << 30, (size // 4,), dtype=torch.int32, device=device)
    step: Callable[[], Any]
    if mix == "read":
        from ridgeline.kernels import bandwidth

        step = bandwidth.reader(buffer)
    elif mix == "write":
        step = partial(buffer.fill_, 7)
    else:
        half = size // 8
        step = partial(buffer[:half].copy_, buffer[half:])
    rounds = _rounds(timer, step, passes)
    if passes > 1:
        # Not always the better way: a graph hands large copies to the copy engine, which is slower than the SMs.
        by_graph = [ns / passes for ns in _rounds(timer, _graph(torch, step, passes))]
        rounds = min(rounds, by_graph)
    return _rate(mix, size, rounds, "GB/s", bytes=size, threads=1)


def _graph(torch: Any, step: Callable[[], Any], times: int) -> Callable[[], Any]:
    """`times` steps as one graph; its replay."""
    step()  # compiled and loaded before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            step()
    replay: Callable[[], Any] = graph.replay
    return replay


def _matmul(torch: Any, timer: CudaTimer, dtype: str, device: Any) -> Iterator[Ceiling]:
    n = MATMUL_SIZE if dtype != "float64" else MATMUL_SIZE // 2
    step = _product(torch, dtype, n, device)
    if step is not None:
        yield _rate("matmul", 2 * n**3, _rounds(timer, step), "GFLOP/s", dtype=dtype, how="torch")


def _product(torch: Any, dtype: str, n: int, device: Any) -> Callable[[], Any] | None:
    """One n×n product in a data type, on random numbers: zeros run faster and prove nothing."""
    a, b = (torch.randn(n, n, device=device) for _ in range(2))
    if dtype in ("float32", "tf32"):
        fast = dtype == "tf32"

        def float32() -> None:
            torch.backends.cuda.matmul.allow_tf32 = fast
            torch.mm(a, b)

        return float32
    step: Callable[[], Any]
    try:
        if dtype == "float8_e4m3fn":
            x, y = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
            one = torch.ones((), device=device)
            step = lambda: torch._scaled_mm(x, y, one, one, out_dtype=torch.bfloat16)  # noqa: E731
        elif dtype == "int8":
            x, y = ((m * 30).to(torch.int8) for m in (a, b))
            y = y.t()
            step = lambda: torch._int_mm(x, y)  # noqa: E731
        else:
            x, y = (m.to(getattr(torch, dtype)) for m in (a, b))
            step = lambda: torch.mm(x, y)  # noqa: E731
        step()
    except RuntimeError:
        return None  # this GPU has no such matrix unit
    return step


def _transfers(
    torch: Any, timer: CudaTimer, device: Any, node: int, ways: Sequence[str] = ("pinned", "pageable")
) -> Iterator[Ceiling]:
    for how in ways:
        for size in TRANSFERS:
            # Fresh memory each time: the pinned allocator hands out blocks of another node otherwise.
            host = torch.empty(size, dtype=torch.uint8).fill_(1)
            host = host.pin_memory() if how == "pinned" else host
            there = torch.empty(size, dtype=torch.uint8, device=device)
            steps: dict[str, Callable[[], Any]] = {
                "h2d": lambda there=there, host=host: there.copy_(host, non_blocking=True),  # type: ignore[misc]
                "d2h": lambda there=there, host=host: host.copy_(there, non_blocking=True),  # type: ignore[misc]
            }
            for kind, step in steps.items():
                rounds = _rounds(timer, step, max(1, (64 << 20) // size))
                yield _rate(kind, size, rounds, "GB/s", bytes=size, node=node, how=how)


def _launches(torch: Any, timer: CudaTimer, device: Any) -> Iterator[Ceiling]:
    """The smallest kernel there is, one after the other, by Python and by one graph."""
    tiny = torch.zeros(1, device=device)
    direct = _rounds(timer, lambda: tiny.add_(1), LAUNCHES)
    yield Ceiling("launch", direct[0] / 1e3, statistics.median(direct) / 1e3, "µs", how="direct")
    replay = [ns / LAUNCHES for ns in _rounds(timer, _graph(torch, lambda: tiny.add_(1), LAUNCHES))]
    yield Ceiling("launch", replay[0] / 1e3, statistics.median(replay) / 1e3, "µs", how="graph")
