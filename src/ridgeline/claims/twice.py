"""One quantity in two columns, each in its own unit: "Payload (Gb/s)" beside "Payload (GB/s)", "GB" beside "GiB"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import Column
from ridgeline.claims.context import Context
from ridgeline.claims.document import Table
from ridgeline.claims.finding import SLACK, Finding, apart, confidence, overlap, shown

_NEAR = 3.0  # further apart it is something else


def check(context: Context, table: Table, found: list[Column]) -> Iterator[Finding]:
    """Where most rows say the same in both, the others are wrong."""
    for first, second in combinations([c for c in found if c.dims != q.NONE and not c.mixed], 2):
        if first.dims != second.dims or not _units(first) or _units(first) == _units(second):
            continue
        if _name(first) != _name(second):
            continue
        both = [(r, a, b) for r, (a, b) in enumerate(zip(first.cells, second.cells, strict=True)) if a and b]
        held = [r for r, a, b in both if overlap(a.interval(1.0, False), b.interval(1.0, False), SLACK)]
        if len(held) < max(2, 0.6 * len(both)) or len(held) == len(both):
            continue
        for row, a, b in both:
            factor = apart(a.value, b.value) if a.value > 0 and b.value > 0 else 1.0
            if row in held or factor > _NEAR:
                continue
            what = f"stated twice: {a.text} is {shown(a.value, a.dims)}, not {b.text}"
            where, says = table.at(row, second.place), table.says(row, second.place)
            yield Finding(context.document.path, where, "restated", says, what, confidence(factor, 0.85))


def _name(column: Column) -> str:
    """What is measured, without the unit: "payload" of "Payload (Gb/s)", nothing of "GiB"."""
    bare = re.sub(r"[(\[][^)\]]*[)\]]", " ", column.name)
    return " ".join(
        word for word in bare.lower().split() if q.parse_unit(word) is None and word != _units(column).lower()
    )


def _units(column: Column) -> str:
    """The one unit of all cells; empty if there are several."""
    units = {cell.unit for cell in column.cells if cell is not None}
    return units.pop() if len(units) == 1 else ""
