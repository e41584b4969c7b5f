"""A report as lines, sections and tables: Markdown, pipe text, HTML, CSV; every piece knows its line."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

from ridgeline.errors import InputError

_CODE = {"python", "py", "rust", "bash", "sh", "shell", "c", "cpp", "c++", "cuda", "java", "js", "go", "yaml", "json"}
_SUPERSCRIPT = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(?:[|+]\s*:?-+:?\s*)*\|?\s*$")


@dataclass(frozen=True)
class Line:
    number: int
    text: str  # repaired, without markup
    section: int
    heading: str
    code: bool = False  # a program, not a statement


@dataclass(frozen=True)
class Row:
    line: int
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    header: tuple[str, ...]
    rows: tuple[Row, ...]
    line: int
    section: int
    heading: str


@dataclass
class Document:
    path: str
    lines: list[Line] = field(default_factory=list)  # all of them, those of tables too
    tables: list[Table] = field(default_factory=list)
    tabled: set[int] = field(default_factory=set)  # numbers of lines that are parts of tables

    def statements(self) -> list[Line]:
        return [line for line in self.lines if line.number not in self.tabled and not line.code and line.text.strip()]


def repair(text: str) -> str:
    """Undo UTF-8 that was read as Mac Roman, Windows-1252 or Latin-1.

    >>> repair("48.3ms √ó 1,200 ‚Üí 5 Î¼s")
    '48.3ms × 1,200 → 5 μs'
    """
    text = text.replace('â€"', "—").replace("\u00a0", " ").replace("\u202f", " ")
    return re.sub(r"[^\x00-\x7f]{2,}", _decoded, text)


def _decoded(match: re.Match[str]) -> str:
    for codec in ("mac_roman", "cp1252", "latin-1"):
        try:
            text = match[0].encode(codec).decode("utf-8")
        except (UnicodeEncodeError, UnicodeDecodeError):
            continue
        if all(c in "\ufe0f\u200d" or unicodedata.category(c)[0] not in "MC" for c in text):
            return text  # no bare accents, no controls: this was meant
    return match[0]


def load(path: Path) -> str:
    """A file's text; what is no text is refused."""
    if path.is_dir():
        raise InputError(f"'{path}' is a folder; give the files to check.")
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"there is no file '{path}'; give a report to check.") from None
    except OSError as wrong:
        raise InputError(f"'{path}' cannot be read: {wrong.strerror}.") from None
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        try:
            return raw.decode("utf-16")
        except UnicodeDecodeError:
            raise InputError(f"'{path}' is no text; give Markdown, plain text, HTML or CSV.") from None
    if b"\0" in raw or raw[:5] == b"%PDF-":
        raise InputError(f"'{path}' is a binary file; give Markdown, plain text, HTML or CSV.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        odd = sum(byte < 9 or 13 < byte < 32 for byte in raw)
        if odd * 50 > len(raw):
            raise InputError(f"'{path}' is a binary file; give Markdown, plain text, HTML or CSV.") from None
        return raw.decode("cp1252", errors="replace")


def read(text: str, path: str = "") -> Document:
    document = Document(path)
    suffix = Path(path).suffix.lower()
    if suffix in (".csv", ".tsv"):
        _read_csv(document, text.splitlines(), 1, "\t" if suffix == ".tsv" else ",")
        return document
    raw = [_plain(line) for line in re.sub(r"<!--.*?-->", _blank, text, flags=re.DOTALL).splitlines()]
    section, heading, fence = 0, "", ""
    headings: list[str] = [""] * 7
    for number, line in enumerate(raw, 1):
        if opened := re.match(r"\s*(?:```|~~~)(.*)", line):
            word = (opened[1].split() or ["text"])[0].lower()
            fence = "" if fence else word
            document.lines.append(Line(number, "", section, heading))
            continue
        if not fence and (title := re.match(r"\s*(#{1,6})\s+(.*)|\s*<h([1-6])[^>]*>(.*)", line, re.I)):
            level = len(title[1] or "") or int(title[3])
            headings[level:] = [_strip(title[2] or title[4]), *[""] * (6 - level)]
            section, heading = section + 1, " · ".join(h for h in headings[2:] if h) or headings[1]
        elif not fence and re.fullmatch(r"\s*\*\*[^*]+\*\*:?\s*", line):
            section += 1
        document.lines.append(Line(number, _strip(line), section, heading, fence in _CODE))
    _read_pipes(document, raw)
    if re.search(r"<table", text, re.I):
        _read_html(document, text)
    return document


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "", match[0])


def _plain(line: str) -> str:
    line = repair(line)
    return re.sub(
        r"\s?[×x*]\s?10(?:\^|\*\*)?([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+|(?<=\^)-?\d+|(?<=\*\*)-?\d+)",
        lambda m: "e" + m[1].translate(_SUPERSCRIPT),
        line,
    )


def _strip(text: str) -> str:
    """Without markup."""
    text = re.sub(r"<[a-zA-Z/][^>]*>", " ", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return unescape(re.sub(r"\*\*|__|`", "", text)).replace("\\|", "|").rstrip()


def _split(line: str) -> list[str]:
    inner = line.strip()
    inner = inner[1:] if inner.startswith("|") else inner
    inner = inner[:-1] if inner.endswith("|") else inner
    return [_strip(cell).strip() for cell in re.split(r"(?<!\\)\|", inner)]


def _read_pipes(document: Document, raw: list[str]) -> None:
    at = 0
    while at < len(raw):
        run = at
        while run < len(raw) and raw[run].count("|") >= 1 and raw[run].strip() and not document.lines[run].code:
            run += 1
        ruled = run - at >= 3 and _RULE.match(raw[at + 1]) is not None
        even = run - at >= 3 and len({len(_split(line)) for line in raw[at:run]}) == 1 and raw[at].count("|") >= 2
        if ruled or even:
            _table(document, [(n + 1, _split(raw[n])) for n in range(at, run) if not _RULE.match(raw[n])], at)
            document.tabled |= set(range(at + 1, run + 1))
        at = max(run, at + 1)
    _read_spaced(document, raw)


def _read_spaced(document: Document, raw: list[str]) -> None:
    """Columns set apart by two spaces or more, under a header without numbers."""
    at = 0
    while at < len(raw):
        run = at
        cells: list[tuple[int, list[str]]] = []
        while run < len(raw) and run + 1 not in document.tabled and not document.lines[run].code:
            parts = re.split(r"\s{2,}|\t+", raw[run].strip())
            if len(parts) < 3 or (cells and len(parts) != len(cells[0][1])):
                break
            cells.append((run + 1, [_strip(part) for part in parts]))
            run += 1
        if len(cells) >= 3 and not any(re.match(r"[\d$~]", cell) for cell in cells[0][1]):
            _table(document, cells, at)
            document.tabled |= {number for number, _ in cells}
        at = max(run, at + 1)


def _table(document: Document, cells: list[tuple[int, list[str]]], at: int) -> None:
    (line, header), *body = cells
    place = document.lines[at]
    width = len(header)
    rows = tuple(Row(n, tuple((row + [""] * width)[:width])) for n, row in body if any(row))
    document.tables.append(Table(tuple(header), rows, line, place.section, place.heading))


def _read_csv(document: Document, lines: list[str], first: int, comma: str) -> None:
    document.lines = [Line(n, repair(line), 0, "") for n, line in enumerate(lines, first)]
    reader = csv.reader(io.StringIO("\n".join(map(repair, lines))), delimiter=comma)
    cells: list[tuple[int, list[str]]] = []
    before = 0
    for row in reader:
        if row:
            cells.append((first + before, [cell.strip() for cell in row]))
        before = reader.line_num
    if len(cells) >= 2:
        _table(document, cells, 0)
        document.tabled = {line.number for line in document.lines}


class _Html(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[list[tuple[int, list[str]]]] = []
        self.spans: list[tuple[int, int]] = []
        self.cell: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
            self.spans.append((self.getpos()[0], self.getpos()[0]))
        elif tag == "tr" and self.tables:
            self.tables[-1].append((self.getpos()[0], []))
        elif tag in ("td", "th") and self.tables and self.tables[-1]:
            self.cell = []
            self.tables[-1][-1][1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self.cell is not None:
            if self.tables and self.tables[-1] and self.tables[-1][-1][1]:
                self.tables[-1][-1][1][-1] = repair(" ".join("".join(self.cell).split()))
            self.cell = None
        elif tag == "table" and self.spans:
            self.spans[-1] = (self.spans[-1][0], self.getpos()[0])

    def handle_data(self, data: str) -> None:
        if self.cell is not None:
            self.cell.append(data)


def _read_html(document: Document, text: str) -> None:
    parser = _Html()
    parser.feed(text)
    for cells, (start, end) in zip(parser.tables, parser.spans, strict=True):
        filled = [row for row in cells if row[1]]
        if len(filled) >= 2:
            _table(document, filled, start - 1)
            document.tabled |= set(range(start, end + 1))
