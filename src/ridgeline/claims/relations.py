"""Relations that must hold in every row of a table, such as rate = batch / time.

Each relation names the roles of the columns that it needs. The stated column divided by the computed one is a constant:
1, or one that the report explains (a count it states: GPUs, tokens per text), or, where the relation is `open`, any
constant that most rows agree on (a definition, a price, a peak). Rows with another constant are findings. If the rows
agree on no constant, the relation does not apply. A row whose label gives a count, "c (2 GPUs)", may hold with that
count or without.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import inf, log, log2

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import DEVICE_WORDS, Column, find_roles, read_counts
from ridgeline.claims.context import Context
from ridgeline.claims.document import Table
from ridgeline.claims.finding import Finding, confidence
from ridgeline.claims.quantities import (
    SLACK,
    Dims,
    Interval,
    compute_factor,
    divide,
    find_unit_mixup,
    format_number,
    format_value,
    multiply,
    overlap,
)


@dataclass(frozen=True)
class Relation:
    """`target` = constant × product of `above` / product of `below`; all four are roles of columns."""

    name: str
    target: str
    above: tuple[str, ...]
    below: tuple[str, ...]
    dims: Dims
    open: bool = False  # any constant is allowed
    base_confidence: float = 0.93
    unless: tuple[str, ...] = ()  # does not apply if the table has one of these roles


RELATIONS = (
    Relation("rate = batch / time", "rate", ("batch",), ("time",), q.RATE),
    Relation("rate = n × batch / time", "rate", ("n", "batch"), ("time",), q.RATE, open=True),
    Relation("rate = n / time", "rate", ("n",), ("time",), q.RATE, open=True, unless=("batch",)),
    Relation("rate = n / latency", "rate", ("n",), ("latency",), q.RATE, open=True, unless=("batch", "time")),
    Relation("rate = 1 / latency", "rate", (), ("latency",), q.RATE, unless=("batch", "time", "n")),
    Relation("rate = batch / latency", "rate", ("batch",), ("latency",), q.RATE, open=True, unless=("time",)),
    Relation("rate = count / time", "rate", ("count",), ("time",), q.RATE, open=True, unless=("batch",)),
    Relation("rate = items / time", "rate", (), ("time",), q.RATE, open=True, unless=("batch",)),
    Relation("bandwidth = bytes / time", "bandwidth", ("size",), ("time",), q.BANDWIDTH, open=True),
    Relation(
        "bandwidth = bytes / time", "bandwidth", ("size",), ("latency",), q.BANDWIDTH, open=True, unless=("time",)
    ),
    Relation("bandwidth = n × bytes / time", "bandwidth", ("n", "size"), ("time",), q.BANDWIDTH, open=True),
    Relation(
        "bandwidth = n × bytes / time",
        "bandwidth",
        ("n", "size"),
        ("latency",),
        q.BANDWIDTH,
        open=True,
        unless=("time",),
    ),
    Relation("bandwidth = rate × bytes", "bandwidth", ("rate", "size"), (), q.BANDWIDTH, open=True),
    Relation("bandwidth = bytes / time", "bandwidth", (), ("time",), q.BANDWIDTH, open=True, unless=("size",)),
    Relation("FLOP/s = work / time", "flops", (), ("time",), q.FLOPS, open=True, unless=("size",)),
    Relation("efficiency = speed-up / n", "efficiency", ("speedup",), (), q.NONE, open=True, unless=("n",)),
    Relation("total = count × unit", "cost", ("count", "cost"), (), q.MONEY),
    Relation("total = count × unit", "time", ("count", "time"), (), q.TIME),
    Relation("share = part / peak", "share", ("bandwidth",), (), q.NONE, open=True),
    Relation("share = part / peak", "efficiency", ("bandwidth",), (), q.NONE, open=True, unless=("n",)),
    Relation("share = part / peak", "share", ("flops",), (), q.NONE, open=True),
    Relation("share = part / peak", "efficiency", ("flops",), (), q.NONE, open=True, unless=("n",)),
    Relation("share = part / whole", "share", ("memory",), (), q.NONE, open=True, base_confidence=0.8),
    Relation("cost = price × time", "cost", ("price", "time"), (), q.MONEY),
    Relation("cost = price × n × time", "cost", ("price", "n", "time"), (), q.MONEY),
    Relation("cost = price × time", "cost", ("time",), (), q.MONEY, open=True, unless=("price",)),
    Relation("cost = price × n × time", "cost", ("n", "time"), (), q.MONEY, open=True, unless=("price",)),
    Relation("cost of each = price / rate", "each", ("price",), ("rate",), q.MONEY, base_confidence=0.88),
    Relation("size = count × dimension × bytes", "size", ("count", "dim"), (), q.BYTES, open=True),
    Relation("size = parameters × bytes", "size", ("params",), (), q.BYTES, open=True, base_confidence=0.8),
    Relation("size = parameters × bytes", "memory", ("params",), (), q.BYTES, open=True, base_confidence=0.7),
    Relation("total = count × unit", "n", ("n",), (), q.NONE, open=True, base_confidence=0.85),
    Relation("total batch = n × batch", "batch", ("n",), (), q.NONE, open=True, base_confidence=0.8),
)
_ENOUGH_EVIDENCE = 8.0  # bits
_MULTIPLIED = (q.RATE, q.BANDWIDTH, q.FLOPS, q.MONEY)  # n devices together give n times as much
_PER_DEVICE = re.compile(rf"(?:\bper|/)\s?{DEVICE_WORDS}", re.I)


@dataclass(frozen=True)
class Fit:
    """How well one relation holds for one choice of columns."""

    relation: Relation
    columns: tuple[Column, ...]
    target: Column
    constants: dict[int, Interval]  # row -> stated / computed
    multiples: dict[int, tuple[Interval, ...]]  # row -> 1, and the count of its label
    centre: float  # the constant
    matching: frozenset[int]  # rows that hold
    explained: bool

    @property
    def share(self) -> float:
        return len(self.matching) / len(self.constants)

    def matches(self, row: int, centre: float) -> bool:
        """Whether a row has this constant, for one device or for the count of its label."""
        return any(overlap(self.constants[row], multiply((centre, centre), n), SLACK) for n in self.multiples[row])


def check_relations(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    """Apply to each column the one relation that holds for most rows."""
    counts = [sorted(read_counts(table, row, columns)) for row in range(len(table.rows))]
    for role in dict.fromkeys(relation.target for relation in RELATIONS):
        for target in find_roles(columns, role):
            fits = [
                fit for relation in RELATIONS for fit in _find_fits(context, table, columns, relation, target, counts)
            ]
            if fits:
                best = max(fits, key=lambda fit: (fit.share, fit.explained, _score_kinship(fit)))
                yield from _report(context, table, best)


def _score_kinship(fit: Fit) -> tuple[int, int]:
    return (sum(len(fit.target.words & column.words) for column in fit.columns), len(fit.columns))


def _find_fits(
    context: Context, table: Table, columns: list[Column], relation: Relation, target: Column, counts: list[list[float]]
) -> Iterator[Fit]:
    if relation.target != target.role or any(find_roles(columns, role) for role in relation.unless):
        return
    choices = [find_roles(columns, role) for role in relation.above + relation.below]
    for chosen in product(*choices):
        if target in chosen or len(set(chosen)) < len(chosen):
            continue
        constants = {}
        for row in range(len(table.rows)):
            computed = _compute(relation, chosen, row)
            stated = target.cells[row]
            if (
                computed is None
                or stated is None
                or stated.bound
                or stated.top is not None
                or computed[0] <= 0
                or stated.value <= 0
            ):
                continue
            constants[row] = divide(stated.interval(), computed)
        if not constants or (relation.open and len(constants) < 3 and not _has_price(relation)):
            continue
        multiples = {row: _list_multiples(relation, target, counts[row]) for row in constants}
        yield _fit_relation(context, table, relation, tuple(chosen), target, constants, multiples)


def _list_multiples(relation: Relation, target: Column, counts: list[float]) -> tuple[Interval, ...]:
    """List the factors by which a row may differ; n clients that wait for answers give at most n times the rate."""
    if relation.dims not in _MULTIPLIED or "n" in relation.above:
        return ((1.0, 1.0),)
    if counts and "latency" in relation.below:
        return ((1.0, 1.0), (1.0, counts[-1]))
    shares = [1 / n for n in counts if _PER_DEVICE.search(target.name)]
    return ((1.0, 1.0), *((n, n) for n in (*counts, *shares)))


def _has_price(relation: Relation) -> bool:
    return relation.dims == q.MONEY and "time" in relation.above


def _compute(relation: Relation, chosen: Sequence[Column], row: int) -> Interval | None:
    value: Interval = (1.0, 1.0)
    for index, column in enumerate(chosen):
        cell = column.cells[row]
        if cell is None or cell.bound or cell.top is not None or cell.value <= 0:
            return None
        exact = column.role in ("batch", "n", "dim", "count")
        interval = (cell.value, cell.value) if exact and not cell.about else cell.interval()
        value = multiply(value, interval) if index < len(relation.above) else divide(value, interval)
    return value


def _fit_relation(
    context: Context,
    table: Table,
    relation: Relation,
    chosen: tuple[Column, ...],
    target: Column,
    constants: dict[int, Interval],
    multiples: dict[int, tuple[Interval, ...]],
) -> Fit:
    wide = {row: _widen(target, row, interval) for row, interval in constants.items()}

    def holding(centre: float) -> frozenset[int]:
        return frozenset(row for row, interval in wide.items() if overlap(interval, (centre, centre), SLACK))

    # The point that most intervals contain lies between two of their ends.
    ends = sorted({end for interval in constants.values() for end in interval})
    middles = [(a + b) / 2 for a, b in pairwise(ends)] + ends
    common = max(middles, key=lambda c: len(holding(c))) if middles else 1.0
    candidates = [(1.0, True)] if not relation.open or relation.dims == q.RATE else []
    if relation.dims == q.RATE and not relation.above:
        candidates += [(float(b), True) for b in context.get_batch_sizes(table.line, table.heading)]
    prices = [f.quantity.value for f in context.facts if f.quantity.dims == q.PRICE] if _has_price(relation) else []
    candidates += [(price, True) for price in prices]
    if relation.name == "share = part / peak":
        candidates += [(1 / f.quantity.value, True) for f in context.find_peaks(chosen[0].dims) if f.quantity.value > 0]
    if relation.dims == q.BANDWIDTH and not relation.above:
        candidates += [(f.quantity.value, True) for f in context.facts if f.quantity.dims == q.BYTES]
    taken, explained = max(candidates, key=lambda c: len(holding(c[0])), default=(common, False))
    if len(holding(common)) > len(holding(taken)):
        close_counts = [n for n in context.counts if overlap((common, common), (n, n), 0.01)]
        taken, explained = (
            (float(close_counts[0]), True)
            if close_counts and holding(close_counts[0]) >= holding(common)
            else (common, False)
        )
    matching = frozenset(
        row
        for row, ends in wide.items()
        if any(overlap(ends, multiply((taken, taken), n), SLACK) for n in multiples[row])
    )
    return Fit(relation, chosen, target, constants, multiples, taken, matching, explained)


def _widen(target: Column, row: int, interval: Interval) -> Interval:
    """Widen to one step of the last digit: a stated figure may be rounded or cut off."""
    cell = target.cells[row]
    if cell is None:
        return interval
    half = 0.5 * cell.loose / cell.value
    return interval[0] * (1 - half), interval[1] * (1 + half)


def _report(context: Context, table: Table, fit: Fit) -> Iterator[Finding]:
    rows, matching, relation = set(fit.constants), fit.matching, fit.relation
    batches = context.get_batch_sizes(table.line, table.heading)
    if relation.dims == q.RATE and "time" in relation.below and not fit.explained and len(matching) >= 2:
        wrong = _find_systematic_error(context, table, fit, batches)
        if wrong:
            yield from wrong
            return
    if _has_price(relation) and relation.open and not fit.explained:
        yield from _check_price(context, table, fit)
    if len(matching) == len(rows) or not _is_convincing(fit):
        return
    for row in sorted(rows - matching - (_find_second_group(fit) if relation.open else set())):
        yield _create_finding(context, table, fit, row, fit.centre, relation.base_confidence)


def _find_second_group(fit: Fit) -> set[int]:
    """Find rows that share another constant: another batch size, another price."""
    out = sorted(set(fit.constants) - fit.matching)
    return {a for a in out for b in out if a != b and overlap(fit.constants[a], fit.constants[b], SLACK)}


def _is_convincing(fit: Fit) -> bool:
    """Whether enough rows hold to call the others wrong."""
    matching, rows = len(fit.matching), len(fit.constants)
    if not fit.relation.open and not fit.relation.above:  # rate = 1 / latency: several rows must show it
        return abs(fit.centre - 1) < SLACK and matching >= max(2, 0.6 * rows)
    if fit.explained and not fit.relation.open:
        return (matching >= 1 and 2 * matching >= rows) or (matching == 0 and rows == 1)
    if not fit.explained and _compute_evidence(fit) < _ENOUGH_EVIDENCE:
        return False
    return (matching >= 3 and matching >= 0.6 * rows) or (matching == 2 and rows == 3 and fit.explained)


def _compute_evidence(fit: Fit) -> float:
    """Return bits of evidence against chance: narrow constants over a wide range of values."""
    pairs = [(fit.constants[row], cell.value) for row in fit.matching if (cell := fit.target.cells[row]) is not None]
    values = [value for _, value in pairs]
    spread = log(max(values) / min(values)) if values and min(values) > 0 else 0.0
    widths = sorted(log(high / low) if low > 0 else inf for (low, high), _ in pairs)[:-1]
    return sum(max(0.0, log2(spread / max(width, SLACK))) if spread > 0 else 0.0 for width in widths)


def _find_systematic_error(context: Context, table: Table, fit: Fit, batches: list[int]) -> list[Finding]:
    """Report all rows if they agree on a constant that only a stated batch size explains."""
    stated = "batch" in fit.relation.above
    if len(fit.matching) < 0.6 * len(fit.constants) or not (stated or batches):
        return []
    if fit.relation.above not in ((), ("batch",)):
        return []
    expected = 1.0 if stated else float(batches[-1])
    nearby = stated or str(batches[-1]) in table.heading
    rounded = float(round(fit.centre))
    if not nearby and fit.centre < 128 and all(fit.matches(r, rounded) for r in fit.matching):
        return []  # perhaps a small batch; the stated one belongs to another table
    if not stated and (abs(fit.centre - 1) < 0.02 or fit.centre > expected * 1.01):
        return []
    if stated and fit.centre > 1.01:
        return []  # each item may count several times: tokens of a text, GPUs
    return [
        _create_finding(context, table, fit, row, expected, 0.9 if nearby else 0.8)
        for row in sorted(fit.constants)
        if not fit.matches(row, expected)
    ]


def _check_price(context: Context, table: Table, fit: Fit) -> Iterator[Finding]:
    prices = [f for f in context.facts if f.quantity.dims == q.PRICE and f.section == table.section]
    if len(prices) != 1 or len(fit.relation.above) != 1:
        return
    price = prices[0].quantity
    close = compute_factor(fit.centre, price.value) < 1.2
    for row in sorted(fit.constants) if close else []:
        if not overlap(_widen(fit.target, row, fit.constants[row]), price.interval(), 0.0):
            yield _create_finding(context, table, fit, row, price.value, 0.8)


def _create_finding(
    context: Context, table: Table, fit: Fit, row: int, centre: float, base_confidence: float
) -> Finding:
    relation, stated = fit.relation, fit.target.cells[row]
    assert stated is not None  # noqa: S101
    cells = [column.cells[row] for column in fit.columns]
    texts = [cell.text for cell in cells if cell is not None]
    above, below = texts[: len(relation.above)], texts[len(relation.above) :]
    value = centre
    for index, cell in enumerate(cells):
        value *= (cell.value if index < len(relation.above) else 1 / cell.value) if cell is not None else 1
    several = min((n for _, n in fit.multiples[row]), key=lambda n: compute_factor(stated.value, value * n))
    value *= several
    constant = [] if abs(centre - 1) < 1e-9 and (above or not below) else [_format_constant(relation, centre)]
    constant = constant if several == 1 else [format_number(several), *constant]
    sides = " × ".join([*constant, *above] or ["1"]) + "".join(f" / {text}" for text in below)
    factor = compute_factor(stated.value, value)
    mixed = find_unit_mixup(factor, fit.target.dims)
    if relation.dims == q.BYTES and factor < 1.1:
        mixed = mixed or "MB for MiB"
    arithmetic = f"{relation.name}: {sides} = {_format_result(value, fit)}, not {stated.text}"
    note = (
        f"; the constant holds for {len(fit.matching)} of {len(fit.constants)} rows"
        if relation.open and fit.matching
        else ""
    )
    if factor >= 1.5:
        arithmetic += f" (a factor of {format_number(factor)})"
    kind = "unit" if mixed else relation.name.split(" = ")[0].replace(" ", "-")
    line, says = table.get_line(row, fit.target.index), table.format_row(row, fit.target.index)
    return Finding(context.document.path, line, kind, says, arithmetic + note, confidence(factor, base_confidence))


def _format_constant(relation: Relation, centre: float) -> str:
    if _has_price(relation):
        return f"${centre * 3600:,.4g}/h"
    if relation.dims == q.NONE and relation.name.startswith("share"):
        return f"1/({format_value(1 / centre, q.BANDWIDTH if 'bandwidth' in relation.above else q.NONE)})"
    return format_number(centre)


def _format_result(value: float, fit: Fit) -> str:
    share = any(cell is not None and cell.share for cell in fit.target.cells)
    return f"{value:.1%}" if share else format_value(value, fit.relation.dims)
