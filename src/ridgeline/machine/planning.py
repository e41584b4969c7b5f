"""One placement per rank: near its GPU, no CPU given twice, spread evenly over cache domains.

ridgeline machine --plan 8
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from ridgeline.errors import InputError
from ridgeline.machine.hardware import Gpu, Topology, topology
from ridgeline.machine.placement import Placement

Core = tuple[int, ...]  # the usable CPUs of one core
Rooms = dict[int | None, list[int]]  # usable CPUs by node; None: CPUs that no node claims
Name = TypeVar("Name")
Slice = TypeVar("Slice", list[Core], Core)


def plan(on: Topology | None = None, ranks: int = 1, per: str = "gpu", gpus: Sequence[int] = ()) -> list[Placement]:
    """Placements for `ranks` processes on one machine.

    per="gpu": rank i drives GPU i mod n, or the i-th of `gpus` where they are named (go round if there are fewer),
    and stands on that GPU's node. per="node": ranks go round the nodes.
    per="core": one core each, spread over all cache domains first.
    """
    here = on or topology()
    usable = len(here.usable_cpus)
    if ranks < 1:
        raise InputError(f"cannot plan {ranks} ranks; ask for 1 or more.")
    if per not in ("gpu", "node", "core"):
        raise InputError(f"cannot plan per '{per}'; there are: gpu, node, core.")
    if per == "gpu" and not here.gpus:
        raise InputError("this process sees no GPU to plan for; use per='node' or per='core'.")
    if ranks > usable:
        raise InputError(f"{ranks} ranks asked for, this process may use {usable} CPUs; ask for {usable} or fewer.")
    if per == "core":
        return _per_core(here, ranks)
    rooms = _rooms(here)
    if per == "node":
        return _share_out(here, rooms, _round(rooms, ranks), [None] * ranks)
    among = [here.gpu(index) for index in gpus] or here.gpus
    driven = [among[rank % len(among)] for rank in range(ranks)]
    return _share_out(here, rooms, _near(rooms, driven), [g.index for g in driven])


def nearest_node(gpu: Gpu) -> int | None:
    """The node a GPU hangs from; None when the firmware does not say."""
    return gpu.node


def nearest_gpus(on: Topology, node: int) -> list[Gpu]:
    """All GPUs whose node is known, nearest first by the distance table, then by index."""
    distances = on.node(node).distances
    known = [g for g in on.gpus if g.node is not None]
    return sorted(known, key=lambda g: (distances.get(g.node if g.node is not None else -1, 255), g.index))


def _rooms(here: Topology) -> Rooms:
    rooms: Rooms = {}
    for cpu in here.cpus:
        if cpu.usable:
            rooms.setdefault(cpu.node, []).append(cpu.id)
    return rooms


def _round(rooms: Rooms, ranks: int) -> list[int | None]:
    """Homes dealt round and round the rooms; one that is full is passed over."""
    turns = range(max(map(len, rooms.values())))
    return [home for turn in turns for home, cpus in rooms.items() if turn < len(cpus)][:ranks]


def _near(rooms: Rooms, gpus: Sequence[Gpu]) -> list[int | None]:
    """The room of each rank's GPU; a GPU without one (node unknown, or no CPU there) is served where most is free."""
    load = {home: sum(g.node == home for g in gpus if g.node is not None) for home in rooms}
    homes: list[int | None] = []
    for gpu in gpus:
        if gpu.node is not None and gpu.node in rooms:
            homes.append(gpu.node)
        else:
            homes.append(_roomiest([len(c) for c in rooms.values()], load.values(), rooms))
            load[homes[-1]] += 1
    return homes


def _share_out(
    here: Topology, rooms: Rooms, homes: Sequence[int | None], gpus: Sequence[int | None]
) -> list[Placement]:
    """Divide each room's CPUs among the ranks that live there."""
    shares = {home: _divide(here, set(rooms[home]), homes.count(home), home) for home in set(homes)}
    return [
        Placement(node=home, cpus=shares[home].pop(0), memory="local", gpu=gpu)
        for home, gpu in zip(homes, gpus, strict=True)
    ]


def _per_core(here: Topology, ranks: int) -> list[Placement]:
    domains = [_cores(here, domain) for domain in here.llc_domains()]
    if sum(map(len, domains)) < ranks:
        domains = [_threads(cores) for cores in domains]
    owner = {c.id: c.node for c in here.cpus}
    # Round and round the domains: the first ranks get the emptiest caches, neighbours differ by one.
    dealt = [units.pop(0) for _ in range(max(map(len, domains))) for units in domains if units][:ranks]
    return [Placement(node=owner[unit[0]], cpus=unit, memory="local") for unit in dealt]


def _divide(here: Topology, cpus: set[int], ranks: int, node: int | None) -> list[tuple[int, ...]]:
    """`ranks` disjoint CPU sets of nearly equal size, each inside as few cache domains as can be."""
    if ranks > len(cpus):
        raise InputError(f"{ranks} ranks asked for on node {node}, which has {len(cpus)} usable CPUs; ask for fewer.")
    domains = [_cores(here, domain) for domain in here.llc_domains() if cpus.issuperset(domain)]
    if ranks <= len(domains):
        # Whole domains to each rank, the largest first to whoever has least.
        shares: list[list[Core]] = [[] for _ in range(ranks)]
        for domain in sorted(domains, key=len, reverse=True):
            min(shares, key=len).extend(domain)
    else:
        split = ranks > sum(map(len, domains))  # more ranks than cores
        sizes = [sum(map(len, d)) if split else len(d) for d in domains]
        guests = [0] * len(domains)
        for _ in range(ranks):
            guests[_roomiest(sizes, guests, range(len(domains)))] += 1
        shares = [share for domain, count in zip(domains, guests, strict=True) for share in _cut(domain, count)]
    return sorted(tuple(sorted(cpu for core in share for cpu in core)) for share in shares)


def _cut(cores: list[Core], guests: int) -> list[list[Core]]:
    """The cores of a domain in `guests` parts; where they are too few, some are split into threads."""
    if guests <= len(cores):
        return _slices(cores, guests)
    seats = {cpu for (cpu,) in _threads(cores)[:guests]}
    return [[piece] for core in cores for piece in _slices(core, len(seats.intersection(core)))]


def _slices(things: Slice, count: int) -> list[Slice]:
    return [things[len(things) * i // count : len(things) * (i + 1) // count] for i in range(count)]


def _roomiest(sizes: Iterable[int], guests: Iterable[int], names: Iterable[Name]) -> Name:
    """Who would have most per guest with one more; the first of equals. Never one that is full unless all are."""
    return max(zip(sizes, guests, names, strict=True), key=lambda room: room[0] / (room[1] + 1))[2]


def _cores(here: Topology, cpus: Sequence[int]) -> list[Core]:
    """The usable CPUs grouped by core."""
    wanted = set(cpus)
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in here.cpus:
        if cpu.id in wanted and cpu.usable:
            cores.setdefault((cpu.package, cpu.core), []).append(cpu.id)
    return [tuple(sorted(core)) for core in cores.values()]


def _threads(cores: list[Core]) -> list[Core]:
    """Each CPU by itself, the first of every core before the second of any."""
    return [(core[turn],) for turn in range(max(map(len, cores))) for core in cores if turn < len(core)]
