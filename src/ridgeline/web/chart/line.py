"""Sweep curves: points in the order of x, joined, with the interval of each as a whisker or band."""

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
    hue,
    indices,
    label,
    left_axis,
    left_margin,
    left_out,
    mark,
    symbol,
    undrawn,
    whisker,
)
from ridgeline.web.chart.inputs import Axis, Point, Series
from ridgeline.web.chart.text import TICK, fitted
from ridgeline.web.markup import element
from ridgeline.web.number import si


def lines(
    series: Sequence[Series],
    *,
    title: str = "",
    x: Axis = Axis(),  # noqa: B008 (frozen)
    y: Axis = Axis(),  # noqa: B008
    zero: bool = False,
    reference: float | None = None,
    reference_label: str = "",
    caption: str = "",
    order: Sequence[str] = (),
) -> Markup:
    """Curves over a sweep. `zero` starts a linear y axis at 0; `reference` is a level line at that y.

    A point without a finite y breaks its curve: a line across it would claim what was not measured.
    """
    kept = [line for line in series if any(_drawable(point, x, y) for point in line.points)]
    lost = [
        (f"{line.name} at {point.x:g}", point.y)
        for line in series
        for point in line.points
        if not _drawable(point, x, y)
    ]
    if reference is not None and not drawable(reference, y):
        reference = None
    colours = indices((line.name for line in series), order)
    return figure(
        title,
        lambda width: _drawn(kept, x, y, zero, reference, reference_label, colours, width) if kept else empty(width),
        caption=caption,
        description=_description(kept, x, y),
        keys=[
            Key(line.name, colours[line.name], line=not line.apart, dashed=line.dashed) for line in kept if line.name
        ],
        notes=[
            left_out("point", lost, log=(x.scale, y.scale) != ("linear", "linear")),
            undrawn((point.interval for line in kept for point in line.points), y),
        ],
        linked=any(point.href for line in kept for point in line.points),
    )


def _drawn(
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    zero: bool,
    reference: float | None,
    reference_label: str,
    colours: dict[str, int],
    width: float,
) -> Drawing:
    points = [point for line in series for point in line.points if _drawable(point, x, y)]
    top, bottom = (24.0, 264.0 if width <= NARROW else 300.0)
    levels = [v for point in points for v in (point.y, *ends(point.interval, y))] + (
        [] if reference is None else [reference]
    )
    rise = scaled(y, levels, bottom, top, zero=zero)
    left, right = left_margin(rise), width - 12
    run = scaled(x, (point.x for point in points), left + 8, right - 8)
    axes, end = bottom_axis(run, top, bottom, width)
    parts = [
        *left_axis(rise, left, right),
        *axes,
        element("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="base"),
    ]
    if reference is not None:
        level = position(rise, reference)
        parts.append(element("line", x1=left, x2=right, y1=level, y2=level, class_="reference"))
        if reference_label:
            room = right - left
            above = level - 5 if level - 5 > top + TICK else level + 14
            parts.append(
                label(reference_label, right - 2, above, room, anchor="end", class_="axis-label halo", size=TICK)
            )
    for line in series:
        index = colours[line.name]
        for stretch in _stretches(line, x, y):
            parts += _curve(line, stretch, run, rise, index)
    # Points last, so that no other curve covers what the pointer is aimed at.
    for line in series:
        parts += [
            point_mark(line, point, run, rise, colours[line.name]) for point in line.points if _drawable(point, x, y)
        ]
    return Drawing(end, parts)


def _stretches(line: Series, x: Axis, y: Axis) -> list[list[Point]]:
    """The points in the order of x, parted where one has no y."""
    stretches: list[list[Point]] = [[]]
    for point in sorted((p for p in line.points if drawable(p.x, x)), key=lambda p: p.x):
        if drawable(point.y, y):
            stretches[-1].append(point)
        elif stretches[-1]:
            stretches.append([])
    return stretches


def _curve(line: Series, points: Sequence[Point], run: Scale, rise: Scale, index: int) -> list[Markup]:
    if len(points) < 2 or line.apart:
        return []
    parts = []
    banded = [point for point in points if ends(point.interval, rise.axis)] if line.band else []
    if len(banded) > 1:
        edge = [(point.x, ends(point.interval, rise.axis)[1]) for point in banded]
        edge += [(point.x, ends(point.interval, rise.axis)[0]) for point in reversed(banded)]
        parts.append(element("path", d=f"{_path(edge, run, rise)}z", class_=f"band {hue(index)}"))
    dashed = " dashed" if line.dashed else ""
    path = _path([(point.x, point.y) for point in points], run, rise)
    return [*parts, element("path", d=path, class_=f"curve {hue(index)}{dashed}")]


def _path(points: Sequence[tuple[float, float]], run: Scale, rise: Scale) -> str:
    return "M" + "L".join(f"{position(run, x):.2f} {position(rise, y):.2f}" for x, y in points)


def point_mark(line: Series, point: Point, run: Scale, rise: Scale, index: int) -> Markup:
    """One point with its whisker, its tooltip and its link."""
    at, level = position(run, point.x), position(rise, point.y)
    shapes: list[Markup] = []
    if not line.band and (spread := ends(point.interval, rise.axis)):
        low, high = (position(rise, v) for v in spread)
        d = f"M{at:.2f} {low:.2f}V{high:.2f}M{at - 3:.2f} {low:.2f}h6M{at - 3:.2f} {high:.2f}h6"
        shapes += whisker(d)
    shapes.append(symbol(index, at, level, 2.2 if line.dashed else 4.2))
    told = point.title or _told(line, point, run.axis, rise.axis)
    return mark(shapes, index=index, title=told, link=point.href, id=point.id)


def _drawable(point: Point, x: Axis, y: Axis) -> bool:
    return drawable(point.x, x) and drawable(point.y, y)


def _told(line: Series, point: Point, x: Axis, y: Axis) -> str:
    spread = f" [{si(point.interval[0], y.unit)} to {si(point.interval[1], y.unit)}]" if point.interval else ""
    name = " · ".join(part for part in (line.name, point.label) if part)
    return f"{name}\n{x.label or 'x'}: {si(point.x, x.unit)}\n{y.label or 'y'}: {si(point.y, y.unit)}{spread}"


def _description(series: Sequence[Series], x: Axis, y: Axis) -> str:
    told = []
    for line in series[:10]:
        held = [point for point in line.points if _drawable(point, x, y)]
        low, high = min(p.y for p in held), max(p.y for p in held)
        told.append(f"{fitted(line.name, 300)}: {len(held)} points, {si(low, y.unit)} to {si(high, y.unit)}")
    return f"Line chart of {y.label or 'y'} over {x.label or 'x'}. {'; '.join(told)}."
