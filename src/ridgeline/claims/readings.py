"""What one reading of a table gives for its rows, and which reading a column means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.claims.columns import Column
from ridgeline.claims.context import Context
from ridgeline.claims.document import Table
from ridgeline.claims.finding import SLACK, Finding, Interval, apart, confidence, digits, over, overlap, shown
from ridgeline.claims.quantities import Quantity

MORE_IS_BETTER = ("rate", "bandwidth", "flops")
LESS_IS_BETTER = ("time", "latency", "cost")
NEAR = 1.15  # rows this near show that a relation is meant, though not all of them hold


@dataclass(frozen=True)
class Try:
    """What one reading of the table gives for a row."""

    value: Interval
    middle: float
    words: str


Reading = dict[int, Try]  # by row


def ratio(better: Quantity, worse: Quantity) -> tuple[Interval, float]:
    return over(better.interval(), worse.interval()), better.value / worse.value


def judge(
    context: Context,
    table: Table,
    column: Column,
    readings: list[Reading],
    kind: str,
    sure: float,
    strict: bool = False,  # nearness is no sign that the relation is meant
) -> Iterator[Finding]:
    """The reading that holds for most rows is the one that is meant; no row that any reading explains is accused."""
    stated = {r: c for r, c in enumerate(column.cells) if c is not None and not c.bound and c.value > 0}
    told = [reading for reading in readings if set(reading) & set(stated)]
    trivial = {r for r, cell in stated.items() if cell.value == 1}

    def held(reading: Reading) -> set[int]:
        return {r for r in set(reading) & set(stated) if overlap(stated[r].interval(1.0), reading[r].value, SLACK)}

    def near(reading: Reading) -> set[int]:
        return {r for r in set(reading) & set(stated) if apart(stated[r].value, reading[r].middle) < NEAR}

    if not told:
        return
    best = max(told, key=lambda reading: (len(held(reading)), len(near(reading))))
    rows = (set(best) & set(stated)) - trivial
    support = (held(best) | near(best)) - trivial
    if strict:
        support = held(best)
    if strict and len(support) < max(2, 0.6 * len(rows)):
        return
    agreed = [r for r in told if rows <= set(r) and all(apart(r[x].middle, best[x].middle) < 1.05 for x in rows)]
    lone = len(rows) == 1 and not near(best) and len(agreed) < 2  # two columns against one number will do
    if not rows or lone or (2 * len(support) < len(rows) and len(rows) > 1):
        return
    explained = set().union(*(held(reading) for reading in told))
    weight = sure if held(best) - trivial else sure - 0.15
    for row in sorted(rows - explained):
        cell, computed = stated[row], best[row]
        factor = apart(cell.value, computed.middle)
        value = shown(computed.middle, column.dims) if column.dims[0] else digits(computed.middle)
        value = f"{computed.middle:.1%}" if cell.share else value + ("×" if cell.factor else "")
        what = f"{kind} ({column.name}): {computed.words} = {value}, not {cell.text}"
        where, says = table.at(row, column.place), table.says(row, column.place)
        yield Finding(context.document.path, where, kind, says, what, confidence(factor, weight))
