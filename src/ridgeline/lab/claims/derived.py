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
from itertools import combinations, pairwise

from ridgeline.lab.claims import quantities as q
from ridgeline.lab.claims.columns import Column, label_of
from ridgeline.lab.claims.context import Context
from ridgeline.lab.claims.document import Table
from ridgeline.lab.claims.finding import (
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
from ridgeline.lab.claims.quantities import Quantity

AVERAGED = re.compile(
    r"\W*(?:geo|arith\w*|harm\w*|grand |overall )?\s?-?(?:mean|average|avg|median|total|sum|overall)\b", re.I
)
ENOUGH = {1: 11.0, 2: 15.0}  # bits of evidence against chance, by how many columns the target is made of
_COMPUTED = re.compile(
    r"\bper\b|/|ratio|relative|norm|speed|\bvs\b|rate\b|each|score|improve|gain|shrink|compress", re.I
)
_WIDEST = 14  # columns; more are a data set, not a report


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
    numbers = [c for c in found if c.role != "label" and sum(cell is not None for cell in c.cells) >= 3]
    if not 2 <= len(numbers) <= _WIDEST:
        return
    rows = [r for r in range(len(table.rows)) if not AVERAGED.match(label_of(table, r, found))]
    accused: set[int] = set()
    laws = sorted(_laws(numbers, rows), key=lambda law: (len(law.parts), -law.bits))
    for law in laws:
        for row in sorted(set(law.constants) - law.held - _others(law)):
            if row not in accused and not _held_elsewhere(laws, law, row):
                accused.add(row)
                yield _finding(context, table, law, row)
    yield from _sums(context, table, numbers, rows)


def _laws(numbers: list[Column], rows: list[int]) -> Iterator[Law]:
    for target in numbers:
        others = [c for c in numbers if c is not target]
        for part in others:
            for power in (1, -1):
                yield from _law(target, ((part, power),), rows)
        for first, second in combinations(others, 2):
            for powers in ((1, 1), (1, -1), (-1, 1)):
                yield from _law(target, ((first, powers[0]), (second, powers[1])), rows)


def _plausible(target: Column, parts: tuple[tuple[Column, int], ...]) -> bool:
    """Whether people compute such a column from such others."""
    dims = q.NONE
    for part, power in parts:
        dims = q.combined(dims, part.dims, power)
    share = any(c is not None and c.share for c in target.cells)
    factor = target.role == "speedup" or any(c is not None and c.factor for c in target.cells)
    ratio = factor or (
        target.dims == q.NONE and bool(re.search(r"ratio|relative|normali[sz]ed|\bvs\b", target.name, re.I))
    )
    if len(parts) == 1:
        part, power = parts[0]
        if not _measured(part) or not _measured(target):
            return False
        if share or ratio:  # of a whole, or against a base, that never changes
            return power > 0 or ratio
        if target.dims in (q.RATE, q.BANDWIDTH, q.FLOPS) and dims in (q.NONE, q.BYTES, q.WORK):
            return power > 0  # in a time that never changes
        return dims == target.dims and part.role == target.role and dims != q.NONE
    if share or ratio:
        return dims == q.NONE
    if target.dims == q.NONE and dims == q.NONE:
        return _exact(target, parts) or bool(_COMPUTED.search(target.name))
    return dims == target.dims or bool(re.search(r"\bper\b|/", target.name) and _composite(target))


def _composite(column: Column) -> bool:
    return column.dims in (q.NONE, q.MONEY, q.RATE, q.BANDWIDTH, q.FLOPS, q.PRICE)


def _measured(column: Column) -> bool:
    """Not a row of round settings."""
    told = [cell for cell in column.cells if cell is not None]
    return sum(_digits(cell) >= 3 for cell in told) * 2 >= len(told)


def _digits(cell: Quantity) -> int:
    digits = re.sub(r"[^\d.]", "", re.sub(r"[A-Za-z/]\S*", "", cell.text)).lstrip("0.")
    return len(digits.replace(".", "")) if "." in digits else len(digits.rstrip("0"))


def _alike(a: Column, b: Column) -> bool:
    plain = ("number", "count", "n")
    return a.role == b.role or (a.role in plain and b.role in plain)


def _exact(target: Column, parts: tuple[tuple[Column, int], ...]) -> bool:
    """Whole numbers that multiply to whole numbers: machines × cores."""
    columns = [target, *(part for part, _ in parts)]
    whole = all(cell is None or float(cell.value).is_integer() for column in columns for cell in column.cells)
    return whole and all(power > 0 for _, power in parts)


def _law(target: Column, parts: tuple[tuple[Column, int], ...], rows: list[int]) -> Iterator[Law]:
    if not _plausible(target, parts):
        return
    constants: dict[int, Interval] = {}
    logs: dict[int, list[float]] = {}
    for row in rows:
        cells = [target.cells[row], *(part.cells[row] for part, _ in parts)]
        told = [c for c in cells if c is not None and c.value > 0 and not c.bound and c.top is None]
        if len(told) < len(cells):
            continue
        constants[row] = _constant(told, [power for _, power in parts])
        logs[row] = [math.log(cell.value) for cell in told]
    if len(constants) < 3:
        return
    one = _holding(constants, 1.0)
    ends = sorted({end for interval in constants.values() for end in interval})
    centres = [(a + b) / 2 for a, b in pairwise(ends)]
    common = max(centres, key=lambda c: len(_holding(constants, c)), default=1.0)
    held = _holding(constants, common)
    natural = len(one) >= len(held)
    if natural and len(parts) == 1:
        return  # equal columns are no law
    held, centre = (one, 1.0) if natural else (held, common)
    out = len(constants) - len(held)
    if out > max(1, len(constants) // 4) or len(held) < (2 if natural else 3):
        return
    ranges = [max(column) - min(column) for column in zip(*(logs[row] for row in held), strict=True)]
    if len(parts) == 2 and min(ranges[1:]) < 0.05 and not natural:
        return  # one of them hardly changes: it says nothing
    ones = [all(abs(logs[row][place]) < 0.15 for row in held) for place in range(1, len(parts) + 1)]
    if any(near and part.dims == q.NONE for near, (part, _) in zip(ones, parts, strict=True)):
        return  # times nearly one: the others are near each other, no more
    if not natural and 0.85 < centre < 1.15 and units_mixed(max(centre, 1 / centre), q.BYTES) is None:
        return  # nearly one: they are near each other, not made of each other
    bits = _bits(constants, held, ranges, natural)
    if bits >= ENOUGH[len(parts)]:
        yield Law(target, parts, constants, centre, held, bits, natural)


def _constant(cells: list[Quantity], powers: list[int]) -> Interval:
    low, high = _ends(cells[0], 1.0)
    for cell, power in zip(cells[1:], powers, strict=True):
        a, b = _ends(cell, 0.5)
        low, high = (low / b, high / a) if power > 0 else (low * a, high * b)
    return low, high


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


def _sums(context: Context, table: Table, numbers: list[Column], rows: list[int]) -> Iterator[Finding]:
    """ "hits, misses, requests": two or more columns that add up to another in most rows; or their mean."""
    for whole in numbers:
        mean = re.search(r"\b(?:mean|avg|average)\b", whole.name, re.I) is not None
        same = [c for c in numbers if c is not whole and c.dims == whole.dims and _alike(c, whole)]
        groups: list[tuple[Column, ...]] = [] if mean else [*combinations(same, 2)]
        groups += [tuple(same)] if len(same) > 2 or (mean and len(same) == 2) else []
        for group in groups:
            told = {
                row: ([c.cells[row] for c in group], whole.cells[row])
                for row in rows
                if whole.cells[row] is not None and all(c.cells[row] is not None for c in group)
            }
            held = {
                row
                for row, (parts, stated) in told.items()
                if stated and _adds(parts, stated, len(parts) if mean else 1)
            }
            strong = [r for r in held if max(_digits(cell) for cell in (*told[r][0], told[r][1]) if cell) >= 3]
            if len(held) < max(3, 0.75 * len(told)) or len(strong) < 3 or len(held) == len(told):
                continue
            for row in sorted(set(told) - held):
                parts, stated = told[row]
                assert stated is not None  # noqa: S101
                value = sum(p.value for p in parts if p is not None) / (len(parts) if mean else 1)
                words = " + ".join(p.text for p in parts if p is not None)
                words = f"({words}) / {len(parts)}" if mean else words
                what = f"{whole.name}: {words} = {shown(value, whole.dims)}, not {stated.text}; "
                what += f"so it is in {len(held)} of {len(told)} rows"
                sure = confidence(apart(stated.value, value), 0.8)
                yield Finding(
                    context.document.path,
                    table.at(row, whole.place),
                    "total",
                    table.says(row, whole.place),
                    what,
                    sure,
                )


def _adds(parts: list[Quantity | None], stated: Quantity, by: int) -> bool:
    ends = [p.interval(loosely=False) for p in parts if p is not None]
    if stated.value <= 0 or any(p is None or p.value <= 0 for p in parts):
        return False
    low, high = sum(e[0] for e in ends) / by, sum(e[1] for e in ends) / by
    return overlap(stated.interval(0.5, loosely=False), (low, high), 0.0)
