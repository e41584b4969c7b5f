"""Rank counts that are no power of two: some ranks hand their data to a neighbour first and get the answer last.

Of n = p + e ranks (p the largest power of two), ranks 1, 3, … 2e − 1 step aside; the others play the p ranks of an
algorithm for powers of two.
"""

from __future__ import annotations

import numpy as np

from ridgeline.fabric.steps import Ints, Round, transfers


def folded(ranks: int) -> tuple[Ints, Ints]:
    """(players [p], ranks that stand aside [e]); rank a stands aside for a − 1."""
    power = 1 << (ranks.bit_length() - 1)
    aside = 2 * np.arange(ranks - power) + 1
    return np.setdiff1d(np.arange(ranks), aside), aside


def fold(aside: Ints, chunks: int) -> Round:
    return transfers(aside, aside - 1, 0, chunks, True)


def unfold(aside: Ints, chunks: int) -> Round:
    return transfers(aside - 1, aside, 0, chunks)
