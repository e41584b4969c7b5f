"""What must rise: the fastest, the median, the 99th percentile, the slowest; a mean lies between the ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import Column
from ridgeline.claims.context import Context, by_line, say
from ridgeline.claims.document import Table
from ridgeline.claims.finding import Finding, apart, confidence
from ridgeline.claims.quantities import Quantity

_LEAST, _MOST = -1.0, 101.0
_PLACE = re.compile(
    r"\bp-?(?P<p>\d{1,2}(?:\.\d+)?|99\d|999)\b|\b(?P<th>\d{1,2}(?:\.\d+)?)(?:th|st|nd|rd)?\s?(?:%-?ile|percentile)|"
    r"\b(?P<median>median|med)\b|\b(?P<least>min(?:imum)?)\b|\b(?P<most>max(?:imum)?)\b",
    re.I,
)
_RISES = (q.TIME, q.NONE, q.BYTES)  # of a rate the 99th percentile may be the one that 99 % exceed
_MEAN = re.compile(r"\b(?:mean|avg|average)\b", re.I)
_UNITS = re.compile(r"[(\[][^)\]]*[)\]]|[,_]")


def place(name: str) -> tuple[float, str] | None:
    """Where in a distribution a name stands, and of what: "TTFT p99 (ms)" is (99, "ttft")."""
    bare = _UNITS.sub(" ", name)
    found = _PLACE.search(bare)
    if found is None:
        return None
    rest = " ".join((bare[: found.start()] + bare[found.end() :]).lower().split())
    if found["least"] or found["most"]:
        return (_LEAST if found["least"] else _MOST), rest
    if found["median"]:
        return 50.0, rest
    told = found["p"] or found["th"]
    value = float(told)
    if "." not in told and len(told) == 3:
        value = float(f"{told[:2]}.{told[2:]}")  # p999
    return value, rest


def check(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    groups: dict[tuple[str, q.Dims], list[tuple[float, Column]]] = {}
    for column in found:
        if column.dims in _RISES and not column.mixed and (told := place(column.name)):
            groups.setdefault((told[1], column.dims), []).append((told[0], column))
    for (stem, dims), group in groups.items():
        ranked = sorted(group, key=lambda pair: pair[0])
        means = [c for c in found if c.dims == dims and _MEAN.search(c.name) and _stem(c.name) == stem]
        for row in range(len(table.rows)):
            yield from _row(context, table, row, ranked, means)
        for mean in means:
            for rank, column in ranked:
                if 90 <= rank < _MOST:
                    yield from _mean_below(context, table, mean, column)


def _mean_below(context: Context, table: Table, mean: Column, column: Column) -> Iterator[Finding]:
    """A mean may lie above a high percentile, but not in one row alone."""
    told = [(r, a, b) for r, (a, b) in enumerate(zip(mean.cells, column.cells, strict=True)) if _plain(a) and _plain(b)]
    above = [(r, a, b) for r, a, b in told if a and b and _above(a, b)]
    if len(above) == 1 and len(told) >= 3:
        row, more, less = above[0]
        assert more is not None and less is not None  # noqa: S101, PT018
        what = f"order: {mean.name} ≤ {column.name} in the other rows, not {more.text} > {less.text}"
        yield _finding(context, table, row, column, what, more, less, 0.75)


def _stem(name: str) -> str:
    return " ".join(_MEAN.sub("", _UNITS.sub(" ", name)).lower().split())


def _row(
    context: Context, table: Table, row: int, ranked: list[tuple[float, Column]], means: list[Column]
) -> Iterator[Finding]:
    told = [(rank, column, cell) for rank, column in ranked if (cell := _plain(column.cells[row])) is not None]
    for (low, lower, less), (high, higher, more) in pairwise(told):
        if low < high and _above(less, more):
            what = f"order: {lower.name} ≤ {higher.name}, not {less.text} > {more.text}"
            yield _finding(context, table, row, higher, what, less, more)
    ends = [(rank, column, cell) for rank, column, cell in told if rank in (_LEAST, _MOST)]
    for mean in means:
        middle = _plain(mean.cells[row])
        for rank, column, cell in ends if middle is not None else []:
            assert middle is not None  # noqa: S101
            less, more = (cell, middle) if rank == _LEAST else (middle, cell)
            if _above(less, more):
                names = (column.name, mean.name) if rank == _LEAST else (mean.name, column.name)
                what = f"order: {names[0]} ≤ {names[1]}, not {less.text} > {more.text}"
                yield _finding(context, table, row, mean, what, less, more)


def _plain(cell: Quantity | None) -> Quantity | None:
    return None if cell is None or cell.bound or cell.top is not None else cell


def _above(less: Quantity, more: Quantity) -> bool:
    return less.interval(0.5)[0] > more.interval(0.5)[1]


def _finding(
    context: Context,
    table: Table,
    row: int,
    column: Column,
    what: str,
    less: Quantity,
    more: Quantity,
    sure: float = 0.9,
) -> Finding:
    sure = confidence(1.04 * apart(less.value, more.value), sure)
    where = table.at(row, column.place)
    return Finding(context.document.path, where, "order", table.says(row, column.place), what, sure)


def statements(context: Context) -> Iterator[Finding]:
    """ "p50 12 ms, p99 9 ms" in one sentence."""
    for facts in by_line(context):
        told = [
            (where[0], fact)
            for fact in facts
            if fact.quantity.dims == q.TIME
            and _plain(fact.quantity)
            and len(fact.label) < 30
            and (where := place(fact.label)) is not None
            and not where[1].strip(" ,;:=/and(is)of")
        ]
        for (low, first), (high, second) in pairwise(told):
            if first.said == second.said and low < high and _above(first.quantity, second.quantity):
                what = f"order: {first.label} {first.quantity.text} > {second.label} {second.quantity.text}"
                yield say(context, second, "order", what, 1.04 * first.quantity.value / second.quantity.value, 0.85)
