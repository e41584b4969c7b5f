"""Chain: each rank sends every chunk to the next rank. It starts slowly; then every link is always busy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.fabric.schedule_types import Round, WriteRounds, make_round


def write(op: str, ranks: int, chunks: int, nodes: int, root: int) -> tuple[int, WriteRounds]:
    order = (np.arange(ranks) + root) % ranks

    def rounds() -> Iterator[Round]:
        for turn in range(ranks - 1 + chunks - 1 if ranks > 1 else 0):
            hops = np.arange(max(0, turn - chunks + 1), min(turn, ranks - 2) + 1)
            yield make_round(order[hops], order[hops + 1], turn - hops)

    return chunks, rounds
