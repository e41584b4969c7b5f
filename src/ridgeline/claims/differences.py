"""Columns of differences and of shares: "+8.5 % faster", "before, after, saved", "ours as a share of theirs"."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ridgeline.claims.columns import AVERAGED, Column, find_roles, label_of
from ridgeline.claims.context import Context
from ridgeline.claims.document import Table
from ridgeline.claims.finding import SLACK, Finding, Interval, digits, over, overlap
from ridgeline.claims.readings import LESS_IS_BETTER, MORE_IS_BETTER, Reading, Try, judge, ratio


def check(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    for column in find_roles(found, "delta"):
        readings = [*_deltas(found, column), *_of_base(found, column), *_from_base(table, found, column)]
        yield from judge(context, table, column, readings, "difference", 0.9)
    for column in [*find_roles(found, "share"), *find_roles(found, "percent")]:
        readings = [*_shares(found), *_of_whole(table, found)]
        yield from judge(context, table, column, readings, "share", 0.85, strict=True)
    for column in found:
        if re.search(r"diff|delta|shift|saved|savings|change|gap", column.name, re.I) and column.role not in (
            "label",
            "delta",
        ):
            yield from judge(context, table, column, _gaps(found, column), "difference", 0.85, strict=True)


def _shares(found: list[Column]) -> list[Reading]:
    """ "ours, theirs, ours as a share of theirs"."""
    return [
        {
            row: Try(ratio(a, b)[0], a.value / b.value, f"{a.text} / {b.text}")
            for row, (a, b) in enumerate(zip(first.cells, second.cells, strict=True))
            if a is not None and b is not None and a.value and b.value
        }
        for first, second in _pairs(found)
    ]


def _gaps(found: list[Column], column: Column) -> list[Reading]:
    """ "before, after, the difference", in the same unit."""
    readings: list[Reading] = []
    for first, second in _pairs([c for c in found if c.dims == column.dims and c.place != column.place]):
        reading: Reading = {}
        for row, (a, b) in enumerate(zip(first.cells, second.cells, strict=True)):
            if a is not None and b is not None and a.value > b.value:
                (low, high), (less, more) = a.interval(), b.interval()
                reading[row] = Try((low - more, high - less), a.value - b.value, f"{a.text} − {b.text}")
        readings.append(reading)
    return readings


def _of_base(found: list[Column], column: Column) -> list[Reading]:
    """ "vs full: 100 %, 91 %, 93 %": each row as a share of the one that says 100 %."""
    bases = [r for r, cell in enumerate(column.cells) if cell is not None and cell.value == 1]
    measured = [c for c in found if c.role in MORE_IS_BETTER + LESS_IS_BETTER]
    readings: list[Reading] = []
    for c in measured if len(bases) == 1 else []:
        base = c.cells[bases[0]]
        told = {r: cell for r, cell in enumerate(c.cells) if cell is not None and cell.value and r != bases[0]}
        if base is not None and base.value:
            readings.append({r: Try(*ratio(cell, base), f"{cell.text} / {base.text}") for r, cell in told.items()})
    return readings


def _from_base(table: Table, found: list[Column], column: Column) -> list[Reading]:
    """ "vs. baseline: –, +52 %, +140 %": how far each row is from the one that has no figure of its own."""
    bare = [r for r, cell in enumerate(column.cells) if cell is None]
    readings: list[Reading] = []
    for c in found if len(bare) == 1 and column.place else []:
        base = c.cells[bare[0]]
        if c.role not in MORE_IS_BETTER + LESS_IS_BETTER + ("memory", "size", "number") or base is None:
            continue
        told = {r: cell for r, cell in enumerate(c.cells) if cell is not None and cell.value and r != bare[0]}
        if base.value:
            readings.append(
                {
                    r: Try(_absolute(low - 1, high - 1), abs(middle - 1), f"{cell.text} / {base.text} − 1")
                    for r, cell in told.items()
                    for (low, high), middle in [ratio(cell, base)]
                }
            )
    return readings


def _of_whole(table: Table, found: list[Column]) -> list[Reading]:
    """Each row's part of the total: of the row that is called so, else of the sum."""
    last = len(table.rows) - 1
    readings: list[Reading] = []
    for c in found:
        told = {r: cell for r, cell in enumerate(c.cells) if cell is not None and cell.value}
        named = AVERAGED.match(label_of(table, last, found)) is not None
        parts = {r: cell for r, cell in told.items() if not (named and r == last)}
        if c.role in ("label", "share", "percent", "delta", "efficiency", "speedup") or len(parts) < 3:
            continue
        total = told.get(last) if named else None
        ends = [cell.interval(loosely=False) for cell in parts.values()]
        whole = total.interval() if total else (sum(low for low, _ in ends), sum(high for _, high in ends))
        middle = total.value if total else sum(cell.value for cell in parts.values())
        words = total.text if total else f"the sum {digits(sum(cell.written for cell in parts.values()))}"
        readings.append(
            {
                r: Try(over(cell.interval(), whole), cell.value / middle, f"{cell.text} / {words}")
                for r, cell in parts.items()
            }
        )
    return readings


def _deltas(found: list[Column], column: Column) -> list[Reading]:
    """Two columns of one kind beside a column of percentages."""
    numbers = [c for c in found if c.role in (*MORE_IS_BETTER, *LESS_IS_BETTER, "size", "memory", "number", "count")]
    readings: list[Reading] = []
    for first in numbers:
        for second in numbers:
            if first.place == second.place or not (first.dims == second.dims or "number" in (first.role, second.role)):
                continue
            over_second: Reading = {}
            over_first: Reading = {}
            for row, (a, b) in enumerate(zip(first.cells, second.cells, strict=True)):
                if a is None or b is None or not a.value or not b.value:
                    continue
                (low, high), middle = ratio(a, b)
                over_second[row] = Try(_absolute(low - 1, high - 1), abs(middle - 1), f"{a.text} / {b.text} − 1")
                over_first[row] = Try(_absolute(1 - high, 1 - low), abs(1 - middle), f"1 − {a.text} / {b.text}")
            both = [over_second, over_first]
            if first.dims != second.dims:  # one has its unit in its other cells, perhaps; then most rows hold
                both = [reading for reading in both if 2 * _holds(reading, column) >= max(4, len(reading))]
            readings += both
    return readings


def _holds(reading: Reading, column: Column) -> int:
    cells = [(column.cells[row], told) for row, told in reading.items()]
    return sum(cell is not None and overlap(cell.interval(1.0), told.value, SLACK) for cell, told in cells)


def _absolute(low: float, high: float) -> Interval:
    if low <= 0 <= high:
        return 0.0, max(-low, high)
    return (low, high) if low > 0 else (-high, -low)


def _pairs(found: list[Column]) -> Iterator[tuple[Column, Column]]:
    numbers = [c for c in found if c.role in (*MORE_IS_BETTER, *LESS_IS_BETTER, "size", "memory", "number", "count")]
    return ((a, b) for a in numbers for b in numbers if a.place != b.place and a.dims == b.dims)
