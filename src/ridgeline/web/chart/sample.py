"""Raw samples: every timing of every contender, with the median and its interval.

Within a strip the height of a sample is its order in time, the first on top. So drift, bursts and bimodal distributions
are visible.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from markupsafe import Markup

from ridgeline.web.chart.axis import Scale, fit_scale, get_ends, get_position, is_drawable
from ridgeline.web.chart.frame import (
    NARROW,
    Drawing,
    assign_colours,
    build_figure,
    describe_left_out,
    describe_undrawn,
    draw_bottom_axis,
    draw_empty,
    draw_label,
    draw_mark,
)
from ridgeline.web.chart.inputs import Axis, Samples
from ridgeline.web.chart.text import estimate_width
from ridgeline.web.markup import make_element
from ridgeline.web.number_format import format_si

_MAX_DOTS = 400  # per strip
_STRIP_HEIGHT = 44.0


def draw_samples(
    strips: Sequence[Samples],
    *,
    title: str = "",
    axis: Axis = Axis(),  # noqa: B008 (frozen)
    caption: str = "",
    order: Sequence[str] = (),
) -> Markup:
    """Draw one strip of dots per contender on a common axis; strips of one `group` are drawn together."""
    finite_values = [(strip, [v for v in strip.values if is_drawable(v, axis)]) for strip in strips]
    drawn_strips = [(strip, values) for strip, values in finite_values if values]
    left_out_values = [(strip.name, v) for strip in strips for v in strip.values if not is_drawable(v, axis)]
    without = [strip.name for strip, values in finite_values if not values]
    colours = assign_colours((strip.name for strip in strips), order)
    thinned = any(len(values) > _MAX_DOTS for _, values in drawn_strips)
    return build_figure(
        title,
        lambda width: _draw(drawn_strips, axis, colours, width) if drawn_strips else draw_empty(width),
        caption=caption,
        description="Raw samples. "
        + "; ".join(_format_tooltip(s, v, axis).replace("\n", ": ")[:200] for s, v in drawn_strips[:20]),
        notes=[
            describe_left_out("sample of", left_out_values, log=axis.scale != "linear"),
            f"Without samples: {', '.join(name[:40] for name in without[:8])}." if without else "",
            f"Of long runs {_MAX_DOTS} evenly spaced samples are shown, and the extremes." if thinned else "",
            describe_undrawn((strip.interval for strip, _ in drawn_strips), axis),
        ],
        linked=any(strip.href for strip, _ in drawn_strips),
    )


def _draw(strips: Sequence[tuple[Samples, list[float]]], axis: Axis, colours: dict[str, int], width: float) -> Drawing:
    stacked = width <= NARROW
    left = 6.0 if stacked else min(max(estimate_width(strip.name) for strip, _ in strips), 0.3 * width) + 14
    texts = [format_si(statistics.median(values), axis.unit) for _, values in strips]
    right = width - min(max(map(estimate_width, texts)), 0.3 * width) - 14
    extent = [v for strip, values in strips for v in (min(values), max(values), *get_ends(strip.interval, axis))]
    scale = fit_scale(axis, extent, left, right)
    parts: list[Markup] = []
    y = top = 4.0
    for group in dict.fromkeys(strip.group for strip, _ in strips):
        if group:
            y += 4
            parts.append(draw_label(group, 2, y + 14, width - 4, class_="group"))
            y += 22
        for (strip, values), text in zip(strips, texts, strict=True):
            if strip.group != group:
                continue
            if stacked:
                parts.append(draw_label(strip.name, left, y + 13, width - left - 4))
                y += 18
            else:
                parts.append(draw_label(strip.name, left - 10, y + _STRIP_HEIGHT / 2 + 4, left - 12, anchor="end"))
            parts.append(_draw_strip(strip, values, text, scale, colours[strip.name], y, width))
            y += _STRIP_HEIGHT + 6
    axes, end = draw_bottom_axis(scale, top, y, width)
    axes.append(make_element("line", x1=left, x2=right, y1=y, y2=y, class_="base"))
    return Drawing(end, axes + parts)


def _draw_strip(
    strip: Samples, values: list[float], text: str, scale: Scale, index: int, y: float, width: float
) -> Markup:
    inner = _STRIP_HEIGHT - 10
    last = max(len(values) - 1, 1)
    # One path of zero-length strokes with round ends: a dot costs ten bytes instead of an element.
    dots = "".join(
        f"M{get_position(scale, values[n]):.1f} {y + 5 + inner * n / last:.1f}h0" for n in _choose_samples(values)
    )
    middle = get_position(scale, statistics.median(values))
    shapes = [
        make_element(
            "rect", x=scale.start, y=y, width=scale.end - scale.start, height=_STRIP_HEIGHT, rx=3, class_="hit"
        ),
        make_element("path", d=dots, class_="dots"),
    ]
    if spread := get_ends(strip.interval, scale.axis):
        low, high = (get_position(scale, v) for v in spread)
        shapes.append(
            make_element("rect", x=low, y=y + 1, width=max(high - low, 1), height=_STRIP_HEIGHT - 2, class_="band")
        )
    shapes.append(make_element("line", x1=middle, x2=middle, y1=y + 1, y2=y + _STRIP_HEIGHT - 1, class_="median"))
    shapes.append(draw_label(text, scale.end + 8, y + _STRIP_HEIGHT / 2 + 4, width - scale.end - 8, class_="value"))
    tooltip = strip.title or _format_tooltip(strip, values, scale.axis)
    return draw_mark(shapes, index=index, title=tooltip, link=strip.href, id=strip.id)


def _choose_samples(values: list[float]) -> list[int]:
    """Return the indices of the samples to draw: all, or evenly spaced ones and the two extremes."""
    count = len(values)
    if count <= _MAX_DOTS:
        return list(range(count))
    even = {n * (count - 1) // (_MAX_DOTS - 1) for n in range(_MAX_DOTS)}
    return sorted(even | {values.index(min(values)), values.index(max(values))})


def _format_tooltip(strip: Samples, values: list[float], axis: Axis) -> str:
    spread = (
        f" [{format_si(strip.interval[0], axis.unit)} to {format_si(strip.interval[1], axis.unit)}]"
        if strip.interval
        else ""
    )
    name = " · ".join(part for part in (strip.group, strip.name) if part)
    return (
        f"{name}\nmedian {format_si(statistics.median(values), axis.unit)}{spread}\n"
        f"{len(values)} samples, {format_si(min(values), axis.unit)} to {format_si(max(values), axis.unit)}"
    )
