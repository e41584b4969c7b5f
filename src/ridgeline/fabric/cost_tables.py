"""The tables that networks for AI are sold by, each predicted from one model of the network: none is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.fabric.networks import Network, network_of
from ridgeline.fabric.prediction import predict
from ridgeline.fabric.schedules import schedule
from ridgeline.fabric.training import MODELS, training_step

SIZES = tuple(1 << k for k in (10, 14, 18, 22, 26, 30))
NODES = (1, 2, 4, 8, 16, 32, 64)
COLLECTIVES = (
    ("all_reduce", "ring"),
    ("all_reduce", "tree"),
    ("all_reduce", "hierarchical"),
    ("all_gather", "recursive_doubling"),
    ("broadcast", "tree"),
)


@dataclass(frozen=True)
class Predicted:
    """A table: its title, the names of its columns, its rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    kind: str = "predicted"


def tables(network: str | Path | Mapping[str, Any] | Network = "dgx-a100") -> list[Predicted]:
    """Collectives over 8 nodes; every model to 64 nodes; strong and weak scaling of BERT-Large to 64 nodes."""
    on = network_of(network)
    found = [_collective(op, algorithm, on) for op, algorithm in COLLECTIVES]
    found += [_scaling(name, "weak", on) for name in MODELS]
    return [*found, _scaling("bert-large", "strong", on)]


def _collective(op: str, algorithm: str, on: Network) -> Predicted:
    ranks = 8 * (on.per_node or 1)
    made = schedule(op, algorithm, ranks=ranks, nodes=8)
    times = [predict(made, network=on, nbytes=n) for n in SIZES]
    rows = tuple((p.nbytes, p.seconds, p.algbw / 1e9, p.busbw / 1e9, p.busiest_link) for p in times)
    columns = ("bytes", "seconds", "algbw GB/s", "busbw GB/s", "busiest link")
    return Predicted(f"{op} by {algorithm}, 8 nodes ({ranks} ranks) of {on.name}", columns, rows)


def _scaling(model: str, scaling: str, on: Network) -> Predicted:
    it, per_node = MODELS[model], on.per_node or 1
    ranks = [n * per_node for n in NODES if n * per_node % it.replica == 0]
    steps = [training_step(model, ranks=r, network=on, scaling=scaling) for r in ranks]
    columns = ("nodes", "ranks", f"{it.unit}/s", "efficiency", "comm share", "comm / compute", "seconds")
    rows = tuple(
        (s.nodes, s.ranks, s.items_per_s, s.efficiency, s.comm_share, s.comm_s / s.compute_s, s.step_s) for s in steps
    )
    return Predicted(f"{model}, {scaling} scaling on {on.name}", columns, rows)
