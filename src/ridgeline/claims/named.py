"""A statement that names rows of a table: its figures, and the factors between two rows, must be theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import Column, label_of
from ridgeline.claims.context import Context, Fact, say
from ridgeline.claims.document import Table
from ridgeline.claims.finding import SLACK, Finding, apart, digits, over, overlap
from ridgeline.claims.quantities import Quantity

_ELSE = re.compile(  # the figure is another one
    r"\b(?:peaks?|bursts?|theor\w+|expect\w*|estimat\w*|predict\w*|would|could|should|up to|at least|at most|"
    r"previous\w*|earlier|last|before|old|used to|target|goal|limit|max\w*|min\w*|budget|idle|averag\w*|mean|another|"
    r"remaining|if|when|without|per)\b",
    re.I,
)
_FACTOR = re.compile(
    r"\s*(?:faster|slower|cheaper|as fast|the (?:\w+ )?(?:throughput|speed|rate|bandwidth|performance)|higher|more)\b",
    re.I,
)
_NEAR = 3.0  # further apart it is something else
_MEASURED = ("rate", "bandwidth", "flops", "time", "latency", "cost", "price", "memory", "size", "number", "other")


@dataclass(frozen=True)
class Named:
    """One row that a statement names, and where."""

    table: Table
    columns: list[Column]
    row: int
    label: str
    at: int


def check(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    rows = _rows(context, facts[0].text) if facts else []
    if rows:
        for fact in facts:
            yield from _figure(context, fact, rows)
            yield from _factor(context, fact, rows)


def _rows(context: Context, text: str) -> list[Named]:
    """Rows whose whole label stands in the text, each label in one table only."""
    found: list[Named] = []
    for table, columns in context.tables:
        labels = [label_of(table, r, columns).strip() for r in range(len(table.rows))]
        if not columns or columns[0].role != "label":
            continue
        for row, label in enumerate(labels):
            if len(label) < 2 or labels.count(label) > 1 or not re.search(r"[A-Za-z]", label):
                continue
            place = re.search(rf"(?<![\w-]){re.escape(label)}(?![\w-])", text)
            if place:
                found.append(Named(table, columns, row, label, place.start()))
    longer = [n for n in found if not any(n.label != m.label and n.label in m.label and n.at >= m.at for m in found)]
    return longer if len({id(n.table) for n in longer}) == 1 else []


def _figure(context: Context, fact: Fact, rows: list[Named]) -> Iterator[Finding]:
    """ "Server B serves 3,180 requests/s": the cell of that row and that kind."""
    said = fact.quantity
    if said.bound or said.top is not None or said.about or said.share or said.factor or _ELSE.search(fact.said):
        return
    if said.dims not in (q.RATE, q.BANDWIDTH, q.FLOPS, q.MONEY) or len(re.sub(r"\D", "", said.text).strip("0")) < 3:
        return
    table, columns = rows[0].table, rows[0].columns
    fitting = [c for c in columns if c.dims == said.dims and _about(c, said, fact)]
    spoken = {n.row for n in rows}
    if len(fitting) != 1 or _told_elsewhere(context, fact):
        return
    cells = [(row, cell) for row in spoken if (cell := fitting[0].cells[row]) is not None and not cell.bound]
    if not cells:
        return
    row, cell = min(cells, key=lambda pair: apart(pair[1].value, said.value))
    if 1.0 < apart(cell.value, said.value) < _NEAR and not overlap(said.interval(1.0), cell.interval(1.0), 0.01):
        what = f"stated twice: {said.text} here, {cell.text} in line {table.at(row, fitting[0].place)}"
        yield say(context, fact, "restated", what, apart(said.value, cell.value), 0.62)


def _about(column: Column, said: Quantity, fact: Fact) -> bool:
    """Whether the column is of what the statement speaks of."""
    if said.dims == q.RATE:
        return bool(said.noun) and said.noun.rstrip("s")[:4] in column.name.lower()
    spoken = set(re.findall(r"[a-z]{4,}", fact.said.lower()))
    return bool(spoken & set(re.findall(r"[a-z]{4,}", column.name.lower())))


def _told_elsewhere(context: Context, fact: Fact) -> bool:
    """Whether some table, or another statement, has this very figure."""
    said = fact.quantity
    cells = [c for _, found in context.tables for column in found for c in column.cells if c and c.dims == said.dims]
    others = [f.quantity for f in context.facts if f is not fact and f.quantity.dims == said.dims]
    return any(overlap(said.interval(1.0), c.interval(1.0), SLACK) for c in cells + others)


def _factor(context: Context, fact: Fact, rows: list[Named]) -> Iterator[Finding]:
    """ "2.4x the throughput of Server A" beside Server B: the ratio of two cells of some column."""
    said = fact.quantity
    if not said.factor or said.bound or said.top is not None or not _FACTOR.match(fact.tail) or len(rows) != 2:
        return
    if not all(n.label in fact.said for n in rows) and not any(n.label in fact.said for n in rows):
        return
    first, second = rows
    near: list[tuple[float, Quantity, Quantity]] = []
    for column in first.columns:
        a, b = column.cells[first.row], column.cells[second.row]
        if column.role not in _MEASURED or a is None or b is None or not a.value or not b.value:
            continue
        big, small = (a, b) if a.value >= b.value else (b, a)
        if overlap(said.interval(1.0), over(big.interval(), small.interval()), 0.01):
            return
        near.append((big.value / small.value, big, small))
    if re.search(r"\b(?:than|of|over)\b", fact.tail[:60]) is None or not near:
        return
    value, big, small = min(near, key=lambda told: apart(told[0], said.value))
    if apart(value, said.value) < _NEAR and not _ELSE.search(fact.tail[:60]):
        what = f"speed-up: {big.text} / {small.text} = {digits(value)}×, not {said.text}"
        yield say(context, fact, "speed-up", what, apart(value, said.value), 0.65)
