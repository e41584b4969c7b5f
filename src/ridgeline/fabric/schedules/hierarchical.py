"""Hierarchical: rings inside each node, then between nodes among ranks of one place, then inside again.

Of the data, 1/local crosses the slow network from each rank.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.fabric.schedules.ring import around
from ridgeline.fabric.steps import Round, Writer


def write(op: str, ranks: int, chunks: int, nodes: int, root: int) -> tuple[int, Writer]:
    local = ranks // nodes
    inside = np.arange(ranks).reshape(nodes, local)
    across = inside.T
    wide = nodes * chunks  # chunks in the block that one place answers for
    blocks_inside = np.broadcast_to(np.arange(local) * wide, (nodes, local))
    blocks_across = np.arange(local)[:, None] * wide + np.arange(nodes)[None, :] * chunks

    def rounds() -> Iterator[Round]:
        yield from around(inside, blocks_inside, chunks, reduce=True, width=nodes)
        yield from around(across, blocks_across, chunks, reduce=True)
        yield from around(across, blocks_across, chunks, reduce=False)
        yield from around(inside, blocks_inside, chunks, reduce=False, width=nodes)

    return local * wide, rounds
