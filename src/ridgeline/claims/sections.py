"""Facts of one section that must agree: price, time and cost; batch, time and rate; busy time and utilisation."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ridgeline.claims import quantities as q
from ridgeline.claims.context import Context, Fact, create_finding, group_by_section
from ridgeline.claims.finding import Finding
from ridgeline.claims.quantities import SLACK, compute_factor, divide, format_number, format_value, multiply, overlap

_PERIODS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0, "month": 2592000.0}
_THINGS = "texts|items|samples|requests|queries|images|documents|records|events|rows|tokens|vectors"
_SPAN = re.compile(r"^(?:total|elapsed|wall)\b.*time|^duration|^elapsed|^runtime|^wall.?clock", re.I)
_LATENCY = re.compile(r"latenc|\bp\d\d|percentile|respon|first token", re.I)


def check_sections(context: Context) -> Iterator[Finding]:
    for facts in group_by_section(context):
        yield from _check_costs(context, facts)
        yield from _check_utilisation(context, facts)
        yield from _check_batch_rate(context, facts)
        yield from _check_total_rate(context, facts)
        yield from _check_time_per_item(context, facts)
        yield from _check_transfer_rate(context, facts)


def _check_costs(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """Check cost = price × time for one hourly price."""
    prices = [f for f in facts if f.quantity.dims == q.PRICE and not f.quantity.bound]
    spans = [f for f in facts if f.quantity.dims == q.TIME and not f.quantity.bound]
    if (
        not prices
        or not spans
        or any(compute_factor(p.quantity.value, prices[0].quantity.value) > 1.05 for p in prices)
    ):
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
            (span, head, multiply(multiply(price.quantity.interval(), span.quantity.interval()), (head, head)))
            for span in spans
            for head in heads
        ]
        if any(overlap(f.quantity.interval(1.0), c, 0.01) for f in amounts for *_, c in computed):
            continue
        span = min(spans, key=lambda f: (abs(f.line - number), f.line > number))
        value = price.quantity.value * span.quantity.value
        stated = amounts[0]
        factor = compute_factor(stated.quantity.value, value)
        product = f"{price.quantity.text} × {span.quantity.text} = {format_value(value, q.MONEY)}"
        arithmetic = f"cost: {product}, not {stated.quantity.text}"
        yield create_finding(context, stated, "cost", arithmetic, factor, 0.85)


def _check_utilisation(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """Check utilisation = busy time / period: "Per hour: 36 seconds" is 1 % of one core."""
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
        if not results or any(compute_factor(fact.quantity.value, s) < 1.15 for *_, s in results):
            continue
        results = [r for r in results if "=" in r[0].label] or results
        busy, span, share = results[0]
        per = f"{_PERIODS[span]:,.0f} s"
        arithmetic = f"busy: {busy.quantity.text} per {span} / {per} = {share:.1%} of one, not {fact.quantity.text}"
        yield create_finding(context, fact, "utilisation", arithmetic, compute_factor(fact.quantity.value, share), 0.88)


def _check_batch_rate(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """Check throughput = batch / time: "5 ms per batch (batch=100)"."""
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
        computed = divide((size, size), fact.quantity.interval())
        if rate.quantity.noun.startswith("batch") or overlap(rate.quantity.interval(1.0), computed, SLACK):
            continue
        value = size / fact.quantity.value
        factor = compute_factor(rate.quantity.value, value)
        sides = f"{format_number(size)} / {fact.quantity.text} = {format_value(value, q.RATE)}"
        arithmetic = f"rate = batch / time: {sides}, not {rate.quantity.text}"
        yield create_finding(context, rate, "rate", arithmetic, factor, 0.9)


def _check_time_per_item(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """Check throughput = 1 / "time per text"."""
    for fact in facts:
        each = re.match(r"(?:avg\.? |average |mean )?time per (\w+)", fact.label, re.I)
        if each is None or fact.quantity.dims != q.TIME or fact.quantity.bound or not fact.quantity.value:
            continue
        noun = each[1].lower().rstrip("s")
        rates = [f for f in facts if f.quantity.dims == q.RATE and f.quantity.noun.rstrip("s") == noun]
        if len({f.quantity.value for f in rates}) != 1 or rates[0].quantity.bound:
            continue
        rate, value = rates[0], 1 / fact.quantity.value
        if overlap(rate.quantity.interval(1.0), divide((1.0, 1.0), fact.quantity.interval(1.0)), SLACK):
            continue
        arithmetic = (
            f"rate = 1 / time: 1 / {fact.quantity.text} = {format_value(value, q.RATE)}, not {rate.quantity.text}"
        )
        yield create_finding(context, rate, "rate", arithmetic, compute_factor(rate.quantity.value, value), 0.75)


def _check_transfer_rate(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """Check "Bytes read: 17.2 GB", "Total time: 381 s", "Read rate: 45.1 MB/s"."""
    spans = [f for f in facts if f.quantity.dims == q.TIME and _SPAN.search(f.label)]
    if len({f.quantity.value for f in spans}) != 1 or spans[0].quantity.bound:
        return
    for verb in ("read", "writ", "transfer", "sent", "receiv", "moved", "copi"):
        sizes = [f for f in facts if f.quantity.dims == q.BYTES and verb in f.label.lower()]
        rates = [f for f in facts if f.quantity.dims == q.BANDWIDTH and verb in f.label.lower()]
        if len(sizes) != 1 or len(rates) != 1 or sizes[0].quantity.bound or rates[0].quantity.bound:
            continue
        size, span, rate = sizes[0].quantity, spans[0].quantity, rates[0].quantity
        computed = divide(size.interval(), span.interval())
        wide = (computed[0] / 1.024**3, computed[1] * 1.024**3)
        if overlap(rate.interval(1.0), wide, SLACK) or not span.value:
            continue
        value = size.value / span.value
        arithmetic = f"bandwidth: {size.text} / {span.text} = {format_value(value, q.BANDWIDTH)}, not {rate.text}"
        yield create_finding(context, rates[0], "bandwidth", arithmetic, compute_factor(rate.value, value), 0.75)


def _check_total_rate(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """Check throughput = items processed / total time."""
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
    computed = divide(count.quantity.interval(), span.quantity.interval())
    if overlap(rate.quantity.interval(1.0), computed, SLACK):
        return
    value = count.quantity.value / span.quantity.value
    sides = f"{count.quantity.text} / {span.quantity.text} = {format_value(value, q.RATE)}"
    arithmetic = f"rate = count / time: {sides}, not {rate.quantity.text}"
    yield create_finding(context, rate, "rate", arithmetic, compute_factor(rate.quantity.value, value), 0.85)
