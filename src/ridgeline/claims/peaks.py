"""Limits of processors: a rate of operations that the named number of GPUs cannot reach.

Sources of the peaks, as of 2026: the data sheets of NVIDIA (V100 to GB300, RTX), AMD (Instinct MI210 to MI355X), Google
Cloud (TPU v4 to Ironwood) and Intel (Gaudi 3). Where a part comes in several forms (SXM, PCIe, NVL) the highest
figure counts: tensor cores, sparse if supported, the narrowest type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ridgeline.claims import quantities as q
from ridgeline.claims.columns import Column, find_roles
from ridgeline.claims.context import Context
from ridgeline.claims.document import Table
from ridgeline.claims.finding import CERTAIN, Finding
from ridgeline.claims.quantities import find_quantities, format_number, format_value

PEAKS = {  # TOP/s of one processor
    "V100S?": 130,
    "T4": 260,
    "A10G?": 1000,
    "A30": 1321,
    "A40": 1197,
    "A100": 2496,
    "L4": 970,
    "L40S?": 2932,
    "G?H[12]00": 3958,
    "B[123]00": 20_000,
    "GB[23]00": 40_000,
    "MI210": 181,
    "MI250X?": 383,
    "MI300[AX]": 5230,
    "MI325X": 5230,
    "MI35[05]X": 20_100,
    "Gaudi ?3": 1835,
    "TPU ?v4": 275,
    "TPU ?v5e": 394,
    "TPU ?v5p": 918,
    "TPU ?v6e": 1836,
    "(?:TPU7x|Ironwood)": 4614,
    "RTX 3090": 1136,
    "RTX 4090": 2642,
    "RTX 5090": 3352,
}


def check_peaks(context: Context, table: Table, columns: list[Column]) -> Iterator[Finding]:
    """Check that the FLOP/s of a row are at most what its GPUs do; the report must name them and their number."""
    figures = find_roles(columns, "flops")
    text = "\n".join(line.text for line in context.document.lines) if figures else ""
    named = [(re.search(rf"\b{name}s?\b", text), peak) for name, peak in PEAKS.items()]
    matches = [(match[0], peak) for match, peak in named if match]
    if not matches:
        return
    name, peak = max(matches, key=lambda pair: pair[1])
    for column in figures:
        for row, cell in enumerate(column.cells):
            alone = re.search(r"(?:/|per )\s?(?:gpu|device|chip|accelerator)", column.name, re.I)
            count = 1.0 if alone else _count_processors(table, columns, row)
            if cell is not None and count and cell.value > count * peak * 1e12:
                limit = format_value(count * peak * 1e12, q.FLOPS)
                arithmetic = (
                    f"FLOP/s ≤ peak: {format_number(count)} × {name} do at most {limit} "
                    f"(data sheet, sparse, narrowest type), not {cell.text}"
                )
                factor = cell.value / (count * peak * 1e12)
                yield context.report_cell(table, row, column.index, "peak", arithmetic, factor, CERTAIN)


def _count_processors(table: Table, columns: list[Column], row: int) -> float:
    """Return the number of GPUs of a row, from a column or a cell; 0 if unknown."""
    for column in find_roles(columns, "n"):
        cell = column.cells[row]
        if cell is not None and re.search(r"gpu|device|accelerator", column.name, re.I):
            return cell.value
    quantities = [x for cell in table.rows[row].cells for x in find_quantities(cell)]
    return next((x.value for x in quantities if re.match(r"gpus?\b|accelerator", x.noun)), 0.0)
