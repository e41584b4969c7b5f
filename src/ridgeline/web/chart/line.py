"""Line charts over a sweep: points in the order of x, with intervals as whiskers or bands."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ridgeline.web.chart.axis import Scale, fit_scale, get_ends, get_position, is_drawable
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
    draw_symbol,
    draw_whisker,
    get_colour_class,
)
from ridgeline.web.chart.inputs import Axis, Point, Series
from ridgeline.web.chart.text import TICK, fit_text
from ridgeline.web.markup import make_element
from ridgeline.web.number_format import format_si


def draw_lines(
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
    """Draw curves over a sweep. `zero` starts a linear y axis at 0; `reference` is a horizontal line at that y.

    A point without a finite y breaks its curve, because that part was not measured.
    """
    drawn_series = [line for line in series if any(_is_drawable(point, x, y) for point in line.points)]
    left_out_points = [
        (f"{line.name} at {point.x:g}", point.y)
        for line in series
        for point in line.points
        if not _is_drawable(point, x, y)
    ]
    if reference is not None and not is_drawable(reference, y):
        reference = None
    colours = assign_colours((line.name for line in series), order)
    return build_figure(
        title,
        lambda width: (
            _draw(drawn_series, x, y, zero, reference, reference_label, colours, width)
            if drawn_series
            else draw_empty(width)
        ),
        caption=caption,
        description=_describe(drawn_series, x, y),
        keys=[
            Key(line.name, colours[line.name], line=not line.points_only, dashed=line.dashed)
            for line in drawn_series
            if line.name
        ],
        notes=[
            describe_left_out("point", left_out_points, log=(x.scale, y.scale) != ("linear", "linear")),
            describe_undrawn((point.interval for line in drawn_series for point in line.points), y),
        ],
        linked=any(point.href for line in drawn_series for point in line.points),
    )


def _draw(
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    zero: bool,
    reference: float | None,
    reference_label: str,
    colours: dict[str, int],
    width: float,
) -> Drawing:
    points = [point for line in series for point in line.points if _is_drawable(point, x, y)]
    top, bottom = (24.0, 264.0 if width <= NARROW else 300.0)
    levels = [v for point in points for v in (point.y, *get_ends(point.interval, y))] + (
        [] if reference is None else [reference]
    )
    rise = fit_scale(y, levels, bottom, top, zero=zero)
    left, right = compute_left_margin(rise), width - 12
    run = fit_scale(x, (point.x for point in points), left + 8, right - 8)
    axes, end = draw_bottom_axis(run, top, bottom, width)
    parts = [
        *draw_left_axis(rise, left, right),
        *axes,
        make_element("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="base"),
    ]
    if reference is not None:
        level = get_position(rise, reference)
        parts.append(make_element("line", x1=left, x2=right, y1=level, y2=level, class_="reference"))
        if reference_label:
            max_width = right - left
            above = level - 5 if level - 5 > top + TICK else level + 14
            parts.append(
                draw_label(
                    reference_label, right - 2, above, max_width, anchor="end", class_="axis-label halo", size=TICK
                )
            )
    for line in series:
        index = colours[line.name]
        for stretch in _split_at_gaps(line, x, y):
            parts += _draw_curve(line, stretch, run, rise, index)
    # Points last, so that no curve covers a point under the pointer.
    for line in series:
        parts += [
            draw_point(line, point, run, rise, colours[line.name]) for point in line.points if _is_drawable(point, x, y)
        ]
    return Drawing(end, parts)


def _split_at_gaps(line: Series, x: Axis, y: Axis) -> list[list[Point]]:
    """Sort the points by x and split them where a point has no y."""
    stretches: list[list[Point]] = [[]]
    for point in sorted((p for p in line.points if is_drawable(p.x, x)), key=lambda p: p.x):
        if is_drawable(point.y, y):
            stretches[-1].append(point)
        elif stretches[-1]:
            stretches.append([])
    return stretches


def _draw_curve(line: Series, points: Sequence[Point], run: Scale, rise: Scale, index: int) -> list[Markup]:
    if len(points) < 2 or line.points_only:
        return []
    parts = []
    banded = [point for point in points if get_ends(point.interval, rise.axis)] if line.band else []
    if len(banded) > 1:
        edge = [(point.x, get_ends(point.interval, rise.axis)[1]) for point in banded]
        edge += [(point.x, get_ends(point.interval, rise.axis)[0]) for point in reversed(banded)]
        parts.append(
            make_element("path", d=f"{_format_path(edge, run, rise)}z", class_=f"band {get_colour_class(index)}")
        )
    dashed = " dashed" if line.dashed else ""
    path = _format_path([(point.x, point.y) for point in points], run, rise)
    return [*parts, make_element("path", d=path, class_=f"curve {get_colour_class(index)}{dashed}")]


def _format_path(points: Sequence[tuple[float, float]], run: Scale, rise: Scale) -> str:
    return "M" + "L".join(f"{get_position(run, x):.2f} {get_position(rise, y):.2f}" for x, y in points)


def draw_point(line: Series, point: Point, run: Scale, rise: Scale, index: int) -> Markup:
    """Draw one point with whisker, tooltip and link."""
    at, level = get_position(run, point.x), get_position(rise, point.y)
    shapes: list[Markup] = []
    if not line.band and (spread := get_ends(point.interval, rise.axis)):
        low, high = (get_position(rise, v) for v in spread)
        d = f"M{at:.2f} {low:.2f}V{high:.2f}M{at - 3:.2f} {low:.2f}h6M{at - 3:.2f} {high:.2f}h6"
        shapes += draw_whisker(d)
    shapes.append(draw_symbol(index, at, level, 2.2 if line.dashed else 4.2))
    tooltip = point.title or _format_tooltip(line, point, run.axis, rise.axis)
    return draw_mark(shapes, index=index, title=tooltip, link=point.href, id=point.id)


def _is_drawable(point: Point, x: Axis, y: Axis) -> bool:
    return is_drawable(point.x, x) and is_drawable(point.y, y)


def _format_tooltip(line: Series, point: Point, x: Axis, y: Axis) -> str:
    spread = (
        f" [{format_si(point.interval[0], y.unit)} to {format_si(point.interval[1], y.unit)}]" if point.interval else ""
    )
    name = " · ".join(part for part in (line.name, point.label) if part)
    x_text, y_text = format_si(point.x, x.unit), format_si(point.y, y.unit)
    return f"{name}\n{x.label or 'x'}: {x_text}\n{y.label or 'y'}: {y_text}{spread}"


def _describe(series: Sequence[Series], x: Axis, y: Axis) -> str:
    summaries = []
    for line in series[:10]:
        drawn_points = [point for point in line.points if _is_drawable(point, x, y)]
        low, high = min(p.y for p in drawn_points), max(p.y for p in drawn_points)
        extent = f"{format_si(low, y.unit)} to {format_si(high, y.unit)}"
        summaries.append(f"{fit_text(line.name, 300)}: {len(drawn_points)} points, {extent}")
    return f"Line chart of {y.label or 'y'} over {x.label or 'x'}. {'; '.join(summaries)}."
