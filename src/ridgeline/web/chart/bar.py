"""Horizontal bars with intervals, to compare contenders, cases or stages."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ridgeline.web.chart.axis import Scale, fit_scale, get_ends, get_position, is_drawable
from ridgeline.web.chart.frame import (
    NARROW,
    Drawing,
    Key,
    assign_colours,
    build_figure,
    describe_left_out,
    describe_undrawn,
    draw_bottom_axis,
    draw_empty,
    draw_label,
    draw_mark,
    draw_symbol,
    draw_whisker,
)
from ridgeline.web.chart.inputs import Axis, Bar
from ridgeline.web.chart.text import TICK, estimate_width
from ridgeline.web.markup import make_element
from ridgeline.web.number_format import format_si


def draw_bars(
    rows: Sequence[Bar],
    *,
    title: str = "",
    axis: Axis = Axis(),  # noqa: B008 (frozen)
    reference: float | None = None,
    reference_label: str = "",
    caption: str = "",
    order: Sequence[str] = (),
) -> Markup:
    """Draw bars from zero; on a log axis from `reference` (1.0 for a speed-up), or dots if there is no reference.

    The length of a bar has a meaning only from zero or a reference. `order` lists series in the order of their colours.
    """
    drawn_rows = [row for row in rows if is_drawable(row.value, axis)]
    log = axis.scale != "linear"
    if reference is not None and not is_drawable(reference, axis):
        reference = None
    colours = assign_colours((row.series for row in drawn_rows), order)
    series_names = dict.fromkeys(row.series for row in drawn_rows if row.series)
    left_out_rows = [(row.label, row.value) for row in rows if not is_drawable(row.value, axis)]
    return build_figure(
        title,
        lambda width: (
            _draw(drawn_rows, axis, reference, reference_label, colours, width) if drawn_rows else draw_empty(width)
        ),
        caption=caption,
        description=_describe(drawn_rows, axis),
        keys=[Key(name, colours[name], swatch=True) for name in series_names] if len(series_names) > 1 else [],
        notes=[
            describe_left_out("bar", left_out_rows, log=log),
            describe_undrawn((row.interval for row in drawn_rows), axis),
        ],
        linked=any(row.href for row in drawn_rows),
    )


def _draw(
    rows: Sequence[Bar],
    axis: Axis,
    reference: float | None,
    reference_label: str,
    colours: dict[str, int],
    width: float,
) -> Drawing:
    stacked = width <= NARROW  # the label above its bar
    texts = [row.text or format_si(row.value, axis.unit) for row in rows]
    widest = max(estimate_width(row.label) for row in rows)
    left = 4.0 if stacked else min(widest, 0.36 * width) + 12
    right = width - min(max(map(estimate_width, texts)), 0.3 * width) - 10
    values = [v for row in rows for v in (row.value, *get_ends(row.interval, axis))]
    scale = fit_scale(axis, [*values, *([] if reference is None else [reference])], left, right, zero=True)

    top = y = 20.0 if reference_label and reference is not None else 4.0
    pitch, thick = (36.0, 12.0) if stacked else (24.0, 14.0)
    parts: list[Markup] = []
    for group in dict.fromkeys(row.group for row in rows):
        if group:
            y += 4
            parts.append(draw_label(group, left if stacked else 2, y + 14, width - 4, class_="group"))
            y += 22
        for row, text in zip(rows, texts, strict=True):
            if row.group != group:
                continue
            middle = y + (25 if stacked else pitch / 2)
            if stacked:
                parts.append(draw_label(row.label, left, y + 13, width - left - 4, class_="label halo"))
            else:
                parts.append(draw_label(row.label, left - 8, middle + 4, left - 10, anchor="end"))
            parts.append(_draw_bar(row, text, scale, reference, colours[row.series], middle, thick, width))
            y += pitch
    y += 4
    axes, end = draw_bottom_axis(scale, top, y, width)
    if axis.scale == "linear" or reference is None:
        zero = get_position(scale, 0.0)
        axes.append(make_element("line", x1=zero, x2=zero, y1=top, y2=y, class_="base"))
    if reference is not None:
        base = get_position(scale, reference)
        axes.append(make_element("line", x1=base, x2=base, y1=top, y2=y, class_="reference"))
        half = min(estimate_width(reference_label, TICK), width - 8) / 2
        x = min(max(base, half + 4), width - half - 4)
        parts.append(draw_label(reference_label, x, 13, width - 8, anchor="middle", class_="axis-label", size=TICK))
    return Drawing(end, axes + parts)


def _draw_bar(
    row: Bar,
    text: str,
    scale: Scale,
    reference: float | None,
    index: int,
    y: float,
    thick: float,
    width: float,
) -> Markup:
    end = get_position(scale, row.value)
    dots = scale.axis.scale != "linear" and reference is None
    linear = scale.axis.scale == "linear"
    origin = get_position(scale, 0.0 if linear else (reference if reference is not None else scale.low))
    if dots:
        shapes = [make_element("line", x1=scale.start, x2=end, y1=y, y2=y, class_="stem"), draw_symbol(0, end, y)]
    else:
        across, up = max(abs(end - origin), 1.0), y - thick / 2
        shapes = [make_element("rect", x=min(origin, end), y=up, width=across, height=thick, rx=2, class_="shape")]
    furthest = max(end, origin) if not dots else end + 5
    if spread := get_ends(row.interval, scale.axis):
        low, high = (get_position(scale, v) for v in spread)
        d = f"M{low:.2f} {y:.2f}H{high:.2f}M{low:.2f} {y - 4:.2f}v8M{high:.2f} {y - 4:.2f}v8"
        shapes += draw_whisker(d)
        furthest = max(furthest, high)
    shapes.append(draw_label(text, furthest + 6, y + 4, width - furthest - 8, class_="value halo"))
    tooltip = row.title or _format_tooltip(row, scale.axis)
    return draw_mark(shapes, index=index, title=tooltip, link=row.href, id=row.id)


def _format_tooltip(row: Bar, axis: Axis) -> str:
    spread = (
        f" [{format_si(row.interval[0], axis.unit)} to {format_si(row.interval[1], axis.unit)}]" if row.interval else ""
    )
    names = " · ".join(name for name in (row.group, row.label, row.series) if name)
    return f"{names}\n{row.text or format_si(row.value, axis.unit)}{spread}"


def _describe(rows: Sequence[Bar], axis: Axis) -> str:
    summary = "; ".join(_format_tooltip(row, axis).replace("\n", ": ")[:200] for row in rows[:20])
    return f"Bar chart of {len(rows)} values. {summary}{' …' if len(rows) > 20 else ''}"
