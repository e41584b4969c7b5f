"""Changes within a statement: two figures and the factor or percentage between them, "80 ms → 20 ms (4x faster)"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from ridgeline.claims import quantities as q
from ridgeline.claims.context import Context, Fact
from ridgeline.claims.finding import CERTAIN, LIKELY, Finding
from ridgeline.claims.quantities import (
    SLACK,
    Interval,
    Quantity,
    compute_factor,
    divide,
    find_quantities,
    format_number,
    overlap,
    take_unit,
)
from ridgeline.claims.ratios import is_exact

_FROM_TO = re.compile(
    r"\s*[,(]?\s?(?:→|->|=>|⇒|(?:vs\.?|versus)(?:\s[A-Za-z][\w.+-]*){0,2}|compared (?:to|with)|instead of|"
    r"(?:down|up) from|"
    r"(?:became|now (?:takes?|needs?|does|is|runs? (?:at|in))|(?:\w+ ){0,2}down to|"
    r"(?:went|fell|dropped|shrank|rose|grew) (?:down |up )?to)(?: only| just)?)\s*",
    re.I,
)
_IN_TIME = re.compile(r"→|->|=>|⇒|\bto\b")  # the first figure is the earlier one
_LESS = r"less|fewer|smaller|lower|reduc\w*|decrease|saving|saved|shorter|cheaper|drop|cut"
_MORE = r"more|higher|increase|growth|rise"
_BETTER = r"faster|slower|improve\w*|better|gain|speed-?up|quicker|longer|as fast"
_CLAIM_TAIL = re.compile(  # "4x less." is about the figures, "4x less memory" may not be
    rf"\s*(?:(?:(?P<less>{_LESS})|(?P<more>{_MORE})|(?P<better>{_BETTER}|gap|difference|overhead))"
    r"(?=\W*$|\s*[).,;:!—–(]|"
    r"\s(?:than|for|on|in|at|with|when|vs|over|compared|performance|latency|throughput|speed)\b)|"
    r"(?P<end>\)|$|[.,;]\s|[.]$))",
    re.I,
)
_THEN = re.compile(
    r"(?:\s[A-Za-z]+){0,2}\)?\s*[,(:=—–-]?\s*"
    r"(?:so it is |or |which is |that is |i\.e\.,? |is |an? |about |roughly )*[~≈+−-]?"
)
_BY = re.compile(  # the words before the claim: "a reduction of 33 %"
    rf"(?:\s\w+){{0,2}}\s*[,(:—–]?\s*(?:which is |that is )?an?\s(?:total |overall |net )?"
    rf"(?:(?P<less>{_LESS})|(?P<more>{_MORE})|(?:{_BETTER}))\s(?:of|by)\s",
    re.I,
)
_CLAIM_FIRST = re.compile(
    rf"\s*(?:{_LESS}|{_MORE}|{_BETTER})?(?:\s[A-Za-z-]+){{0,3}}\s*(?:\(\s*(?:from\s)?|:\s*(?:from\s)?|,?\sfrom\s)", re.I
)
_MOVED = re.compile(
    r"\b(?:(?P<less>fell|drop(?:s|ped)?|falls?|cuts?|reduce[sd]?|decreased?|is down)|"
    r"(?P<more>rose|rises?|grew|grows?|increased?|is up))\b[^.;,]{0,60}?\bby\s\W*$|"
    r"\b(?:is|are|was|were|went|goes|go)\s(?:(?P<down>down)|(?P<up>up))\s$",
    re.I,
)
_SETTING = re.compile(  # words before "from 100 to 150 ms" that mark a range or a setting
    r"\b(?:rang|vary|sweep|rais|increas|lower|chang|mov|go|sett|scal|ramp|push|driv|turn|tun)ing\b|"
    r"\b(?:ranges?|var(?:y|ies|ied)|swept|sweeps?|anywhere|load|limit|timeout|interval|budget|delay|target|offered)\b",
    re.I,
)


def check_changes(context: Context) -> Iterator[Finding]:
    """Check every claimed factor or percentage beside the two figures that it compares."""
    for facts in context.group_by_statement():
        split = [part for fact in facts for part in _split_range(fact)]
        for index, (first, second) in enumerate(pairwise(split)):
            if _is_change(first, second):
                claims = [_check_claim_ahead(context, split, index), _check_claim_behind(context, split, index)]
                wrong = [findings for findings in claims if findings is not None]
                if wrong and all(wrong):  # if one claim fits, the other one is about other figures
                    yield from wrong[0]
        for first, claim, second in zip(facts, facts[1:], facts[2:], strict=False):
            yield from _check_factor_between(context, first, claim, second)


def _split_range(fact: Fact) -> list[Fact]:
    """Split "from 100 to 150 req/s" into two facts: it looks like a range."""
    stated = fact.quantity
    joint = re.match(r"(\S+)\s?to\s?", stated.text) if stated.top is not None and not stated.bound else None
    before = re.split(r"[.;,]\s", fact.text[: stated.start])[-1]
    if joint is None or not re.search(r"\bfrom\s$", before, re.I) or _SETTING.search(before):
        return [fact]
    start = stated.start + joint.end()
    last = next(iter(find_quantities(fact.text[start:])), None)
    if last is None or last.value != stated.top:
        return [fact]
    first = replace(stated, top=None, text=joint[1], end=stated.start + joint.end(1))
    last = replace(last, start=start, end=start + last.end)
    return [replace(fact, quantity=first), replace(fact, quantity=last)]


def _is_change(first: Fact, second: Fact) -> bool:
    """Whether one figure replaces another: "80 ms → 20 ms", "from 80 to 20 ms", "80 ms vs 20 ms"."""
    before, after = take_unit(first.quantity, second.quantity), second.quantity
    if before.dims != after.dims or not (is_exact(before) and is_exact(after)) or before.factor or after.factor:
        return False
    if before.share or after.share:
        return False
    between = first.text[before.end : after.start]
    if before.dims == q.NONE and not re.search("→|->", between):
        return False  # "from 1 to 8 GPUs" is a setting
    if _FROM_TO.fullmatch(between):
        return True
    is_from = re.search(r"\bfrom\W*$", first.text[max(0, before.start - 12) : before.start], re.I)
    return is_from is not None and re.fullmatch(r"\s*(?:\w+\s)?(?:down |up )?to\s*", between) is not None


def _check_claim_behind(context: Context, facts: list[Fact], index: int) -> list[Finding] | None:
    """Check "80 ms → 20 ms (4x faster)", "from 30 ms to 20 ms, a reduction of 33 %"; None if there is no claim."""
    if index + 2 >= len(facts):
        return None
    first, second, claim = facts[index : index + 3]
    gap = claim.text[second.quantity.end : claim.quantity.start]
    tail = _CLAIM_TAIL.match(claim.tail)
    by = _BY.fullmatch(gap)
    if not (by or _THEN.fullmatch(gap)) or tail is None or not is_exact(claim.quantity):
        return None
    if claim.quantity.share and tail["end"] is not None and not by and not re.search(r"\(\s*[~≈+−-]?$", gap):
        return None  # "80 ms → 20 ms, 40 %." may be about something else
    words = by or tail
    return list(_check_claim(context, claim, first, second, bool(words["less"]), bool(words["more"])))


def _check_claim_ahead(context: Context, facts: list[Fact], index: int) -> list[Finding] | None:
    """Check "4x faster (80 ms vs 20 ms)", "cuts the cost by 22 % (428 → 335 ns)"; None if there is no claim."""
    if index == 0:
        return None
    claim, first, second = facts[index - 1 : index + 2]
    tail, gap = _CLAIM_TAIL.match(claim.tail), claim.text[claim.quantity.end : first.quantity.start]
    moved = _MOVED.search(claim.text[max(0, claim.quantity.start - 90) : claim.quantity.start])
    if not _CLAIM_FIRST.fullmatch(gap) or not is_exact(claim.quantity) or re.match(r"\s*=", second.tail):
        return None
    named = moved or (tail if tail is not None and tail["end"] is None else None)
    if named is None:
        return None
    less, more = (
        (moved["less"] or moved["down"], moved["more"] or moved["up"]) if moved else (named["less"], named["more"])
    )
    return list(_check_claim(context, claim, first, second, bool(less), bool(more)))


def _check_claim(context: Context, claim: Fact, first: Fact, second: Fact, less: bool, more: bool) -> Iterator[Finding]:
    """Check a factor, or a percentage: of the earlier figure if the words say less or more, else of either."""
    stated, after = claim.quantity, second.quantity
    before = take_unit(first.quantity, after)
    ratio, value = _compute_ratio(before, after)
    words = f"{before.text} → {after.text}"
    if stated.factor:
        if not overlap(stated.interval(1.0), ratio, SLACK):
            arithmetic = f"ratio: {words} is a factor of {format_number(value)}, not {stated.text}"
            yield context.report(claim, "ratio", arithmetic, compute_factor(value, stated.value), CERTAIN)
    elif stated.share:
        in_time = _IN_TIME.search(first.text[before.end : after.start]) is not None
        falls = after.value < before.value
        of_larger = ((1 - 1 / ratio[0], 1 - 1 / ratio[1]), 1 - 1 / value)
        of_smaller = ((ratio[0] - 1, ratio[1] - 1), value - 1)
        options = [of_larger, of_smaller]
        if in_time and ((less and falls) or (more and not falls)):
            options = [of_larger] if less else [of_smaller]
        if not any(overlap(stated.interval(1.0), interval, SLACK) for interval, _ in options):
            amounts = " or ".join(f"{amount:.1%}" for _, amount in options)
            arithmetic = f"change: {words} is {amounts}, not {stated.text}"
            factor = min(compute_factor(amount, stated.value) for _, amount in options)
            yield context.report(claim, "change", arithmetic, factor, LIKELY)


def _compute_ratio(first: Quantity, second: Quantity) -> tuple[Interval, float]:
    """Divide the larger by the smaller."""
    large, small = (first, second) if first.value >= second.value else (second, first)
    return divide(large.interval(), small.interval()), large.value / small.value


def _check_factor_between(context: Context, first: Fact, claim: Fact, second: Fact) -> Iterator[Finding]:
    """Check "80.6 tok/s, 2.1× the plain decoder's 38.2 tok/s"."""
    one, stated, other = first.quantity, claim.quantity, second.quantity
    if not stated.factor or one.dims != other.dims or one.dims == q.NONE or one.noun != other.noun:
        return
    if not (is_exact(one) and is_exact(stated) and is_exact(other)):
        return
    ahead, behind = first.text[one.end : stated.start], first.text[stated.end : other.start]
    if not re.fullmatch(r"\s?[,(—–:=-]?\s?(?:is |or |which is |that is |i\.e\.,? )?(?:about |roughly )?", ahead):
        return
    if not re.match(r"\s*(?:faster |more |higher |better )?(?:the|than|over|of|vs\.?|compared|against|as)\b", behind):
        return
    if len(behind) > 45 or re.search(r"[.;)]|\band\b|\bbut\b", behind):
        return
    ratio, value = _compute_ratio(one, other)
    if not overlap(stated.interval(1.0), ratio, SLACK):
        arithmetic = f"ratio: {one.text} against {other.text} is a factor of {format_number(value)}, not {stated.text}"
        yield context.report(claim, "ratio", arithmetic, compute_factor(value, stated.value), LIKELY)
