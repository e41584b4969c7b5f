"""Equations that a report writes out: "2M × 20ms / 86400s = 0.46 cores", "90 minutes (1.5 hours)"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from ridgeline.claims.columns import DEVICE_WORDS
from ridgeline.claims.document import Document, Line
from ridgeline.claims.finding import CERTAIN, LIKELY, UNSURE, Finding, grade_confidence
from ridgeline.claims.quantities import (
    BANDWIDTH,
    BYTES,
    MAGNITUDE,
    NONE,
    SLACK,
    TIME,
    UNITS,
    Dims,
    Interval,
    Quantity,
    combine_dims,
    compute_factor,
    divide,
    find_quantities,
    find_unit_mixup,
    format_number,
    format_value,
    multiply,
    overlap,
)

_EQUALS = re.compile(r"(?<![<>=!:+*/-])(?:=|≈|≅)(?![=>])")
_LETTERS = (  # other meanings of a letter after a number and a space
    (re.compile(rf"(?<=\d){MAGNITUDE}(?=\s[A-Za-z])|(?<=\d)\sG(?![\w/%-])"), ""),
    (re.compile(r"(?<=\d)\s([KG])(?=\s)"), r"\1"),
    (re.compile(r"(?<=\d)\s([KMGT])(?![\w/%-])"), r" \1iB"),
    (re.compile(r"(?<=\d)\sB(?![\w/%-])"), " billion"),
)
_SPREAD = re.compile(r"(?:±|\+/-|\+-)\s*$")
_SPREAD_FIGURE = re.compile(r"^\s*(?:±|\+/-|\+-)\s*[\d.,]+\s?[A-Za-zµμ%]*")
_KEY = re.compile(  # the name of the next figure: "avg=12ms min=1ms"
    r"(?:^|(?<!\d)[^\s\d]\s+)[A-Za-z_][\w.()-]*$|\b(?:min|max|avg|mean|med|median|std|stddev|stdev|p\(?\d\d(?:\.\d+)?\)?)\s*$",
    re.I,
)
_MAX_DEPTH = 20  # nested brackets
_OPERATOR = re.compile(r"\s*(?:[×*·/÷+]|[x−–-]\s)")


@dataclass(frozen=True)
class Value:
    """The value of one side of an equation."""

    interval: Interval
    dims: Dims
    middle: float
    operators: int
    bare: bool  # no number has a unit
    text: str
    led: int = 0  # length of the text before it


def check_equations(document: Document) -> Iterator[Finding]:
    lines = document.statements()
    for index, line in enumerate(lines):
        text = line.text
        if text.lstrip().startswith("=") and index and lines[index - 1].number == line.number - 1:
            text = _get_last_side(lines[index - 1].text) + " " + text.strip()
        yield from _check_line(document, replace(line, text=text))
        yield from _check_second_unit(document, line)
    for table in document.tables:
        for row in table.rows:
            for cell in row.cells:
                cell_line = Line(row.line, cell, table.section, table.heading)
                yield from _check_line(document, cell_line)
                yield from _check_second_unit(document, cell_line)


def _get_last_side(text: str) -> str:
    return text[[m.end() for m in _EQUALS.finditer(text)][-1] :] if _EQUALS.search(text) else text


def _check_line(document: Document, line: Line) -> Iterator[Finding]:
    text = line.text
    cuts = list(_EQUALS.finditer(text))
    for number, cut in enumerate(cuts):
        left = text[cuts[number - 1].end() if number else 0 : cut.start()]
        right = text[cut.end() : cuts[number + 1].start() if number + 1 < len(cuts) else len(text)]
        stated = evaluate(right, from_left=True)
        computed = evaluate(left, from_left=False)
        if stated is None or computed is None or _KEY.search(left):
            continue
        finding = _compare(document.path, line, cut.end(), computed, stated)
        if (
            finding
            and not _is_explained(text[: cut.start()], computed, stated)
            and not _holds_with_other_letter(line, cut.end(), left, right)
        ):
            yield finding


def _is_explained(before: str, computed: Value, stated: Value) -> bool:
    """Whether a number before the equation belongs to it: "5 nodes with 2 × 8 GPUs = 80 GPUs"."""
    if computed.middle == 0 or not computed.led:
        return False
    factor = stated.middle / computed.middle
    return any(compute_factor(factor, q.value) < 1.02 for q in find_quantities(before[: computed.led]) if q.value != 1)


def _holds_with_other_letter(line: Line, at: int, left: str, right: str) -> bool:
    """Whether it holds if a letter means something else: "4 × 25 G = 12.5 GB/s", "7 B × 2 = 14 GB"."""
    for letter, word in _LETTERS:
        computed = evaluate(letter.sub(word, left), from_left=False)
        stated = evaluate(letter.sub(word, right), from_left=True)
        if computed is None or stated is None or not letter.search(f"{left}={right}"):
            continue
        same = computed.bare or computed.dims == stated.dims
        if same and overlap(computed.interval, stated.interval, SLACK):
            return True
        if not word and _compare("", line, at, computed, stated) is None:
            return True
    return False


def _compare(path: str, line: Line, at: int, computed: Value, stated: Value) -> Finding | None:
    if (
        computed.dims == TIME
        and stated.dims == NONE
        and not stated.operators
        and re.search(DEVICE_WORDS, stated.text, re.I)
    ):
        computed = replace(computed, dims=NONE)  # seconds of work per second: the number of busy devices
    if computed.operators == 0 and (
        computed.dims != stated.dims
        or computed.dims == NONE
        or _list_denominators(computed.text) != _list_denominators(stated.text)
    ):
        return None
    middle, interval = computed.middle, computed.interval
    if computed.dims != stated.dims:
        if not computed.bare or stated.operators:
            return None
        raw = find_quantities(stated.text)[0]  # the left side has no units: compare the bare numbers
        scale = raw.written / raw.value if raw.value else 1.0
        if compute_factor(middle, raw.value) < compute_factor(middle, raw.written):
            scale = 1.0  # "4 × 8 G = 35 GB"
        value, wide = raw.value * scale, tuple(end * scale for end in stated.interval)
        stated = Value((wide[0], wide[1]), NONE, value, 0, True, stated.text)
        for power in (1e-9, 1e-6, 1e-3, 1e3, 1e6, 1e9, 60.0, 3600.0, 1 / 60, 1 / 3600, 8.0, 0.125, 24.0, 86400.0):
            if overlap(multiply(interval, (power, power)), stated.interval, SLACK):
                return None  # one side omits its units
    if overlap(interval, stated.interval, SLACK):
        return None
    if stated.text.endswith("%") and (
        overlap(multiply(interval, (0.01, 0.01)), stated.interval, SLACK)
        or overlap((1 - interval[1], 1 - interval[0]), stated.interval, SLACK)
        or overlap((interval[0] - 1, interval[1] - 1), stated.interval, SLACK)
    ):
        return None
    factor = compute_factor(stated.middle, middle)
    written = {
        quantity.unit for quantity in find_quantities(computed.text) + find_quantities(stated.text) if quantity.dims[1]
    }
    mixed = find_unit_mixup(factor, stated.dims if stated.dims != NONE else computed.dims) if len(written) > 1 else None
    kind = "unit" if mixed else "equation"
    arithmetic = f"{computed.text} = {format_value(middle, stated.dims)}, not {stated.text}" + (
        f" ({mixed})" if mixed else ""
    )
    if factor >= 1.5:
        arithmetic += f" (a factor of {format_number(factor)})"
    at += len(line.text[at:]) - len(line.text[at:].lstrip())
    sure = grade_confidence(UNSURE if mixed else CERTAIN, factor)
    return Finding(path, line.get_number(at), kind, line.get_sentence(at), arithmetic, sure)


def _list_denominators(text: str) -> set[str]:
    """What a figure is for: of "38 bytes/row" a row, of "12 KB each" each; units of measure do not count."""
    parts = [part for q in find_quantities(text) for part in re.split(r"\s?/\s?|\sper\s", q.unit)[1:]]
    parts += re.findall(r"\b(?:each|apiece)\b|\b(?:per|every)\s[A-Za-z]+", text)
    return {part.removeprefix("per ").rstrip("s").lower() for part in parts if part not in UNITS}


def evaluate(text: str, from_left: bool) -> Value | None:
    """Return the value of the expression at the left or right end of `text`, or None."""
    if from_left:
        text = re.split(r";|,\s|\s[—–→]\s|\s\(|\bor\b|\bvs\b|\.\s|\|", text, maxsplit=1)[0]
        words = re.match(r"\s*(?:up to|only|about|approximately|around|roughly|nearly|just|over|under)?\s*", text)
        text = text[words.end() if words else 0 :]
        return _read_value(text, 0, from_left=True)
    depth, cut = 0, 0
    for index in range(len(text) - 1, -1, -1):
        depth += (text[index] == ")") - (text[index] == "(")
        if depth < 0 or (depth == 0 and re.match(r"[:;→]|,\s|\s[—–]\s|\.\s|\|", text[index:])):
            cut = index + 1
            break
    offset = cut
    text = re.sub(r"^\s*[-*•]\s", lambda m: " " * len(m[0]), text[cut:])
    value = _read_value(text, 0, from_left=False)
    if value is not None:
        return value
    for first in find_quantities(text):  # words before it: "this makes 208 GB / 8"
        if re.search(r"[A-Za-z,:][)\]]?\s+(?:\W\s*)?$", text[: first.start]) and not _OPERATOR.fullmatch(
            text[: first.start].rstrip()[-1:] + " "
        ):
            value = _read_value(text, first.start, from_left=False)
            if value is not None and value.operators:
                return replace(value, led=offset + first.start)
    return None


def _read_value(text: str, at: int, from_left: bool) -> Value | None:
    """Read an expression from an offset on."""
    text = re.sub(r"\([^()\d]*\)", lambda m: " " * len(m[0]), text)  # brackets without numbers
    if re.search(r"[A-Za-z]\w*\(|\^|\bmod\b|√|…|\.\.\.", text[at:]):
        return None
    reader = _Calculator(text, find_quantities(text), at)
    value = reader.sum()
    if value is None or (not from_left and not reader.is_finished()):
        return None
    if from_left and not reader.is_finished() and _OPERATOR.match(reader.text[reader.at :]):
        return None
    words = re.sub(r"\s+", " ", text[at : reader.at]).strip(" ,.")
    if from_left and words.endswith(" per"):
        return None  # "$0.06 per 1M tokens": the figure is for another amount
    interval = value.interval
    if from_left and not value.operators:  # a result may be rounded or cut off
        interval = find_quantities(text)[0].interval(1.0)
    return Value(interval, value.dims, value.middle, value.operators, value.bare, words)


class _Calculator:
    """Evaluate an expression of quantities; skip the words after each quantity."""

    def __init__(self, text: str, quantities: list[Quantity], at: int) -> None:
        self.text, self.at = text, at
        self.by_start = {q.start: q for q in quantities}
        self.depth = 0

    def is_finished(self) -> bool:
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
            dims = combine_dims(value.dims, more.dims, -1 if divided else 1)
            value = Value(
                divide(value.interval, more.interval) if divided else multiply(value.interval, more.interval),
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
            inner = self.sum() if self.depth <= _MAX_DEPTH else None
            if inner is None or not self.text[self.at :].lstrip().startswith(")"):
                return None
            self.at += self.text[self.at :].index(")") + 1
            self.depth -= 1
            self._skip_words()
            return inner
        quantity = self.by_start.get(self.at)
        if quantity is None or quantity.bound or quantity.top is not None:
            return None
        self.at = quantity.end
        self._skip_words()
        exact = quantity.dims == NONE or quantity.unit in ("B", "byte", "bytes")  # counts, and bytes per element
        steps = 0.0 if exact and float(quantity.written).is_integer() else 0.5
        bare = quantity.dims == NONE and quantity.unit not in ("%",)
        return Value(quantity.interval(steps, loosely=False), quantity.dims, quantity.value, 0, bare, "")

    def _skip_words(self) -> None:
        words = re.match(
            r"(?:\s+(?!(?:x|for|with|where|when|if|and|is|as|from|at)\b)[A-Za-z][a-z-]*|\s+[A-Z]{2,}s?)"
            r"{1,3}(?![\w])|-[a-z]+",
            self.text[self.at :],
        )
        if words:
            self.at += words.end()


def _check_second_unit(document: Document, line: Line) -> Iterator[Finding]:
    """Check a quantity that a bracket repeats in another unit: "90 minutes (1.5 hours)", "1,759 ns ± 46 (1.76 µs)"."""
    quantities = [x for x in find_quantities(line.text) if not _SPREAD.search(line.text[: x.start])]
    for first, second in pairwise(quantities):
        between = _SPREAD_FIGURE.sub("", line.text[first.end : second.start])
        if first.dims != second.dims or first.dims not in (TIME, BYTES, BANDWIDTH) or first.unit == second.unit:
            continue
        again = re.fullmatch(r"\s*\(\s*[~≈=]?", between) and re.match(r"\s*\)", line.text[second.end :])
        if not again and not re.fullmatch(r",?\s*(?:which|that) is\s*(?:only |just )?", between):
            continue
        if first.bound or second.bound or "per" in first.unit or "per" in second.unit:
            continue
        if overlap(first.interval(1.0), second.interval(1.0), SLACK):
            continue
        factor = compute_factor(first.value, second.value)
        mixed = find_unit_mixup(factor, first.dims)
        first_value, second_value = format_value(first.value, first.dims), format_value(second.value, second.dims)
        arithmetic = f"{first.text} = {first_value}; {second.text} = {second_value}"
        kind = "unit" if mixed else "restated"
        sure = LIKELY if mixed is None and (factor < 1.3 or _is_power_of_ten(factor)) else UNSURE
        line_number, sentence = line.get_number(second.start), line.get_sentence(second.start)
        yield Finding(document.path, line_number, kind, sentence, arithmetic, grade_confidence(sure, factor))


def _is_power_of_ten(factor: float) -> bool:
    return any(compute_factor(factor, 10.0**power) < 1.02 for power in range(1, 10))
