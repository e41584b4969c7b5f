"""Sums: rows called total, lists that end in a total, shares that make up a whole, sizes made of counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from statistics import fmean, geometric_mean, harmonic_mean, median

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import AVERAGED, Column, find_roles, label_of
from ridgeline.claims.context import Context, Fact, by_section
from ridgeline.claims.document import Table
from ridgeline.claims.finding import SLACK, Finding, apart, confidence, overlap, shown
from ridgeline.claims.quantities import Quantity

_TOTAL = re.compile(r"\W*(?:grand )?(?:total|sum|overall|altogether)\b", re.I)
_ADDED = ("count", "size", "memory", "time", "cost", "number", "n", "percent")
_WIDEST, _LONGEST = 14, 100  # columns, rows; more are a data set, not a report
_BYTES = (0.5, 1, 2, 4, 8)


def check(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    yield from _total_row(context, table, found)
    yield from _average_row(context, table, found)
    yield from _whole(context, table, found)
    yield from _sizes(context, table, found)
    yield from _added(context, table, found)


def _add(cells: list[Quantity]) -> tuple[tuple[float, float], float]:
    ends = [cell.interval(loosely=False) for cell in cells]
    return (sum(low for low, _ in ends), sum(high for _, high in ends)), sum(cell.value for cell in cells)


def _total_row(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    totals = [r for r in range(len(table.rows)) if _TOTAL.match(label_of(table, r, found))]
    if len(totals) != 1 or totals[0] != len(table.rows) - 1 or totals[0] < 2:
        return
    last = totals[0]
    bare = bool(re.fullmatch(r"\W*(?:grand )?(?:total|sum|overall)\W*", label_of(table, last, found), re.I))
    sums: list[tuple[Column, Quantity, float, bool]] = []
    for column in found:
        stated, parts = column.cells[last], [c for c in column.cells[:last] if c is not None]
        if (
            stated is None
            or len(parts) < 2
            or column.role not in _ADDED
            or re.search("avg|average|mean|per ", column.name, re.I)
        ):
            continue
        if column.role == "percent" and stated.value != 1:
            continue  # of scores, not of one whole
        interval, middle = _add(parts)
        sums.append((column, stated, middle, overlap(stated.interval(1.0), interval, SLACK)))
    proved = any(holds for *_, holds in sums)
    for column, stated, middle, holds in sums:
        factor = apart(stated.value, middle)
        if holds or factor > (200 if proved else 1.6) or not (proved or bare):
            continue
        texts = [c.text for c in column.cells[:last] if c is not None]
        what = f"total: {' + '.join(texts)} = {shown(middle, column.dims)}, not {stated.text}"
        says = " | ".join(c for c in table.rows[last].cells if c)
        sure = 0.93 if proved else 0.8
        yield Finding(
            context.document.path, table.rows[last].line, "total", says, what, confidence(factor * 1.05, sure)
        )


def _average_row(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    """A last row called average or mean: of each column, arithmetic, geometric, or the median."""
    last = len(table.rows) - 1
    label = label_of(table, last, found) if last >= 3 else ""
    kind = re.match(r"\W*(geo\w*[\s-]?)?(?:mean|average|avg)\W*$", label, re.I)
    above = [label_of(table, row, found) for row in range(max(last, 0))]
    if kind is None or any(AVERAGED.match(name) for name in above):
        return
    for column in found:
        stated, parts = column.cells[last], [c for c in column.cells[:last] if c is not None]
        if stated is None or len(parts) < last or stated.bound or any(c.value <= 0 or c.bound or c.top for c in parts):
            continue
        values = [c.value for c in parts]
        means = {"geometric": geometric_mean(values)} if kind[1] else {}
        if not kind[1]:
            means = {"": fmean(values), "geometric": geometric_mean(values), "harmonic": harmonic_mean(values)}
        room = sum((c.interval(loosely=False)[1] - c.value) / c.value for c in parts) / len(parts)
        if any(overlap(stated.interval(1.0), (m * (1 - room), m * (1 + room)), SLACK) for m in means.values()):
            continue
        value = next(iter(means.values()))
        factor = apart(stated.value, value)
        if median(values) == stated.value or factor > 3:
            continue
        told = f"{value:.1%}" if stated.share else shown(value, column.dims) + ("×" if stated.factor else "")
        words = ", ".join(c.text for c in parts)
        what = f"mean: of {words} it is {told}, not {stated.text}"
        where, says = table.at(last, column.place), table.says(last, column.place)
        yield Finding(context.document.path, where, "mean", says, what, confidence(factor, 0.75))


def _whole(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    """Percentages that add up to 100 in most rows do so in all."""
    shares = [c for c in found if c.role in ("percent", "share", "efficiency")]
    groups = [shares] + [[a, b] for a in shares for b in shares if a.place < b.place]
    for group in groups:
        rows = [r for r in range(len(table.rows)) if all(c.cells[r] is not None for c in group)]
        if len(group) < 2 or len(rows) < 3:
            continue
        held = []
        for row in rows:
            cells = [cell for c in group if (cell := c.cells[row]) is not None]
            low, high = _add(cells)[0]
            held.append(low - 0.0005 <= 1 <= high + 0.0005)
        if sum(held) < max(2, 0.7 * len(rows)) or all(held):
            continue
        for row in (r for r, holds in zip(rows, held, strict=True) if not holds):
            cells = [cell for c in group if (cell := c.cells[row]) is not None]
            middle = _add(cells)[1]
            what = f"shares: {' + '.join(c.text for c in cells)} = {middle:.1%}, in the other rows 100 %"
            says = " | ".join(c for c in table.rows[row].cells if c)
            yield Finding(
                context.document.path, table.rows[row].line, "shares", says, what, confidence(apart(middle, 1), 0.9)
            )
        return


def _added(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    """ "hits, misses, requests": two or more columns that add up to another in most rows; or their mean."""
    numbers = [c for c in found if c.role != "label" and sum(cell is not None for cell in c.cells) >= 3]
    rows = [r for r in range(len(table.rows)) if not AVERAGED.match(label_of(table, r, found))]
    for whole in numbers if len(numbers) <= _WIDEST and len(rows) <= _LONGEST else []:
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
            strong = [r for r in held if max(cell.significant for cell in (*told[r][0], told[r][1]) if cell) >= 3]
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


def _alike(a: Column, b: Column) -> bool:
    plain = ("number", "count", "n")
    return a.role == b.role or (a.role in plain and b.role in plain)


def _sizes(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    """Vectors take count × dimension × the bytes of a number."""
    for count, dim, size in zip(*(find_roles(found, role)[:1] for role in ("count", "dim", "size")), strict=False):
        for row in range(len(table.rows)):
            n, d, stated = count.cells[row], dim.cells[row], size.cells[row]
            if n is None or d is None or stated is None or not n.value or not d.value or stated.bound:
                continue
            yield from _size(context, table.rows[row].line, " | ".join(table.rows[row].cells), n, d, stated)


def _size(context: Context, line: int, says: str, n: Quantity, d: Quantity, stated: Quantity) -> Iterator[Finding]:
    numbers = n.value * d.value
    best = min(_BYTES, key=lambda b: apart(stated.value, numbers * b))
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
    what = f"size: {n.text} × {d.text} × {bytes_} B = {shown(numbers * bytes_, q.BYTES)}, not {stated.text}"
    factor = apart(stated.value, numbers * bytes_)
    if binary:
        yield Finding(context.document.path, line, "unit", says, what + " (MB for MiB)", 0.5)
    elif factor > 1.03:
        yield Finding(context.document.path, line, "size", says, what, confidence(factor, 0.75))


def lists(context: Context) -> Iterator[Finding]:
    """Lines of one section, each a part, and a line that says "Total"."""
    for facts in by_section(context):
        totals = [f for f in facts if _TOTAL.match(f.label) and f.quantity.dims in (q.TIME, q.BYTES, q.MONEY)]
        for total in totals:
            if re.search(r"saved|saving", total.label, re.I) or total.quantity.bound or "/" in total.quantity.text:
                continue
            parts: dict[int, Fact] = {}
            for fact in facts:
                same = fact.quantity.dims == total.quantity.dims and not _TOTAL.match(fact.label)
                if same and fact.line < total.line and (fact.line not in parts or "=" in fact.label):
                    parts[fact.line] = fact  # a line's own result stands behind its equals sign
            joined = sorted(parts)
            if len(joined) < 3 or joined[-1] < total.line - 3:
                continue
            cells = [parts[line].quantity for line in joined]
            interval, middle = _add(cells)
            factor = apart(total.quantity.value, middle)
            listed = joined == list(range(total.line - len(joined), total.line))
            if overlap(total.quantity.interval(1.0), interval, SLACK) or factor > (2.5 if listed else 1.25):
                continue
            sides = f"{' + '.join(c.text for c in cells)} = {shown(middle, total.quantity.dims)}"
            what = f"total: {sides}, not {total.quantity.text}"
            yield Finding(context.document.path, total.line, "total", total.text.strip(), what, confidence(factor, 0.7))
