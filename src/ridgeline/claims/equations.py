"""Arithmetic that a report writes out: "2M × 20ms / 86400s = 0.46 cores", "90 minutes (1.5 hours)"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from ridgeline.claims.columns import COUNTED
from ridgeline.claims.document import Document, Line
from ridgeline.claims.finding import (
    SLACK,
    Finding,
    Interval,
    apart,
    confidence,
    digits,
    over,
    overlap,
    shown,
    times,
    units_mixed,
)
from ridgeline.claims.quantities import BANDWIDTH, BYTES, MAGNITUDE, NONE, TIME, Dims, Quantity, combined, find

_EQUALS = re.compile(r"(?<![<>=!:+*/-])(?:=|≈|≅)(?![=>])")
_LETTERS = (  # other readings of a letter behind a number and a space
    (re.compile(rf"(?<=\d){MAGNITUDE}"), ""),
    (re.compile(r"(?<=\d)\s([KG])(?=\s)"), r"\1"),
    (re.compile(r"(?<=\d)\s([KMGT])(?![\w/%-])"), r" \1iB"),
    (re.compile(r"(?<=\d)\sB(?![\w/%-])"), " billion"),
)
_DEEPEST = 20  # brackets in brackets; deeper is no arithmetic of people
_OPERATOR = re.compile(r"\s*(?:[×*·/÷+]|[x−–-]\s)")


@dataclass(frozen=True)
class Value:
    interval: Interval
    dims: Dims
    middle: float
    operators: int
    bare: bool  # no number in it has a unit
    text: str
    led: int = 0  # how much of the line stands before it


def check(document: Document) -> Iterator[Finding]:
    lines = document.statements()
    for place, line in enumerate(lines):
        text = line.text
        if text.lstrip().startswith("=") and place and lines[place - 1].number == line.number - 1:
            text = _last_side(lines[place - 1].text) + " " + text.strip()
        yield from _equations(document, replace(line, text=text))
        yield from _restated(document, line)
    for table in document.tables:
        for row in table.rows:
            for cell in row.cells:
                here = Line(row.line, cell, table.section, table.heading)
                yield from _equations(document, here)
                yield from _restated(document, here)


def _last_side(text: str) -> str:
    return text[[m.end() for m in _EQUALS.finditer(text)][-1] :] if _EQUALS.search(text) else text


def _equations(document: Document, line: Line) -> Iterator[Finding]:
    text = line.text
    cuts = list(_EQUALS.finditer(text))
    for number, cut in enumerate(cuts):
        left = text[cuts[number - 1].end() if number else 0 : cut.start()]
        right = text[cut.end() : cuts[number + 1].start() if number + 1 < len(cuts) else len(text)]
        said = evaluate(right, from_left=True)
        computed = evaluate(left, from_left=False)
        if said is None or computed is None:
            continue
        finding = _compare(document.path, line, cut.end(), computed, said)
        if (
            finding
            and not _explained(text[: cut.start()], computed, said)
            and not _lettered(line, cut.end(), left, right)
        ):
            yield finding


def _explained(before: str, computed: Value, said: Value) -> bool:
    """ "5 nodes with 2 × 8 GPUs = 80 GPUs": a number before the equation may belong to it."""
    if computed.middle == 0 or not computed.led:
        return False
    factor = said.middle / computed.middle
    return any(apart(factor, q.value) < 1.02 for q in find(before[: computed.led]) if q.value != 1)


def _lettered(line: Line, at: int, left: str, right: str) -> bool:
    """ "4 × 25 G = 12.5 GB/s", "7 B × 2 = 14 GB": a letter set apart may be a name or a unit, B bytes or billions."""
    for letter, word in _LETTERS:
        computed = evaluate(letter.sub(word, left), from_left=False)
        said = evaluate(letter.sub(word, right), from_left=True)
        if computed is None or said is None or not letter.search(f"{left}={right}"):
            continue
        same = computed.bare or computed.dims == said.dims
        if same and overlap(computed.interval, said.interval, SLACK):
            return True
        if not word and _compare("", line, at, computed, said) is None:
            return True
    return False


def _compare(path: str, line: Line, at: int, computed: Value, said: Value) -> Finding | None:
    if computed.dims == TIME and said.dims == NONE and not said.operators and re.search(COUNTED, said.text, re.I):
        computed = replace(computed, dims=NONE)  # seconds of work in every second keep so many busy
    if computed.operators == 0 and (computed.dims != said.dims or computed.dims == NONE):
        return None
    middle, interval = computed.middle, computed.interval
    if computed.dims != said.dims:
        if not computed.bare or said.operators:
            return None
        raw = find(said.text)[0]  # the left side has no units: hold the bare numbers against each other
        scale = raw.written / raw.value if raw.value else 1.0
        if apart(middle, raw.value) < apart(middle, raw.written):
            scale = 1.0  # "4 × 8 G = 35 GB"
        value, wide = raw.value * scale, tuple(end * scale for end in said.interval)
        said = Value((wide[0], wide[1]), NONE, value, 0, True, said.text)
        for power in (1e-9, 1e-6, 1e-3, 1e3, 1e6, 1e9, 60.0, 3600.0, 1 / 60, 1 / 3600, 8.0, 0.125, 24.0, 86400.0):
            if overlap(times(interval, (power, power)), said.interval, SLACK):
                return None  # units left out on one side
    if overlap(interval, said.interval, SLACK):
        return None
    if said.text.endswith("%") and (
        overlap(times(interval, (0.01, 0.01)), said.interval, SLACK)
        or overlap((1 - interval[1], 1 - interval[0]), said.interval, SLACK)
        or overlap((interval[0] - 1, interval[1] - 1), said.interval, SLACK)
    ):
        return None
    factor = apart(said.middle, middle)
    written = {quantity.unit for quantity in find(computed.text) + find(said.text) if quantity.dims[1]}
    mixed = units_mixed(factor, said.dims if said.dims != NONE else computed.dims) if len(written) > 1 else None
    kind = "unit" if mixed else "equation"
    what = f"{computed.text} = {shown(middle, said.dims)}, not {said.text}" + (f" ({mixed})" if mixed else "")
    if factor >= 1.5:
        what += f" (a factor of {digits(factor)})"
    at += len(line.text[at:]) - len(line.text[at:].lstrip())
    return Finding(path, line.at(at), kind, line.around(at), what, confidence(factor, 0.97))


def evaluate(text: str, from_left: bool) -> Value | None:
    """The value of the expression at the right end of `text` (or at its left end); None where there is none."""
    if from_left:
        text = re.split(r";|,\s|\s[—–→]\s|\s\(|\bor\b|\bvs\b|\.\s|\|", text, maxsplit=1)[0]
        words = re.match(r"\s*(?:up to|only|about|approximately|around|roughly|nearly|just|over|under)?\s*", text)
        text = text[words.end() if words else 0 :]
        return _value(text, 0, from_left=True)
    depth, cut = 0, 0
    for place in range(len(text) - 1, -1, -1):
        depth += (text[place] == ")") - (text[place] == "(")
        if depth < 0 or (depth == 0 and re.match(r"[:;→]|,\s|\s[—–]\s|\.\s|\|", text[place:])):
            cut = place + 1
            break
    whole = cut
    text = re.sub(r"^\s*[-*•]\s", lambda m: " " * len(m[0]), text[cut:])
    found = _value(text, 0, from_left=False)
    if found is not None:
        return found
    for first in find(text):  # words lead to it: "this makes 208 GB / 8"
        if re.search(r"[A-Za-z,:][)\]]?\s+(?:\W\s*)?$", text[: first.start]) and not _OPERATOR.fullmatch(
            text[: first.start].rstrip()[-1:] + " "
        ):
            found = _value(text, first.start, from_left=False)
            if found is not None and found.operators:
                return replace(found, led=whole + first.start)
    return None


def _value(text: str, at: int, from_left: bool) -> Value | None:
    """What the calculator reads from a place on."""
    text = re.sub(r"\([^()\d]*\)", lambda m: " " * len(m[0]), text)  # remarks without numbers
    if re.search(r"[A-Za-z]\w*\(|\^|\bmod\b|√|…|\.\.\.", text[at:]):
        return None
    reader = _Reader(text, find(text), at)
    value = reader.sum()
    if value is None or (not from_left and not reader.finished()):
        return None
    if from_left and not reader.finished() and _OPERATOR.match(reader.text[reader.at :]):
        return None
    said = re.sub(r"\s+", " ", text[at : reader.at]).strip(" ,.")
    interval = value.interval
    if from_left and not value.operators:  # an answer may be rounded or cut off: a whole step of its last digit
        interval = find(text)[0].interval(1.0)
    return Value(interval, value.dims, value.middle, value.operators, value.bare, said)


class _Reader:
    """A calculator over quantities; words after a quantity say what it is and count for nothing."""

    def __init__(self, text: str, found: list[Quantity], at: int) -> None:
        self.text, self.at = text, at
        self.by_start = {q.start: q for q in found}
        self.depth = 0

    def finished(self) -> bool:
        return not self.text[self.at :].strip(" .,*_`~")

    def sum(self) -> Value | None:
        value = self.product()
        while value is not None and (sign := re.match(r"\s*([+−–-])\s+|\s+([+−–-])\s*", self.text[self.at :])):
            self.at += sign.end()
            more = self.product()
            if more is None or more.dims != value.dims:
                return None
            minus = (sign[1] or sign[2]) != "+"
            low, high = (-more.interval[1], -more.interval[0]) if minus else more.interval
            value = Value(
                (value.interval[0] + low, value.interval[1] + high),
                value.dims,
                value.middle + (-more.middle if minus else more.middle),
                value.operators + more.operators + 1,
                value.bare and more.bare,
                "",
            )
        return value

    def product(self) -> Value | None:
        value = self.term()
        while value is not None and (sign := re.match(r"\s*([×*·/÷]|x(?=\s))\s*", self.text[self.at :])):
            self.at += sign.end()
            more = self.term()
            if more is None:
                return None
            divided = sign[1] in "/÷"
            if divided and more.middle == 0:
                return None
            dims = combined(value.dims, more.dims, -1 if divided else 1)
            value = Value(
                over(value.interval, more.interval) if divided else times(value.interval, more.interval),
                dims,
                value.middle / more.middle if divided else value.middle * more.middle,
                value.operators + more.operators + 1,
                value.bare and more.bare,
                "",
            )
        return value

    def term(self) -> Value | None:
        while self.at < len(self.text) and self.text[self.at] in " \t*_`":
            self.at += 1
        if self.text[self.at : self.at + 1] == "(":
            self.at += 1
            self.depth += 1
            inner = self.sum() if self.depth <= _DEEPEST else None
            if inner is None or not self.text[self.at :].lstrip().startswith(")"):
                return None
            self.at += self.text[self.at :].index(")") + 1
            self.depth -= 1
            self._words()
            return inner
        found = self.by_start.get(self.at)
        if found is None or found.bound or found.top is not None:
            return None
        self.at = found.end
        self._words()
        exact = found.dims == NONE or found.unit in ("B", "byte", "bytes")  # counts; the 4 bytes of a number
        steps = 0.0 if exact and float(found.written).is_integer() else 0.5
        bare = found.dims == NONE and found.unit not in ("%",)
        return Value(found.interval(steps, loosely=False), found.dims, found.value, 0, bare, "")

    def _words(self) -> None:
        words = re.match(
            r"(?:\s+(?!(?:x|for|with|where|when|if|and|is|as|from|at)\b)[A-Za-z][a-z-]*|\s+[A-Z]{2,}s?)"
            r"{1,3}(?![\w])|-[a-z]+",
            self.text[self.at :],
        )
        if words:
            self.at += words.end()


def _restated(document: Document, line: Line) -> Iterator[Finding]:
    """A quantity and, in brackets right after it, the same in another unit."""
    found = find(line.text)
    for first, second in pairwise(found):
        between = line.text[first.end : second.start]
        if first.dims != second.dims or first.dims not in (TIME, BYTES, BANDWIDTH) or first.unit == second.unit:
            continue
        again = re.fullmatch(r"\s*\(\s*", between) and re.match(r"\s*[)/,]", line.text[second.end :])
        if not again and not re.fullmatch(r",?\s*(?:which|that) is\s*(?:only |just )?", between):
            continue
        if first.bound or second.bound or "per" in first.unit or "per" in second.unit:
            continue
        if overlap(first.interval(1.0), second.interval(1.0), SLACK):
            continue
        factor = apart(first.value, second.value)
        mixed = units_mixed(factor, first.dims)
        if mixed is None and factor > 1000:
            continue  # a remark about something else
        what = f"{first.text} = {shown(first.value, first.dims)}; {second.text} = {shown(second.value, second.dims)}"
        kind = "unit" if mixed else "restated"
        where, sentence = line.at(second.start), line.around(second.start)
        yield Finding(document.path, where, kind, sentence, what, confidence(factor, 0.85))
