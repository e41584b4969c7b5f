"""Ring: every rank sends blocks to its right neighbour. The least possible traffic, 2(n − 1) hops of latency.

One ring leaves each node through one rank, and so through one adapter. With several channels, each for its share of the
data, ring k starts k ranks later in every node: it leaves through another rank, and all adapters work.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.fabric.schedule_types import Ints, Round, WriteRounds, make_round


def write(op: str, ranks: int, chunks: int, nodes: int, root: int, channels: int = 1) -> tuple[int, WriteRounds]:
    local, channel = ranks // nodes, np.arange(channels)[:, None]
    members = np.arange(ranks) // local * local + (np.arange(ranks) + channel) % local
    blocks = (members * channels + channel) * chunks

    def rounds() -> Iterator[Round]:
        if op in ("all_reduce", "reduce_scatter"):
            yield from write_rings(members, blocks, chunks, reduce=True)
        if op in ("all_reduce", "all_gather"):
            yield from write_rings(members, blocks, chunks, reduce=False)

    return ranks * channels * chunks, rounds


def write_rings(members: Ints, blocks: Ints, chunks: int, reduce: bool, width: int = 1) -> Iterator[Round]:
    """Write parallel rings, one per row of members [rings, n]; blocks [rings, n] are first chunks.

    Block k ends, or starts, at the k-th member. Each block is sent in `chunks` messages of `width` chunks.
    """
    n = members.shape[1]
    piece = np.arange(chunks) * width
    right = np.roll(members, -1, axis=1)
    first = make_round(members.T[:, :, None], right.T[:, :, None], piece, width, reduce)
    # Each round is a view of the blocks, written twice: predictions for many ranks skip most rounds.
    twice = np.tile((blocks.T[:, :, None] + piece).reshape(n, -1), (2, 1))
    for turn in range(n - 1):
        start = (-turn - (1 if reduce else 0)) % n
        yield first._replace(chunk=twice[start : start + n].ravel(), as_before=turn > 0)
