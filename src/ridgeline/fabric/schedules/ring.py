"""Ring: every rank sends blocks to its right neighbour. The least possible traffic, 2(n − 1) hops of latency."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.fabric.schedule_types import Ints, Round, WriteRounds, make_round


def write(op: str, ranks: int, chunks: int, nodes: int, root: int) -> tuple[int, WriteRounds]:
    members = np.arange(ranks)[None, :]
    blocks = np.arange(ranks)[None, :] * chunks

    def rounds() -> Iterator[Round]:
        if op in ("all_reduce", "reduce_scatter"):
            yield from write_rings(members, blocks, chunks, reduce=True)
        if op in ("all_reduce", "all_gather"):
            yield from write_rings(members, blocks, chunks, reduce=False)

    return ranks * chunks, rounds


def write_rings(members: Ints, blocks: Ints, chunks: int, reduce: bool, width: int = 1) -> Iterator[Round]:
    """Write parallel rings, one per row of members [rings, n]; blocks [rings, n] are first chunks.

    Block k ends, or starts, at the k-th member. Each block is sent in `chunks` messages of `width` chunks.
    """
    n = members.shape[1]
    place, piece = np.arange(n), np.arange(chunks) * width
    right = np.roll(members, -1, axis=1)
    first = make_round(members[:, :, None], right[:, :, None], piece, width, reduce)
    for turn in range(n - 1):
        sent = blocks[:, (place - turn - (1 if reduce else 0)) % n]
        chunk = sent.ravel() if chunks == 1 else (sent[:, :, None] + piece).ravel()
        yield first._replace(chunk=chunk, as_before=turn > 0)
