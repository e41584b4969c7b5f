"""Explanations of a column: formulas over other cells of the same row, or of a base row.

A column can often be explained in several ways (which row is the base? which two columns are compared?). The formula
that holds in most rows is the meaning of the column; a row is accused only if no formula gives its value. What the rows
do not show is certain only if the names of the columns state the formula.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ridgeline.claims.columns import Column
from ridgeline.claims.context import Context
from ridgeline.claims.document import Table
from ridgeline.claims.finding import CERTAIN, LIKELY, UNSURE, Finding
from ridgeline.claims.quantities import (
    RATE,
    SLACK,
    Interval,
    Quantity,
    compute_factor,
    format_number,
    format_value,
    overlap,
)

_NEAREST = 1.1  # a formula whose values are all within this factor is the meaning of the column
_PRECISE = 0.12  # a value with a larger rounding error is no evidence for a formula
_EXACT = 0.01  # the same for a formula that no name suggests


@dataclass(frozen=True)
class Expected:
    """What a formula gives for a row: the value, its interval and other readings, and the formula in words."""

    value: float
    intervals: tuple[Interval, ...]
    words: str


@dataclass(frozen=True)
class Explanation:
    """A formula of a column."""

    expected: dict[int, Expected]  # row -> value
    explicit: bool = False  # the names of the columns state it
    accuses: bool = True  # False: it may explain a value, but no value is wrong because of it

    def find_matching(self, stated: dict[int, Quantity]) -> set[int]:
        """Return the rows whose stated value agrees."""
        return {row for row in set(self.expected) & set(stated) if _agrees(stated[row], self.expected[row])}


def check_column(
    context: Context,
    table: Table,
    column: Column,
    stated: dict[int, Quantity],
    explanations: Sequence[Explanation],
    kind: str,
    min_factor: float = 1.0,  # a smaller gap is a note
    min_rows: int = 2,  # this many rows, and this share of them, must show a formula that no name states
    min_share: float = 0.6,
) -> Iterator[Finding]:
    """Report the rows of a column that the best explanation does not give, and no other one either."""
    relevant = [explanation for explanation in explanations if set(explanation.expected) & set(stated)]
    accusing = [explanation for explanation in relevant if explanation.accuses]
    if not accusing:
        return
    best = max(accusing, key=lambda e: (_rate_support(e, stated), e.explicit))
    rows = set(best.expected) & set(stated)
    explained = set[int]().union(*(explanation.find_matching(stated) for explanation in relevant))
    wrong = sorted(rows - explained)
    base = _choose_confidence(best, stated, rows, wrong, (min_rows, min_share))
    for row in wrong if base else []:
        cell, expected = stated[row], best.expected[row]
        factor = compute_factor(cell.value, expected.value)
        value = format_result(expected.value, cell)
        arithmetic = f"{kind} ({column.name}): {expected.words} = {value}, not {cell.text}"
        sure = base if factor >= min_factor else UNSURE
        yield context.report_cell(table, row, column.index, kind, arithmetic, factor, sure)


def format_result(value: float, like: Quantity) -> str:
    """Format a computed value as the stated one is written."""
    if like.dims == RATE and like.written:
        return f"{format_number(value * like.written / like.value)} {like.unit}".strip()
    if like.share:
        return f"{value:.2%}" if abs(value) < 0.1 or like.step < 1e-3 else f"{value:.1%}"
    return f"{format_number(value)}×" if like.factor else format_value(value, like.dims)


def _agrees(stated: Quantity, expected: Expected) -> bool:
    return any(overlap(stated.interval(1.0), interval, SLACK) for interval in expected.intervals)


def _rate_support(explanation: Explanation, stated: dict[int, Quantity]) -> tuple[int, float]:
    """Rate an explanation by the rows that hold, then by how near the others are."""
    matching = explanation.find_matching(stated)
    rows = set(explanation.expected) & set(stated)
    gaps = [min(compute_factor(stated[row].value, explanation.expected[row].value), 1e9) for row in rows]
    return len(matching), -sum(gaps) / len(gaps)


def _choose_confidence(
    best: Explanation, stated: dict[int, Quantity], rows: set[int], wrong: list[int], least: tuple[int, float]
) -> float:
    """Return how sure it is that the wrong rows are wrong; 0 if nothing suggests it."""
    most = _PRECISE if least[0] <= 2 else _EXACT
    holding = {row for row in best.find_matching(stated) if _is_precise(stated[row], best.expected[row], most)}
    gaps = {row: stated[row].value / best.expected[row].value for row in wrong if best.expected[row].value}
    if _share_a_factor(list(gaps.values())) and len(holding) < 2 * len(wrong):
        return UNSURE if holding else 0.0  # another base, another unit
    if len(holding) >= least[0] and len(holding) >= least[1] * len(rows):
        return CERTAIN
    if best.explicit and holding and len(holding) >= 0.5 * len(rows):
        return LIKELY
    if best.explicit and len(rows) == 1:
        return LIKELY
    if least[0] <= 2 <= len(rows) and all(
        compute_factor(stated[row].value, best.expected[row].value) < _NEAREST for row in wrong
    ):
        return LIKELY
    return UNSURE if best.explicit and holding else 0.0


def _is_precise(cell: Quantity, expected: Expected, most: float) -> bool:
    """Whether neither the stated nor the computed value is so rounded that it would agree by chance."""
    low, high = expected.intervals[0]
    return cell.loose <= 2 * most * abs(cell.value) and high - low <= 4 * most * max(abs(low), abs(high))


def _share_a_factor(gaps: list[float]) -> bool:
    """Whether all gaps are one factor that is no rounding error."""
    return len(gaps) >= 2 and min(gaps) > 0 and max(gaps) / min(gaps) < 1.02 and not 1 / _NEAREST < gaps[0] < _NEAREST
