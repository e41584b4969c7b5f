"""Intervals on a common clock, one lane for each thing that was at work: what ran beside what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from ridgeline.web.chart.axis import Scale, drawable, position, scaled
from ridgeline.web.chart.frame import NARROW, Drawing, bottom_axis, empty, figure, label, left_out, mark
from ridgeline.web.chart.inputs import Axis, Interval
from ridgeline.web.chart.text import text_width
from ridgeline.web.markup import element
from ridgeline.web.number import si

_LANE, _THICK = 30.0, 18.0


def intervals(
    lanes: Mapping[str, Sequence[Interval]],
    *,
    title: str = "",
    axis: Axis = Axis(),  # noqa: B008 (frozen)
    caption: str = "",
    what: str = "",
) -> Markup:
    """One lane of blocks for each name; the n-th block of every lane belongs to one thing and has its colour.

    `what` names such a thing ("batch") for who points at it.
    """
    kept = {n: [(k, b, e) for k, (b, e) in enumerate(spans) if _fits(b, e, axis)] for n, spans in lanes.items()}
    lost = [(n, b) for n, spans in lanes.items() for b, e in spans if not _fits(b, e, axis)]
    drawn = any(kept.values())
    return figure(
        title,
        lambda width: _drawn(kept, axis, what, width) if drawn else empty(width),
        caption=caption,
        description=f"Timeline of {len(lanes)} lanes. " + "; ".join(_told(n, s, axis) for n, s in kept.items()),
        notes=[left_out("block of", lost, log=axis.scale != "linear")],
    )


def _fits(begin: float, end: float, axis: Axis) -> bool:
    return drawable(begin, axis) and drawable(end, axis) and begin <= end


def _drawn(lanes: Mapping[str, Sequence[tuple[int, float, float]]], axis: Axis, what: str, width: float) -> Drawing:
    stacked = width <= NARROW
    left = 4.0 if stacked else min(max(map(text_width, lanes)), 0.3 * width) + 12
    scale = scaled(axis, [t for spans in lanes.values() for _, b, e in spans for t in (b, e)], left, width - 10)
    parts: list[Markup] = []
    top = y = 4.0
    for name, spans in lanes.items():
        if stacked:
            parts.append(label(name, left, y + 12, width - left - 4, class_="label halo"))
            y += 16
        else:
            parts.append(label(name, left - 8, y + _LANE / 2 + 4, left - 10, anchor="end"))
        parts += [_block(name, number, b, e, scale, what, y + (_LANE - _THICK) / 2) for number, b, e in spans]
        y += _LANE
    axes, end = bottom_axis(scale, top, y, width)
    return Drawing(end, axes + parts)


def _block(lane: str, number: int, begin: float, end: float, scale: Scale, what: str, y: float) -> Markup:
    left, right = position(scale, begin), position(scale, end)
    shape = element("rect", x=left, y=y, width=max(right - left, 0.75), height=_THICK, rx=2, class_="shape")
    unit = scale.axis.unit
    told = f"{what or 'block'} {number} · {lane}\n{si(end - begin, unit)}, from {si(begin, unit)} to {si(end, unit)}"
    return mark([shape], index=number, title=told)


def _told(name: str, spans: Sequence[tuple[int, float, float]], axis: Axis) -> str:
    busy = sum(e - b for _, b, e in spans)
    return f"{name}: {len(spans)} blocks, {si(busy, axis.unit)} in all"
