"""A point: one thing to measure, and its placement.

The lab knows that a point has parameters and a subject that measures them. Only the subject knows their meaning.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ridgeline.errors import InputError
from ridgeline.lab.workload import Case, Scalar, Work
from ridgeline.machine import Topology


@dataclass(frozen=True)
class Point:
    """One thing to measure.

    experiment    name of the experiment
    name          of what is measured, for people: the model
    subject       "package.module:function", called in the point's own process with a `PointRequest`
    params        parameters for the subject
    node          NUMA node of the staging memory
    cpu_node      NUMA node of the CPUs; with a GPU the same as `node`
    gpu           index of the GPU; None: the CPUs compute
    partners      indices of the GPUs that work together with `gpu`
    timeout_s     from the start of the process
    work          of one step, as far as it is known beforehand
    facts         what follows from the parameters, for the rows
    staged_bytes  host memory that it needs on `node`
    """

    experiment: str
    name: str
    subject: str
    params: Mapping[str, Scalar]
    node: int
    cpu_node: int
    gpu: int | None = None
    timeout_s: float = 300.0
    work: Work = field(default_factory=lambda: Work(0))
    facts: Mapping[str, Any] = field(default_factory=dict)
    staged_bytes: int = 0
    partners: tuple[int, ...] = ()

    @property
    def gpus(self) -> tuple[int, ...]:
        """The indices of all its GPUs."""
        return () if self.gpu is None else (self.gpu, *self.partners)

    @property
    def device(self) -> str:
        """The kind of device: "cpu" or "cuda"."""
        return "cpu" if self.gpu is None else "cuda"

    @property
    def device_name(self) -> str:
        """The device with its index: "cpu", "cuda:1"."""
        return "cpu" if self.gpu is None else f"cuda:{self.gpu}"

    @property
    def case(self) -> Case:
        return Case(self.params, self.device)

    @property
    def key(self) -> str:
        """Identifies the measurement: points with one key measure the same thing in the same place."""
        parts: list[object] = [self.experiment, self.subject, dict(self.params), self.gpu, self.node, self.cpu_node]
        parts += [self.partners] if self.partners else []
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def run_id(self) -> str:
        """The readable, unique name of its row and files."""
        name = re.sub(r"[^A-Za-z0-9_.]+", "-", self.name).strip("-.")[:40] or "point"
        return f"{name}-{self.placement}-{self.key[:8]}"

    @property
    def placement(self) -> str:
        """The placement in a word: gpu0-node1, gpu0+1-node0, cpu0-node1."""
        processor = f"gpu{'+'.join(map(str, self.gpus))}" if self.gpus else f"cpu{self.cpu_node}"
        return f"{processor}-node{self.node}"

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON data, with the device and the run ID."""
        return {**asdict(self), "params": dict(self.params), "device": self.device, "run_id": self.run_id}


def check_available(point: Point, machine: Topology) -> None:
    """Raise InputError if the machine lacks the point's GPU, node, CPUs or memory; the message lists what it has."""
    for gpu in point.gpus:
        machine.gpu(gpu)
    for node in (point.node, point.cpu_node):
        machine.node(node)
    usable = set(machine.usable_cpus)
    if not set(machine.node(point.cpu_node).cpus) & usable:
        with_cpus = [str(n.id) for n in machine.nodes if set(n.cpus) & usable]
        raise InputError(f"node {point.cpu_node} has no CPU to run on; nodes with some: {', '.join(with_cpus)}.")
    if point.node not in machine.memory_nodes:
        known = ", ".join(map(str, machine.memory_nodes))
        raise InputError(f"node {point.node} has no memory for this process; nodes with some: {known}.")
    node_bytes = machine.node(point.node).memory_bytes
    available = min(node_bytes, machine.limits.memory_bytes or node_bytes)
    if point.staged_bytes > available:
        raise InputError(
            f"{point.name}: a pool of {point.staged_bytes >> 20:,} MB is larger than node {point.node}, "
            f"which has {available >> 20:,} MB; ask for less."
        )


def get_distance(point: Point, machine: Topology) -> int | None:
    """Return the firmware's distance from the memory to what computes (10 is local); None where it is unknown.

    Of several GPUs, the farthest counts.
    """
    homes = [machine.gpu(gpu).node for gpu in point.gpus] or [point.cpu_node]
    distances = [None if home is None else machine.node(point.node).distances.get(home) for home in homes]
    known = [distance for distance in distances if distance is not None]
    return max(known) if len(known) == len(homes) else None
