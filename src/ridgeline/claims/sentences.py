"""What one statement says: a share beside its part and its peak, a count beside its time, weights beside their size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import COUNTED
from ridgeline.claims.context import Context, Fact, by_line, say
from ridgeline.claims.finding import SLACK, Finding, Interval, apart, over, overlap, shown, times
from ridgeline.claims.quantities import Quantity


def check(context: Context) -> Iterator[Finding]:
    for facts in by_line(context):
        yield from _shares(context, facts)
        yield from _counted(context, facts)
        yield from _in_time(context, facts)
        yield from _carried(context, facts)
        yield from _parts(context, facts)
        yield from _weights(context, facts)


def _shares(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """ "45 GB/s (50 % of 90 GB/s)", "900 GB/s (90 % of theoretical peak)"."""
    for before, share, *rest in (facts[i:] for i in range(len(facts) - 1)):
        between = share.text[before.quantity.end : share.quantity.start]
        if not share.quantity.share or share.quantity.bound or before.quantity.bound or before.quantity.share:
            continue
        if before.quantity.dims == q.NONE or share.quantity.value <= 0 or not re.search(r"\(|=|,|is$|are$|:", between):
            continue
        behind = share.text[share.quantity.end :]
        of = re.match(r"\s*(?:utili[sz]ation\s+)?(?:of|vs\.?|/)\s+(?:the\s+)?(.*)", behind, re.I)
        if of is None:
            yield from _beside(context, facts, before, share)
            continue
        whole = rest[0] if rest else None
        if re.match(r"(?:it|that|this|them)\b", of[1], re.I):
            whole = _meant(facts, before)
            if whole is None:
                continue
            peaks = [whole]
        elif (
            whole
            and whole.quantity.dims == before.quantity.dims
            and len(share.text[share.quantity.end : whole.quantity.start]) < 40
        ):
            peaks = [whole]
        elif re.match(r"(?:\w+[\s-]){0,3}(?:peak|theoretical|maximum|limit|ceiling|roof)", of[1], re.I):
            peaks = context.peaks(before.quantity.dims)
        else:
            continue
        if not peaks:
            continue
        part = before.quantity
        if any(
            overlap(share.quantity.interval(1.0), over(part.interval(), p.quantity.interval()), SLACK) for p in peaks
        ):
            continue
        if whole not in peaks and any(
            overlap(share.quantity.interval(1.0), over(part.interval(), p)) for p in _implied(context, part)
        ):
            continue  # of the peak that a table's shares are of
        peak = min(peaks, key=lambda p: apart(part.value / p.quantity.value, share.quantity.value))
        value = part.value / peak.quantity.value
        factor = apart(share.quantity.value, value)
        what = f"share: {part.text} / {peak.quantity.text} (line {peak.line}) = {value:.1%}, not {share.quantity.text}"
        sure = 0.93 if peaks == [whole] else 0.85 if factor < 3 else 0.6
        yield say(context, share, "share", what, factor, sure)


def _beside(context: Context, facts: list[Fact], part: Fact, share: Fact) -> Iterator[Finding]:
    """ "The peak is 3.35 TB/s; we reach 2.41 TB/s (72 %)"."""
    a, c = part.quantity, share.quantity
    if not re.fullmatch(r"\s?\(\s?", part.text[a.end : c.start]) or not re.match(r"\s?\)", share.tail):
        return
    told = [f for f in facts if f.quantity.dims == a.dims and f.quantity.end <= a.start and f.quantity.value]
    if (
        len(told) != 1
        or told[0].quantity.bound
        or told[0].quantity.value < a.value
        or not re.search(r"\b(?:peak|total|maximum|limit|ceiling)\b", told[0].label, re.I)
    ):
        return
    low, high = over(a.interval(), told[0].quantity.interval())
    if any(overlap(c.interval(1.0), ends, SLACK) for ends in ((low, high), (1 - high, 1 - low))):
        return
    value = a.value / told[0].quantity.value
    what = f"share: {a.text} / {told[0].quantity.text} = {value:.1%}, not {c.text}"
    yield say(context, share, "share", what, apart(value, c.value), 0.8)


def _meant(facts: list[Fact], part: Fact) -> Fact | None:
    """ "It has 80 GB; the run took 61 GB, 76 % of it": the only thing of that kind before.

    In "824 MB/s over a 10 Gbit/s line (66 % of it)" the part stands first: then the share holds the other way round.
    """
    told = [f for f in facts if f.quantity.dims == part.quantity.dims and f.quantity.end <= part.quantity.start]
    if len(told) != 1 or told[0].quantity.bound or told[0].quantity.value < part.quantity.value:
        return None
    return told[0]


def _implied(context: Context, part: Quantity) -> list[Interval]:
    """The peaks that the shares of tables imply, for quantities of one kind."""
    return [
        over(cell.interval(), share.interval())
        for _, found in context.tables
        for column in found
        if column.dims == part.dims
        for shares in found
        if shares.role in ("share", "efficiency")
        for cell, share in zip(column.cells, shares.cells, strict=True)
        if cell is not None and share is not None and share.value > 0
    ]


def _counted(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """ "50K steps: 2.8 hours" beside "200 ms per step" anywhere."""
    for fact in facts:
        noun = fact.quantity.noun.rstrip("s")
        if fact.quantity.dims != q.NONE or len(noun) < 3 or fact.quantity.value < 10 or fact.quantity.share:
            continue
        if re.search(COUNTED, noun + "s"):
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
        said = spans[0]
        rates = [f.quantity for f in context.facts if f.quantity.dims == q.RATE and noun in f.quantity.noun]
        count = fact.quantity.interval(0.0)
        by_unit = [times(count, f.quantity.interval()) for f in unit]
        by_rate = [over(count, r.interval()) for r in rates if r.value]
        if any(overlap(said.quantity.interval(1.0), c, 0.02) for c in by_unit + by_rate):
            continue
        near = min(unit, key=lambda f: abs(f.line - fact.line))
        value = fact.quantity.value * near.quantity.value
        factor = apart(said.quantity.value, value)
        sides = f"{fact.quantity.text} × {near.quantity.text} (line {near.line}) = {shown(value, q.TIME)}"
        what = f"total = count × unit: {sides}, not {said.quantity.text}"
        yield say(context, said, "total", what, factor, 0.8)


def _in_time(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """ "6,000 texts in 2.00 s (3,000 texts/s)": one count, one time, one rate of the same things in one line."""
    counts = [
        f
        for f in facts
        if f.quantity.dims == q.NONE and f.quantity.noun and not f.quantity.share and not f.quantity.factor
    ]
    rates = [f for f in facts if f.quantity.dims == q.RATE and f.quantity.noun]
    for count in counts:
        span = next((f for f in facts if f.quantity.dims == q.TIME and f.quantity.start > count.quantity.end), None)
        own = [r for r in rates if r.said == count.said] or rates
        same = [r for r in own if _same(r.quantity.noun, count.quantity.noun) and not r.quantity.bound]
        if (
            span is None
            or len(same) != 1
            or not re.search(r"\bin (?:just |only |about )?[~≈]?$", count.text[: span.quantity.start])
        ):
            continue
        if count.quantity.bound or span.quantity.bound or not span.quantity.value:
            continue
        rate, value = same[0].quantity, count.quantity.value / span.quantity.value
        if overlap(rate.interval(1.0), over(count.quantity.interval(), span.quantity.interval()), SLACK):
            continue
        sides = f"{count.quantity.text} / {span.quantity.text} = {shown(value, q.RATE)}"
        what = f"rate = count / time: {sides}, not {rate.text}"
        yield say(context, same[0], "rate", what, apart(rate.value, value), 0.92)


def _carried(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """ "18.4 TB in 6 h 12 min, which is 824 MB/s"."""
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
        computed = over(a.interval(), b.interval())
        mixed = [(computed[0] * mix, computed[1] * mix) for mix in (1, 1.024**2, 1.024**3, 1 / 1.024**2, 1 / 1.024**3)]
        if not any(overlap(c.interval(1.0), ends, SLACK) for ends in mixed):
            value = a.value / b.value
            what = f"bandwidth: {a.text} / {b.text} = {shown(value, q.BANDWIDTH)}, not {c.text}"
            yield say(context, rate, "bandwidth", what, apart(value, c.value), 0.9)


def _parts(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """ "6.2 GB of 64 GB (9.7 %)", "412 out of 500 requests (82.4 %)"."""
    for part, whole, share in zip(facts, facts[1:], facts[2:], strict=False):
        a, b, c = part.quantity, whole.quantity, share.quantity
        a = like(a, b)
        of = re.fullmatch(r"\s*(?:\w+\s)?(?:out )?(?:of|/)\s(?:the\s|a total of\s)?", part.text[a.end : b.start])
        if not of or not c.share or not re.fullmatch(r"\s*(?:\w+\s?){0,2}[(,]\s*", whole.text[b.end : c.start]):
            continue
        if a.dims != b.dims or a.bound or b.bound or c.bound or not a.value or not b.value or a.share:
            continue
        if re.match(r"\s*\w*\s*(?:less|more|faster|slower|lower|higher|reduc|sav|free|left|unused|idle)", share.tail):
            continue
        computed = over(a.interval(), b.interval())
        if not overlap(c.interval(1.0), computed, SLACK) and not overlap(
            c.interval(1.0), (1 - computed[1], 1 - computed[0])
        ):
            value = a.value / b.value
            what = f"share: {a.text} / {b.text} = {value:.1%}, not {c.text}"
            yield say(context, share, "share", what, apart(value, c.value), 0.88)


_TYPES = {"fp32": 4, "float32": 4, "fp16": 2, "float16": 2, "bf16": 2, "bfloat16": 2, "int8": 1, "fp8": 1, "int4": 0.5}


def _weights(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """ "109M parameters (436 MB in fp32)"."""
    for count, size in pairwise(facts):
        between = count.text[count.quantity.end : size.quantity.start]
        named = re.match(r"\s*(?:of weights )?(?:in|at|as) (\w+)\s*[),.;]", size.tail)
        width = _TYPES.get(named[1].lower()) if named else None
        if width is None or size.quantity.dims != q.BYTES or not re.match(r"\s*param\w*\s*[(,:]|\s*[(,]", between):
            continue
        if not count.quantity.noun.startswith("param") and "param" not in between:
            continue
        computed = times(count.quantity.interval(), (width, width))
        said, value = size.quantity.interval(1.0), count.quantity.value * width
        if (
            count.quantity.bound
            or size.quantity.bound
            or any(overlap((said[0] * mix, said[1] * mix), computed, 0.02) for mix in (1, 1.024**2, 1.024**3))
        ):
            continue
        what = f"size: {count.quantity.text} × {width} B = {shown(value, q.BYTES)}, not {size.quantity.text}"
        yield say(context, size, "size", what, apart(value, size.quantity.value), 0.8)


def _same(a: str, b: str) -> bool:
    return a.rstrip("s") == b.rstrip("s")


def like(bare: Quantity, other: Quantity) -> Quantity:
    """ "64 of 340 ms", "1,250 vs 432 images/s": a number without a unit has that of the next one."""
    if (
        bare.dims != q.NONE
        or bare.unit
        or bare.noun not in ("", "of", "out", "vs", "versus", "to")
        or not other.written
    ):
        return bare
    scale = other.value / other.written
    return replace(bare, value=bare.value * scale, step=bare.step * scale, loose=bare.loose * scale, dims=other.dims)
