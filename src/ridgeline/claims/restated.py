"""One quantity stated twice: a sentence that repeats a table's row, a factor over a contender that has its own row."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ridgeline.claims import named
from ridgeline.claims import quantities as q
from ridgeline.claims.columns import Column, find_roles, label_of
from ridgeline.claims.context import Context, Fact, by_line, say
from ridgeline.claims.document import Table
from ridgeline.claims.finding import SLACK, Finding, apart, digits, over, overlap
from ridgeline.claims.quantities import Quantity

_AT = r"(?:at|on|with|using|across|for)\s+(?:a\s+)?"
_KEYS = {  # what a sentence names a row by: the role of the column, and how the number is written
    "n": re.compile(rf"\b{_AT}(\d+)\s?(gpus?|nodes?|workers?|threads?|ranks?|processes|cores)\b", re.I),
    "batch": re.compile(rf"\b{_AT}batch(?:[ _-]size)?\s*(?:=|of)?\s*(\d+)()\b", re.I),
}
_SAID = (  # role of the column, and the words behind the number that mean it
    ("efficiency", re.compile(r"\s*(?:scaling |parallel )?efficien", re.I)),
    ("speedup", re.compile(r"\s*(?:speed-?up|faster)", re.I)),
    ("rate", re.compile(r"")),
)
_OVER = re.compile(
    r"\s*(?:speed-?up |faster |improvement )?(?:vs\.?|over|than|compared (?:to|with))\s+(?:the )?([A-Z]\w+)"
)


def check(context: Context) -> Iterator[Finding]:
    for facts in by_line(context):
        for fact in facts:
            yield from _row_again(context, fact)
            yield from _at_most(context, fact)
        yield from _over_a_peer(context, facts)
        yield from named.check(context, facts)


def _row_again(context: Context, fact: Fact) -> Iterator[Finding]:
    """ "93 % scaling efficiency at 4 GPUs": some table's row of 4 GPUs must say so."""
    said = fact.quantity
    if said.bound or said.top is not None:
        return
    for role, behind in _SAID:
        if not _meant(said, role) or not behind.match(fact.tail):
            continue
        for key, pattern in _KEYS.items():
            named = pattern.search(fact.tail[:60])
            if named is None or re.search(r"[.;,]\s", fact.tail[: named.start()]):
                continue
            cells = [
                (table, row, cell)
                for table, found in context.tables
                for row, cell in _cells(table, found, key, named, role)
                if cell.dims == said.dims and (role != "rate" or _one_kind(cell, said))
            ]
            if not cells or any(overlap(said.interval(1.0), cell.interval(1.0), SLACK) for *_, cell in cells):
                continue
            table, row, cell = min(cells, key=lambda c: apart(c[2].value, said.value))
            what = f"stated twice: {said.text} here, {cell.text} in line {table.rows[row].line}"
            yield say(context, fact, "restated", what, apart(said.value, cell.value), 0.72)


def _meant(said: Quantity, role: str) -> bool:
    if role == "efficiency":
        return said.share
    return said.factor if role == "speedup" else said.dims == q.RATE and bool(said.noun)


def _one_kind(cell: Quantity, said: Quantity) -> bool:
    return not cell.noun or cell.noun.rstrip("s") == said.noun.rstrip("s")


def _cells(
    table: Table, found: list[Column], key: str, named: re.Match[str], role: str
) -> Iterator[tuple[int, Quantity]]:
    word = named[2].lower().rstrip("s")
    for keys in find_roles(found, key):
        if word and word not in keys.name.lower():
            continue
        for row, cell in enumerate(keys.cells):
            if cell is not None and cell.value == float(named[1]):
                values = (column.cells[row] for column in find_roles(found, role))
                yield from ((row, value) for value in values if value is not None and not value.bound)


def _at_most(context: Context, fact: Fact) -> Iterator[Finding]:
    """ "up to 3.2x speedup" is the largest of the speed-ups that are shown."""
    said = fact.quantity
    if not said.factor or said.bound or not re.search(r"up to\W*$", fact.text[: said.start], re.I):
        return
    if not re.match(r"\s*(?:speed-?ups?|faster)\b", fact.tail, re.I):
        return
    columns = [(t, c) for t, found in context.tables for c in find_roles(found, "speedup")]
    cells = [(t, r, cell) for t, c in columns for r, cell in enumerate(c.cells) if cell is not None]
    others = [f.quantity for f in context.facts if f.quantity.factor and f is not fact]
    if len(columns) != 1 or len(cells) < 2 or any(overlap(said.interval(1.0), x.interval(1.0), SLACK) for x in others):
        return
    table, row, largest = max(cells, key=lambda c: c[2].value)
    if any(overlap(said.interval(1.0), cell.interval(1.0), 0.02) for *_, cell in cells):
        return
    what = f"stated twice: up to {said.text} here, at most {largest.text} in line {table.rows[row].line}"
    yield say(context, fact, "restated", what, apart(said.value, largest.value), 0.6)


def _over_a_peer(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """ "4,000 rows/s (8x over CPU)" beside a row of the CPU's."""
    for first, factor in ((a, b) for n, a in enumerate(facts) for b in facts[n + 1 : n + 4]):
        behind = _OVER.match(factor.tail)
        rate, claim = first.quantity, factor.quantity
        if behind is None or rate.dims != q.RATE or not rate.noun or not claim.factor or claim.bound or rate.bound:
            continue
        if "(" not in first.text[rate.end : claim.start]:
            continue
        name = behind[1].lower()
        rows = [
            (table.rows[r].line, cell)
            for table, found in context.tables
            for column in find_roles(found, "rate")
            for r, cell in enumerate(column.cells)
            if cell is not None and _one_kind(cell, rate) and name in label_of(table, r, found).lower().split()
        ]
        told = [(f.line, f.quantity) for f in context.facts if f.line != first.line and _of(f, name, rate)]
        bases = rows + told
        if not rows or any(
            overlap(claim.interval(1.0), over(rate.interval(), b.interval()), 0.01) for _, b in bases if b.value
        ):
            continue
        line, base = min(rows, key=lambda b: apart(rate.value / b[1].value, claim.value) if b[1].value else 1e9)
        value = rate.value / base.value
        what = f"speed-up: {rate.text} / {base.text} (line {line}) = {digits(value)}×, not {claim.text}"
        yield say(context, factor, "speed-up", what, apart(value, claim.value), 0.65)


def _of(fact: Fact, name: str, rate: Quantity) -> bool:
    told = fact.quantity
    return told.dims == q.RATE and _one_kind(told, rate) and name in (fact.text + " " + fact.heading).lower()
