"""Derived columns: a product or quotient of other columns that most rows show, whatever the columns are called.

A law between two or three columns counts only if its rows cannot agree by chance (each row that holds within its
rounding adds evidence), and if one side is of a kind that people compute: a share, a factor, a rate, money, "… per …",
or a number in the unit of the product of the others. Rows that break the law are findings, unless they agree with each
other on another constant.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import SUMMARY_LABEL, Column, get_label, read_counts
from ridgeline.claims.context import Context
from ridgeline.claims.document import Table
from ridgeline.claims.finding import Finding, confidence
from ridgeline.claims.quantities import (
    SLACK,
    Interval,
    Quantity,
    compute_factor,
    find_unit_mixup,
    format_number,
    format_value,
    overlap,
)

ENOUGH_EVIDENCE = {1: 11.0, 2: 15.0}  # bits, by the number of columns on the right side
_COMPUTED = re.compile(
    r"\bper\b|/|ratio|relative|norm|speed|\bvs\b|rate\b|each|score|improve|gain|shrink|compress", re.I
)
_COMPOSITE = (q.NONE, q.MONEY, q.RATE, q.BANDWIDTH, q.FLOPS, q.PRICE)
_MAX_COLUMNS, _MAX_ROWS = 14, 100  # a larger table is a data set, not a report


class Source:
    """A column, prepared for the search: the interval of each row, as target and as input, and the column's kind."""

    def __init__(self, column: Column) -> None:
        self.column, self.dims, self.name = column, column.dims, column.name
        usable = [c if c is not None and c.value > 0 and not c.bound and c.top is None else None for c in column.cells]
        self.stated = [None if c is None else _get_interval(c, 1.0) for c in usable]
        self.used = [None if c is None else _get_interval(c, 0.5) for c in usable]
        self.logs = [None if c is None else math.log(c.value) for c in usable]
        filled = [c for c in column.cells if c is not None]
        self.measured = 2 * sum(c.significant >= 3 for c in filled) >= len(filled)  # not round settings
        self.integer = all(float(c.value).is_integer() for c in filled)
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
    """`target` = constant × product of columns to powers of ±1; `constants` holds the constant of each row."""

    target: Column
    parts: tuple[tuple[Column, int], ...]
    constants: dict[int, Interval]
    centre: float
    matching: frozenset[int]
    bits: float
    natural: bool  # the constant is 1


def check_derived_columns(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    numbers = [Source(c) for c in columns if c.role != "label" and sum(cell is not None for cell in c.cells) >= 3]
    if not 2 <= len(numbers) <= _MAX_COLUMNS or len(table.rows) > _MAX_ROWS:
        return
    rows = [r for r in range(len(table.rows)) if not SUMMARY_LABEL.match(get_label(table, r, columns))]
    counts = [read_counts(table, row, columns) for row in range(len(table.rows))]
    accused: set[int] = set()
    laws = sorted(_find_laws(numbers, rows), key=lambda law: (len(law.parts), -law.bits))
    for law in laws:
        several = {row for row in law.constants if _matches_count(law, row, counts[row])}
        for row in sorted(set(law.constants) - law.matching - _find_second_group(law) - several):
            certain = law.natural and len(law.parts) == 2  # then another law does not excuse the row
            if row not in accused and (certain or not _matches_another_law(laws, law, row)):
                accused.add(row)
                yield _create_finding(context, table, law, row)


def _find_laws(numbers: list[Source], rows: list[int]) -> Iterator[Law]:
    for target in numbers:
        others = [c for c in numbers if c is not target]
        for part in others:
            for power in (1, -1):
                yield from _fit_law(target, ((part, power),), rows)
        for first, second in combinations(others, 2):
            for powers in ((1, 1), (1, -1), (-1, 1)):
                yield from _fit_law(target, ((first, powers[0]), (second, powers[1])), rows)


def _is_plausible(target: Source, parts: Parts) -> bool:
    """Whether people compute such a target from such columns."""
    dims = q.NONE
    for part, power in parts:
        dims = q.combine_dims(dims, part.dims, power)
    if len(parts) == 1:
        part, power = parts[0]
        if not part.measured or not target.measured:
            return False
        if target.share or target.ratio:  # of a total or a base that is the same in all rows
            return power > 0 or target.ratio
        if target.dims in (q.RATE, q.BANDWIDTH, q.FLOPS) and dims in (q.NONE, q.BYTES, q.WORK):
            return power > 0  # in a time that is the same in all rows
        return dims == target.dims and part.column.role == target.column.role and dims != q.NONE
    if target.share or target.ratio:
        return dims == q.NONE
    if target.dims == q.NONE and dims == q.NONE:  # integers from integers: machines × cores
        exact = target.integer and all(part.integer and power > 0 for part, power in parts)
        return exact or target.computed
    return dims == target.dims or target.per or (target.dims == q.MONEY and any(p.unit_price for p, _ in parts))


def _fit_law(target: Source, parts: Parts, rows: list[int]) -> Iterator[Law]:
    if not _is_plausible(target, parts):
        return
    constants = _compute_constants(target, parts, rows)
    if len(constants) < 3:
        return
    one, common = _find_matching_rows(constants, 1.0), _find_common_constant(constants)
    matching = _find_matching_rows(constants, common)
    natural = len(one) >= len(matching)
    if natural and len(parts) == 1:
        return  # equal columns are not a law
    matching, centre = (one, 1.0) if natural else (matching, common)
    out = len(constants) - len(matching)
    if out > max(1, len(constants) // 4) or len(matching) < (2 if natural else 3):
        return
    logs = [[source.logs[row] or 0.0 for row in matching] for source in (target, *(part for part, _ in parts))]
    ranges = [max(column) - min(column) for column in logs]
    if len(parts) == 2 and min(ranges[1:]) < 0.05 and not natural:
        return  # a column that hardly changes is no evidence
    ones = [all(abs(value) < 0.15 for value in column) for column in logs[1:]]
    if any(near_one and part.dims == q.NONE for near_one, (part, _) in zip(ones, parts, strict=True)):
        return  # a factor near 1: the other columns are merely close
    if not natural and 0.85 < centre < 1.15 and find_unit_mixup(max(centre, 1 / centre), target.dims) is None:
        return  # a constant near 1: the columns are merely close
    bits = _compute_evidence(constants, matching, ranges, natural)
    if bits >= (ENOUGH_EVIDENCE[1] if natural and target.ratio else ENOUGH_EVIDENCE[len(parts)]):
        columns = tuple((part.column, power) for part, power in parts)
        yield Law(target.column, columns, constants, centre, matching, bits, natural)


def _compute_constants(target: Source, parts: Parts, rows: list[int]) -> dict[int, Interval]:
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


def _find_common_constant(constants: dict[int, Interval]) -> float:
    """Return the middle of the range that most intervals cover."""
    ends = sorted([(low, -1) for low, _ in constants.values()] + [(high, 1) for _, high in constants.values()])
    depth = best = 0
    centre = 1.0
    for index, (end, change) in enumerate(ends):
        depth -= change
        if depth > best and index + 1 < len(ends):
            best, centre = depth, (end + ends[index + 1][0]) / 2
    return centre


def _get_interval(cell: Quantity, steps: float) -> Interval:
    exact = cell.dims == q.NONE and cell.step == 1 and not cell.about
    low, high = cell.interval(0.0 if exact and cell.value < 1e5 else steps, loosely=not exact)
    return max(low, 1e-3 * cell.value), high


def _find_matching_rows(constants: dict[int, Interval], centre: float) -> frozenset[int]:
    return frozenset(row for row, ends in constants.items() if overlap(ends, (centre, centre), SLACK))


def _compute_evidence(
    constants: dict[int, Interval], matching: frozenset[int], ranges: list[float], natural: bool
) -> float:
    """Return bits of evidence: rows that agree within their rounding, although the columns vary widely."""
    spread = max(1.0, *ranges) if natural else min(ranges[0], max(ranges[1:]))
    widths = sorted(max(math.log(constants[row][1] / constants[row][0]), 2 * SLACK) for row in matching)
    counted = widths if natural else widths[:-1]
    return sum(max(0.0, math.log2(spread / width)) if spread > 0 else 0.0 for width in counted) + (
        6.0 if natural else 0.0
    )


def _find_second_group(law: Law) -> set[int]:
    """Find rows that share another constant."""
    out = sorted(set(law.constants) - law.matching)
    return {a for a in out for b in out if a != b and overlap(law.constants[a], law.constants[b], SLACK)}


def _matches_count(law: Law, row: int, counts: set[float]) -> bool:
    """Whether a row labelled "c (2 GPUs)" holds with that count."""
    ends, expected = law.constants[row], [law.centre * m for n in counts for m in (n, 1 / n)]
    return any(overlap(ends, (value, value), SLACK) for value in expected)


def _matches_another_law(laws: list[Law], law: Law, row: int) -> bool:
    """Whether another law of the same target holds for this row and as many others."""
    return any(
        other.target is law.target and row in other.matching and len(other.matching) >= len(law.matching)
        for other in laws
        if other is not law
    )


def _create_finding(context: Context, table: Table, law: Law, row: int) -> Finding:
    stated = law.target.cells[row]
    assert stated is not None  # noqa: S101
    value, sides = law.centre, [] if law.natural else [format_number(law.centre)]
    below = ""
    for part, power in law.parts:
        cell = part.cells[row]
        assert cell is not None  # noqa: S101
        value *= cell.value**power
        if power > 0:
            sides.append(cell.text)
        else:
            below += f" / {cell.text}"
    factor = compute_factor(stated.value, value)
    mixed = find_unit_mixup(factor, law.target.dims)
    computed = f"{value:.1%}" if stated.share else format_value(value, law.target.dims) + ("×" if stated.factor else "")
    arithmetic = (
        f"{law.target.name}: {' × '.join(sides) or '1'}{below} = {computed}, not {stated.text}; "
        f"so it is in {len(law.matching)} of {len(law.constants)} rows"
    )
    kind = "unit" if mixed else "derived"
    index = law.target.index
    return Finding(
        context.document.path,
        table.get_line(row, index),
        kind,
        table.format_row(row, index),
        arithmetic,
        confidence(factor, 0.8),
    )
