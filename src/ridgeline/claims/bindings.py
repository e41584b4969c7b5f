"""Bindings: numbers of a page that must agree with a record of the project.

A page lists its bindings in one comment at its end, one per line: the number with the words around it, the record
file, and the place in that file.

    <!-- records
    "one text in 0.18 ms" = h200-embed.txt "p50 0.183 ms"                        a line of a text
    "1.13 times" = neoverse-n1-embed.jsonl 3f2a91c0 sentence-transformers ratio  record, contender, metric
    "recall .268" = recommend.jsonl protocol.split=random models.ease.recall@20  a path in JSON
    "353 / 374 TFLOP/s" = h200-embed.txt "353 TFLOP/s"; "374 TFLOP/s"            two numbers, two places
    "[24 %] of 150 ms" = x.jsonl 7c5d torch stage.compute / 7c5d torch median    a ratio of two places
    "about 150 ms" = x.txt "wall 148 ms" ±3%                                     a tolerance
    -->

A page may also have a binding in a comment after the number: `0.18 ms<!--@h200-embed.txt "p50 0.183 ms"-->`, or,
for a number in a code block, below the block: `<!--@h200-embed.txt "160 µs" = spin ridgeline median-->`.

A number agrees if it is the record's value, rounded to the digits it has, or lies within the tolerance.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import read_columns
from ridgeline.claims.document import read_document
from ridgeline.claims.finding import Finding
from ridgeline.claims.quantities import NUMBER, Dims, Quantity, find_quantities, format_number, format_value, overlap
from ridgeline.errors import InputError
from ridgeline.lab import OURS
from ridgeline.lab.judge import Row, analyse_record
from ridgeline.lab.record import Record, read_records

RECORDS = Path("benchmarks") / "records"
_BLOCK = re.compile(r"^<!-- records\b[^\n]*\n(?P<bindings>.*?)-->", re.DOTALL | re.MULTILINE)
_BLOCK_LINE = re.compile(r'"(?P<quote>[^"]+)"\s*=\s*(?P<file>[^\s"]+)\s+(?P<places>.+)')
_INLINE = re.compile(r"<!--@\s*(\S+)\s+(.*?)-->", re.DOTALL)
_PLACE = re.compile(
    r'\s*(?:"(?P<quote>[^"]*)"\s*=\s*)?(?P<words>(?:"[^"]*"|[^";])+?)\s*(?:±\s*(?P<tolerance>[\d.]+)\s?%)?\s*(?:;|$)'
)
_MARKED = re.compile(r"\[([^\]]*\d[^\]]*)\]")
_MEASURED_ROLES = ("time", "latency", "rate", "bandwidth", "flops", "speedup", "share")
_SETTING = re.compile(
    r"(?:\b(?:within|after|every|up to|at most|at least|timeout|deadline|limit|"
    r"(?:older|longer|shorter) than|above|below|defaults?|budget|"
    r"pauses?(?: of [\w ]{1,20} to)?)|±)"
    r"\s*:?\s*(?:of\s*)?(?:a\s*)?(?:about\s*)?$",
    re.I,
)
_OF_A_LIMIT = re.compile(r"\s*of\s+(?:\w+\s+){0,3}(?:ceiling|peak|copy|limit|roof|pcie|link|bandwidth|what\b)", re.I)
_TIMES = re.compile(r"\s*times\s+(?:\w+\s+)?(?:faster|slower|as|the|than)|\s*times\b(?=[^.]*faster)", re.I)


@dataclass(frozen=True)
class Binding:
    """One number of a page and the place of a record that it must agree with."""

    line: int  # of the number; of the binding if it names no number of the page
    file: str
    words: tuple[str, ...]  # the place in the file
    tolerance: float | None  # as a share of the record's value
    number: Quantity | None
    span: tuple[int, int] = (0, 0)  # offsets of the number in the page; empty if it is in a code block
    problem: str = ""  # why there is no number


def check_bindings(path: Path, text: str) -> tuple[list[Finding], int]:
    """Compare a page with the records of its project.

    Returns the findings (`drift`, `missing`, `reference`, `unbound`) and the number of bindings.
    """
    project = find_project(path)
    bindings = list(read_bindings(text))
    findings = [finding for binding in bindings if (finding := _check_binding(path, project, binding))]
    findings += _check_position(path, text)
    if is_governed(path, text):
        findings += _find_unbound(path, text, bindings)
    return findings, len(bindings)


def find_project(path: Path) -> Path | None:
    """Return the nearest folder above a page that has benchmarks/records."""
    for folder in path.resolve().parents:
        if (folder / RECORDS).is_dir():
            return folder
    return None


def is_governed(path: Path, text: str) -> bool:
    """Whether every performance number must be bound: README.md, docs/**/*.md, and pages that have bindings."""
    project = find_project(path)
    if path.suffix.lower() != ".md" or project is None:
        return False
    folders = path.resolve().relative_to(project).parts[:-1]
    return path.name == "README.md" or "docs" in folders or _find_block(text) is not None or _has_inline(text)


def read_bindings(text: str) -> Iterator[Binding]:
    """Yield the bindings of a page: those of comments after numbers, then those of the block."""
    yield from _read_inline(text)
    if block := _find_block(text):
        yield from _read_block(text, block)


def _has_inline(text: str) -> bool:
    return _INLINE.search(_blank_code(text)) is not None


def _find_block(text: str) -> re.Match[str] | None:
    code_lines = _list_code_lines(text)
    blocks = [m for m in _BLOCK.finditer(text) if text.count("\n", 0, m.start()) + 1 not in code_lines]
    return blocks[-1] if blocks else None


def _check_position(path: Path, text: str) -> list[Finding]:
    block = _find_block(text)
    if block is None or not text[block.end() :].strip():
        return []
    line = text.count("\n", 0, block.start()) + 1
    arithmetic = "the block of bindings must be the last thing of the page; move it to the end"
    return [Finding(str(path), line, "reference", "<!-- records", arithmetic, 1.0)]


def _read_block(text: str, block: re.Match[str]) -> Iterator[Binding]:
    page = _Page(text)
    first_line = text.count("\n", 0, block.start("bindings")) + 1
    for number, line in _join_continued(block["bindings"], first_line):
        parts = _BLOCK_LINE.fullmatch(line)
        places = [place for place in _PLACE.finditer(parts["places"]) if place["words"].strip()] if parts else []
        if parts is None or not places:
            problem = 'this is no binding; write: "the number in its words" = FILE PLACE'
            yield Binding(number, line, (), None, None, problem=problem)
            continue
        numbers, problem = page.find_numbers(parts["quote"], len(places))
        for index, place in enumerate(places):
            bound = numbers[index] if numbers else None
            line_number = page.get_line(bound[1][0]) if bound else number
            yield Binding(
                line_number,
                parts["file"],
                _split_words(place["words"]),
                _parse_tolerance(place["tolerance"]),
                bound[0] if bound else None,
                bound[1] if bound else (0, 0),
                problem,
            )


def _join_continued(block: str, first_line: int) -> list[tuple[int, str]]:
    """Return bindings with line numbers; an indented line continues the one before, `#` starts a remark."""
    joined: list[tuple[int, str]] = []
    for number, line in enumerate(block.splitlines(), first_line):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line[0].isspace() and joined:
            joined[-1] = (joined[-1][0], f"{joined[-1][1]} {line.strip()}")
        else:
            joined.append((number, line.strip()))
    return joined


class _Page:
    """The text of a page for searching: without comments and emphasis, with single spaces."""

    def __init__(self, text: str) -> None:
        self._line_starts = list(accumulate((len(line) for line in text.splitlines(keepends=True)), initial=0))
        self._code_lines = _list_code_lines(text)
        marks = [m.span() for m in re.finditer(r"\*\*|`", text)]
        skipped = {n for span in (*marks, *_find_comments(text)) for n in range(*span)}
        characters = [(n, " " if c.isspace() else c) for n, c in enumerate(text) if n not in skipped]
        characters = [
            (n, c) for i, (n, c) in enumerate(characters) if c != " " or i == 0 or characters[i - 1][1] != " "
        ]
        self._offsets = [n for n, _ in characters]
        self._text = "".join(c for _, c in characters)

    def get_line(self, offset: int) -> int:
        return bisect_right(self._line_starts, offset)

    def find_numbers(self, quote: str, count: int) -> tuple[list[tuple[Quantity, tuple[int, int]]], str]:
        """Return the `count` numbers that a quote binds, with their offsets in the page; or none and the reason."""
        quote = " ".join(quote.replace("**", "").replace("`", "").split())
        bare = _MARKED.sub(r"\1", quote)
        marks = [(m.start() - 2 * i, m.end() - 2 * i - 2) for i, m in enumerate(_MARKED.finditer(quote))]
        places = self._find_places(re.escape(bare), bare)
        if not places:
            return [], f"the page has no “{bare}”{self._suggest(bare)}"
        if len(places) > 1:
            lines = ", ".join(str(self.get_line(self._offsets[place])) for place in places)
            return [], f"“{bare}” occurs {len(places)} times (lines {lines}); quote more words around the number"
        numbers = _share_units(find_quantities(bare), bare)
        if marks:
            numbers = [n for n in numbers if any(start < n.end and n.start < end for start, end in marks)]
        if len(numbers) != count:
            cure = "put the bound numbers in [brackets]" if len(numbers) > count else "bind each number once"
            return [], f"“{quote}” names {len(numbers)} numbers for {count} places of a record; {cure}"
        offsets = [(self._offsets[places[0] + n.start], self._offsets[places[0] + n.end - 1] + 1) for n in numbers]
        return list(zip(numbers, offsets, strict=True)), ""

    def _find_places(self, pattern: str, bare: str) -> list[int]:
        """Return the offsets of the words; code blocks count only if the prose does not have them."""
        before = r"(?<!\w)(?<!\d[.,])" if bare[:1].isalnum() else r"(?<!\d)" if bare[:1] == "." else ""
        after = r"(?!\w)(?![.,]\d)" if bare[-1:].isalnum() else ""
        places = [m.start() for m in re.finditer(before + pattern + after, self._text)]
        prose = [place for place in places if self.get_line(self._offsets[place]) not in self._code_lines]
        return prose or places

    def _suggest(self, bare: str) -> str:
        """Return a hint if the page has the same words once, with another number."""
        pieces = re.split(NUMBER, bare)
        pattern = f"(?:{NUMBER})".join(map(re.escape, pieces))
        matches = list(re.finditer(rf"(?<![\w.,]){pattern}(?!\w)", self._text)) if "".join(pieces).strip() else []
        if len(matches) != 1:
            return ""
        return f"; line {self.get_line(self._offsets[matches[0].start()])} has “{matches[0][0]}”"


def _read_inline(text: str) -> Iterator[Binding]:
    """Read comments; each binds the last numbers before it, in order, in its line and table cell."""
    starts = list(accumulate((len(line) for line in text.splitlines(keepends=True)), initial=0))
    for match in _INLINE.finditer(_blank_code(text)):
        line = bisect_right(starts, match.start())
        before = text[starts[line - 1] : match.start()]
        before = re.sub(r"<!--.*?-->", lambda m: " " * len(m[0]), before)
        places = [place for place in _PLACE.finditer(match[2].strip()) if place["words"].strip()]
        count = sum(place["quote"] is None for place in places)
        cell = _blank_inline_code(before.rpartition("|")[2])
        cell_start = match.start() - len(cell)
        numbers = _share_units(find_quantities(cell), cell)
        unnamed = iter(numbers[-count:] if count and len(numbers) >= count else [])
        above = " ".join(re.sub(r"<!--.*?-->", "", text[: match.start()], flags=re.DOTALL).split())
        for place in places:
            quote, span = place["quote"], (0, 0)
            if quote is not None:
                number = next(iter(find_quantities(quote)), None) if " ".join(quote.split()) in above else None
            elif number := next(unnamed, None):
                span = cell_start + number.start, cell_start + number.end
            problem = "" if number else "there is no number before it"
            words, tolerance = _split_words(place["words"]), _parse_tolerance(place["tolerance"])
            yield Binding(line, match[1], words, tolerance, number, span, problem)


def _split_words(place: str) -> tuple[str, ...]:
    return tuple(re.findall(r'"[^"]*"|\S+', place))


def _parse_tolerance(percent: str | None) -> float | None:
    return float(percent) / 100 if percent else None


def _blank_code(text: str) -> str:
    """Replace code by spaces: a comment inside code is an example."""
    code_lines = _list_code_lines(text)
    lines = text.splitlines(keepends=True)
    prose = [re.sub(r"[^\n]", " ", line) if n in code_lines else line for n, line in enumerate(lines, 1)]
    return re.sub(r"`[^`\n]*`", lambda m: " " * len(m[0]), "".join(prose))


def _find_comments(text: str) -> list[tuple[int, int]]:
    return [m.span() for m in re.finditer(r"<!--.*?-->", _blank_code(text), re.DOTALL)]


def _blank_inline_code(text: str) -> str:
    return re.sub(r"`[^`]*`", lambda m: " " * len(m[0]), text.replace("**", "  "))


def _list_code_lines(text: str) -> set[int]:
    inside, lines = False, set()
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*(?:```|~~~)", line):
            inside = not inside
            lines.add(number)
        elif inside:
            lines.add(number)
    return lines


def _share_units(numbers: list[Quantity], text: str) -> list[Quantity]:
    """Give a number without a unit that of the next one: "353 / 374 TFLOP/s"."""
    numbers = [end for number in numbers for end in _split_range(number)]
    shared: list[Quantity] = []
    for place, number in enumerate(numbers):
        after = numbers[place + 1] if place + 1 < len(numbers) else None
        shared.append(number)
        if after is not None and (after.unit or after.dims != q.NONE):
            back = place
            while back >= 0 and _has_no_unit(shared[back]) and _are_listed(text, numbers[back], numbers[back + 1]):
                scale = after.value / after.written if after.written else 1.0
                bare = shared[back]
                shared[back] = replace(
                    bare,
                    value=bare.value * scale,
                    step=bare.step * scale,
                    loose=bare.loose * scale,
                    dims=after.dims,
                    unit=after.unit,
                )
                back -= 1
    return shared


def _split_range(number: Quantity) -> list[Quantity]:
    """Split a range into two numbers."""
    if number.top is None:
        return [number]
    scale = number.value / number.written if number.written else 1.0
    cut = list(re.finditer(r"to|–|-", number.text))[-1]
    high = find_quantities(number.text[cut.end() :])[0]
    if high.dims == q.NONE and high.unit == "":
        high = replace(high, value=high.value * scale, step=high.step * scale, loose=high.loose * scale)
    low_end = number.start + len(number.text[: cut.start()].rstrip())
    high_start = number.start + cut.end()
    return [
        replace(number, top=None, end=low_end),
        replace(high, dims=number.dims, unit=number.unit, start=high_start, end=number.end),
    ]


def _has_no_unit(number: Quantity) -> bool:
    return number.unit == "" and number.dims == q.NONE and not number.noun


def _are_listed(text: str, first: Quantity, second: Quantity) -> bool:
    return bool(re.fullmatch(r"\s*(?:/|,|and|to|or|–)\s*", text[first.end : second.start]))


def _check_binding(path: Path, project: Path | None, binding: Binding) -> Finding | None:
    place = f"{binding.file} {' '.join(binding.words)}".strip()
    number = binding.number
    if number is None:
        return Finding(str(path), binding.line, "reference", place, binding.problem, 1.0)
    if project is None:
        return Finding(str(path), binding.line, "missing", place, f"there is no folder {RECORDS} above this file", 1.0)
    says = f"{number.text} ← {place}"
    try:
        value, dims = read_value(project / RECORDS, binding.file, list(binding.words))
    except MissingValueError as missing:
        return Finding(str(path), binding.line, "missing", says, f"{missing}", 1.0)
    low, high = number.interval()
    if dims is None or number.dims != dims:
        if number.dims != q.NONE and dims not in (None, q.NONE):
            arithmetic = f"the number and the record's are of different kinds ({number.text}, {format_number(value)})"
            return Finding(str(path), binding.line, "reference", says, arithmetic, 1.0)
        scale = number.written / number.value if number.value else 1.0
        if dims is None:  # the record has no unit: compare the numbers as they are written
            low, high = low * scale, high * scale
    margin = binding.tolerance * abs(value) if binding.tolerance is not None else 0.0
    if overlap((low, high), (value - margin, value + margin), 1e-9):
        return None
    derived = format_value(value, dims) if dims else format_number(value)
    return Finding(str(path), binding.line, "drift", says, f"the record gives {derived}, not {number.text}", 1.0)


def _find_unbound(path: Path, text: str, bindings: list[Binding]) -> list[Finding]:
    """Find performance numbers outside code that have no binding.

    That is: a number with a unit of time, of a rate, of bandwidth or of FLOP/s; "N times faster", "N×"; "N % of" a
    ceiling, peak, copy, limit or link; and the cells of a table's column of such. A duration after "within",
    "after", "every", "up to" and the like is a setting.
    """
    spans = [binding.span for binding in bindings if binding.number is not None]
    prose = text
    for start, end in _find_comments(text):
        prose = prose[:start] + re.sub(r"[^\n]", "\0", prose[start:end]) + prose[end:]
    starts = list(accumulate((len(line) for line in text.splitlines(keepends=True)), initial=0))
    code_lines = _list_code_lines(text)
    cells = _list_measured_cells(text, str(path))
    findings = []
    for number, raw in enumerate(prose.splitlines(), 1):
        if number in code_lines or raw.lstrip().startswith(("#", "    ")):
            continue
        line = re.sub(r"\]\([^)]*\)|<[a-zA-Z/][^>]*>", lambda m: " " * len(m[0]), raw)  # links and HTML tags
        line = _blank_inline_code(line).replace("\0", " ")
        line_start = starts[number - 1]
        for quantity in _share_units(find_quantities(line), line):
            if not _is_performance(quantity, line) and (number, quantity.text) not in cells:
                continue
            if any(s < line_start + quantity.end and line_start + quantity.start < e for s, e in spans):
                continue
            arithmetic = (
                "a performance number without a record; bind it (docs/claims.md) or say that it was not recorded"
            )
            words = " ".join(line[max(0, quantity.start - 30) : quantity.end + 30].split())
            findings.append(Finding(str(path), number, "unbound", f"{quantity.text} in “{words}”", arithmetic, 1.0))
    return findings


def _is_performance(quantity: Quantity, line: str) -> bool:
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


def _list_measured_cells(text: str, name: str) -> set[tuple[int, str]]:
    """Return the cells of measured columns, as (line, number)."""
    cells = set()
    for table in read_document(text, name).tables:
        for column in read_columns(table):
            if column.role in _MEASURED_ROLES:
                cells |= {
                    (row.line, quantity.text)
                    for row, cell in zip(table.rows, column.cells, strict=True)
                    if cell is not None
                    for quantity in find_quantities(row.cells[column.index])[:1]
                }
    return cells


Value = tuple[float, Dims | None]  # in seconds, bytes, …; None where a text gives no unit
METRICS: dict[str, tuple[Dims, Callable[[Row], float | None]]] = {
    "median": (q.TIME, lambda row: row.seconds),
    "rate": (q.RATE, lambda row: row.items_per_s),
    "share": (q.NONE, lambda row: row.share),
    "ratio": (q.NONE, lambda row: row.ratio.value if row.ratio else None),  # the contender's time ÷ ours
    "flops": (q.FLOPS, lambda row: row.flops_per_s),
}


class MissingValueError(Exception):
    """The records have no such file, line or metric; the text says what is missing."""


def read_value(folder: Path, name: str, words: list[str]) -> Value:
    """Read one value from a record.

    `words` is the place: a quoted line of a text; or record, contender, metric; or selector and path of JSON; or two
    places with `/` between them, for their ratio. Raises `MissingValueError`.
    """
    if "/" in words:
        cut = words.index("/")
        above, above_dims = read_value(folder, name, words[:cut])
        below, below_dims = read_value(folder, name, words[cut + 1 :])
        return above / below, q.NONE if above_dims == below_dims else None
    file = folder / name
    if not file.is_file():
        raise MissingValueError(f"there is no record '{name}'")
    if file.suffix == ".jsonl" and _has_records(file):
        return _read_metric(file, words)
    if file.suffix in (".json", ".jsonl") and not (len(words) == 1 and words[0].startswith('"')):
        return _read_json(file, words)
    return _read_text(file, words)


@lru_cache(maxsize=32)
def _read_lines(file: Path) -> tuple[str, ...]:
    return tuple(" ".join(line.split()) for line in file.read_text(encoding="utf-8").splitlines())


@lru_cache(maxsize=32)
def _read_records(file: Path) -> tuple[Record, ...]:
    return read_records(file).records


@lru_cache(maxsize=32)
def _has_records(file: Path) -> bool:
    with file.open(encoding="utf-8") as lines:
        first = lines.readline()
    return '"schema"' in first and '"contenders"' in first


def _read_text(file: Path, words: list[str]) -> Value:
    """Return the last number of the quoted part of a line, or the one in square brackets."""
    quote = " ".join(" ".join(words).strip('"').split())
    bare = _MARKED.sub(r"\1", quote)
    if not any(bare in line for line in _read_lines(file)):
        raise MissingValueError(f"no line of '{file.name}' has “{bare}”")
    marked = _MARKED.search(quote)
    numbers = find_quantities(quote[marked.start() + 1 :].replace("]", "", 1)) if marked else find_quantities(bare)
    if not numbers:
        raise MissingValueError(f"there is no number in “{bare}”")
    number = numbers[0] if marked else numbers[-1]
    return (number.value, number.dims) if number.unit or number.dims != q.NONE else (number.written, None)


def _read_json(file: Path, words: list[str]) -> Value:
    *selectors, path = words
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".jsonl":
            objects = [json.loads(line) for line in text.splitlines() if line.strip()]
        else:
            document = json.loads(text)
            objects = document if isinstance(document, list) else [document]
    except json.JSONDecodeError as error:
        raise MissingValueError(f"'{file.name}' is no JSON: {error}") from None
    expected = dict(pair.split("=", 1) for word in selectors for pair in word.split(","))
    matches = [entry for entry in objects if all(str(_follow(entry, key)) == value for key, value in expected.items())]
    if len(matches) != 1:
        selector = " ".join(selectors) or "selected"
        raise MissingValueError(f"{len(matches)} lines of '{file.name}' are {selector}; one must be")
    value = _follow(matches[0], path)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise MissingValueError(f"'{file.name}' has no number at {path}")
    return float(value), None


def _follow(value: Any, path: str) -> Any:
    """Follow a path such as models.ease.recall@20.mean or ceilings.3.value; None if it does not exist."""
    for key in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def _read_metric(file: Path, words: list[str]) -> Value:
    """Read SELECTOR [CONTENDER] METRIC; a selector is the start of an id, or workload and key=value pairs."""
    if not words:
        raise MissingValueError("the reference names no metric")
    *selectors, metric = (word.strip('"') for word in words)
    contender = OURS
    if selectors and "=" not in selectors[-1] and len(selectors) > 1:
        contender = selectors.pop()
    try:
        matches = [r for r in _read_records(file) if all(_matches(r, word) for word in selectors)]
    except InputError as damage:
        raise MissingValueError(str(damage)) from None
    if len(matches) != 1:
        selector = " ".join(selectors)
        raise MissingValueError(f"{len(matches)} records of '{file.name}' are “{selector}”; one must be")
    rows = {row.result.contender: row for row in analyse_record(matches[0])}
    if contender not in rows:
        raise MissingValueError(f"“{contender}” did not run in that record; there are: {', '.join(rows)}")
    value = _get_metric(rows[contender], metric)
    if value is None:
        raise MissingValueError(f"the record has no {metric} for “{contender}”")
    return value


def _matches(candidate: Record, word: str) -> bool:
    if "=" in word:
        pairs = (pair.split("=", 1) for pair in word.split(","))
        return all(str(candidate.case.get(key)) == value for key, value in pairs)
    return candidate.workload == word or (len(word) >= 4 and candidate.id.startswith(word))


def _get_metric(row: Row, metric: str) -> Value | None:
    kind, _, name = metric.partition(".")
    if kind == "quality" and name in row.quality:
        return float(row.quality[name]), q.NONE
    if kind == "stage" and name in row.stages:
        return row.stages[name], q.TIME
    if kind == "extras":
        value = _follow(dict(row.result.extras), name)
        return (float(value), None) if isinstance(value, int | float) else None
    if metric not in METRICS:
        known = ", ".join(METRICS)
        raise MissingValueError(
            f"there is no metric “{metric}”; there are: {known}, quality.NAME, stage.NAME, extras.NAME"
        )
    dims, read_row = METRICS[metric]
    amount = read_row(row)
    return None if amount is None else (amount, dims)
