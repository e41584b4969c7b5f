"""What a report states once and means everywhere: batch sizes, peaks, links, prices, counts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import Column, columns
from ridgeline.claims.document import Document, Line, Table
from ridgeline.claims.finding import Finding, confidence
from ridgeline.claims.quantities import Quantity, find
from ridgeline.claims.tabling import turned

_WIRE = (
    r"network|infiniband|\bib\b|ethernet|gbe\b|\bhdr\b|\bndr\b|nvlink|pcie|roce|\bnic\b|connectx|interconnect|\blink"
)
_PEAK = r"peak|theoretical|maximum|\bmax\b|limit|ceiling|roof|spec"


@dataclass(frozen=True)
class Fact:
    """One quantity of a statement, or of a row "name | value"."""

    label: str  # the words before it
    quantity: Quantity
    line: int
    section: int
    heading: str
    text: str  # the whole line
    tail: str  # the words behind it
    said: str = ""  # the sentence it stands in
    statement: int = 0  # the first line of the statement


@dataclass
class Context:
    document: Document
    facts: list[Fact] = field(default_factory=list)
    tables: list[tuple[Table, list[Column]]] = field(default_factory=list)
    turned: list[tuple[Table, list[Column]]] = field(default_factory=list)  # whose rows name quantities
    counts: set[int] = field(default_factory=set)
    text: str = ""  # of all lines, without markup
    stated: list[tuple[int, int]] = field(default_factory=list)  # batch sizes and their lines

    def batches(self, line: int, heading: str) -> list[int]:
        """Batch sizes that could be meant at a place: that of the heading, else the last one stated before it."""
        own = _batches(heading)
        if own:
            return own
        before = [batch for number, batch in self.stated if number < line]
        return before[-1:]

    def peaks(self, dims: q.Dims) -> list[Fact]:
        """Stated limits of one kind: 'Peak Bandwidth: 2000 GB/s', 'Memory bandwidth: 1,555 GB/s'."""
        found = [f for f in self.facts if f.quantity.dims == dims and not f.quantity.bound]
        return [f for f in found if re.search(_PEAK, f.label + " " + f.tail, re.I) and not _shared(f)] + [
            f for f in found if re.match(r"\W*(?:memory |hbm |dram )?bandwidth\W*$", f.label, re.I) and not _shared(f)
        ]

    def links(self) -> list[Fact]:
        found = [f for f in self.facts if f.quantity.dims == q.BANDWIDTH]
        return [f for f in found if re.search(_WIRE, f.text, re.I) and not re.search(r"%", f.text)]


def _shared(fact: Fact) -> bool:
    return bool(re.search(r"\d\s?%", fact.text))  # "710 GB/s (35 % of peak)" states no peak


def _batches(text: str) -> list[int]:
    found = re.findall(r"batch(?:[ _-]?size)?\s*(?:[:=]|is|of)?\s*(\d[\d,]*)(?![\d.-]|\s?–)", text, re.I)
    return [int(b.replace(",", "")) for b in found]


def gather(document: Document) -> Context:
    context = Context(document, text="\n".join(line.text for line in document.lines))
    for line in document.statements():
        context.facts += _facts(line, line.text)
        context.stated += [(line.number, batch) for batch in _batches(line.text)]
    for table in document.tables:
        found = columns(table)
        context.tables.append((table, found))
        if (other := turned(table)) is not None and _named_by_rows(found, sideways := columns(other)):
            context.turned.append((other, sideways))
        if is_list(table):
            for row in table.rows:
                line = Line(row.line, f"{row.cells[0]}: {row.cells[1]}", table.section, table.heading)
                context.facts += _facts(line, line.text)
    every = [f.quantity for f in context.facts] + [c for _, cs in context.tables for col in cs for c in col.cells if c]
    headings = {line.heading for line in document.lines}
    every += [quantity for heading in headings for quantity in find(heading)]
    context.counts = {int(c.value) for c in every if c.dims == q.NONE and not c.share and _whole(c.value)}
    return context


def _named_by_rows(upright: list[Column], sideways: list[Column]) -> bool:
    """Whether it is the rows that hold one kind of quantity each."""

    def told(found: list[Column]) -> int:
        return sum(column.role not in ("label", "number", "count", "other") for column in found)

    return told(sideways) >= 2 and all(c.mixed or c.role in ("label", "number", "count", "other") for c in upright[1:])


def is_list(table: Table) -> bool:
    """A table of names and values: each row is a statement."""
    return len(table.header) >= 2 and bool(
        re.fullmatch(
            r"\W*(?:metric|name|property|parameter|item|setting|spec|field|key|measure|quantity)s?\W*",
            table.header[0],
            re.I,
        )
        and re.match(r"\W*(?:value|result|measure|amount|setting|spec)", table.header[1], re.I)
    )


def _whole(value: float) -> bool:
    return 1 < value < 1e12 and value == int(value)


def _facts(line: Line, text: str) -> list[Fact]:
    out: list[Fact] = []
    last = 0
    for quantity in find(text):
        label = text[last : quantity.start]
        out.append(
            Fact(
                label.strip(" -*•:|(├└─│"),
                quantity,
                line.at(quantity.start),
                line.section,
                line.heading,
                text,
                text[quantity.end :],
                line.around(quantity.start),
                line.number,
            )
        )
        last = quantity.end
    return out


def by_section(context: Context) -> list[list[Fact]]:
    sections: dict[int, list[Fact]] = {}
    for fact in context.facts:
        sections.setdefault(fact.section, []).append(fact)
    return list(sections.values())


def by_line(context: Context) -> list[list[Fact]]:
    """Those of one statement, which may be several lines."""
    lines: dict[int, list[Fact]] = {}
    for fact in context.facts:
        lines.setdefault(fact.statement, []).append(fact)
    return list(lines.values())


def say(context: Context, fact: Fact, kind: str, what: str, factor: float, sure: float) -> Finding:
    return Finding(context.document.path, fact.line, kind, fact.said, what, confidence(factor, sure))
