"""Axes include their values, ticks are round and do not touch, texts are cut to fit."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ridgeline.web import Axis
from ridgeline.web.chart.axis import choose_ticks, fit_scale, get_position
from ridgeline.web.chart.text import estimate_width, fit_text

SCALES = ("linear", "log", "log2")


@given(st.text(max_size=60), st.floats(20, 400))
def test_a_cut_text_fits_the_maximum_width(text, max_width):
    assert estimate_width(fit_text(text, max_width)) <= max_width


values = st.floats(1e-12, 1e15)


@settings(max_examples=200)
@given(
    st.lists(values, min_size=1, max_size=6),
    st.sampled_from(SCALES),
    st.booleans(),
    st.sampled_from(["", "s", "B/s"]),
)
@example([1.000000000001, 0.5], "linear", False, "")
def test_an_axis_includes_its_values_and_its_tick_labels_do_not_touch(data, kind, across, unit):
    start, end = (40.0, 600.0) if across else (300.0, 20.0)
    scale = fit_scale(Axis(unit=unit, scale=kind), data, start, end)
    assert scale.low <= min(data)
    assert scale.high >= max(data)
    assert get_position(scale, scale.low) == pytest.approx(start)
    assert get_position(scale, scale.high) == pytest.approx(end)
    tick_list = choose_ticks(scale)
    assert 1 <= len(tick_list) <= 9
    assert len({tick.text for tick in tick_list}) == len(tick_list)
    for a, b in pairwise(tick_list):
        gap = abs(a.position - b.position)
        assert gap >= ((estimate_width(a.text, 11) + estimate_width(b.text, 11)) / 2 if across else 15)


@pytest.mark.parametrize(
    ("axis", "data", "texts"),
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
def test_ticks_are_round_numbers(axis, data, texts):
    assert [tick.text for tick in choose_ticks(fit_scale(axis, data, 0.0, 700.0))] == texts
