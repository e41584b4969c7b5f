"""Direct: everyone to everyone, each rank answers for one block. Two hops; for ranks that share a memory.

In round k each rank sends to the one k places on, so that no rank is everybody's target at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.fabric.steps import Round, Writer, transfers


def write(op: str, ranks: int, chunks: int, nodes: int, root: int) -> tuple[int, Writer]:
    if op == "broadcast":
        others = np.array([r for r in range(ranks) if r != root], np.int64)
        return chunks, lambda: iter([transfers(root, others, 0, chunks)] if ranks > 1 else [])
    rank = np.arange(ranks)

    def rounds() -> Iterator[Round]:
        for away in range(1, ranks) if op != "all_gather" else ():
            target = (rank + away) % ranks
            yield transfers(rank, target, target * chunks, chunks, True)
        for away in range(1, ranks) if op != "reduce_scatter" else ():
            yield transfers(rank, (rank + away) % ranks, rank * chunks, chunks)

    return ranks * chunks, rounds
