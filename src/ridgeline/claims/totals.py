"""Sums and means: a last row named total or average, and a list of lines that ends with its total."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import fmean, geometric_mean, harmonic_mean, median

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import Column, get_label
from ridgeline.claims.context import Context
from ridgeline.claims.document import Table
from ridgeline.claims.explanations import format_result
from ridgeline.claims.finding import CERTAIN, LIKELY, UNSURE, Finding
from ridgeline.claims.quantities import SLACK, Interval, Quantity, compute_factor, format_value, overlap
from ridgeline.claims.ratios import is_exact

_TOTAL = re.compile(r"\W*(?:grand |overall )?(?:total|sum)\b", re.I)
_ADDED = ("count", "size", "memory", "time", "cost", "number", "percent", "share")
_NOT_ADDED = re.compile(
    r"avg|average|mean|median|\bper\b|/|latency|rate|ratio|peak|max|min|\bp\d\d|score|rank|std|#|year|version", re.I
)
_NESTED = re.compile(r"^\W*(?:of which|incl|↳|└|├|subtotal|sub-total|average|mean|median)|&nbsp;|\bsubtotal\b", re.I)
_MEAN = re.compile(r"\W*(?:overall |geo\w*[\s-]?)?(?:mean|average|avg\.?)\W*", re.I)


def check_totals(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    """Check the last row if it is named total."""
    labels = [get_label(table, row, columns) for row in range(len(table.rows))]
    last = len(labels) - 1
    if last < 2 or not _TOTAL.match(labels[last]) or any(_TOTAL.match(x) or _NESTED.match(x) for x in labels[:last]):
        return
    sums: list[tuple[Column, Quantity, list[Quantity], bool]] = []
    for column in columns:
        stated, parts = column.cells[last], [cell for cell in column.cells[:last] if cell is not None]
        if stated is None or column.role not in _ADDED or _NOT_ADDED.search(column.name) or column.mixed:
            continue
        if len(parts) < max(2, 0.6 * last) or not all(is_exact(cell) or cell.value == 0 for cell in parts):
            continue
        if is_exact(stated) and not (stated.share and stated.value != 1):
            sums.append((column, stated, parts, overlap(stated.interval(1.0), _add(parts)[0], SLACK)))
    proved = any(holds for *_, holds in sums)
    for column, stated, parts, holds in sums:
        factor = compute_factor(stated.value, _add(parts)[1])
        if (
            holds
            or stated.share
            or not (proved or re.fullmatch(r"\W*(?:grand |overall )?(?:total|sum)\W*", labels[last], re.I))
        ):
            continue
        # Stages may overlap, and a total time may hold more than its stages: only an agreement elsewhere proves a sum.
        base = CERTAIN if proved else LIKELY if column.dims in (q.BYTES, q.MONEY) and factor < 1.6 else UNSURE
        yield context.report_cell(table, last, column.index, "total", _write_sum(parts, stated), factor, base)


def check_means(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    """Check the last row if it is named average: a column is wrong if others hold."""
    labels = [get_label(table, row, columns) for row in range(len(table.rows))]
    last = len(labels) - 1
    if last < 3 or not _MEAN.fullmatch(labels[last]) or any(_TOTAL.match(x) or _NESTED.match(x) for x in labels[:last]):
        return
    means: list[tuple[Column, Quantity, list[Quantity], bool]] = []
    for column in columns:
        stated, parts = column.cells[last], [cell for cell in column.cells[:last] if cell is not None]
        if stated is not None and is_exact(stated) and len(parts) == last and all(is_exact(cell) for cell in parts):
            means.append((column, stated, parts, _is_mean(stated, parts)))
    proved = sum(holds for *_, holds in means) >= 2
    for column, stated, parts, holds in means:
        if not holds:
            value = fmean(cell.value for cell in parts)
            words = ", ".join(cell.text for cell in parts)
            arithmetic = f"mean: of {words} it is {format_result(value, stated)}, not {stated.text}"
            factor = compute_factor(stated.value, value)
            base = LIKELY if proved else UNSURE
            yield context.report_cell(table, last, column.index, "mean", arithmetic, factor, base)


def _is_mean(stated: Quantity, parts: list[Quantity]) -> bool:
    """Whether a value is the arithmetic, geometric or harmonic mean, or the median."""
    low, high = ([cell.interval()[end] for cell in parts] for end in (0, 1))
    if min(low) <= 0:
        return True
    kinds = (fmean, geometric_mean, harmonic_mean, median)
    return any(overlap(stated.interval(1.0), (kind(low), kind(high)), SLACK) for kind in kinds)


def check_total_lines(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    """Check a list of "name: value" lines that ends with its total."""
    last = len(columns) - 1
    if len(table.rows) != 1 or last < 2 or not _TOTAL.match(columns[last].name):
        return
    cells = [column.raw[0] for column in columns]
    stated, parts = cells[last], [cell for cell in cells[:last] if cell is not None]
    if stated is None or not is_exact(stated) or stated.dims not in (q.TIME, q.BYTES, q.MONEY) or len(parts) < last:
        return
    if any(cell.dims != stated.dims or not is_exact(cell) for cell in parts) or "/" in stated.unit:
        return
    if not overlap(stated.interval(1.0), _add(parts)[0], SLACK):
        factor = compute_factor(stated.value, _add(parts)[1])
        base = LIKELY if stated.dims != q.TIME and factor < 1.6 else UNSURE
        yield context.report_cell(table, 0, last, "total", _write_sum(parts, stated), factor, base)


def _add(cells: list[Quantity]) -> tuple[Interval, float]:
    ends = [cell.interval(loosely=False) for cell in cells]
    return (sum(low for low, _ in ends), sum(high for _, high in ends)), sum(cell.value for cell in cells)


def _write_sum(parts: list[Quantity], stated: Quantity) -> str:
    words = " + ".join(cell.text for cell in parts)
    return f"total: {words} = {format_value(_add(parts)[1], stated.dims)}, not {stated.text}"
