"""Who may run at the same time: no two points on one GPU, none on another's CPUs, unless contention is the question.

With several workers each node's CPUs are cut into equal seats once, for the whole experiment: every point of a kind
has as many, whoever runs beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.lab.experiment.point import Point
from ridgeline.machine import Topology, plan


@dataclass(frozen=True)
class Seat:
    node: int
    cpus: tuple[int, ...]
    gpu: int | None


class Hall:
    """The seats of a machine, and who sits."""

    def __init__(self, points: Sequence[Point], here: Topology, workers: int, contention: bool = False) -> None:
        if workers < 1:
            raise InputError(f"experiment.max_workers is {workers}; give 1 or more.")
        self._workers, self._contention = workers, contention
        gpus = {p.gpu for p in points if p.gpu is not None}
        # Points that have a GPU can be no more at once than there are GPUs.
        guests = min(workers, max(1, len(gpus)) if all(p.gpu is not None for p in points) else workers)
        self._seats = _cut(here, {p.cpu_node for p in points}, 1 if contention else guests)
        self._taken: list[Seat] = []

    def take(self, point: Point) -> Seat | None:
        """A seat for this point, or None while it has to wait."""
        if len(self._taken) >= self._workers:
            return None
        seats = self._seats[point.cpu_node]
        if self._contention:
            return self._sit(Seat(point.cpu_node, seats[0], point.gpu))
        if point.gpu is not None and any(s.gpu == point.gpu for s in self._taken):
            return None
        busy = {(s.node, s.cpus) for s in self._taken}
        free = next((cpus for cpus in seats if (point.cpu_node, cpus) not in busy), None)
        return None if free is None else self._sit(Seat(point.cpu_node, free, point.gpu))

    def leave(self, seat: Seat) -> None:
        self._taken.remove(seat)

    def _sit(self, seat: Seat) -> Seat:
        self._taken.append(seat)
        return seat


def _cut(here: Topology, nodes: Iterable[int], guests: int) -> dict[int, list[tuple[int, ...]]]:
    """Each node's usable CPUs in `guests` parts, or in as many as it has CPUs."""
    usable = set(here.usable_cpus)
    seats: dict[int, list[tuple[int, ...]]] = {}
    rooms = {n.id: sorted(usable & set(n.cpus)) for n in here.nodes if usable & set(n.cpus)}
    for node in nodes:
        parts = min(guests, len(rooms[node]))
        if parts == 1:
            seats[node] = [tuple(rooms[node])]
            continue
        # Ranks go round the nodes, and one that is full is passed over: so many that this node has its parts.
        ranks = sum(min(parts, len(cpus)) for cpus in rooms.values())
        seats[node] = [p.cpus for p in plan(here, ranks, "node") if p.node == node and p.cpus]
    return seats
