"""Stand somewhere on purpose: bind CPUs *and* memory, read both back from the kernel, restore on leaving.

    with placed(Placement(node=1, memory="bind")) as where:
        ...            # this thread and threads it starts now run and allocate on node 1

Tools that bind only CPUs leave the memory where it was first touched; a binding that is not read back may
never have happened. `where` says what the kernel answered.
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
    """Where to run: CPUs of a node, of a GPU's neighbourhood, or named one by one.

    memory: "local" (wherever the running CPU is), "bind" (this node or fail), "preferred" (this node, else
    any), "interleave" (round-robin over the node, or over all nodes with memory when none is named).
    """

    node: int | None = None
    cpus: tuple[int, ...] | None = None
    memory: str = "local"
    gpu: int | None = None


@dataclass(frozen=True)
class Placed:
    """What the kernel says after binding."""

    cpus: tuple[int, ...]
    memory: str
    memory_nodes: tuple[int, ...]  # nodes named in the policy; empty for "local"
    page_nodes: tuple[int, ...]  # where freshly touched pages came to lie; empty if the kernel cannot tell
    notes: tuple[str, ...] = ()


@contextmanager
def placed(placement: Placement, on: Topology | None = None) -> Iterator[Placed]:
    """Bind the calling thread, verify, and restore on exit, also after an exception."""
    here = on or topology()
    cpus = _wanted_cpus(placement, here)
    nodes = _wanted_nodes(placement, here)
    before_cpus = os.sched_getaffinity(0)
    can_bind = numa.supported()
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


def resolve(placement: Placement, on: Topology) -> Placement:
    """The same placement with its CPUs written out (for records and for handing to other processes)."""
    cpus = tuple(sorted(_wanted_cpus(placement, on)))
    return Placement(placement.node, cpus, placement.memory, placement.gpu)


def _bind(placement: Placement, cpus: frozenset[int], nodes: frozenset[int], can_bind: bool) -> Placed:
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise PlacementError(f"asked for CPUs {_words(cpus)}, the kernel refused: {error.strerror}.") from error
    granted = os.sched_getaffinity(0)
    if granted != cpus:
        raise PlacementError(
            f"asked for CPUs {_words(cpus)}, the kernel granted {_words(granted)}: another cpuset limits this process."
        )
    mode = numa.MODES[placement.memory]
    try:
        if not can_bind:
            numa.get_policy()  # raises with the reason
        numa.set_policy(mode, nodes)
        _verify_policy(mode, nodes)
        pages = numa.fresh_pages_nodes(PROBE_PAGES)
    except numa.Refused as refusal:
        # "local" is what a thread has without asking; containers often forbid to ask.
        if placement.memory != "local":
            raise
        return Placed(tuple(sorted(granted)), "local", (), (), (f"memory was not looked at: {refusal}",))
    if placement.memory == "bind" and any(page not in nodes for page in pages):
        raise PlacementError(
            f"memory was bound to node {_words(nodes)}, yet fresh pages lie on node {_words(frozenset(pages))}."
        )
    return Placed(tuple(sorted(granted)), placement.memory, tuple(sorted(nodes)), tuple(pages))


def _verify_policy(mode: int, nodes: frozenset[int]) -> None:
    got_mode, got_nodes = numa.get_policy()
    # Kernels before 5.14 keep "local" as a preferred policy without a node.
    local = mode == numa.LOCAL and got_mode in (numa.LOCAL, numa.PREFERRED) and not got_nodes
    if not local and (got_mode, got_nodes) != (mode, nodes):
        raise PlacementError(
            f"asked for memory policy {mode} on node {_words(nodes)}, "
            f"the kernel reads back {got_mode} on {_words(got_nodes)}."
        )


def _wanted_cpus(placement: Placement, here: Topology) -> frozenset[int]:
    usable = frozenset(here.usable_cpus)
    if placement.node is not None:
        here.node(placement.node)  # a name that is not there is an error even where another one decides
    if placement.gpu is not None:
        here.gpu(placement.gpu)
    if placement.cpus is not None:
        wanted = frozenset(placement.cpus)
        strange = wanted - usable
        if strange or not wanted:
            named = f"CPU {_words(strange)} is not there or not allowed" if strange else "no CPU was named"
            raise InputError(f"{named}; this process may use CPUs {_words(usable)}.")
        return wanted
    if placement.node is not None:
        wanted = frozenset(here.node(placement.node).cpus) & usable
        if not wanted:
            with_cpus = [str(n.id) for n in here.nodes if frozenset(n.cpus) & usable]
            raise InputError(
                f"node {placement.node} has no CPU this process may use; nodes with some: {', '.join(with_cpus)}."
            )
        return wanted
    if placement.gpu is not None:
        gpu = here.gpu(placement.gpu)
        near = frozenset(gpu.cpus if gpu.node is None else here.node(gpu.node).cpus) & usable
        return near or usable
    return usable


def _wanted_nodes(placement: Placement, here: Topology) -> frozenset[int]:
    if placement.memory not in numa.MODES:
        raise InputError(f"there is no memory policy '{placement.memory}'; there are: {', '.join(numa.MODES)}.")
    node = placement.node
    if node is None and placement.gpu is not None:
        node = here.gpu(placement.gpu).node
    if placement.memory == "local":
        return frozenset()
    with_memory = frozenset(here.memory_nodes)
    if node is None and placement.memory == "interleave":
        return with_memory
    if node is None:
        raise InputError(f"memory='{placement.memory}' needs a node; there are: {_words(with_memory)}.")
    if here.node(node).id not in with_memory:
        raise InputError(f"node {node} has no memory for this process; nodes with some: {_words(with_memory)}.")
    return frozenset({node})


def _words(numbers: frozenset[int] | set[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"
