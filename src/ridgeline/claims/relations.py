"""Relations that must hold in every row of a table: each names the roles it needs and what they multiply to.

The stated column over the computed one is a constant: 1, or one that the report explains (a count it states: GPUs,
tokens per text), or, where the relation is `open`, any one that most rows agree on (a definition, a price, a peak).
Rows that fall out of it are findings. Where rows agree on nothing the relation does not apply. A row whose name says
how many there are, "c (2 GPUs)", holds with that many as well as without.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import inf, log, log2

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import COUNTED, Column, find_roles, heads
from ridgeline.claims.context import Context
from ridgeline.claims.document import Table
from ridgeline.claims.finding import (
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
    units_mixed,
)
from ridgeline.claims.known import RELATIONS, Relation

_ENOUGH = 8.0
_MULTIPLIED = (q.RATE, q.BANDWIDTH, q.FLOPS, q.MONEY)  # of n together n times as much
_PER_HEAD = re.compile(rf"(?:\bper|/)\s?{COUNTED}", re.I)


@dataclass(frozen=True)
class Fit:
    """How one relation fares with one choice of columns."""

    relation: Relation
    columns: tuple[Column, ...]
    target: Column
    constants: dict[int, Interval]  # row -> stated / computed
    many: dict[int, tuple[Interval, ...]]  # row -> one, and how many its name says
    centre: float  # the constant taken
    held: frozenset[int]  # rows it holds for
    explained: bool

    @property
    def share(self) -> float:
        return len(self.held) / len(self.constants)

    def meets(self, row: int, centre: float) -> bool:
        """Whether a row shows this constant, of one or of as many as its name says."""
        return any(overlap(self.constants[row], times((centre, centre), n), SLACK) for n in self.many[row])


def check(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    """At most one relation speaks about a column: the one that holds for most rows."""
    counts = [sorted(heads(table, row, found)) for row in range(len(table.rows))]
    for role in dict.fromkeys(relation.target for relation in RELATIONS):
        for target in find_roles(found, role):
            fits = [fit for relation in RELATIONS for fit in _fits(context, table, found, relation, target, counts)]
            if fits:
                best = max(fits, key=lambda fit: (fit.share, fit.explained, _kinship(fit)))
                yield from _told(context, table, best)


def _kinship(fit: Fit) -> tuple[int, int]:
    return (sum(len(fit.target.words & column.words) for column in fit.columns), len(fit.columns))


def _fits(
    context: Context, table: Table, found: list[Column], relation: Relation, target: Column, counts: list[list[float]]
) -> Iterator[Fit]:
    if relation.target != target.role or any(find_roles(found, role) for role in relation.unless):
        return
    choices = [find_roles(found, role) for role in relation.above + relation.below]
    for chosen in product(*choices):
        if target in chosen or len(set(chosen)) < len(chosen):
            continue
        constants = {}
        for row in range(len(table.rows)):
            computed = _computed(relation, chosen, row)
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
            constants[row] = over(stated.interval(), computed)
        if not constants or (relation.open and len(constants) < 3 and not _priced(relation)):
            continue
        many = {row: _many(relation, target, counts[row]) for row in constants}
        yield _fit(context, table, relation, tuple(chosen), target, constants, many)


def _many(relation: Relation, target: Column, counts: list[float]) -> tuple[Interval, ...]:
    """As exact multiples; those who wait for an answer each are busy at most all the time."""
    if relation.dims not in _MULTIPLIED or "n" in relation.above:
        return ((1.0, 1.0),)
    if counts and "latency" in relation.below:
        return ((1.0, 1.0), (1.0, counts[-1]))
    shares = [1 / n for n in counts if _PER_HEAD.search(target.name)]
    return ((1.0, 1.0), *((n, n) for n in (*counts, *shares)))


def _priced(relation: Relation) -> bool:
    return relation.dims == q.MONEY and "time" in relation.above


def _computed(relation: Relation, chosen: Sequence[Column], row: int) -> Interval | None:
    value: Interval = (1.0, 1.0)
    for place, column in enumerate(chosen):
        cell = column.cells[row]
        if cell is None or cell.bound or cell.top is not None or cell.value <= 0:
            return None
        exact = column.role in ("batch", "n", "dim", "count")
        interval = (cell.value, cell.value) if exact and not cell.about else cell.interval()
        value = times(value, interval) if place < len(relation.above) else over(value, interval)
    return value


def _fit(
    context: Context,
    table: Table,
    relation: Relation,
    chosen: tuple[Column, ...],
    target: Column,
    constants: dict[int, Interval],
    many: dict[int, tuple[Interval, ...]],
) -> Fit:
    wide = {row: _widened(target, row, interval) for row, interval in constants.items()}

    def holding(centre: float) -> frozenset[int]:
        return frozenset(row for row, interval in wide.items() if overlap(interval, (centre, centre), SLACK))

    # the point that most intervals contain is among their ends
    ends = sorted({end for interval in constants.values() for end in interval})
    middles = [(a + b) / 2 for a, b in pairwise(ends)] + ends
    common = max(middles, key=lambda c: len(holding(c))) if middles else 1.0
    candidates = [(1.0, True)] if not relation.open or relation.dims == q.RATE else []
    if relation.dims == q.RATE and not relation.above:
        candidates += [(float(b), True) for b in context.batches(table.line, table.heading)]
    prices = [f.quantity.value for f in context.facts if f.quantity.dims == q.PRICE] if _priced(relation) else []
    candidates += [(price, True) for price in prices]
    if relation.name == "share = part / peak":
        candidates += [(1 / f.quantity.value, True) for f in context.peaks(chosen[0].dims) if f.quantity.value > 0]
    if relation.dims == q.BANDWIDTH and not relation.above:
        candidates += [(f.quantity.value, True) for f in context.facts if f.quantity.dims == q.BYTES]
    taken, explained = max(candidates, key=lambda c: len(holding(c[0])), default=(common, False))
    if len(holding(common)) > len(holding(taken)):
        near = [n for n in context.counts if overlap((common, common), (n, n), 0.01)]
        taken, explained = (float(near[0]), True) if near and holding(near[0]) >= holding(common) else (common, False)
    held = frozenset(
        row for row, ends in wide.items() if any(overlap(ends, times((taken, taken), n), SLACK) for n in many[row])
    )
    return Fit(relation, chosen, target, constants, many, taken, held, explained)


def _widened(target: Column, row: int, interval: Interval) -> Interval:
    """Stated figures may be rounded or cut off: one step of the last digit instead of half of one."""
    cell = target.cells[row]
    if cell is None:
        return interval
    half = 0.5 * cell.loose / cell.value
    return interval[0] * (1 - half), interval[1] * (1 + half)


def _told(context: Context, table: Table, fit: Fit) -> Iterator[Finding]:
    rows, held, relation = set(fit.constants), fit.held, fit.relation
    batches = context.batches(table.line, table.heading)
    if relation.dims == q.RATE and "time" in relation.below and not fit.explained and len(held) >= 2:
        wrong = _systematic(context, table, fit, batches)
        if wrong:
            yield from wrong
            return
    if _priced(relation) and relation.open and not fit.explained:
        yield from _price_differs(context, table, fit)
    if len(held) == len(rows) or not _applies(fit):
        return
    for row in sorted(rows - held - (_others(fit) if relation.open else set())):
        yield _finding(context, table, fit, row, fit.centre, relation.sure)


def _others(fit: Fit) -> set[int]:
    """Rows that fall out together, on another constant: another batch, another price."""
    out = sorted(set(fit.constants) - fit.held)
    return {a for a in out for b in out if a != b and overlap(fit.constants[a], fit.constants[b], SLACK)}


def _applies(fit: Fit) -> bool:
    """Whether enough rows hold for the others to be wrong."""
    held, rows = len(fit.held), len(fit.constants)
    if not fit.relation.open and not fit.relation.above:  # one at a time: only that, and more than once
        return abs(fit.centre - 1) < SLACK and held >= max(2, 0.6 * rows)
    if fit.explained and not fit.relation.open:
        return (held >= 1 and 2 * held >= rows) or (held == 0 and rows == 1)
    if not fit.explained and _evidence(fit) < _ENOUGH:
        return False
    return (held >= 3 and held >= 0.6 * rows) or (held == 2 and rows == 3 and fit.explained)


def _evidence(fit: Fit) -> float:
    """Bits against chance: how narrow the constants of the rows that hold are, against what the column ranges over."""
    told = [(fit.constants[row], cell.value) for row in fit.held if (cell := fit.target.cells[row]) is not None]
    values = [value for _, value in told]
    room = log(max(values) / min(values)) if values and min(values) > 0 else 0.0
    widths = sorted(log(high / low) if low > 0 else inf for (low, high), _ in told)[:-1]
    return sum(max(0.0, log2(room / max(width, SLACK))) if room > 0 else 0.0 for width in widths)


def _systematic(context: Context, table: Table, fit: Fit, batches: list[int]) -> list[Finding]:
    """All rows agree on a constant that nothing explains, beside a batch size that would."""
    stated = "batch" in fit.relation.above
    if len(fit.held) < 0.6 * len(fit.constants) or not (stated or batches):
        return []
    if fit.relation.above not in ((), ("batch",)):
        return []
    expected = 1.0 if stated else float(batches[-1])
    near = stated or str(batches[-1]) in table.heading
    whole = float(round(fit.centre))
    if not near and fit.centre < 128 and all(fit.meets(r, whole) for r in fit.held):
        return []  # so many at once, perhaps: the batch was stated elsewhere
    if not stated and (abs(fit.centre - 1) < 0.02 or fit.centre > expected * 1.01):
        return []
    if stated and fit.centre > 1.01:
        return []  # each item may count several times: tokens of a text, GPUs
    return [
        _finding(context, table, fit, row, expected, 0.9 if near else 0.8)
        for row in sorted(fit.constants)
        if not fit.meets(row, expected)
    ]


def _price_differs(context: Context, table: Table, fit: Fit) -> Iterator[Finding]:
    prices = [f for f in context.facts if f.quantity.dims == q.PRICE and f.section == table.section]
    if len(prices) != 1 or len(fit.relation.above) != 1:
        return
    price = prices[0].quantity
    near = apart(fit.centre, price.value) < 1.2
    for row in sorted(fit.constants) if near else []:
        if not overlap(_widened(fit.target, row, fit.constants[row]), price.interval(), 0.0):
            yield _finding(context, table, fit, row, price.value, 0.8)


def _finding(context: Context, table: Table, fit: Fit, row: int, centre: float, sure: float) -> Finding:
    relation, stated = fit.relation, fit.target.cells[row]
    assert stated is not None  # noqa: S101
    cells = [column.cells[row] for column in fit.columns]
    texts = [cell.text for cell in cells if cell is not None]
    above, below = texts[: len(relation.above)], texts[len(relation.above) :]
    value = centre
    for place, cell in enumerate(cells):
        value *= (cell.value if place < len(relation.above) else 1 / cell.value) if cell is not None else 1
    several = min((n for _, n in fit.many[row]), key=lambda n: apart(stated.value, value * n))
    value *= several
    constant = [] if abs(centre - 1) < 1e-9 and (above or not below) else [_constant(relation, centre)]
    constant = constant if several == 1 else [digits(several), *constant]
    sides = " × ".join([*constant, *above] or ["1"]) + "".join(f" / {text}" for text in below)
    factor = apart(stated.value, value)
    mixed = units_mixed(factor, fit.target.dims)
    if relation.dims == q.BYTES and factor < 1.1:
        mixed = mixed or "MB for MiB"
    what = f"{relation.name}: {sides} = {_shown(value, fit)}, not {stated.text}"
    held = (
        f"; the constant holds for {len(fit.held)} of {len(fit.constants)} rows" if relation.open and fit.held else ""
    )
    if factor >= 1.5:
        what += f" (a factor of {digits(factor)})"
    kind = "unit" if mixed else relation.name.split(" = ")[0].replace(" ", "-")
    where, says = table.at(row, fit.target.place), table.says(row, fit.target.place)
    return Finding(context.document.path, where, kind, says, what + held, confidence(factor, sure))


def _constant(relation: Relation, centre: float) -> str:
    if _priced(relation):
        return f"${centre * 3600:,.4g}/h"
    if relation.dims == q.NONE and relation.name.startswith("share"):
        return f"1/({shown(1 / centre, q.BANDWIDTH if 'bandwidth' in relation.above else q.NONE)})"
    return digits(centre)


def _shown(value: float, fit: Fit) -> str:
    share = any(cell is not None and cell.share for cell in fit.target.cells)
    return f"{value:.1%}" if share else shown(value, fit.relation.dims)
