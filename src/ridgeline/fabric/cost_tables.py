"""The usual tables for networks of AI clusters, each predicted from one model of the network; nothing is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.fabric.networks import Network, load_network
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
class PredictedTable:
    """A table: its title, the names of its columns, its rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    kind: str = "predicted"


def make_tables(network: str | Path | Mapping[str, Any] | Network = "dgx-a100") -> list[PredictedTable]:
    """Return collectives over 8 nodes, every model up to 64 nodes, and strong and weak scaling of BERT-Large.

    network  the name of a preset, a YAML file, a mapping, or a Network
    """
    loaded = load_network(network)
    tables = [_make_collective_table(op, algorithm, loaded) for op, algorithm in COLLECTIVES]
    tables += [_make_scaling_table(name, "weak", loaded) for name in MODELS]
    return [*tables, _make_scaling_table("bert-large", "strong", loaded)]


def _make_collective_table(op: str, algorithm: str, network: Network) -> PredictedTable:
    ranks = 8 * (network.per_node or 1)
    plan = schedule(op, algorithm, ranks=ranks, network=network)
    times = [predict(plan, network=network, nbytes=n) for n in SIZES]
    rows = tuple((p.nbytes, p.seconds, p.algbw / 1e9, p.busbw / 1e9, p.busiest_link) for p in times)
    columns = ("bytes", "seconds", "algbw GB/s", "busbw GB/s", "busiest link")
    return PredictedTable(f"{op} by {algorithm}, 8 nodes ({ranks} ranks) of {network.name}", columns, rows)


def _make_scaling_table(model: str, scaling: str, network: Network) -> PredictedTable:
    size, per_node = MODELS[model], network.per_node or 1
    ranks = [n * per_node for n in NODES if n * per_node % size.replica == 0]
    steps = [training_step(model, ranks=r, network=network, scaling=scaling) for r in ranks]
    columns = ("nodes", "ranks", f"{size.unit}/s", "efficiency", "comm share", "comm / compute", "seconds")
    rows = tuple(
        (s.nodes, s.ranks, s.items_per_s, s.efficiency, s.comm_share, s.comm_s / s.compute_s, s.step_s) for s in steps
    )
    return PredictedTable(f"{model}, {scaling} scaling on {network.name}", columns, rows)
