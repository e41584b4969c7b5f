"""A whole training step, predicted: compute, and gradients summed in buckets while the backward pass goes on.

Buckets become ready evenly over the backward pass (two thirds of the compute), the last ones first; one all-reduce at
a time. What is left when the compute ends is what the step waits for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    """One data-parallel replica: what each of its ranks sums per step, and how long it computes.

    A model too large for one rank has `replica` ranks. Those sum `inside_bytes` among `inside_ranks` neighbours of a
    node `inside_calls` times per step (tensor parallelism), with nothing to hide it behind.
    """

    gradient_bytes: int  # of one rank
    compute_s: float
    items: int  # per replica and step
    unit: str
    replica: int = 1
    inside_ranks: int = 1
    inside_calls: int = 0
    inside_bytes: int = 0


def _gpt_175b() -> Model:
    """GPT-3 (96 layers of 12,288, sequences of 2,048): 8 ranks a layer, 8 stages, steps of 1,536 sequences.

    Compute is arithmetic, no table's: 8 flops per parameter and token (activations computed twice) at half of an A100's
    312 Tflop/s, and the stages' filling and draining, 7 of 1,536 turns. Six sums per layer and sequence among 8 ranks.
    """
    parameters, layers, width, length, sequences, tensor, stages = 174_591_683_584, 96, 12_288, 2_048, 1_536, 8, 8
    flops = 8 * parameters * sequences * length / (tensor * stages)
    return Model(
        gradient_bytes=parameters * 2 // (tensor * stages),
        compute_s=flops / (0.5 * 312e12) * (1 + (stages - 1) / sequences),
        items=sequences * length,
        unit="tokens",
        replica=tensor * stages,
        inside_ranks=tensor,
        inside_calls=6 * layers // stages * sequences,
        inside_bytes=length * width * 2,
    )


# Parameters as published, gradients in float32 (ResNet) and float16; compute from the one-node rows of the tables
# these predictions stand beside (where they name no batch: 256 images), so that only the communication is ours.
MODELS = {
    "resnet-50": Model(25_557_032 * 4, 256 * 8 / 12_456, 256, "images"),
    "bert-large": Model(334_000_000 * 2, 8 * 8 / 89.2, 8, "samples"),
    "vit-large": Model(304_326_632 * 2, 256 * 8 / 8_234, 256, "images"),
    "gpt-1.5b": Model(1_558_000_000 * 2, 0.8, 8, "samples"),
    "gpt-175b": _gpt_175b(),
}


@dataclass(frozen=True)
class TrainingStep:
    model: str
    ranks: int
    nodes: int
    algorithm: str
    step_s: float
    compute_s: float
    comm_s: float  # of all buckets, one after the other, and of sums inside a replica
    exposed_s: float  # of which nothing is hidden behind the backward pass
    efficiency: float  # items per second and rank, against a replica that has nothing to tell
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

    scaling  "weak": every replica has as much to compute as one alone; "strong": the work of one node (of one
             replica, where that is larger) is shared by all
    """
    if isinstance(model, str) and model not in MODELS:
        raise unknown("model", model, MODELS)
    if scaling not in ("weak", "strong"):
        raise InputError(f"scaling is '{scaling}'; there are: weak, strong.")
    if ranks < 1 or bucket_bytes < 1:
        raise InputError(f"{ranks} ranks and buckets of {bucket_bytes} bytes; give 1 or more.")
    name, it = (model, MODELS[model]) if isinstance(model, str) else ("own", model)
    if ranks % it.replica:
        raise InputError(f"{ranks} ranks of {name}: one replica takes {it.replica}; give a multiple of that.")
    on = network_of(network)
    per_node = min(on.per_node or ranks, ranks)
    nodes = -(-ranks // per_node)
    replicas = ranks // it.replica
    share = (nodes if it.replica == 1 else replicas) if scaling == "strong" else 1
    compute = it.compute_s / share
    buckets = -(-it.gradient_bytes // bucket_bytes)
    best, each = _fastest(replicas, on if it.replica == 1 else _one_lane(on), it.gradient_bytes // buckets, algorithms)
    inside = _fastest(it.inside_ranks, on, it.inside_bytes, algorithms)[1] * it.inside_calls / share
    clock = compute * (1 - BACKWARD)
    for k in range(buckets):
        ready = compute * (1 - BACKWARD) + compute * BACKWARD * (k + 1) / buckets
        clock = max(clock, ready) + each
    step = max(clock, compute) + inside
    items = it.items * replicas / share
    late = step - compute
    rest = (compute, each * buckets + inside, late, compute / step, late / step, items / step)
    return TrainingStep(name, ranks, nodes, best, step, *rest)


def _fastest(ranks: int, on: Network, nbytes: int, algorithms: Sequence[str]) -> tuple[str, float]:
    """The algorithm that sums so many bytes among so many ranks soonest, and its seconds."""
    if ranks == 1:
        return "none", 0.0
    nodes = -(-ranks // min(on.per_node or ranks, ranks))
    over = nodes if ranks % nodes == 0 else None
    made = {a: schedule("all_reduce", a, ranks=ranks, nodes=over) for a in algorithms}
    times = {a: predict(s, network=on, nbytes=nbytes).seconds for a, s in made.items()}
    best = min(times, key=lambda a: times[a])
    return best, times[best]


def _one_lane(on: Network) -> Network:
    """The network as one rank of every node sees it, while its neighbours do the same with their like elsewhere."""
    if on.per_node is None:
        return on
    return replace(on, per_node=1, nic=on.nic * on.adapters / on.per_node, adapters=1)
