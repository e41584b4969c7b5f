"""The context of a report: its facts (every quantity with the words around it), and the columns of its tables.

A list of "name: value" lines, and a table "metric | value", is also a table of one row: a view. So is a table whose
rows, and not its columns, hold one kind of quantity: its view has rows and columns exchanged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import Column, read_columns
from ridgeline.claims.document import Document, Line, Row, Table, transpose
from ridgeline.claims.finding import Finding, grade_confidence
from ridgeline.claims.quantities import Quantity, find_quantities

_PEAK = re.compile(r"peak|theoretical|maximum|\bmax\b|limit|ceiling|roof|spec", re.I)
_LIST_HEADER = re.compile(
    r"\W*(?:metric|name|property|parameter|item|setting|spec|field|key|measure(?:ment)?|quantity|stat(?:istic)?)s?\W*",
    re.I,
)
_NAME_AND_VALUE = re.compile(r"\s*(?:[-*•+]\s+)?(?P<name>[A-Za-z][^:|=]{1,48}?)\s*:\s+(?P<value>\S.*)")
_PLAIN_ROLES = ("label", "number", "count", "other")


@dataclass(frozen=True)
class Fact:
    """One quantity of a statement, or of a row "name | value"."""

    label: str  # the words before the quantity
    quantity: Quantity
    line: int
    text: str  # the complete statement
    tail: str  # the words after the quantity
    sentence: str  # the sentence of the quantity
    statement: int  # the first line of the statement


@dataclass
class Context:
    """Everything that rules need to know about a report."""

    document: Document
    facts: list[Fact] = field(default_factory=list)
    tables: list[tuple[Table, list[Column]]] = field(default_factory=list)
    views: list[tuple[Table, list[Column]]] = field(default_factory=list)  # exchanged tables, and lists as one row

    def find_peaks(self, dims: q.Dims) -> list[Fact]:
        """Return the stated limits of one kind: "Peak bandwidth: 2000 GB/s"."""
        facts = [f for f in self.facts if f.quantity.dims == dims and not f.quantity.bound]
        named = [f for f in facts if _PEAK.search(f.label) or _PEAK.match(f.tail.lstrip(" (,"))]
        return [f for f in named if not re.search(r"\d\s?%", f.text)]

    def group_by_statement(self) -> list[list[Fact]]:
        """Group facts by statement; a statement may span several lines."""
        groups: dict[int, list[Fact]] = {}
        for fact in self.facts:
            groups.setdefault(fact.statement, []).append(fact)
        return list(groups.values())

    def report(self, fact: Fact, kind: str, arithmetic: str, factor: float, base: float) -> Finding:
        """Report a fact; `factor` is the gap between the stated and the computed value."""
        path = self.document.path
        return Finding(path, fact.line, kind, fact.sentence, arithmetic, grade_confidence(base, factor))

    def report_cell(
        self, table: Table, row: int, index: int, kind: str, arithmetic: str, factor: float, base: float
    ) -> Finding:
        """Report a cell of a table."""
        line, says = table.get_line(row, index), table.format_row(row, index)
        return Finding(self.document.path, line, kind, says, arithmetic, grade_confidence(base, factor))


def build_context(document: Document) -> Context:
    """Collect the facts, columns and views of a document."""
    context = Context(document)
    statements = document.statements()
    for line in statements:
        context.facts += _read_facts(line)
    for table in document.tables:
        columns = read_columns(table)
        context.tables.append((table, columns))
        if _is_list(table):
            context.views.append(_join_rows(table))
            for row in table.rows:
                context.facts += _read_facts(Line(row.line, f"{row.cells[0]}: {row.cells[1]}", table.section, ""))
        elif (other := transpose(table)) is not None and _is_named_by_rows(columns, sideways := read_columns(other)):
            context.views.append((other, sideways))
    context.views += [_join_lines(group) for group in _group_named_lines(statements)]
    return context


def _is_named_by_rows(upright: list[Column], sideways: list[Column]) -> bool:
    """Whether each row, rather than each column, holds one kind of quantity."""
    named = sum(column.role not in _PLAIN_ROLES for column in sideways)
    return named >= 2 and all(column.mixed or column.role in _PLAIN_ROLES for column in upright[1:])


def _is_list(table: Table) -> bool:
    """Whether a table lists names and values, so that each row is a statement."""
    return (
        len(table.header) >= 2
        and _LIST_HEADER.fullmatch(table.header[0]) is not None
        and re.match(r"\W*(?:value|result|measure|amount|setting|spec|number)", table.header[1], re.I) is not None
    )


def _join_rows(table: Table) -> tuple[Table, list[Column]]:
    names = tuple(row.cells[0] for row in table.rows)
    cells, lines = tuple(row.cells[1] for row in table.rows), tuple(row.line for row in table.rows)
    return _create_view(names, cells, lines, table.section, table.heading)


def _group_named_lines(statements: list[Line]) -> list[list[Line]]:
    """Group "name: value" lines that follow each other without a blank line."""
    groups: list[list[Line]] = []
    for line in statements:
        if not _NAME_AND_VALUE.fullmatch(line.text):
            continue
        last = groups[-1][-1] if groups else None
        if last is not None and last.section == line.section and last.number == line.number - 1:
            groups[-1].append(line)
        else:
            groups.append([line])
    return [group for group in groups if len(group) >= 3]


def _join_lines(lines: list[Line]) -> tuple[Table, list[Column]]:
    parts = [match for line in lines if (match := _NAME_AND_VALUE.fullmatch(line.text))]
    names, cells = tuple(part["name"] for part in parts), tuple(part["value"] for part in parts)
    return _create_view(names, cells, tuple(line.number for line in lines), lines[0].section, lines[0].heading)


def _create_view(
    names: tuple[str, ...], cells: tuple[str, ...], lines: tuple[int, ...], section: int, heading: str
) -> tuple[Table, list[Column]]:
    table = Table(names, (Row(lines[0], cells, lines),), lines[0], section, heading, transposed=True)
    return table, read_columns(table)


def _read_facts(line: Line) -> list[Fact]:
    facts: list[Fact] = []
    last = 0
    for quantity in find_quantities(line.text):
        facts.append(
            Fact(
                line.text[last : quantity.start].strip(" -*•:|(├└─│"),
                quantity,
                line.get_number(quantity.start),
                line.text,
                line.text[quantity.end :],
                line.get_sentence(quantity.start),
                line.number,
            )
        )
        last = quantity.end
    return facts
