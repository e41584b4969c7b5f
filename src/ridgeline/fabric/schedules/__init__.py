"""The algorithms, one per file: a few lines that write rounds of transfers.

To add one: write a file with `write(op, ranks, chunks, nodes, root) -> (pieces, write_rounds)`, and a line in
`ALGORITHMS`. `pieces` is the number of chunks of the data in total, `chunks` that of each block of the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, unknown
from ridgeline.fabric.networks import Network, load_network
from ridgeline.fabric.schedule_types import Programs, Schedule, WriteRounds
from ridgeline.fabric.schedules import chain, direct, hierarchical, rabenseifner, recursive_doubling, ring, tree

Write = Callable[..., tuple[int, WriteRounds]]

# op -> algorithm -> (function that writes it, default chunks per block)
ALGORITHMS: dict[str, dict[str, tuple[Write, int]]] = {
    "all_reduce": {
        "ring": (ring.write, 1),
        "tree": (tree.write, 8),
        "recursive_doubling": (recursive_doubling.write, 1),
        "rabenseifner": (rabenseifner.write, 1),
        "hierarchical": (hierarchical.write, 1),
        "leader_ring": (hierarchical.write_leader_ring, 1),
        "leader_tree": (hierarchical.write_leader_tree, 8),
        "direct": (direct.write, 1),
    },
    "all_gather": {
        "ring": (ring.write, 1),
        "recursive_doubling": (recursive_doubling.write, 1),
        "direct": (direct.write, 1),
    },
    "reduce_scatter": {"ring": (ring.write, 1), "direct": (direct.write, 1)},
    "broadcast": {
        "tree": (tree.write, 4),
        "chain": (chain.write, 8),
        "leader_tree": (hierarchical.write_leader_tree, 4),
        "direct": (direct.write, 1),
    },
    "reduce": {"tree": (tree.write, 4), "leader_tree": (hierarchical.write_leader_tree, 4)},
}
BY_HOSTS = ("hierarchical", "leader_ring", "leader_tree")  # these depend on which ranks share a host


def schedule(
    op: str,
    algorithm: str,
    *,
    ranks: int,
    chunks: int | None = None,
    nodes: int | None = None,
    hosts: Sequence[int | str] | None = None,
    root: int = 0,
    channels: int | None = None,
    network: str | Path | Mapping[str, Any] | Network | None = None,
) -> Schedule:
    """Return the steps of every rank.

    op         a key of `ALGORITHMS`, such as "all_reduce"
    algorithm  its algorithm, such as "ring"
    chunks     pieces of each block, sent one after the other; None: the default of the algorithm
    nodes      machines with an equal number of ranks each (for `BY_HOSTS` and channels); None: from `network`, else
               chosen from `ranks`
    hosts      instead of `nodes`, the name or number of the host of each rank, in any order and number
    root       the rank where a broadcast starts, or a reduce ends
    channels   rings at once, each leaves a node through another rank (for "ring"); None: one for each adapter of a node
               of `network`, else 1
    network    as for `predict`: the network that `nodes` and `channels` are chosen for

    Raises InputError for unknown names and wrong numbers.

    >>> print(schedule("broadcast", "chain", ranks=3, chunks=1))
    broadcast chain: 3 ranks, 1 chunks
    rank 0: send 0 to 1
    rank 1: recv 0 from 0 · send 0 to 2
    rank 2: recv 0 from 1
    """
    if op not in ALGORITHMS:
        raise unknown("collective", op, ALGORITHMS)
    if algorithm not in ALGORITHMS[op]:
        raise unknown(f"algorithm for {op}", algorithm, ALGORITHMS[op])
    if ranks < 1:
        raise InputError(f"ranks is {ranks}; a schedule needs 1 or more.")
    if chunks is not None and chunks < 1:
        raise InputError(f"chunks is {chunks}; a schedule needs 1 or more.")
    if not 0 <= root < ranks:
        raise InputError(f"root is {root}; it must be one of the ranks 0 to {ranks - 1}.")
    if nodes is not None and (nodes < 1 or ranks % nodes):
        raise InputError(f"{ranks} ranks cannot be spread evenly over {nodes} nodes; choose a divisor.")
    if hosts is not None and (len(hosts) != ranks or nodes is not None):
        raise InputError(f"hosts names {len(hosts)} hosts for {ranks} ranks; give one for each rank, and no nodes.")
    if channels is not None and (channels < 1 or (channels > 1 and algorithm != "ring")):
        raise InputError(f"channels is {channels} for {algorithm}; a ring has 1 or more, other algorithms have 1.")
    if network is not None and hosts is None:
        loaded = load_network(network)
        full_nodes = loaded.count_nodes(ranks)
        if algorithm == "ring" and channels is None and full_nodes is not None and full_nodes > 1:
            channels = min(loaded.adapters, ranks // full_nodes)
        nodes = nodes or full_nodes
    channels = channels or 1
    write, default_chunks = ALGORITHMS[op][algorithm]
    if channels > 1:
        write = partial(ring.write, channels=channels)
    if hosts is not None:
        groups = hierarchical.group_ranks(hosts)
        nodes = len(groups) if ranks % len(groups) == 0 else 1
        if algorithm in BY_HOSTS:
            write = partial(write, groups=groups)
    nodes = nodes or _choose_nodes(ranks)
    pieces, write_rounds = write(op, ranks, chunks or default_chunks, nodes, root)
    return Schedule(op, algorithm, ranks, pieces, nodes, root, Programs(ranks, write_rounds), channels)


def _choose_nodes(ranks: int) -> int:
    """Nodes of eight ranks if that divides the ranks, else the largest divisor up to the square root."""
    if ranks > 8 and ranks % 8 == 0:
        return ranks // 8
    return max(d for d in range(1, int(ranks**0.5) + 1) if ranks % d == 0)
