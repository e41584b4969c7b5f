"""The roofline chart: the limits of a machine by arithmetic intensity, and measured points below them.

Memory bandwidths are slopes (rate = bandwidth × intensity), compute rates are horizontal lines; they meet at the ridge.
Both axes are logarithmic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ridgeline.web.chart.axis import Scale, fit_scale, get_position, is_drawable
from ridgeline.web.chart.frame import (
    NARROW,
    Drawing,
    Key,
    assign_colours,
    build_figure,
    compute_left_margin,
    describe_left_out,
    describe_undrawn,
    draw_bottom_axis,
    draw_empty,
    draw_label,
    draw_left_axis,
    draw_mark,
)
from ridgeline.web.chart.inputs import Axis, Point, Roof, Series
from ridgeline.web.chart.line import draw_point
from ridgeline.web.chart.text import LABEL, TICK, estimate_width, fit_text
from ridgeline.web.markup import make_element
from ridgeline.web.number_format import format_si

_X = Axis("Arithmetic intensity", "FLOP/B", "log")
_Y = Axis("Rate", "FLOP/s", "log")


@dataclass(frozen=True)
class _Plot:
    run: Scale
    rise: Scale
    slope: float  # pixels up per pixel along, of every memory line


def draw_roofline(
    roofs: Sequence[Roof],
    points: Sequence[Series],
    *,
    title: str = "",
    x: Axis = _X,
    y: Axis = _Y,
    caption: str = "",
    order: Sequence[str] = (),
) -> Markup:
    """Draw points (x = intensity, y = rate) under the roofs of a machine, with their labels if there is space."""
    if x.scale != "log" or y.scale != "log":
        x, y = Axis(x.label, x.unit, "log", x.low, x.high), Axis(y.label, y.unit, "log", y.low, y.high)
    drawn_series = [
        Series(one.name, [p for p in one.points if is_drawable(p.x, x) and is_drawable(p.y, y)]) for one in points
    ]
    drawn_series = [one for one in drawn_series if one.points]
    drawn_roofs = [roof for roof in roofs if is_drawable(roof.rate, y)]
    left_out_points = [
        (point.label or one.name, point.y if is_drawable(point.x, x) else point.x)
        for one in points
        for point in one.points
        if not (is_drawable(point.x, x) and is_drawable(point.y, y))
    ]
    left_out_roofs = [(roof.name, roof.rate) for roof in roofs if roof not in drawn_roofs]
    colours = assign_colours((one.name for one in points), order)
    return build_figure(
        title,
        lambda width: (
            _draw(drawn_roofs, drawn_series, x, y, colours, width) if drawn_series or drawn_roofs else draw_empty(width)
        ),
        caption=caption,
        description=_describe(drawn_roofs, drawn_series, x, y),
        keys=[Key(one.name, colours[one.name]) for one in drawn_series if one.name],
        notes=[
            describe_left_out("point", left_out_points, log=True),
            describe_left_out("roof", left_out_roofs, log=True),
            describe_undrawn((p.interval for one in drawn_series for p in one.points), y),
        ],
        linked=any(point.href for one in drawn_series for point in one.points),
    )


def _draw(
    roofs: Sequence[Roof], series: Sequence[Series], x: Axis, y: Axis, colours: dict[str, int], width: float
) -> Drawing:
    top, bottom = 24.0, (344.0 if width <= NARROW else 424.0)
    plot = _fit_plot(roofs, [p for one in series for p in one.points], x, y, top, bottom, width)
    left, right = plot.run.start, plot.run.end
    axes, end = draw_bottom_axis(plot.run, top, bottom, width)
    parts = [*draw_left_axis(plot.rise, left, right), *axes, *_draw_reachable_area(roofs, plot)]
    taken: list[Box] = []
    for one in series:
        for p in one.points:
            at, level = get_position(plot.run, p.x), get_position(plot.rise, p.y)
            taken.append(Box(at - 6, level - 6, at + 6, level + 6))
    limits = Box(left, top - 8, right, bottom)
    names: list[Markup] = []
    for roof in sorted(roofs, key=lambda roof: -roof.rate):
        line, name = _draw_roof(roof, roofs, plot, taken, limits)
        parts.append(line)
        names += name
    parts += [make_element("path", d=f"M{left:.2f} {top}V{bottom}H{right:.2f}", class_="base"), *names]
    crowded = 0
    marks: list[Markup] = []
    for one in series:
        for p in one.points:
            marks.append(draw_point(one, p, plot.run, plot.rise, colours[one.name]))
            if p.label:
                name = _place_label(p, plot, taken, limits)
                marks += name
                crowded += not name
    note = f"{crowded} label{'s' if crowded > 1 else ''} had no room; hover the points to read them." if crowded else ""
    return Drawing(end, parts + marks, (note,))


def _fit_plot(
    roofs: Sequence[Roof], points: Sequence[Point], x: Axis, y: Axis, top: float, bottom: float, width: float
) -> _Plot:
    """Fit the axes to every point, every ridge, and a part of each roof on both sides of the ridge."""
    memory = [roof.rate for roof in roofs if roof.bound == "memory"]
    compute = [roof.rate for roof in roofs if roof.bound == "compute"]
    # Slow slopes (a bus beside a cache) meet the roofs far to the right; including that would crowd the rest.
    ridges = [c / max(memory) for c in compute if is_drawable(c / max(memory), x)] if memory else []
    across = [p.x for p in points] + ([min(ridges) / 8, max(ridges) * 8] if ridges else [])
    up = [v for p in points for v in (p.y, *(p.interval or ()))] + [c * 1.6 for c in compute]
    if memory and across:
        up += [
            v for v in (max(memory) * min(across), min(memory) * max(across) if not compute else 0) if is_drawable(v, y)
        ]
    rise = fit_scale(y, up, bottom, top)
    run = fit_scale(x, across, compute_left_margin(rise), width - 12)
    per_decade = [(s.end - s.start) / math.log10(s.high / s.low) for s in (run, rise)]
    return _Plot(run, rise, -per_decade[1] / per_decade[0])


def _draw_reachable_area(roofs: Sequence[Roof], plot: _Plot) -> list[Markup]:
    """Shade the area under the highest slope and roof, where points can be."""
    memory = max((roof.rate for roof in roofs if roof.bound == "memory"), default=0.0)
    compute = max((roof.rate for roof in roofs if roof.bound == "compute"), default=0.0)
    if not memory or not compute:
        return []
    run, rise = plot.run, plot.rise
    start = max(run.low, rise.low / memory)
    corners = [(start, memory * start), (compute / memory, compute), (run.high, compute)]
    path = "L".join(f"{get_position(run, a):.2f} {get_position(rise, b):.2f}" for a, b in corners)
    return [make_element("path", d=f"M{path}V{rise.start:.2f}H{get_position(run, start):.2f}z", class_="under")]


def _draw_roof(
    roof: Roof, roofs: Sequence[Roof], plot: _Plot, taken: list[Box], limits: Box
) -> tuple[Markup, list[Markup]]:
    """Draw one roof up to the highest roof of the other kind, and its name along the line."""
    run, rise = plot.run, plot.rise
    others = [other.rate for other in roofs if other.bound != roof.bound]
    if roof.bound == "compute":
        a, b = max(run.low, roof.rate / max(others)) if others else run.low, run.high
        ends = [(a, roof.rate), (b, roof.rate)]
        text = f"{roof.name} {format_si(roof.rate, rise.axis.unit)}"
    else:
        a = max(run.low, rise.low / roof.rate)
        b = min(run.high, (max(others) if others else rise.high) / roof.rate)
        ends = [(a, roof.rate * a), (b, roof.rate * b)]
        text = f"{roof.name} {format_si(roof.rate, _get_byte_unit(rise.axis.unit))}"
    (x1, y1), (x2, y2) = ((get_position(run, u), get_position(rise, v)) for u, v in ends)
    shape = make_element("path", d=f"M{x1:.2f} {y1:.2f}L{x2:.2f} {y2:.2f}", class_="roof")
    line = draw_mark([shape], index=0, title=text)
    if x2 <= x1:
        return line, []
    if roof.bound == "compute":  # the name of a short roof may start before it
        x1 = max(limits.left, min(x1, x2 - estimate_width(text, TICK) - 10))
    return line, _place_name(text, (x1, y1), (x2, y2), taken, limits)


def _place_name(
    text: str, start: tuple[float, float], end: tuple[float, float], taken: list[Box], limits: Box
) -> list[Markup]:
    """Draw the name along its line, above or below it, if there is free space."""
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1)
    angle = math.atan2(y2 - y1, x2 - x1)
    fitting = fit_text(text, length - 8, TICK)
    if len(fitting) < 3:
        return []
    half = estimate_width(fitting, TICK) / 2
    # Try a horizontal roof from its right end, away from the slopes; a slope from its lower end.
    shares = [s / 10 for s in (range(10, -1, -1) if y1 == y2 else range(1, 11))]
    for off in (-5.0, 13.0):
        for share in shares:
            along = half + 4 + share * (length - 2 * half - 8)
            cx = x1 + along * math.cos(angle) - off * math.sin(angle)
            cy = y1 + along * math.sin(angle) + off * math.cos(angle)
            boxes = cover_slanted_text(cx, cy, angle, half, TICK)
            if is_free(boxes, taken, limits):
                taken += boxes
                turn = f"rotate({math.degrees(angle):.2f} {cx:.2f} {cy:.2f})" if y1 != y2 else None
                return [
                    make_element(
                        "text",
                        fitting,
                        x=cx,
                        y=cy,
                        text_anchor="middle",
                        transform=turn,
                        class_="roof-name halo",
                    )
                ]
    return []


def _place_label(point: Point, plot: _Plot, taken: list[Box], limits: Box) -> list[Markup]:
    """Draw the label in the first free place around the point."""
    x, y = get_position(plot.run, point.x), get_position(plot.rise, point.y)
    max_width = 0.4 * (limits.right - limits.left)
    wide = min(estimate_width(point.label), max_width)
    places = [(x + 8, y + 4), (x - 8 - wide, y + 4), (x - wide / 2, y - 9), (x - wide / 2, y + 18)]
    places += [(x + 7, y - 8), (x + 7, y + 16), (x - 7 - wide, y - 8), (x - 7 - wide, y + 16)]
    for left, base in places:
        box = Box(left, base - LABEL + 2, left + wide, base + 3)
        if is_free([box], taken, limits):
            taken.append(box)
            return [draw_label(point.label, left, base, max_width, class_="label halo")]
    return []


def _get_byte_unit(unit: str) -> str:
    """Return B/s for FLOP/s, else B."""
    return "B/s" if unit.endswith("/s") else "B"


def _describe(roofs: Sequence[Roof], series: Sequence[Series], x: Axis, y: Axis) -> str:
    limits = "; ".join(
        f"{roof.name[:80]} {format_si(roof.rate, y.unit if roof.bound == 'compute' else _get_byte_unit(y.unit))}"
        for roof in roofs[:12]
    )
    points = [(one, p) for one in series for p in one.points]
    summary = "; ".join(
        f"{(p.label or one.name)[:80]}: {format_si(p.y, y.unit)} at {format_si(p.x, x.unit)}" for one, p in points[:20]
    )
    return f"Roofline with {len(roofs)} roofs: {limits}. {len(points)} points: {summary}."


# --- Free space for labels


@dataclass(frozen=True)
class Box:
    """A rectangle; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float


def is_free(boxes: Sequence[Box], taken: Sequence[Box], limits: Box) -> bool:
    """Whether all of `boxes` are inside the limits and overlap no box of `taken`.

    >>> page = Box(0, 0, 100, 100)
    >>> taken = [Box(10, 0, 20, 9)]
    >>> is_free([Box(0, 0, 9, 9)], taken, page), is_free([Box(5, 0, 14, 9)], taken, page)
    (True, False)
    """
    return all(
        limits.left <= box.left
        and limits.top <= box.top
        and box.right <= limits.right
        and box.bottom <= limits.bottom
        and not any(_overlap(box, other) for other in taken)
        for box in boxes
    )


def cover_slanted_text(x: float, y: float, angle: float, half: float, size: float) -> list[Box]:
    """Return small squares that cover a rotated line of text, centred on its baseline at (x, y)."""
    # The middle of the letters is a third of the size above the baseline.
    x, y = x + size / 3 * math.sin(angle), y - size / 3 * math.cos(angle)
    count = max(2, math.ceil(2 * half / (0.8 * size)))
    steps = (half * (2 * n / (count - 1) - 1) for n in range(count))
    r = 0.5 * size
    return [
        Box(
            x + s * math.cos(angle) - r,
            y + s * math.sin(angle) - r,
            x + s * math.cos(angle) + r,
            y + s * math.sin(angle) + r,
        )
        for s in steps
    ]


def _overlap(a: Box, b: Box) -> bool:
    return a.left < b.right and b.left < a.right and a.top < b.bottom and b.top < a.bottom
