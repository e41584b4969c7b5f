"""Hierarchical: rings inside each node, then between nodes among ranks of the same local number, then inside again.

Each rank sends 1/local of the data through the slow network.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.fabric.schedule_types import Round, WriteRounds
from ridgeline.fabric.schedules.ring import write_rings


def write(op: str, ranks: int, chunks: int, nodes: int, root: int) -> tuple[int, WriteRounds]:
    local = ranks // nodes
    inside = np.arange(ranks).reshape(nodes, local)
    across = inside.T
    wide = nodes * chunks  # chunks in the block of one local number
    blocks_inside = np.broadcast_to(np.arange(local) * wide, (nodes, local))
    blocks_across = np.arange(local)[:, None] * wide + np.arange(nodes)[None, :] * chunks

    def rounds() -> Iterator[Round]:
        yield from write_rings(inside, blocks_inside, chunks, reduce=True, width=nodes)
        yield from write_rings(across, blocks_across, chunks, reduce=True)
        yield from write_rings(across, blocks_across, chunks, reduce=False)
        yield from write_rings(inside, blocks_inside, chunks, reduce=False, width=nodes)

    return local * wide, rounds
