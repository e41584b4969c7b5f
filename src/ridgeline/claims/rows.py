"""Figures of one row that the names of their columns tie together: count, time and rate; part, total and share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import DEVICE_WORDS, Column, find_roles, get_label
from ridgeline.claims.context import Context
from ridgeline.claims.document import Table
from ridgeline.claims.explanations import Expected, Explanation, check_column, format_result
from ridgeline.claims.finding import LIKELY, UNSURE, Finding
from ridgeline.claims.quantities import MIXES, SLACK, Interval, Quantity, compute_factor, divide, overlap
from ridgeline.claims.ratios import STATISTIC, is_exact

_COUNT = re.compile(
    r"\b(?:total|count|number|processed|completed|done|sent|served|handled|executed|finished|ingested|indexed|written|"
    r"requests?|ops|operations?|items?|records?|rows?|docs?|documents?|messages?|events?|queries|iterations?|tokens?|"
    r"inserts?|calls?|transactions?|txns?|jobs?|tasks?|images?|frames?|samples?|packets?|lines?|files?)\b",
    re.I,
)
_COMPLETE_RUN = re.compile(r"\b(?:total|done|processed|completed|sent|served|handled|executed|finished)\b", re.I)
_DURATION = re.compile(r"\b(?:time|duration|elapsed|wall|seconds|runtime|took|run)\b", re.I)
_NOT_DURATION = re.compile(
    r"\b(?:per|avg|average|mean|median|latency|response|each|cpu|user|sys|gc|first|init|setup|startup|load|build|"
    r"compile|index|warm-?up|timeout|interval|ttft|idle|wait|queue|ramp)|/",
    re.I,
)
_NOT_RATE = re.compile(r"\b(?:peak|max|target|limit|best|burst|min|instant|theoretical|expected|per|error)", re.I)
_RAMP = 1.05  # a load generator may not count the seconds in which it starts and stops
_SHARES = (  # the name of a share, and that of its part
    (r"accura|correct", r"correct|right"),
    (r"pass", r"pass(?:ed|es|ing)?"),
    (r"success|completion", r"success(?:es|ful)?|succeeded|completed|passed"),
    (r"fail|error", r"fail(?:ed|ures?|s)?|errors?"),
    (r"hit", r"hits?"),
    (r"cover", r"covered"),
    (r"recall|found|detect|match", r"found|detected|match(?:ed|es)?"),
    (r"solve|resol", r"solved|resolved"),
)
_TOTAL = re.compile(
    r"\b(?:total|all|tests?|attempts?|attempted|cases?|queries|questions|samples?|requests|runs?|n|count)\b", re.I
)


DEVICES = re.compile(  # a row of several devices has several times the rate
    rf"(?<![\w.])\d+\s?(?:[x×]\s?)?(?:[A-Z]\w*\d\w*\s)?{DEVICE_WORDS[2:]}|{DEVICE_WORDS}\s?[=:]\s?\d|[x×]\s?\d+\s?(?:\)|$)",
    re.I,
)


def check_rates(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    """Check rate = count / time, batch / time and 1 / time, and bandwidth = size / time."""
    times = [c for c in columns if c.dims == q.TIME and not c.mixed and not STATISTIC.search(c.name)]
    runs = [c for c in times if _DURATION.search(c.name) and not _NOT_DURATION.search(c.name)]
    rates = [c for c in columns if c.dims == q.RATE and not c.mixed and not STATISTIC.search(c.name)]
    counts = [c for c in columns if c.role in ("count", "number", "n") and _is_count(c)]
    rows = [row for row in range(len(table.rows)) if not DEVICES.search(get_label(table, row, columns))]
    for column in rates:
        stated = {row: cell for row, cell in _get_exact(column).items() if row in rows}
        explanations = []
        for count in counts:
            explicit = (
                len(rates) == len(runs) == 1
                and not _NOT_RATE.search(column.name)
                and (_share_noun(count, column) or (len(counts) == 1 and _names_complete_run(count)))
            )
            explanations += [_divide_columns(count, time, stated, explicit) for time in runs]
        for batch in find_roles(columns, "batch"):
            explanations += [_divide_columns(batch, time, stated) for time in times]
        explanations += [_divide_columns(None, time, stated) for time in times]
        is_bare = not any(cell.noun for cell in stated.values())
        yield from check_column(context, table, column, stated, explanations, "rate", _RAMP if is_bare else 1.0)
    for column in find_roles(columns, "bandwidth"):
        sizes = [c for c in columns if c.dims == q.BYTES and not c.mixed]
        stated = {row: cell for row, cell in _get_exact(column).items() if row in rows}
        explanations = [_divide_columns(size, time, stated) for size in sizes for time in times]
        yield from check_column(context, table, column, stated, explanations, "bandwidth")


_BATCH = re.compile(r"\bbatch(?:[ _-]?size)?\s*(?:[:=]|is|of)\s*(\d[\d,]*)(?![\d.–-])", re.I)
_MIN_HOLDING = 0.6  # of the rows


def check_batches(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    """Note a table whose rate × time is one number of items, but not the batch that the report states before it."""
    lines = [line.text for line in context.document.lines[: table.line]]
    batches = [float(size.replace(",", "")) for text in lines for size in _BATCH.findall(text)]
    times, rates = find_roles(columns, "time"), find_roles(columns, "rate")
    if (
        not batches
        or len(times) != 1
        or len(rates) != 1
        or any(find_roles(columns, x) for x in ("batch", "n", "count"))
    ):
        return
    pairs = {row: (cell, rate) for row, cell in _get_exact(times[0]).items() if (rate := _get_exact(rates[0]).get(row))}
    if len(pairs) < 3:
        return
    items = median(cell.value * rate.value for cell, rate in pairs.values())
    holding = [row for row, (cell, rate) in pairs.items() if compute_factor(cell.value * rate.value, items) < 1.02]
    if len(holding) < _MIN_HOLDING * len(pairs) or compute_factor(items, batches[-1]) < 1.05:
        return
    cell, rate = pairs[holding[0]]
    value = format_result(batches[-1] / cell.value, rate)
    arithmetic = f"rate ({rates[0].name}): a batch of {batches[-1]:g} / {cell.text} = {value}, not {rate.text}"
    yield context.report_cell(table, holding[0], rates[0].index, "rate", arithmetic, 2.0, UNSURE)


def _is_count(column: Column) -> bool:
    nouns = {cell.noun for cell in column.cells if cell is not None and cell.noun}
    return any(_COUNT.search(text) for text in (column.name, *nouns))


def _names_complete_run(count: Column) -> bool:
    nouns = " ".join(cell.noun for cell in count.cells if cell is not None)
    return _COMPLETE_RUN.search(f"{count.name} {nouns}") is not None


def _share_noun(count: Column, rate: Column) -> bool:
    """Whether "Requests" and "requests/s" count the same things."""
    nouns = {cell.noun.rstrip("s") for cell in rate.cells if cell is not None and len(cell.noun) > 2}
    named = re.match(r"([a-z]{3,})\s?(?:/\s?s(?:ec(?:ond)?)?|per sec(?:ond)?)\b", rate.name.lower())
    nouns |= {named[1].rstrip("s")} if named else set()
    words = {word.rstrip("s") for word in re.findall(r"[a-z]+", count.name.lower())}
    words |= {cell.noun.rstrip("s") for cell in count.cells if cell is not None and cell.noun}
    return bool(nouns & words)


def _get_exact(column: Column) -> dict[int, Quantity]:
    return {row: cell for row, cell in enumerate(column.cells) if cell is not None and is_exact(cell)}


def _divide_columns(
    above: Column | None, below: Column, stated: dict[int, Quantity], explicit: bool = False
) -> Explanation:
    """Explain a column as one column, or 1, divided by another."""
    expected = {}
    counts, divisors = (_get_exact(above) if above else {}), _get_exact(below)
    for row in stated:
        if row not in divisors or (above is not None and row not in counts):
            continue
        count, divisor = counts.get(row), divisors[row]
        interval: Interval = (1.0, 1.0) if count is None else count.count_interval()
        value, words = (1.0, "1") if count is None else (count.value, count.text)
        reading = divide(interval, divisor.count_interval())
        mixes = MIXES if count is not None and count.dims == q.BYTES else (1.0,)
        readings = tuple((reading[0] * mix, reading[1] * mix) for mix in mixes)
        expected[row] = Expected(value / divisor.value, readings, f"{words} / {divisor.text}")
    return Explanation(expected, explicit)


def check_shares(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    """Check share = part / total where the names say so: "accuracy, correct, total"."""
    numbers = [c for c in columns if c.dims == q.NONE and c.role in ("count", "number", "n") and not c.mixed]
    for column in columns:
        stated = {row: cell for row, cell in _get_exact(column).items() if cell.share}
        names = [part for share, part in _SHARES if re.search(rf"\b(?:{share})", column.name, re.I)]
        parts = [c for c in numbers if any(re.search(rf"\b(?:{name})\b", c.name, re.I) for name in names)]
        totals = [c for c in numbers if c not in parts and _TOTAL.search(c.name) and not _is_any_part(c)]
        if not stated or len(parts) != 1 or len(totals) != 1:
            continue
        if all(_is_part(parts[0], totals[0], row) for row in stated):
            explanation = _divide_columns(parts[0], totals[0], stated, explicit=True)
            yield from check_column(context, table, column, stated, [explanation], "share")


_BRACKETED = re.compile(r"\s*\(\s*[~≈]?(?P<share>\d[\d.]*\s?%)")


def check_bracketed_shares(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    """Check a list with a total and parts: "Total requests: 500", "Failed: 12 (3.4 %)"."""
    totals = [c for c in columns if re.match(r"\W*total\b", c.name, re.I) and c.dims == q.NONE and len(c.cells) == 1]
    total = totals[0].cells[0] if len(totals) == 1 else None
    if total is None or not is_exact(total):
        return
    words = _get_words(totals[0])
    for column in columns:
        part, text = column.raw[0], table.rows[0].cells[column.index]
        bracket = _BRACKETED.match(text, part.end) if part is not None and part.dims == q.NONE else None
        if part is None or bracket is None or column is totals[0] or not 0 < part.value <= total.value:
            continue
        stated = q.find_quantities(bracket["share"])[0]
        if not (_is_any_part(column) or words & _get_words(column)) or not is_exact(stated):
            continue
        share = divide(part.count_interval(), total.count_interval())
        if not overlap(stated.interval(1.0), share, SLACK):
            value = part.value / total.value
            arithmetic = f"share ({column.name}): {part.text} / {total.text} = {100 * value:.3g}%, not {stated.text}"
            factor = compute_factor(value, stated.value)
            yield context.report_cell(table, 0, column.index, "share", arithmetic, factor, LIKELY)


def _get_words(column: Column) -> set[str]:
    return set(re.findall(r"[a-z]{4,}", column.name.lower())) - {"total", "rate", "time", "size"}


def _is_any_part(column: Column) -> bool:
    return any(re.search(rf"\b(?:{part})\b", column.name, re.I) for _, part in _SHARES)


def _is_part(part: Column, total: Column, row: int) -> bool:
    one, other = part.cells[row], total.cells[row]
    return one is None or other is None or 0 <= one.value <= other.value
