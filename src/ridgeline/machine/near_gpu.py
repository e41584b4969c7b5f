"""Run near a GPU: a command binds its threads to the CPUs of its GPU's NUMA node and says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ridgeline.errors import PlacementError
from ridgeline.machine.hardware import Topology, topology
from ridgeline.machine.launch_lines import format_spans
from ridgeline.machine.placement import Placement, placed


@dataclass(frozen=True)
class NearGpu:
    """Where a process runs; `node` is None if it was left where it was. `reason` is a sentence about it."""

    node: int | None
    cpus: tuple[int, ...]
    reason: str


@contextmanager
def placed_near_gpu(gpu: int, on: Topology | None = None) -> Iterator[NearGpu]:
    """Bind the calling thread, and the threads it starts, to the usable CPUs on the node of a GPU.

    gpu   CUDA's number of the GPU
    on    the topology (default: this machine)

    Never widens the CPUs that the caller has (taskset, numactl, a cgroup). If nothing can be chosen, or the kernel
    refuses, the threads stay where they are, and `reason` says why. Memory follows the CPUs.
    """
    machine = on or topology()
    with ExitStack() as stack:
        reason = _find_obstacle(machine, gpu)
        if reason is None:
            try:
                where = stack.enter_context(placed(Placement(gpu=gpu), machine))
                node = machine.gpu(gpu).node
                location = NearGpu(
                    node, where.cpus, f"runs on CPUs {format_spans(where.cpus)} of node {node}, near GPU {gpu}."
                )
            except PlacementError as error:
                reason = str(error)
        if reason is not None:
            location = NearGpu(None, tuple(sorted(os.sched_getaffinity(0))), reason)
        yield location


def _find_obstacle(machine: Topology, index: int) -> str | None:
    """Say why there is nothing to choose; None if there is."""
    gpu = next((gpu for gpu in machine.gpus if gpu.index == index), None)
    if gpu is None:
        return f"the driver does not say where GPU {index} is."
    if len({cpu.node for cpu in machine.cpus if cpu.usable}) < 2:
        return "all usable CPUs are on one node: there is nothing to choose."
    if gpu.node is None:
        return f"the firmware does not say which node GPU {index} is near."
    node = machine.node(gpu.node)
    if not set(node.cpus or node.nearest_cpus) & set(machine.usable_cpus):
        return f"this process may use no CPU of node {gpu.node}, which GPU {index} is near."
    return None
