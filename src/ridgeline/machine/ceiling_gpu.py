"""The ceilings of a GPU: memory, matrix units, copies to and from the host, and the cost of a launch."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ridgeline.errors import MissingExtra
from ridgeline.machine import numa
from ridgeline.machine.ceiling_types import Ceiling, Progress
from ridgeline.machine.clock import CudaTimer
from ridgeline.machine.hardware import Topology
from ridgeline.machine.placement import Placement, placed

SIZES = tuple(1 << k for k in (20, 22, 24, 26, 28, 30, 32))  # 1 MiB … 4 GiB working set
QUICK_SIZES = tuple(1 << k for k in (24, 28, 31))  # 16 MiB … 2 GiB: the size of a model's weights and batches
TRANSFERS = tuple(n << 20 for n in (1, 16, 256))
MATMUL_SIZE = 8192
ROUNDS = 20
LAUNCHES = 200


def measure_gpu(machine: Topology, index: int, report: Progress) -> list[Ceiling]:
    """Measure all that `ridgeline machine --ceilings` prints for a GPU; takes less than a minute."""
    try:
        import torch
    except ImportError:
        raise MissingExtra("measuring a GPU", "torch") from None
    device = torch.device("cuda", index)
    timer = CudaTimer(f"cuda:{index}")
    rows: list[Ceiling] = []
    with torch.cuda.device(device):
        for mix in ("read", "write", "copy"):
            report(f"GPU {index} memory: {mix}")
            rows += [_measure_memory(torch, timer, mix, size, device) for size in SIZES]
        for dtype in ("bfloat16", "float16", "float8_e4m3fn", "int8", "tf32", "float32", "float64"):
            report(f"GPU {index} matmul: {dtype}")
            rows += _measure_matmul(torch, timer, dtype, device)
        for node in _list_host_nodes(machine):
            report(f"GPU {index} to and from the host, node {node}")
            memory = "bind" if len(machine.nodes) > 1 and numa.memory_policy_supported() else "local"
            with placed(Placement(node=node, memory=memory), on=machine):
                rows += _measure_transfers(torch, timer, device, node)
        report(f"GPU {index} launches")
        rows += _measure_launches(torch, timer, device)
    return rows


def measure_gpu_quickly(machine: Topology, index: int, report: Progress) -> list[Ceiling]:
    """Measure what a study of a model is compared with, in seconds.

    Large reads and copies, three data types, transfers from pinned memory.
    """
    import torch

    device, timer = torch.device("cuda", index), CudaTimer(f"cuda:{index}")
    rows: list[Ceiling] = []
    report(f"GPU {index}: memory, matmul, transfers")
    with torch.cuda.device(device):
        for mix in ("read", "copy"):
            rows += [_measure_memory(torch, timer, mix, size, device) for size in QUICK_SIZES]
        for dtype in ("float16", "bfloat16", "float32"):
            rows += _measure_matmul(torch, timer, dtype, device)
        for node in _list_host_nodes(machine):
            memory = "bind" if len(machine.nodes) > 1 and numa.memory_policy_supported() else "local"
            with placed(Placement(node=node, memory=memory), on=machine):
                rows += _measure_transfers(torch, timer, device, node, kinds=("pinned",))
        rows += _measure_launches(torch, timer, device)
    return rows


def remeasure_gpu(ceiling: Ceiling, index: int) -> Ceiling | None:
    """Measure one ceiling again (memory and matrix products); None for other kinds."""
    import torch

    device, timer = torch.device("cuda", index), CudaTimer(f"cuda:{index}")
    with torch.cuda.device(device):
        if ceiling.kind in ("read", "write", "copy") and ceiling.bytes:
            return _measure_memory(torch, timer, ceiling.kind, ceiling.bytes, device)
        if ceiling.kind == "matmul" and ceiling.dtype:
            return next(_measure_matmul(torch, timer, ceiling.dtype, device), None)
    return None


def _list_host_nodes(machine: Topology) -> list[int]:
    usable = set(machine.usable_cpus)
    return [n for n in machine.memory_nodes if usable.intersection(machine.node(n).cpus)]


def _time_rounds(timer: CudaTimer, step: Callable[[], Any], calls: int = 1) -> list[float]:
    """Nanoseconds per call of each round, in ascending order, after a warm-up."""
    timer.time(step, 3 * calls)
    return sorted(timer.time(step, calls) / calls for _ in range(ROUNDS))


def _make_rate(kind: str, amount: float, rounds: list[float], unit: str, **where: Any) -> Ceiling:
    return Ceiling(kind, amount / rounds[0], amount / statistics.median(rounds), unit, **where)


def _measure_memory(torch: Any, timer: CudaTimer, mix: str, size: int, device: Any) -> Ceiling:
    """`size` is the working set in bytes; a copy reads one half and writes the other.

    The set is read many times, also inside one CUDA graph: a ceiling is the limit of the memory, not of the launches.
    """
    passes = max(1, min(64, (1 << 31) // size))
    buffer = torch.randint(0, 1 << 30, (size // 4,), dtype=torch.int32, device=device)
    step: Callable[[], Any]
    if mix == "read":
        from ridgeline.kernels import make_read_step

        step = make_read_step(buffer)
    elif mix == "write":
        step = partial(buffer.fill_, 7)
    else:
        half = size // 8
        step = partial(buffer[:half].copy_, buffer[half:])
    rounds = _time_rounds(timer, step, passes)
    if passes > 1:
        # A graph is not always faster: it gives large copies to the copy engine, which is slower than the SMs.
        by_graph = [ns / passes for ns in _time_rounds(timer, _capture_graph(torch, step, passes))]
        rounds = min(rounds, by_graph)
    return _make_rate(mix, size, rounds, "GB/s", bytes=size, threads=1)


def _capture_graph(torch: Any, step: Callable[[], Any], times: int) -> Callable[[], Any]:
    """Capture `times` steps as one CUDA graph; return its replay."""
    step()  # compiles and loads the kernel before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            step()
    replay: Callable[[], Any] = graph.replay
    return replay


def _measure_matmul(torch: Any, timer: CudaTimer, dtype: str, device: Any) -> Iterator[Ceiling]:
    n = MATMUL_SIZE if dtype != "float64" else MATMUL_SIZE // 2
    step = _make_product(torch, dtype, n, device)
    if step is not None:
        yield _make_rate("matmul", 2 * n**3, _time_rounds(timer, step), "GFLOP/s", dtype=dtype, how="torch")


def _make_product(torch: Any, dtype: str, n: int, device: Any) -> Callable[[], Any] | None:
    """One n×n product in a data type; None if this GPU has no such unit. Zeros would run faster than random numbers."""
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
        return None
    return step


def _measure_transfers(
    torch: Any, timer: CudaTimer, device: Any, node: int, kinds: Sequence[str] = ("pinned", "pageable")
) -> Iterator[Ceiling]:
    for how in kinds:
        for size in TRANSFERS:
            # Fresh memory each time: the pinned allocator may reuse a block of another node.
            host = torch.empty(size, dtype=torch.uint8).fill_(1)
            host = host.pin_memory() if how == "pinned" else host
            target = torch.empty(size, dtype=torch.uint8, device=device)
            steps: dict[str, Callable[[], Any]] = {
                "h2d": lambda target=target, host=host: target.copy_(host, non_blocking=True),  # type: ignore[misc]
                "d2h": lambda target=target, host=host: host.copy_(target, non_blocking=True),  # type: ignore[misc]
            }
            for kind, step in steps.items():
                rounds = _time_rounds(timer, step, max(1, (64 << 20) // size))
                yield _make_rate(kind, size, rounds, "GB/s", bytes=size, node=node, how=how)


def _measure_launches(torch: Any, timer: CudaTimer, device: Any) -> Iterator[Ceiling]:
    """The smallest possible kernel, many times: launched from Python, and as one graph."""
    tiny = torch.zeros(1, device=device)
    direct = _time_rounds(timer, lambda: tiny.add_(1), LAUNCHES)
    yield Ceiling("launch", direct[0] / 1e3, statistics.median(direct) / 1e3, "µs", how="direct")
    replay = [ns / LAUNCHES for ns in _time_rounds(timer, _capture_graph(torch, lambda: tiny.add_(1), LAUNCHES))]
    yield Ceiling("launch", replay[0] / 1e3, statistics.median(replay) / 1e3, "µs", how="graph")
