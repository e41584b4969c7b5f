"""Numbers of ours that carry a reference to their record, in a comment behind them.

    0.18 ms<!--@h200-embed.txt "p50 0.183 ms"-->                                    a line of a text
    1.13<!--@neoverse-n1-embed.jsonl 3f2a91c0 sentence-transformers ratio-->        a record, a contender, a metric
    .268<!--@recommend.jsonl protocol.split=random models.ease.recall@20.mean-->    a path in JSON
    353 / 374 TFLOP/s<!--@h200-embed.txt "353 TFLOP/s"; "374 TFLOP/s"-->            two numbers, two references

The number must be the derived one rounded to the digits it has, or within the tolerance that is given (±2%).
Numbers inside a code block are bound by a comment below it that repeats them: `"160 µs" = spin ridgeline median`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import columns
from ridgeline.claims.finding import Finding, digits, overlap, shown
from ridgeline.claims.quantities import Quantity, find
from ridgeline.claims.reading import read
from ridgeline.claims.records import Lost, derive

RECORDS = Path("benchmarks") / "records"
_COMMENT = re.compile(r"<!--@\s*(\S+)\s+(.*?)-->", re.DOTALL)
_ITEM = re.compile(
    r'\s*(?:"(?P<said>[^"]*)"\s*=\s*)?(?P<words>(?:"[^"]*"|[^";])+?)\s*(?:±\s*(?P<tolerance>[\d.]+)\s?%)?\s*(?:;|$)'
)
_MEASURED = ("time", "latency", "rate", "bandwidth", "flops", "speedup", "share")
_SETTING = re.compile(
    r"(?:\b(?:within|after|every|up to|at most|at least|timeout|deadline|limit|older than|default|budget)|±)"
    r"\s*(?:of\s*)?(?:a\s*)?(?:about\s*)?$",
    re.I,
)
_OF_A_LIMIT = re.compile(r"\s*of\s+(?:\w+\s+){0,3}(?:ceiling|peak|copy|limit|roof|pcie|link|bandwidth|what\b)", re.I)
_TIMES = re.compile(r"\s*times\s+(?:\w+\s+)?(?:faster|slower|as|the|than)|\s*times\b(?=[^.]*faster)", re.I)


@dataclass(frozen=True)
class Reference:
    line: int
    file: str
    words: tuple[str, ...]
    tolerance: float | None
    said: Quantity | None  # the number it is about


def project(path: Path) -> Path | None:
    """The folder whose benchmarks/records a document refers to: the nearest above it."""
    for folder in path.resolve().parents:
        if (folder / RECORDS).is_dir():
            return folder
    return None


def governed(path: Path, text: str) -> bool:
    """Whether every performance number must be bound: a README or a page of docs/ of a project with records."""
    if path.suffix.lower() != ".md" or project(path) is None:
        return False
    return (
        path.name == "README.md" or path.resolve().parent.name == "docs" or bool(_COMMENT.search(_without_code(text)))
    )


def check(path: Path, text: str) -> tuple[list[Finding], int]:
    """What drifted, lost its record or has none; and how many numbers are bound."""
    home = project(path)
    references = list(_references(text))
    findings = [finding for reference in references if (finding := _held(path, home, reference, text))]
    if governed(path, text):
        findings += _unbound(path, text)
    return findings, len(references)


def _references(text: str) -> Iterator[Reference]:
    """Each reference with the number it is about: the last ones before the comment, in order."""
    starts = list(accumulate((len(line) for line in text.splitlines(keepends=True)), initial=0))
    for match in _COMMENT.finditer(_without_code(text)):
        number = bisect_right(starts, match.start())
        before = text[starts[number - 1] : match.start()]
        before = re.sub(r"<!--.*?-->", lambda m: " " * len(m[0]), before)
        items = [item for item in _ITEM.finditer(match[2].strip()) if item["words"].strip()]
        unnamed = [item for item in items if item["said"] is None]
        near = _quiet(before.rpartition("|")[2])
        found = _spread(find(near), near)
        found = found[-len(unnamed) :] if unnamed and len(found) >= len(unnamed) else []
        given = iter(found)
        above = " ".join(re.sub(r"<!--.*?-->", "", text[: match.start()], flags=re.DOTALL).split())
        for item in items:
            named = item["said"]
            if named is not None:
                said = next(iter(find(named)), None) if " ".join(named.split()) in above else None
            else:
                said = next(given, None)
            words = tuple(w for w in re.findall(r'"[^"]*"|\S+', item["words"]))
            tolerance = float(item["tolerance"]) / 100 if item["tolerance"] else None
            yield Reference(number, match[1], words, tolerance, said)


def _without_code(text: str) -> str:
    """Of the same length: a comment inside code is an example."""
    fenced = _fenced(text)
    lines = text.splitlines(keepends=True)
    shown = [re.sub(r"[^\n]", " ", line) if n in fenced else line for n, line in enumerate(lines, 1)]
    return re.sub(r"`[^`\n]*`", lambda m: " " * len(m[0]), "".join(shown))


def _quiet(text: str) -> str:
    return re.sub(r"`[^`]*`", lambda m: " " * len(m[0]), text.replace("**", "  "))


def _spread(found: list[Quantity], text: str) -> list[Quantity]:
    """ "353 / 374 TFLOP/s": a number without a unit has that of the next one."""
    out: list[Quantity] = []
    found = [end for number in found for end in _ends(number)]
    for place, number in enumerate(found):
        after = found[place + 1] if place + 1 < len(found) else None
        out.append(number)
        if after is not None and (after.unit or after.dims != q.NONE):
            back = place
            while back >= 0 and _bare(out[back]) and _listed(text, found[back], found[back + 1]):
                scale = after.value / after.written if after.written else 1.0
                plain = out[back]
                out[back] = replace(
                    plain,
                    value=plain.value * scale,
                    step=plain.step * scale,
                    loose=plain.loose * scale,
                    dims=after.dims,
                    unit=after.unit,
                )
                back -= 1
    return out


def _ends(number: Quantity) -> list[Quantity]:
    """A range is two numbers."""
    if number.top is None:
        return [number]
    scale = number.value / number.written if number.written else 1.0
    high = find(re.split(r"to|–|-", number.text)[-1])[0]
    if high.dims == q.NONE and high.unit == "":
        high = replace(high, value=high.value * scale, step=high.step * scale, loose=high.loose * scale)
    return [
        replace(number, top=None),
        replace(high, dims=number.dims, unit=number.unit, start=number.start, end=number.end),
    ]


def _bare(number: Quantity) -> bool:
    return number.unit == "" and number.dims == q.NONE and not number.noun


def _listed(text: str, first: Quantity, second: Quantity) -> bool:
    return bool(re.fullmatch(r"\s*(?:/|,|and|to|or|–)\s*", text[first.end : second.start]))


def _held(path: Path, home: Path | None, reference: Reference, text: str) -> Finding | None:
    told = f"{reference.file} {' '.join(reference.words)}"
    if reference.said is None:
        return Finding(
            str(path), reference.line, "reference", told, "the number it is about does not stand before it", 1.0
        )
    if home is None:
        return Finding(str(path), reference.line, "missing", told, f"there is no folder {RECORDS} above this file", 1.0)
    said = reference.said
    try:
        value, dims = derive(home / RECORDS, reference.file, list(reference.words))
    except Lost as lost:
        return Finding(str(path), reference.line, "missing", f"{said.text} ← {told}", f"{lost}", 1.0)
    low, high = said.interval()
    if dims is None or said.dims != dims:
        if said.dims != q.NONE and dims not in (None, q.NONE):
            what = f"the number and the record's are of different kinds ({said.text}, {digits(value)})"
            return Finding(str(path), reference.line, "reference", f"{said.text} ← {told}", what, 1.0)
        scale = said.written / said.value if said.value else 1.0
        if dims is None:  # the record has the bare number: hold the written ones against each other
            low, high = low * scale, high * scale
    room = reference.tolerance * abs(value) if reference.tolerance is not None else 0.0
    if overlap((low, high), (value - room, value + room), 1e-9):
        return None
    derived = shown(value, dims) if dims else digits(value)
    return Finding(
        str(path), reference.line, "drift", f"{said.text} ← {told}", f"the record gives {derived}, not {said.text}", 1.0
    )


def _unbound(path: Path, text: str) -> list[Finding]:
    """Performance numbers outside code that carry no reference.

    That is: a number with a unit of time, of a rate, of bandwidth or of FLOP/s; "N times faster", "N×"; "N % of" a
    ceiling, peak, copy, limit or link; and the cells of a table's column of such. A duration behind "within",
    "after", "every", "up to" and the like is a setting.
    """
    covered = _covered(text)
    cleaned = re.sub(r"<!--.*?-->", lambda m: re.sub(r"[^\n]", "\0", m[0]), text, flags=re.DOTALL)
    fenced = _fenced(text)
    out = []
    cells = _table_cells(text, str(path))
    for number, raw in enumerate(cleaned.splitlines(), 1):
        if number in fenced or raw.lstrip().startswith(("#", "    ")):
            continue
        line = _quiet(re.sub(r"\]\([^)]*\)", lambda m: " " * len(m[0]), raw)).replace("\0", " ")
        for quantity in _spread(find(line), line):
            if not _performance(quantity, line) and (number, quantity.text) not in cells:
                continue
            if any(n == number and start <= quantity.start < end for n, start, end in covered):
                continue
            what = "a performance number without a record; bind it (docs/claims.md) or say that it was not recorded"
            out.append(
                Finding(str(path), number, "unbound", f"{quantity.text} in “{_around(line, quantity)}”", what, 1.0)
            )
    return out


def _around(line: str, quantity: Quantity) -> str:
    return " ".join(line[max(0, quantity.start - 30) : quantity.end + 30].split())


def _performance(quantity: Quantity, line: str) -> bool:
    before, after = line[: quantity.start], line[quantity.end :]
    if quantity.bound or _SETTING.search(before):
        return False
    if quantity.dims == q.RATE:
        return "Hz" not in quantity.unit
    if quantity.dims in (q.TIME, q.BANDWIDTH, q.FLOPS):
        return True
    if quantity.factor:
        return not re.match(r"\s*[\d(A-Za-z]*\d", after)
    if quantity.share:
        return bool(_OF_A_LIMIT.match(after))
    return quantity.dims == q.NONE and bool(_TIMES.match(after))


def _fenced(text: str) -> set[int]:
    inside, out = False, set()
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*(?:```|~~~)", line):
            inside = not inside
            out.add(number)
        elif inside:
            out.add(number)
    return out


def _table_cells(text: str, name: str) -> set[tuple[int, str]]:
    """Cells of measured columns, as (line, number)."""
    out = set()
    for table in read(text, name).tables:
        for column in columns(table):
            if column.role in _MEASURED:
                out |= {
                    (row.line, quantity.text)
                    for row, cell in zip(table.rows, column.cells, strict=True)
                    if cell is not None
                    for quantity in find(row.cells[column.place])[:1]
                }
    return out


def _covered(text: str) -> list[tuple[int, int, int]]:
    """Where bound numbers stand: (line, from, to)."""
    out = []
    for number, line in enumerate(_without_code(text).splitlines(), 1):
        for match in _COMMENT.finditer(line):
            before = re.sub(r"<!--.*?-->", lambda m: " " * len(m[0]), line[: match.start()])
            items = [i for i in _ITEM.finditer(match[2].strip()) if i["words"].strip() and i["said"] is None]
            cut = before.rfind("|") + 1
            found = _spread(find(_quiet(before[cut:])), before[cut:])[-len(items) :] if items else []
            out += [(number, cut + quantity.start, cut + quantity.end) for quantity in found]
    return out
