"""Words that promise a law: "linear" beside a table that shows another one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ridgeline.claims.columns import Column, find_roles
from ridgeline.claims.context import Context
from ridgeline.claims.document import Line, Table
from ridgeline.claims.finding import Finding

_LINEAR = re.compile(
    r"(?<![\w-])(near[- ]|almost )?linear(?:ly)?\s+(?:scal\w+|growth|with)|scales?\s+(near[- ]|almost )?linear", re.I
)
_NOT = re.compile(r"\b(?:not|no|non|sub|super|never|isn't|expect\w*|should|would|goal|target|ideal)\b", re.I)


def check(context: Context) -> Iterator[Finding]:
    for line in context.document.statements():
        said = _LINEAR.search(line.text)
        if said is None or _NOT.search(line.text[: said.end() + 10]):
            continue
        for table, found in context.tables:
            if table.section == line.section or (table.heading == line.heading and table.line < line.number):
                yield from _law(context, line, table, found, bool(said[1] or said[2]))


def _law(context: Context, line: Line, table: Table, found: list[Column], nearly: bool) -> Iterator[Finding]:
    """The exponent of time over what was swept, from its first row to its last."""
    rest = line.text.lower()
    for swept in found:
        if swept.role not in ("number", "count", "batch", "dim", "size") or not (
            swept.words & set(re.findall(r"\w+", rest)) or len(find_roles(found, "time")) == 1
        ):
            continue
        for time in find_roles(found, "time"):
            pairs = [
                (x.value, y.value)
                for x, y in zip(swept.cells, time.cells, strict=True)
                if x and y and x.value > 0 and y.value > 0
            ]
            if len(pairs) < 3 or pairs != sorted(pairs) or pairs[-1][0] < 3.9 * pairs[0][0]:
                continue
            (x0, y0), (x1, y1) = pairs[0], pairs[-1]
            exponent = math.log(y1 / y0) / math.log(x1 / x0)
            low, high = (0.6, 1.4) if nearly else (0.7, 1.3)
            if not low <= exponent <= high and not re.search(r"throughput|constant", rest):
                what = (
                    f"linear: {swept.name} × {x1 / x0:.4g} gives time × {y1 / y0:.4g} (lines {table.rows[0].line}"
                    f" to {table.rows[-1].line}), a power of {exponent:.2f}"
                )
                yield Finding(context.document.path, line.number, "linear", line.text.strip(), what, 0.6)
                return
        return
