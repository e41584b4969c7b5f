"""How time grows along a sweep: flat, sub-linear, linear or super-linear in the work, and what the rate does.

Work is FLOPs where they grow along the sweep, else the swept column itself. Points that one straight line passes in
log time over log work are one stretch; its slope is the exponent that names it. Linear time is a saturated rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.lab.judge import stats
from ridgeline.lab.study.section import Grid, Section, plain
from ridgeline.lab.study.sweep import Sweep, telling
from ridgeline.lab.study.table import Table

FLAT, LINEAR, STEEP = 0.2, 0.85, 1.15  # exponents at which the name changes
STRAIGHT = 0.06  # how far a point may lie off its stretch's line at the least: runs of equal code differ by that much
RATES = {"flat": "rising", "sub-linear": "rising", "linear": "saturated", "super-linear": "falling"}
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Stretch:
    column: str
    fixed: Mapping[str, Any]
    start: float
    end: float
    regime: str  # of time against work
    rate: str  # of work per second: rising | saturated | falling
    exponent: float
    work: str  # what it is measured against


def name(exponent: float) -> str:
    """The word for an exponent of time against work.

    >>> [name(e) for e in (0.05, 0.5, 1.0, 1.6)]
    ['flat', 'sub-linear', 'linear', 'super-linear']
    """
    if exponent <= FLAT:
        return "flat"
    return "sub-linear" if exponent < LINEAR else "linear" if exponent <= STEEP else "super-linear"


def stretches(table: Table, sweep: Sweep) -> list[Stretch]:
    """The regimes along one sweep, in order."""
    times = [float(np.median([t.seconds for t in own])) for _, own in sweep.points]
    flops = sweep.median(table.columns.flops)
    known = [v for v in flops if v is not None]
    grows = len(known) == len(flops) and all(b > a * 1.001 for a, b in pairwise(known))
    u, y = np.log(known if grows else [x for x, _ in sweep.points]), np.log(times)
    loose = max(STRAIGHT, _unsure(sweep))
    ends = [0]
    for i in range(2, len(u)):
        # A stretch goes on while one line passes all its points: the steps by themselves would name the noise.
        if abs(_line(u, y, ends[-1], i)[1]).max() > math.log1p(loose):
            ends.append(i - 1)
    ends.append(len(u) - 1)
    names = [name(_line(u, y, a, b)[0]) for a, b in pairwise(ends)]
    found, first = [], 0
    for i in range(1, len(names) + 1):
        if i == len(names) or names[i] != names[first]:
            a, b, word = ends[first], ends[i], names[first]
            span = sweep.points[a][0], sweep.points[b][0]
            against = "FLOPs" if grows else sweep.column
            exponent = _line(u, y, a, b)[0]
            found.append(Stretch(sweep.column, sweep.fixed, *span, word, RATES[word], exponent, against))
            first = i
    return found


def regimes(table: Table, every: Sequence[Sweep]) -> Section:
    if not every:
        return Section("Regimes", ["Nothing was swept over three or more values: regimes cannot be named."])
    found = [(label, s) for one, label in zip(every, telling(every), strict=True) for s in stretches(table, one)]
    rows = [
        [s.column, label or "all", f"{s.start:g} to {s.end:g}", s.regime, s.rate, f"{s.exponent:.2f}", s.work]
        for label, s in found
    ]
    head = ("along", "of", "from", "time grows", "rate is", "exponent", "against")
    along = dict.fromkeys(s.column for _, s in found)
    said = [_sentence(column, [s for _, s in found if s.column == column]) for column in along]
    grid = Grid(head, rows, ("exponent",), "An exponent of 1 is a rate that no longer grows.")
    return Section("Regimes", said, [grid], findings=plain({"stretches": [s for _, s in found]}))


def _unsure(sweep: Sweep) -> float:
    """How far the sweep's own medians may be off, by the samples behind them: twice the middle one's half-width."""
    known = [stats.median(t.samples).relative for t in sweep.trials if len(t.samples) >= stats.FEWEST]
    return 2 * float(np.median(known)) if known else 0.0


def _line(u: Array, y: Array, first: int, last: int) -> tuple[float, Array]:
    """The slope over these points, and what is left of them."""
    own, level = u[first : last + 1], y[first : last + 1]
    middle = own - own.mean()
    slope = float(middle @ level) / float(middle @ middle)
    return slope, np.asarray(level - level.mean() - slope * middle)


def _sentence(column: str, own: Sequence[Stretch]) -> str:
    """Over all sweeps along a column: where each regime was seen."""
    parts = []
    for kind in RATES:
        held = [s for s in own if s.regime == kind]
        if held:
            sweeps_of = f" in {len(held)} stretches" if len(held) > 1 else ""
            parts.append(f"{kind} between {min(s.start for s in held):g} and {max(s.end for s in held):g}{sweeps_of}")
    return f"Along {column} time is {'; '.join(parts)}."
