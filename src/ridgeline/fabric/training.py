"""A whole training step, predicted: compute, and gradients summed in buckets while the backward pass goes on.

Buckets become ready evenly over the backward pass (two thirds of the compute), the last ones first; one all-reduce at
a time. What is left when the compute ends is what the step waits for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, unknown
from ridgeline.fabric.networks import Network, network_of
from ridgeline.fabric.prediction import predict
from ridgeline.fabric.schedules import schedule

BACKWARD = 2 / 3  # of the compute: two products of matrices where the forward pass has one
BUCKET = 25 << 20  # what DDP uses


@dataclass(frozen=True)
class Model:
    """One data-parallel replica: what it sums per step, and how long it computes alone."""

    gradient_bytes: int
    compute_s: float
    items: int  # per rank and step
    unit: str


# Parameters as published, gradients in float32 (ResNet) and float16; compute from the one-node rows of the tables
# these predictions stand beside, so that only the communication is ours.
MODELS = {
    "resnet-50": Model(25_557_032 * 4, 256 * 8 / 12_456, 256, "images"),
    "bert-large": Model(334_000_000 * 2, 8 * 8 / 89.2, 8, "samples"),
    "gpt-1.5b": Model(1_558_000_000 * 2, 0.8, 8, "samples"),
}


@dataclass(frozen=True)
class TrainingStep:
    model: str
    ranks: int
    nodes: int
    algorithm: str
    step_s: float
    compute_s: float
    comm_s: float  # of all buckets, one after the other
    exposed_s: float  # of which nothing is hidden behind the backward pass
    efficiency: float  # items per second and rank, against one rank alone
    comm_share: float  # exposed, of the step
    items_per_s: float
    kind: str = "predicted"


def training_step(
    model: str | Model,
    *,
    ranks: int,
    network: str | Path | Mapping[str, Any] | Network = "dgx-a100",
    scaling: str = "weak",
    bucket_bytes: int = BUCKET,
    algorithms: Sequence[str] = ("ring", "tree", "rabenseifner", "hierarchical"),
) -> TrainingStep:
    """One step of data-parallel training, with the fastest of `algorithms`.

    scaling  "weak": every rank has as much to compute as one alone; "strong": the ranks of one node's work share it
    """
    if isinstance(model, str) and model not in MODELS:
        raise unknown("model", model, MODELS)
    if scaling not in ("weak", "strong"):
        raise InputError(f"scaling is '{scaling}'; there are: weak, strong.")
    if ranks < 1 or bucket_bytes < 1:
        raise InputError(f"{ranks} ranks and buckets of {bucket_bytes} bytes; give 1 or more.")
    name, it = (model, MODELS[model]) if isinstance(model, str) else ("own", model)
    on = network_of(network)
    per_node = min(on.per_node or ranks, ranks)
    nodes = -(-ranks // per_node)
    compute = it.compute_s / (nodes if scaling == "strong" else 1)
    buckets = -(-it.gradient_bytes // bucket_bytes)
    size = it.gradient_bytes // buckets
    best, each = "none", 0.0
    if ranks > 1:
        over = nodes if ranks % nodes == 0 else None
        made = {a: schedule("all_reduce", a, ranks=ranks, nodes=over) for a in algorithms}
        times = {a: predict(s, network=on, nbytes=size).seconds for a, s in made.items()}
        best = min(times, key=lambda a: times[a])
        each = times[best]
    clock = compute * (1 - BACKWARD)
    for k in range(buckets):
        ready = compute * (1 - BACKWARD) + compute * BACKWARD * (k + 1) / buckets
        clock = max(clock, ready) + each
    step = max(clock, compute)
    items = it.items * ranks / (nodes if scaling == "strong" else 1)
    late = step - compute
    rest = (compute, each * buckets, late, compute / step, late / step, items / step)
    return TrainingStep(name, ranks, nodes, best, step, *rest)
