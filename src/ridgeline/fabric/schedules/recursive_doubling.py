"""Recursive doubling: in round k every rank exchanges with the rank at distance 2ᵏ. Fewest rounds; for small data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.fabric.schedule_types import Round, WriteRounds, make_round, merge_rounds
from ridgeline.fabric.schedules.folding import fold, split_ranks, unfold


def write(op: str, ranks: int, chunks: int, nodes: int, root: int) -> tuple[int, WriteRounds]:
    if op == "all_gather":
        return ranks * chunks, lambda: _gather(ranks, chunks)
    return chunks, lambda: _reduce(ranks, chunks)


def _reduce(ranks: int, chunks: int) -> Iterator[Round]:
    active, folded = split_ranks(ranks)
    place = np.arange(len(active))
    if folded.size:
        yield fold(folded, chunks)
    distance = 1
    while distance < len(active):
        # All chunks of a round at once, one message each: the next one is sent while this one is added.
        yield merge_rounds(make_round(active, active[place ^ distance], c, 1, True) for c in range(chunks))
        distance *= 2
    if folded.size:
        yield unfold(folded, chunks)


def _gather(ranks: int, chunks: int) -> Iterator[Round]:
    """Rank r has the blocks r … r + d − 1 and sends them to r − d; d doubles each round, for any number of ranks."""
    rank, owned = np.arange(ranks), 1
    while owned < ranks:
        blocks = min(owned, ranks - owned)
        target = (rank - owned) % ranks
        first = np.minimum(blocks, ranks - rank)  # a range of blocks that wraps around the end is two ranges
        rows = [make_round(rank, target, rank * chunks, first * chunks)]
        if (wraps := first < blocks).any():
            rows.append(make_round(rank[wraps], target[wraps], 0, (blocks - first[wraps]) * chunks))
        yield merge_rounds(rows)
        owned += blocks
