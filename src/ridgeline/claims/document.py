"""A report's pieces: lines, statements made of wrapped lines, tables; each knows its line numbers."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import lru_cache
from html import unescape

_SUPERSCRIPT = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_OPENS = re.compile(  # a line that begins something of its own: a point, a tag, a quote, "Name: value"
    r"\s*(?:[-*•+>|=#├└│]|\d+[.)]\s|<(?!(?:b|i|em|strong|code|sub|sup|a|span)\b)|\[\^?\w+\]:|[^.!?:;,]{1,32}:(?:\s|$))|\s*$"
)
_WRAPPED = 50  # a shorter line has ended by itself


@dataclass(frozen=True)
class Line:
    number: int
    text: str  # repaired, without markup
    section: int
    heading: str
    code: bool = False  # a program, not a statement
    fenced: bool = False
    opens: bool = True  # begins a statement of its own
    joints: tuple[tuple[int, int], ...] = ()  # where further lines begin: offset, number

    def at(self, offset: int) -> int:
        """The number of the line that holds this place of the text."""
        return max((number for start, number in self.joints if start <= offset), default=self.number)

    def around(self, offset: int) -> str:
        """The sentence that holds this place."""
        starts, ends = _cuts(self.text)
        first, last = bisect_right(starts, offset), bisect_right(ends, offset)
        start = starts[first - 1] if first else 0
        return self.text[start : ends[last] if last < len(ends) else len(self.text)].strip()


@dataclass(frozen=True)
class Row:
    line: int
    cells: tuple[str, ...]
    lines: tuple[int, ...] = ()  # of each cell, where a row is not one line


@dataclass(frozen=True)
class Table:
    header: tuple[str, ...]
    rows: tuple[Row, ...]
    line: int
    section: int
    heading: str
    turned: bool = False  # its rows were columns

    def at(self, row: int, place: int) -> int:
        lines = self.rows[row].lines
        return lines[place] if lines else self.rows[row].line

    def says(self, row: int, place: int = 0) -> str:
        """The row as a reader finds it in the report."""
        if self.turned:
            name = self.header[place]
            return " | ".join([name, *(r.cells[place] for r in self.rows if r.cells[place])])
        return " | ".join(cell for cell in self.rows[row].cells if cell)


@dataclass
class Document:
    path: str
    lines: list[Line] = field(default_factory=list)  # all of them, those of tables too
    tables: list[Table] = field(default_factory=list)
    tabled: set[int] = field(default_factory=set)  # numbers of lines that are parts of tables

    def statements(self) -> list[Line]:
        """Lines of prose, a wrapped paragraph as one."""
        out: list[Line] = []
        width = 0  # of the last line
        for line in self.lines:
            if line.number in self.tabled or line.code or not line.text.strip():
                width = 0
                continue
            if width >= _WRAPPED and not line.opens and not line.fenced and out[-1].section == line.section:
                text, more = out[-1].text, line.text.strip()
                joints = (*out[-1].joints, (len(text) + 1, line.number))
                out[-1] = replace(out[-1], text=f"{text} {more}", joints=joints)
            else:
                out.append(line)
            width = 0 if line.fenced else len(line.text)
        return out


@lru_cache(maxsize=64)
def _cuts(text: str) -> tuple[list[int], list[int]]:
    """Where sentences begin, and where they end for sure."""
    starts = [m.end() for m in re.finditer(r"[.!?;]\s+", text)]
    return starts, [m.start() + 1 for m in re.finditer(r"[.!?]\s+(?=[A-Z(])", text)]


def opens(raw: str) -> bool:
    return _OPENS.match(raw) is not None


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


def plain(line: str) -> str:
    """Repaired, with powers of ten as computers write them."""
    return re.sub(
        r"\s?[×x*]\s?10(?:\^|\*\*)?([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+|(?<=\^)-?\d+|(?<=\*\*)-?\d+)",
        lambda m: "e" + m[1].translate(_SUPERSCRIPT),
        repair(line),
    )


def strip(text: str) -> str:
    """Without markup and footnote marks."""
    text = re.sub(r"<sup>[^<]{1,3}</sup>|\[\^\w+\](?!:)", "", text)
    text = re.sub(r"<[a-zA-Z/][^>]*>", " ", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return unescape(re.sub(r"\*\*|__|`", "", text)).replace("\\|", "|").rstrip()
