"""A map of cells, row by column: where in a grid of choices a value is high, low or as it should be."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ridgeline.web.chart.axis import drawable
from ridgeline.web.chart.frame import Drawing, empty, figure, label, left_out, mark
from ridgeline.web.chart.inputs import Axis, Cell
from ridgeline.web.chart.text import TICK, text_width
from ridgeline.web.markup import element
from ridgeline.web.number import si

_TALL, _GAP, _WIDEST = 34.0, 3.0, 130.0
_AXIS = Axis()
_ABOVE, _BELOW = 1, 0  # colours of the two sides
_DEEPEST = 0.62  # of the colour, so that text on it is read in either theme


def cells(
    found: Sequence[Cell],
    *,
    title: str = "",
    across: str = "",
    unit: str = "",
    reference: float = 0.0,
    full: float | None = None,
    caption: str = "",
) -> Markup:
    """Cells in the order their rows and columns first come; `across` names the columns.

    A cell is the deeper in colour the further its value is from `reference`, one colour above it and one below;
    at a distance of `full` (else the furthest there is) it is deepest. Colour repeats what the cell's text says.
    """
    kept = [cell for cell in found if drawable(cell.value, _AXIS)]
    lost = [(f"{cell.row}, {cell.column}", cell.value) for cell in found if not drawable(cell.value, _AXIS)]
    reach = full or max((abs(cell.value - reference) for cell in kept), default=0.0) or 1.0
    return figure(
        title,
        lambda width: _drawn(kept, across, unit, reference, reach, width) if kept else empty(width),
        caption=caption,
        description=_description(kept, unit),
        notes=[left_out("cell", lost, log=False)],
        linked=any(cell.href for cell in kept),
    )


def _drawn(found: Sequence[Cell], across: str, unit: str, reference: float, reach: float, width: float) -> Drawing:
    columns = list(dict.fromkeys(cell.column for cell in found))
    left = min(max(text_width(cell.row) for cell in found), 0.34 * width) + 14
    pitch = min((width - left - 4) / len(columns), _WIDEST)
    y = 16.0 if across else 0.0
    parts = [label(across, left, 11, width - left, class_="axis-label", size=TICK)] if across else []
    for n, name in enumerate(columns):
        parts.append(
            label(name, left + (n + 0.5) * pitch, y + 13, pitch - 4, anchor="middle", class_="tick", size=TICK)
        )
    y += 20
    for group in dict.fromkeys(cell.group for cell in found):
        own = [cell for cell in found if cell.group == group]
        if group:
            parts.append(label(group, 2, y + 16, width - 4, class_="group"))
            y += 24
        for row in dict.fromkeys(cell.row for cell in own):
            parts.append(label(row, left - 10, y + _TALL / 2 + 4, left - 12, anchor="end"))
            for cell in own:
                if cell.row == row:
                    x = left + columns.index(cell.column) * pitch
                    parts.append(_cell(cell, x, y, pitch, unit, (cell.value - reference) / reach))
            y += _TALL
    return Drawing(y + 4, parts)


def _cell(cell: Cell, x: float, y: float, pitch: float, unit: str, depth: float) -> Markup:
    box = {"x": x + _GAP / 2, "y": y + _GAP / 2, "width": pitch - _GAP, "height": _TALL - _GAP, "rx": 4.0}
    shade = _DEEPEST * min(abs(depth), 1.0)
    shapes = [
        element("rect", **box, class_="cell", fill_opacity=max(shade, 0.02)),
        label(
            cell.text or si(cell.value, unit),
            x + pitch / 2,
            y + _TALL / 2 + 4,
            pitch - 8,
            anchor="middle",
            class_="value",
        ),
    ]
    told = cell.title or f"{' · '.join(n for n in (cell.group, cell.row, cell.column) if n)}\n{si(cell.value, unit)}"
    return mark(shapes, index=_ABOVE if depth > 0 else _BELOW, title=told, link=cell.href, id=cell.id)


def _description(found: Sequence[Cell], unit: str) -> str:
    told = "; ".join(
        f"{cell.group[:60]} {cell.row[:60]}, {cell.column[:60]}: {cell.text or si(cell.value, unit)}".strip()
        for cell in found[:40]
    )
    return f"Map of {len(found)} cells. {told}{' …' if len(found) > 40 else ''}"
