"""One placement per rank: near its GPU, no CPU shared by two ranks, spread evenly over nodes and cache domains.

ridgeline machine --plan 8
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from ridgeline.errors import InputError
from ridgeline.machine.devices import Gpu
from ridgeline.machine.hardware import Topology, topology
from ridgeline.machine.placement import Placement

Core = tuple[int, ...]  # the usable CPUs of one core
CpusByNode = dict[int | None, list[int]]  # usable CPUs by node; None: CPUs that no node lists
Name = TypeVar("Name")
Slice = TypeVar("Slice", list[Core], Core)


def plan(on: Topology | None = None, ranks: int = 1, per: str = "gpu", gpus: Sequence[int] = ()) -> list[Placement]:
    """Return a Placement for each of `ranks` processes on one machine.

    on     the topology to plan for (default: this machine)
    per    "gpu": rank i uses GPU i mod n and runs on the node of that GPU. "node": ranks are dealt over the nodes.
           "core": one core each, spread over nodes, then over the cache domains of a node, in proportion to cores.
    gpus   with per="gpu": the GPUs to use, by CUDA's number; they repeat if there are fewer than ranks

    Raises InputError if the machine has too few CPUs, or no GPU for per="gpu".
    """
    machine = on or topology()
    usable = len(machine.usable_cpus)
    if ranks < 1:
        raise InputError(f"cannot plan {ranks} ranks; ask for 1 or more.")
    if per not in ("gpu", "node", "core"):
        raise InputError(f"cannot plan per '{per}'; there are: gpu, node, core.")
    if per == "gpu" and not machine.gpus:
        raise InputError("this process sees no GPU to plan for; use per='node' or per='core'.")
    if ranks > usable:
        raise InputError(f"{ranks} ranks are too many: this process may use {usable} CPUs; ask for {usable} or fewer.")
    if per == "core":
        return _plan_per_core(machine, ranks)
    by_node = _group_by_node(machine)
    if per == "node":
        return _place_ranks(machine, by_node, _deal_nodes(by_node, ranks), [None] * ranks)
    available = [machine.gpu(index) for index in gpus] or machine.gpus
    chosen = [available[rank % len(available)] for rank in range(ranks)]
    return _place_ranks(machine, by_node, _choose_nodes(by_node, chosen), [g.index for g in chosen])


def find_nearest_node(gpu: Gpu) -> int | None:
    """Return the node to which a GPU is attached; None if the firmware does not give it."""
    return gpu.node


def find_nearest_gpus(on: Topology, node: int) -> list[Gpu]:
    """Return all GPUs that have a known node, nearest to `node` first by the distance table, then by index."""
    distances = on.node(node).distances
    known = [g for g in on.gpus if g.node is not None]
    return sorted(known, key=lambda g: (distances.get(g.node if g.node is not None else -1, 255), g.index))


def _group_by_node(machine: Topology) -> CpusByNode:
    by_node: CpusByNode = {}
    for cpu in machine.cpus:
        if cpu.usable:
            by_node.setdefault(cpu.node, []).append(cpu.id)
    return by_node


def _deal_nodes(by_node: CpusByNode, ranks: int) -> list[int | None]:
    """The node of each rank, dealt round-robin; a node whose CPUs are all taken is skipped."""
    rounds = range(max(map(len, by_node.values())))
    return [node for k in rounds for node, cpus in by_node.items() if k < len(cpus)][:ranks]


def _choose_nodes(by_node: CpusByNode, gpus: Sequence[Gpu]) -> list[int | None]:
    """The node of each rank's GPU; a GPU without CPUs nearby, or of unknown node, gets the node with most free CPUs."""
    ranks_by_node = {node: sum(g.node == node for g in gpus if g.node is not None) for node in by_node}
    nodes: list[int | None] = []
    for gpu in gpus:
        if gpu.node is not None and gpu.node in by_node:
            nodes.append(gpu.node)
        else:
            nodes.append(_choose_emptiest([len(c) for c in by_node.values()], ranks_by_node.values(), by_node))
            ranks_by_node[nodes[-1]] += 1
    return nodes


def _place_ranks(
    machine: Topology, by_node: CpusByNode, nodes: Sequence[int | None], gpus: Sequence[int | None]
) -> list[Placement]:
    """Divide the CPUs of each node among its ranks."""
    shares = {node: _divide(machine, set(by_node[node]), nodes.count(node), node) for node in set(nodes)}
    return [
        Placement(node=node, cpus=shares[node].pop(0), memory="local", gpu=gpu)
        for node, gpu in zip(nodes, gpus, strict=True)
    ]


def _plan_per_core(machine: Topology, ranks: int) -> list[Placement]:
    cores = _list_cores(machine, machine.usable_cpus)
    # More ranks than cores: each rank gets one thread, the second thread of a core only after all first threads.
    layers = [cores] if ranks <= len(cores) else _split_layers(cores)
    units = [unit for layer in layers for unit in _spread(machine, layer)][:ranks]
    node_by_cpu = {c.id: c.node for c in machine.cpus}
    return [Placement(node=node_by_cpu[unit[0]], cpus=unit, memory="local") for unit in units]


def _spread(machine: Topology, units: Sequence[Core]) -> list[Core]:
    """Order `units` so that the first n of them, for every n, load all nodes and inside each its cache domains evenly.

    A node with twice the units gets twice the ranks; the same holds for the domains of a node.
    """
    domain_by_cpu = {cpu: i for i, domain in enumerate(machine.llc_domains()) for cpu in domain}
    node_by_cpu = {c.id: c.node for c in machine.cpus}
    nodes: dict[int | None, dict[int, list[Core]]] = {}
    for unit in units:
        nodes.setdefault(node_by_cpu[unit[0]], {}).setdefault(domain_by_cpu[unit[0]], []).append(unit)
    sizes = {node: sum(map(len, domains.values())) for node, domains in nodes.items()}
    node_counts = dict.fromkeys(nodes, 0)
    counts = {node: dict.fromkeys(domains, 0) for node, domains in nodes.items()}
    order: list[Core] = []
    for _ in units:
        node = _choose_emptiest(sizes.values(), node_counts.values(), nodes)
        domains = nodes[node]
        domain = _choose_emptiest(map(len, domains.values()), counts[node].values(), domains)
        order.append(domains[domain][counts[node][domain]])
        node_counts[node] += 1
        counts[node][domain] += 1
    return order


def _divide(machine: Topology, cpus: set[int], ranks: int, node: int | None) -> list[tuple[int, ...]]:
    """`ranks` disjoint CPU sets of nearly equal size, each inside as few cache domains as possible."""
    if ranks > len(cpus):
        raise InputError(
            f"{ranks} ranks are too many for node {node}, which has {len(cpus)} usable CPUs; ask for fewer."
        )
    domains = [_list_cores(machine, domain) for domain in machine.llc_domains() if cpus.issuperset(domain)]
    if ranks <= len(domains):
        # Each rank gets complete domains, the largest first, to the rank with the fewest cores.
        shares: list[list[Core]] = [[] for _ in range(ranks)]
        for domain in sorted(domains, key=len, reverse=True):
            min(shares, key=len).extend(domain)
    else:
        split = ranks > sum(map(len, domains))  # more ranks than cores
        sizes = [sum(map(len, d)) if split else len(d) for d in domains]
        counts = [0] * len(domains)  # ranks of each domain
        for _ in range(ranks):
            counts[_choose_emptiest(sizes, counts, range(len(domains)))] += 1
        shares = [share for domain, count in zip(domains, counts, strict=True) for share in _cut(domain, count)]
    return sorted(tuple(sorted(cpu for core in share for cpu in core)) for share in shares)


def _cut(cores: list[Core], ranks: int) -> list[list[Core]]:
    """Cut the cores of a domain into one part per rank; if there are too few cores, split some into threads."""
    if ranks <= len(cores):
        return _slice_evenly(cores, ranks)
    first_cpus = {cpu for (cpu,) in _split_threads(cores)[:ranks]}  # the first CPU of each rank
    return [[piece] for core in cores for piece in _slice_evenly(core, len(first_cpus.intersection(core)))]


def _slice_evenly(items: Slice, count: int) -> list[Slice]:
    return [items[len(items) * i // count : len(items) * (i + 1) // count] for i in range(count)]


def _choose_emptiest(sizes: Iterable[int], counts: Iterable[int], names: Iterable[Name]) -> Name:
    """The name with the largest size per rank after one more rank is added; the first of equals."""
    return max(zip(sizes, counts, names, strict=True), key=lambda entry: entry[0] / (entry[1] + 1))[2]


def _list_cores(machine: Topology, cpus: Sequence[int]) -> list[Core]:
    """The usable ones of `cpus`, grouped by core."""
    selected = set(cpus)
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in machine.cpus:
        if cpu.id in selected and cpu.usable:
            cores.setdefault((cpu.package, cpu.core), []).append(cpu.id)
    return [tuple(sorted(core)) for core in cores.values()]


def _split_layers(cores: list[Core]) -> list[list[Core]]:
    """Each CPU alone, in layers: the first thread of every core, then the second threads, and so on."""
    return [[(core[k],) for core in cores if k < len(core)] for k in range(max(map(len, cores)))]


def _split_threads(cores: list[Core]) -> list[Core]:
    return [thread for layer in _split_layers(cores) for thread in layer]
