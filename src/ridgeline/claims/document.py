"""Read a report: Markdown, plain text, HTML or CSV become lines, statements and tables with their line numbers."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

from ridgeline.errors import InputError

_SUPERSCRIPT = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_STATEMENT_START = re.compile(  # the start of a statement: a list item, a tag, a quote, "Name: value"
    r"\s*(?:[-*•+>|=#├└│]|\d+[.)]\s|<(?!(?:b|i|em|strong|code|sub|sup|a|span)\b)|\[\^?\w+\]:|[^.!?:;,]{1,32}:(?:\s|$))|\s*$"
)
_CODE = {"python", "py", "rust", "bash", "sh", "shell", "c", "cpp", "c++", "cuda", "java", "js", "go", "yaml", "json"}
_WRAP_WIDTH = 50  # characters; a shorter line is not wrapped


@dataclass(frozen=True)
class Line:
    """One line of a report, or a statement of several wrapped lines."""

    number: int
    text: str  # repaired, without markup
    section: int
    heading: str
    code: bool = False  # a program, not a statement
    fenced: bool = False
    starts_statement: bool = True  # does not continue the line before
    line_starts: tuple[tuple[int, int], ...] = ()  # offset and number of each further line

    def get_number(self, offset: int) -> int:
        """Return the number of the line at an offset of the text."""
        return max((number for start, number in self.line_starts if start <= offset), default=self.number)

    def get_sentence(self, offset: int) -> str:
        """Return the sentence at an offset of the text."""
        starts, ends = _find_sentence_ends(self.text)
        first, last = bisect_right(starts, offset), bisect_right(ends, offset)
        start = starts[first - 1] if first else 0
        return self.text[start : ends[last] if last < len(ends) else len(self.text)].strip()


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    line: int
    cells: tuple[str, ...]
    lines: tuple[int, ...] = ()  # one per cell, if the cells come from several lines


@dataclass(frozen=True)
class Table:
    """A table with one header row; every row has as many cells as the header."""

    header: tuple[str, ...]
    rows: tuple[Row, ...]
    line: int
    section: int
    heading: str
    transposed: bool = False  # the rows are columns of the report

    def get_line(self, row: int, index: int) -> int:
        """Return the line number of a cell."""
        lines = self.rows[row].lines
        return lines[index] if lines else self.rows[row].line

    def format_row(self, row: int, index: int = 0) -> str:
        """Return the text of a row, as the report shows it."""
        if self.transposed:
            name = self.header[index]
            return " | ".join([name, *(r.cells[index] for r in self.rows if r.cells[index])])
        return " | ".join(cell for cell in self.rows[row].cells if cell)


@dataclass
class Document:
    """A report: its lines and tables."""

    path: str
    lines: list[Line] = field(default_factory=list)  # including those of tables
    tables: list[Table] = field(default_factory=list)
    table_lines: set[int] = field(default_factory=set)  # numbers of the lines inside tables

    def statements(self) -> list[Line]:
        """Return the lines of prose; the lines of a wrapped paragraph become one."""
        statements: list[Line] = []
        width = 0  # of the line before
        for line in self.lines:
            if line.number in self.table_lines or line.code or not line.text.strip():
                width = 0
                continue
            if (
                width >= _WRAP_WIDTH
                and not line.starts_statement
                and not line.fenced
                and statements[-1].section == line.section
            ):
                text, more = statements[-1].text, line.text.strip()
                line_starts = (*statements[-1].line_starts, (len(text) + 1, line.number))
                statements[-1] = replace(statements[-1], text=f"{text} {more}", line_starts=line_starts)
            else:
                statements.append(line)
            width = 0 if line.fenced else len(line.text)
        return statements


def load_text(path: Path) -> str:
    """Read the text of a file; raise `InputError` if there is none."""
    if path.is_dir():
        raise InputError(f"'{path}' is a folder; give the files to check.")
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"there is no file '{path}'; give a report to check.") from None
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}.") from None
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        try:
            return raw.decode("utf-16")
        except UnicodeDecodeError:
            raise InputError(f"'{path}' is not text; give Markdown, plain text, HTML or CSV.") from None
    if b"\0" in raw or raw[:5] == b"%PDF-":
        raise InputError(f"'{path}' is a binary file; give Markdown, plain text, HTML or CSV.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        control_bytes = sum(byte < 9 or 13 < byte < 32 for byte in raw)
        if control_bytes * 50 > len(raw):
            raise InputError(f"'{path}' is a binary file; give Markdown, plain text, HTML or CSV.") from None
        return raw.decode("cp1252", errors="replace")


def read_document(text: str, path: str = "") -> Document:
    """Read a report; the suffix of `path` tells CSV and TSV from other text."""
    document = Document(path)
    suffix = Path(path).suffix.lower()
    if suffix in (".csv", ".tsv"):
        _read_csv(document, text.splitlines(), "\t" if suffix == ".tsv" else "")
        return document
    raw = [normalise(line) for line in re.sub(r"<!--.*?-->", _remove_text, text, flags=re.DOTALL).splitlines()]
    section, heading, fence = 0, "", ""
    headings: list[str] = [""] * 7
    for number, line in enumerate(raw, 1):
        if marker := re.match(r"\s*(?:```|~~~)(.*)", line):
            word = (marker[1].split() or ["text"])[0].lower()
            fence = "" if fence else word
            document.lines.append(Line(number, "", section, heading))
            continue
        title = None if fence else re.match(r"\s*(#{1,6})\s+(.*)|\s*<h([1-6])[^>]*>(.*)", line, re.I)
        if title:
            level = len(title[1] or "") or int(title[3])
            headings[level:] = [strip_markup(title[2] or title[4]), *[""] * (6 - level)]
            section, heading = section + 1, " · ".join(h for h in headings[2:] if h) or headings[1]
        elif not fence and re.fullmatch(r"\s*\*\*[^*]+\*\*:?\s*", line):
            section += 1
        starts = title is not None or starts_statement(line)
        document.lines.append(Line(number, strip_markup(line), section, heading, fence in _CODE, bool(fence), starts))
    _read_piped_tables(document, raw)
    _read_spaced_tables(document, raw)
    if re.search(r"<table", text, re.I):
        _read_html_tables(document, text)
    return document


def _remove_text(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "", match[0])


# --- Text


@lru_cache(maxsize=64)
def _find_sentence_ends(text: str) -> tuple[list[int], list[int]]:
    """Return the offsets where sentences may start, and those where they surely end."""
    starts = [m.end() for m in re.finditer(r"[.!?;]\s+", text)]
    return starts, [m.start() + 1 for m in re.finditer(r"[.!?]\s+(?=[A-Z(])", text)]


def starts_statement(raw: str) -> bool:
    return _STATEMENT_START.match(raw) is not None


def repair(text: str) -> str:
    """Undo UTF-8 that was read as Mac Roman, Windows-1252 or Latin-1.

    >>> repair("48.3ms √ó 1,200 ‚Üí 5 Î¼s")
    '48.3ms × 1,200 → 5 μs'
    """
    text = text.replace('â€"', "—").replace("\u00a0", " ").replace("\u202f", " ")
    return re.sub(r"[^\x00-\x7f]{2,}", _decode, text)


def _decode(match: re.Match[str]) -> str:
    for codec in ("mac_roman", "cp1252", "latin-1"):
        try:
            text = match[0].encode(codec).decode("utf-8")
        except (UnicodeEncodeError, UnicodeDecodeError):
            continue
        if all(c in "\ufe0f\u200d" or unicodedata.category(c)[0] not in "MC" for c in text):
            return text  # no lone accents and no control characters: the right codec
    return match[0]


def normalise(line: str) -> str:
    """Repair a line and write powers of ten as 1e6."""
    return re.sub(
        r"\s?[×x*]\s?10(?:\^|\*\*)?([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+|(?<=\^)-?\d+|(?<=\*\*)-?\d+)",
        lambda m: "e" + m[1].translate(_SUPERSCRIPT),
        repair(line),
    )


def strip_markup(text: str) -> str:
    """Remove markup and footnote marks."""
    text = re.sub(r"<sup>[^<]{1,3}</sup>|\[\^\w+\](?!:)", "", text)
    text = re.sub(r"<[a-zA-Z/][^>]*>", " ", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return unescape(re.sub(r"\*\*|__|`", "", text)).replace("\\|", "|").rstrip()


# --- Tables

_AROUND = r"[\s*_+~≈<>≤≥±−$€-]*{}\s*(?:[^\d\s]\S*)?[\s*_]*"
_DECIMAL_COMMA = re.compile(_AROUND.format(r"(?:\d{1,3}(?:\.\d{3})+|\d+),(?:\d{1,2}|\d{4,})"))
_SPACED = re.compile(_AROUND.format(r"[1-9]\d{0,2}(?: \d{3})+(?:[.,]\d+)?"))
Cells = list[tuple[int, list[str]]]  # line number and cells of each row


def convert_numbers(body: Cells) -> Cells:
    """Convert "11 200" to "11200" and, if the commas of the table are decimal, "1.191,5" to "1191.5"."""
    cells = [cell for _, row in body for cell in row]
    comma = sum(_DECIMAL_COMMA.fullmatch(cell) is not None for cell in cells)
    point = any(re.search(r"\d\.(?:\d{1,2}|\d{4,})(?!\d)", cell) for cell in cells)

    def convert(cell: str) -> str:
        if _SPACED.fullmatch(cell):
            cell = re.sub(r"(?<=\d) (?=\d{3}\b)", "", cell)
        if comma >= 2 and not point:
            cell = re.sub(r"\d[\d.]*(?:,\d+)?", lambda m: m[0].replace(".", "").replace(",", "."), cell)
        return cell

    return [(line, [convert(cell) for cell in row]) for line, row in body]


_RULER = re.compile(r"[\s|+┼]*:?[-=─━]+:?(?:[\s|+┼]+:?[-=─━]+:?)*[\s|+┼]*$")
_NUMBER = re.compile(r"[\s*_+~≈<>≤≥±−-]*[$€]?\.?\d")
_MAX_HEADER_ROWS = 3
Part = tuple[int, int, str]  # start and end offset in the line, and text of a cell


def _add_table(document: Document, cells: Cells, at: int) -> None:
    """Add a table; the first row is the header, and the second too if it holds units or names of grouped columns."""
    while len(cells) > 2 and not any(cells[0][1]):
        cells = cells[1:]
    (line, header), *body = cells
    while len(body) > 1 and _continues_header(header, body[0][1]):
        header, body = _join_headers([_fill_gaps(header), body[0][1]]), body[1:]
    body = convert_numbers(body)
    first_line, width = document.lines[at], len(header)
    rows = tuple(Row(n, tuple((row + [""] * width)[:width])) for n, row in body if any(row))
    document.tables.append(Table(tuple(header), rows, line, first_line.section, first_line.heading))


def _continues_header(header: list[str], row: list[str]) -> bool:
    """ "| | A100 | |" above "| batch | p50 | p99 |"; a row of units in brackets."""
    filled = [cell for cell in row if cell]
    if len(filled) < 2 or len(row) != len(header) or any(_NUMBER.match(cell) for cell in filled):
        return False
    units = all(re.fullmatch(r"\(.*\)|\[.*\]", cell) for cell in filled)
    gaps = any(header) and sum(not cell for cell in header[1:]) >= max(1, len(header) // 4)
    return units or (gaps and sum(not cell for cell in row[1:]) == 0)


def _fill_gaps(header: list[str]) -> list[str]:
    """Repeat a name that stands above several columns."""
    names: list[str] = []
    for index, cell in enumerate(header):
        names.append(cell or (names[-1] if index > 1 else ""))
    return names


def _join_headers(rows: Sequence[list[str]]) -> list[str]:
    return [" ".join(dict.fromkeys(cell for cell in column if cell)) for column in zip(*rows, strict=True)]


def transpose(table: Table) -> Table | None:
    """Turn rows into columns if the first column names quantities: "Throughput (images/s) | 432 | 1,250"."""
    width, names = len(table.header), [row.cells[0] for row in table.rows]
    if width < 3 or len(names) < 2 or not all(names) or len(set(names)) < len(names):
        return None
    rows = tuple(
        Row(
            table.line,
            (table.header[index], *(row.cells[index] for row in table.rows)),
            (table.line, *(row.line for row in table.rows)),
        )
        for index in range(1, width)
    )
    return Table((table.header[0] or "-", *names), rows, table.line, table.section, table.heading, transposed=True)


def _split_row(line: str) -> list[str]:
    inner = line.strip()
    inner = inner[1:] if inner.startswith("|") else inner
    inner = inner[:-1] if inner.endswith("|") else inner
    if inner.count("`") % 2 == 0:  # a bar inside code does not end a cell
        inner = re.sub(r"`[^`]*`", lambda code: re.sub(r"(?<!\\)\|", r"\\|", code[0]), inner)
    return [strip_markup(cell).strip() for cell in re.split(r"(?<!\\)\|", inner)]


def _read_piped_tables(document: Document, raw: list[str]) -> None:
    at = 0
    while at < len(raw):
        run = at
        while run < len(raw) and _is_piped(raw[run], run > at) and not document.lines[run].code:
            run += 1
        body = [n for n in range(at, run) if not _RULER.match(raw[n])]
        border = run - at >= 3 and len(body) >= 2 and (_RULER.match(raw[at]) or _RULER.match(raw[at + 1]))
        even = len(body) >= 3 and len({len(_split_row(raw[n])) for n in body}) == 1 and raw[body[0]].count("|") >= 2
        if border or even:
            _add_table(document, [(n + 1, _split_row(raw[n])) for n in body], at)
            document.table_lines |= set(range(at + 1, run + 1))
        at = max(run, at + 1)


def _is_piped(line: str, inside: bool) -> bool:
    return bool(line.strip()) and (
        line.count("|") >= 1 or (line.lstrip().startswith("+-") or (inside and "-+-" in line))
    )


def _read_spaced_tables(document: Document, raw: list[str]) -> None:
    """Find columns that two or more spaces separate, under a header without numbers."""
    at = 0
    while at < len(raw):
        run = at
        body: list[tuple[int, list[Part]]] = []
        while run < len(raw) and _is_free(document, run):
            parts = _split_columns(raw[run])
            numbers = sum(_NUMBER.match(text) is not None for _, _, text in parts)
            if len(parts) < 3 or numbers < 1 or (body and len(parts) != len(body[0][1])):
                break
            body.append((run, parts))
            run += 1
        if len(body) >= 2 and not _RULER.match(raw[at]):
            _add_spaced_table(document, raw, at, body)
        at = max(run, at + 1)


def _is_free(document: Document, at: int) -> bool:
    return at + 1 not in document.table_lines and not document.lines[at].code


def _split_columns(line: str) -> list[Part]:
    """Split a line at two or more spaces, or at tabs."""
    line = re.sub(
        r"^(\s*)(?:#+|//)(?=\s)", lambda m: " " * len(m[0]), line.expandtabs(8) if "\t" not in line.strip() else line
    )
    matches = re.finditer(r"\S+(?:[ ]\S+)*" if "\t" not in line else r"[^\t\s](?:[^\t]*[^\t\s])?", line)
    return [(m.start(), m.end(), strip_markup(m[0])) for m in matches]


def _add_spaced_table(document: Document, raw: list[str], at: int, body: list[tuple[int, list[Part]]]) -> None:
    heads: list[list[Part]] = []
    line = at - 1
    while line >= 0 and _is_free(document, line) and len(heads) < _MAX_HEADER_ROWS:
        if _RULER.match(raw[line]):
            line -= 1
            continue
        parts = _split_columns(raw[line])
        if len(parts) < 2 or any(_NUMBER.match(text) for _, _, text in parts):
            break
        heads.insert(0, parts)
        line -= 1
    if not heads:
        return
    width = len(body[0][1])
    names = _align_header(heads, body[0][1])
    cells: Cells = [(line + 2, names), *((n + 1, [text for _, _, text in parts]) for n, parts in body)]
    if sum(map(bool, names)) >= max(2, width - 1):
        _add_table(document, cells, at)
        document.table_lines |= set(range(line + 2, body[-1][0] + 2))


def _align_header(heads: list[list[Part]], row: list[Part]) -> list[str]:
    """Assign header words to columns: in order if their number is equal, else to the nearest column."""
    width = len(row)
    complete = [parts for parts in heads if len(parts) == width]
    names: list[list[str]] = [[""] * width for _ in heads]
    for number, parts in enumerate(heads):
        if len(parts) == width:
            names[number] = [text for _, _, text in parts]
            continue
        marks = complete[0] if complete else row
        if len(parts) > width:
            return [""] * width
        for start, end, text in parts:
            nearest = min(range(width), key=lambda index: min(abs(marks[index][0] - start), abs(marks[index][1] - end)))
            names[number][nearest] = text
    if complete and len(heads) > 1:  # a row that covers few columns holds no column names
        names = [n for n, parts in zip(names, heads, strict=True) if len(parts) == width or 2 * len(parts) >= width]
    return _join_headers(names)


def _read_csv(document: Document, lines: list[str], comma: str) -> None:
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
        _add_table(document, cells, start)
        document.table_lines = {line.number for line in document.lines[start:]}


class _TableParser(HTMLParser):
    """Collect every table as a grid; a cell that spans several rows or columns is repeated."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[Cells] = []
        self.header_rows: list[int] = []  # number of header rows of each table
        self.title_rows: list[set[int]] = []  # rows of each table that are one cell
        self.spans: list[tuple[int, int]] = []
        self.cell: list[str] | None = None
        self.size = (1, 1)
        self.rowspans: dict[int, tuple[int, str]] = {}  # column -> rows left, text
        self.in_superscript = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
            self.header_rows.append(0)
            self.title_rows.append(set())
            self.spans.append((self.getpos()[0], self.getpos()[0]))
            self.rowspans = {}
        elif tag == "tr" and self.tables:
            self.tables[-1].append((self.getpos()[0], []))
            self._fill_rowspans()
        elif tag in ("td", "th") and self.tables and self.tables[-1]:
            self.cell = []
            attributes = dict(attrs)
            self.size = _parse_span(attributes.get("colspan")), _parse_span(attributes.get("rowspan"))
            if tag == "th" and self.header_rows[-1] == len(self.tables[-1]) - 1:
                self.header_rows[-1] += 1
            elif tag == "td" and self.header_rows[-1] == len(self.tables[-1]):
                self.header_rows[-1] -= 1
        elif tag == "sup":
            self.in_superscript = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self.cell is not None:
            if self.tables and self.tables[-1]:
                row, text = self.tables[-1][-1][1], repair(" ".join("".join(self.cell).split()))
                for copy in range(self.size[0]):
                    cell_text = text if copy == 0 or tag == "th" else ""  # a header names all its columns
                    if self.size[1] > 1:
                        self.rowspans[len(row)] = (self.size[1] - 1, cell_text)
                    row.append(cell_text)
                if self.size[0] > 1 and len(row) == self.size[0]:
                    self.title_rows[-1].add(len(self.tables[-1]) - 1)
                    row[1:] = [""] * (len(row) - 1) if tag == "td" else row[1:]
                else:
                    self.title_rows[-1].discard(len(self.tables[-1]) - 1)
                self._fill_rowspans()
            self.cell = None
        elif tag == "table" and self.spans:
            self.spans[-1] = (self.spans[-1][0], self.getpos()[0])
        elif tag == "sup":
            self.in_superscript = False

    def _fill_rowspans(self) -> None:
        """Repeat the cells that span rows from above."""
        row = self.tables[-1][-1][1]
        while len(row) in self.rowspans:
            index = len(row)
            left, text = self.rowspans.pop(index)
            if left > 1:
                self.rowspans[index] = (left - 1, text)
            row.append(text)

    def handle_data(self, data: str) -> None:
        if self.cell is not None and not (self.in_superscript and len(data) <= 2 and "".join(self.cell).strip()):
            self.cell.append(data)


def _parse_span(value: str | None) -> int:
    return min(int(value), 50) if value and value.isdigit() and int(value) else 1


def _read_html_tables(document: Document, text: str) -> None:
    parser = _TableParser()
    parser.feed(text)
    for cells, title_rows, header_rows, (start, end) in zip(
        parser.tables, parser.title_rows, parser.header_rows, parser.spans, strict=True
    ):
        header: list[tuple[int, list[str]]] = []
        at = 0
        while at < min(header_rows, len(cells)) and not (at in title_rows and header):
            header += [] if at in title_rows else [cells[at]]
            at += 1
        body = [row for row in cells[at:] if row[1]]
        if len({len(row) for _, row in header}) == 1:
            body = [(header[0][0], _join_headers([row for _, row in header])), *body]
        else:
            body = [*header, *body]
        if len(body) >= 2:
            _add_table(document, body, start - 1)
            document.table_lines |= set(range(start, end + 1))
