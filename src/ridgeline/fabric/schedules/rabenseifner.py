"""Rabenseifner: reduce-scatter by halving, all-gather by doubling. The traffic of a ring in 2 log₂ n rounds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.fabric.schedule_types import Round, WriteRounds, make_round
from ridgeline.fabric.schedules.folding import fold, split_ranks, unfold


def write(op: str, ranks: int, chunks: int, nodes: int, root: int) -> tuple[int, WriteRounds]:
    active, folded = split_ranks(ranks)
    power = len(active)
    pieces = power * chunks
    place = np.arange(power)

    def rounds() -> Iterator[Round]:
        if folded.size:
            yield fold(folded, pieces)
        distance = power // 2
        while distance:
            partner = place ^ distance
            first = (partner & ~(distance - 1)) * chunks  # the half that the partner reduces
            yield make_round(active, active[partner], first, distance * chunks, True)
            distance //= 2
        distance = 1
        while distance < power:
            first = (place & ~(distance - 1)) * chunks
            yield make_round(active, active[place ^ distance], first, distance * chunks)
            distance *= 2
        if folded.size:
            yield unfold(folded, pieces)

    return pieces, rounds
