"""Sums: rows called total, lists that end in a total, shares that make up a whole, sizes made of counts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ridgeline.lab.claims import quantities as q
from ridgeline.lab.claims.columns import Column, find_roles, label_of
from ridgeline.lab.claims.context import Context, Fact, by_section
from ridgeline.lab.claims.document import Table
from ridgeline.lab.claims.finding import SLACK, Finding, apart, confidence, overlap, shown
from ridgeline.lab.claims.quantities import Quantity

_TOTAL = re.compile(r"\W*(?:grand )?(?:total|sum|overall|altogether)\b", re.I)
_ADDED = ("count", "size", "memory", "time", "cost", "number", "n", "percent")
_BYTES = (0.5, 1, 2, 4, 8)


def check(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    yield from _total_row(context, table, found)
    yield from _whole(context, table, found)
    yield from _sizes(context, table, found)


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
