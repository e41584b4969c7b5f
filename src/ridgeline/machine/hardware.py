"""What this computer is: nodes, CPUs, caches, GPUs, network cards, and which of them are near each other.

    ridgeline machine            draws it
    ridgeline machine --json     gives it to a program

Everything is read from sysfs and NVML at the moment of the call; `root` reads a recorded tree instead (no
NVML then: its GPUs are the display controllers of GPU vendors found on the PCI bus).
"""

from __future__ import annotations

import os
import re
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.machine import devices, limits
from ridgeline.machine.sysfs import CpuSet, Tree

# Inside `placed()` the thread's affinity is its own choice; what it may use is what it had outside.
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


Gpu = devices.Gpu
Nic = devices.Nic


@dataclass(frozen=True)
class Topology:
    nodes: tuple[Node, ...]
    cpus: tuple[Cpu, ...]
    caches: tuple[Cache, ...]
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    limits: limits.Limits = field(default_factory=limits.Limits)
    model: str = "unknown CPU"
    gpu_memory_nodes: tuple[int, ...] = ()  # nodes that are a GPU's own memory (POWER9, Grace)
    notes: tuple[str, ...] = ()  # what could not be known, in sentences

    @property
    def usable_cpus(self) -> tuple[int, ...]:
        return tuple(c.id for c in self.cpus if c.usable)

    @property
    def memory_nodes(self) -> tuple[int, ...]:
        """Nodes that have memory of the host's own and that this process may allocate from."""
        barred = {n.id for n in self.nodes if self.limits.memory_nodes is not None} - set(
            self.limits.memory_nodes or ()
        )
        barred |= set(self.gpu_memory_nodes)
        return tuple(n.id for n in self.nodes if n.memory_bytes and n.id not in barred)

    @property
    def usable_memory_bytes(self) -> int:
        """What this process may fill: memory of its nodes, or less where a cgroup says so."""
        nodes = set(self.memory_nodes)
        installed = sum(n.memory_bytes for n in self.nodes if n.id in nodes)
        return min(installed, self.limits.memory_bytes or installed)

    def node(self, node_id: int) -> Node:
        for node in self.nodes:
            if node.id == node_id:
                return node
        there = ", ".join(str(n.id) for n in self.nodes)
        raise InputError(f"there is no NUMA node {node_id}; this machine has: {there}.")

    def gpu(self, index: int) -> Gpu:
        for gpu in self.gpus:
            if gpu.index == index:
                return gpu
        there = ", ".join(f"{g.index} ({g.name})" for g in self.gpus) or "none"
        raise InputError(f"there is no GPU {index}; this process sees: {there}.")

    def llc_domains(self) -> tuple[tuple[int, ...], ...]:
        """Usable CPUs grouped by the last-level cache they share (by node where no cache is told)."""
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
    """Read this machine, or the recorded tree below `root`."""
    tree = _tree(root)
    notes: list[str] = []
    online = _online(tree)
    nodes = _nodes(tree, online, notes)
    owner = {cpu: node.id for node in nodes for cpu in node.cpus}
    usable = online & (allowed_cpus.get() or frozenset(os.sched_getaffinity(0))) if tree.live else online
    cpus = tuple(_cpu(tree, cpu, owner.get(cpu), cpu in usable) for cpu in sorted(online | frozenset(owner)))
    gpus = devices.gpus(tree, owner, notes)
    nics = devices.nics(tree, owner)
    memory_nodes = devices.gpu_memory_nodes(tree)
    notes += [f"node {n} is the memory of GPU {pci}" for n, pci in sorted(memory_nodes.items())]
    return Topology(
        nodes=nodes,
        cpus=cpus,
        caches=_caches(tree, online),
        gpus=gpus,
        nics=nics,
        limits=limits.limits(tree) if tree.live else limits.Limits(),
        model=_model(tree),
        gpu_memory_nodes=tuple(sorted(memory_nodes)),
        notes=tuple(notes),
    )


def _tree(root: str | Path) -> Tree:
    tree = Tree(Path(os.path.abspath(root)))
    if not tree.root.is_dir():
        raise InputError(f"there is no folder '{root}'; --root wants a folder that holds 'sys' and 'proc'.")
    if not (tree.path("sys").is_dir() or tree.path("proc").is_dir()):
        raise InputError(f"'{root}' holds neither 'sys' nor 'proc'; give the folder that contains them.")
    if not (tree.path(CPUS).is_dir() or tree.path("proc/cpuinfo").is_file()):
        raise InputError(f"'{root}' tells nothing about CPUs: neither {CPUS} nor proc/cpuinfo is there.")
    return tree


def _online(tree: Tree) -> CpuSet:
    listed = tree.listed(CPUS, "online")
    if listed:
        return listed
    folders = tree.numbered(CPUS, "cpu")
    online = frozenset(c for c in folders if tree.number(CPUS, f"cpu{c}", "online") != 0)
    return online or frozenset(_cpuinfo_processors(tree)) or frozenset({0})


def _cpuinfo_processors(tree: Tree) -> list[int]:
    lines = (tree.text("proc/cpuinfo") or "").splitlines()
    pairs = (line.partition(":") for line in lines)
    return [int(v) for k, _, v in pairs if k.strip().lower() == "processor" and v.strip().isdecimal()]


def _nodes(tree: Tree, online: CpuSet, notes: list[str]) -> tuple[Node, ...]:
    ids = tree.numbered(NODES, "node")
    if not ids:
        notes.append("the kernel tells no NUMA nodes: all CPUs and memory are shown as node 0")
        return (Node(0, tuple(sorted(online)), _memory(tree.text("proc/meminfo")), {0: 10}),)
    found: list[Node] = []
    claimed: CpuSet = frozenset()
    for n in ids:
        cpus = (tree.cpus(f"{NODES}/node{n}", "cpumap", "cpulist") or frozenset()) & online
        if cpus & claimed:  # broken firmware: a CPU stands in one node only, and the first to name it has it
            notes.append(f"node {n} claims CPUs of another node and is shown without CPUs")
            cpus = frozenset()
        claimed |= cpus
        memory = _memory(tree.text(NODES, f"node{n}", "meminfo"))
        whole = _memory(tree.text("proc/meminfo"))
        if len(ids) == 1 and memory < whole:  # memory that was added to a running guest may belong to no node
            notes.append(f"node {n} counts {memory >> 20} MiB of the machine's {whole >> 20}: the latter is shown")
            memory = whole
        found.append(Node(n, tuple(sorted(cpus)), memory, _distances(tree, n, ids)))
    return tuple(found)


def _distances(tree: Tree, node: int, ids: list[int]) -> dict[int, int]:
    """The row of the distance table; its columns are the online nodes in rising order."""
    words = (tree.text(NODES, f"node{node}", "distance") or "").split()
    told = [int(w) for w in words if w.isdecimal()]
    columns = sorted(tree.listed(NODES, "online") or ids)
    columns = columns if len(columns) == len(told) else ids
    return dict(zip(columns, told, strict=False)) if len(told) == len(columns) else {node: 10}


def _memory(meminfo: str | None) -> int:
    told = re.search(r"MemTotal:\s*(\d+)", meminfo or "", re.ASCII)
    return int(told[1]) * 1024 if told else 0


def _cpu(tree: Tree, cpu: int, node: int | None, usable: bool) -> Cpu:
    package = tree.number(CPUS, f"cpu{cpu}", "topology", "physical_package_id")
    # core_id repeats across dies and clusters; the lowest sibling names a core without doubt.
    core = min(_siblings(tree, cpu))
    return Cpu(cpu, node, core, package if package is not None and package >= 0 else 0, usable)


def _siblings(tree: Tree, cpu: int) -> CpuSet:
    """The hardware threads of a CPU's core, itself among them."""
    folder = f"{CPUS}/cpu{cpu}/topology"
    told = tree.cpus(folder, "core_cpus", "core_cpus_list") or tree.cpus(
        folder, "thread_siblings", "thread_siblings_list"
    )
    return told if told and cpu in told else frozenset({cpu})


def _caches(tree: Tree, online: CpuSet) -> tuple[Cache, ...]:
    found: dict[tuple[int, tuple[int, ...]], Cache] = {}
    for cpu in sorted(online):
        for index in tree.numbered(f"{CPUS}/cpu{cpu}/cache", "index"):
            folder = f"{CPUS}/cpu{cpu}/cache/index{index}"
            level = tree.number(folder, "level")
            if level is None or tree.text(folder, "type") == "Instruction":
                continue
            # Some ia64 kernels leave the map of a core's own cache empty.
            shared = tree.cpus(folder, "shared_cpu_map", "shared_cpu_list") or _siblings(tree, cpu)
            cpus = tuple(sorted(shared & online | {cpu}))
            found.setdefault((level, cpus), Cache(level, _size(tree.text(folder, "size")), cpus))
    return tuple(sorted(found.values(), key=lambda c: (c.level, c.cpus)))


def _size(text: str | None) -> int:
    if not text:
        return 0
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1].upper(), 1)
    digits = text.rstrip("kKmMgGbB")
    return int(digits) * scale if digits.isdecimal() else 0


def _model(tree: Tree) -> str:
    told: dict[str, str] = {}
    for line in (tree.text("proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        told.setdefault(key.strip().lower(), value.strip())
    for key in ("model name", "cpu model", "cpu", "uarch"):  # x86, MIPS, POWER, RISC-V
        if told.get(key):
            return " ".join(told[key].split())
    # ARM kernels name no model, only the implementer and part numbers of the core.
    if "cpu part" in told:
        return devices.arm_core(told.get("cpu implementer", ""), told["cpu part"])
    # ia64 (where a plain number says nothing) and s390
    family = told.get("family", "")
    return (family if not family.isdecimal() else "") or told.get("vendor_id") or "unknown CPU"
