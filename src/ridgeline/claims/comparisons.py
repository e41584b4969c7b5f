"""Columns that compare rows or other columns: speed-up, efficiency, differences, shares.

A column can often be explained in several ways (which row is the base? which column is the total?). An explanation
gives the expected value of each row. The one that holds for most rows counts; a row is a finding only if no
explanation gives its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ridgeline.claims.columns import DEVICE_WORDS, SUMMARY_LABEL, Column, find_roles, get_label
from ridgeline.claims.context import Context
from ridgeline.claims.document import Table
from ridgeline.claims.finding import Finding, confidence
from ridgeline.claims.quantities import (
    SLACK,
    Interval,
    Quantity,
    compute_factor,
    divide,
    find_quantities,
    format_number,
    format_value,
    multiply,
    overlap,
)

MORE_IS_BETTER = ("rate", "bandwidth", "flops")
LESS_IS_BETTER = ("time", "latency", "cost")
_CLOSE = 1.15  # rows within this factor support an explanation, though they do not hold


@dataclass(frozen=True)
class Expected:
    """The value that an explanation gives for a row: interval, middle, and the arithmetic in words."""

    value: Interval
    middle: float
    words: str


Explanation = dict[int, Expected]  # row -> expected value


def compute_ratio(better: Quantity, worse: Quantity) -> tuple[Interval, float]:
    return divide(better.interval(), worse.interval()), better.value / worse.value


def check_explanations(
    context: Context,
    table: Table,
    column: Column,
    explanations: list[Explanation],
    kind: str,
    base_confidence: float,
    strict: bool = False,  # close rows do not support an explanation
) -> Iterator[Finding]:
    """Report the rows that the best explanation does not give, and no other one either."""
    stated = {r: c for r, c in enumerate(column.cells) if c is not None and not c.bound and c.value > 0}
    relevant = [explanation for explanation in explanations if set(explanation) & set(stated)]
    trivial = {r for r, cell in stated.items() if cell.value == 1}

    def find_matching(explanation: Explanation) -> set[int]:
        return {
            r for r in set(explanation) & set(stated) if overlap(stated[r].interval(1.0), explanation[r].value, SLACK)
        }

    def find_close(explanation: Explanation) -> set[int]:
        return {
            r for r in set(explanation) & set(stated) if compute_factor(stated[r].value, explanation[r].middle) < _CLOSE
        }

    if not relevant:
        return
    best = max(relevant, key=lambda explanation: (len(find_matching(explanation)), len(find_close(explanation))))
    rows = (set(best) & set(stated)) - trivial
    support = (find_matching(best) | find_close(best)) - trivial
    if strict:
        support = find_matching(best)
    if strict and len(support) < max(2, 0.6 * len(rows)):
        return
    agreed = [
        r for r in relevant if rows <= set(r) and all(compute_factor(r[x].middle, best[x].middle) < 1.05 for x in rows)
    ]
    lone = len(rows) == 1 and not find_close(best) and len(agreed) < 2  # two explanations that agree suffice
    if not rows or lone or (2 * len(support) < len(rows) and len(rows) > 1):
        return
    explained = set().union(*(find_matching(explanation) for explanation in relevant))
    weight = base_confidence if find_matching(best) - trivial else base_confidence - 0.15
    for row in sorted(rows - explained):
        cell, computed = stated[row], best[row]
        factor = compute_factor(cell.value, computed.middle)
        value = format_value(computed.middle, column.dims) if column.dims[0] else format_number(computed.middle)
        value = f"{computed.middle:.1%}" if cell.share else value + ("×" if cell.factor else "")
        arithmetic = f"{kind} ({column.name}): {computed.words} = {value}, not {cell.text}"
        line, says = table.get_line(row, column.index), table.format_row(row, column.index)
        yield Finding(context.document.path, line, kind, says, arithmetic, confidence(factor, weight))


def check_scaling(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    for column in find_roles(columns, "speedup"):
        kin = _select_group(columns, column)
        yield from check_explanations(
            context, table, column, _explain_speedups(context, table, kin, column), "speed-up", 0.9
        )
    for column in find_roles(columns, "efficiency"):
        if find_roles(columns, "n") or _find_counts_in_labels(table, columns):
            explanations = _explain_efficiencies(table, _select_group(columns, column))
            yield from check_explanations(context, table, column, explanations, "efficiency", 0.93)
            if not explanations:
                yield from _check_maximum(context, table, column)


def _select_group(columns: list[Column], column: Column) -> list[Column]:
    """Return the columns of the same group ("Blocking time", "Blocking speed-up") and those without a group."""
    common = {word for word in column.words if 1 < sum(word in other.words for other in columns) < len(columns)}
    groups = {
        word
        for word in common
        if any(c is not column and c.role == column.role and word not in c.words for c in columns)
    }
    if not groups:
        return columns
    group = [c for c in columns if c.words & groups]
    return [c for c in columns if c in group or not any(c.role == other.role for other in group)]


def _explain_speedups(context: Context, table: Table, columns: list[Column], column: Column) -> list[Explanation]:
    """Compare with the row that says 1 ×, else with an earlier table or another column of the same kind."""
    measured = [c for c in columns if c.role in MORE_IS_BETTER + LESS_IS_BETTER]
    ones = [r for r, cell in enumerate(column.cells) if cell is not None and cell.value == 1]
    named = [r for r in range(len(table.rows)) if "baseline" in get_label(table, r, columns).lower()]
    explanations: list[Explanation] = []
    bases = ones or named
    if len(bases) > 1:  # one per group of rows
        explanations += [_compare_with_group_base(c, bases) for c in measured]
    for base in bases:
        explanations += [_compare_with_base(c, c.cells[base]) for c in measured]
    if explanations:
        return explanations
    for other, others in context.tables:
        if other is table or other.line > table.line:
            continue
        for measured_column in measured:
            for other_column in (
                c for c in others if c.role == measured_column.role and c.name == measured_column.name
            ):
                if len(other_column.cells) == len(measured_column.cells):
                    explanations.append(_compare_rows(measured_column, other_column))
                explanations += [_compare_with_base(measured_column, cell) for cell in other_column.cells]
    pairs = [(a, b) for a in measured for b in measured if a is not b and a.role == b.role and a.index < b.index]
    for first, second in pairs:
        explanations += [_compare_rows(first, second), _compare_rows(second, first)]
    return explanations


def _compare_with_base(measured: Column, base: Quantity | None) -> Explanation:
    explanation: Explanation = {}
    for row, cell in enumerate(measured.cells):
        if cell is None or base is None or not cell.value or not base.value or cell is base or cell.bound:
            continue
        up = measured.role in MORE_IS_BETTER
        better, worse = (cell, base) if up else (base, cell)
        value, middle = compute_ratio(better, worse)
        explanation[row] = Expected(value, middle, f"{better.text} / {worse.text}")
    return explanation


def _compare_with_group_base(measured: Column, bases: list[int]) -> Explanation:
    """Compare each row with the last base above it."""
    explanation: Explanation = {}
    for row in range(len(measured.cells)):
        above = [base for base in bases if base <= row]
        if above:
            explanation |= {
                r: expected
                for r, expected in _compare_with_base(measured, measured.cells[above[-1]]).items()
                if r == row
            }
    return explanation


def _compare_rows(measured: Column, other: Column) -> Explanation:
    explanation: Explanation = {}
    for row, (cell, base) in enumerate(zip(measured.cells, other.cells, strict=True)):
        if cell is None or base is None or not cell.value or not base.value:
            continue
        better, worse = (cell, base) if measured.role in MORE_IS_BETTER else (base, cell)
        value, middle = compute_ratio(better, worse)
        explanation[row] = Expected(value, middle, f"{better.text} / {worse.text}")
    return explanation


def _find_counts_in_labels(table: Table, columns: list[Column]) -> list[Column]:
    """Read counts from labels such as "4 GPUs", "Parallel 4": the last integer of each."""
    named = (c for c in columns if c.role == "label" or any(x and re.search(DEVICE_WORDS, x.noun) for x in c.cells))
    for column in named:
        last_numbers = [find_quantities(row.cells[column.index])[-1:] for row in table.rows]
        cells = tuple(q[0] if q and q[0].value.is_integer() and q[0].unit == "" else None for q in last_numbers)
        if sum(cell is not None for cell in cells) >= max(2, len(cells) - 1):
            return [replace(column, role="n", cells=cells)]
    return []


def _explain_efficiencies(table: Table, columns: list[Column]) -> list[Explanation]:
    explanations: list[Explanation] = []
    for n in find_roles(columns, "n") or _find_counts_in_labels(table, columns):
        counted = [(r, c) for r, c in enumerate(n.cells) if c is not None and c.value > 0]
        if len({c.value for _, c in counted}) < 2:
            continue
        base, fewest = min(counted, key=lambda pair: pair[1].value)
        for column in columns:
            first = column.cells[base]
            if column.role not in ("speedup", "rate", "time") or first is None or not first.value:
                continue
            strong: Explanation = {}
            weak: Explanation = {}
            for row, count in counted:
                cell = column.cells[row]
                if cell is None or not cell.value:
                    continue
                more = count.value / fewest.value
                factor, words = f"{format_number(more)} × more", f"{cell.text} / {first.text}"
                if column.role == "time":
                    value, middle = compute_ratio(first, cell)
                    weak[row] = Expected(value, middle, f"{first.text} / {cell.text}")
                    words = f"{first.text} / {cell.text}"
                elif column.role == "speedup":
                    value, middle, words = cell.interval(), cell.value, cell.text
                    one = _divide_expected(value, middle, count.value, f"{words} / {format_number(count.value)}")
                    if fewest.value == 1 or first.value == fewest.value:
                        strong[row] = one
                        continue
                else:
                    value, middle = compute_ratio(cell, first)
                    weak[row] = Expected(value, middle, words)
                strong[row] = _divide_expected(value, middle, more, f"{words} / {format_number(more)} ({factor})")
            explanations += [strong] + ([weak] if column.role == "time" else [])
    return explanations


def _divide_expected(value: Interval, middle: float, by: float, words: str) -> Expected:
    return Expected(multiply(value, (1 / by, 1 / by)), middle / by, words)


def _check_maximum(context: Context, table: Table, column: Column) -> Iterator[Finding]:
    for row, cell in enumerate(column.cells):
        if cell is not None and cell.interval(1.0)[0] > 1.005 and cell.value < 100:
            arithmetic = f"an efficiency is at most 100 %, not {cell.text}"
            line, says = table.get_line(row, column.index), table.format_row(row, column.index)
            yield Finding(context.document.path, line, "efficiency", says, arithmetic, 0.6)


def check_differences(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    for column in find_roles(columns, "delta"):
        explanations = [
            *_explain_deltas(columns, column),
            *_explain_shares_of_base(columns, column),
            *_explain_change_from_base(table, columns, column),
        ]
        yield from check_explanations(context, table, column, explanations, "difference", 0.9)
    for column in [*find_roles(columns, "share"), *find_roles(columns, "percent")]:
        explanations = [*_explain_shares(columns), *_explain_shares_of_total(table, columns)]
        yield from check_explanations(context, table, column, explanations, "share", 0.85, strict=True)
    for column in columns:
        if re.search(r"diff|delta|shift|saved|savings|change|gap", column.name, re.I) and column.role not in (
            "label",
            "delta",
        ):
            yield from check_explanations(
                context, table, column, _explain_gaps(columns, column), "difference", 0.85, strict=True
            )


def _explain_shares(columns: list[Column]) -> list[Explanation]:
    """Explain a share as the ratio of two other columns."""
    return [
        {
            row: Expected(compute_ratio(a, b)[0], a.value / b.value, f"{a.text} / {b.text}")
            for row, (a, b) in enumerate(zip(first.cells, second.cells, strict=True))
            if a is not None and b is not None and a.value and b.value
        }
        for first, second in _list_pairs(columns)
    ]


def _explain_gaps(columns: list[Column], column: Column) -> list[Explanation]:
    """Explain a difference as one column minus another: "before, after, saved"."""
    explanations: list[Explanation] = []
    for first, second in _list_pairs([c for c in columns if c.dims == column.dims and c.index != column.index]):
        explanation: Explanation = {}
        for row, (a, b) in enumerate(zip(first.cells, second.cells, strict=True)):
            if a is not None and b is not None and a.value > b.value:
                (low, high), (less, more) = a.interval(), b.interval()
                explanation[row] = Expected((low - more, high - less), a.value - b.value, f"{a.text} − {b.text}")
        explanations.append(explanation)
    return explanations


def _explain_shares_of_base(columns: list[Column], column: Column) -> list[Explanation]:
    """Explain "vs full: 100 %, 91 %, 93 %" as shares of the row that says 100 %."""
    bases = [r for r, cell in enumerate(column.cells) if cell is not None and cell.value == 1]
    measured = [c for c in columns if c.role in MORE_IS_BETTER + LESS_IS_BETTER]
    explanations: list[Explanation] = []
    for c in measured if len(bases) == 1 else []:
        base = c.cells[bases[0]]
        cells = {r: cell for r, cell in enumerate(c.cells) if cell is not None and cell.value and r != bases[0]}
        if base is not None and base.value:
            explanations.append(
                {r: Expected(*compute_ratio(cell, base), f"{cell.text} / {base.text}") for r, cell in cells.items()}
            )
    return explanations


def _explain_change_from_base(table: Table, columns: list[Column], column: Column) -> list[Explanation]:
    """Explain "vs. baseline: –, +52 %, +140 %" as changes from the row without a figure."""
    bare = [r for r, cell in enumerate(column.cells) if cell is None]
    explanations: list[Explanation] = []
    for c in columns if len(bare) == 1 and column.index else []:
        base = c.cells[bare[0]]
        if c.role not in MORE_IS_BETTER + LESS_IS_BETTER + ("memory", "size", "number") or base is None:
            continue
        cells = {r: cell for r, cell in enumerate(c.cells) if cell is not None and cell.value and r != bare[0]}
        if base.value:
            explanations.append(
                {
                    r: Expected(_take_absolute(low - 1, high - 1), abs(middle - 1), f"{cell.text} / {base.text} − 1")
                    for r, cell in cells.items()
                    for (low, high), middle in [compute_ratio(cell, base)]
                }
            )
    return explanations


def _explain_shares_of_total(table: Table, columns: list[Column]) -> list[Explanation]:
    """Explain a share as part of the total row, or of the sum if there is no total row."""
    last = len(table.rows) - 1
    explanations: list[Explanation] = []
    for c in columns:
        cells = {r: cell for r, cell in enumerate(c.cells) if cell is not None and cell.value}
        named = SUMMARY_LABEL.match(get_label(table, last, columns)) is not None
        parts = {r: cell for r, cell in cells.items() if not (named and r == last)}
        if c.role in ("label", "share", "percent", "delta", "efficiency", "speedup") or len(parts) < 3:
            continue
        total = cells.get(last) if named else None
        ends = [cell.interval(loosely=False) for cell in parts.values()]
        total_interval = total.interval() if total else (sum(low for low, _ in ends), sum(high for _, high in ends))
        middle = total.value if total else sum(cell.value for cell in parts.values())
        words = total.text if total else f"the sum {format_number(sum(cell.written for cell in parts.values()))}"
        explanations.append(
            {
                r: Expected(divide(cell.interval(), total_interval), cell.value / middle, f"{cell.text} / {words}")
                for r, cell in parts.items()
            }
        )
    return explanations


def _explain_deltas(columns: list[Column], column: Column) -> list[Explanation]:
    """Explain a percentage as the relative difference of two columns of one kind."""
    numbers = [c for c in columns if c.role in (*MORE_IS_BETTER, *LESS_IS_BETTER, "size", "memory", "number", "count")]
    explanations: list[Explanation] = []
    for first in numbers:
        for second in numbers:
            if first.index == second.index or not (first.dims == second.dims or "number" in (first.role, second.role)):
                continue
            relative_to_second: Explanation = {}
            relative_to_first: Explanation = {}
            for row, (a, b) in enumerate(zip(first.cells, second.cells, strict=True)):
                if a is None or b is None or not a.value or not b.value:
                    continue
                (low, high), middle = compute_ratio(a, b)
                relative_to_second[row] = Expected(
                    _take_absolute(low - 1, high - 1), abs(middle - 1), f"{a.text} / {b.text} − 1"
                )
                relative_to_first[row] = Expected(
                    _take_absolute(1 - high, 1 - low), abs(1 - middle), f"1 − {a.text} / {b.text}"
                )
            both = [relative_to_second, relative_to_first]
            if first.dims != second.dims:  # a unit may be missing in one column; then most rows must hold
                both = [
                    explanation
                    for explanation in both
                    if 2 * _count_matches(explanation, column) >= max(4, len(explanation))
                ]
            explanations += both
    return explanations


def _count_matches(explanation: Explanation, column: Column) -> int:
    cells = [(column.cells[row], expected) for row, expected in explanation.items()]
    return sum(cell is not None and overlap(cell.interval(1.0), expected.value, SLACK) for cell, expected in cells)


def _take_absolute(low: float, high: float) -> Interval:
    if low <= 0 <= high:
        return 0.0, max(-low, high)
    return (low, high) if low > 0 else (-high, -low)


def _list_pairs(columns: list[Column]) -> Iterator[tuple[Column, Column]]:
    numbers = [c for c in columns if c.role in (*MORE_IS_BETTER, *LESS_IS_BETTER, "size", "memory", "number", "count")]
    return ((a, b) for a in numbers for b in numbers if a.index != b.index and a.dims == b.dims)
