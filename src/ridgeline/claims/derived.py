"""Columns that follow from others, whatever they are called: a product, a quotient, a sum that most rows show.

A relation between two or three columns is believed only if its rows could not agree by chance (each row that holds
within its rounding adds evidence), and if one side is of a kind that people compute: a share, a factor, a rate, money,
"… per …", or a number in the unit that the others multiply to. Rows that fall out of it are findings, unless they
agree with each other on something else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import AVERAGED, Column, heads, label_of
from ridgeline.claims.context import Context
from ridgeline.claims.document import Table
from ridgeline.claims.finding import (
    SLACK,
    Finding,
    Interval,
    apart,
    confidence,
    digits,
    overlap,
    shown,
    units_mixed,
)
from ridgeline.claims.quantities import Quantity

ENOUGH = {1: 11.0, 2: 15.0}  # bits of evidence against chance, by how many columns the target is made of
_COMPUTED = re.compile(
    r"\bper\b|/|ratio|relative|norm|speed|\bvs\b|rate\b|each|score|improve|gain|shrink|compress", re.I
)
_COMPOSITE = (q.NONE, q.MONEY, q.RATE, q.BANDWIDTH, q.FLOPS, q.PRICE)
_WIDEST, _LONGEST = 14, 100  # columns, rows; more are a data set, not a report


class Source:
    """A column as the search wants it: by row its ends, exactly and roughly, and what kind it is."""

    def __init__(self, column: Column) -> None:
        self.column, self.dims, self.name = column, column.dims, column.name
        told = [c if c is not None and c.value > 0 and not c.bound and c.top is None else None for c in column.cells]
        self.stated = [None if c is None else _ends(c, 1.0) for c in told]
        self.used = [None if c is None else _ends(c, 0.5) for c in told]
        self.logs = [None if c is None else math.log(c.value) for c in told]
        filled = [c for c in column.cells if c is not None]
        self.measured = 2 * sum(c.significant >= 3 for c in filled) >= len(filled)  # not round settings
        self.whole = all(float(c.value).is_integer() for c in filled)
        self.share = any(c.share for c in filled)
        self.ratio = (
            column.role == "speedup"
            or any(c.factor for c in filled)
            or (column.dims == q.NONE and bool(re.search(r"ratio|relative|normali[sz]ed|\bvs\b", column.name, re.I)))
            or (column.dims == q.NONE and sum(c.value == 1 and c.step < 1 for c in filled) == 1)  # "1.00": the base
        )
        self.unit_price = bool(re.search(r"price|cost|usd|[$€]", column.name, re.I)) and bool(
            re.search(r"\bper\b|/", column.name)
        )
        self.computed = bool(_COMPUTED.search(column.name))
        self.per = bool(re.search(r"\bper\b|/", column.name)) and column.dims in _COMPOSITE


Parts = tuple[tuple[Source, int], ...]


@dataclass(frozen=True)
class Law:
    """`target` = constant × product of columns to powers of ±1, by row the constant that the row shows."""

    target: Column
    parts: tuple[tuple[Column, int], ...]
    constants: dict[int, Interval]
    centre: float
    held: frozenset[int]
    bits: float
    natural: bool  # the constant is one


def check(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    numbers = [Source(c) for c in found if c.role != "label" and sum(cell is not None for cell in c.cells) >= 3]
    if not 2 <= len(numbers) <= _WIDEST or len(table.rows) > _LONGEST:
        return
    rows = [r for r in range(len(table.rows)) if not AVERAGED.match(label_of(table, r, found))]
    counts = [heads(table, row, found) for row in range(len(table.rows))]
    accused: set[int] = set()
    laws = sorted(_laws(numbers, rows), key=lambda law: (len(law.parts), -law.bits))
    for law in laws:
        several = {row for row in law.constants if _of_several(law, row, counts[row])}
        for row in sorted(set(law.constants) - law.held - _others(law) - several):
            sure = law.natural and len(law.parts) == 2  # if the column holds by another law, one of the parts does not
            if row not in accused and (sure or not _held_elsewhere(laws, law, row)):
                accused.add(row)
                yield _finding(context, table, law, row)


def _laws(numbers: list[Source], rows: list[int]) -> Iterator[Law]:
    for target in numbers:
        others = [c for c in numbers if c is not target]
        for part in others:
            for power in (1, -1):
                yield from _law(target, ((part, power),), rows)
        for first, second in combinations(others, 2):
            for powers in ((1, 1), (1, -1), (-1, 1)):
                yield from _law(target, ((first, powers[0]), (second, powers[1])), rows)


def _plausible(target: Source, parts: Parts) -> bool:
    """Whether people compute such a column from such others."""
    dims = q.NONE
    for part, power in parts:
        dims = q.combined(dims, part.dims, power)
    if len(parts) == 1:
        part, power = parts[0]
        if not part.measured or not target.measured:
            return False
        if target.share or target.ratio:  # of a whole, or against a base, that never changes
            return power > 0 or target.ratio
        if target.dims in (q.RATE, q.BANDWIDTH, q.FLOPS) and dims in (q.NONE, q.BYTES, q.WORK):
            return power > 0  # in a time that never changes
        return dims == target.dims and part.column.role == target.column.role and dims != q.NONE
    if target.share or target.ratio:
        return dims == q.NONE
    if target.dims == q.NONE and dims == q.NONE:  # whole numbers of whole numbers: machines × cores
        exact = target.whole and all(part.whole and power > 0 for part, power in parts)
        return exact or target.computed
    return dims == target.dims or target.per or (target.dims == q.MONEY and any(p.unit_price for p, _ in parts))


def _law(target: Source, parts: Parts, rows: list[int]) -> Iterator[Law]:
    if not _plausible(target, parts):
        return
    constants = _constants(target, parts, rows)
    if len(constants) < 3:
        return
    one, common = _holding(constants, 1.0), _common(constants)
    held = _holding(constants, common)
    natural = len(one) >= len(held)
    if natural and len(parts) == 1:
        return  # equal columns are no law
    held, centre = (one, 1.0) if natural else (held, common)
    out = len(constants) - len(held)
    if out > max(1, len(constants) // 4) or len(held) < (2 if natural else 3):
        return
    logs = [[source.logs[row] or 0.0 for row in held] for source in (target, *(part for part, _ in parts))]
    ranges = [max(column) - min(column) for column in logs]
    if len(parts) == 2 and min(ranges[1:]) < 0.05 and not natural:
        return  # one of them hardly changes: it says nothing
    ones = [all(abs(value) < 0.15 for value in column) for column in logs[1:]]
    if any(near and part.dims == q.NONE for near, (part, _) in zip(ones, parts, strict=True)):
        return  # times nearly one: the others are near each other, no more
    if not natural and 0.85 < centre < 1.15 and units_mixed(max(centre, 1 / centre), target.dims) is None:
        return  # nearly one: they are near each other, not made of each other
    bits = _bits(constants, held, ranges, natural)
    if bits >= (ENOUGH[1] if natural and target.ratio else ENOUGH[len(parts)]):
        columns = tuple((part.column, power) for part, power in parts)
        yield Law(target.column, columns, constants, centre, held, bits, natural)


def _constants(target: Source, parts: Parts, rows: list[int]) -> dict[int, Interval]:
    constants: dict[int, Interval] = {}
    for row in rows:
        ends = target.stated[row]
        for part, power in parts:
            used = part.used[row]
            if ends is None or used is None:
                ends = None
                break
            ends = (ends[0] / used[1], ends[1] / used[0]) if power > 0 else (ends[0] * used[0], ends[1] * used[1])
        if ends is not None:
            constants[row] = ends
    return constants


def _common(constants: dict[int, Interval]) -> float:
    """The middle of the stretch that most intervals cover."""
    ends = sorted([(low, -1) for low, _ in constants.values()] + [(high, 1) for _, high in constants.values()])
    depth = best = 0
    centre = 1.0
    for place, (end, change) in enumerate(ends):
        depth -= change
        if depth > best and place + 1 < len(ends):
            best, centre = depth, (end + ends[place + 1][0]) / 2
    return centre


def _ends(cell: Quantity, steps: float) -> Interval:
    exact = cell.dims == q.NONE and cell.step == 1 and not cell.about
    low, high = cell.interval(0.0 if exact and cell.value < 1e5 else steps, loosely=not exact)
    return max(low, 1e-3 * cell.value), high


def _holding(constants: dict[int, Interval], centre: float) -> frozenset[int]:
    return frozenset(row for row, ends in constants.items() if overlap(ends, (centre, centre), SLACK))


def _bits(constants: dict[int, Interval], held: frozenset[int], ranges: list[float], natural: bool) -> float:
    """How unlikely it is that so many rows agree: each within its rounding, of what the columns range over."""
    room = max(1.0, *ranges) if natural else min(ranges[0], max(ranges[1:]))
    widths = sorted(max(math.log(constants[row][1] / constants[row][0]), 2 * SLACK) for row in held)
    told = widths if natural else widths[:-1]
    return sum(max(0.0, math.log2(room / width)) if room > 0 else 0.0 for width in told) + (6.0 if natural else 0.0)


def _others(law: Law) -> set[int]:
    """Rows that fall out together, on another constant: a group of their own."""
    out = sorted(set(law.constants) - law.held)
    return {a for a in out for b in out if a != b and overlap(law.constants[a], law.constants[b], SLACK)}


def _of_several(law: Law, row: int, counts: set[float]) -> bool:
    """Whether a row called "c (2 GPUs)" holds for that many."""
    ends, wanted = law.constants[row], [law.centre * m for n in counts for m in (n, 1 / n)]
    return any(overlap(ends, (value, value), SLACK) for value in wanted)


def _held_elsewhere(laws: list[Law], law: Law, row: int) -> bool:
    """Another law of the same target that the row keeps, and most others too."""
    return any(
        other.target is law.target and row in other.held and len(other.held) >= len(law.held)
        for other in laws
        if other is not law
    )


def _finding(context: Context, table: Table, law: Law, row: int) -> Finding:
    stated = law.target.cells[row]
    assert stated is not None  # noqa: S101
    value, sides = law.centre, [] if law.natural else [digits(law.centre)]
    below = ""
    for part, power in law.parts:
        cell = part.cells[row]
        assert cell is not None  # noqa: S101
        value *= cell.value**power
        if power > 0:
            sides.append(cell.text)
        else:
            below += f" / {cell.text}"
    factor = apart(stated.value, value)
    mixed = units_mixed(factor, law.target.dims)
    told = f"{value:.1%}" if stated.share else shown(value, law.target.dims) + ("×" if stated.factor else "")
    what = (
        f"{law.target.name}: {' × '.join(sides) or '1'}{below} = {told}, not {stated.text}; "
        f"so it is in {len(law.held)} of {len(law.constants)} rows"
    )
    kind = "unit" if mixed else "derived"
    place = law.target.place
    return Finding(
        context.document.path, table.at(row, place), kind, table.says(row, place), what, confidence(factor, 0.8)
    )
