"""Columns that follow from others in the other rows: a product, quotient, sum, share of the total, or fixed work.

No name has to suggest such a relation, so more rows must show it than chance allows: at least three with three digits,
and three quarters of all. Apart from units the relation has no constant; only a fixed amount of work (rate × time) may
be any number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from statistics import median

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import Column, get_label
from ridgeline.claims.context import Context
from ridgeline.claims.document import Table
from ridgeline.claims.explanations import Expected, Explanation, check_column
from ridgeline.claims.finding import Finding
from ridgeline.claims.quantities import Quantity, compute_factor, divide, format_number, multiply
from ridgeline.claims.ratios import is_exact
from ridgeline.claims.rows import DEVICES

_MIN_ROWS, _MIN_SHARE = 3, 0.75
_MIN_FACTOR = 1.02  # a smaller gap may come from rounding in between
_MAX_COLUMNS, _MAX_ROWS = 12, 100  # a larger table is a data set, not a report
_SUMMARY = re.compile(r"\W*(?:grand |overall |geo\w*[\s-]?)?(?:total|sum|mean|average|avg|median|overall)\b", re.I)
_UNIT_CONSTANTS = (*(10.0**power for power in range(-12, 13)), 60.0, 3600.0, 1 / 60, 1 / 3600)
_Cells = dict[int, Quantity]


def check_derived(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    """Report the rows that fall out of a relation between columns."""
    if len(columns) > _MAX_COLUMNS or not _MIN_ROWS < len(table.rows) <= _MAX_ROWS:
        return
    labels = [get_label(table, row, columns) for row in range(len(table.rows))]
    rows = [row for row, label in enumerate(labels) if not _SUMMARY.match(label) and not DEVICES.search(label)]
    cells = {column.index: _get_cells(column, rows) for column in columns if not column.mixed}
    numbers = {index: filled for index, filled in cells.items() if len(filled) >= _MIN_ROWS}
    for column in columns:
        stated = numbers.get(column.index, {})
        others = [filled for index, filled in numbers.items() if index != column.index and not _are_ratios(filled)]
        if _are_ratios(stated):  # `ratios` compares them
            explanations = [e for parts in others for e in _explain_by_total(stated, parts)]
        else:
            explanations = [*_explain_by_two(stated, others), *_explain_by_work(column, stated, columns, numbers)]
        yield from check_column(
            context, table, column, stated, explanations, "derived", _MIN_FACTOR, _MIN_ROWS, _MIN_SHARE
        )


def _get_cells(column: Column, rows: list[int]) -> _Cells:
    cells = column.cells
    return {row: cell for row in rows if (cell := cells[row]) is not None and is_exact(cell)}


def _are_ratios(cells: _Cells) -> bool:
    return any(cell.share or cell.factor for cell in cells.values())


def _explain_by_two(stated: _Cells, others: list[_Cells]) -> Iterator[Explanation]:
    """Explain a column as the product, the quotient or the sum of two others."""
    for first, second in combinations(others, 2):
        for above, below, sign in (
            (first, second, "/"),
            (second, first, "/"),
            (first, second, "×"),
            (first, second, "+"),
        ):
            rows = [row for row in stated if row in above and row in below]
            if len(rows) >= _MIN_ROWS and not any(_says_little(cells, rows) for cells in (stated, above, below)):
                expected = {row: _compute(above[row], below[row], sign) for row in rows}
                constant = _find_constant(stated, expected, above[rows[0]], below[rows[0]], sign)
                if constant is not None:
                    yield Explanation({row: _scale(result, constant) for row, result in expected.items()})


def _compute(first: Quantity, second: Quantity, sign: str) -> Expected:
    one, other = first.count_interval(), second.count_interval()
    words = f"{first.text} {sign} {second.text}"
    if sign == "+":
        return Expected(first.value + second.value, ((one[0] + other[0], one[1] + other[1]),), words)
    if sign == "/":
        return Expected(first.value / second.value, (divide(one, other),), words)
    return Expected(first.value * second.value, (multiply(one, other),), words)


def _scale(result: Expected, constant: float) -> Expected:
    intervals = tuple(multiply(interval, (constant, constant)) for interval in result.intervals)
    return Expected(result.value * constant, intervals, result.words)


def _find_constant(
    stated: _Cells, expected: dict[int, Expected], first: Quantity, second: Quantity, sign: str
) -> float | None:
    """Return 1 if the units fit; if a column has no unit, the factor of a unit that is nearest; else None."""
    target = next(iter(stated.values())).dims
    if sign == "+":
        return 1.0 if first.dims == second.dims == target else None
    if q.combine_dims(first.dims, second.dims, -1 if sign == "/" else 1) == target:
        return 1.0
    if q.NONE not in (first.dims, second.dims, target):
        return None
    middle = median(stated[row].value / result.value for row, result in expected.items())
    return min(_UNIT_CONSTANTS, key=lambda unit: compute_factor(unit, middle))


def _says_little(cells: _Cells, rows: list[int]) -> bool:
    """Whether a column says too little: few values, or few digits."""
    values = [cells[row].value for row in rows]
    precise = [row for row in rows if cells[row].significant >= 2 or cells[row].value.is_integer()]
    return len(set(values)) < min(3, len(values)) or len(precise) < _MIN_ROWS


def _explain_by_work(
    column: Column, stated: _Cells, columns: list[Column], numbers: dict[int, _Cells]
) -> Iterator[Explanation]:
    """Explain a rate by a time if all rows do the same work."""
    for times in columns if column.dims == q.RATE else []:
        spans = numbers.get(times.index, {})
        rows = [row for row in stated if row in spans]
        if times.dims != q.TIME or len(rows) <= _MIN_ROWS or _says_little(stated, rows):
            continue
        work = median(stated[row].value * spans[row].value for row in rows)
        yield Explanation(
            {
                row: Expected(
                    work / spans[row].value,
                    (divide((work, work), spans[row].interval()),),
                    f"{format_number(work)} / {spans[row].text}",
                )
                for row in rows
            }
        )


def _explain_by_total(stated: _Cells, parts: _Cells) -> Iterator[Explanation]:
    """Explain shares as parts of their sum."""
    rows = [row for row in stated if row in parts]
    if len(rows) <= _MIN_ROWS or not stated[rows[0]].share:
        return
    ends = [cell.interval(loosely=False) for cell in parts.values()]
    total, middle = (sum(low for low, _ in ends), sum(high for _, high in ends)), sum(x.value for x in parts.values())
    words = format_number(sum(cell.written for cell in parts.values()))
    yield Explanation(
        {
            row: Expected(
                parts[row].value / middle,
                (divide(parts[row].interval(), total),),
                f"{parts[row].text} / {words} in all",
            )
            for row in rows
        }
    )
