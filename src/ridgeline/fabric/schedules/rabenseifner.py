"""Rabenseifner: reduce-scatter by halving, all-gather by doubling. A ring's traffic in 2 log₂ n rounds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.fabric.schedules.folding import fold, folded, unfold
from ridgeline.fabric.steps import Round, Writer, transfers


def write(op: str, ranks: int, chunks: int, nodes: int, root: int) -> tuple[int, Writer]:
    players, aside = folded(ranks)
    power = len(players)
    pieces = power * chunks
    place = np.arange(power)

    def rounds() -> Iterator[Round]:
        if aside.size:
            yield fold(aside, pieces)
        away = power // 2
        while away:
            partner = place ^ away
            theirs = (partner & ~(away - 1)) * chunks  # the half the partner will answer for
            yield transfers(players, players[partner], theirs, away * chunks, True)
            away //= 2
        away = 1
        while away < power:
            ours = (place & ~(away - 1)) * chunks
            yield transfers(players, players[place ^ away], ours, away * chunks)
            away *= 2
        if aside.size:
            yield unfold(aside, pieces)

    return pieces, rounds
