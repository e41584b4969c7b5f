"""Folding, for numbers of ranks that are not a power of two.

Of n = p + e ranks (p the largest power of two), ranks 1, 3, … 2e − 1 are folded: they send their data to a neighbour
first and get the result last. The others are the p active ranks of an algorithm for powers of two.
"""

from __future__ import annotations

import numpy as np

from ridgeline.fabric.schedule_types import Ints, Round, make_round


def split_ranks(ranks: int) -> tuple[Ints, Ints]:
    """(active ranks [p], folded ranks [e]); rank a is folded into rank a − 1."""
    power = 1 << (ranks.bit_length() - 1)
    folded = 2 * np.arange(ranks - power) + 1
    return np.setdiff1d(np.arange(ranks), folded), folded


def fold(folded: Ints, chunks: int) -> Round:
    return make_round(folded, folded - 1, 0, chunks, True)


def unfold(folded: Ints, chunks: int) -> Round:
    return make_round(folded - 1, folded, 0, chunks)
