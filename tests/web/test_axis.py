"""Axes and room: values find their place, ticks are round and stand apart, texts are cut to fit."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ridgeline.web import Axis
from ridgeline.web.chart.axis import position, scaled, ticks
from ridgeline.web.chart.text import fitted, text_width

SCALES = ("linear", "log", "log2")


@given(st.text(max_size=60), st.floats(20, 400))
def test_a_cut_text_fits_its_room(text, room):
    assert text_width(fitted(text, room)) <= room


values = st.floats(1e-12, 1e15)


@settings(max_examples=200)
@given(
    st.lists(values, min_size=1, max_size=6),
    st.sampled_from(SCALES),
    st.booleans(),
    st.sampled_from(["", "s", "B/s"]),
)
@example([1.000000000001, 0.5], "linear", False, "")
def test_an_axis_holds_its_values_and_its_ticks_stand_apart_on_it(held, kind, across, unit):
    start, end = (40.0, 600.0) if across else (300.0, 20.0)
    scale = scaled(Axis(unit=unit, scale=kind), held, start, end)
    assert scale.low <= min(held)
    assert scale.high >= max(held)
    assert position(scale, scale.low) == pytest.approx(start)
    assert position(scale, scale.high) == pytest.approx(end)
    found = ticks(scale)
    assert 1 <= len(found) <= 9
    assert len({tick.text for tick in found}) == len(found)
    for a, b in pairwise(found):
        gap = abs(a.position - b.position)
        assert gap >= ((text_width(a.text, 11) + text_width(b.text, 11)) / 2 if across else 15)


@pytest.mark.parametrize(
    ("axis", "held", "texts"),
    [
        (Axis(unit="s"), [0, 0.0041], ["0", "1", "2", "3", "4", "5"]),
        (Axis(unit="s", scale="log"), [1e-6, 1e-2], ["1 µs", "10 µs", "100 µs", "1 ms", "10 ms"]),
        (
            Axis(unit="FLOP/s", scale="log"),
            [1e11, 1e13],
            ["100 G", "200 G", "500 G", "1 T", "2 T", "5 T", "10 T"],
        ),
        (Axis(scale="log2"), [1, 64], ["1", "2", "4", "8", "16", "32", "64"]),
        (Axis(scale="log2"), [16384, 131072], ["16Ki", "32Ki", "64Ki", "128Ki"]),
        (Axis(scale="log2"), [1 << 19, 1 << 22], ["512Ki", "1Mi", "2Mi", "4Mi"]),
        (Axis(unit="×", scale="log"), [0.5, 3.0], ["0.5×", "1×", "1.5×", "2×", "2.5×", "3×"]),
        (Axis(unit="×", scale="log"), [1.0, 1.03], ["1×", "1.005×", "1.01×", "1.015×", "1.02×", "1.025×", "1.03×"]),
    ],
)
def test_ticks_stand_on_round_numbers(axis, held, texts):
    assert [tick.text for tick in ticks(scaled(axis, held, 0.0, 700.0))] == texts
