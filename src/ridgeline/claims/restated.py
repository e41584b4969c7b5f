"""One quantity stated twice: in a sentence and in a table, or in two columns with different units.

"93 % efficiency at 4 GPUs" beside the row of 4 GPUs; "Server B serves 3,180 requests/s" beside the row of Server B;
"8x over CPU" beside the row of the CPU; "scales linearly" beside a sweep that does not; "Payload (Gb/s)" beside
"Payload (GB/s)".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import Column, find_roles, get_label
from ridgeline.claims.context import Context, Fact, create_finding, group_by_statement
from ridgeline.claims.document import Line, Table
from ridgeline.claims.finding import Finding, confidence
from ridgeline.claims.quantities import SLACK, Quantity, compute_factor, divide, format_number, format_value, overlap

_AT = r"(?:at|on|with|using|across|for)\s+(?:a\s+)?"
_KEYS = {  # how a sentence names a row: role of the column, pattern of the number
    "n": re.compile(rf"\b{_AT}(\d+)\s?(gpus?|nodes?|workers?|threads?|ranks?|processes|cores)\b", re.I),
    "batch": re.compile(rf"\b{_AT}batch(?:[ _-]size)?\s*(?:=|of)?\s*(\d+)()\b", re.I),
}
_ROLE_WORDS = (  # role of the column, words after the number
    ("efficiency", re.compile(r"\s*(?:scaling |parallel )?efficien", re.I)),
    ("speedup", re.compile(r"\s*(?:speed-?up|faster)", re.I)),
    ("rate", re.compile(r"")),
)
_OVER = re.compile(
    r"\s*(?:speed-?up |faster |improvement )?(?:vs\.?|over|than|compared (?:to|with))\s+(?:the )?([A-Z]\w+)"
)


def check_restated(context: Context) -> Iterator[Finding]:
    for facts in group_by_statement(context):
        for fact in facts:
            yield from _check_row(context, fact)
            yield from _check_largest(context, fact)
        yield from _check_peer_factor(context, facts)
        yield from check_named_rows(context, facts)


def _check_row(context: Context, fact: Fact) -> Iterator[Finding]:
    """Check "93 % scaling efficiency at 4 GPUs" against rows of 4 GPUs."""
    stated = fact.quantity
    if stated.bound or stated.top is not None:
        return
    for role, behind in _ROLE_WORDS:
        if not _is_kind(stated, role) or not behind.match(fact.tail):
            continue
        for key, pattern in _KEYS.items():
            named = pattern.search(fact.tail[:60])
            if named is None or re.search(r"[.;,]\s", fact.tail[: named.start()]):
                continue
            cells = [
                (table, row, cell)
                for table, columns in context.tables
                for row, cell in _find_cells(table, columns, key, named, role)
                if cell.dims == stated.dims and (role != "rate" or _has_same_noun(cell, stated))
            ]
            if not cells or any(overlap(stated.interval(1.0), cell.interval(1.0), SLACK) for *_, cell in cells):
                continue
            table, row, cell = min(cells, key=lambda c: compute_factor(c[2].value, stated.value))
            arithmetic = f"stated twice: {stated.text} here, {cell.text} in line {table.rows[row].line}"
            yield create_finding(context, fact, "restated", arithmetic, compute_factor(stated.value, cell.value), 0.72)


def _is_kind(stated: Quantity, role: str) -> bool:
    if role == "efficiency":
        return stated.share
    return stated.factor if role == "speedup" else stated.dims == q.RATE and bool(stated.noun)


def _has_same_noun(cell: Quantity, stated: Quantity) -> bool:
    return not cell.noun or cell.noun.rstrip("s") == stated.noun.rstrip("s")


def _find_cells(
    table: Table, columns: list[Column], key: str, named: re.Match[str], role: str
) -> Iterator[tuple[int, Quantity]]:
    word = named[2].lower().rstrip("s")
    for keys in find_roles(columns, key):
        if word and word not in keys.name.lower():
            continue
        for row, cell in enumerate(keys.cells):
            if cell is not None and cell.value == float(named[1]):
                values = (column.cells[row] for column in find_roles(columns, role))
                yield from ((row, value) for value in values if value is not None and not value.bound)


def _check_largest(context: Context, fact: Fact) -> Iterator[Finding]:
    """Check that "up to 3.2x speedup" is the largest speed-up of the table."""
    stated = fact.quantity
    if not stated.factor or stated.bound or not re.search(r"up to\W*$", fact.text[: stated.start], re.I):
        return
    if not re.match(r"\s*(?:speed-?ups?|faster)\b", fact.tail, re.I):
        return
    columns = [(t, c) for t, table_columns in context.tables for c in find_roles(table_columns, "speedup")]
    cells = [(t, r, cell) for t, c in columns for r, cell in enumerate(c.cells) if cell is not None]
    others = [f.quantity for f in context.facts if f.quantity.factor and f is not fact]
    if (
        len(columns) != 1
        or len(cells) < 2
        or any(overlap(stated.interval(1.0), x.interval(1.0), SLACK) for x in others)
    ):
        return
    table, row, largest = max(cells, key=lambda c: c[2].value)
    if any(overlap(stated.interval(1.0), cell.interval(1.0), 0.02) for *_, cell in cells):
        return
    arithmetic = f"stated twice: up to {stated.text} here, at most {largest.text} in line {table.rows[row].line}"
    yield create_finding(context, fact, "restated", arithmetic, compute_factor(stated.value, largest.value), 0.6)


def _check_peer_factor(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    """Check "4,000 rows/s (8x over CPU)" against the row of the CPU."""
    for first, factor in ((a, b) for n, a in enumerate(facts) for b in facts[n + 1 : n + 4]):
        behind = _OVER.match(factor.tail)
        rate, claim = first.quantity, factor.quantity
        if behind is None or rate.dims != q.RATE or not rate.noun or not claim.factor or claim.bound or rate.bound:
            continue
        if "(" not in first.text[rate.end : claim.start]:
            continue
        name = behind[1].lower()
        rows = [
            (table.rows[r].line, cell)
            for table, columns in context.tables
            for column in find_roles(columns, "rate")
            for r, cell in enumerate(column.cells)
            if cell is not None and _has_same_noun(cell, rate) and name in get_label(table, r, columns).lower().split()
        ]
        statements = [
            (f.line, f.quantity) for f in context.facts if f.line != first.line and _names_peer(f, name, rate)
        ]
        bases = rows + statements
        if not rows or any(
            overlap(claim.interval(1.0), divide(rate.interval(), b.interval()), 0.01) for _, b in bases if b.value
        ):
            continue
        line, base = min(
            rows, key=lambda b: compute_factor(rate.value / b[1].value, claim.value) if b[1].value else 1e9
        )
        value = rate.value / base.value
        arithmetic = f"speed-up: {rate.text} / {base.text} (line {line}) = {format_number(value)}×, not {claim.text}"
        yield create_finding(context, factor, "speed-up", arithmetic, compute_factor(value, claim.value), 0.65)


def _names_peer(fact: Fact, name: str, rate: Quantity) -> bool:
    quantity = fact.quantity
    return (
        quantity.dims == q.RATE and _has_same_noun(quantity, rate) and name in (fact.text + " " + fact.heading).lower()
    )


_OTHER_MEANING = re.compile(  # words that give the figure another meaning
    r"\b(?:peaks?|bursts?|theor\w+|expect\w*|estimat\w*|predict\w*|would|could|should|up to|at least|at most|"
    r"previous\w*|earlier|last|before|old|used to|target|goal|limit|max\w*|min\w*|budget|idle|averag\w*|mean|another|"
    r"remaining|if|when|without|per)\b",
    re.I,
)
_FACTOR = re.compile(
    r"\s*(?:faster|slower|cheaper|as fast|the (?:\w+ )?(?:throughput|speed|rate|bandwidth|performance)|higher|more)\b",
    re.I,
)
_MAX_FACTOR = 3.0  # a larger gap means another quantity
_MEASURED = ("rate", "bandwidth", "flops", "time", "latency", "cost", "price", "memory", "size", "number", "other")


@dataclass(frozen=True)
class NamedRow:
    """A row that a statement names, and the offset of the name."""

    table: Table
    columns: list[Column]
    row: int
    label: str
    at: int


def check_named_rows(context: Context, facts: list[Fact]) -> Iterator[Finding]:
    rows = _find_named_rows(context, facts[0].text) if facts else []
    if rows:
        for fact in facts:
            yield from _check_figure(context, fact, rows)
            yield from _check_factor(context, fact, rows)


def _find_named_rows(context: Context, text: str) -> list[NamedRow]:
    """Find the rows of one table whose complete label occurs in the text."""
    rows: list[NamedRow] = []
    for table, columns in context.tables:
        labels = [get_label(table, r, columns).strip() for r in range(len(table.rows))]
        if not columns or columns[0].role != "label":
            continue
        for row, label in enumerate(labels):
            if len(label) < 2 or labels.count(label) > 1 or not re.search(r"[A-Za-z]", label):
                continue
            index = re.search(rf"(?<![\w-]){re.escape(label)}(?![\w-])", text)
            if index:
                rows.append(NamedRow(table, columns, row, label, index.start()))
    longer = [n for n in rows if not any(n.label != m.label and n.label in m.label and n.at >= m.at for m in rows)]
    return longer if len({id(n.table) for n in longer}) == 1 else []


def _check_figure(context: Context, fact: Fact, rows: list[NamedRow]) -> Iterator[Finding]:
    """Check "Server B serves 3,180 requests/s" against the cell of that row."""
    stated = fact.quantity
    if (
        stated.bound
        or stated.top is not None
        or stated.about
        or stated.share
        or stated.factor
        or _OTHER_MEANING.search(fact.sentence)
    ):
        return
    if stated.dims not in (q.RATE, q.BANDWIDTH, q.FLOPS, q.MONEY) or len(re.sub(r"\D", "", stated.text).strip("0")) < 3:
        return
    table, columns = rows[0].table, rows[0].columns
    fitting = [c for c in columns if c.dims == stated.dims and _is_about(c, stated, fact)]
    row_indices = {n.row for n in rows}
    if len(fitting) != 1 or _is_stated_elsewhere(context, fact):
        return
    cells = [(row, cell) for row in row_indices if (cell := fitting[0].cells[row]) is not None and not cell.bound]
    if not cells:
        return
    row, cell = min(cells, key=lambda pair: compute_factor(pair[1].value, stated.value))
    if 1.0 < compute_factor(cell.value, stated.value) < _MAX_FACTOR and not overlap(
        stated.interval(1.0), cell.interval(1.0), 0.01
    ):
        arithmetic = f"stated twice: {stated.text} here, {cell.text} in line {table.get_line(row, fitting[0].index)}"
        yield create_finding(context, fact, "restated", arithmetic, compute_factor(stated.value, cell.value), 0.62)


def _is_about(column: Column, stated: Quantity, fact: Fact) -> bool:
    """Whether a column is about the subject of the statement."""
    if stated.dims == q.RATE:
        return bool(stated.noun) and stated.noun.rstrip("s")[:4] in column.name.lower()
    words = set(re.findall(r"[a-z]{4,}", fact.sentence.lower()))
    return bool(words & set(re.findall(r"[a-z]{4,}", column.name.lower())))


def _is_stated_elsewhere(context: Context, fact: Fact) -> bool:
    """Whether a table or another statement has the same figure."""
    stated = fact.quantity
    cells = [
        c for _, columns in context.tables for column in columns for c in column.cells if c and c.dims == stated.dims
    ]
    others = [f.quantity for f in context.facts if f is not fact and f.quantity.dims == stated.dims]
    return any(overlap(stated.interval(1.0), c.interval(1.0), SLACK) for c in cells + others)


def _check_factor(context: Context, fact: Fact, rows: list[NamedRow]) -> Iterator[Finding]:
    """Check "Server B has 2.4x the throughput of Server A" against both rows."""
    stated = fact.quantity
    if not stated.factor or stated.bound or stated.top is not None or not _FACTOR.match(fact.tail) or len(rows) != 2:
        return
    if not all(n.label in fact.sentence for n in rows) and not any(n.label in fact.sentence for n in rows):
        return
    first, second = rows
    ratios: list[tuple[float, Quantity, Quantity]] = []
    for column in first.columns:
        a, b = column.cells[first.row], column.cells[second.row]
        if column.role not in _MEASURED or a is None or b is None or not a.value or not b.value:
            continue
        big, small = (a, b) if a.value >= b.value else (b, a)
        if overlap(stated.interval(1.0), divide(big.interval(), small.interval()), 0.01):
            return
        ratios.append((big.value / small.value, big, small))
    if re.search(r"\b(?:than|of|over)\b", fact.tail[:60]) is None or not ratios:
        return
    value, big, small = min(ratios, key=lambda item: compute_factor(item[0], stated.value))
    if compute_factor(value, stated.value) < _MAX_FACTOR and not _OTHER_MEANING.search(fact.tail[:60]):
        arithmetic = f"speed-up: {big.text} / {small.text} = {format_number(value)}×, not {stated.text}"
        yield create_finding(context, fact, "speed-up", arithmetic, compute_factor(value, stated.value), 0.65)


def check_unit_columns(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    """Compare two columns of one quantity in different units; report rows that differ if most agree."""
    for first, second in combinations([c for c in columns if c.dims != q.NONE and not c.mixed], 2):
        if first.dims != second.dims or not _get_unit(first) or _get_unit(first) == _get_unit(second):
            continue
        if _get_quantity_name(first) != _get_quantity_name(second):
            continue
        both = [(r, a, b) for r, (a, b) in enumerate(zip(first.cells, second.cells, strict=True)) if a and b]
        matching = [r for r, a, b in both if overlap(a.interval(1.0, False), b.interval(1.0, False), SLACK)]
        if len(matching) < max(2, 0.6 * len(both)) or len(matching) == len(both):
            continue
        for row, a, b in both:
            factor = compute_factor(a.value, b.value) if a.value > 0 and b.value > 0 else 1.0
            if row in matching or factor > _MAX_FACTOR:
                continue
            arithmetic = f"stated twice: {a.text} is {format_value(a.value, a.dims)}, not {b.text}"
            line, says = table.get_line(row, second.index), table.format_row(row, second.index)
            yield Finding(context.document.path, line, "restated", says, arithmetic, confidence(factor, 0.85))


def _get_quantity_name(column: Column) -> str:
    """Return the name without the unit: "payload" for "Payload (Gb/s)", "" for "GiB"."""
    bare = re.sub(r"[(\[][^)\]]*[)\]]", " ", column.name)
    return " ".join(
        word for word in bare.lower().split() if q.parse_unit(word) is None and word != _get_unit(column).lower()
    )


def _get_unit(column: Column) -> str:
    """Return the unit of all cells, or "" if they differ."""
    units = {cell.unit for cell in column.cells if cell is not None}
    return units.pop() if len(units) == 1 else ""


_LINEAR = re.compile(
    r"(?<![\w-])(near[- ]|almost )?linear(?:ly)?\s+(?:scal\w+|growth|with)|scales?\s+(near[- ]|almost )?linear", re.I
)
_NOT = re.compile(r"\b(?:not|no|non|sub|super|never|isn't|expect\w*|should|would|goal|target|ideal)\b", re.I)


def check_linear_claims(context: Context) -> Iterator[Finding]:
    for line in context.document.statements():
        claim = _LINEAR.search(line.text)
        if claim is None or _NOT.search(line.text[: claim.end() + 10]):
            continue
        for table, columns in context.tables:
            if table.section == line.section or (table.heading == line.heading and table.line < line.number):
                yield from _check_exponent(context, line, table, columns, bool(claim[1] or claim[2]))


def _check_exponent(
    context: Context, line: Line, table: Table, columns: list[Column], nearly: bool
) -> Iterator[Finding]:
    """Check the exponent of time over the column that varies, from the first row to the last."""
    rest = line.text.lower()
    for sweep in columns:
        if sweep.role not in ("number", "count", "batch", "dim", "size") or not (
            sweep.words & set(re.findall(r"\w+", rest)) or len(find_roles(columns, "time")) == 1
        ):
            continue
        for time in find_roles(columns, "time"):
            pairs = [
                (x.value, y.value)
                for x, y in zip(sweep.cells, time.cells, strict=True)
                if x and y and x.value > 0 and y.value > 0
            ]
            if len(pairs) < 3 or pairs != sorted(pairs) or pairs[-1][0] < 3.9 * pairs[0][0]:
                continue
            (x0, y0), (x1, y1) = pairs[0], pairs[-1]
            exponent = math.log(y1 / y0) / math.log(x1 / x0)
            low, high = (0.6, 1.4) if nearly else (0.7, 1.3)
            if not low <= exponent <= high and not re.search(r"throughput|constant", rest):
                arithmetic = (
                    f"linear: {sweep.name} × {x1 / x0:.4g} gives time × {y1 / y0:.4g} (lines {table.rows[0].line}"
                    f" to {table.rows[-1].line}), a power of {exponent:.2f}"
                )
                yield Finding(context.document.path, line.number, "linear", line.text.strip(), arithmetic, 0.6)
                return
        return
