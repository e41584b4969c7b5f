"""What a sentence computes: two quantities, "that is", and what they multiply or divide to.

"1.8 TB in 12 minutes, which is 2.5 GB/s", "24 h at 500 events/s is 43.2 million events", "11.6 GB/s, that is 92.8
Gb/s", "on 16 workers that is 12,500 rows/s each". A sum is believed to be meant only where the words say so and the
units fit; any pair of the statement that gives the figure, times a count it names, excuses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import COUNTED
from ridgeline.claims.context import Context, Fact, by_line, say
from ridgeline.claims.finding import Finding, Interval, apart, digits, over, overlap, shown, times
from ridgeline.claims.quantities import Dims, Quantity

_ABOUT = r"\s*(?:about |roughly |around |some |only |just |nearly |almost |an? )?[~≈]?\s*$"
_SURELY = re.compile(
    rf"(?:\bthat is|\bthat's|\bwhich is|\bi\.e\.,?|=|\bequals|\bmakes|\bgives|\bcomes to){_ABOUT}", re.I
)
_LIKELY = re.compile(rf"(?:\bis|\bare|:|\(|\bor|\bcosts?|\bused?|\bat|\btakes?|\btook){_ABOUT}", re.I)
_SO = r"\s*(?:and |or |so |but )?(?:that |which |this |it )?\s*$"
_AFRESH = re.compile(rf"(?:\b(?:and|but|while|then)\b|[,;:(])(?!{_SO})", re.I)
_NAMED = re.compile(rf"[,;]\s*(?P<name>[^,;:=]*[^\s,;:=])\s*[:=]{_ABOUT}")
_RESULT = re.compile(  # what a figure behind others is called when it follows from them
    r"(?:the |an? )?(?:(?:total|whole|overall|mean|copy|transfer|read|write|scan|run|wall) )?"
    r"(?:time|duration|runtime|total|rate|throughput|speed|bandwidth|costs?|bill|energy|size|volume|sum|processed)|"
    r".*\b(?:is|are|makes?|gives|in all|in total|together)",
    re.I,
)
_EACH = re.compile(r"\W*(?:each|apiece)\b", re.I)
_PARTS = re.compile(r"\b(?:each|every|per)\b", re.I)
_ALL = re.compile(r"\W*(?:in (?:total|all|aggregate)|together|altogether|combined|overall)\b", re.I)
_SHARED = re.compile(rf"(?:per|/)\s?{COUNTED.replace(chr(92) + 'b', '', 1)}", re.I)
_ELSE = re.compile(
    r"\b(?:peak|max\w*|up to|burst|target|expect\w*|would|could|limit|theor\w*|budget|than|instead)\b", re.I
)
_BITS = re.compile(r"\b[KMGT]?(?:b\b|bits?|bps)")
_REACH, _AGO = 4, 140  # facts, characters: how far back a sentence looks
_LONGEST = 60  # figures of a statement; more are data
_LEAST = 1.03  # a nearer miss is somebody's rounding on the way
_MIXES = (1.0, 1.024, 1.024**2, 1.024**3, 1.024**4)
_MADE = (q.TIME, q.RATE, q.BANDWIDTH, q.BYTES, q.MONEY, q.ENERGY, q.POWER)


def check(context: Context) -> Iterator[Finding]:
    for facts in by_line(context):
        for place, fact in enumerate(facts) if len(facts) <= _LONGEST else ():
            if not _plain(fact.quantity):
                continue
            yield from _again(context, facts, place)
            yield from _each(context, facts, place)
            yield from _together(context, facts, place)
            yield from _made(context, facts, place)


def _plain(one: Quantity) -> bool:
    return not (one.bound or one.share or one.factor or one.top is not None or one.value <= 0)


def _again(context: Context, facts: list[Fact], place: int) -> Iterator[Finding]:
    """The same in another unit: "11.6 GB/s, that is 92.8 Gb/s", "2.9 GB/s (23.2 Gb/s)"."""
    fact, before = facts[place], facts[place - 1] if place else None
    said = fact.quantity
    if before is None or not _plain(before.quantity) or said.dims == q.NONE or before.quantity.dims != said.dims:
        return
    between = fact.text[before.quantity.end : said.start]
    first = before.quantity
    if first.unit == said.unit or len(between) > 40 or re.search(r"[.;]\s", between):
        return
    inside = re.fullmatch(r"\s?\(\s?[~≈]?", between) and re.match(r"\s?\)", fact.tail)
    if not (inside or _meant(between)):
        return
    if said.noun != first.noun or _SHARED.search(said.unit + first.unit) or _EACH.match(fact.tail):
        return
    factor = apart(said.value, first.value)
    mixes = (1.0,) if _BITS.search(f"{said.unit} {first.unit}") else _both()  # bits are never counted in 1,024s
    if _LEAST < factor < 4 and not any(overlap(said.interval(1.0), _by(first.interval(1.0), m), 0.005) for m in mixes):
        same = first.value * said.written / said.value
        what = f"stated twice: {first.text} is {digits(same)} {said.unit}, not {said.text}"
        yield say(context, fact, "restated", what, factor, 0.85)


def _meant(between: str) -> bool:
    """Whether the words say that the first is the second: "of payload, that is"; in ", p99 =" another one begins."""
    sure = _SURELY.search(between)
    if sure is None or _ELSE.search(between):
        return False
    if sure[0].startswith("="):
        return re.fullmatch(r"\s*(?:of\s(?:\w+\s?){1,3})?[,(]?\s*", between[: sure.start()]) is not None
    return not _AFRESH.search(between[: sure.start()])


def _each(context: Context, facts: list[Fact], place: int) -> Iterator[Finding]:
    """ "4,576 images/s on 8 GPUs, that is 572 images/s per GPU"."""
    fact = facts[place]
    said = fact.quantity
    if said.dims in (q.NONE, q.TIME) or not (_EACH.match(fact.tail) or _SHARED.search(said.unit + fact.tail[:14])):
        return
    near = facts[max(0, place - _REACH) : place]
    heads = [f for f in near if _head(f) and f.quantity.value > 1]
    wholes = [f for f in facts[:place] if _plain(f.quantity) and f.quantity.dims == said.dims and _same(f, fact)]
    wholes = [f for f in wholes if not _EACH.match(f.tail) and not _SHARED.search(f.quantity.unit)]
    if len(heads) != 1 or not wholes or len(fact.text[heads[0].quantity.end : said.start]) > _AGO:
        return
    count = heads[0].quantity.value
    options = [_by(f.quantity.interval(), 1 / count) for f in wholes]
    if any(overlap(said.interval(1.0), _by(o, m), 0.01) for o in options for m in _both()):
        return
    whole = wholes[-1]
    value = whole.quantity.value / count
    factor = apart(value, said.value)
    if factor > _LEAST:
        sides = f"{whole.quantity.text} / {heads[0].quantity.text} = {shown(value, said.dims)}"
        yield say(context, fact, "rate", f"each: {sides}, not {said.text}", factor, 0.8)


def _together(context: Context, facts: list[Fact], place: int) -> Iterator[Finding]:
    """ "Each of the 24 nodes holds 6.2 TB, 149 TB in total"; "8 × 80 GB of memory (640 GB)"."""
    fact = facts[place]
    said = fact.quantity
    ours = [f for f in facts[:place] if f.said == fact.said and _plain(f.quantity)]
    alike = [f for f in ours if f.quantity.dims == said.dims and _same(f, fact)]
    if said.dims == q.NONE or not alike or _ELSE.search(fact.said):
        return
    part = alike[-1].quantity
    by = re.search(r"(\d+)\s?[x×]\s?$", fact.text[: part.start])
    beside = re.fullmatch(r"(?:\s\w+){0,4}\s?\(\s?", fact.text[part.end : said.start]) and re.match(r"\s?\)", fact.tail)
    heads = [f.quantity.value for f in ours if _head(f)]
    if by and beside:
        heads = [float(by[1])]
    elif not (_ALL.match(fact.tail) and _PARTS.search(fact.said) and len(heads) == len(alike) == 1):
        return
    value = heads[0] * part.value
    factor = apart(value, said.value)
    if factor > _LEAST and not any(
        overlap(said.interval(1.0), _by(part.interval(), heads[0] * m), 0.01) for m in _both()
    ):
        what = f"total: {heads[0]:g} × {part.text} = {shown(value, said.dims)}, not {said.text}"
        yield say(context, fact, "total", what, factor, 0.82)


def _made(context: Context, facts: list[Fact], place: int) -> Iterator[Finding]:
    fact = facts[place]
    said = fact.quantity
    between = fact.text[facts[place - 1].quantity.end : said.start] if place else ""
    sure, likely = _SURELY.search(between), _LIKELY.search(between)
    if not (sure or likely) or len(between) > 60 or _ELSE.search(fact.said) or _EACH.match(fact.tail):
        return
    name = _NAMED.search(between)
    if name and not _RESULT.fullmatch(name["name"]):
        return  # one more of a list: "link = 10 GB/s, timeout = 90 s"
    if (said.dims not in _MADE and not (said.dims == q.NONE and said.noun)) or _SHARED.search(
        said.unit + fact.tail[:14]
    ):
        return
    near = [f for f in facts[max(0, place - _REACH) : place] if _plain(f.quantity)]
    near = [f for f in near if len(f.text[f.quantity.end : said.start]) < _AGO]
    pairs = _pairs(near if sure else [f for f in near if not _head(f)][-2:], fact)
    pairs = [p for p in pairs if sure or p[0].said == p[1].said == fact.said]
    if not pairs:
        return
    heads = [f.quantity.value for f in facts if f.quantity.dims == q.NONE and 1 < f.quantity.value < 1e6]
    wide = [f for f in context.facts if f.section == fact.section and f is not fact and _plain(f.quantity)]
    excuses = [ends for *_, ends, _ in (*pairs, *_pairs(wide[-40:], fact))]
    excuses += [f.quantity.interval() for f in wide if f.quantity.dims == said.dims and f.quantity.noun == said.noun]
    factors = [m * h for m in _both() for h in (1.0, *heads, *(1 / h for h in heads))]
    if any(overlap(said.interval(1.0), _by(ends, m), 0.01) for ends in excuses for m in factors):
        return
    value, _, words = pairs[-1][2:]
    factor = apart(value, said.value)
    if factor > _LEAST:
        what = f"{_KIND.get(said.dims, 'total')}: {words} = {shown(value, said.dims)}, not {said.text}"
        yield say(context, fact, _KIND.get(said.dims, "total"), what, factor, 0.85 if sure else 0.75)


_KIND = {q.RATE: "rate", q.BANDWIDTH: "bandwidth", q.MONEY: "cost", q.BYTES: "size"}
Pair = tuple[Fact, Fact, float, Interval, str]


def _pairs(facts: Sequence[Fact], target: Fact) -> list[Pair]:
    """Every two that multiply or divide to what the target is."""
    out: list[Pair] = []
    for first, second in combinations(facts, 2):
        for a, b, power in ((first, second, 1), (first, second, -1), (second, first, -1)):
            dims = q.combined(a.quantity.dims, b.quantity.dims, power)
            if dims != target.quantity.dims or not _speaks(a, b, power, target):
                continue
            x, y = a.quantity.interval(), b.quantity.interval()
            ends = times(x, y) if power > 0 else over(x, y)
            words = f"{a.quantity.text} {'×' if power > 0 else '/'} {b.quantity.text}"
            value = a.quantity.value * b.quantity.value**power
            out.append((first, second, value, ends, words))
    return out


def _speaks(a: Fact, b: Fact, power: int, target: Fact) -> bool:
    """Whether things are counted alike: rows in 20 minutes make rows per second."""
    kinds: set[Dims] = {a.quantity.dims, b.quantity.dims}
    if target.quantity.dims == q.NONE:
        return power > 0 and kinds == {q.RATE, q.TIME} and _same(a if a.quantity.dims == q.RATE else b, target)
    if target.quantity.dims == q.TIME and kinds == {q.NONE, q.RATE}:
        return power < 0 and a.quantity.dims == q.NONE and _same(a, b) and bool(a.quantity.noun)
    if target.quantity.dims == q.RATE:
        return kinds == {q.NONE, q.TIME} and power < 0 and _same(a, target) and bool(target.quantity.noun)
    if q.NONE in kinds or kinds == {target.quantity.dims}:
        return False  # so many of something: what they are is not known
    if target.quantity.dims == q.TIME:
        return kinds == {q.BYTES, q.BANDWIDTH}
    return True


def _head(fact: Fact) -> bool:
    return fact.quantity.dims == q.NONE and re.search(COUNTED, fact.quantity.noun) is not None and _plain(fact.quantity)


def _same(a: Fact, b: Fact) -> bool:
    return a.quantity.noun.rstrip("s") == b.quantity.noun.rstrip("s")


def _both() -> tuple[float, ...]:
    return (*_MIXES, *(1 / mix for mix in _MIXES[1:]))


def _by(ends: Interval, factor: float) -> Interval:
    return ends[0] * factor, ends[1] * factor
