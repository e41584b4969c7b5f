"""The parts that all charts share: figure, legend, caption, axes, marks, symbols, labels.

A chart is drawn in a wide and a narrow version, and the stylesheet shows the one that fits. The legend is HTML, so it
wraps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ridgeline.web.chart.axis import Scale, choose_ticks, format_axis_title, get_ends
from ridgeline.web.chart.inputs import Axis, Interval
from ridgeline.web.chart.text import LABEL, TICK, estimate_width, fit_text
from ridgeline.web.markup import check_link, make_element, replace_unprintable

WIDE, NARROW = 720.0, 340.0
HUES = 7
_SHAPES = 4
_SQUARE = 1


@dataclass(frozen=True)
class Drawing:
    """A chart at one width: its height, its elements, and notes on what it could not show."""

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
    swatch: bool = False  # a patch of colour, for marks without a shape


def build_figure(
    title: str,
    draw: Callable[[float], Drawing],
    *,
    caption: str = "",
    description: str = "",
    keys: Sequence[Key] = (),
    notes: Sequence[str] = (),
    linked: bool = False,
) -> Markup:
    """Build the figure. To a screen reader a `linked` chart is a group of links, any other chart one image."""
    wide, narrow = draw(WIDE), draw(NARROW)
    all_notes = [note for note in dict.fromkeys((*notes, *wide.notes)) if note]
    below = [make_element("span", caption)] if caption else []
    below += [make_element("span", note, class_="note") for note in all_notes]
    parts = [make_element("p", title, class_="chart-title")] if title else []
    if keys:
        parts.append(make_element("ul", *map(_draw_legend_entry, keys), class_="legend"))
    for name, width, drawing in (("wide", WIDE, wide), ("narrow", NARROW, narrow)):
        parts.append(
            make_element(
                "svg",
                make_element("title", title or "Chart"),
                make_element("desc", " ".join((description, *all_notes))),
                *drawing.parts,
                class_=name,
                viewBox=f"0 0 {width:.0f} {drawing.height:.0f}",
                role="group" if linked else "img",
                aria_label=title or "Chart",
            )
        )
    if below:
        parts.append(make_element("figcaption", *below))
    return make_element("figure", *parts, class_="chart")


def draw_empty(width: float) -> Drawing:
    """Draw a chart without data."""
    return Drawing(
        72, [make_element("text", "Nothing to draw", x=width / 2, y=40, text_anchor="middle", class_="tick")]
    )


def describe_left_out(what: str, items: Sequence[tuple[str, float]], *, log: bool) -> str:
    """Return a sentence on values that the chart cannot show, or ""."""
    if not items:
        return ""
    named = ", ".join(f"{fit_text(name, 160)} ({value:g})" for name, value in items[:5])
    more = f" and {len(items) - 5} more" if len(items) > 5 else ""
    reason = "not a finite number above zero, as a log axis needs" if log else "not a finite number"
    return f"Left out, {reason}: {what} {named}{more}."


def describe_undrawn(intervals: Iterable[Interval | None], axis: Axis) -> str:
    """Return a sentence on intervals that the axis cannot show, or ""."""
    count = sum(interval is not None and not get_ends(interval, axis) for interval in intervals)
    return f"{count} interval{'s' if count > 1 else ''} cannot be drawn on this axis." if count else ""


def assign_colours(names: Iterable[str], order: Sequence[str] = ()) -> dict[str, int]:
    """Assign a colour index to each name; names in `order` come first, so that they keep their colours in a report."""
    return {name: index for index, name in enumerate(dict.fromkeys((*order, *names)))}


def get_colour_class(index: int) -> str:
    """Return the CSS class of a colour index."""
    return f"c{index % HUES + 1}"


def draw_symbol(index: int, x: float, y: float, radius: float = 4.5) -> Markup:
    """Draw the symbol of a series; shape and colour together distinguish 28 series."""
    r = radius
    match (index + index // HUES) % _SHAPES:
        case 0:
            return make_element("circle", cx=x, cy=y, r=r, class_="shape")
        case 1:
            corners = [(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)]
        case 2:
            corners = [(0.0, -1.15), (1.1, 0.8), (-1.1, 0.8)]
        case _:
            corners = [(0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)]
    d = "L".join(f"{x + dx * r:.2f} {y + dy * r:.2f}" for dx, dy in corners)
    return make_element("path", d=f"M{d}z", class_="shape")


def draw_whisker(d: str) -> list[Markup]:
    """Draw an interval over a lighter line, so that it is visible on dark bars."""
    return [make_element("path", d=d, class_="whisker halo-line"), make_element("path", d=d, class_="whisker")]


def draw_mark(parts: Sequence[Markup], *, index: int, title: str, link: str = "", id: str = "") -> Markup:
    """Group shapes with a tooltip, and a link if given."""
    return make_element(
        "a" if link else "g",
        make_element("title", title),
        *parts,
        class_=f"mark {get_colour_class(index)}",
        href=check_link(link) if link else None,
        data_id=id or None,
    )


def draw_label(
    text: str,
    x: float,
    y: float,
    max_width: float,
    *,
    anchor: str = "start",
    class_: str = "label",
    size: float = LABEL,
) -> Markup:
    """Draw text on one line, cut to `max_width`; the tooltip holds the full text."""
    text = replace_unprintable(text)
    fitting = fit_text(text, max_width, size)
    full = [make_element("title", text)] if fitting != " ".join(text.split()) else []
    return make_element("text", *full, fitting, x=x, y=y, text_anchor=anchor, class_=class_)


def draw_bottom_axis(scale: Scale, top: float, bottom: float, width: float) -> tuple[list[Markup], float]:
    """Draw grid, ticks and title below the plot; return them and the y where they end."""
    parts = []
    for tick in choose_ticks(scale):
        parts.append(make_element("line", x1=tick.position, x2=tick.position, y1=top, y2=bottom, class_="grid"))
        half = estimate_width(tick.text, TICK) / 2
        x = min(max(tick.position, half + 1), width - half - 1)
        parts.append(make_element("text", tick.text, x=x, y=bottom + 15, text_anchor="middle", class_="tick"))
    end = bottom + 20
    if title := format_axis_title(scale):
        max_width = width - 8
        middle = (scale.start + scale.end) / 2
        half = min(estimate_width(title, TICK), max_width) / 2
        x = min(max(middle, half + 4), width - half - 4)
        parts.append(draw_label(title, x, bottom + 33, max_width, anchor="middle", class_="axis-label", size=TICK))
        end = bottom + 39
    return parts, end


def draw_left_axis(scale: Scale, left: float, right: float) -> list[Markup]:
    """Draw grid, ticks and, above the plot, the title."""
    parts = []
    for tick in choose_ticks(scale):
        parts.append(make_element("line", x1=left, x2=right, y1=tick.position, y2=tick.position, class_="grid"))
        parts.append(make_element("text", tick.text, x=left - 7, y=tick.position + 4, text_anchor="end", class_="tick"))
    if title := format_axis_title(scale):
        parts.append(draw_label(title, 2, 12, right - 2, class_="axis-label", size=TICK))
    return parts


def compute_left_margin(scale: Scale) -> float:
    """Return the width of the labels of the left axis."""
    return max((estimate_width(tick.text, TICK) for tick in choose_ticks(scale)), default=0.0) + 14


def _draw_legend_entry(key: Key) -> Markup:
    line = [make_element("path", d="M1 7H23", class_=f"curve{' dashed' if key.dashed else ''}")] if key.line else []
    shape = draw_symbol(_SQUARE if key.swatch else key.index, 12, 7)
    picture = make_element(
        "svg", *line, shape, class_=f"key {get_colour_class(key.index)}", viewBox="0 0 24 14", aria_hidden="true"
    )
    return make_element("li", picture, make_element("span", key.name, title=key.name))
