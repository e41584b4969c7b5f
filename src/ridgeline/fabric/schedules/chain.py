"""Chain: each rank passes every chunk to the next one. Slow to begin, and then every link is always busy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.fabric.steps import Round, Writer, transfers


def write(op: str, ranks: int, chunks: int, nodes: int, root: int) -> tuple[int, Writer]:
    order = (np.arange(ranks) + root) % ranks

    def rounds() -> Iterator[Round]:
        for turn in range(ranks - 1 + chunks - 1 if ranks > 1 else 0):
            hops = np.arange(max(0, turn - chunks + 1), min(turn, ranks - 2) + 1)
            yield transfers(order[hops], order[hops + 1], turn - hops)

    return chunks, rounds
