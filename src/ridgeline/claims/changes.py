"""Changes within a statement: two figures and the factor or difference between them, "80 ms → 20 ms (4x faster)"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from ridgeline.claims import quantities as q
from ridgeline.claims.context import Context, Fact, create_finding, group_by_statement
from ridgeline.claims.finding import Finding
from ridgeline.claims.quantities import (
    SLACK,
    Interval,
    Quantity,
    compute_factor,
    divide,
    find_quantities,
    format_number,
    overlap,
)
from ridgeline.claims.sentences import take_unit

_FROM_TO = (
    r"\s*[,(]?\s?(?:→|->|=>|⇒|vs\.?|versus|compared (?:to|with)|instead of|(?:down|up) from|"
    r"(?:became|turned into|now (?:takes?|needs?|does|is|runs? (?:at|in))|(?:\w+ ){0,2}down to|"
    r"(?:went|fell|dropped|shrank|rose|grew) (?:down |up )?to)(?: only| just)?)\s*"
)
_BEFORE_NOW = r"\s*(?:before|previously|earlier|then)[,;]?\s(?:and\s)?"
_WORDS = (
    r"faster|slower|improv|reduc|better|less|fewer|smaller|more|lower|higher|gain|increase|decrease|saving|saved|"
    r"shorter|longer|cheaper|quicker"
)
_LESS = r"\s*(?:less|fewer|smaller|lower|reduc|decrease|saving|saved|shorter|cheaper)"
_MOVED = re.compile(
    r"\b(?:(?P<less>fell|drop(?:s|ped)?|shr[ai]nks?|falls?|cut|reduced|decreased|went down|is down)|"
    r"(?P<more>rose|rises?|grew|grows?|climbed|increased|went up|is up))\s(?:by\s)?\W*$",
    re.I,
)
_MORE = r"\s*(?:more|higher|gain|increase)"
_BY = re.compile(  # the words before the figure: "a reduction of 33 %"
    r"(?:\s\w+){0,2}\s*[,(:—–]?\s*(?:which is |that is )?an?\s(?:total |overall |net |relative )?"
    r"(?:(?P<less>reduction|decrease|drop|fall|cut|saving)|(?P<more>increase|rise|growth)|gain|improvement|speed-?up)"
    r"\s(?:of|by)\s",
    re.I,
)
_SETTING = re.compile(  # words before "from 100 to 150 ms" that mark a range or a setting
    r"\b(?:rang|vary|sweep|rais|increas|lower|chang|mov|go|sett|scal|ramp|push|driv|turn|tun)ing\b|"
    r"\b(?:ranges?|var(?:y|ies|ied)|swept|sweeps?|anywhere|load|limit|timeout|interval|budget|delay|target|offered)\b",
    re.I,
)
_ENDS = r"\s*(?:[.,;:!)—–]|$)"


def check_changes(context: Context) -> Iterator[Finding]:
    for facts in group_by_statement(context):
        yield from _check_changes(context, facts)
        yield from _check_improvements(context, facts)
        yield from _check_factor_between(context, facts)


def _check_changes(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """Check "80 ms → 20 ms (4x faster)", "from 12 ms to 3 ms, a 4x speedup"."""
    pairs = [(*pair, False) for pair in pairwise(facts)] + [(*pair, True) for pair in _find_rises(facts)]
    for first, second, risen in pairs:  # only words may be between them
        a, b = first.quantity, second.quantity
        between = first.text[a.end : b.start]
        a = take_unit(a, b)
        arrow = _is_change(first, second)
        counted = a.dims == q.NONE and (a.share or a.factor or not re.search(r"\bto\b", between))
        if not arrow or a.dims != b.dims or counted or a.bound or b.bound or not a.value or not b.value:
            continue
        after = _find_claims_after(facts, b)
        before = [f for f in facts if f.quantity.end <= a.start][-1:]
        before = [f for f in before if re.search(r"^[^)]*(?:\(|\bfrom\b|:)", f.text[f.quantity.end : a.start])]
        for claim in after + before:
            c = claim.quantity
            ratio = _compute_ratio(a, b)
            gap = first.text[b.end : c.start] if c.start >= b.end else first.text[c.end : a.start]
            if claim in after[1:]:
                gap = ""
            gap = re.sub(r"^, so (?:it|they|we|that|this) (?:is|are|was|were) ", ", ", gap)
            by = _BY.fullmatch(gap) if c.start >= b.end else None
            moved = _MOVED.search(first.text[max(0, c.start - 40) : c.start]) if c.share and c.start < a.start else None
            if risen and not (by or (moved and moved["more"]) or _stands_alone(gap, claim.tail)):
                continue
            if (
                len(gap) > (25 if ":" not in gap and not by else 40)
                or c.bound
                or c.top is not None
                or re.search(r"\b(?:and|but|while)\b|[.;]\s", gap)
            ):
                continue
            if c.factor and re.match(
                r"\s*(?:speed|faster|slower|improv|reduc|better|less|more|lower|higher|gain|increase|as fast|quicker|"
                r"shorter|cheaper|\)|$)",
                claim.tail,
                re.I,
            ):
                if not overlap(c.interval(1.0), ratio, SLACK):
                    value = compute_factor(a.value, b.value)
                    arithmetic = f"speed-up: {a.text} → {b.text} is a factor of {format_number(value)}, not {c.text}"
                    yield create_finding(context, claim, "speed-up", arithmetic, compute_factor(value, c.value), 0.92)
            elif c.share and moved:
                low, high = ratio
                option = (1 - 1 / low, 1 - 1 / high) if moved["less"] else (low - 1, high - 1)
                if not overlap(c.interval(1.0), option, SLACK):
                    base = max(a.value, b.value) if moved["less"] else min(a.value, b.value)
                    value = abs(a.value - b.value) / base
                    arithmetic = f"difference: {a.text} → {b.text} is {value:.1%}, not {c.text}"
                    yield create_finding(context, claim, "difference", arithmetic, compute_factor(value, c.value), 0.85)
            elif c.share and by and re.match(_ENDS, claim.tail):
                falls = b.value < a.value if _is_ordered_in_time(between) else None
                less, more = bool(by["less"]) and falls is not False, bool(by["more"]) and not falls
                yield from _check_percentage(context, claim, a, b, less, more)
            elif c.share and re.match(
                rf"\s*(?:{_WORDS}|\)$|\)[\s,.])" if gap.endswith(("(-", "(+", "(−")) else rf"\s*(?:{_WORDS})",
                claim.tail,
                re.I,
            ):
                falls = b.value < a.value if _is_ordered_in_time(between) else None
                less = bool(re.match(_LESS, claim.tail, re.I)) or (gap.endswith(("(-", "(−")) and falls is True)
                more = bool(re.match(_MORE, claim.tail, re.I)) or (gap.endswith("(+") and falls is False)
                yield from _check_percentage(context, claim, a, b, less, more and not less)


def _check_percentage(
    context: Context, claim: Fact, a: Quantity, b: Quantity, less: bool, more: bool
) -> Iterator[Finding]:
    """Check a percentage: of the larger figure if called less, of the smaller if called more, else of either."""
    (low, high), large, small = _compute_ratio(a, b), max(a.value, b.value), min(a.value, b.value)
    options = [((1 - 1 / low, 1 - 1 / high), 1 - small / large)] * (not more)
    options += [((low - 1, high - 1), large / small - 1)] * (not less)
    c = claim.quantity
    if not any(overlap(c.interval(1.0), ends, SLACK) for ends, _ in options):
        values = [value for _, value in options]
        amounts = " or ".join(f"{value:.1%}" for value in values)
        arithmetic = f"change: {a.text} → {b.text} is {amounts}, not {c.text}"
        yield create_finding(
            context, claim, "difference", arithmetic, min(compute_factor(value, c.value) for value in values), 0.85
        )


def _find_rises(facts: list[Fact]) -> Iterator[tuple[Fact, Fact]]:
    """Find "rose from 100 to 150 req/s": it looks like a range, and the first figure takes the unit of the second."""
    for fact in facts:
        stated = fact.quantity
        if stated.top is None or stated.bound or stated.dims not in (q.TIME, q.RATE, q.BANDWIDTH, q.FLOPS):
            continue
        joint = re.match(r"(\S+)\s?to\s?", stated.text)
        before = re.split(r"[.;,]\s", fact.text[: stated.start])[-1]
        if joint is None or not re.search(r"\bfrom\s$", before, re.I) or _SETTING.search(before):
            continue
        at = stated.start + joint.end()
        last = next(iter(find_quantities(fact.text[at:])), stated)
        if last.value == stated.top:
            first = replace(stated, top=None, text=joint[1], end=stated.start + joint.end(1))
            last = replace(last, start=at, end=at + last.end)
            yield replace(fact, quantity=first), replace(fact, quantity=last)


def _stands_alone(gap: str, tail: str) -> bool:
    """Whether a percentage has no other subject: "(+50 %)", ", 50 % more."."""
    return bool(re.fullmatch(r"\s*[,(:—–]?\s*(?:an? )?\+?", gap)) and bool(
        re.match(rf"{_ENDS}|\s*(?:{_WORDS})\w*{_ENDS}", tail, re.I)
    )


def _is_change(first: Fact, second: Fact) -> bool:
    """Whether one figure replaces another: "80 ms → 20 ms", "from 80 to 20 ms", "80 ms before, 20 ms now"."""
    a, b = first.quantity, second.quantity
    between = first.text[a.end : b.start]
    if re.fullmatch(_FROM_TO, between, re.I):
        return True
    if re.search(r"\bfrom\W*$", first.text[max(0, a.start - 12) : a.start], re.I):
        return re.fullmatch(r"\s*(?:down |up )?to\s*", between) is not None
    return bool(re.fullmatch(_BEFORE_NOW, between) and re.match(r"\s*(?:now|today|after)\b", second.tail))


def _find_claims_after(facts: list[Fact], last: Quantity) -> list[Fact]:
    """Return the claims after two figures; one may repeat the other: "4.2x as fast, or 320 % faster"."""
    behind = [f for f in facts if f.quantity.start >= last.end][:2]
    if len(behind) == 2:
        between = behind[0].text[behind[0].quantity.end : behind[1].quantity.start]
        if not re.fullmatch(r"\s*(?:as fast|faster)?,?\s(?:or|i\.e\.|that is)\s", between):
            behind = behind[:1]
    return behind


def _is_ordered_in_time(between: str) -> bool:
    """Whether the first figure is the earlier one."""
    return re.search(r"→|->|=>|⇒|\bto\b", between) is not None


def _compute_ratio(a: Quantity, b: Quantity) -> Interval:
    """Divide the larger by the smaller."""
    big, small = (a, b) if a.value >= b.value else (b, a)
    return divide(big.interval(), small.interval())


def _check_improvements(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """Check "310 texts/s. Now it does 2,480 texts/s, an 8.0x improvement"."""
    for now, claim in pairwise(facts):
        c, b = claim.quantity, now.quantity
        between = now.text[b.end : c.start]
        if not c.factor or c.bound or c.top is not None or b.bound or b.top is not None or not b.value:
            continue
        if not re.fullmatch(r"\s?[,(—–-]\s?(?:or |which is |i\.e\.,? )?(?:an? |about |roughly )?", between):
            continue
        if not re.match(
            r"\s*(?:improvement|increase|speed-?up|gain|reduction|faster|higher)\s*[).,;]|\s*$", claim.tail, re.I
        ):
            continue
        before = [f for f in facts if f.quantity.end <= b.start and f.quantity.dims == b.dims and f.quantity.value]
        if b.dims not in (q.RATE, q.TIME, q.BANDWIDTH) or len(before) != 1 or before[0].quantity.noun != b.noun:
            continue
        a = before[0].quantity
        if a.bound or a.top is not None or overlap(c.interval(1.0), _compute_ratio(a, b), SLACK):
            continue
        value = compute_factor(a.value, b.value)
        arithmetic = f"speed-up: {a.text} → {b.text} is a factor of {format_number(value)}, not {c.text}"
        yield create_finding(context, claim, "speed-up", arithmetic, compute_factor(value, c.value), 0.75)


def _check_factor_between(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """Check "80.6 tok/s, 2.1× the plain decoder's 38.2 tok/s"."""
    for first, claim, second in zip(facts, facts[1:], facts[2:], strict=False):
        a, b, c = first.quantity, second.quantity, claim.quantity
        if not c.factor or c.bound or c.top is not None or a.dims != b.dims or a.dims == q.NONE or not a.value:
            continue
        if a.bound or b.bound or a.top is not None or b.top is not None or a.noun != b.noun or not b.value:
            continue
        before, behind = first.text[a.end : c.start], first.text[c.end : b.start]
        if not re.fullmatch(r"\s?[,(—–:-]?\s?(?:is |or |which is |that is |i\.e\.,? )?(?:about |roughly )?", before):
            continue
        if not re.match(
            r"\s*(?:faster |more |higher |better )?(?:the|than|over|of|vs\.?|compared|against|as)\b", behind
        ):
            continue
        if len(behind) > 45 or re.search(r"[.;]\s|\band\b|\bbut\b", behind):
            continue
        if overlap(c.interval(1.0), _compute_ratio(a, b), SLACK):
            continue
        value = compute_factor(a.value, b.value)
        arithmetic = f"speed-up: {a.text} against {b.text} is a factor of {format_number(value)}, not {c.text}"
        yield create_finding(context, claim, "speed-up", arithmetic, compute_factor(value, c.value), 0.88)
