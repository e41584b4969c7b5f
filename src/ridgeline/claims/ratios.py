"""Columns that compare: a factor or a percentage beside the two figures of its row, or beside those of a base row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import Column, find_roles
from ridgeline.claims.context import Context
from ridgeline.claims.document import Table
from ridgeline.claims.explanations import Expected, Explanation, check_column
from ridgeline.claims.finding import Finding
from ridgeline.claims.quantities import MIXES, Interval, Quantity, divide, format_number, multiply

COMPARES = re.compile(
    r"speed-?\s?up|faster|slower|improve|change|delta|δ|diff|\bratio|relative|\bvs\b|versus|gain|reduc|sav(?:ed|ing)|"
    r"overhead|regress|increase|decrease|advantage|\bfactor|^[x×]$|^\s*$",
    re.I,
)
STATISTIC = re.compile(  # a column that is a spread or a rank of another column
    r"std|\bsd\b|dev\b|deviation|err(?:or)?\b|σ|±|\bmin\b|\bmax\b|minimum|maximum|\bp\d{2,3}\b|p\d{2}\.\d|\d+th\b|"
    r"varian|\bcv\b|\bci\b|margin|iqr|\brange\b|outlier|alloc|\bgen ?\d|worst|fastest|slowest",
    re.I,
)
_GENERIC = re.compile(  # a name that says nothing of another quantity than the two figures of the row
    r"\W*(?:(?:performance|relative|overall|total|net|our|%|percent(?:age)?|the|in|of|\(?x\)?)\W+)*(?:speed-?\s?ups?|faster|"
    r"slower|improvements?|changes?|delta|δ|diff(?:erence)?|ratio|gains?|reduction|savings?|saved|advantage|factor|"
    r"relative|regression|increase|decrease|(?:vs\.?|versus)\s.*|x|×)?(?:\W+(?:vs\.?|versus|over|from|to|%|factor|ratio|x)\b.*)?"
    r"\W*(?:\(.*\))?\W*",
    re.I,
)
_OTHER_MEANING = re.compile(
    r"scal|efficien|compress|util|real-?time|\brtf\b|accura|recall|quality|score|hit|loss", re.I
)
_BASE_WORD = re.compile(r"\W*(?:baseline|base|reference|ref|[-–—]+|)\W*", re.I)
_PREVIOUS = re.compile(r"prev|\blast\b|above|before|\bstep|week|month|year|\bday", re.I)
_BARE = re.compile(r"[~≈]?\d[\d.,]*")
_MIN_FACTOR = 1.02  # tools print the mean of ratios, which is not the ratio of the means
_NO_RATIO = ("label", "n", "batch", "params", "dim", "other")


def check_ratios(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    """Check every column of factors or percentages that compares figures of the table."""
    for column in columns:
        stated = _read_ratios(table, column)
        if stated and not _OTHER_MEANING.search(column.name):
            measured = [c for c in columns if c is not column and _is_measured(c)]
            bare = len(table.rows) == 1 and sum(_BARE.fullmatch(cell) is not None for cell in table.rows[0].cells) == 2
            explanations = [*_explain_by_pairs(column, stated, measured, bare)]
            explanations += _explain_by_base(table, column, stated, measured)
            explanations += _explain_by_row_above(column, stated, measured)
            explanations += _explain_by_factors(column, stated, columns)
            yield from check_column(context, table, column, stated, explanations, "ratio", _MIN_FACTOR)


def _read_ratios(table: Table, column: Column) -> dict[int, Quantity]:
    """Return the exact factors and percentages of a column that compares."""
    cells = {row: cell for row, cell in enumerate(column.raw) if cell is not None and _is_ratio(cell)}
    marked = {row: cell for row, cell in cells.items() if cell.factor or cell.share}
    if column.role == "speedup" and COMPARES.search(column.name):
        bare = {row: cell for row, cell in cells.items() if cell.dims == q.NONE and not cell.unit}
        marked |= {row: cell for row, cell in bare.items() if not marked or cell.value == 1}
    if not COMPARES.search(column.name) and not all(cell.factor for cell in marked.values()):
        return {}
    return {row: cell for row, cell in marked.items() if _count_ratios(table.rows[row].cells[column.index]) == 1}


def _is_ratio(cell: Quantity) -> bool:
    return is_exact(cell) or (cell.value == 0 and cell.share and not cell.bound and not cell.about and cell.top is None)


def _count_ratios(text: str) -> int:
    """Count the ratios of a cell; a bracket may restate one: "10.8x (91 % less)"."""
    quantities = q.find_quantities(re.sub(r"(?<=\S)\s*\([^)]*\)", "", text))
    return sum(quantity.factor or quantity.share or not quantity.unit for quantity in quantities)


def is_exact(cell: Quantity) -> bool:
    """Whether a quantity is one positive number, not a range or a bound."""
    return not cell.bound and cell.top is None and cell.value > 0


def _is_measured(column: Column) -> bool:
    return (
        (column.role not in _NO_RATIO or column.mixed)
        and not STATISTIC.search(column.name)
        and not COMPARES.search(column.name + " ")
    )


def _are_comparable(one: Quantity, other: Quantity, ratio: Quantity) -> bool:
    if one.share or other.share:  # two percentages and the points between them
        return one.share and other.share and ratio.share and is_exact(one) and is_exact(other)
    return one.dims == other.dims and _is_figure(one) and _is_figure(other)


def _is_figure(cell: Quantity | None) -> bool:
    return cell is not None and is_exact(cell) and not cell.share and not cell.factor


def _explain_by_pairs(
    column: Column, stated: dict[int, Quantity], measured: list[Column], is_bare_list: bool
) -> list[Explanation]:
    """Compare two figures of the row; explicit if the row has no third figure of their kind."""
    generic = _GENERIC.fullmatch(column.name) is not None
    explanations = []
    for first, second in combinations(measured, 2):
        expected = {}
        alone = generic
        for row, ratio in stated.items():
            one, other = first.raw[row], second.raw[row]
            if one is None or other is None or not _are_comparable(one, other, ratio):
                continue
            expected[row] = compare(one, other, ratio)
            kin = [c for c in measured if (cell := c.raw[row]) is not None and _are_comparable(one, cell, ratio)]
            has_unit = one.dims != q.NONE or one.share
            alone = alone and len(kin) == 2 and (has_unit or (is_bare_list and len(measured) == 2 and ratio.unit != ""))
        if expected:
            explanations.append(Explanation(expected, explicit=alone))
    return explanations


def _explain_by_factors(column: Column, stated: dict[int, Quantity], columns: list[Column]) -> list[Explanation]:
    """Explain a percentage by a factor of the same row: 1.25x is +25 %, or 20 % less."""
    explanations = []
    for factors in columns if all(ratio.share for ratio in stated.values()) else []:
        expected = {}
        for row in stated:
            factor = factors.raw[row]
            if factors is not column and factor is not None and factor.factor and is_exact(factor):
                low, high = factor.interval()
                readings = ((low - 1, high - 1), (1 - high, 1 - low), (1 - 1 / max(low, 1e-9), 1 - 1 / high))
                expected[row] = Expected(
                    abs(factor.value - 1), (*readings, (1 / high - 1, 1 / max(low, 1e-9) - 1)), factor.text
                )
        if expected:
            explanations.append(Explanation(expected))
    return explanations


def _explain_by_base(
    table: Table, column: Column, stated: dict[int, Quantity], measured: list[Column]
) -> list[Explanation]:
    """Compare with the row that says 1 ×, or with the nearest such row above or below."""
    bases = [row for row, cell in stated.items() if _is_base(cell)]
    if not bases:
        bare = [row for row in range(len(table.rows)) if _BASE_WORD.fullmatch(table.rows[row].cells[column.index])]
        bases = bare if len(bare) == 1 else []
    explanations = []
    generic = len(bases) == 1 and _GENERIC.fullmatch(column.name) is not None
    for figures in measured:
        cells = {row: cell for row, cell in enumerate(figures.cells) if cell is not None and _is_figure(cell)}
        others = {row: ratio for row, ratio in stated.items() if row in cells and not _is_base(ratio)}
        explicit = generic and [c for c in measured if c.dims != q.NONE] == [figures]
        usable = [base for base in bases if base in cells]
        choices = [dict.fromkeys(others, base) for base in usable]
        if len(usable) > 1:  # a base for each group of rows
            choices.append({row: max(above) for row in others if (above := [base for base in usable if base < row])})
            choices.append({row: min(below) for row in others if (below := [base for base in usable if base > row])})
        for choice in choices:
            expected = {row: compare(cells[base], cells[row], others[row]) for row, base in choice.items()}
            explanations += [Explanation(expected, explicit)] if expected else []
    return explanations


def _explain_by_row_above(column: Column, stated: dict[int, Quantity], measured: list[Column]) -> list[Explanation]:
    """Compare with the row above: the percentage from week to week, the factor "vs. previous"."""
    explanations = []
    in_steps = all(ratio.share for ratio in stated.values()) or _PREVIOUS.search(column.name)
    for figures in measured if in_steps else ():
        expected = {}
        for row, ratio in stated.items():
            above, cell = figures.cells[row - 1] if row else None, figures.cells[row]
            if above is not None and cell is not None and _is_figure(above) and _is_figure(cell):
                expected[row] = compare(above, cell, ratio)
        explanations += [Explanation(expected, accuses=False)] if expected else []
    return explanations


def _is_base(cell: Quantity) -> bool:
    return cell.value == 1


def compare(first: Quantity, second: Quantity, ratio: Quantity) -> Expected:
    """Compare two figures as a factor (larger / smaller) or as a percentage (the change from the first)."""
    up, down = divide(second.interval(), first.interval()), divide(first.interval(), second.interval())
    readings = [up, down, (up[0] - 1, up[1] - 1), (down[0] - 1, down[1] - 1)]
    readings += [(1 - up[1], 1 - up[0]), (1 - down[1], 1 - down[0])]
    if first.share:
        readings += [_subtract(first, second), _subtract(second, first)]
    if first.dims[1] and first.unit != second.unit:  # binary beside decimal units
        readings += [multiply(reading, (power, power)) for reading in (up, down) for power in MIXES]
    words = f"{second.text} / {first.text}"
    if ratio.share:
        value = second.value / first.value - 1
        value, words = abs(value), f"{words} − 1" if value >= 0 else f"1 − {words}"
        return Expected(value, tuple(readings), words)
    large, small = (first, second) if first.value >= second.value else (second, first)
    value, words = large.value / small.value, f"{large.text} / {small.text}"
    if ratio.value < 1:
        value, words = 1 / value, f"{small.text} / {large.text}"
    return Expected(value, tuple(readings), words)


def _subtract(first: Quantity, second: Quantity) -> Interval:
    (low, high), (less, more) = first.interval(), second.interval()
    return low - more, high - less


def check_efficiencies(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    """Check efficiency = speed-up / n, where a column holds n."""
    for column in find_roles(columns, "efficiency"):
        stated = {row: cell for row, cell in enumerate(column.cells) if cell is not None and is_exact(cell)}
        explanations = []
        for counts in find_roles(columns, "n"):
            rows = [row for row, n in enumerate(counts.cells) if n is not None and n.value >= 1]
            smallest = min(rows, key=lambda row: _get_value(counts, row), default=None)
            if smallest is None or len({_get_value(counts, row) for row in rows}) < 2:
                continue
            explanations += [
                _explain_efficiency(counts, figures, rows, smallest, stated)
                for figures in columns
                if figures.role in ("speedup", "rate", "time")
            ]
        yield from check_column(context, table, column, stated, explanations, "efficiency")


def _get_value(column: Column, row: int) -> float:
    cell = column.cells[row]
    return cell.value if cell is not None else 0.0


def _explain_efficiency(
    counts: Column, figures: Column, rows: list[int], smallest: int, stated: dict[int, Quantity]
) -> Explanation:
    base, fewest = figures.cells[smallest], _get_value(counts, smallest)
    expected = {}
    for row in rows:
        cell = figures.cells[row]
        if row == smallest or row not in stated or cell is None or base is None or not is_exact(cell) or not base.value:
            continue
        more = _get_value(counts, row) / (1 if figures.role == "speedup" and base.value == fewest else fewest)
        speedup: Interval = cell.interval()
        value, words = cell.value, cell.text
        if figures.role == "rate":
            speedup, value, words = divide(speedup, base.interval()), value / base.value, f"{words} / {base.text}"
        elif figures.role == "time":
            speedup, value, words = divide(base.interval(), speedup), base.value / value, f"{base.text} / {words}"
        readings = [multiply(speedup, (1 / more, 1 / more))] + [speedup] * (figures.role == "time")  # weak scaling
        expected[row] = Expected(value / more, tuple(readings), f"{words} / {format_number(more)}")
    return Explanation(expected, explicit=figures.role != "time" and fewest == 1)
