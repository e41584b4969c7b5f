"""Statements that lie near each other: price, time and cost of one section; a share beside its part and its peak."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

from ridgeline.lab.claims import quantities as q
from ridgeline.lab.claims.columns import COUNTED
from ridgeline.lab.claims.context import Context, Fact
from ridgeline.lab.claims.finding import (
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
)
from ridgeline.lab.claims.quantities import Quantity

_PERIODS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0, "month": 2592000.0}
_LATENCY = re.compile(r"latenc|\bp\d\d|percentile|respon|first token", re.I)


def check(context: Context) -> Iterator[Finding]:
    sections: dict[int, list[Fact]] = {}
    lines: dict[int, list[Fact]] = {}
    for fact in context.facts:
        sections.setdefault(fact.section, []).append(fact)
        lines.setdefault(fact.line, []).append(fact)
    for facts in sections.values():
        yield from _costs(context, facts)
        yield from _busy(context, facts)
        yield from _batch_rate(context, facts)
        yield from _whole_rate(context, facts)
    for facts in lines.values():
        yield from _shares(context, facts)
        yield from _changes(context, facts)
        yield from _counted(context, facts)
        yield from _in_time(context, facts)


def _say(context: Context, fact: Fact, kind: str, what: str, factor: float, sure: float) -> Finding:
    return Finding(context.document.path, fact.line, kind, fact.text.strip(), what, confidence(factor, sure))


def _costs(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """One hourly price, times, and a line that says what it costs: some amount of that line is price × time."""
    prices = [f for f in facts if f.quantity.dims == q.PRICE and not f.quantity.bound]
    spans = [f for f in facts if f.quantity.dims == q.TIME and not f.quantity.bound]
    if not prices or not spans or any(apart(p.quantity.value, prices[0].quantity.value) > 1.05 for p in prices):
        return
    price = prices[0]
    heads = {1.0} | {f.quantity.value for f in facts if f.quantity.dims == q.NONE and 1 < f.quantity.value <= 1e5}
    for number in dict.fromkeys(f.line for f in facts):
        line = [f for f in facts if f.line == number]
        amounts = [f for f in line if f.quantity.dims == q.MONEY]
        words = line[0].text
        if not amounts or not re.match(
            r"\W*(?:total |processing |compute |run |training |inference |gpu |cpu )*costs?\b", words, re.I
        ):
            continue
        if any(f.line == number and f.quantity.dims == q.PRICE for f in prices) and len(spans) > 3:
            continue
        if re.search(r"per\b|/ ?(?:run|query|1?M|million|K)\b|annual|year|month", words, re.I):
            continue
        computed = [
            (span, head, times(times(price.quantity.interval(), span.quantity.interval()), (head, head)))
            for span in spans
            for head in heads
        ]
        if any(overlap(f.quantity.interval(1.0), c, 0.01) for f in amounts for *_, c in computed):
            continue
        span = min(spans, key=lambda f: (abs(f.line - number), f.line > number))
        value = price.quantity.value * span.quantity.value
        said = amounts[0]
        factor = apart(said.quantity.value, value)
        what = f"cost: {price.quantity.text} × {span.quantity.text} = {shown(value, q.MONEY)}, not {said.quantity.text}"
        yield _say(context, said, "cost", what, factor, 0.85)


def _busy(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """ "Per hour: 58 seconds" keeps one core busy for 1.6 %, and a line on utilisation must say so."""
    shares = []
    for fact in facts:
        period = re.search(r"\b(?:per|each|every)\s+(second|minute|hour|day|week|month)\b", fact.label, re.I) or (
            re.match(r"\W*(?:per|each|every)\s+(second|minute|hour|day|week|month)\b", fact.text, re.I)
        )
        if period and fact.quantity.dims == q.TIME and fact.quantity.value < _PERIODS[period[1].lower()]:
            shares.append((fact, period[1].lower(), fact.quantity.value / _PERIODS[period[1].lower()]))
    for fact in facts:
        if not shares or not fact.quantity.share or fact.quantity.bound or not re.search(r"utili[sz]", fact.text, re.I):
            continue
        if not re.search(r"core|cpu|gpu|device|machine|utili[sz]ation\W*$", fact.text, re.I):
            continue
        results = [(f, p, s) for f, p, s in shares if f.line <= fact.line]
        if not results or any(apart(fact.quantity.value, s) < 1.15 for *_, s in results):
            continue
        results = [r for r in results if "=" in r[0].label] or results
        busy, period, share = results[0]
        per = f"{_PERIODS[period]:,.0f} s"
        what = f"busy: {busy.quantity.text} per {period} / {per} = {share:.1%} of one, not {fact.quantity.text}"
        yield _say(context, fact, "utilisation", what, apart(fact.quantity.value, share), 0.88)


def _batch_rate(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """ "6.1 ms per batch (batch=256)" and a throughput in one section."""
    for fact in facts:
        if fact.quantity.dims != q.TIME or not re.search(r"batch", fact.text, re.I) or _LATENCY.search(fact.text):
            continue
        if not re.match(r"\W*(?:\w+ )?time\b", fact.text, re.I) or "per item" in fact.text:
            continue
        sizes = re.findall(r"batch(?:[ _]size)?\s*[=:]?\s*(\d[\d,]*)", fact.text, re.I)
        rates = [f for f in facts if f.quantity.dims == q.RATE and re.search(r"throughput|rate|speed", f.label, re.I)]
        if len(set(sizes)) != 1 or len(rates) != 1 or rates[0].quantity.bound:
            continue
        size, rate = float(sizes[0].replace(",", "")), rates[0]
        computed = over((size, size), fact.quantity.interval())
        if rate.quantity.noun.startswith("batch") or overlap(rate.quantity.interval(1.0), computed, SLACK):
            continue
        value = size / fact.quantity.value
        factor = apart(rate.quantity.value, value)
        what = f"rate = batch / time: {digits(size)} / {fact.quantity.text} = {shown(value, q.RATE)}, not {rate.quantity.text}"
        yield _say(context, rate, "rate", what, factor, 0.9)


def _whole_rate(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """Total time, throughput, and how many were processed, one of each in a section."""
    spans = [
        f
        for f in facts
        if f.quantity.dims == q.TIME and re.search(r"^(?:total|elapsed|wall)\b.*time|^duration", f.label, re.I)
    ]
    rates = [f for f in facts if f.quantity.dims == q.RATE and re.search(r"throughput|^rate|^speed", f.label, re.I)]
    counts = [
        f
        for f in facts
        if f.quantity.dims == q.NONE
        and re.search(
            r"processed|^(?:total |number of )(?:\w+ )?(?:texts|items|samples|requests|queries|images|documents|records|events|rows|tokens|vectors)",
            f.label,
            re.I,
        )
    ]
    if (
        len({f.quantity.value for f in spans}) != 1
        or len({f.quantity.value for f in rates}) != 1
        or len({f.quantity.value for f in counts}) != 1
    ):
        return
    span, rate, count = spans[0], rates[0], counts[0]
    if rate.quantity.bound or span.quantity.bound or not span.quantity.value:
        return
    noun = rate.quantity.noun
    if noun and noun.rstrip("s") not in (count.label + " " + count.quantity.noun).lower():
        return
    computed = over(count.quantity.interval(), span.quantity.interval())
    if overlap(rate.quantity.interval(1.0), computed, SLACK):
        return
    value = count.quantity.value / span.quantity.value
    what = f"rate = count / time: {count.quantity.text} / {span.quantity.text} = {shown(value, q.RATE)}, not {rate.quantity.text}"
    yield _say(context, rate, "rate", what, apart(rate.quantity.value, value), 0.85)


def _shares(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """ "45 GB/s (5 % of 900 GB/s)", "1.8 TB/s (60 % of theoretical peak)"."""
    for before, share, *rest in (facts[i:] for i in range(len(facts) - 1)):
        between = share.text[before.quantity.end : share.quantity.start]
        if not share.quantity.share or share.quantity.bound or before.quantity.bound or before.quantity.share:
            continue
        if before.quantity.dims == q.NONE or share.quantity.value <= 0 or not re.search(r"\(|=|,|is$|are$|:", between):
            continue
        behind = share.text[share.quantity.end :]
        of = re.match(r"\s*(?:utili[sz]ation\s+)?(?:of|vs\.?|/)\s+(?:the\s+)?(.*)", behind, re.I)
        if of is None:
            continue
        whole = rest[0] if rest else None
        if (
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
        peak = min(peaks, key=lambda p: apart(part.value / p.quantity.value, share.quantity.value))
        value = part.value / peak.quantity.value
        factor = apart(share.quantity.value, value)
        what = f"share: {part.text} / {peak.quantity.text} (line {peak.line}) = {value:.1%}, not {share.quantity.text}"
        sure = 0.93 if peaks == [whole] else 0.85 if factor < 3 else 0.6
        yield _say(context, share, "share", what, factor, sure)


def _changes(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """ "8.05 min → 5 sec (97x faster)", "from 12 ms to 3 ms, a 4x speedup"."""
    for first, second in combinations(facts, 2):
        a, b = first.quantity, second.quantity
        between = first.text[a.end : b.start]
        arrow = re.fullmatch(r"\s*(?:→|->|=>|⇒)\s*", between) or (
            re.search(r"\bfrom\W*$", first.text[: a.start], re.I) and re.fullmatch(r"\s*(?:down |up )?to\s*", between)
        )
        if not arrow or a.dims != b.dims or a.dims == q.NONE or a.bound or b.bound or not a.value or not b.value:
            continue
        said = [f for f in facts if f.quantity.start >= b.end][:1]
        for claim in said:
            c = claim.quantity
            ratio = _wider(a, b)
            near = first.text[b.end : c.start]
            if len(near) > 25 or c.bound or c.top is not None:
                continue
            if c.factor and re.match(
                r"\s*(?:speed|faster|slower|improv|reduc|better|less|more|lower|higher|gain|increase|\)|$)",
                claim.tail,
                re.I,
            ):
                if not overlap(c.interval(1.0), ratio, SLACK):
                    value = apart(a.value, b.value)
                    what = f"speed-up: {a.text} → {b.text} is a factor of {digits(value)}, not {c.text}"
                    yield _say(context, claim, "speed-up", what, apart(value, c.value), 0.92)
            elif c.share and re.match(
                r"\s*(?:faster|slower|improv|reduc|better|less|more|lower|higher|gain|increase|decrease|saving|saved)",
                claim.tail,
                re.I,
            ):
                low, high = ratio
                options = [(low - 1, high - 1), (1 - 1 / low, 1 - 1 / high)]
                if not any(overlap(c.interval(1.0), option, SLACK) for option in options):
                    value = abs(1 - min(a.value, b.value) / max(a.value, b.value))
                    what = f"change: {a.text} → {b.text} is {value:.1%} or {max(a.value, b.value) / min(a.value, b.value) - 1:.1%}, not {c.text}"
                    yield _say(context, claim, "difference", what, apart(value, c.value), 0.85)


def _wider(a: Quantity, b: Quantity) -> Interval:
    """The larger over the smaller."""
    big, small = (a, b) if a.value >= b.value else (b, a)
    return over(big.interval(), small.interval())


def _counted(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """ "100K steps: 4.6 hours" beside "330 ms per step" anywhere."""
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
            if re.search(rf"\bper {noun}\b", f.quantity.unit + f.tail[:15])
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
        what = f"total = count × unit: {fact.quantity.text} × {near.quantity.text} (line {near.line}) = {shown(value, q.TIME)}, not {said.quantity.text}"
        yield _say(context, said, "total", what, factor, 0.8)


def _in_time(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """ "62,423 texts in 10.63 s (5,870 texts/s)": one count, one time, one rate of the same things in one line."""
    counts = [
        f
        for f in facts
        if f.quantity.dims == q.NONE and f.quantity.noun and not f.quantity.share and not f.quantity.factor
    ]
    rates = [f for f in facts if f.quantity.dims == q.RATE and f.quantity.noun]
    for count in counts:
        span = next((f for f in facts if f.quantity.dims == q.TIME and f.quantity.start > count.quantity.end), None)
        same = [r for r in rates if _same(r.quantity.noun, count.quantity.noun) and not r.quantity.bound]
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
        what = f"rate = count / time: {count.quantity.text} / {span.quantity.text} = {shown(value, q.RATE)}, not {rate.text}"
        yield _say(context, same[0], "rate", what, apart(rate.value, value), 0.92)


def _same(a: str, b: str) -> bool:
    return a.rstrip("s") == b.rstrip("s")
