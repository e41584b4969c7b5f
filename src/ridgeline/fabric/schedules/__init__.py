"""Every algorithm in a file of its own: a few lines that write rounds of transfers.

To add one: a file with `write(op, ranks, chunks, nodes, root) -> (pieces, writer)`, and a line in `ALGORITHMS`.
`pieces` is how many chunks the data has in all, `chunks` how many each block of the algorithm is cut into.
"""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.errors import InputError, unknown
from ridgeline.fabric.schedules import chain, direct, hierarchical, rabenseifner, recursive_doubling, ring, tree
from ridgeline.fabric.steps import Programs, Schedule, Writer

Write = Callable[[str, int, int, int, int], tuple[int, Writer]]

# op -> algorithm -> (what writes it, chunks per block where the caller names none)
ALGORITHMS: dict[str, dict[str, tuple[Write, int]]] = {
    "all_reduce": {
        "ring": (ring.write, 1),
        "tree": (tree.write, 8),
        "recursive_doubling": (recursive_doubling.write, 1),
        "rabenseifner": (rabenseifner.write, 1),
        "hierarchical": (hierarchical.write, 1),
        "direct": (direct.write, 1),
    },
    "all_gather": {
        "ring": (ring.write, 1),
        "recursive_doubling": (recursive_doubling.write, 1),
        "direct": (direct.write, 1),
    },
    "reduce_scatter": {"ring": (ring.write, 1), "direct": (direct.write, 1)},
    "broadcast": {"tree": (tree.write, 4), "chain": (chain.write, 8), "direct": (direct.write, 1)},
    "reduce": {"tree": (tree.write, 4)},
}


def schedule(
    op: str,
    algorithm: str,
    *,
    ranks: int,
    chunks: int | None = None,
    nodes: int | None = None,
    root: int = 0,
) -> Schedule:
    """The steps of every rank.

    chunks  pieces of each block, which follow one another through the links; None: the algorithm's own
    nodes   machines the ranks are spread over, as many on each ("hierarchical" uses it); None: it chooses
    root    where a broadcast begins, or a reduce ends

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
    write, usual = ALGORITHMS[op][algorithm]
    over = nodes or _nodes(ranks)
    pieces, writer = write(op, ranks, chunks or usual, over, root)
    return Schedule(op, algorithm, ranks, pieces, over, root, Programs(ranks, writer))


def _nodes(ranks: int) -> int:
    """Nodes of eight ranks where that comes out even, else the divisor nearest the square root."""
    if ranks > 8 and ranks % 8 == 0:
        return ranks // 8
    return max(d for d in range(1, int(ranks**0.5) + 1) if ranks % d == 0)
