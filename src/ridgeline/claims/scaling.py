"""Columns that compare rows with each other: speed-up, efficiency."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ridgeline.claims.columns import COUNTED, Column, find_roles, label_of
from ridgeline.claims.context import Context
from ridgeline.claims.document import Table
from ridgeline.claims.finding import (
    Finding,
    Interval,
    digits,
    times,
)
from ridgeline.claims.quantities import Quantity, find
from ridgeline.claims.readings import LESS_IS_BETTER, MORE_IS_BETTER, Reading, Try, judge, ratio


def check(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    for column in find_roles(found, "speedup"):
        kin = _kin(found, column)
        yield from judge(context, table, column, _speedups(context, table, kin, column), "speed-up", 0.9)
    for column in find_roles(found, "efficiency"):
        if find_roles(found, "n") or _numbered(table, found):
            readings = _efficiencies(table, _kin(found, column))
            yield from judge(context, table, column, readings, "efficiency", 0.93)
            if not readings:
                yield from _too_efficient(context, table, column)


def _kin(found: list[Column], column: Column) -> list[Column]:
    """Where columns come in groups ("Blocking time", "Blocking speed-up"), those of the group and those of none."""
    common = {word for word in column.words if 1 < sum(word in other.words for other in found) < len(found)}
    groups = {
        word for word in common if any(c is not column and c.role == column.role and word not in c.words for c in found)
    }
    if not groups:
        return found
    mine = [c for c in found if c.words & groups]
    return [c for c in found if c in mine or not any(c.role == other.role for other in mine)]


def _speedups(context: Context, table: Table, found: list[Column], column: Column) -> list[Reading]:
    """Against the row that says 1 ×; else against the same row of a table with the same columns."""
    measured = [c for c in found if c.role in MORE_IS_BETTER + LESS_IS_BETTER]
    ones = [r for r, cell in enumerate(column.cells) if cell is not None and cell.value == 1]
    named = [r for r in range(len(table.rows)) if "baseline" in label_of(table, r, found).lower()]
    readings: list[Reading] = []
    bases = ones or named
    if len(bases) > 1:  # each group of rows has its own
        readings += [_grouped(c, bases) for c in measured]
    for base in bases:
        readings += [_against(c, c.cells[base]) for c in measured]
    if readings:
        return readings
    for other, others in context.tables:
        if other is table or other.line > table.line:
            continue
        for mine in measured:
            for theirs in (c for c in others if c.role == mine.role and c.name == mine.name):
                if len(theirs.cells) == len(mine.cells):
                    readings.append(_rowwise(mine, theirs))
                readings += [_against(mine, cell) for cell in theirs.cells]
    pairs = [(a, b) for a in measured for b in measured if a is not b and a.role == b.role and a.place < b.place]
    for first, second in pairs:
        readings += [_rowwise(first, second), _rowwise(second, first)]
    return readings


def _against(measured: Column, base: Quantity | None) -> Reading:
    out: Reading = {}
    for row, cell in enumerate(measured.cells):
        if cell is None or base is None or not cell.value or not base.value or cell is base or cell.bound:
            continue
        up = measured.role in MORE_IS_BETTER
        better, worse = (cell, base) if up else (base, cell)
        value, middle = ratio(better, worse)
        out[row] = Try(value, middle, f"{better.text} / {worse.text}")
    return out


def _grouped(measured: Column, bases: list[int]) -> Reading:
    """Each row against the last base above it."""
    out: Reading = {}
    for row in range(len(measured.cells)):
        above = [base for base in bases if base <= row]
        if above:
            out |= {r: told for r, told in _against(measured, measured.cells[above[-1]]).items() if r == row}
    return out


def _rowwise(mine: Column, theirs: Column) -> Reading:
    out: Reading = {}
    for row, (cell, base) in enumerate(zip(mine.cells, theirs.cells, strict=True)):
        if cell is None or base is None or not cell.value or not base.value:
            continue
        better, worse = (cell, base) if mine.role in MORE_IS_BETTER else (base, cell)
        value, middle = ratio(better, worse)
        out[row] = Try(value, middle, f"{better.text} / {worse.text}")
    return out


def _numbered(table: Table, found: list[Column]) -> list[Column]:
    """Rows called "4 GPUs", "Parallel 4": the last whole number of a label is how many."""
    named = (c for c in found if c.role == "label" or any(x and re.search(COUNTED, x.noun) for x in c.cells))
    for column in named:
        told = [find(row.cells[column.place])[-1:] for row in table.rows]
        cells = tuple(q[0] if q and q[0].value.is_integer() and q[0].unit == "" else None for q in told)
        if sum(cell is not None for cell in cells) >= max(2, len(cells) - 1):
            return [replace(column, role="n", cells=cells)]
    return []


def _efficiencies(table: Table, found: list[Column]) -> list[Reading]:
    readings: list[Reading] = []
    for n in find_roles(found, "n") or _numbered(table, found):
        counted = [(r, c) for r, c in enumerate(n.cells) if c is not None and c.value > 0]
        if len({c.value for _, c in counted}) < 2:
            continue
        base, fewest = min(counted, key=lambda pair: pair[1].value)
        for column in found:
            first = column.cells[base]
            if column.role not in ("speedup", "rate", "time") or first is None or not first.value:
                continue
            strong: Reading = {}
            weak: Reading = {}
            for row, count in counted:
                cell = column.cells[row]
                if cell is None or not cell.value:
                    continue
                more = count.value / fewest.value
                factor, words = f"{digits(more)} × more", f"{cell.text} / {first.text}"
                if column.role == "time":
                    value, middle = ratio(first, cell)
                    weak[row] = Try(value, middle, f"{first.text} / {cell.text}")
                    words = f"{first.text} / {cell.text}"
                elif column.role == "speedup":
                    value, middle, words = cell.interval(), cell.value, cell.text
                    one = _divided(value, middle, count.value, f"{words} / {digits(count.value)}")
                    if fewest.value == 1 or first.value == fewest.value:
                        strong[row] = one
                        continue
                else:
                    value, middle = ratio(cell, first)
                    weak[row] = Try(value, middle, words)
                strong[row] = _divided(value, middle, more, f"{words} / {digits(more)} ({factor})")
            readings += [strong] + ([weak] if column.role == "time" else [])
    return readings


def _divided(value: Interval, middle: float, by: float, words: str) -> Try:
    return Try(times(value, (1 / by, 1 / by)), middle / by, words)


def _too_efficient(context: Context, table: Table, column: Column) -> Iterator[Finding]:
    for row, cell in enumerate(column.cells):
        if cell is not None and cell.interval(1.0)[0] > 1.005 and cell.value < 100:
            what = f"an efficiency is at most 100 %, not {cell.text}"
            where, says = table.at(row, column.place), table.says(row, column.place)
            yield Finding(context.document.path, where, "efficiency", says, what, 0.6)
