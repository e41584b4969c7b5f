"""Which points may run at the same time: no two on one GPU, no two on the same CPUs, unless contention is the question.

With several workers each node's CPUs are divided into equal slots once, for the entire experiment: every point of a
kind then has the same number of CPUs, whatever runs beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.lab.experiment.point import Point
from ridgeline.machine import Topology, plan


@dataclass(frozen=True)
class Slot:
    """CPUs of a node, and GPUs, for one running point."""

    node: int
    cpus: tuple[int, ...]
    gpus: tuple[int, ...]


class Slots:
    """The slots of a machine, and which of them are in use."""

    def __init__(self, points: Sequence[Point], machine: Topology, workers: int, contention: bool = False) -> None:
        if workers < 1:
            raise InputError(f"experiment.max_workers is {workers}; give 1 or more.")
        self._workers, self._contention = workers, contention
        # Points that use a GPU cannot outnumber the GPUs.
        concurrent = count_concurrent(points, machine, workers) if all(p.gpus for p in points) else workers
        self._cpus_by_node = _divide_cpus(machine, {p.cpu_node for p in points}, 1 if contention else concurrent)
        self._used: list[Slot] = []

    def take(self, point: Point) -> Slot | None:
        """Return a slot for this point, or None while it has to wait."""
        if len(self._used) >= self._workers:
            return None
        choices = self._cpus_by_node[point.cpu_node]
        if self._contention:
            return self._use(Slot(point.cpu_node, choices[0], point.gpus))
        if any(set(s.gpus) & set(point.gpus) for s in self._used):
            return None
        busy = {(s.node, s.cpus) for s in self._used}
        free = next((cpus for cpus in choices if (point.cpu_node, cpus) not in busy), None)
        return None if free is None else self._use(Slot(point.cpu_node, free, point.gpus))

    def release(self, slot: Slot) -> None:
        """Make a slot free again."""
        self._used.remove(slot)

    def _use(self, slot: Slot) -> Slot:
        self._used.append(slot)
        return slot


def count_concurrent(points: Sequence[Point], machine: Topology, workers: int) -> int:
    """Return how many points can run at once: at most one per GPU, or per CPU where no point has a GPU."""
    gpus = {gpu for point in points for gpu in point.gpus}
    return max(1, min(workers, len(gpus) or len(machine.usable_cpus)))


def _divide_cpus(machine: Topology, nodes: Iterable[int], concurrent: int) -> dict[int, list[tuple[int, ...]]]:
    """Return each node's usable CPUs in `concurrent` parts, or in as many parts as it has CPUs."""
    usable = set(machine.usable_cpus)
    parts_by_node: dict[int, list[tuple[int, ...]]] = {}
    cpus_by_node = {n.id: sorted(usable & set(n.cpus)) for n in machine.nodes if usable & set(n.cpus)}
    for node in nodes:
        parts = min(concurrent, len(cpus_by_node[node]))
        if parts == 1:
            parts_by_node[node] = [tuple(cpus_by_node[node])]
            continue
        # The plan deals ranks to the nodes in turn and skips full nodes: this many ranks give this node its parts.
        ranks = sum(min(parts, len(cpus)) for cpus in cpus_by_node.values())
        parts_by_node[node] = [p.cpus for p in plan(machine, ranks, "node") if p.node == node and p.cpus]
    return parts_by_node
