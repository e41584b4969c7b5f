"""Charts: what they draw, what they leave out with a note, and that labels do not overlap."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest
from tests.web.hostile import HOSTILE

from ridgeline.errors import InputError
from ridgeline.web import (
    Axis,
    Bar,
    Cell,
    Point,
    Roof,
    Samples,
    Series,
    draw_bars,
    draw_cells,
    draw_intervals,
    draw_lines,
    draw_roofline,
    draw_samples,
)

ROOFS = [Roof("HBM", 4e12, "memory"), Roof("L2", 1.1e13, "memory"), Roof("bf16", 8e14, "compute")]
LOG = Axis("Time", "s", "log")


def parse_figure(figure):
    """The figure as a tree; XML is stricter than HTML, so this also checks that it is well-formed."""
    return ET.fromstring(str(figure))


def get_wide_svg(figure):
    return next(svg for svg in parse_figure(figure).iter("svg") if svg.get("class") == "wide")


def list_marks(figure):
    return [e for e in get_wide_svg(figure).iter() if (e.get("class") or "").startswith("mark")]


def read_notes(figure):
    return " ".join(e.text or "" for e in parse_figure(figure).iter("span"))


def draw_all_charts(text, value=1.0, interval=(0.5, 1.5)):
    """One chart of each kind with this text everywhere and this value among the others."""
    about = {"title": text, "caption": text}
    level = {"reference": 1.0, "reference_label": text}
    options = {"title": text, "href": "#x", "id": text}
    point = Point(1, value, interval, text, **options)
    spots = [Point(1, 1e12, label=text, **options), Point(value, 1e12)]
    roofs = [*ROOFS, Roof(text, 3e12, "memory"), Roof(text, 1e14, "compute")]
    return [
        draw_bars(
            [Bar(text, value, interval, text, text, **options), Bar("b", 2, series="b")],
            axis=Axis(text),
            **level,
            **about,
        ),
        draw_lines(
            [Series(text, [point, Point(2, 3)]), Series("b", [])],
            x=Axis(text),
            y=Axis(text, "s"),
            **level,
            **about,
        ),
        draw_roofline(roofs, [Series(text, spots)], **about),
        draw_samples([Samples(text, [1.0, value, 2.0], interval, text, **options)], axis=Axis(text), **about),
        draw_intervals({text: [(0.0, 1.0), (1.0, value)], "b": []}, axis=Axis(text), what=text, **about),
        draw_cells([Cell(text, text, value, text, text, **options), Cell("b", "b", 2.0)], across=text, **about),
    ]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_stays_text_in_every_chart(text):
    names = {
        "figure",
        "figcaption",
        "span",
        "p",
        "ul",
        "li",
        "svg",
        "title",
        "desc",
        "g",
        "a",
        "text",
        "line",
        "rect",
        "path",
        "circle",
    }
    for figure in draw_all_charts(text):
        clean = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]", "\ufffd", str(figure))
        assert {element.tag for element in ET.fromstring(clean).iter()} <= names


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308, -1e308])
def test_a_value_that_cannot_be_drawn_is_left_out_with_a_note(value):
    for figure in draw_all_charts("odd", value, None):
        assert "Left out" in read_notes(figure)
        assert "nan" not in re.sub(r"<(span|desc|title).*?</\1>", "", str(figure)).lower()


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_a_log_axis_leaves_out_what_is_not_above_zero(value):
    figure = draw_bars([Bar("fine", 1.0), Bar("odd", value)], axis=LOG)
    assert len(list_marks(figure)) == 1
    assert "odd" in read_notes(figure)
    assert "above zero" in read_notes(figure)


def test_an_interval_that_a_log_axis_cannot_show_has_a_note():
    assert "1 interval cannot be drawn" in read_notes(draw_bars([Bar("a", 1.0, (0.0, 2.0))], axis=LOG))
    assert "2 intervals cannot be drawn" in read_notes(
        draw_lines([Series("a", [Point(1, 1, (-1, 2)), Point(2, 1, (math.nan, 2))])], y=LOG)
    )
    assert not read_notes(draw_bars([Bar("a", 1.0, (0.0, 2.0))]))


@pytest.mark.parametrize(
    "figure",
    [
        draw_bars([]),
        draw_bars([Bar("a", math.nan)]),
        draw_lines([]),
        draw_lines([Series("a", [])]),
        draw_roofline([], []),
        draw_samples([]),
        draw_samples([Samples("a", [])]),
    ],
)
def test_a_chart_of_nothing_says_so(figure):
    assert "Nothing to draw" in str(figure)


def test_an_interval_the_wrong_way_round_is_refused():
    with pytest.raises(InputError, match="low end first"):
        Bar("a", 1.0, (2.0, 1.0))
    with pytest.raises(InputError, match="low end first"):
        Point(1, 1, (2.0, 1.0))


def test_names_that_are_not_known_are_refused_with_the_ones_that_are():
    with pytest.raises(InputError, match="linear, log, log2"):
        Axis(scale="logarithmic")
    with pytest.raises(InputError, match="memory, compute"):
        Roof("a", 1.0, "disk")
    with pytest.raises(InputError, match="cannot reach 0"):
        draw_bars([Bar("a", 1.0)], axis=Axis(scale="log", low=0))


def test_a_chart_is_an_image_with_title_and_description_or_a_group_if_it_has_links():
    svg = get_wide_svg(draw_bars([Bar("a", 1.0)], title="Speed"))
    assert (svg.get("role"), svg.get("aria-label")) == ("img", "Speed")
    assert svg.find("title").text == "Speed"
    assert "a: 1" in svg.find("desc").text
    assert get_wide_svg(draw_bars([Bar("a", 1.0, href="#a")])).get("role") == "group"


def test_a_mark_carries_its_tooltip_link_and_id():
    (mark,) = list_marks(draw_bars([Bar("a", 1.0, title="more on a", href="#case-a", id="case-a")]))
    assert (mark.tag, mark.get("href"), mark.get("data-id")) == ("a", "#case-a", "case-a")
    assert mark.find("title").text == "more on a"
    (plain,) = list_marks(draw_bars([Bar("a", 0.0012, (0.001, 0.002), group="g")], axis=Axis(unit="s")))
    assert plain.tag == "g"
    assert plain.find("title").text == "g · a\n1.2 ms [1 ms to 2 ms]"


def rects(figure):
    return [
        (float(rect.get("x")), float(rect.get("width")))
        for rect in get_wide_svg(figure).iter("rect")
        if rect.get("class") == "shape"
    ]


def test_bars_are_as_long_as_their_values_from_zero():
    (x1, one), (x2, two), (x3, minus) = rects(draw_bars([Bar("a", 1), Bar("b", 2), Bar("c", -1)]))
    assert two == pytest.approx(2 * one, abs=0.05)
    assert (x1, minus) == (pytest.approx(x2), pytest.approx(one, abs=0.05))
    assert x3 + minus == pytest.approx(x1, abs=0.05)


def test_on_a_log_axis_bars_grow_from_the_reference_and_are_dots_without_one():
    rows = [Bar("twice", 2.0), Bar("half", 0.5)]
    (x1, faster), (x2, slower) = rects(draw_bars(rows, axis=Axis(scale="log"), reference=1.0))
    assert faster == pytest.approx(slower, abs=0.05)
    assert x2 + slower == pytest.approx(x1, abs=0.05)
    dots = draw_bars(rows, axis=Axis(scale="log"))
    assert rects(dots) == []
    assert len(list(get_wide_svg(dots).iter("circle"))) == 2


def test_a_curve_breaks_where_a_point_was_not_measured():
    unbroken = draw_lines([Series("a", [Point(x, 1.0 + x) for x in range(4)])])
    broken = draw_lines([Series("a", [Point(x, math.nan if x == 2 else 1.0 + x) for x in range(5)])])
    curves = [
        [p for p in get_wide_svg(f).iter("path") if (p.get("class") or "").startswith("curve")]
        for f in (unbroken, broken)
    ]
    assert [len(c) for c in curves] == [1, 2]
    assert "a at 2" in read_notes(broken)


def test_points_are_joined_in_the_order_of_x():
    figure = draw_lines([Series("a", [Point(3, 1), Point(1, 1), Point(2, 1)])])
    (curve,) = [p for p in get_wide_svg(figure).iter("path") if (p.get("class") or "").startswith("curve")]
    xs = [float(x) for x in re.findall(r"([\d.]+) [\d.]+", curve.get("d"))]
    assert xs == sorted(xs)


def test_a_name_keeps_its_colour_whatever_else_is_drawn():
    order = ("ridgeline", "torch", "faiss")
    alone = draw_lines([Series("faiss", [Point(1, 1)])], order=order)
    both = draw_lines([Series("torch", [Point(1, 1)]), Series("faiss", [Point(1, 2)])], order=order)
    assert list_marks(alone)[0].get("class") == list_marks(both)[1].get("class") == "mark c3"


def test_a_point_on_the_slope_lies_on_its_roof():
    at = 10.0
    figure = draw_roofline(
        [Roof("HBM", 4e12, "memory"), Roof("bf16", 8e14, "compute")], [Series("a", [Point(at, 4e13)])]
    )
    (spot,) = get_wide_svg(figure).iter("circle")
    x, y = float(spot.get("cx")), float(spot.get("cy"))
    slope = next(p for p in get_wide_svg(figure).iter("path") if p.get("class") == "roof" and _rises(p))
    (x1, y1), (x2, y2) = _ends(slope)
    assert y == pytest.approx(y1 + (x - x1) / (x2 - x1) * (y2 - y1), abs=0.1)


def test_the_ridge_is_where_the_slope_meets_the_roof():
    figure = draw_roofline([Roof("HBM", 4e12, "memory"), Roof("bf16", 8e14, "compute")], [])
    slope, level = (
        next(_ends(p) for p in get_wide_svg(figure).iter("path") if p.get("class") == "roof" and _rises(p) is rises)
        for rises in (True, False)
    )
    assert slope[1] == pytest.approx(level[0], abs=0.05)


def _ends(path):
    numbers = [float(n) for n in re.findall(r"[\d.]+", path.get("d"))]
    return (numbers[0], numbers[1]), (numbers[2], numbers[3])


def _rises(path):
    (_, y1), (_, y2) = _ends(path)
    return y1 != y2


def test_labels_without_free_space_are_counted_in_a_note():
    crowd = [Point(1 + n / 1000, 1e12 + n, label=f"point number {n}") for n in range(60)]
    assert re.search(r"\d+ labels had no room", read_notes(draw_roofline(ROOFS, [Series("a", crowd)])))


def test_a_long_run_is_thinned_to_a_bounded_number_of_dots_with_its_extremes():
    values = [1.0 + (n * 7919 % 1000) / 1e4 for n in range(50_000)]
    values[1234] = 9.0
    figure = draw_samples([Samples("a", values)])
    dots = next(p for p in get_wide_svg(figure).iter("path") if p.get("class") == "dots").get("d")
    assert 400 <= dots.count("M") <= 402
    assert "400 evenly spaced" in read_notes(figure)
    assert max(float(x) for x in re.findall(r"M([\d.]+)", dots)) > 400  # the extreme is there, far to the right


def test_samples_show_the_median_and_count():
    (strip,) = list_marks(draw_samples([Samples("a", [1.0, 2.0, 9.0], (1.0, 3.0))], axis=Axis(unit="s")))
    assert strip.find("title").text == "a\nmedian 2 s [1 s to 3 s]\n3 samples, 1 s to 9 s"


def test_a_long_label_is_cut_and_its_tooltip_has_the_full_text():
    name = "a contender with a name that goes on and on and on and on and on"
    figure = draw_bars([Bar(name, 1.0)])
    cut = next(t for t in get_wide_svg(figure).iter("text") if (t.find("title") is not None))
    assert cut.find("title").text == name
    assert cut.find("title").tail.endswith("…")


def test_blocks_lie_where_they_were_and_the_nth_of_every_lane_share_a_colour():
    figure = draw_intervals({"up": [(0.0, 1.0), (1.0, 2.0)], "down": [(1.0, 1.5), (2.0, 4.0)]}, axis=Axis(unit="s"))
    blocks = [(m.get("class"), m.find("rect")) for m in list_marks(figure)]
    up0, up1, down0, down1 = ((c, float(r.get("x")), float(r.get("width")), float(r.get("y"))) for c, r in blocks)
    assert up0[0] == down0[0] != up1[0] == down1[0]
    assert up0[1] + up0[2] == pytest.approx(up1[1], abs=0.02), "one ends where the next begins"
    assert down1[2] == pytest.approx(2 * up0[2], rel=0.01), "twice as long is twice as wide"
    assert down0[1] == pytest.approx(up1[1], abs=0.02), "the same moment is the same place in every lane"
    assert up0[3] == up1[3] < down0[3] == down1[3]


def test_a_block_that_ends_before_it_starts_has_a_note():
    figure = draw_intervals({"up": [(2.0, 1.0), (0.0, 1.0)]})
    assert len(list_marks(figure)) == 1
    assert "Left out" in read_notes(figure)


def test_a_map_shades_by_distance_from_its_reference_and_names_what_it_leaves_out():
    shapes = [Cell("GPU 0", "node 0", 0.0, "nearest"), Cell("GPU 0", "node 1", 0.5), Cell("GPU 1", "node 0", -0.25)]
    chart = draw_cells([*shapes, Cell("GPU 1", "node 1", math.nan)], title="t", across="memory on")
    shades = {
        e.find("text").text: (e.get("class"), float(e.find("rect").get("fill-opacity"))) for e in list_marks(chart)
    }
    assert shades["nearest"][1] < shades["-0.25"][1] < shades["0.5"][1]
    assert shades["0.5"][0] != shades["-0.25"][0], "above and below have colours of their own"
    assert "Left out" in read_notes(chart)
    assert "GPU 1, node 1" in read_notes(chart)


def test_points_only_draws_no_line():
    points = [Point(1, 1), Point(2, 3)]
    joined, separate = (draw_lines([Series("a", points, points_only=flag)]) for flag in (False, True))
    assert str(joined).count("curve") > str(separate).count("curve") == 0
    assert len(list_marks(joined)) == len(list_marks(separate)) == 2
