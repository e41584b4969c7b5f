"""Raw samples: every timing of every contender, with the median and its interval on top.

Within its strip a sample's height is its place in time, first above, so that drift, bursts and two-humped
distributions are all seen at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from markupsafe import Markup

from ridgeline.web.chart.axis import Scale, drawable, ends, position, scaled
from ridgeline.web.chart.frame import (
    NARROW,
    Drawing,
    bottom_axis,
    empty,
    figure,
    indices,
    label,
    left_out,
    mark,
    undrawn,
)
from ridgeline.web.chart.inputs import Axis, Samples
from ridgeline.web.chart.text import text_width
from ridgeline.web.markup import element
from ridgeline.web.number import si

_MOST_DOTS = 400  # per strip; more would be ink, not information
_STRIP = 44.0


def samples(
    strips: Sequence[Samples],
    *,
    title: str = "",
    axis: Axis = Axis(),  # noqa: B008 (frozen)
    caption: str = "",
    order: Sequence[str] = (),
) -> Markup:
    """One strip of dots per contender, all on one axis; strips with the same `group` stand together."""
    held = [(strip, [v for v in strip.values if drawable(v, axis)]) for strip in strips]
    kept = [(strip, values) for strip, values in held if values]
    lost = [(strip.name, v) for strip in strips for v in strip.values if not drawable(v, axis)]
    without = [strip.name for strip, values in held if not values]
    colours = indices((strip.name for strip in strips), order)
    thinned = any(len(values) > _MOST_DOTS for _, values in kept)
    return figure(
        title,
        lambda width: _drawn(kept, axis, colours, width) if kept else empty(width),
        caption=caption,
        description="Raw samples. " + "; ".join(_told(s, v, axis).replace("\n", ": ")[:200] for s, v in kept[:20]),
        notes=[
            left_out("sample of", lost, log=axis.scale != "linear"),
            f"Without samples: {', '.join(name[:40] for name in without[:8])}." if without else "",
            f"Of long runs {_MOST_DOTS} evenly spaced samples are shown, and the extremes." if thinned else "",
            undrawn((strip.interval for strip, _ in kept), axis),
        ],
        linked=any(strip.href for strip, _ in kept),
    )


def _drawn(strips: Sequence[tuple[Samples, list[float]]], axis: Axis, colours: dict[str, int], width: float) -> Drawing:
    stacked = width <= NARROW
    left = 6.0 if stacked else min(max(text_width(strip.name) for strip, _ in strips), 0.3 * width) + 14
    texts = [si(statistics.median(values), axis.unit) for _, values in strips]
    right = width - min(max(map(text_width, texts)), 0.3 * width) - 14
    extent = [v for strip, values in strips for v in (min(values), max(values), *ends(strip.interval, axis))]
    scale = scaled(axis, extent, left, right)
    parts: list[Markup] = []
    y = top = 4.0
    for group in dict.fromkeys(strip.group for strip, _ in strips):
        if group:
            y += 4
            parts.append(label(group, 2, y + 14, width - 4, class_="group"))
            y += 22
        for (strip, values), text in zip(strips, texts, strict=True):
            if strip.group != group:
                continue
            if stacked:
                parts.append(label(strip.name, left, y + 13, width - left - 4))
                y += 18
            else:
                parts.append(label(strip.name, left - 10, y + _STRIP / 2 + 4, left - 12, anchor="end"))
            parts.append(_strip(strip, values, text, scale, colours[strip.name], y, width))
            y += _STRIP + 6
    axes, end = bottom_axis(scale, top, y, width)
    axes.append(element("line", x1=left, x2=right, y1=y, y2=y, class_="base"))
    return Drawing(end, axes + parts)


def _strip(strip: Samples, values: list[float], text: str, scale: Scale, index: int, y: float, width: float) -> Markup:
    inner = _STRIP - 10
    last = max(len(values) - 1, 1)
    # One path of zero-length strokes with round ends: a dot costs ten bytes instead of an element.
    dots = "".join(f"M{position(scale, values[n]):.1f} {y + 5 + inner * n / last:.1f}h0" for n in _shown(values))
    middle = position(scale, statistics.median(values))
    shapes = [
        element("rect", x=scale.start, y=y, width=scale.end - scale.start, height=_STRIP, rx=3, class_="hit"),
        element("path", d=dots, class_="dots"),
    ]
    if spread := ends(strip.interval, scale.axis):
        low, high = (position(scale, v) for v in spread)
        shapes.append(element("rect", x=low, y=y + 1, width=max(high - low, 1), height=_STRIP - 2, class_="band"))
    shapes.append(element("line", x1=middle, x2=middle, y1=y + 1, y2=y + _STRIP - 1, class_="median"))
    shapes.append(label(text, scale.end + 8, y + _STRIP / 2 + 4, width - scale.end - 8, class_="value"))
    told = strip.title or _told(strip, values, scale.axis)
    return mark(shapes, index=index, title=told, link=strip.href, id=strip.id)


def _shown(values: list[float]) -> list[int]:
    """Which samples are drawn: all, or evenly spaced ones and the two extremes."""
    count = len(values)
    if count <= _MOST_DOTS:
        return list(range(count))
    even = {n * (count - 1) // (_MOST_DOTS - 1) for n in range(_MOST_DOTS)}
    return sorted(even | {values.index(min(values)), values.index(max(values))})


def _told(strip: Samples, values: list[float], axis: Axis) -> str:
    spread = f" [{si(strip.interval[0], axis.unit)} to {si(strip.interval[1], axis.unit)}]" if strip.interval else ""
    name = " · ".join(part for part in (strip.group, strip.name) if part)
    return (
        f"{name}\nmedian {si(statistics.median(values), axis.unit)}{spread}\n"
        f"{len(values)} samples, {si(min(values), axis.unit)} to {si(max(values), axis.unit)}"
    )
