"""Recursive doubling: in round k everyone exchanges with the rank 2ᵏ away. Fewest rounds; for small data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.fabric.schedules.folding import fold, folded, unfold
from ridgeline.fabric.steps import Round, Writer, side_by_side, transfers


def write(op: str, ranks: int, chunks: int, nodes: int, root: int) -> tuple[int, Writer]:
    if op == "all_gather":
        return ranks * chunks, lambda: _gather(ranks, chunks)
    return chunks, lambda: _reduce(ranks, chunks)


def _reduce(ranks: int, chunks: int) -> Iterator[Round]:
    players, aside = folded(ranks)
    place = np.arange(len(players))
    if aside.size:
        yield fold(aside, chunks)
    away = 1
    while away < len(players):
        # All chunks of a round at once, one message each: the next one is on its way while this one is added.
        yield side_by_side(transfers(players, players[place ^ away], c, 1, True) for c in range(chunks))
        away *= 2
    if aside.size:
        yield unfold(aside, chunks)


def _gather(ranks: int, chunks: int) -> Iterator[Round]:
    """Whoever has the blocks r … r + d − 1 gives them to r − d; round by round d doubles, for any number of ranks."""
    rank, have = np.arange(ranks), 1
    while have < ranks:
        blocks = min(have, ranks - have)
        target = (rank - have) % ranks
        first = np.minimum(blocks, ranks - rank)  # the run of blocks may go round the end: then it is two
        rows = [transfers(rank, target, rank * chunks, first * chunks)]
        if (wraps := first < blocks).any():
            rows.append(transfers(rank[wraps], target[wraps], 0, (blocks - first[wraps]) * chunks))
        yield side_by_side(rows)
        have += blocks
