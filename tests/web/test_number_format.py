"""Numbers with SI prefixes and units."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.web import format_si


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (4.25e12, "B/s", "4.25 TB/s"),
        (0.0012, "s", "1.2 ms"),
        (1.5e-9, "s", "1.5 ns"),
        (0, "s", "0 s"),
        (-0.0012, "s", "-1.2 ms"),
        (7.9e14, "FLOP/s", "790 TFLOP/s"),
        (3600, "s", "3600 s"),
        (1.2e6, "items/s", "1.2 M items/s"),
        (0.25, "items/s", "0.25 items/s"),
        (0.25, "FLOP/B", "0.25 FLOP/B"),
        (1500, "FLOP/B", "1500 FLOP/B"),
        (87.04, "%", "87 %"),
        (1.254, "×", "1.25×"),
        (1024, "", "1024"),
        (65536, "", "65.5k"),
        (1e-20, "s", "1e-20 s"),
        (1e30, "B", "1e+30 B"),
    ],
)
def test_a_value_reads_as_the_field_writes_it(value, unit, text):
    assert format_si(value, unit) == text


def test_rounding_up_moves_to_the_next_prefix():
    assert format_si(999.9996, "B") == "1 kB"
    assert format_si(999_600, "B/s") == "1 MB/s"


def test_digits_set_the_precision():
    assert format_si(1.23456e9, "B/s", digits=5) == "1.2346 GB/s"


def test_what_is_no_number_says_so():
    assert format_si(math.nan, "s") == "n/a"
    assert format_si(math.inf, "s") == "∞ s"
    assert format_si(-math.inf, "×") == "-∞×"


@given(st.floats(-1e300, 1e300), st.sampled_from(["s", "B/s", "items/s", "", "×", "%"]))
def test_the_text_says_the_value_to_three_digits(value, unit):
    text = format_si(value, unit)
    number = text.removesuffix(unit).rstrip().rstrip("fpnµmkMGTPE").rstrip()
    tail = text[len(number) :].strip().removesuffix(unit).strip()
    power = {"f": -15, "p": -12, "n": -9, "µ": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
    assert float(number) * 10.0 ** power.get(tail, 0) == pytest.approx(value, rel=0.0051, abs=0)
