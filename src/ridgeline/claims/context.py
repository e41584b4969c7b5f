"""The context of a report: its facts (every quantity with the words around it), columns, batch sizes, peaks, links."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import Column, read_columns
from ridgeline.claims.document import Document, Line, Table, transpose
from ridgeline.claims.finding import Finding, confidence
from ridgeline.claims.quantities import Quantity, find_quantities

_WIRE = (
    r"network|infiniband|\bib\b|ethernet|gbe\b|\bhdr\b|\bndr\b|nvlink|pcie|roce|\bnic\b|connectx|interconnect|\blink"
)
_PEAK = r"peak|theoretical|maximum|\bmax\b|limit|ceiling|roof|spec"


@dataclass(frozen=True)
class Fact:
    """One quantity of a statement, or of a row "name | value"."""

    label: str  # the words before the quantity
    quantity: Quantity
    line: int
    section: int
    heading: str
    text: str  # the complete statement
    tail: str  # the words after the quantity
    sentence: str = ""  # the sentence of the quantity
    statement: int = 0  # the first line of the statement


@dataclass
class Context:
    """Everything that rules need to know about a report."""

    document: Document
    facts: list[Fact] = field(default_factory=list)
    tables: list[tuple[Table, list[Column]]] = field(default_factory=list)
    transposed: list[tuple[Table, list[Column]]] = field(default_factory=list)  # tables whose rows are quantities
    counts: set[int] = field(default_factory=set)
    text: str = ""  # of all lines, without markup
    batch_sizes: list[tuple[int, int]] = field(default_factory=list)  # line number, batch size

    def get_batch_sizes(self, line: int, heading: str) -> list[int]:
        """Return the batch sizes of a heading, else the last one that the report states before a line."""
        named = _find_batch_sizes(heading)
        if named:
            return named
        before = [batch for number, batch in self.batch_sizes if number < line]
        return before[-1:]

    def find_peaks(self, dims: q.Dims) -> list[Fact]:
        """Return the stated limits of one kind: 'Peak Bandwidth: 2000 GB/s', 'Memory bandwidth: 1,555 GB/s'."""
        facts = [f for f in self.facts if f.quantity.dims == dims and not f.quantity.bound]
        return [f for f in facts if re.search(_PEAK, f.label + " " + f.tail, re.I) and not _is_share(f)] + [
            f for f in facts if re.match(r"\W*(?:memory |hbm |dram )?bandwidth\W*$", f.label, re.I) and not _is_share(f)
        ]

    def find_links(self) -> list[Fact]:
        """Return the stated bandwidths of network and device links."""
        facts = [f for f in self.facts if f.quantity.dims == q.BANDWIDTH]
        return [f for f in facts if re.search(_WIRE, f.text, re.I) and not re.search(r"%", f.text)]


def _is_share(fact: Fact) -> bool:
    return bool(re.search(r"\d\s?%", fact.text))  # "710 GB/s (35 % of peak)" states no peak


def _find_batch_sizes(text: str) -> list[int]:
    sizes = re.findall(r"batch(?:[ _-]?size)?\s*(?:[:=]|is|of)?\s*(\d[\d,]*)(?![\d.-]|\s?–)", text, re.I)
    return [int(b.replace(",", "")) for b in sizes]


def build_context(document: Document) -> Context:
    """Collect the facts, columns and batch sizes of a document."""
    context = Context(document, text="\n".join(line.text for line in document.lines))
    for line in document.statements():
        context.facts += _read_facts(line, line.text)
        context.batch_sizes += [(line.number, batch) for batch in _find_batch_sizes(line.text)]
    for table in document.tables:
        columns = read_columns(table)
        context.tables.append((table, columns))
        if (other := transpose(table)) is not None and _named_by_rows(columns, sideways := read_columns(other)):
            context.transposed.append((other, sideways))
        if is_list(table):
            for row in table.rows:
                line = Line(row.line, f"{row.cells[0]}: {row.cells[1]}", table.section, table.heading)
                context.facts += _read_facts(line, line.text)
    quantities = [f.quantity for f in context.facts] + [
        c for _, cs in context.tables for col in cs for c in col.cells if c
    ]
    headings = {line.heading for line in document.lines}
    quantities += [quantity for heading in headings for quantity in find_quantities(heading)]
    context.counts = {
        int(c.value) for c in quantities if c.dims == q.NONE and not c.share and _is_whole_number(c.value)
    }
    return context


def _named_by_rows(upright: list[Column], sideways: list[Column]) -> bool:
    """Whether each row, rather than each column, holds one kind of quantity."""

    def count_roles(columns: list[Column]) -> int:
        return sum(column.role not in ("label", "number", "count", "other") for column in columns)

    return count_roles(sideways) >= 2 and all(
        c.mixed or c.role in ("label", "number", "count", "other") for c in upright[1:]
    )


def is_list(table: Table) -> bool:
    """Whether a table lists names and values, so that each row is a statement."""
    return len(table.header) >= 2 and bool(
        re.fullmatch(
            r"\W*(?:metric|name|property|parameter|item|setting|spec|field|key|measure|quantity)s?\W*",
            table.header[0],
            re.I,
        )
        and re.match(r"\W*(?:value|result|measure|amount|setting|spec)", table.header[1], re.I)
    )


def _is_whole_number(value: float) -> bool:
    return 1 < value < 1e12 and value == int(value)


def _read_facts(line: Line, text: str) -> list[Fact]:
    facts: list[Fact] = []
    last = 0
    for quantity in find_quantities(text):
        label = text[last : quantity.start]
        facts.append(
            Fact(
                label.strip(" -*•:|(├└─│"),
                quantity,
                line.get_number(quantity.start),
                line.section,
                line.heading,
                text,
                text[quantity.end :],
                line.get_sentence(quantity.start),
                line.number,
            )
        )
        last = quantity.end
    return facts


def group_by_section(context: Context) -> list[list[Fact]]:
    """Group facts by section."""
    sections: dict[int, list[Fact]] = {}
    for fact in context.facts:
        sections.setdefault(fact.section, []).append(fact)
    return list(sections.values())


def group_by_statement(context: Context) -> list[list[Fact]]:
    """Group facts by statement; a statement may span several lines."""
    lines: dict[int, list[Fact]] = {}
    for fact in context.facts:
        lines.setdefault(fact.statement, []).append(fact)
    return list(lines.values())


def create_finding(
    context: Context, fact: Fact, kind: str, arithmetic: str, factor: float, base_confidence: float
) -> Finding:
    """Report a fact; `factor` is the gap between the stated and the computed value."""
    return Finding(
        context.document.path, fact.line, kind, fact.sentence, arithmetic, confidence(factor, base_confidence)
    )
