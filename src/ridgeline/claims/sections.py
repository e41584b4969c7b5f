"""What the lines of one section say together: price, time and cost; a batch, its time and its rate; busy and idle."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ridgeline.claims import quantities as q
from ridgeline.claims.context import Context, Fact, by_section, say
from ridgeline.claims.finding import SLACK, Finding, apart, digits, over, overlap, shown, times

_PERIODS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0, "month": 2592000.0}
_THINGS = "texts|items|samples|requests|queries|images|documents|records|events|rows|tokens|vectors"
_SPAN = re.compile(r"^(?:total|elapsed|wall)\b.*time|^duration|^elapsed|^runtime|^wall.?clock", re.I)
_LATENCY = re.compile(r"latenc|\bp\d\d|percentile|respon|first token", re.I)


def check(context: Context) -> Iterator[Finding]:
    for facts in by_section(context):
        yield from _costs(context, facts)
        yield from _busy(context, facts)
        yield from _batch_rate(context, facts)
        yield from _whole_rate(context, facts)
        yield from _each(context, facts)
        yield from _moved(context, facts)


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
        yield say(context, said, "cost", what, factor, 0.85)


def _busy(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """ "Per hour: 36 seconds" keeps one core busy for 1 %, and a line on utilisation must say so."""
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
        busy, span, share = results[0]
        per = f"{_PERIODS[span]:,.0f} s"
        what = f"busy: {busy.quantity.text} per {span} / {per} = {share:.1%} of one, not {fact.quantity.text}"
        yield say(context, fact, "utilisation", what, apart(fact.quantity.value, share), 0.88)


def _batch_rate(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """ "5 ms per batch (batch=100)" and a throughput in one section."""
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
        sides = f"{digits(size)} / {fact.quantity.text} = {shown(value, q.RATE)}"
        what = f"rate = batch / time: {sides}, not {rate.quantity.text}"
        yield say(context, rate, "rate", what, factor, 0.9)


def _each(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """ "Time per text" and a throughput in texts/s."""
    for fact in facts:
        each = re.match(r"(?:avg\.? |average |mean )?time per (\w+)", fact.label, re.I)
        if each is None or fact.quantity.dims != q.TIME or fact.quantity.bound or not fact.quantity.value:
            continue
        noun = each[1].lower().rstrip("s")
        rates = [f for f in facts if f.quantity.dims == q.RATE and f.quantity.noun.rstrip("s") == noun]
        if len({f.quantity.value for f in rates}) != 1 or rates[0].quantity.bound:
            continue
        rate, value = rates[0], 1 / fact.quantity.value
        if overlap(rate.quantity.interval(1.0), over((1.0, 1.0), fact.quantity.interval(1.0)), SLACK):
            continue
        what = f"rate = 1 / time: 1 / {fact.quantity.text} = {shown(value, q.RATE)}, not {rate.quantity.text}"
        yield say(context, rate, "rate", what, apart(rate.quantity.value, value), 0.75)


def _moved(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """ "Bytes read: 17.2 GB", "Total time: 381 s", "Read rate: 45.1 MB/s", one of each in a section."""
    spans = [f for f in facts if f.quantity.dims == q.TIME and _SPAN.search(f.label)]
    if len({f.quantity.value for f in spans}) != 1 or spans[0].quantity.bound:
        return
    for verb in ("read", "writ", "transfer", "sent", "receiv", "moved", "copi"):
        sizes = [f for f in facts if f.quantity.dims == q.BYTES and verb in f.label.lower()]
        rates = [f for f in facts if f.quantity.dims == q.BANDWIDTH and verb in f.label.lower()]
        if len(sizes) != 1 or len(rates) != 1 or sizes[0].quantity.bound or rates[0].quantity.bound:
            continue
        size, span, rate = sizes[0].quantity, spans[0].quantity, rates[0].quantity
        computed = over(size.interval(), span.interval())
        wide = (computed[0] / 1.024**3, computed[1] * 1.024**3)
        if overlap(rate.interval(1.0), wide, SLACK) or not span.value:
            continue
        value = size.value / span.value
        what = f"bandwidth: {size.text} / {span.text} = {shown(value, q.BANDWIDTH)}, not {rate.text}"
        yield say(context, rates[0], "bandwidth", what, apart(rate.value, value), 0.75)


def _whole_rate(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """Total time, throughput, and how many were processed, one of each in a section."""
    spans = [f for f in facts if f.quantity.dims == q.TIME and _SPAN.search(f.label)]
    rates = [f for f in facts if f.quantity.dims == q.RATE and re.search(r"throughput|^rate|^speed", f.label, re.I)]
    counts = [
        f
        for f in facts
        if f.quantity.dims == q.NONE
        and re.search(rf"processed|^(?:total |number of )(?:\w+ )?(?:{_THINGS})", f.label, re.I)
    ]
    nouns = {f.quantity.noun.rstrip("s") for f in rates} - {""}
    counts = counts or [f for f in facts if f.quantity.dims == q.NONE and f.quantity.noun.rstrip("s") in nouns]
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
    sides = f"{count.quantity.text} / {span.quantity.text} = {shown(value, q.RATE)}"
    what = f"rate = count / time: {sides}, not {rate.quantity.text}"
    yield say(context, rate, "rate", what, apart(rate.quantity.value, value), 0.85)
