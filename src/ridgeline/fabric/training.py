"""The prediction of a training step: compute, and gradients summed in buckets during the backward pass.

Buckets become ready evenly over the backward pass (two thirds of the compute), the last layers first, with one
all-reduce at a time. The step waits for the buckets that are left when the compute ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, unknown
from ridgeline.fabric.networks import Network, load_network
from ridgeline.fabric.prediction import predict
from ridgeline.fabric.schedules import schedule

BACKWARD = 2 / 3  # of the compute: two matrix products for each of the forward pass
BUCKET = 25 << 20  # the default of DDP


@dataclass(frozen=True)
class Model:
    """One data-parallel replica: the bytes that each rank sums per step, and its compute time.

    A model too large for one rank has `replica` ranks. Those sum `inside_bytes` among `inside_ranks` ranks of a node
    `inside_calls` times per step (tensor parallelism), which no compute hides.
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

    The compute time is calculated: 8 flops per parameter and token (activations are computed twice) at half of the 312
    Tflop/s of an A100, plus filling and draining of the stages, 7 of 1,536 turns. Six sums per layer and sequence.
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


# Parameters as published, gradients in float32 (ResNet) and float16. The compute time comes from the one-node rows of
# the published tables (without a given batch: 256 images), so that only the communication is predicted.
MODELS = {
    "resnet-50": Model(25_557_032 * 4, 256 * 8 / 12_456, 256, "images"),
    "bert-large": Model(334_000_000 * 2, 8 * 8 / 89.2, 8, "samples"),
    "vit-large": Model(304_326_632 * 2, 256 * 8 / 8_234, 256, "images"),
    "gpt-1.5b": Model(1_558_000_000 * 2, 0.8, 8, "samples"),
    "gpt-175b": _gpt_175b(),
}


@dataclass(frozen=True)
class TrainingStep:
    """The predicted step of a data-parallel training."""

    model: str
    ranks: int
    nodes: int
    algorithm: str
    step_s: float
    compute_s: float
    comm_s: float  # of all buckets, one after the other, and of the sums inside a replica
    exposed_s: float  # the part that the backward pass does not hide
    efficiency: float  # items per second and rank, relative to a replica without communication
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
    """Predict one step of data-parallel training, with the fastest of `algorithms`.

    model         a name in `MODELS`, or a Model
    network       the name of a preset, a YAML file, a mapping, or a Network
    scaling       "weak": each replica computes as much as one alone; "strong": all share the work of one node (of one
                  replica, if that is larger)
    bucket_bytes  size of a gradient bucket (default: 25 MiB)

    Raises InputError for unknown names and numbers of ranks that do not fit the model.
    """
    if isinstance(model, str) and model not in MODELS:
        raise unknown("model", model, MODELS)
    if scaling not in ("weak", "strong"):
        raise InputError(f"scaling is '{scaling}'; there are: weak, strong.")
    if ranks < 1 or bucket_bytes < 1:
        raise InputError(f"{ranks} ranks and buckets of {bucket_bytes} bytes; give 1 or more.")
    name, replica = (model, MODELS[model]) if isinstance(model, str) else ("own", model)
    if ranks % replica.replica:
        raise InputError(f"{ranks} ranks of {name}: one replica takes {replica.replica}; give a multiple of that.")
    loaded = load_network(network)
    per_node = min(loaded.per_node or ranks, ranks)
    nodes = -(-ranks // per_node)
    replicas = ranks // replica.replica
    share = (nodes if replica.replica == 1 else replicas) if scaling == "strong" else 1
    compute = replica.compute_s / share
    buckets = -(-replica.gradient_bytes // bucket_bytes)
    between = loaded if replica.replica == 1 else _take_one_lane(loaded)
    best, bucket_s = _find_fastest(replicas, between, replica.gradient_bytes // buckets, algorithms)
    inside_s = _find_fastest(replica.inside_ranks, loaded, replica.inside_bytes, algorithms)[1]
    inside = inside_s * replica.inside_calls / share
    clock = compute * (1 - BACKWARD)
    for k in range(buckets):
        ready = compute * (1 - BACKWARD) + compute * BACKWARD * (k + 1) / buckets
        clock = max(clock, ready) + bucket_s
    step = max(clock, compute) + inside
    items = replica.items * replicas / share
    exposed = step - compute
    rest = (compute, bucket_s * buckets + inside, exposed, compute / step, exposed / step, items / step)
    return TrainingStep(name, ranks, nodes, best, step, *rest)


def _find_fastest(ranks: int, network: Network, nbytes: int, algorithms: Sequence[str]) -> tuple[str, float]:
    """The fastest algorithm for a sum of `nbytes` among `ranks`, and its seconds."""
    if ranks == 1:
        return "none", 0.0
    plans = {a: schedule("all_reduce", a, ranks=ranks, network=network) for a in algorithms}
    times = {a: predict(plan, network=network, nbytes=nbytes).seconds for a, plan in plans.items()}
    best = min(times, key=lambda a: times[a])
    return best, times[best]


def _take_one_lane(network: Network) -> Network:
    """The network for one rank of each node, while the other ranks of the node do the same."""
    if network.per_node is None:
        return network
    return replace(network, per_node=1, nic=network.nic * network.adapters / network.per_node, adapters=1)
