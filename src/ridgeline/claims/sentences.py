"""Figures of one statement that must agree, and statements that repeat a row of a table.

"6,000 texts in 2.00 s (3,000 texts/s)", "412 of 500 requests (82.4 %)", "900 GB/s (90 % of peak)"; and "Row access is
3x faster" beside the row of that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import Column, get_label
from ridgeline.claims.context import Context, Fact
from ridgeline.claims.document import Table
from ridgeline.claims.explanations import Expected
from ridgeline.claims.finding import CERTAIN, LIKELY, UNSURE, Finding, grade_confidence
from ridgeline.claims.quantities import (
    MIXES,
    SLACK,
    Quantity,
    compute_factor,
    divide,
    find_quantities,
    format_number,
    format_value,
    overlap,
    take_unit,
)
from ridgeline.claims.ratios import COMPARES, STATISTIC, compare, is_exact

_MEASURED = (q.TIME, q.RATE, q.BANDWIDTH, q.BYTES)
_THEN = re.compile(r"\s?[,(:=—–-]?\s?(?:which is |that is |or |i\.e\.,? |at |a rate of |about |roughly )*[~≈]?")
_OF = re.compile(r"\s*(?:\w+\s)?(?:(?:out )?of\s(?:the\s|a total of\s)?|/\s?)")
_OF_PEAK = re.compile(r"\s*of\s(?:the\s)?(?:\w+[\s-]){0,3}(?:peak|theoretical|maximum|limit|ceiling|roof)", re.I)
_OPPOSITE = re.compile(
    r"\s*\w*\s*(?:less|more|faster|slower|lower|higher|reduc|sav|free|left|unused|idle|improv)", re.I
)
_FASTER = re.compile(r"\s*(?:times )?(?:as fast|faster|slower|quicker|speed-?up|improvement)\b", re.I)
_OTHER_BASE = re.compile(
    r"\bthan\s(?!before\b|the (?:old|previous|original|baseline))|\bcompared|\bvs\b|\bover\b", re.I
)


_FATE = re.compile(  # what happened to a part: "96 failed (4 %)"; a comparison is no share: "40 were faster (12 %)"
    r"\s*(?:failed|passed|succeeded|completed|timed out|(?:are|were|got|have been)\s(?!\w*er\b)\w+)\s*\(\s*[~≈]?"
)
_FRACTION = re.compile(  # "411/420 tests (97.9 %)", "97.9 % (411/420)"
    r"(?<![\w.,/-])(?P<part>\d[\d,]*)\s?/\s?(?P<total>\d[\d,]*)(?:\s[a-z]+){0,3}\s*\(\s*(?P<after>\d[\d.]*\s?%)\s*\)|"
    r"(?<![\w.,-])(?P<before>\d[\d.]*\s?%)\s*\((?P<part2>\d[\d,]*)\s?/\s?(?P<total2>\d[\d,]*)(?![\w.,/%-]*\d)"
)


def check_fractions(context: Context) -> Iterator[Finding]:
    """Check "411/420 tests (97.9 %)" and "97.9 % (411/420)" in statements and cells."""
    for line in context.document.lines:
        for match in _FRACTION.finditer(line.text) if not line.code else ():
            stated = find_quantities(match["before"] or match["after"])[0]
            part, total = (float((match[name] or match[f"{name}2"]).replace(",", "")) for name in ("part", "total"))
            if 0 < part <= total and not overlap(stated.interval(1.0), (part / total, part / total), SLACK):
                value = part / total
                words = f"{format_number(part)} / {format_number(total)}"
                arithmetic = f"share: {words} = {value:.2%}, not {stated.text}"
                sure = grade_confidence(CERTAIN, compute_factor(value, stated.value))
                says = line.get_sentence(match.start())
                yield Finding(context.document.path, line.number, "share", says, arithmetic, sure)


def check_sentences(context: Context) -> Iterator[Finding]:
    """Check the figures of each statement."""
    for facts in context.group_by_statement():
        for first, second, third in zip(facts, facts[1:], facts[2:], strict=False):
            yield from _check_rate(context, first, second, third)
            yield from _check_share(context, first, second, third)
        for part, share in pairwise(facts):
            yield from _check_share_of_peak(context, part, share)


def _check_rate(context: Context, count: Fact, time: Fact, rate: Fact) -> Iterator[Finding]:
    """Check "6,000 texts in 2.00 s (3,000 texts/s)", "18.4 TB in 6 h 12 min, which is 824 MB/s"."""
    amount, span, stated = count.quantity, time.quantity, rate.quantity
    if not (is_exact(amount) and is_exact(span) and is_exact(stated)) or span.dims != q.TIME:
        return
    if stated.dims != q.combine_dims(amount.dims, q.TIME, -1) or amount.dims not in (q.NONE, q.BYTES):
        return
    same_noun = amount.noun.rstrip("s") == stated.noun.rstrip("s") and amount.noun
    if amount.dims == q.NONE and (amount.share or amount.factor or not same_noun):
        return
    joined = re.fullmatch(
        r"\s(?:\w+\s){0,3}(?:in|(?P<verb>takes?|took|needs?|needed))\s(?:just |only |about |under )?",
        count.text[amount.end : span.start],
    )
    if not joined or (joined["verb"] and overlap(stated.interval(1.0), divide((1.0, 1.0), span.interval()), SLACK)):
        return  # "10 queries take 5 ms (200 queries/s)": each of them
    if not _THEN.fullmatch(count.text[span.end : stated.start]):
        return
    computed = divide(amount.interval(), span.interval())
    mixes = MIXES if amount.dims == q.BYTES else (1.0,)
    if not any(overlap(stated.interval(1.0), (computed[0] * mix, computed[1] * mix), SLACK) for mix in mixes):
        value = amount.value / span.value
        arithmetic = f"rate: {amount.text} / {span.text} = {format_value(value, stated.dims)}, not {stated.text}"
        yield context.report(rate, "rate", arithmetic, compute_factor(stated.value, value), CERTAIN)


def _check_share(context: Context, first: Fact, second: Fact, third: Fact) -> Iterator[Finding]:
    """Check "412 of 500 requests (82.4 %)", "of 500 requests, 12 failed (2.4 %)", "45 GB/s (50 % of 90 GB/s)"."""
    total_first = re.search(r"\bof (?:the |all )?$", first.text[: first.quantity.start], re.I) is not None
    which = r"(?:\s[\w-]+){1,3},\s" if total_first else r"(?:\s[\w-]+){1,3},?\sof which\s"
    if third.quantity.share and re.fullmatch(which, first.text[first.quantity.end : second.quantity.start]):
        base, part, share = first, second, third
        between = joined = re.match(r"[).,;]", share.tail) and _FATE.fullmatch(
            first.text[part.quantity.end : share.quantity.start]
        )
    elif third.quantity.share:
        part, base, share = first, second, third
        between = re.fullmatch(
            r"\s*(?:\w+\s?){0,2}[(,=:→]\s*[~≈]?", first.text[base.quantity.end : share.quantity.start]
        )
        joined = _OF.fullmatch(first.text[part.quantity.end : base.quantity.start])
    else:
        part, share, base = first, second, third
        between = re.fullmatch(r"\s*\(\s*", first.text[part.quantity.end : share.quantity.start])
        joined = re.fullmatch(r"\s+of\s+(?:the\s+)?", first.text[share.quantity.end : base.quantity.start])
    stated, total = share.quantity, base.quantity
    amount = take_unit(part.quantity, total)
    if not between or not joined or not stated.share or not is_exact(stated) or amount.share or amount.factor:
        return
    if amount.dims != total.dims or not (is_exact(amount) and is_exact(total)) or amount.value > total.value:
        return
    if _OPPOSITE.match(share.tail) or (amount.dims == q.NONE and total.unit):
        return
    low, high = divide(amount.count_interval(), total.count_interval())
    # "1,204 passed, 6 failed of 1,210 (99.5 % passed)": the share of another part
    earlier = [x for x in find_quantities(first.text[: part.quantity.start]) if x.dims == total.dims and not x.unit]
    readings = [divide(x.count_interval(), total.count_interval()) for x in earlier]
    readings += [(low, high), (1 - high, 1 - low)]
    if not any(overlap(stated.interval(1.0), ends, SLACK) for ends in readings):
        value = amount.value / total.value
        arithmetic = f"share: {amount.text} / {total.text} = {value:.2%}, not {stated.text}"
        yield context.report(share, "share", arithmetic, compute_factor(value, stated.value), CERTAIN)


def _check_share_of_peak(context: Context, part: Fact, share: Fact) -> Iterator[Finding]:
    """Check "900 GB/s (90 % of theoretical peak)" against the one peak of that kind that the report states."""
    amount, stated = part.quantity, share.quantity
    between = part.text[amount.end : stated.start]
    if not stated.share or not is_exact(stated) or not is_exact(amount) or amount.dims not in (q.BANDWIDTH, q.FLOPS):
        return
    if not _OF_PEAK.match(share.tail) or "(" not in between or re.search(r"[.;]\s", between):
        return
    peaks = {fact.quantity.value: fact for fact in context.find_peaks(amount.dims) if fact.statement != part.statement}
    if len(peaks) != 1:
        return
    peak = next(iter(peaks.values()))
    if overlap(stated.interval(1.0), divide(amount.interval(), peak.quantity.interval()), SLACK):
        return
    value = amount.value / peak.quantity.value
    arithmetic = f"share: {amount.text} / {peak.quantity.text} (line {peak.line}) = {value:.1%}, not {stated.text}"
    yield context.report(share, "share", arithmetic, compute_factor(value, stated.value), LIKELY)


@dataclass(frozen=True)
class NamedRow:
    """A row of a table: its name, its figures, and the change that they or a percentage beside them show."""

    name: str
    figures: tuple[Quantity, ...]
    change: Quantity | None  # a percentage, if there is one figure only
    line: int

    def expect(self, claim: Quantity) -> Expected:
        """Return the factor or percentage that the row gives."""
        if self.change is None:
            return compare(self.figures[0], self.figures[1], claim)
        low, high = self.change.interval(1.0)
        factors = ((1 / (1 - low), 1 / max(1 - high, 1e-9)), (1 + low, 1 + high), (1 - high, 1 - low), (low, high))
        value = self.change.value if claim.share else 1 / (1 - self.change.value)
        return Expected(value, factors, f"a change of {self.change.text}")


def check_repeated_rows(context: Context) -> Iterator[Finding]:
    """Check "Row access is 3x faster" against the row of that name."""
    rows = [row for table, columns in context.tables for row in _list_named_rows(table, columns)]
    for facts in context.group_by_statement() if rows else []:
        for fact in facts:
            claim = fact.quantity
            if (claim.factor or claim.share) and is_exact(claim) and _FASTER.match(fact.tail):
                named = [row for row in rows if _is_about(row, fact, facts)]
                if len(named) == 1 and not _OTHER_BASE.search(fact.tail):
                    yield from _check_repeated_row(context, fact, named[0])


def _check_repeated_row(context: Context, fact: Fact, row: NamedRow) -> Iterator[Finding]:
    claim, expected = fact.quantity, row.expect(fact.quantity)
    if any(overlap(claim.interval(1.0), reading, 0.02) for reading in expected.intervals):
        return
    value = f"{expected.value:.1%}" if claim.share else f"{format_number(expected.value)}×"
    arithmetic = f"ratio: {expected.words} (line {row.line}) = {value}, not {claim.text}"
    factor = compute_factor(expected.value, claim.value)
    yield context.report(fact, "ratio", arithmetic, factor, LIKELY if factor > 1.1 else UNSURE)


def _is_about(row: NamedRow, fact: Fact, facts: list[Fact]) -> bool:
    """Whether a sentence names the row as its subject, or names it and repeats one of its figures."""
    sentence = fact.sentence.lower().replace("_", " ")
    others = [f.quantity for f in facts if f is not fact and f.sentence == fact.sentence]
    if not others:
        return (
            re.search(rf"(?:^|[-*•]\s*|\bthe\s){re.escape(row.name)}\s(?:is|are|was|were|runs|now)\b", sentence)
            is not None
        )
    repeated = [x for x in others for y in row.figures if x.dims == y.dims and overlap(x.interval(1.0), y.interval())]
    return len(repeated) == len(others) and re.search(rf"\b{re.escape(row.name)}\b", sentence) is not None


def _list_named_rows(table: Table, columns: list[Column]) -> Iterator[NamedRow]:
    """List the rows that have a name and two figures of one kind, or one figure and a percentage of change."""
    for index, row in enumerate(table.rows):
        name = get_label(table, index, columns).strip().lower().replace("_", " ")
        cells = [(column, column.raw[index]) for column in columns if not STATISTIC.search(column.name)]
        figures = tuple(cell for _, cell in cells if cell is not None and is_exact(cell) and cell.dims in _MEASURED)
        changes = [cell for column, cell in cells if cell is not None and cell.share and COMPARES.search(column.name)]
        if len(name) < 4:
            continue
        if len(figures) == 2 and figures[0].dims == figures[1].dims:
            yield NamedRow(name, figures, None, row.line)
        elif len(figures) == 1 and len(changes) == 1 and 0 < changes[0].value < 1 and is_exact(changes[0]):
            yield NamedRow(name, figures, changes[0], row.line)
