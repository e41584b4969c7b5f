"""Placement: bind CPUs *and* memory, read both back from the kernel, restore them on exit.

    with placed(Placement(node=1, memory="bind")) as where:
        ...            # this thread and the threads it starts run and allocate on node 1

Tools that bind only CPUs leave the memory where it was first touched; a binding that is not read back may have had
no effect. `where` holds the answer of the kernel.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ridgeline.errors import InputError, PlacementError
from ridgeline.machine import numa
from ridgeline.machine.hardware import Topology, allowed_cpus, topology

PROBE_PAGES = 8  # enough to see an interleave; a few microseconds


@dataclass(frozen=True)
class Placement:
    """Where to run: on the CPUs of a node, near a GPU, or on a list of CPUs.

    memory: "local" (the node of the running CPU), "bind" (this node or fail), "preferred" (this node, else any),
    "interleave" (round-robin over the node, or over all nodes with memory if `node` is None).
    """

    node: int | None = None
    cpus: tuple[int, ...] | None = None
    memory: str = "local"
    gpu: int | None = None


@dataclass(frozen=True)
class Placed:
    """What the kernel reports after binding."""

    cpus: tuple[int, ...]
    memory: str
    memory_nodes: tuple[int, ...]  # nodes named in the policy; empty for "local"
    page_nodes: tuple[int, ...]  # nodes of freshly touched pages; empty if the kernel does not report them
    notes: tuple[str, ...] = ()


@contextmanager
def placed(placement: Placement, on: Topology | None = None) -> Iterator[Placed]:
    """Bind the calling thread, verify, and restore the old binding on exit, also after an exception.

    Yields a `Placed`. Raises InputError for CPUs or nodes that this process cannot use, PlacementError if the kernel
    refuses or does something else.
    """
    machine = on or topology()
    cpus = _select_cpus(placement, machine)
    nodes = _select_nodes(placement, machine)
    before_cpus = os.sched_getaffinity(0)
    can_bind = numa.memory_policy_supported()
    before_policy = numa.get_policy() if can_bind else None
    outer = allowed_cpus.set(allowed_cpus.get() or frozenset(before_cpus))
    try:
        where = _bind(placement, cpus, nodes, can_bind)
        yield where
    finally:
        allowed_cpus.reset(outer)
        try:
            os.sched_setaffinity(0, before_cpus)
        finally:
            if before_policy is not None and numa.get_policy() != before_policy:
                numa.set_policy(*before_policy)


def resolve_placement(placement: Placement, on: Topology) -> Placement:
    """Return the same placement with its CPUs as a list, for records and for other processes."""
    cpus = tuple(sorted(_select_cpus(placement, on)))
    return Placement(placement.node, cpus, placement.memory, placement.gpu)


def _bind(placement: Placement, cpus: frozenset[int], nodes: frozenset[int], can_bind: bool) -> Placed:
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise PlacementError(f"the kernel refused CPUs {_join(cpus)}: {error.strerror}.") from error
    granted = os.sched_getaffinity(0)
    if granted != cpus:
        raise PlacementError(
            f"the kernel granted CPUs {_join(granted)} instead of {_join(cpus)}: another cpuset limits this process."
        )
    mode = numa.MODES[placement.memory]
    try:
        if not can_bind:
            numa.get_policy()  # raises with the reason
        numa.set_policy(mode, nodes)
        _verify_policy(mode, nodes)
        pages = numa.probe_fresh_pages(PROBE_PAGES)
    except numa.PolicyRefused as refusal:
        # "local" is the policy of a thread by default; containers often forbid the call.
        if placement.memory != "local":
            raise
        return Placed(tuple(sorted(granted)), "local", (), (), (f"memory was not verified: {refusal}",))
    if placement.memory == "bind" and any(page not in nodes for page in pages):
        raise PlacementError(
            f"memory was bound to node {_join(nodes)}, yet fresh pages lie on node {_join(frozenset(pages))}."
        )
    return Placed(tuple(sorted(granted)), placement.memory, tuple(sorted(nodes)), tuple(pages))


def _verify_policy(mode: int, nodes: frozenset[int]) -> None:
    actual_mode, actual_nodes = numa.get_policy()
    # Kernels before 5.14 keep "local" as a preferred policy without a node.
    local = mode == numa.LOCAL and actual_mode in (numa.LOCAL, numa.PREFERRED) and not actual_nodes
    if not local and (actual_mode, actual_nodes) != (mode, nodes):
        raise PlacementError(
            f"memory policy {mode} on node {_join(nodes)} was set, "
            f"the kernel reports {actual_mode} on {_join(actual_nodes)}."
        )


def _select_cpus(placement: Placement, machine: Topology) -> frozenset[int]:
    usable = frozenset(machine.usable_cpus)
    if placement.node is not None:
        machine.node(placement.node)  # an unknown node is an error even if `cpus` decides
    if placement.gpu is not None:
        machine.gpu(placement.gpu)
    if placement.cpus is not None:
        requested = frozenset(placement.cpus)
        unusable = requested - usable
        if unusable or not requested:
            problem = f"CPU {_join(unusable)} does not exist or is not allowed" if unusable else "no CPU was named"
            raise InputError(f"{problem}; this process may use CPUs {_join(usable)}.")
        return requested
    if placement.node is not None:
        of_node = frozenset(machine.node(placement.node).cpus) & usable
        nearest = frozenset(machine.node(placement.node).nearest_cpus) & usable
        if not of_node and nearest and placement.memory != "local":
            return nearest  # memory without CPUs: run near it, allocate on it
        if not of_node:
            with_cpus = [str(n.id) for n in machine.nodes if frozenset(n.cpus) & usable]
            cure = "; memory='bind' runs on its nearest CPUs and allocates on it" if nearest else ""
            raise InputError(
                f"node {placement.node} has no CPU this process may use{cure}; nodes with some: {', '.join(with_cpus)}."
            )
        return of_node
    if placement.gpu is not None:
        gpu = machine.gpu(placement.gpu)
        node = None if gpu.node is None else machine.node(gpu.node)
        local = frozenset(gpu.cpus if node is None else node.cpus or node.nearest_cpus) & usable
        return local or usable
    return usable


def _select_nodes(placement: Placement, machine: Topology) -> frozenset[int]:
    if placement.memory not in numa.MODES:
        raise InputError(f"there is no memory policy '{placement.memory}'; there are: {', '.join(numa.MODES)}.")
    node = placement.node
    if node is None and placement.gpu is not None:
        node = machine.gpu(placement.gpu).node
    if placement.memory == "local":
        return frozenset()
    with_memory = frozenset(machine.memory_nodes)
    if node is None and placement.memory == "interleave":
        return with_memory
    if node is None:
        raise InputError(f"memory='{placement.memory}' needs a node; there are: {_join(with_memory)}.")
    if machine.node(node).id not in with_memory:
        raise InputError(f"node {node} has no memory for this process; nodes with some: {_join(with_memory)}.")
    return frozenset({node})


def _join(numbers: frozenset[int] | set[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"
