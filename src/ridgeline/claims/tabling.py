"""Tables out of lines: Markdown and pipe text, columns set apart by spaces, HTML, CSV; headers of several rows."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from html.parser import HTMLParser

from ridgeline.claims.document import Document, Line, Row, Table, repair, strip
from ridgeline.claims.numerals import Cells, localized

_RULE = re.compile(r"[\s|+┼]*:?[-=─━]+:?(?:[\s|+┼]+:?[-=─━]+:?)*[\s|+┼]*$")
_NUMBER = re.compile(r"[\s*_+~≈<>≤≥±−-]*[$€]?\.?\d")
_MOST_HEADERS = 3

Part = tuple[int, int, str]  # start, end and text of a cell in its line


def add(document: Document, cells: Cells, at: int) -> None:
    """One more table; its first row is the header, and the second too where that has units or parts of groups."""
    while len(cells) > 2 and not any(cells[0][1]):
        cells = cells[1:]
    (line, header), *body = cells
    while len(body) > 1 and _header_goes_on(header, body[0][1]):
        header, body = _joined([_filled(header), body[0][1]]), body[1:]
    body = localized(body)
    place, width = document.lines[at], len(header)
    rows = tuple(Row(n, tuple((row + [""] * width)[:width])) for n, row in body if any(row))
    document.tables.append(Table(tuple(header), rows, line, place.section, place.heading))


def _header_goes_on(header: list[str], row: list[str]) -> bool:
    """ "| | A100 | |" above "| batch | p50 | p99 |"; a row of units in brackets."""
    told = [cell for cell in row if cell]
    if len(told) < 2 or len(row) != len(header) or any(_NUMBER.match(cell) for cell in told):
        return False
    units = all(re.fullmatch(r"\(.*\)|\[.*\]", cell) for cell in told)
    gaps = any(header) and sum(not cell for cell in header[1:]) >= max(1, len(header) // 4)
    return units or (gaps and sum(not cell for cell in row[1:]) == 0)


def _filled(header: list[str]) -> list[str]:
    """A name above several columns is the name of each."""
    out: list[str] = []
    for place, cell in enumerate(header):
        out.append(cell or (out[-1] if place > 1 else ""))
    return out


def _joined(rows: Sequence[list[str]]) -> list[str]:
    return [" ".join(dict.fromkeys(cell for cell in column if cell)) for column in zip(*rows, strict=True)]


def turned(table: Table) -> Table | None:
    """Rows as columns, where the first column names quantities: "Throughput (images/s) | 432 | 1,250"."""
    width, names = len(table.header), [row.cells[0] for row in table.rows]
    if width < 3 or len(names) < 2 or not all(names) or len(set(names)) < len(names):
        return None
    rows = tuple(
        Row(
            table.line,
            (table.header[place], *(row.cells[place] for row in table.rows)),
            (table.line, *(row.line for row in table.rows)),
        )
        for place in range(1, width)
    )
    return Table((table.header[0] or "-", *names), rows, table.line, table.section, table.heading, turned=True)


def _split(line: str) -> list[str]:
    inner = line.strip()
    inner = inner[1:] if inner.startswith("|") else inner
    inner = inner[:-1] if inner.endswith("|") else inner
    return [strip(cell).strip() for cell in re.split(r"(?<!\\)\|", inner)]


def piped(document: Document, raw: list[str]) -> None:
    at = 0
    while at < len(raw):
        run = at
        while run < len(raw) and _in_pipes(raw[run], run > at) and not document.lines[run].code:
            run += 1
        body = [n for n in range(at, run) if not _RULE.match(raw[n])]
        border = run - at >= 3 and len(body) >= 2 and (_RULE.match(raw[at]) or _RULE.match(raw[at + 1]))
        even = len(body) >= 3 and len({len(_split(raw[n])) for n in body}) == 1 and raw[body[0]].count("|") >= 2
        if border or even:
            add(document, [(n + 1, _split(raw[n])) for n in body], at)
            document.tabled |= set(range(at + 1, run + 1))
        at = max(run, at + 1)


def _in_pipes(line: str, inside: bool) -> bool:
    return bool(line.strip()) and (
        line.count("|") >= 1 or (line.lstrip().startswith("+-") or (inside and "-+-" in line))
    )


def spaced(document: Document, raw: list[str]) -> None:
    """Columns set apart by two spaces or more, under a header without numbers."""
    at = 0
    while at < len(raw):
        run = at
        body: list[tuple[int, list[Part]]] = []
        while run < len(raw) and _free(document, run):
            parts = _parts(raw[run])
            numbers = sum(_NUMBER.match(text) is not None for _, _, text in parts)
            if len(parts) < 3 or numbers < 1 or (body and len(parts) != len(body[0][1])):
                break
            body.append((run, parts))
            run += 1
        if len(body) >= 2 and not _RULE.match(raw[at]):
            _under_header(document, raw, at, body)
        at = max(run, at + 1)


def _free(document: Document, at: int) -> bool:
    return at + 1 not in document.tabled and not document.lines[at].code


def _parts(line: str) -> list[Part]:
    """Start, end and text of each cell."""
    line = re.sub(
        r"^(\s*)(?:#+|//)(?=\s)", lambda m: " " * len(m[0]), line.expandtabs(8) if "\t" not in line.strip() else line
    )
    found = re.finditer(r"\S+(?:[ ]\S+)*" if "\t" not in line else r"[^\t\s](?:[^\t]*[^\t\s])?", line)
    return [(m.start(), m.end(), strip(m[0])) for m in found]


def _under_header(document: Document, raw: list[str], at: int, body: list[tuple[int, list[Part]]]) -> None:
    heads: list[list[Part]] = []
    line = at - 1
    while line >= 0 and _free(document, line) and len(heads) < _MOST_HEADERS:
        if _RULE.match(raw[line]):
            line -= 1
            continue
        parts = _parts(raw[line])
        if len(parts) < 2 or any(_NUMBER.match(text) for _, _, text in parts):
            break
        heads.insert(0, parts)
        line -= 1
    if not heads:
        return
    width = len(body[0][1])
    names = _aligned(heads, body[0][1])
    cells: Cells = [(line + 2, names), *((n + 1, [text for _, _, text in parts]) for n, parts in body)]
    if sum(map(bool, names)) >= max(2, width - 1):
        add(document, cells, at)
        document.tabled |= set(range(line + 2, body[-1][0] + 2))


def _aligned(heads: list[list[Part]], row: list[Part]) -> list[str]:
    """A header's words above the cells: in order where there are as many, else above the nearest."""
    width = len(row)
    whole = [parts for parts in heads if len(parts) == width]
    names: list[list[str]] = [[""] * width for _ in heads]
    for number, parts in enumerate(heads):
        if len(parts) == width:
            names[number] = [text for _, _, text in parts]
            continue
        marks = whole[0] if whole else row
        if len(parts) > width:
            return [""] * width
        for start, end, text in parts:
            near = min(range(width), key=lambda place: min(abs(marks[place][0] - start), abs(marks[place][1] - end)))
            names[number][near] = text
    if whole and len(heads) > 1:  # words that stand over some columns only are no names of them
        names = [n for n, parts in zip(names, heads, strict=True) if len(parts) == width or 2 * len(parts) >= width]
    return _joined(names)


def separated(document: Document, lines: list[str], comma: str) -> None:
    document.lines = [Line(n, repair(line), 0, "") for n, line in enumerate(lines, 1)]
    start = next((n for n, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), len(lines))
    head = lines[start] if start < len(lines) else ""
    comma = comma or max(",;\t", key=head.count)
    reader = csv.reader(io.StringIO("\n".join(map(repair, lines[start:]))), delimiter=comma)
    cells: Cells = []
    before = 0
    for row in reader:
        if row and not row[0].lstrip().startswith("#"):
            cells.append((start + 1 + before, [cell.strip() for cell in row]))
        before = reader.line_num
    if len(cells) >= 2:
        add(document, cells, start)
        document.tabled = {line.number for line in document.lines[start:]}


class _Html(HTMLParser):
    """Every table as a grid: a cell over several rows or columns stands in each of them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[Cells] = []
        self.heads: list[int] = []  # how many rows of each table are header
        self.alone: list[set[int]] = []  # rows of one cell that spans all
        self.spans: list[tuple[int, int]] = []
        self.cell: list[str] | None = None
        self.size = (1, 1)
        self.below: dict[int, tuple[int, str]] = {}  # column -> rows still covered, text
        self.raised = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
            self.heads.append(0)
            self.alone.append(set())
            self.spans.append((self.getpos()[0], self.getpos()[0]))
            self.below = {}
        elif tag == "tr" and self.tables:
            self.tables[-1].append((self.getpos()[0], []))
            self._cover()
        elif tag in ("td", "th") and self.tables and self.tables[-1]:
            self.cell = []
            told = dict(attrs)
            self.size = _span(told.get("colspan")), _span(told.get("rowspan"))
            if tag == "th" and self.heads[-1] == len(self.tables[-1]) - 1:
                self.heads[-1] += 1
            elif tag == "td" and self.heads[-1] == len(self.tables[-1]):
                self.heads[-1] -= 1
        elif tag == "sup":
            self.raised = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self.cell is not None:
            if self.tables and self.tables[-1]:
                row, text = self.tables[-1][-1][1], repair(" ".join("".join(self.cell).split()))
                for copy in range(self.size[0]):
                    shown = (
                        text if copy == 0 or tag == "th" else ""
                    )  # a name over several columns; a remark across them
                    if self.size[1] > 1:
                        self.below[len(row)] = (self.size[1] - 1, shown)
                    row.append(shown)
                if self.size[0] > 1 and len(row) == self.size[0]:
                    self.alone[-1].add(len(self.tables[-1]) - 1)
                    row[1:] = [""] * (len(row) - 1) if tag == "td" else row[1:]
                else:
                    self.alone[-1].discard(len(self.tables[-1]) - 1)
                self._cover()
            self.cell = None
        elif tag == "table" and self.spans:
            self.spans[-1] = (self.spans[-1][0], self.getpos()[0])
        elif tag == "sup":
            self.raised = False

    def _cover(self) -> None:
        """Cells that reach down from rows above."""
        row = self.tables[-1][-1][1]
        while len(row) in self.below:
            place = len(row)
            left, text = self.below.pop(place)
            if left > 1:
                self.below[place] = (left - 1, text)
            row.append(text)

    def handle_data(self, data: str) -> None:
        if self.cell is not None and not (self.raised and len(data) <= 2 and "".join(self.cell).strip()):
            self.cell.append(data)


def _span(told: str | None) -> int:
    return min(int(told), 50) if told and told.isdigit() and int(told) else 1


def html(document: Document, text: str) -> None:
    parser = _Html()
    parser.feed(text)
    for cells, alone, heads, (start, end) in zip(parser.tables, parser.alone, parser.heads, parser.spans, strict=True):
        header: list[tuple[int, list[str]]] = []
        at = 0
        while at < min(heads, len(cells)) and not (at in alone and header):  # one cell across a table is a title
            header += [] if at in alone else [cells[at]]
            at += 1
        body = [row for row in cells[at:] if row[1]]
        if len({len(row) for _, row in header}) == 1:
            body = [(header[0][0], _joined([row for _, row in header])), *body]
        else:
            body = [*header, *body]
        if len(body) >= 2:
            add(document, body, start - 1)
            document.tabled |= set(range(start, end + 1))
