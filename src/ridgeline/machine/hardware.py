"""The hardware of this computer: nodes, CPUs, caches, GPUs, network cards, and which of them are near each other.

    ridgeline machine            draws it
    ridgeline machine --json     prints it for a program

`topology` reads sysfs and NVML at the moment of the call; `root` reads a recorded tree instead. A recorded tree has
no NVML: its GPUs are the display controllers of GPU vendors on the PCI bus.
"""

from __future__ import annotations

import os
import re
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.machine.devices import Gpu, Nic, find_gpu_memory_nodes, list_gpus, list_nics, name_arm_core
from ridgeline.machine.limits import Limits, read_limits
from ridgeline.machine.sysfs import CpuSet, Tree

# Inside `placed()` the affinity of the thread is narrower than what the process may use; this is the affinity before.
allowed_cpus: ContextVar[CpuSet | None] = ContextVar("allowed_cpus", default=None)

NODES = "sys/devices/system/node"
CPUS = "sys/devices/system/cpu"


@dataclass(frozen=True)
class Node:
    """A NUMA node; `cpus` may be empty (memory only) and `memory_bytes` 0 (CPUs only)."""

    id: int
    cpus: tuple[int, ...]
    memory_bytes: int
    distances: dict[int, int] = field(default_factory=dict)  # node id -> ACPI SLIT distance, 10 = itself
    nearest_cpus: tuple[int, ...] = ()  # only if `cpus` is empty; () if the firmware does not tell


@dataclass(frozen=True)
class Cpu:
    """A hardware thread; CPUs with equal `package` and `core` share an execution core."""

    id: int
    node: int | None
    core: int
    package: int
    usable: bool  # online and inside this process's cpuset


@dataclass(frozen=True)
class Cache:
    """A data or unified cache and the CPUs that share it."""

    level: int
    bytes: int
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class Topology:
    """All hardware of one machine, and the limits of this process on it."""

    nodes: tuple[Node, ...]
    cpus: tuple[Cpu, ...]
    caches: tuple[Cache, ...]
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    limits: Limits = field(default_factory=Limits)
    model: str = "unknown CPU"
    gpu_memory_nodes: tuple[int, ...] = ()  # nodes that are the memory of a GPU (POWER9, Grace)
    notes: tuple[str, ...] = ()  # sentences about what could not be determined

    @property
    def usable_cpus(self) -> tuple[int, ...]:
        return tuple(c.id for c in self.cpus if c.usable)

    @property
    def memory_nodes(self) -> tuple[int, ...]:
        """Nodes that have host memory from which this process may allocate."""
        barred = {n.id for n in self.nodes if self.limits.memory_nodes is not None} - set(
            self.limits.memory_nodes or ()
        )
        barred |= set(self.gpu_memory_nodes)
        return tuple(n.id for n in self.nodes if n.memory_bytes and n.id not in barred)

    @property
    def usable_memory_bytes(self) -> int:
        """Memory that this process may use, in bytes: that of its nodes, or less if a cgroup limits it."""
        nodes = set(self.memory_nodes)
        installed = sum(n.memory_bytes for n in self.nodes if n.id in nodes)
        return min(installed, self.limits.memory_bytes or installed)

    def node(self, node_id: int) -> Node:
        """Return one node; raises InputError if the machine does not have it."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        known = ", ".join(str(n.id) for n in self.nodes)
        raise InputError(f"there is no NUMA node {node_id}; this machine has: {known}.")

    def gpu(self, index: int) -> Gpu:
        """Return one GPU by CUDA's number; raises InputError if this process does not see it."""
        for gpu in self.gpus:
            if gpu.index == index:
                return gpu
        known = ", ".join(f"{g.index} ({g.name})" for g in self.gpus) or "none"
        raise InputError(f"there is no GPU {index}; this process sees: {known}.")

    def llc_domains(self) -> tuple[tuple[int, ...], ...]:
        """Usable CPUs grouped by the last-level cache they share (by node if the kernel lists no cache)."""
        usable = set(self.usable_cpus)
        last: dict[int, Cache] = {}
        for cache in self.caches:
            for number in cache.cpus:
                if number not in last or cache.level > last[number].level:
                    last[number] = cache
        groups: dict[tuple[object, ...], list[int]] = {}
        for cpu in self.cpus:
            if cpu.id in usable:
                # A cache can span nodes (sub-NUMA clustering): a domain lies inside one node.
                shared = last[cpu.id].cpus if cpu.id in last else None
                groups.setdefault((cpu.node, shared), []).append(cpu.id)
        return tuple(sorted(tuple(sorted(g)) for g in groups.values()))


def topology(root: str | Path = "/") -> Topology:
    """Read the hardware of this machine, or of the recorded tree below `root` (a folder with `sys` and `proc`).

    Raises InputError when `root` holds no such tree.
    """
    tree = _open_tree(root)
    notes: list[str] = []
    online = _read_online(tree)
    nodes = _read_nodes(tree, online, notes)
    node_by_cpu = {cpu: node.id for node in nodes for cpu in node.cpus}
    usable = online & (allowed_cpus.get() or frozenset(os.sched_getaffinity(0))) if tree.live else online
    cpus = tuple(
        _read_cpu(tree, cpu, node_by_cpu.get(cpu), cpu in usable) for cpu in sorted(online | frozenset(node_by_cpu))
    )
    gpus = list_gpus(tree, node_by_cpu, notes)
    nics = list_nics(tree, node_by_cpu)
    memory_nodes = find_gpu_memory_nodes(tree)
    notes += [f"node {n} is the memory of GPU {pci}" for n, pci in sorted(memory_nodes.items())]
    return Topology(
        nodes=nodes,
        cpus=cpus,
        caches=_read_caches(tree, online),
        gpus=gpus,
        nics=nics,
        limits=read_limits(tree) if tree.live else Limits(),
        model=_read_model(tree),
        gpu_memory_nodes=tuple(sorted(memory_nodes)),
        notes=tuple(notes),
    )


def _open_tree(root: str | Path) -> Tree:
    tree = Tree(Path(os.path.abspath(root)))
    if not tree.root.is_dir():
        raise InputError(f"there is no folder '{root}'; --root needs a folder that holds 'sys' and 'proc'.")
    if not (tree.path("sys").is_dir() or tree.path("proc").is_dir()):
        raise InputError(f"'{root}' holds neither 'sys' nor 'proc'; give the folder that contains them.")
    if not (tree.path(CPUS).is_dir() or tree.path("proc/cpuinfo").is_file()):
        raise InputError(f"'{root}' has nothing about CPUs: it holds neither {CPUS} nor proc/cpuinfo.")
    return tree


def _read_online(tree: Tree) -> CpuSet:
    online_list = tree.read_list(CPUS, "online")
    if online_list:
        return online_list
    folders = tree.list_numbers(CPUS, "cpu")
    online = frozenset(c for c in folders if tree.number(CPUS, f"cpu{c}", "online") != 0)
    return online or frozenset(_list_cpuinfo_processors(tree)) or frozenset({0})


def _list_cpuinfo_processors(tree: Tree) -> list[int]:
    lines = (tree.text("proc/cpuinfo") or "").splitlines()
    pairs = (line.partition(":") for line in lines)
    return [int(v) for k, _, v in pairs if k.strip().lower() == "processor" and v.strip().isdecimal()]


def _read_nodes(tree: Tree, online: CpuSet, notes: list[str]) -> tuple[Node, ...]:
    ids = tree.list_numbers(NODES, "node")
    if not ids:
        notes.append("the kernel lists no NUMA nodes: all CPUs and memory are shown as node 0")
        return (Node(0, tuple(sorted(online)), _parse_memory(tree.text("proc/meminfo")), {0: 10}),)
    nodes: list[Node] = []
    claimed: CpuSet = frozenset()
    for n in ids:
        cpus = (tree.cpus(f"{NODES}/node{n}", "cpumap", "cpulist") or frozenset()) & online
        if cpus & claimed:  # broken firmware: a CPU belongs to one node, the first that lists it
            notes.append(f"node {n} claims CPUs of another node and is shown without CPUs")
            cpus = frozenset()
        claimed |= cpus
        memory = _parse_memory(tree.text(NODES, f"node{n}", "meminfo"))
        total = _parse_memory(tree.text("proc/meminfo"))
        # Memory that is added to a running guest may belong to no node. It belongs to node 0 only if that node is the
        # complete machine: all CPUs are on it, and no other node is offline.
        if ids == [0] and cpus == online and memory < total:
            notes.append(f"node {n} counts {memory >> 20} MiB of the machine's {total >> 20}: the latter is shown")
            memory = total
        nodes.append(Node(n, tuple(sorted(cpus)), memory, _read_distances(tree, n, ids)))
    return tuple(n if n.cpus else replace(n, nearest_cpus=_find_nearest_cpus(tree, n, nodes)) for n in nodes)


def _find_nearest_cpus(tree: Tree, node: Node, nodes: list[Node]) -> tuple[int, ...]:
    """The CPUs nearest to a node without CPUs, by the HMAT of the firmware, else by the distance table.

    The kernel links the nearest initiators of a node in access1 (CPUs only) and access0 (also devices that access
    memory). The distance table decides only if it tells some of the nodes apart.
    """
    with_cpus = {n.id: n.cpus for n in nodes if n.cpus}
    for access in ("access1", "access0"):
        nearest = with_cpus.keys() & tree.list_numbers(f"{NODES}/node{node.id}/{access}/initiators", "node")
        if nearest:
            return tuple(sorted(cpu for n in nearest for cpu in with_cpus[n]))
    distances = {n: node.distances[n] for n in with_cpus if n in node.distances}
    nearest = {n for n, distance in distances.items() if distance == min(distances.values())}
    return tuple(sorted(cpu for n in nearest for cpu in with_cpus[n])) if len(nearest) < len(with_cpus) else ()


def _read_distances(tree: Tree, node: int, ids: list[int]) -> dict[int, int]:
    """The row of the distance table; its columns are the online nodes in ascending order."""
    words = (tree.text(NODES, f"node{node}", "distance") or "").split()
    row = [int(w) for w in words if w.isdecimal()]
    columns = sorted(tree.read_list(NODES, "online") or ids)
    columns = columns if len(columns) == len(row) else ids
    return dict(zip(columns, row, strict=False)) if len(row) == len(columns) else {node: 10}


def _parse_memory(meminfo: str | None) -> int:
    match = re.search(r"MemTotal:\s*(\d+)", meminfo or "", re.ASCII)
    return int(match[1]) * 1024 if match else 0


def _read_cpu(tree: Tree, cpu: int, node: int | None, usable: bool) -> Cpu:
    package = tree.number(CPUS, f"cpu{cpu}", "topology", "physical_package_id")
    # core_id repeats across dies and clusters; the lowest sibling identifies a core.
    core = min(_read_siblings(tree, cpu))
    return Cpu(cpu, node, core, package if package is not None and package >= 0 else 0, usable)


def _read_siblings(tree: Tree, cpu: int) -> CpuSet:
    """The hardware threads of the core of a CPU, that CPU included."""
    folder = f"{CPUS}/cpu{cpu}/topology"
    siblings = tree.cpus(folder, "core_cpus", "core_cpus_list") or tree.cpus(
        folder, "thread_siblings", "thread_siblings_list"
    )
    return siblings if siblings and cpu in siblings else frozenset({cpu})


def _read_caches(tree: Tree, online: CpuSet) -> tuple[Cache, ...]:
    caches: dict[tuple[int, tuple[int, ...]], Cache] = {}
    for cpu in sorted(online):
        for index in tree.list_numbers(f"{CPUS}/cpu{cpu}/cache", "index"):
            folder = f"{CPUS}/cpu{cpu}/cache/index{index}"
            level = tree.number(folder, "level")
            if level is None or tree.text(folder, "type") == "Instruction":
                continue
            # Some ia64 kernels leave the map of a private cache empty.
            shared = tree.cpus(folder, "shared_cpu_map", "shared_cpu_list") or _read_siblings(tree, cpu)
            cpus = tuple(sorted(shared & online | {cpu}))
            caches.setdefault((level, cpus), Cache(level, _parse_size(tree.text(folder, "size")), cpus))
    return tuple(sorted(caches.values(), key=lambda c: (c.level, c.cpus)))


def _parse_size(text: str | None) -> int:
    if not text:
        return 0
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1].upper(), 1)
    digits = text.rstrip("kKmMgGbB")
    return int(digits) * scale if digits.isdecimal() else 0


def _read_model(tree: Tree) -> str:
    fields: dict[str, str] = {}
    for line in (tree.text("proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())
    for key in ("model name", "cpu model", "cpu", "uarch"):  # x86, MIPS, POWER, RISC-V
        if fields.get(key):
            return " ".join(fields[key].split())
    # ARM kernels name no model, only the implementer and part numbers of the core.
    if "cpu part" in fields:
        return name_arm_core(fields.get("cpu implementer", ""), fields["cpu part"])
    # ia64 (where a plain number says nothing) and s390
    family = fields.get("family", "")
    return (family if not family.isdecimal() else "") or fields.get("vendor_id") or "unknown CPU"
