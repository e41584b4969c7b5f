"""A timeline: intervals on a common clock, one lane per resource, to show what ran at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from ridgeline.web.chart.axis import Scale, fit_scale, get_position, is_drawable
from ridgeline.web.chart.frame import (
    NARROW,
    Drawing,
    build_figure,
    describe_left_out,
    draw_bottom_axis,
    draw_empty,
    draw_label,
    draw_mark,
)
from ridgeline.web.chart.inputs import Axis, Interval
from ridgeline.web.chart.text import estimate_width
from ridgeline.web.markup import make_element
from ridgeline.web.number_format import format_si

_LANE_HEIGHT, _BLOCK_HEIGHT = 30.0, 18.0


def draw_intervals(
    lanes: Mapping[str, Sequence[Interval]],
    *,
    title: str = "",
    axis: Axis = Axis(),  # noqa: B008 (frozen)
    caption: str = "",
    what: str = "",
) -> Markup:
    """Draw one lane of blocks per name; the n-th block of every lane belongs to item n and has its colour.

    `what` is the name of an item ("batch") in tooltips.
    """
    drawn_spans = {
        n: [(k, b, e) for k, (b, e) in enumerate(spans) if _is_drawable_span(b, e, axis)] for n, spans in lanes.items()
    }
    left_out_spans = [(n, b) for n, spans in lanes.items() for b, e in spans if not _is_drawable_span(b, e, axis)]
    has_blocks = any(drawn_spans.values())
    return build_figure(
        title,
        lambda width: _draw(drawn_spans, axis, what, width) if has_blocks else draw_empty(width),
        caption=caption,
        description=f"Timeline of {len(lanes)} lanes. "
        + "; ".join(_format_tooltip(n, s, axis) for n, s in drawn_spans.items()),
        notes=[describe_left_out("block of", left_out_spans, log=axis.scale != "linear")],
    )


def _is_drawable_span(begin: float, end: float, axis: Axis) -> bool:
    return is_drawable(begin, axis) and is_drawable(end, axis) and begin <= end


def _draw(lanes: Mapping[str, Sequence[tuple[int, float, float]]], axis: Axis, what: str, width: float) -> Drawing:
    stacked = width <= NARROW
    left = 4.0 if stacked else min(max(map(estimate_width, lanes)), 0.3 * width) + 12
    scale = fit_scale(axis, [t for spans in lanes.values() for _, b, e in spans for t in (b, e)], left, width - 10)
    parts: list[Markup] = []
    top = y = 4.0
    for name, spans in lanes.items():
        if stacked:
            parts.append(draw_label(name, left, y + 12, width - left - 4, class_="label halo"))
            y += 16
        else:
            parts.append(draw_label(name, left - 8, y + _LANE_HEIGHT / 2 + 4, left - 10, anchor="end"))
        parts += [
            _draw_block(name, number, b, e, scale, what, y + (_LANE_HEIGHT - _BLOCK_HEIGHT) / 2)
            for number, b, e in spans
        ]
        y += _LANE_HEIGHT
    axes, end = draw_bottom_axis(scale, top, y, width)
    return Drawing(end, axes + parts)


def _draw_block(lane: str, number: int, begin: float, end: float, scale: Scale, what: str, y: float) -> Markup:
    left, right = get_position(scale, begin), get_position(scale, end)
    shape = make_element("rect", x=left, y=y, width=max(right - left, 0.75), height=_BLOCK_HEIGHT, rx=2, class_="shape")
    unit = scale.axis.unit
    times = f"{format_si(end - begin, unit)}, from {format_si(begin, unit)} to {format_si(end, unit)}"
    tooltip = f"{what or 'block'} {number} · {lane}\n{times}"
    return draw_mark([shape], index=number, title=tooltip)


def _format_tooltip(name: str, spans: Sequence[tuple[int, float, float]], axis: Axis) -> str:
    busy = sum(e - b for _, b, e in spans)
    return f"{name}: {len(spans)} blocks, {format_si(busy, axis.unit)} in all"
