"""The ceilings of a CPU: memory mixes over many working-set sizes, and matrix products."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ridgeline.machine import numa
from ridgeline.machine.ceiling_types import Ceiling, Progress
from ridgeline.machine.clock import CpuTimer
from ridgeline.machine.hardware import Node, Topology
from ridgeline.machine.placement import Placement, placed
from ridgeline.native import time_mix

MIXES = ("read", "write", "copy", "triad")
SIZES = tuple(1 << k for k in (14, 17, 19, 21, 23, 25, 27))  # 16 KiB … 128 MiB per thread
QUICK_SIZE = 1 << 21
ROUNDS = 7
ROUND_BYTES = 48 << 20  # the least a round reads or writes, so that it lasts milliseconds
MATMUL_MOST = 2048  # n of the largest n×n product
MATMUL_NS = 30_000_000  # long enough for all cores to take part


def measure_cpu(machine: Topology, report: Progress) -> list[Ceiling]:
    """Measure all that `ridgeline machine --ceilings` prints for the CPU; takes some tens of seconds."""
    cpus = _choose_cpus(machine)
    largest = _choose_largest_size(machine, len(cpus))
    teams = [cpus[:1], cpus] if len(cpus) > 1 else [cpus]
    rows: list[Ceiling] = []
    for team in teams:
        sizes = sorted({*(size for size in SIZES if size < largest), largest})
        for mix in MIXES:
            report(f"CPU memory: {mix}, {len(team)} thread{'s' if len(team) > 1 else ''}")
            rows += [_measure_memory(mix, size, team) for size in sizes]
    rows += _measure_node_pairs(machine, largest, report)
    for library, dtype, make_product in _list_products():
        report(f"CPU matmul: {library} {dtype}")
        rows.append(_measure_matmul(library, dtype, make_product, len(cpus)))
    return rows


def measure_cpu_quickly(machine: Topology, report: Progress) -> list[Ceiling]:
    """Measure what a study of a model is compared with, in seconds: all cores, large reads and copies, float32."""
    cpus = _choose_cpus(machine)
    largest = _choose_largest_size(machine, len(cpus))
    report("CPU: memory, matmul")
    sizes = sorted({min(QUICK_SIZE, largest), largest})
    rows = [_measure_memory(mix, size, cpus) for mix in ("read", "copy") for size in sizes]
    for library, dtype, make_product in _list_products():
        if dtype == "float32":
            rows.append(_measure_matmul(library, dtype, make_product, len(cpus)))
    return rows


def remeasure_cpu(ceiling: Ceiling, machine: Topology) -> Ceiling | None:
    """Measure one ceiling again; None if this machine cannot."""
    if ceiling.bytes and ceiling.memory_node is None:
        return _measure_memory(ceiling.kind, ceiling.bytes, _choose_cpus(machine)[: ceiling.threads])
    for library, dtype, make_product in _list_products():
        if (library, dtype) == (ceiling.how, ceiling.dtype):
            return _measure_matmul(library, dtype, make_product, ceiling.threads or 1)
    return None


def _choose_cpus(machine: Topology) -> list[int]:
    """Usable CPUs, one per core: a second hyper-thread adds no bandwidth."""
    first: dict[tuple[int, int], int] = {}
    for cpu in machine.cpus:
        if cpu.usable:
            first.setdefault((cpu.package, cpu.core), cpu.id)
    return list(first.values())


def _choose_largest_size(machine: Topology, threads: int) -> int:
    """Bytes per thread that fit no cache: four times the last-level cache, divided by the threads, within memory."""
    last = sum({c.cpus: c.bytes for c in machine.caches if c.level == max(k.level for k in machine.caches)}.values())
    desired = max(SIZES[-1], 4 * last // threads)
    return min(desired, max(SIZES[0], machine.usable_memory_bytes // (8 * threads))) // 4096 * 4096


def _measure_memory(
    mix: str, size: int, cpus: list[int], node: int | None = None, memory: int | None = None
) -> Ceiling:
    """Take the faster of ordinary and streaming stores: a ceiling is the limit of the memory, not of one loop."""
    passes = max(1, ROUND_BYTES // size)
    best: list[float] = []
    for streaming in (False, True) if mix != "read" else (False,):
        rounds = time_mix(mix, size, cpus, passes=passes, repeats=ROUNDS, streaming=streaming)
        rates = sorted(_count_bytes(mix, size) * passes * len(cpus) / ns for ns in rounds)
        best = max(best, rates, key=lambda r: r[-1] if r else 0.0)
    return Ceiling(
        mix, best[-1], statistics.median(best), "GB/s", bytes=size, threads=len(cpus), node=node, memory_node=memory
    )


def _count_bytes(mix: str, size: int) -> int:
    """Bytes that one pass moves; `native.time_mix` cuts its buffers at 64 bytes in the same way."""
    parts = {"copy": 2, "triad": 3}.get(mix, 1)
    return size if parts == 1 else size // parts // 64 * 64 * parts


def _measure_node_pairs(machine: Topology, size: int, report: Progress) -> Iterator[Ceiling]:
    """CPUs of one node on memory of another, on machines with several nodes."""
    usable = set(machine.usable_cpus)
    with_cpus = [n for n in machine.nodes if set(n.cpus) & usable]
    with_memory = [machine.node(n) for n in machine.memory_nodes]
    if len(machine.nodes) < 2 or not numa.memory_policy_supported():
        return
    for cpu_node in with_cpus:
        for memory_node in with_memory:
            report(f"memory of node {memory_node.id} from CPUs of node {cpu_node.id}")
            yield from _measure_pair(machine, cpu_node, memory_node, size)


def _measure_pair(machine: Topology, cpu_node: Node, memory_node: Node, size: int) -> Iterator[Ceiling]:
    cpus = [c for c in _choose_cpus(machine) if c in cpu_node.cpus]
    fitting = memory_node.memory_bytes // (4 * len(cpus)) // 4096 * 4096  # all of it lies on the bound node
    size = min(size, max(SIZES[0], fitting))
    with placed(Placement(node=memory_node.id, cpus=tuple(cpus), memory="bind"), on=machine):
        for mix in ("read", "copy"):
            yield _measure_memory(mix, size, cpus, cpu_node.id, memory_node.id)


def _list_products() -> Iterator[tuple[str, str, Callable[[int], Callable[[], Any]]]]:
    """Yield (library, dtype, function that makes an n×n product) for each installed library."""
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
        weights = ops._reorder_linear_weight(b, n)  # once, as a model's weights are
        return lambda: ops._linear_pointwise(a, weights, None, "none", [], "")

    for dtype in ("float32", "bfloat16", "float16"):
        yield "torch", dtype, partial(with_torch, dtype)
        try:
            with_onednn(dtype, 8)()
        except (RuntimeError, NotImplementedError, AttributeError):  # not in this build, or not on this CPU
            continue
        yield "oneDNN", dtype, partial(with_onednn, dtype)


def _measure_matmul(
    library: str, dtype: str, make_product: Callable[[int], Callable[[], Any]], threads: int
) -> Ceiling:
    """Measure growing sizes and keep the best rate.

    The size grows until one product lasts long enough: a CPU without bf16 instructions needs seconds for a product
    that others finish in milliseconds.
    """
    timer = CpuTimer()
    best: list[float] = [0.0]
    n = 128
    while True:
        step = make_product(n)
        timer.time(step, 1)
        rates = sorted(2 * n**3 / timer.time(step, 1) for _ in range(ROUNDS))
        best = max(best, rates, key=lambda r: r[-1])
        if n == MATMUL_MOST or 2 * n**3 / rates[-1] > MATMUL_NS:
            break
        n *= 2
    return Ceiling("matmul", best[-1], statistics.median(best), "GFLOP/s", threads=threads, dtype=dtype, how=library)
