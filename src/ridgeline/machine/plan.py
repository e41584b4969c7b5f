"""One placement per rank: near its GPU, no CPU given twice, spread evenly over cache domains.

    ridgeline machine --plan 8
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.errors import InputError
from ridgeline.machine.placement import Placement
from ridgeline.machine.topology import Gpu, Topology, topology

Unit = tuple[int, ...]  # the CPUs of one core, or one CPU where cores must be split


def plan(on: Topology | None = None, ranks: int = 1, per: str = "gpu") -> list[Placement]:
    """Placements for `ranks` processes on one machine.

    per="gpu": rank i drives GPU i mod n and stands on that GPU's node. per="node": ranks go round the nodes.
    per="core": one core each, spread over all cache domains first.
    """
    here = on or topology()
    if ranks < 1:
        raise InputError(f"cannot plan {ranks} ranks; ask for 1 or more.")
    if per == "gpu":
        return _per_gpu(here, ranks)
    if per == "node":
        with_cpus = [n.id for n in here.nodes if set(n.cpus) & set(here.usable_cpus)]
        homes: list[int | None] = [with_cpus[rank % len(with_cpus)] for rank in range(ranks)]
        return _share_out(here, homes, [None] * ranks)
    if per == "core":
        return _per_core(here, ranks)
    raise InputError(f"cannot plan per '{per}'; there are: gpu, node, core.")


def nearest_node(gpu: Gpu) -> int | None:
    """The node a GPU hangs from; None when the firmware does not say."""
    return gpu.node


def nearest_gpus(on: Topology, node: int) -> list[Gpu]:
    """All GPUs whose node is known, nearest first by the distance table, then by index."""
    distances = on.node(node).distances
    known = [g for g in on.gpus if g.node is not None]
    return sorted(known, key=lambda g: (distances.get(g.node if g.node is not None else -1, 255), g.index))


def _per_gpu(here: Topology, ranks: int) -> list[Placement]:
    if not here.gpus:
        raise InputError("this process sees no GPU to plan for; use per='node' or per='core'.")
    gpus = [here.gpus[rank % len(here.gpus)] for rank in range(ranks)]
    usable = set(here.usable_cpus)
    # A GPU on a node without usable CPUs (or of unknown node) is served from anywhere.
    homes = [g.node if g.node is not None and set(here.node(g.node).cpus) & usable else None for g in gpus]
    return _share_out(here, homes, [g.index for g in gpus])


def _share_out(here: Topology, homes: Sequence[int | None], gpus: Sequence[int | None]) -> list[Placement]:
    """Divide each home's CPUs among the ranks that live there; the homeless share all nodes evenly."""
    with_cpus = [n.id for n in here.nodes if set(n.cpus) & set(here.usable_cpus)]
    load = {n: homes.count(n) for n in with_cpus}
    settled: list[int] = []
    for home in homes:
        if home is None:
            home = min(with_cpus, key=lambda n: (load[n] / max(1, len(here.node(n).cpus)), n))
            load[home] += 1
        settled.append(home)
    cpus: dict[int, list[Unit]] = {}
    for node in set(settled):
        cpus[node] = _divide(here, frozenset(here.node(node).cpus), settled.count(node), f"node {node}")
    return [
        Placement(node=home, cpus=cpus[home].pop(0), memory="local", gpu=gpu)
        for home, gpu in zip(settled, gpus, strict=True)
    ]


def _per_core(here: Topology, ranks: int) -> list[Placement]:
    domains = [_units(here, domain) for domain in here.llc_domains()]
    if sum(map(len, domains)) < ranks:
        domains = [[(cpu,) for cpu in domain] for domain in here.llc_domains()]
    total = sum(map(len, domains))
    if total < ranks:
        raise InputError(f"{ranks} ranks asked for, this process may use {total} CPUs; ask for {total} or fewer.")
    owner = {c.id: c.node for c in here.cpus}
    # Round and round the domains: the first ranks get the emptiest caches, neighbours differ by one.
    dealt = [units.pop(0) for _ in range(max(map(len, domains))) for units in domains if units][:ranks]
    return [Placement(node=owner[unit[0]], cpus=unit, memory="local") for unit in dealt]


def _divide(here: Topology, cpus: frozenset[int], ranks: int, place: str) -> list[Unit]:
    """`ranks` disjoint CPU sets of nearly equal size, each inside as few cache domains as can be."""
    domains = [tuple(c for c in d if c in cpus) for d in here.llc_domains()]
    units = [_units(here, d) for d in domains if d]
    if sum(map(len, units)) < ranks:
        units = [[(cpu,) for cpu in d] for d in domains if d]  # more ranks than cores: split hyper-threads
    total = sum(map(len, units))
    if total < ranks:
        raise InputError(f"{ranks} ranks asked for on {place}, which has {total} usable CPUs; ask for fewer.")
    if ranks <= len(units):
        # Whole domains to each rank, the largest first to whoever has least.
        hands: list[list[Unit]] = [[] for _ in range(ranks)]
        for domain in sorted(units, key=len, reverse=True):
            min(hands, key=len).extend(domain)
        shares = hands
    else:
        shares = []
        for domain, guests in zip(units, _guests([len(d) for d in units], ranks), strict=True):
            cuts = [len(domain) * i // guests for i in range(guests + 1)] if guests else []
            shares += [domain[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
    return sorted(tuple(sorted(cpu for unit in share for cpu in unit)) for share in shares)


def _guests(sizes: list[int], ranks: int) -> list[int]:
    """How many ranks each domain takes in: the next one goes where most cores per rank would remain."""
    guests = [0] * len(sizes)
    for _ in range(ranks):
        roomiest = max(range(len(sizes)), key=lambda i: (sizes[i] / (guests[i] + 1), -i))
        guests[roomiest] += 1
    return guests


def _units(here: Topology, cpus: Sequence[int]) -> list[Unit]:
    """The usable CPUs grouped by core."""
    wanted = set(cpus)
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in here.cpus:
        if cpu.id in wanted and cpu.usable:
            cores.setdefault((cpu.package, cpu.core), []).append(cpu.id)
    return [tuple(sorted(core)) for core in cores.values()]
