"""Horizontal bars with their intervals: how contenders, cases or stages compare."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ridgeline.web.chart.axis import Scale, drawable, ends, position, scaled
from ridgeline.web.chart.frame import (
    NARROW,
    Drawing,
    Key,
    bottom_axis,
    empty,
    figure,
    indices,
    label,
    left_out,
    mark,
    symbol,
    undrawn,
    whisker,
)
from ridgeline.web.chart.inputs import Axis, Bar
from ridgeline.web.chart.text import TICK, text_width
from ridgeline.web.markup import element
from ridgeline.web.number import si


def bars(
    rows: Sequence[Bar],
    *,
    title: str = "",
    axis: Axis = Axis(),  # noqa: B008 (frozen)
    reference: float | None = None,
    reference_label: str = "",
    caption: str = "",
    order: Sequence[str] = (),
) -> Markup:
    """Bars from zero; on a log axis from `reference` (a speed-up from 1.0), or dots where there is none.

    A bar's length from anywhere but zero or a reference would mean nothing; hence the dots.
    `order` names the series in the order of their colours.
    """
    kept = [row for row in rows if drawable(row.value, axis)]
    log = axis.scale != "linear"
    if reference is not None and not drawable(reference, axis):
        reference = None
    colours = indices((row.series for row in kept), order)
    named = dict.fromkeys(row.series for row in kept if row.series)
    lost = [(row.label, row.value) for row in rows if not drawable(row.value, axis)]
    return figure(
        title,
        lambda width: _drawn(kept, axis, reference, reference_label, colours, width) if kept else empty(width),
        caption=caption,
        description=_description(kept, axis),
        keys=[Key(name, colours[name], swatch=True) for name in named] if len(named) > 1 else [],
        notes=[left_out("bar", lost, log=log), undrawn((row.interval for row in kept), axis)],
        linked=any(row.href for row in kept),
    )


def _drawn(
    rows: Sequence[Bar],
    axis: Axis,
    reference: float | None,
    reference_label: str,
    colours: dict[str, int],
    width: float,
) -> Drawing:
    stacked = width <= NARROW  # the label above its bar
    texts = [row.text or si(row.value, axis.unit) for row in rows]
    widest = max(text_width(row.label) for row in rows)
    left = 4.0 if stacked else min(widest, 0.36 * width) + 12
    right = width - min(max(map(text_width, texts)), 0.3 * width) - 10
    values = [v for row in rows for v in (row.value, *ends(row.interval, axis))]
    scale = scaled(axis, [*values, *([] if reference is None else [reference])], left, right, zero=True)

    top = y = 20.0 if reference_label and reference is not None else 4.0
    pitch, thick = (36.0, 12.0) if stacked else (24.0, 14.0)
    parts: list[Markup] = []
    for group in dict.fromkeys(row.group for row in rows):
        if group:
            y += 4
            parts.append(label(group, left if stacked else 2, y + 14, width - 4, class_="group"))
            y += 22
        for row, text in zip(rows, texts, strict=True):
            if row.group != group:
                continue
            middle = y + (25 if stacked else pitch / 2)
            if stacked:
                parts.append(label(row.label, left, y + 13, width - left - 4, class_="label halo"))
            else:
                parts.append(label(row.label, left - 8, middle + 4, left - 10, anchor="end"))
            parts.append(_bar(row, text, scale, reference, colours[row.series], middle, thick, width))
            y += pitch
    y += 4
    axes, end = bottom_axis(scale, top, y, width)
    if axis.scale == "linear" or reference is None:
        zero = position(scale, 0.0)
        axes.append(element("line", x1=zero, x2=zero, y1=top, y2=y, class_="base"))
    if reference is not None:
        base = position(scale, reference)
        axes.append(element("line", x1=base, x2=base, y1=top, y2=y, class_="reference"))
        half = min(text_width(reference_label, TICK), width - 8) / 2
        x = min(max(base, half + 4), width - half - 4)
        parts.append(label(reference_label, x, 13, width - 8, anchor="middle", class_="axis-label", size=TICK))
    return Drawing(end, axes + parts)


def _bar(
    row: Bar,
    text: str,
    scale: Scale,
    reference: float | None,
    index: int,
    y: float,
    thick: float,
    width: float,
) -> Markup:
    end = position(scale, row.value)
    dots = scale.axis.scale != "linear" and reference is None
    linear = scale.axis.scale == "linear"
    origin = position(scale, 0.0 if linear else (reference if reference is not None else scale.low))
    if dots:
        shapes = [element("line", x1=scale.start, x2=end, y1=y, y2=y, class_="stem"), symbol(0, end, y)]
    else:
        across, up = max(abs(end - origin), 1.0), y - thick / 2
        shapes = [element("rect", x=min(origin, end), y=up, width=across, height=thick, rx=2, class_="shape")]
    furthest = max(end, origin) if not dots else end + 5
    if spread := ends(row.interval, scale.axis):
        low, high = (position(scale, v) for v in spread)
        d = f"M{low:.2f} {y:.2f}H{high:.2f}M{low:.2f} {y - 4:.2f}v8M{high:.2f} {y - 4:.2f}v8"
        shapes += whisker(d)
        furthest = max(furthest, high)
    shapes.append(label(text, furthest + 6, y + 4, width - furthest - 8, class_="value halo"))
    told = row.title or _told(row, scale.axis)
    return mark(shapes, index=index, title=told, link=row.href, id=row.id)


def _told(row: Bar, axis: Axis) -> str:
    spread = f" [{si(row.interval[0], axis.unit)} to {si(row.interval[1], axis.unit)}]" if row.interval else ""
    names = " · ".join(name for name in (row.group, row.label, row.series) if name)
    return f"{names}\n{row.text or si(row.value, axis.unit)}{spread}"


def _description(rows: Sequence[Bar], axis: Axis) -> str:
    told = "; ".join(_told(row, axis).replace("\n", ": ")[:200] for row in rows[:20])
    return f"Bar chart of {len(rows)} values. {told}{' …' if len(rows) > 20 else ''}"
