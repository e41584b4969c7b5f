"""Figures of one statement that must agree.

A share with its part and total, a count with its time and rate, weights with their size; and results that a sentence
computes: "1.8 TB in 12 minutes, which is 2.5 GB/s", "24 h at 500 events/s is 43.2 million events", "11.6 GB/s, that is
92.8 Gb/s", "on 16 workers that is 12,500 rows/s each". A result counts as such only if the words say so and the units
fit; any pair of figures that gives it, times a count of the statement, excuses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import DEVICE_WORDS
from ridgeline.claims.context import Context, Fact, create_finding, group_by_statement
from ridgeline.claims.finding import Finding
from ridgeline.claims.quantities import (
    SLACK,
    Dims,
    Interval,
    Quantity,
    compute_factor,
    divide,
    format_number,
    format_value,
    multiply,
    overlap,
)


def check_sentences(context: Context) -> Iterator[Finding]:
    for facts in group_by_statement(context):
        yield from _check_shares(context, facts)
        yield from _check_count_times_unit(context, facts)
        yield from _check_rate(context, facts)
        yield from _check_transfer(context, facts)
        yield from _check_part_of_total(context, facts)
        yield from _check_weights(context, facts)


def _check_shares(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """Check "45 GB/s (50 % of 90 GB/s)", "900 GB/s (90 % of theoretical peak)"."""
    for before, share, *rest in (facts[i:] for i in range(len(facts) - 1)):
        between = share.text[before.quantity.end : share.quantity.start]
        if not share.quantity.share or share.quantity.bound or before.quantity.bound or before.quantity.share:
            continue
        if before.quantity.dims == q.NONE or share.quantity.value <= 0 or not re.search(r"\(|=|,|is$|are$|:", between):
            continue
        behind = share.text[share.quantity.end :]
        of = re.match(r"\s*(?:utili[sz]ation\s+)?(?:of|vs\.?|/)\s+(?:the\s+)?(.*)", behind, re.I)
        if of is None:
            yield from _check_share_of_peak(context, facts, before, share)
            continue
        total = rest[0] if rest else None
        if re.match(r"(?:it|that|this|them)\b", of[1], re.I):
            total = _find_total(facts, before)
            if total is None:
                continue
            peaks = [total]
        elif (
            total
            and total.quantity.dims == before.quantity.dims
            and len(share.text[share.quantity.end : total.quantity.start]) < 40
        ):
            peaks = [total]
        elif re.match(r"(?:\w+[\s-]){0,3}(?:peak|theoretical|maximum|limit|ceiling|roof)", of[1], re.I):
            peaks = context.find_peaks(before.quantity.dims)
        else:
            continue
        if not peaks:
            continue
        part = before.quantity
        if any(
            overlap(share.quantity.interval(1.0), divide(part.interval(), p.quantity.interval()), SLACK) for p in peaks
        ):
            continue
        if total not in peaks and any(
            overlap(share.quantity.interval(1.0), divide(part.interval(), p))
            for p in _list_implied_peaks(context, part)
        ):
            continue  # a share of the peak that a table implies
        peak = min(peaks, key=lambda p: compute_factor(part.value / p.quantity.value, share.quantity.value))
        value = part.value / peak.quantity.value
        factor = compute_factor(share.quantity.value, value)
        arithmetic = (
            f"share: {part.text} / {peak.quantity.text} (line {peak.line}) = {value:.1%}, not {share.quantity.text}"
        )
        sure = 0.93 if peaks == [total] else 0.85 if factor < 3 else 0.6
        yield create_finding(context, share, "share", arithmetic, factor, sure)


def _check_share_of_peak(context: Context, facts: list[Fact], part: Fact, share: Fact) -> Iterator[Finding]:
    """Check "The peak is 3.35 TB/s; we reach 2.41 TB/s (72 %)"."""
    a, c = part.quantity, share.quantity
    if not re.fullmatch(r"\s?\(\s?", part.text[a.end : c.start]) or not re.match(r"\s?\)", share.tail):
        return
    totals = [f for f in facts if f.quantity.dims == a.dims and f.quantity.end <= a.start and f.quantity.value]
    if (
        len(totals) != 1
        or totals[0].quantity.bound
        or totals[0].quantity.value < a.value
        or not re.search(r"\b(?:peak|total|maximum|limit|ceiling)\b", totals[0].label, re.I)
    ):
        return
    low, high = divide(a.interval(), totals[0].quantity.interval())
    if any(overlap(c.interval(1.0), ends, SLACK) for ends in ((low, high), (1 - high, 1 - low))):
        return
    value = a.value / totals[0].quantity.value
    arithmetic = f"share: {a.text} / {totals[0].quantity.text} = {value:.1%}, not {c.text}"
    yield create_finding(context, share, "share", arithmetic, compute_factor(value, c.value), 0.8)


def _find_total(facts: list[Fact], part: Fact) -> Fact | None:
    """Find the total of "It has 80 GB; the run took 61 GB, 76 % of it": the only earlier figure of that kind.

    In "824 MB/s over a 10 Gbit/s line (66 % of it)" the part comes first.
    """
    totals = [f for f in facts if f.quantity.dims == part.quantity.dims and f.quantity.end <= part.quantity.start]
    if len(totals) != 1 or totals[0].quantity.bound or totals[0].quantity.value < part.quantity.value:
        return None
    return totals[0]


def _list_implied_peaks(context: Context, part: Quantity) -> list[Interval]:
    """List the peaks that the shares in tables imply, for quantities of one kind."""
    return [
        divide(cell.interval(), share.interval())
        for _, columns in context.tables
        for column in columns
        if column.dims == part.dims
        for shares in columns
        if shares.role in ("share", "efficiency")
        for cell, share in zip(column.cells, shares.cells, strict=True)
        if cell is not None and share is not None and share.value > 0
    ]


def _check_count_times_unit(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """Check "50K steps: 2.8 hours" against "200 ms per step" anywhere."""
    for fact in facts:
        noun = fact.quantity.noun.rstrip("s")
        if fact.quantity.dims != q.NONE or len(noun) < 3 or fact.quantity.value < 10 or fact.quantity.share:
            continue
        if re.search(DEVICE_WORDS, noun + "s"):
            continue
        spans = [
            f
            for f in facts
            if f.quantity.dims == q.TIME and f.quantity.start > fact.quantity.end and "per" not in f.quantity.unit
        ]
        colon = re.match(r"\s*\w*\s*(?::|in\b|takes?\b|took\b|=)", fact.tail[:40])
        unit = [
            f
            for f in context.facts
            if re.search(rf"\b(?:per|an?|each|every) {noun}\b", f.quantity.unit + f.tail[:15])
            and f.quantity.dims == q.TIME
            and f.line != fact.line
        ]
        if not spans or not unit or not colon or re.search(r"\bsav", spans[0].label):
            continue
        stated = spans[0]
        rates = [f.quantity for f in context.facts if f.quantity.dims == q.RATE and noun in f.quantity.noun]
        count = fact.quantity.interval(0.0)
        by_unit = [multiply(count, f.quantity.interval()) for f in unit]
        by_rate = [divide(count, r.interval()) for r in rates if r.value]
        if any(overlap(stated.quantity.interval(1.0), c, 0.02) for c in by_unit + by_rate):
            continue
        nearest = min(unit, key=lambda f: abs(f.line - fact.line))
        value = fact.quantity.value * nearest.quantity.value
        factor = compute_factor(stated.quantity.value, value)
        sides = f"{fact.quantity.text} × {nearest.quantity.text} (line {nearest.line}) = {format_value(value, q.TIME)}"
        arithmetic = f"total = count × unit: {sides}, not {stated.quantity.text}"
        yield create_finding(context, stated, "total", arithmetic, factor, 0.8)


def _check_rate(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """Check "6,000 texts in 2.00 s (3,000 texts/s)"."""
    counts = [
        f
        for f in facts
        if f.quantity.dims == q.NONE and f.quantity.noun and not f.quantity.share and not f.quantity.factor
    ]
    rates = [f for f in facts if f.quantity.dims == q.RATE and f.quantity.noun]
    for count in counts:
        span = next((f for f in facts if f.quantity.dims == q.TIME and f.quantity.start > count.quantity.end), None)
        sentence_rates = [r for r in rates if r.sentence == count.sentence] or rates
        same = [
            r for r in sentence_rates if _is_same_noun(r.quantity.noun, count.quantity.noun) and not r.quantity.bound
        ]
        if (
            span is None
            or len(same) != 1
            or not re.search(r"\bin (?:just |only |about )?[~≈]?$", count.text[: span.quantity.start])
        ):
            continue
        if count.quantity.bound or span.quantity.bound or not span.quantity.value:
            continue
        rate, value = same[0].quantity, count.quantity.value / span.quantity.value
        if overlap(rate.interval(1.0), divide(count.quantity.interval(), span.quantity.interval()), SLACK):
            continue
        sides = f"{count.quantity.text} / {span.quantity.text} = {format_value(value, q.RATE)}"
        arithmetic = f"rate = count / time: {sides}, not {rate.text}"
        yield create_finding(context, same[0], "rate", arithmetic, compute_factor(rate.value, value), 0.92)


def _check_transfer(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """Check "18.4 TB in 6 h 12 min, which is 824 MB/s"."""
    for size, span, rate in zip(facts, facts[1:], facts[2:], strict=False):
        a, b, c = size.quantity, span.quantity, rate.quantity
        if (a.dims, b.dims, c.dims) != (q.BYTES, q.TIME, q.BANDWIDTH) or a.bound or b.bound or c.bound or not b.value:
            continue
        if not re.fullmatch(r"\s(?:\w+\s){0,3}in\s(?:just |only |about )?", size.text[a.end : b.start]):
            continue
        if not re.fullmatch(
            r"\s?[,(:=—-]?\s?(?:which is |that is |or |i\.e\.,? |at |a rate of )?", size.text[b.end : c.start]
        ):
            continue
        computed = divide(a.interval(), b.interval())
        mixed = [(computed[0] * mix, computed[1] * mix) for mix in (1, 1.024**2, 1.024**3, 1 / 1.024**2, 1 / 1.024**3)]
        if not any(overlap(c.interval(1.0), ends, SLACK) for ends in mixed):
            value = a.value / b.value
            arithmetic = f"bandwidth: {a.text} / {b.text} = {format_value(value, q.BANDWIDTH)}, not {c.text}"
            yield create_finding(context, rate, "bandwidth", arithmetic, compute_factor(value, c.value), 0.9)


def _check_part_of_total(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """Check "6.2 GB of 64 GB (9.7 %)", "412 out of 500 requests (82.4 %)"."""
    for part, total, share in zip(facts, facts[1:], facts[2:], strict=False):
        a, b, c = part.quantity, total.quantity, share.quantity
        a = take_unit(a, b)
        of = re.fullmatch(r"\s*(?:\w+\s)?(?:out )?(?:of|/)\s(?:the\s|a total of\s)?", part.text[a.end : b.start])
        if not of or not c.share or not re.fullmatch(r"\s*(?:\w+\s?){0,2}[(,]\s*", total.text[b.end : c.start]):
            continue
        if a.dims != b.dims or a.bound or b.bound or c.bound or not a.value or not b.value or a.share:
            continue
        if re.match(r"\s*\w*\s*(?:less|more|faster|slower|lower|higher|reduc|sav|free|left|unused|idle)", share.tail):
            continue
        computed = divide(a.interval(), b.interval())
        if not overlap(c.interval(1.0), computed, SLACK) and not overlap(
            c.interval(1.0), (1 - computed[1], 1 - computed[0])
        ):
            value = a.value / b.value
            arithmetic = f"share: {a.text} / {b.text} = {value:.1%}, not {c.text}"
            yield create_finding(context, share, "share", arithmetic, compute_factor(value, c.value), 0.88)


_TYPES = {"fp32": 4, "float32": 4, "fp16": 2, "float16": 2, "bf16": 2, "bfloat16": 2, "int8": 1, "fp8": 1, "int4": 0.5}


def _check_weights(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """Check "109M parameters (436 MB in fp32)"."""
    for count, size in pairwise(facts):
        between = count.text[count.quantity.end : size.quantity.start]
        named = re.match(r"\s*(?:of weights )?(?:in|at|as) (\w+)\s*[),.;]", size.tail)
        width = _TYPES.get(named[1].lower()) if named else None
        if width is None or size.quantity.dims != q.BYTES or not re.match(r"\s*param\w*\s*[(,:]|\s*[(,]", between):
            continue
        if not count.quantity.noun.startswith("param") and "param" not in between:
            continue
        computed = multiply(count.quantity.interval(), (width, width))
        stated, value = size.quantity.interval(1.0), count.quantity.value * width
        if (
            count.quantity.bound
            or size.quantity.bound
            or any(overlap((stated[0] * mix, stated[1] * mix), computed, 0.02) for mix in (1, 1.024**2, 1.024**3))
        ):
            continue
        arithmetic = (
            f"size: {count.quantity.text} × {width} B = {format_value(value, q.BYTES)}, not {size.quantity.text}"
        )
        yield create_finding(context, size, "size", arithmetic, compute_factor(value, size.quantity.value), 0.8)


def _is_same_noun(a: str, b: str) -> bool:
    return a.rstrip("s") == b.rstrip("s")


def take_unit(bare: Quantity, other: Quantity) -> Quantity:
    """Give a number without a unit that of the next one: "64 of 340 ms", "1,250 vs 432 images/s"."""
    if (
        bare.dims != q.NONE
        or bare.unit
        or bare.noun not in ("", "of", "out", "vs", "versus", "to")
        or not other.written
    ):
        return bare
    scale = other.value / other.written
    return replace(bare, value=bare.value * scale, step=bare.step * scale, loose=bare.loose * scale, dims=other.dims)


_ABOUT = r"\s*(?:about |roughly |around |some |only |just |nearly |almost |an? )?[~≈]?\s*$"
_SURELY = re.compile(
    rf"(?:\bthat is|\bthat's|\bwhich is|\bi\.e\.,?|=|\bequals|\bmakes|\bgives|\bcomes to){_ABOUT}", re.I
)
_LIKELY = re.compile(rf"(?:\bis|\bare|:|\(|\bor|\bcosts?|\bused?|\bat|\btakes?|\btook){_ABOUT}", re.I)
_SO = r"\s*(?:and |or |so |but )?(?:that |which |this |it )?\s*$"
_NEW_CLAUSE = re.compile(rf"(?:\b(?:and|but|while|then)\b|[,;:(])(?!{_SO})", re.I)
_NAMED = re.compile(rf"[,;]\s*(?P<name>[^,;:=]*[^\s,;:=])\s*[:=]{_ABOUT}")
_RESULT = re.compile(  # names of a figure that follows from others
    r"(?:the |an? )?(?:(?:total|whole|overall|mean|copy|transfer|read|write|scan|run|wall) )?"
    r"(?:time|duration|runtime|total|rate|throughput|speed|bandwidth|costs?|bill|energy|size|volume|sum|processed)|"
    r".*\b(?:is|are|makes?|gives|in all|in total|together)",
    re.I,
)
_EACH = re.compile(r"\W*(?:each|apiece)\b", re.I)
_PARTS = re.compile(r"\b(?:each|every|per)\b", re.I)
_ALL = re.compile(r"\W*(?:in (?:total|all|aggregate)|together|altogether|combined|overall)\b", re.I)
_SHARED = re.compile(rf"(?:per|/)\s?{DEVICE_WORDS.replace(chr(92) + 'b', '', 1)}", re.I)
_OTHER_MEANING = re.compile(
    r"\b(?:peak|max\w*|up to|burst|target|expect\w*|would|could|limit|theor\w*|budget|than|instead)\b", re.I
)
_BITS = re.compile(r"\b[KMGT]?(?:b\b|bits?|bps)")
_MAX_FACTS_BACK, _MAX_CHARACTERS_BACK = 4, 140  # the search for the inputs of a result
_MAX_FIGURES = 60  # of a statement; more are data
_MIN_FACTOR = 1.03  # a smaller gap may come from rounding in between
_MIXES = (1.0, 1.024, 1.024**2, 1.024**3, 1.024**4)
_RESULT_DIMS = (q.TIME, q.RATE, q.BANDWIDTH, q.BYTES, q.MONEY, q.ENERGY, q.POWER)


def check_results(context: Context) -> Iterator[Finding]:
    for facts in group_by_statement(context):
        for index, fact in enumerate(facts) if len(facts) <= _MAX_FIGURES else ():
            if not _is_exact(fact.quantity):
                continue
            yield from _check_second_unit(context, facts, index)
            yield from _check_per_device(context, facts, index)
            yield from _check_device_total(context, facts, index)
            yield from _check_result(context, facts, index)


def _is_exact(one: Quantity) -> bool:
    return not (one.bound or one.share or one.factor or one.top is not None or one.value <= 0)


def _check_second_unit(context: Context, facts: list[Fact], index: int) -> Iterator[Finding]:
    """Check the same figure in another unit: "11.6 GB/s, that is 92.8 Gb/s", "2.9 GB/s (23.2 Gb/s)"."""
    fact, before = facts[index], facts[index - 1] if index else None
    stated = fact.quantity
    if before is None or not _is_exact(before.quantity) or stated.dims == q.NONE or before.quantity.dims != stated.dims:
        return
    between = fact.text[before.quantity.end : stated.start]
    first = before.quantity
    if first.unit == stated.unit or len(between) > 40 or re.search(r"[.;]\s", between):
        return
    inside = re.fullmatch(r"\s?\(\s?[~≈]?", between) and re.match(r"\s?\)", fact.tail)
    if not (inside or _says_equal(between)):
        return
    if stated.noun != first.noun or _SHARED.search(stated.unit + first.unit) or _EACH.match(fact.tail):
        return
    factor = compute_factor(stated.value, first.value)
    mixes = (1.0,) if _BITS.search(f"{stated.unit} {first.unit}") else _list_unit_mixes()  # bits never come in 1,024s
    if _MIN_FACTOR < factor < 4 and not any(
        overlap(stated.interval(1.0), _scale(first.interval(1.0), m), 0.005) for m in mixes
    ):
        same = first.value * stated.written / stated.value
        arithmetic = f"stated twice: {first.text} is {format_number(same)} {stated.unit}, not {stated.text}"
        yield create_finding(context, fact, "restated", arithmetic, factor, 0.85)


def _says_equal(between: str) -> bool:
    """Whether the words say that two figures are equal: "of payload, that is"; but not ", p99 ="."""
    sure = _SURELY.search(between)
    if sure is None or _OTHER_MEANING.search(between):
        return False
    if sure[0].startswith("="):
        return re.fullmatch(r"\s*(?:of\s(?:\w+\s?){1,3})?[,(]?\s*", between[: sure.start()]) is not None
    return not _NEW_CLAUSE.search(between[: sure.start()])


def _check_per_device(context: Context, facts: list[Fact], index: int) -> Iterator[Finding]:
    """Check "4,576 images/s on 8 GPUs, that is 572 images/s per GPU"."""
    fact = facts[index]
    stated = fact.quantity
    if stated.dims in (q.NONE, q.TIME) or not (_EACH.match(fact.tail) or _SHARED.search(stated.unit + fact.tail[:14])):
        return
    nearby = facts[max(0, index - _MAX_FACTS_BACK) : index]
    heads = [f for f in nearby if _is_device_count(f) and f.quantity.value > 1]
    wholes = [
        f
        for f in facts[:index]
        if _is_exact(f.quantity) and f.quantity.dims == stated.dims and _counts_same_things(f, fact)
    ]
    wholes = [f for f in wholes if not _EACH.match(f.tail) and not _SHARED.search(f.quantity.unit)]
    if len(heads) != 1 or not wholes or len(fact.text[heads[0].quantity.end : stated.start]) > _MAX_CHARACTERS_BACK:
        return
    count = heads[0].quantity.value
    options = [_scale(f.quantity.interval(), 1 / count) for f in wholes]
    if any(overlap(stated.interval(1.0), _scale(o, m), 0.01) for o in options for m in _list_unit_mixes()):
        return
    total = wholes[-1]
    value = total.quantity.value / count
    factor = compute_factor(value, stated.value)
    if factor > _MIN_FACTOR:
        sides = f"{total.quantity.text} / {heads[0].quantity.text} = {format_value(value, stated.dims)}"
        yield create_finding(context, fact, "rate", f"each: {sides}, not {stated.text}", factor, 0.8)


def _check_device_total(context: Context, facts: list[Fact], index: int) -> Iterator[Finding]:
    """Check "Each of the 24 nodes holds 6.2 TB, 149 TB in total"; "8 × 80 GB of memory (640 GB)"."""
    fact = facts[index]
    stated = fact.quantity
    ours = [f for f in facts[:index] if f.sentence == fact.sentence and _is_exact(f.quantity)]
    similar = [f for f in ours if f.quantity.dims == stated.dims and _counts_same_things(f, fact)]
    if stated.dims == q.NONE or not similar or _OTHER_MEANING.search(fact.sentence):
        return
    part = similar[-1].quantity
    by = re.search(r"(\d+)\s?[x×]\s?$", fact.text[: part.start])
    beside = re.fullmatch(r"(?:\s\w+){0,4}\s?\(\s?", fact.text[part.end : stated.start]) and re.match(
        r"\s?\)", fact.tail
    )
    heads = [f.quantity.value for f in ours if _is_device_count(f)]
    if by and beside:
        heads = [float(by[1])]
    elif not (_ALL.match(fact.tail) and _PARTS.search(fact.sentence) and len(heads) == len(similar) == 1):
        return
    value = heads[0] * part.value
    factor = compute_factor(value, stated.value)
    if factor > _MIN_FACTOR and not any(
        overlap(stated.interval(1.0), _scale(part.interval(), heads[0] * m), 0.01) for m in _list_unit_mixes()
    ):
        arithmetic = f"total: {heads[0]:g} × {part.text} = {format_value(value, stated.dims)}, not {stated.text}"
        yield create_finding(context, fact, "total", arithmetic, factor, 0.82)


def _check_result(context: Context, facts: list[Fact], index: int) -> Iterator[Finding]:
    fact = facts[index]
    stated = fact.quantity
    between = fact.text[facts[index - 1].quantity.end : stated.start] if index else ""
    sure, likely = _SURELY.search(between), _LIKELY.search(between)
    if not (sure or likely) or len(between) > 60 or _OTHER_MEANING.search(fact.sentence) or _EACH.match(fact.tail):
        return
    name = _NAMED.search(between)
    if name and not _RESULT.fullmatch(name["name"]):
        return  # an item of a list: "link = 10 GB/s, timeout = 90 s"
    if (stated.dims not in _RESULT_DIMS and not (stated.dims == q.NONE and stated.noun)) or _SHARED.search(
        stated.unit + fact.tail[:14]
    ):
        return
    nearby = [f for f in facts[max(0, index - _MAX_FACTS_BACK) : index] if _is_exact(f.quantity)]
    nearby = [f for f in nearby if len(f.text[f.quantity.end : stated.start]) < _MAX_CHARACTERS_BACK]
    pairs = _list_pairs(nearby if sure else [f for f in nearby if not _is_device_count(f)][-2:], fact)
    pairs = [p for p in pairs if sure or p[0].sentence == p[1].sentence == fact.sentence]
    if not pairs:
        return
    heads = [f.quantity.value for f in facts if f.quantity.dims == q.NONE and 1 < f.quantity.value < 1e6]
    wide = [f for f in context.facts if f.section == fact.section and f is not fact and _is_exact(f.quantity)]
    excuses = [ends for *_, ends, _ in (*pairs, *_list_pairs(wide[-40:], fact))]
    excuses += [
        f.quantity.interval() for f in wide if f.quantity.dims == stated.dims and f.quantity.noun == stated.noun
    ]
    factors = [m * h for m in _list_unit_mixes() for h in (1.0, *heads, *(1 / h for h in heads))]
    if any(overlap(stated.interval(1.0), _scale(ends, m), 0.01) for ends in excuses for m in factors):
        return
    value, _, words = pairs[-1][2:]
    factor = compute_factor(value, stated.value)
    if factor > _MIN_FACTOR:
        arithmetic = (
            f"{_KIND.get(stated.dims, 'total')}: {words} = {format_value(value, stated.dims)}, not {stated.text}"
        )
        yield create_finding(context, fact, _KIND.get(stated.dims, "total"), arithmetic, factor, 0.85 if sure else 0.75)


_KIND = {q.RATE: "rate", q.BANDWIDTH: "bandwidth", q.MONEY: "cost", q.BYTES: "size"}
Pair = tuple[Fact, Fact, float, Interval, str]


def _list_pairs(facts: Sequence[Fact], target: Fact) -> list[Pair]:
    """List every pair of facts that multiplies or divides to the kind of the target."""
    out: list[Pair] = []
    for first, second in combinations(facts, 2):
        for a, b, power in ((first, second, 1), (first, second, -1), (second, first, -1)):
            dims = q.combine_dims(a.quantity.dims, b.quantity.dims, power)
            if dims != target.quantity.dims or not _is_meaningful(a, b, power, target):
                continue
            x, y = a.quantity.interval(), b.quantity.interval()
            ends = multiply(x, y) if power > 0 else divide(x, y)
            words = f"{a.quantity.text} {'×' if power > 0 else '/'} {b.quantity.text}"
            value = a.quantity.value * b.quantity.value**power
            out.append((first, second, value, ends, words))
    return out


def _is_meaningful(a: Fact, b: Fact, power: int, target: Fact) -> bool:
    """Whether both count the same things: rows in 20 minutes give rows per second."""
    kinds: set[Dims] = {a.quantity.dims, b.quantity.dims}
    if target.quantity.dims == q.NONE:
        return (
            power > 0
            and kinds == {q.RATE, q.TIME}
            and _counts_same_things(a if a.quantity.dims == q.RATE else b, target)
        )
    if target.quantity.dims == q.TIME and kinds == {q.NONE, q.RATE}:
        return power < 0 and a.quantity.dims == q.NONE and _counts_same_things(a, b) and bool(a.quantity.noun)
    if target.quantity.dims == q.RATE:
        return kinds == {q.NONE, q.TIME} and power < 0 and _counts_same_things(a, target) and bool(target.quantity.noun)
    if q.NONE in kinds or kinds == {target.quantity.dims}:
        return False  # a count of unknown things
    if target.quantity.dims == q.TIME:
        return kinds == {q.BYTES, q.BANDWIDTH}
    return True


def _is_device_count(fact: Fact) -> bool:
    return (
        fact.quantity.dims == q.NONE
        and re.search(DEVICE_WORDS, fact.quantity.noun) is not None
        and _is_exact(fact.quantity)
    )


def _counts_same_things(a: Fact, b: Fact) -> bool:
    return a.quantity.noun.rstrip("s") == b.quantity.noun.rstrip("s")


def _list_unit_mixes() -> tuple[float, ...]:
    return (*_MIXES, *(1 / mix for mix in _MIXES[1:]))


def _scale(ends: Interval, factor: float) -> Interval:
    return ends[0] * factor, ends[1] * factor
