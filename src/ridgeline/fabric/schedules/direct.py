"""Direct: every rank sends to every other, each rank reduces one block. Two hops; for ranks with shared memory.

In round k rank r sends to rank r + k, so that no rank is the target of all others at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.fabric.schedule_types import Round, WriteRounds, make_round


def write(op: str, ranks: int, chunks: int, nodes: int, root: int) -> tuple[int, WriteRounds]:
    if op == "broadcast":
        others = np.array([r for r in range(ranks) if r != root], np.int64)
        return chunks, lambda: iter([make_round(root, others, 0, chunks)] if ranks > 1 else [])
    rank = np.arange(ranks)

    def rounds() -> Iterator[Round]:
        for distance in range(1, ranks) if op != "all_gather" else ():
            target = (rank + distance) % ranks
            yield make_round(rank, target, target * chunks, chunks, True)
        for distance in range(1, ranks) if op != "reduce_scatter" else ():
            yield make_round(rank, (rank + distance) % ranks, rank * chunks, chunks)

    return ranks * chunks, rounds
