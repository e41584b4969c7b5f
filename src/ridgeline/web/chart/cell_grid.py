"""A map of cells, row by column: where in a grid of settings a value is high or low."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ridgeline.web.chart.axis import is_drawable
from ridgeline.web.chart.frame import Drawing, build_figure, describe_left_out, draw_empty, draw_label, draw_mark
from ridgeline.web.chart.inputs import Axis, Cell
from ridgeline.web.chart.text import TICK, estimate_width
from ridgeline.web.markup import make_element
from ridgeline.web.number_format import format_si

_CELL_HEIGHT, _GAP, _MAX_CELL_WIDTH = 34.0, 3.0, 130.0
_AXIS = Axis()
_ABOVE, _BELOW = 1, 0  # colour indices
_MAX_OPACITY = 0.62  # text stays readable in both themes


def draw_cells(
    grid: Sequence[Cell],
    *,
    title: str = "",
    across: str = "",
    unit: str = "",
    reference: float = 0.0,
    full: float | None = None,
    caption: str = "",
) -> Markup:
    """Draw cells, with rows and columns in the order of their first cells; `across` is the title of the columns.

    The colour of a cell is stronger the further its value is from `reference`: one colour above it and one below, full
    at a distance of `full` (default: the largest distance). The text of a cell gives the same information.
    """
    drawn_cells = [cell for cell in grid if is_drawable(cell.value, _AXIS)]
    left_out_cells = [(f"{cell.row}, {cell.column}", cell.value) for cell in grid if not is_drawable(cell.value, _AXIS)]
    reach = full or max((abs(cell.value - reference) for cell in drawn_cells), default=0.0) or 1.0
    return build_figure(
        title,
        lambda width: _draw(drawn_cells, across, unit, reference, reach, width) if drawn_cells else draw_empty(width),
        caption=caption,
        description=_describe(drawn_cells, unit),
        notes=[describe_left_out("cell", left_out_cells, log=False)],
        linked=any(cell.href for cell in drawn_cells),
    )


def _draw(grid: Sequence[Cell], across: str, unit: str, reference: float, reach: float, width: float) -> Drawing:
    columns = list(dict.fromkeys(cell.column for cell in grid))
    left = min(max(estimate_width(cell.row) for cell in grid), 0.34 * width) + 14
    pitch = min((width - left - 4) / len(columns), _MAX_CELL_WIDTH)
    y = 16.0 if across else 0.0
    parts = [draw_label(across, left, 11, width - left, class_="axis-label", size=TICK)] if across else []
    for n, name in enumerate(columns):
        parts.append(
            draw_label(name, left + (n + 0.5) * pitch, y + 13, pitch - 4, anchor="middle", class_="tick", size=TICK)
        )
    y += 20
    for group in dict.fromkeys(cell.group for cell in grid):
        group_cells = [cell for cell in grid if cell.group == group]
        if group:
            parts.append(draw_label(group, 2, y + 16, width - 4, class_="group"))
            y += 24
        for row in dict.fromkeys(cell.row for cell in group_cells):
            parts.append(draw_label(row, left - 10, y + _CELL_HEIGHT / 2 + 4, left - 12, anchor="end"))
            for cell in group_cells:
                if cell.row == row:
                    x = left + columns.index(cell.column) * pitch
                    parts.append(_draw_cell(cell, x, y, pitch, unit, (cell.value - reference) / reach))
            y += _CELL_HEIGHT
    return Drawing(y + 4, parts)


def _draw_cell(cell: Cell, x: float, y: float, pitch: float, unit: str, depth: float) -> Markup:
    box = {"x": x + _GAP / 2, "y": y + _GAP / 2, "width": pitch - _GAP, "height": _CELL_HEIGHT - _GAP, "rx": 4.0}
    shade = _MAX_OPACITY * min(abs(depth), 1.0)
    shapes = [
        make_element("rect", **box, class_="cell", fill_opacity=max(shade, 0.02)),
        draw_label(
            cell.text or format_si(cell.value, unit),
            x + pitch / 2,
            y + _CELL_HEIGHT / 2 + 4,
            pitch - 8,
            anchor="middle",
            class_="value",
        ),
    ]
    tooltip = (
        cell.title
        or f"{' · '.join(n for n in (cell.group, cell.row, cell.column) if n)}\n{format_si(cell.value, unit)}"
    )
    return draw_mark(shapes, index=_ABOVE if depth > 0 else _BELOW, title=tooltip, link=cell.href, id=cell.id)


def _describe(grid: Sequence[Cell], unit: str) -> str:
    summary = "; ".join(
        f"{cell.group[:60]} {cell.row[:60]}, {cell.column[:60]}: {cell.text or format_si(cell.value, unit)}".strip()
        for cell in grid[:40]
    )
    return f"Map of {len(grid)} cells. {summary}{' …' if len(grid) > 40 else ''}"
