"""The frame around every chart: a figure with title, legend, picture and caption; axes, marks and symbols.

A chart is drawn for a wide and a narrow place, and the stylesheet shows the one that fits. The legend is
HTML, so it wraps by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ridgeline.web.chart.axis import Scale, axis_title, ends, ticks
from ridgeline.web.chart.inputs import Axis, Interval
from ridgeline.web.chart.text import LABEL, TICK, fitted, text_width
from ridgeline.web.markup import element, href, printable

WIDE, NARROW = 720.0, 340.0
HUES = 7
_SHAPES = 4
_SQUARE = 1


@dataclass(frozen=True)
class Drawing:
    """What one width gives: the height it took, its marks, and what could not be shown."""

    height: float
    parts: list[Markup]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Key:
    """One entry of the legend; `index` gives colour and shape."""

    name: str
    index: int
    line: bool = False
    dashed: bool = False
    swatch: bool = False  # a patch of colour, for marks that have no shape of their own


def figure(
    title: str,
    draw: Callable[[float], Drawing],
    *,
    caption: str = "",
    description: str = "",
    keys: Sequence[Key] = (),
    notes: Sequence[str] = (),
    linked: bool = False,
) -> Markup:
    """The finished figure. `linked` charts are a group of links to a screen reader, others one image."""
    wide, narrow = draw(WIDE), draw(NARROW)
    said = [note for note in dict.fromkeys((*notes, *wide.notes)) if note]
    below = [element("span", caption)] if caption else []
    below += [element("span", note, class_="note") for note in said]
    parts = [element("p", title, class_="chart-title")] if title else []
    if keys:
        parts.append(element("ul", *map(_legend_entry, keys), class_="legend"))
    for name, width, drawing in (("wide", WIDE, wide), ("narrow", NARROW, narrow)):
        parts.append(
            element(
                "svg",
                element("title", title or "Chart"),
                element("desc", " ".join((description, *said))),
                *drawing.parts,
                class_=name,
                viewBox=f"0 0 {width:.0f} {drawing.height:.0f}",
                role="group" if linked else "img",
                aria_label=title or "Chart",
            )
        )
    if below:
        parts.append(element("figcaption", *below))
    return element("figure", *parts, class_="chart")


def empty(width: float) -> Drawing:
    """The picture of a chart that was given nothing it could draw."""
    return Drawing(72, [element("text", "Nothing to draw", x=width / 2, y=40, text_anchor="middle", class_="tick")])


def left_out(what: str, items: Sequence[tuple[str, float]], *, log: bool) -> str:
    """The sentence on values that have no place in the chart; empty if all have one."""
    if not items:
        return ""
    named = ", ".join(f"{fitted(name, 160)} ({value:g})" for name, value in items[:5])
    more = f" and {len(items) - 5} more" if len(items) > 5 else ""
    why = "not a finite number above zero, as a log axis needs" if log else "not a finite number"
    return f"Left out, {why}: {what} {named}{more}."


def undrawn(intervals: Iterable[Interval | None], axis: Axis) -> str:
    """The sentence on intervals that cannot be drawn; empty if all can."""
    count = sum(interval is not None and not ends(interval, axis) for interval in intervals)
    return f"{count} interval{'s' if count > 1 else ''} cannot be drawn on this axis." if count else ""


def indices(names: Iterable[str], order: Sequence[str] = ()) -> dict[str, int]:
    """Each name's colour; those in `order` come first, so that a name keeps its colour in a report."""
    return {name: index for index, name in enumerate(dict.fromkeys((*order, *names)))}


def hue(index: int) -> str:
    """The colour class of the index-th name."""
    return f"c{index % HUES + 1}"


def symbol(index: int, x: float, y: float, radius: float = 4.5) -> Markup:
    """Shapes tell series apart where colours cannot; past seven names the pairs of both still differ."""
    r = radius
    match (index + index // HUES) % _SHAPES:
        case 0:
            return element("circle", cx=x, cy=y, r=r, class_="shape")
        case 1:
            corners = [(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)]
        case 2:
            corners = [(0.0, -1.15), (1.1, 0.8), (-1.1, 0.8)]
        case _:
            corners = [(0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)]
    d = "L".join(f"{x + dx * r:.2f} {y + dy * r:.2f}" for dx, dy in corners)
    return element("path", d=f"M{d}z", class_="shape")


def whisker(d: str) -> list[Markup]:
    """An interval's line, on a lighter one so that it is seen on dark bars too."""
    return [element("path", d=d, class_="whisker halo-line"), element("path", d=d, class_="whisker")]


def mark(parts: Sequence[Markup], *, index: int, title: str, link: str = "", id: str = "") -> Markup:
    """Marks that answer to the pointer, and lead somewhere if they have a link."""
    return element(
        "a" if link else "g",
        element("title", title),
        *parts,
        class_=f"mark {hue(index)}",
        href=href(link) if link else None,
        data_id=id or None,
    )


def label(
    text: str,
    x: float,
    y: float,
    room: float,
    *,
    anchor: str = "start",
    class_: str = "label",
    size: float = LABEL,
) -> Markup:
    """Text on one line, cut to its room; what was cut is in its title."""
    text = printable(text)
    shown = fitted(text, room, size)
    full = [element("title", text)] if shown != " ".join(text.split()) else []
    return element("text", *full, shown, x=x, y=y, text_anchor=anchor, class_=class_)


def bottom_axis(scale: Scale, top: float, bottom: float, width: float) -> tuple[list[Markup], float]:
    """Grid, ticks and title below the plot, and the height down to where they end."""
    parts = []
    for tick in ticks(scale):
        parts.append(element("line", x1=tick.position, x2=tick.position, y1=top, y2=bottom, class_="grid"))
        half = text_width(tick.text, TICK) / 2
        x = min(max(tick.position, half + 1), width - half - 1)
        parts.append(element("text", tick.text, x=x, y=bottom + 15, text_anchor="middle", class_="tick"))
    end = bottom + 20
    if title := axis_title(scale):
        room = width - 8
        middle = (scale.start + scale.end) / 2
        half = min(text_width(title, TICK), room) / 2
        x = min(max(middle, half + 4), width - half - 4)
        parts.append(label(title, x, bottom + 33, room, anchor="middle", class_="axis-label", size=TICK))
        end = bottom + 39
    return parts, end


def left_axis(scale: Scale, left: float, right: float) -> list[Markup]:
    """Grid, ticks and, level above the plot where it is easiest to read, the title."""
    parts = []
    for tick in ticks(scale):
        parts.append(element("line", x1=left, x2=right, y1=tick.position, y2=tick.position, class_="grid"))
        parts.append(element("text", tick.text, x=left - 7, y=tick.position + 4, text_anchor="end", class_="tick"))
    if title := axis_title(scale):
        parts.append(label(title, 2, 12, right - 2, class_="axis-label", size=TICK))
    return parts


def left_margin(scale: Scale) -> float:
    """Room for the labels of the left axis."""
    return max((text_width(tick.text, TICK) for tick in ticks(scale)), default=0.0) + 14


def _legend_entry(key: Key) -> Markup:
    line = [element("path", d="M1 7H23", class_=f"curve{' dashed' if key.dashed else ''}")] if key.line else []
    shape = symbol(_SQUARE if key.swatch else key.index, 12, 7)
    picture = element("svg", *line, shape, class_=f"key {hue(key.index)}", viewBox="0 0 24 14", aria_hidden="true")
    return element("li", picture, element("span", key.name, title=key.name))
