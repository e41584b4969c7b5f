"""Sums: total rows, mean rows, lists with a total, shares that add up to 100 %, sizes of vectors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from statistics import fmean, geometric_mean, harmonic_mean, median

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import SUMMARY_LABEL, Column, find_roles, get_label
from ridgeline.claims.context import Context, Fact, group_by_section
from ridgeline.claims.document import Table
from ridgeline.claims.finding import Finding, confidence
from ridgeline.claims.quantities import SLACK, Quantity, compute_factor, format_value, overlap

_TOTAL = re.compile(r"\W*(?:grand )?(?:total|sum|overall|altogether)\b", re.I)
_ADDED = ("count", "size", "memory", "time", "cost", "number", "n", "percent")
_MAX_COLUMNS, _MAX_ROWS = 14, 100  # a larger table is a data set, not a report
_BYTES = (0.5, 1, 2, 4, 8)


def check_totals(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    yield from _check_total_row(context, table, columns)
    yield from _check_average_row(context, table, columns)
    yield from _check_shares(context, table, columns)
    yield from _check_vector_sizes(context, table, columns)
    yield from _check_sums(context, table, columns)


def _add_cells(cells: list[Quantity]) -> tuple[tuple[float, float], float]:
    ends = [cell.interval(loosely=False) for cell in cells]
    return (sum(low for low, _ in ends), sum(high for _, high in ends)), sum(cell.value for cell in cells)


def _check_total_row(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    totals = [r for r in range(len(table.rows)) if _TOTAL.match(get_label(table, r, columns))]
    if len(totals) != 1 or totals[0] != len(table.rows) - 1 or totals[0] < 2:
        return
    last = totals[0]
    bare = bool(re.fullmatch(r"\W*(?:grand )?(?:total|sum|overall)\W*", get_label(table, last, columns), re.I))
    sums: list[tuple[Column, Quantity, float, bool]] = []
    for column in columns:
        stated, parts = column.cells[last], [c for c in column.cells[:last] if c is not None]
        if (
            stated is None
            or len(parts) < 2
            or column.role not in _ADDED
            or re.search("avg|average|mean|per ", column.name, re.I)
        ):
            continue
        if column.role == "percent" and stated.value != 1:
            continue  # percentages of different totals
        interval, middle = _add_cells(parts)
        sums.append((column, stated, middle, overlap(stated.interval(1.0), interval, SLACK)))
    proved = any(holds for *_, holds in sums)
    for column, stated, middle, holds in sums:
        factor = compute_factor(stated.value, middle)
        if holds or factor > (200 if proved else 1.6) or not (proved or bare):
            continue
        texts = [c.text for c in column.cells[:last] if c is not None]
        arithmetic = f"total: {' + '.join(texts)} = {format_value(middle, column.dims)}, not {stated.text}"
        says = " | ".join(c for c in table.rows[last].cells if c)
        base_confidence = 0.93 if proved else 0.8
        yield Finding(
            context.document.path,
            table.rows[last].line,
            "total",
            says,
            arithmetic,
            confidence(factor * 1.05, base_confidence),
        )


def _check_average_row(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    """Check a last row named mean or average: arithmetic, geometric or harmonic mean, or median."""
    last = len(table.rows) - 1
    label = get_label(table, last, columns) if last >= 3 else ""
    kind = re.match(r"\W*(geo\w*[\s-]?)?(?:mean|average|avg)\W*$", label, re.I)
    above = [get_label(table, row, columns) for row in range(max(last, 0))]
    if kind is None or any(SUMMARY_LABEL.match(name) for name in above):
        return
    for column in columns:
        stated, parts = column.cells[last], [c for c in column.cells[:last] if c is not None]
        if stated is None or len(parts) < last or stated.bound or any(c.value <= 0 or c.bound or c.top for c in parts):
            continue
        values = [c.value for c in parts]
        means = {"geometric": geometric_mean(values)} if kind[1] else {}
        if not kind[1]:
            means = {"": fmean(values), "geometric": geometric_mean(values), "harmonic": harmonic_mean(values)}
        margin = sum((c.interval(loosely=False)[1] - c.value) / c.value for c in parts) / len(parts)
        if any(overlap(stated.interval(1.0), (m * (1 - margin), m * (1 + margin)), SLACK) for m in means.values()):
            continue
        value = next(iter(means.values()))
        factor = compute_factor(stated.value, value)
        if median(values) == stated.value or factor > 3:
            continue
        computed = f"{value:.1%}" if stated.share else format_value(value, column.dims) + ("×" if stated.factor else "")
        words = ", ".join(c.text for c in parts)
        arithmetic = f"mean: of {words} it is {computed}, not {stated.text}"
        line, says = table.get_line(last, column.index), table.format_row(last, column.index)
        yield Finding(context.document.path, line, "mean", says, arithmetic, confidence(factor, 0.75))


def _check_shares(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    """Check that percentages add up to 100 in all rows if they do in most."""
    shares = [c for c in columns if c.role in ("percent", "share", "efficiency")]
    groups = [shares] + [[a, b] for a in shares for b in shares if a.index < b.index]
    for group in groups:
        rows = [r for r in range(len(table.rows)) if all(c.cells[r] is not None for c in group)]
        if len(group) < 2 or len(rows) < 3:
            continue
        matching = []
        for row in rows:
            cells = [cell for c in group if (cell := c.cells[row]) is not None]
            low, high = _add_cells(cells)[0]
            matching.append(low - 0.0005 <= 1 <= high + 0.0005)
        if sum(matching) < max(2, 0.7 * len(rows)) or all(matching):
            continue
        for row in (r for r, holds in zip(rows, matching, strict=True) if not holds):
            cells = [cell for c in group if (cell := c.cells[row]) is not None]
            middle = _add_cells(cells)[1]
            arithmetic = f"shares: {' + '.join(c.text for c in cells)} = {middle:.1%}, in the other rows 100 %"
            says = " | ".join(c for c in table.rows[row].cells if c)
            yield Finding(
                context.document.path,
                table.rows[row].line,
                "shares",
                says,
                arithmetic,
                confidence(compute_factor(middle, 1), 0.9),
            )
        return


def _check_sums(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    """Check columns that add up to another one, or have it as their mean, in most rows: "hits, misses, requests"."""
    numbers = [c for c in columns if c.role != "label" and sum(cell is not None for cell in c.cells) >= 3]
    rows = [r for r in range(len(table.rows)) if not SUMMARY_LABEL.match(get_label(table, r, columns))]
    for total in numbers if len(numbers) <= _MAX_COLUMNS and len(rows) <= _MAX_ROWS else []:
        mean = re.search(r"\b(?:mean|avg|average)\b", total.name, re.I) is not None
        same = [c for c in numbers if c is not total and c.dims == total.dims and _has_same_kind(c, total)]
        groups: list[tuple[Column, ...]] = [] if mean else [*combinations(same, 2)]
        groups += [tuple(same)] if len(same) > 2 or (mean and len(same) == 2) else []
        for group in groups:
            sums = {
                row: ([c.cells[row] for c in group], total.cells[row])
                for row in rows
                if total.cells[row] is not None and all(c.cells[row] is not None for c in group)
            }
            matching = {
                row
                for row, (parts, stated) in sums.items()
                if stated and _is_sum(parts, stated, len(parts) if mean else 1)
            }
            strong = [r for r in matching if max(cell.significant for cell in (*sums[r][0], sums[r][1]) if cell) >= 3]
            if len(matching) < max(3, 0.75 * len(sums)) or len(strong) < 3 or len(matching) == len(sums):
                continue
            for row in sorted(set(sums) - matching):
                parts, stated = sums[row]
                assert stated is not None  # noqa: S101
                value = sum(p.value for p in parts if p is not None) / (len(parts) if mean else 1)
                words = " + ".join(p.text for p in parts if p is not None)
                words = f"({words}) / {len(parts)}" if mean else words
                arithmetic = f"{total.name}: {words} = {format_value(value, total.dims)}, not {stated.text}; "
                arithmetic += f"so it is in {len(matching)} of {len(sums)} rows"
                base_confidence = confidence(compute_factor(stated.value, value), 0.8)
                yield Finding(
                    context.document.path,
                    table.get_line(row, total.index),
                    "total",
                    table.format_row(row, total.index),
                    arithmetic,
                    base_confidence,
                )


def _is_sum(parts: list[Quantity | None], stated: Quantity, by: int) -> bool:
    ends = [p.interval(loosely=False) for p in parts if p is not None]
    if stated.value <= 0 or any(p is None or p.value <= 0 for p in parts):
        return False
    low, high = sum(e[0] for e in ends) / by, sum(e[1] for e in ends) / by
    return overlap(stated.interval(0.5, loosely=False), (low, high), 0.0)


def _has_same_kind(a: Column, b: Column) -> bool:
    plain = ("number", "count", "n")
    return a.role == b.role or (a.role in plain and b.role in plain)


def _check_vector_sizes(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    """Check size = count × dimension × bytes per element."""
    for count, dim, size in zip(*(find_roles(columns, role)[:1] for role in ("count", "dim", "size")), strict=False):
        for row in range(len(table.rows)):
            n, d, stated = count.cells[row], dim.cells[row], size.cells[row]
            if n is None or d is None or stated is None or not n.value or not d.value or stated.bound:
                continue
            yield from _check_size(context, table.rows[row].line, " | ".join(table.rows[row].cells), n, d, stated)


def _check_size(
    context: Context, line: int, says: str, n: Quantity, d: Quantity, stated: Quantity
) -> Iterator[Finding]:
    numbers = n.value * d.value
    best = min(_BYTES, key=lambda b: compute_factor(stated.value, numbers * b))
    low, high = stated.interval(1.0)
    if any(overlap((low, high), (numbers * b, numbers * b), 0.01) for b in _BYTES):
        return
    binary = next(
        (
            b
            for b in _BYTES
            for p in (1, 2, 3, 4)
            if overlap((low * 1.024**p, high * 1.024**p), (numbers * b,) * 2, 0.01)
        ),
        None,
    )
    bytes_ = binary or best
    arithmetic = (
        f"size: {n.text} × {d.text} × {bytes_} B = {format_value(numbers * bytes_, q.BYTES)}, not {stated.text}"
    )
    factor = compute_factor(stated.value, numbers * bytes_)
    if binary:
        yield Finding(context.document.path, line, "unit", says, arithmetic + " (MB for MiB)", 0.5)
    elif factor > 1.03:
        yield Finding(context.document.path, line, "size", says, arithmetic, confidence(factor, 0.75))


def check_total_lists(context: Context) -> Iterator[Finding]:
    """Check a "Total" line against the lines before it in the section."""
    for facts in group_by_section(context):
        totals = [f for f in facts if _TOTAL.match(f.label) and f.quantity.dims in (q.TIME, q.BYTES, q.MONEY)]
        for total in totals:
            if re.search(r"saved|saving", total.label, re.I) or total.quantity.bound or "/" in total.quantity.text:
                continue
            parts: dict[int, Fact] = {}
            for fact in facts:
                same = fact.quantity.dims == total.quantity.dims and not _TOTAL.match(fact.label)
                if same and fact.line < total.line and (fact.line not in parts or "=" in fact.label):
                    parts[fact.line] = fact  # the result of a line follows its equals sign
            joined = sorted(parts)
            if len(joined) < 3 or joined[-1] < total.line - 3:
                continue
            cells = [parts[line].quantity for line in joined]
            interval, middle = _add_cells(cells)
            factor = compute_factor(total.quantity.value, middle)
            listed = joined == list(range(total.line - len(joined), total.line))
            if overlap(total.quantity.interval(1.0), interval, SLACK) or factor > (2.5 if listed else 1.25):
                continue
            sides = f"{' + '.join(c.text for c in cells)} = {format_value(middle, total.quantity.dims)}"
            arithmetic = f"total: {sides}, not {total.quantity.text}"
            yield Finding(
                context.document.path, total.line, "total", total.text.strip(), arithmetic, confidence(factor, 0.7)
            )
