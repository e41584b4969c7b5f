"""The roofline: what a machine can reach at each arithmetic intensity, and the measured points under it.

Memory bandwidths are slopes (rate = bandwidth × intensity), compute rates are level roofs; the ridge is where
the highest of each meet. Both axes are logarithmic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ridgeline.web.chart.axis import Scale, drawable, position, scaled
from ridgeline.web.chart.frame import (
    NARROW,
    Drawing,
    Key,
    bottom_axis,
    empty,
    figure,
    indices,
    label,
    left_axis,
    left_margin,
    left_out,
    mark,
    undrawn,
)
from ridgeline.web.chart.inputs import Axis, Point, Roof, Series
from ridgeline.web.chart.line import point_mark
from ridgeline.web.chart.room import Box, free, slanted
from ridgeline.web.chart.text import LABEL, TICK, fitted, text_width
from ridgeline.web.markup import element
from ridgeline.web.number import si

_X = Axis("Arithmetic intensity", "FLOP/B", "log")
_Y = Axis("Rate", "FLOP/s", "log")


@dataclass(frozen=True)
class _Plot:
    run: Scale
    rise: Scale
    slope: float  # pixels up per pixel along, of every memory line


def roofline(
    roofs: Sequence[Roof],
    points: Sequence[Series],
    *,
    title: str = "",
    x: Axis = _X,
    y: Axis = _Y,
    caption: str = "",
    order: Sequence[str] = (),
) -> Markup:
    """Points (x = intensity, y = rate) under the machine's roofs; each point's `label` stands beside it."""
    if x.scale != "log" or y.scale != "log":
        x, y = Axis(x.label, x.unit, "log", x.low, x.high), Axis(y.label, y.unit, "log", y.low, y.high)
    kept = [Series(one.name, [p for p in one.points if drawable(p.x, x) and drawable(p.y, y)]) for one in points]
    kept = [one for one in kept if one.points]
    held = [roof for roof in roofs if drawable(roof.rate, y)]
    lost = [
        (point.label or one.name, point.y if drawable(point.x, x) else point.x)
        for one in points
        for point in one.points
        if not (drawable(point.x, x) and drawable(point.y, y))
    ]
    bad = [(roof.name, roof.rate) for roof in roofs if roof not in held]
    colours = indices((one.name for one in points), order)
    return figure(
        title,
        lambda width: _drawn(held, kept, x, y, colours, width) if kept or held else empty(width),
        caption=caption,
        description=_description(held, kept, x, y),
        keys=[Key(one.name, colours[one.name]) for one in kept if one.name],
        notes=[
            left_out("point", lost, log=True),
            left_out("roof", bad, log=True),
            undrawn((p.interval for one in kept for p in one.points), y),
        ],
        linked=any(point.href for one in kept for point in one.points),
    )


def _drawn(
    roofs: Sequence[Roof], series: Sequence[Series], x: Axis, y: Axis, colours: dict[str, int], width: float
) -> Drawing:
    top, bottom = 24.0, (344.0 if width <= NARROW else 424.0)
    plot = _plot(roofs, [p for one in series for p in one.points], x, y, top, bottom, width)
    left, right = plot.run.start, plot.run.end
    axes, end = bottom_axis(plot.run, top, bottom, width)
    parts = [*left_axis(plot.rise, left, right), *axes, *_under(roofs, plot)]
    taken: list[Box] = []
    for one in series:
        for p in one.points:
            at, level = position(plot.run, p.x), position(plot.rise, p.y)
            taken.append(Box(at - 6, level - 6, at + 6, level + 6))
    limits = Box(left, top - 8, right, bottom)
    names: list[Markup] = []
    for roof in sorted(roofs, key=lambda roof: -roof.rate):
        line, name = _roof(roof, roofs, plot, taken, limits)
        parts.append(line)
        names += name
    parts += [element("path", d=f"M{left:.2f} {top}V{bottom}H{right:.2f}", class_="base"), *names]
    crowded = 0
    marks: list[Markup] = []
    for one in series:
        for p in one.points:
            marks.append(point_mark(one, p, plot.run, plot.rise, colours[one.name]))
            if p.label:
                name = _beside(p, plot, taken, limits)
                marks += name
                crowded += not name
    note = f"{crowded} label{'s' if crowded > 1 else ''} had no room; hover the points to read them." if crowded else ""
    return Drawing(end, parts + marks, (note,))


def _plot(
    roofs: Sequence[Roof], points: Sequence[Point], x: Axis, y: Axis, top: float, bottom: float, width: float
) -> _Plot:
    """Wide enough to show every point, every ridge, and some of each roof to both sides of it."""
    memory = [roof.rate for roof in roofs if roof.bound == "memory"]
    compute = [roof.rate for roof in roofs if roof.bound == "compute"]
    # Slow slopes (a bus beside a cache) meet the roofs far to the right; going there would crowd the rest.
    ridges = [c / max(memory) for c in compute if drawable(c / max(memory), x)] if memory else []
    across = [p.x for p in points] + ([min(ridges) / 8, max(ridges) * 8] if ridges else [])
    up = [v for p in points for v in (p.y, *(p.interval or ()))] + [c * 1.6 for c in compute]
    if memory and across:
        up += [
            v for v in (max(memory) * min(across), min(memory) * max(across) if not compute else 0) if drawable(v, y)
        ]
    rise = scaled(y, up, bottom, top)
    run = scaled(x, across, left_margin(rise), width - 12)
    per_decade = [(s.end - s.start) / math.log10(s.high / s.low) for s in (run, rise)]
    return _Plot(run, rise, -per_decade[1] / per_decade[0])


def _under(roofs: Sequence[Roof], plot: _Plot) -> list[Markup]:
    """A faint ground under the highest slope and roof: where points can be."""
    memory = max((roof.rate for roof in roofs if roof.bound == "memory"), default=0.0)
    compute = max((roof.rate for roof in roofs if roof.bound == "compute"), default=0.0)
    if not memory or not compute:
        return []
    run, rise = plot.run, plot.rise
    start = max(run.low, rise.low / memory)
    corners = [(start, memory * start), (compute / memory, compute), (run.high, compute)]
    path = "L".join(f"{position(run, a):.2f} {position(rise, b):.2f}" for a, b in corners)
    return [element("path", d=f"M{path}V{rise.start:.2f}H{position(run, start):.2f}z", class_="under")]


def _roof(roof: Roof, roofs: Sequence[Roof], plot: _Plot, taken: list[Box], limits: Box) -> tuple[Markup, list[Markup]]:
    """The line of one roof, up to where the highest roof of the other kind ends it, and its name along it."""
    run, rise = plot.run, plot.rise
    others = [other.rate for other in roofs if other.bound != roof.bound]
    if roof.bound == "compute":
        a, b = max(run.low, roof.rate / max(others)) if others else run.low, run.high
        ends = [(a, roof.rate), (b, roof.rate)]
        text = f"{roof.name} {si(roof.rate, rise.axis.unit)}"
    else:
        a = max(run.low, rise.low / roof.rate)
        b = min(run.high, (max(others) if others else rise.high) / roof.rate)
        ends = [(a, roof.rate * a), (b, roof.rate * b)]
        text = f"{roof.name} {si(roof.rate, _bytes(rise.axis.unit))}"
    (x1, y1), (x2, y2) = ((position(run, u), position(rise, v)) for u, v in ends)
    shape = element("path", d=f"M{x1:.2f} {y1:.2f}L{x2:.2f} {y2:.2f}", class_="roof")
    line = mark([shape], index=0, title=text)
    if x2 <= x1:
        return line, []
    if roof.bound == "compute":  # a short roof's name may begin before it
        x1 = max(limits.left, min(x1, x2 - text_width(text, TICK) - 10))
    return line, _named(text, (x1, y1), (x2, y2), taken, limits)


def _named(
    text: str, start: tuple[float, float], end: tuple[float, float], taken: list[Box], limits: Box
) -> list[Markup]:
    """The name along its line, above or below it, where nothing else stands; else only in the tooltip."""
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1)
    angle = math.atan2(y2 - y1, x2 - x1)
    shown = fitted(text, length - 8, TICK)
    if len(shown) < 3:
        return []
    half = text_width(shown, TICK) / 2
    # A level roof is named at its right end, where the slopes are not; a slope from its lower end upwards.
    shares = [s / 10 for s in (range(10, -1, -1) if y1 == y2 else range(1, 11))]
    for off in (-5.0, 13.0):
        for share in shares:
            along = half + 4 + share * (length - 2 * half - 8)
            cx = x1 + along * math.cos(angle) - off * math.sin(angle)
            cy = y1 + along * math.sin(angle) + off * math.cos(angle)
            boxes = slanted(cx, cy, angle, half, TICK)
            if free(boxes, taken, limits):
                taken += boxes
                turn = f"rotate({math.degrees(angle):.2f} {cx:.2f} {cy:.2f})" if y1 != y2 else None
                return [
                    element(
                        "text",
                        shown,
                        x=cx,
                        y=cy,
                        text_anchor="middle",
                        transform=turn,
                        class_="roof-name halo",
                    )
                ]
    return []


def _beside(point: Point, plot: _Plot, taken: list[Box], limits: Box) -> list[Markup]:
    """The point's label in the first free place around it."""
    x, y = position(plot.run, point.x), position(plot.rise, point.y)
    room = 0.4 * (limits.right - limits.left)
    wide = min(text_width(point.label), room)
    places = [(x + 8, y + 4), (x - 8 - wide, y + 4), (x - wide / 2, y - 9), (x - wide / 2, y + 18)]
    places += [(x + 7, y - 8), (x + 7, y + 16), (x - 7 - wide, y - 8), (x - 7 - wide, y + 16)]
    for left, base in places:
        box = Box(left, base - LABEL + 2, left + wide, base + 3)
        if free([box], taken, limits):
            taken.append(box)
            return [label(point.label, left, base, room, class_="label halo")]
    return []


def _bytes(unit: str) -> str:
    """Bandwidth beside a rate: B/s beside FLOP/s."""
    return "B/s" if unit.endswith("/s") else "B"


def _description(roofs: Sequence[Roof], series: Sequence[Series], x: Axis, y: Axis) -> str:
    limits = "; ".join(
        f"{roof.name[:80]} {si(roof.rate, y.unit if roof.bound == 'compute' else _bytes(y.unit))}"
        for roof in roofs[:12]
    )
    points = [(one, p) for one in series for p in one.points]
    told = "; ".join(f"{(p.label or one.name)[:80]}: {si(p.y, y.unit)} at {si(p.x, x.unit)}" for one, p in points[:20])
    return f"Roofline with {len(roofs)} roofs: {limits}. {len(points)} points: {told}."
