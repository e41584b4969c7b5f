"""Numbers of a table as other places write them: decimal commas, thousands set apart by spaces."""

from __future__ import annotations

import re

_AROUND = r"[\s*_+~≈<>≤≥±−$€-]*{}\s*(?:[^\d\s]\S*)?[\s*_]*"
_DECIMAL_COMMA = re.compile(_AROUND.format(r"(?:\d{1,3}(?:\.\d{3})+|\d+),(?:\d{1,2}|\d{4,})"))
_SPACED = re.compile(_AROUND.format(r"[1-9]\d{0,2}(?: \d{3})+(?:[.,]\d+)?"))

Cells = list[tuple[int, list[str]]]  # of each row its line and its cells


def localized(body: Cells) -> Cells:
    """Numbers as computers write them: "11 200" and, where the table's commas are decimal, "1.191,5"."""
    cells = [cell for _, row in body for cell in row]
    comma = sum(_DECIMAL_COMMA.fullmatch(cell) is not None for cell in cells)
    point = any(re.search(r"\d\.(?:\d{1,2}|\d{4,})(?!\d)", cell) for cell in cells)

    def mended(cell: str) -> str:
        if _SPACED.fullmatch(cell):
            cell = re.sub(r"(?<=\d) (?=\d{3}\b)", "", cell)
        if comma >= 2 and not point:
            cell = re.sub(r"\d[\d.]*(?:,\d+)?", lambda m: m[0].replace(".", "").replace(",", "."), cell)
        return cell

    return [(line, [mended(cell) for cell in row]) for line, row in body]
