"""The CPU's ceilings: memory mixes over a ladder of working sets, and matrix products."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ridgeline.machine import numa
from ridgeline.machine.ceiling import Ceiling, Progress
from ridgeline.machine.clock import CpuTimer
from ridgeline.machine.hardware import Node, Topology
from ridgeline.machine.placement import Placement, placed
from ridgeline.native import time_mix

MIXES = ("read", "write", "copy", "triad")
LADDER = tuple(1 << k for k in (14, 17, 19, 21, 23, 25, 27))  # 16 KiB … 128 MiB per thread
GLANCED = 1 << 21
ROUNDS = 7
ROUND_BYTES = 48 << 20  # bytes one round walks at least, so that it lasts milliseconds
MATMUL_MOST = 2048  # n of the largest n×n product
MATMUL_NS = 30_000_000  # long enough for all cores to join in


def measure_cpu(here: Topology, say: Progress) -> list[Ceiling]:
    """Everything `ridgeline machine --ceilings` shows of the CPU; a few tens of seconds."""
    cpus = _one_per_core(here)
    top = _memory_rung(here, len(cpus))
    teams = [cpus[:1], cpus] if len(cpus) > 1 else [cpus]
    found: list[Ceiling] = []
    for team in teams:
        rungs = sorted({*(r for r in LADDER if r < top), top})
        for mix in MIXES:
            say(f"CPU memory: {mix}, {len(team)} thread{'s' if len(team) > 1 else ''}")
            found += [_memory(mix, rung, team) for rung in rungs]
    found += _between_nodes(here, top, say)
    for library, dtype, product in _libraries():
        say(f"CPU matmul: {library} {dtype}")
        found.append(_matmul(library, dtype, product, len(cpus)))
    return found


def glance_cpu(here: Topology, say: Progress) -> list[Ceiling]:
    """What a study of a model is held against, in seconds: all cores, large reads and copies, float32."""
    cpus = _one_per_core(here)
    top = _memory_rung(here, len(cpus))
    say("CPU: memory, matmul")
    found = [_memory(mix, rung, cpus) for mix in ("read", "copy") for rung in sorted({min(GLANCED, top), top})]
    libraries = [one for one in _libraries() if one[1] == "float32"]
    return found + [_matmul(library, dtype, product, len(cpus)) for library, dtype, product in libraries]


def again(ceiling: Ceiling, here: Topology) -> Ceiling | None:
    """Measure one of them once more."""
    if ceiling.bytes and ceiling.memory_node is None:
        return _memory(ceiling.kind, ceiling.bytes, _one_per_core(here)[: ceiling.threads])
    for library, dtype, product in _libraries():
        if (library, dtype) == (ceiling.how, ceiling.dtype):
            return _matmul(library, dtype, product, ceiling.threads or 1)
    return None


def _one_per_core(here: Topology) -> list[int]:
    """Usable CPUs, one per core: a second hyper-thread adds no bandwidth."""
    first: dict[tuple[int, int], int] = {}
    for cpu in here.cpus:
        if cpu.usable:
            first.setdefault((cpu.package, cpu.core), cpu.id)
    return list(first.values())


def _memory_rung(here: Topology, threads: int) -> int:
    """Per-thread bytes that no cache holds: four times the last level, shared out, within memory's means."""
    last = sum({c.cpus: c.bytes for c in here.caches if c.level == max(k.level for k in here.caches)}.values())
    wanted = max(LADDER[-1], 4 * last // threads)
    return min(wanted, max(LADDER[0], here.usable_memory_bytes // (8 * threads))) // 4096 * 4096


def _memory(mix: str, size: int, cpus: list[int], node: int | None = None, memory: int | None = None) -> Ceiling:
    """The faster of ordinary and streaming stores: the ceiling is what the memory can, not what a loop does."""
    passes = max(1, ROUND_BYTES // size)
    best: list[float] = []
    for streaming in (False, True) if mix != "read" else (False,):
        rounds = time_mix(mix, size, cpus, passes=passes, repeats=ROUNDS, streaming=streaming)
        rates = sorted(_moved(mix, size) * passes * len(cpus) / ns for ns in rounds)
        best = max(best, rates, key=lambda r: r[-1] if r else 0.0)
    return Ceiling(
        mix, best[-1], statistics.median(best), "GB/s", bytes=size, threads=len(cpus), node=node, memory_node=memory
    )


def _moved(mix: str, size: int) -> int:
    """Bytes one pass moves; buffers are cut at 64 bytes as in native/bandwidth.cpp."""
    parts = {"copy": 2, "triad": 3}.get(mix, 1)
    return size if parts == 1 else size // parts // 64 * 64 * parts


def _between_nodes(here: Topology, size: int, say: Progress) -> Iterator[Ceiling]:
    """CPUs of one node on memory of another, where there are several."""
    usable = set(here.usable_cpus)
    with_cpus = [n for n in here.nodes if set(n.cpus) & usable]
    with_memory = [here.node(n) for n in here.memory_nodes]
    if len(here.nodes) < 2 or not numa.supported():
        return
    for near in with_cpus:
        for far in with_memory:
            say(f"memory of node {far.id} from CPUs of node {near.id}")
            yield from _pair(here, near, far, size)


def _pair(here: Topology, near: Node, far: Node, size: int) -> Iterator[Ceiling]:
    cpus = [c for c in _one_per_core(here) if c in near.cpus]
    size = min(size, max(LADDER[0], far.memory_bytes // (4 * len(cpus)) // 4096 * 4096))  # a bound node must hold it
    where = Placement(node=far.id, cpus=tuple(cpus), memory="bind")
    with placed(where, on=here):
        for mix in ("read", "copy"):
            yield _memory(mix, size, cpus, near.id, far.id)


def _libraries() -> Iterator[tuple[str, str, Callable[[int], Callable[[], Any]]]]:
    """(library, dtype, maker of an n×n product) for each way to multiply that is installed."""
    import numpy as np

    def with_numpy(dtype: str, n: int) -> Callable[[], Any]:
        random = np.random.default_rng(0)
        a, b = (random.standard_normal((n, n)).astype(dtype) for _ in range(2))
        out = np.empty_like(a)
        return lambda: np.matmul(a, b, out=out)

    for dtype in ("float32", "float64"):
        yield "numpy", dtype, partial(with_numpy, dtype)
    try:
        import torch
    except ImportError:
        return

    def with_torch(dtype: str, n: int) -> Callable[[], Any]:
        kind = getattr(torch, dtype)
        a, b = (torch.randn(n, n).to(kind) for _ in range(2))
        out = torch.empty(n, n, dtype=kind)
        return lambda: torch.mm(a, b, out=out)

    def with_onednn(dtype: str, n: int) -> Callable[[], Any]:
        kind, ops = getattr(torch, dtype), torch.ops.mkldnn
        a, b = (torch.randn(n, n).to(kind) for _ in range(2))
        laid = ops._reorder_linear_weight(b, n)  # once, as a model's weights are
        return lambda: ops._linear_pointwise(a, laid, None, "none", [], "")

    for dtype in ("float32", "bfloat16", "float16"):
        yield "torch", dtype, partial(with_torch, dtype)
        try:
            with_onednn(dtype, 8)()
        except (RuntimeError, NotImplementedError, AttributeError):  # not in this build, or not on this CPU
            continue
        yield "oneDNN", dtype, partial(with_onednn, dtype)


def _matmul(library: str, dtype: str, product: Callable[[int], Callable[[], Any]], threads: int) -> Ceiling:
    """The best size counts. It grows until a product lasts: CPUs without bf16 instructions need seconds for what
    others do in milliseconds."""
    timer = CpuTimer()
    best: list[float] = [0.0]
    n = 128
    while True:
        step = product(n)
        timer.time(step, 1)
        rates = sorted(2 * n**3 / timer.time(step, 1) for _ in range(ROUNDS))
        best = max(best, rates, key=lambda r: r[-1])
        if n == MATMUL_MOST or 2 * n**3 / rates[-1] > MATMUL_NS:
            break
        n *= 2
    return Ceiling("matmul", best[-1], statistics.median(best), "GFLOP/s", threads=threads, dtype=dtype, how=library)
