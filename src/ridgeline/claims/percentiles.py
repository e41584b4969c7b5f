"""Percentiles must rise: min ≤ p50 ≤ p99 ≤ max, and the mean lies between min and max."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import Column
from ridgeline.claims.context import Context
from ridgeline.claims.document import Table
from ridgeline.claims.finding import CERTAIN, Finding
from ridgeline.claims.quantities import Quantity, compute_factor

_MIN, _MAX = -1.0, 101.0
_PERCENTILE = re.compile(
    r"\bp-?(?P<p>\d{1,2}(?:\.\d+)?|99\d|999)\b|\b(?P<th>\d{1,2}(?:\.\d+)?)(?:th|st|nd|rd)?\s?(?:%-?ile|percentile)|"
    r"\b(?P<median>median|med)\b|\b(?P<least>min(?:imum)?)\b|\b(?P<most>max(?:imum)?)\b",
    re.I,
)
_RISES = (q.TIME, q.BYTES)  # the p99 of a rate may be the value that 99 % exceed
_MEAN = re.compile(r"\b(?:mean|avg|average)\b", re.I)
_UNITS = re.compile(r"[(\[][^)\]]*[)\]]|[,_]")


def parse_percentile(name: str) -> tuple[float, str] | None:
    """Parse "TTFT p99 (ms)" into (99, "ttft")."""
    bare = _UNITS.sub(" ", name)
    match = _PERCENTILE.search(bare)
    if match is None:
        return None
    rest = " ".join((bare[: match.start()] + bare[match.end() :]).lower().split())
    if match["least"] or match["most"]:
        return (_MIN if match["least"] else _MAX), rest
    if match["median"]:
        return 50.0, rest
    digits_text = match["p"] or match["th"]
    value = float(digits_text)
    if "." not in digits_text and len(digits_text) == 3:
        value = float(f"{digits_text[:2]}.{digits_text[2:]}")  # p999
    return value, rest


def check_percentile_columns(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    groups: dict[tuple[str, q.Dims], list[tuple[float, Column]]] = {}
    for column in columns:
        if column.dims in _RISES and not column.mixed and (parsed := parse_percentile(column.name)):
            groups.setdefault((parsed[1], column.dims), []).append((parsed[0], column))
    for (stem, dims), group in groups.items():
        ranked = sorted(group, key=lambda pair: pair[0])
        means = [c for c in columns if c.dims == dims and _MEAN.search(c.name) and _remove_mean(c.name) == stem]
        for row in range(len(table.rows)):
            yield from _check_row(context, table, row, ranked, means)


def _remove_mean(name: str) -> str:
    return " ".join(_MEAN.sub("", _UNITS.sub(" ", name)).lower().split())


def _check_row(
    context: Context, table: Table, row: int, ranked: list[tuple[float, Column]], means: list[Column]
) -> Iterator[Finding]:
    cells = [(rank, column, cell) for rank, column in ranked if (cell := _get_exact(column.cells[row])) is not None]
    for (low, lower, less), (high, higher, more) in pairwise(cells):
        if low < high and _is_above(less, more):
            arithmetic = f"order: {lower.name} ≤ {higher.name}, not {less.text} > {more.text}"
            yield _report(context, table, row, higher, arithmetic, less, more)
    ends = [(rank, column, cell) for rank, column, cell in cells if rank in (_MIN, _MAX)]
    for mean in means:
        middle = _get_exact(mean.cells[row])
        for rank, column, cell in ends if middle is not None else []:
            assert middle is not None  # noqa: S101
            less, more = (cell, middle) if rank == _MIN else (middle, cell)
            if _is_above(less, more):
                names = (column.name, mean.name) if rank == _MIN else (mean.name, column.name)
                arithmetic = f"order: {names[0]} ≤ {names[1]}, not {less.text} > {more.text}"
                yield _report(context, table, row, mean, arithmetic, less, more)


def _get_exact(cell: Quantity | None) -> Quantity | None:
    return None if cell is None or cell.bound or cell.top is not None else cell


def _is_above(less: Quantity, more: Quantity) -> bool:
    return less.interval(0.5)[0] > more.interval(0.5)[1]


def _report(
    context: Context, table: Table, row: int, column: Column, arithmetic: str, less: Quantity, more: Quantity
) -> Finding:
    factor = compute_factor(less.value, more.value)
    return context.report_cell(table, row, column.index, "order", arithmetic, factor, CERTAIN)


def check_percentile_statements(context: Context) -> Iterator[Finding]:
    """Check "p50 12 ms, p99 9 ms" in one sentence."""
    for facts in context.group_by_statement():
        ranked = [
            (where[0], fact)
            for fact in facts
            if fact.quantity.dims == q.TIME
            and _get_exact(fact.quantity)
            and len(fact.label) < 30
            and (where := parse_percentile(fact.label)) is not None
            and not where[1].strip(" ,;:=/and(is)of")
        ]
        for (low, first), (high, second) in pairwise(ranked):
            if first.sentence == second.sentence and low < high and _is_above(first.quantity, second.quantity):
                arithmetic = f"order: {first.label} {first.quantity.text} > {second.label} {second.quantity.text}"
                factor = first.quantity.value / second.quantity.value
                yield context.report(second, "order", arithmetic, factor, CERTAIN)
