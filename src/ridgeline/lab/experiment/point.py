"""A point: one thing to measure, and where it is to stand.

The lab knows that a point has parameters and a subject that measures them; what they mean, the subject knows.
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
    """`subject` is "package.module:function", called in the point's own process with an `Order`'s contents."""

    experiment: str
    name: str  # of what is measured, for people: the model
    subject: str
    params: Mapping[str, Scalar]
    node: int  # whose memory holds what is staged
    cpu_node: int  # whose CPUs run it; with a GPU the same as `node`
    gpu: int | None = None
    timeout_s: float = 300.0
    work: Work = field(default_factory=lambda: Work(0))  # of one step, as far as it is known beforehand
    facts: Mapping[str, Any] = field(default_factory=dict)  # what follows from the parameters, for the rows
    staged_bytes: int = 0  # host memory it asks for on `node`

    @property
    def device(self) -> str:
        return "cpu" if self.gpu is None else "cuda"

    @property
    def case(self) -> Case:
        return Case(self.params, self.device)

    @property
    def key(self) -> str:
        """Points with one key would measure the same thing in the same place."""
        parts = [self.experiment, self.subject, dict(self.params), self.gpu, self.node, self.cpu_node]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def run_id(self) -> str:
        """What its rows and files are called: readable, and its own."""
        name = re.sub(r"[^A-Za-z0-9_.]+", "-", self.name).strip("-.")[:40] or "point"
        return f"{name}-{self.stand}-{self.key[:8]}"

    @property
    def stand(self) -> str:
        """The place in a word: gpu0-node1, cpu0-node1."""
        return f"{f'cpu{self.cpu_node}' if self.gpu is None else f'gpu{self.gpu}'}-node{self.node}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "params": dict(self.params), "device": self.device, "run_id": self.run_id}


def refuse_absent(point: Point, here: Topology) -> None:
    """A GPU, a node or memory that this machine does not have, told with what it has."""
    if point.gpu is not None:
        here.gpu(point.gpu)
    for node in (point.node, point.cpu_node):
        here.node(node)
    if not set(here.node(point.cpu_node).cpus) & set(here.usable_cpus):
        with_cpus = [str(n.id) for n in here.nodes if set(n.cpus) & set(here.usable_cpus)]
        raise InputError(f"node {point.cpu_node} has no CPU to run on; nodes with some: {', '.join(with_cpus)}.")
    if point.node not in here.memory_nodes:
        known = ", ".join(map(str, here.memory_nodes))
        raise InputError(f"node {point.node} has no memory for this process; nodes with some: {known}.")
    room = min(here.node(point.node).memory_bytes, here.limits.memory_bytes or here.node(point.node).memory_bytes)
    if point.staged_bytes > room:
        raise InputError(
            f"{point.name}: a pool of {point.staged_bytes >> 20:,} MB is larger than node {point.node}, "
            f"which has {room >> 20:,} MB; ask for less."
        )


def distance(point: Point, here: Topology) -> int | None:
    """From the memory to what computes, by the firmware's table (10 is at home); None where it does not say."""
    home = point.cpu_node if point.gpu is None else here.gpu(point.gpu).node
    return None if home is None else here.node(point.node).distances.get(home)
