"""Products in float16: near a float64 reference over any shape, the same to the last bit however they are shared out.

python -m pytest tests/native/test_half.py
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ridgeline.native import HalfLinear, half_here, norm_rows

pytestmark = pytest.mark.skipif(not half_here(), reason="this CPU does not multiply float16")

TYPES = (np.float32, np.float16)
ROUNDED = 2.0**-11  # of a float16, relative
GELU = 6e-5  # what its polynomial may be off
SUMMED = 16 * ROUNDED  # sums are near 1, and off by 1e-3 of it as a rule

_erf = np.vectorize(math.erf, otypes=[float])


def reference(x, weight, bias, residual, activation):
    """In float64, from the factors as they were rounded."""
    y = x.astype(np.float16).astype(float) @ weight.astype(np.float16).astype(float).T + bias
    if activation == "relu":
        y = np.maximum(y, 0)
    if activation == "gelu":
        y = y * 0.5 * (1 + _erf(y / math.sqrt(2)))
    return y if residual is None else y + residual


def drawn(seed, rows, inner, out):
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, inner), np.float32)
    weight = random.standard_normal((out, inner), np.float32) / max(1, inner) ** 0.5
    return x, weight, random.standard_normal(out, np.float32), random.standard_normal((rows, out), np.float32)


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(0, 150),
    inner=st.integers(1, 450),
    out=st.integers(1, 70),
    types=st.tuples(st.sampled_from(TYPES), st.sampled_from(TYPES)),
    activation=st.sampled_from(("none", "relu", "gelu")),
    added=st.booleans(),
    threads=st.integers(1, 4),
)
@example(seed=1, rows=65, inner=1536, out=384, types=TYPES, activation="none", added=True, threads=2)
@example(seed=2, rows=8, inner=384, out=17, types=TYPES[::-1], activation="gelu", added=False, threads=3)
def test_a_product_is_that_of_the_rounded_factors(seed, rows, inner, out, types, activation, added, threads):
    x, weight, bias, residual = drawn(seed, rows, inner, out)
    x = x.astype(types[0])
    y = np.full((rows, out), np.nan, types[1])
    HalfLinear(weight, bias)(x, y, residual if added else None, activation, threads)
    wanted = reference(x, weight, bias, residual if added else None, activation)
    room = GELU + 2 * ROUNDED * (1 + np.abs(wanted)) if types[1] == np.float16 else GELU
    assert (np.abs(y - wanted) <= room + SUMMED).all()


def test_sums_of_many_terms_are_not_rounded_at_every_term():
    x, weight, bias, _ = drawn(7, 200, 1536, 64)
    y = np.empty((200, 64), np.float32)
    HalfLinear(weight, bias)(x, y)
    wrong = y - reference(x, weight, bias, None, "none")
    assert np.sqrt((wrong**2).mean()) < 1.0e-3  # float16 throughout: 2.5e-3


@given(st.integers(1, 140), st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_a_row_is_the_same_to_the_last_bit_alone_and_among_others(rows, threads, seed):
    x, weight, bias, residual = drawn(seed, rows, 200, 40)
    layer = HalfLinear(weight, bias)
    together, alone = np.empty((rows, 40), np.float32), np.empty((1, 40), np.float32)
    layer(x, together, residual, "gelu", threads)
    k = seed % rows
    layer(x[k : k + 1], alone, residual[k : k + 1], "gelu")
    np.testing.assert_array_equal(alone[0], together[k])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e6, -1e6])
@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_what_float16_cannot_hold_stays_in_its_row_and_is_not_hidden(value, activation):
    x, weight, bias, _ = drawn(3, 20, 64, 33)
    y, clean = np.empty((20, 33), np.float32), np.empty((20, 33), np.float32)
    layer = HalfLinear(np.abs(weight), bias)
    layer(x, clean, None, activation)
    x[5, 9] = value
    layer(x, y, None, activation)
    others = np.arange(20) != 5
    np.testing.assert_array_equal(y[others], clean[others])
    assert (value < 0 and activation == "gelu") or not np.isfinite(y[5]).any()


@pytest.mark.parametrize(
    ("x", "y", "words", "said"),
    [
        (np.zeros((2, 3), np.float32), np.zeros((2, 5), np.float32), {}, "x must be"),
        (np.zeros((2, 4), np.float32), np.zeros((3, 5), np.float32), {}, "x must be"),
        (np.zeros((2, 4), np.float64), np.zeros((2, 5), np.float32), {}, "x must be float32 or float16"),
        (np.zeros((2, 4), np.float32), np.zeros((2, 5), np.int16), {}, "y must be float32 or float16"),
        (np.zeros((2, 4), np.float32), np.zeros((2, 5), np.float32), {"activation": "silu"}, "no activation 'silu'"),
        (
            np.zeros((2, 4), np.float32),
            np.zeros((2, 5), np.float32),
            {"residual": np.zeros((1, 5), np.float32)},
            "residual must have the shape of y",
        ),
    ],
)
def test_shapes_and_types_that_do_not_fit_are_refused(x, y, words, said):
    layer = HalfLinear(np.zeros((5, 4), np.float32), np.zeros(5, np.float32))
    with pytest.raises(ValueError, match=said):
        layer(x, y, **words)


def test_a_bias_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="one bias per row"):
        HalfLinear(np.zeros((5, 4), np.float32), np.zeros(4, np.float32))


@given(st.integers(0, 150), st.integers(1, 50), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_rows_are_normed_as_in_float64(rows, width, threads, seed):
    values, weight, bias, _ = drawn(seed, rows, width, width)
    values += np.float32(3)
    wide = values.astype(float)
    norm_rows(values, weight[0], bias, 1e-6, threads)
    spread = np.sqrt(wide.var(1, keepdims=True) + 1e-6)
    wanted = (wide - wide.mean(1, keepdims=True)) / spread * weight[0] + bias
    np.testing.assert_allclose(values, wanted, atol=1e-4 if width > 2 else 2e-3)  # two alike differ by their rounding


def test_weights_of_another_width_are_refused():
    with pytest.raises(ValueError, match="as wide as the rows"):
        norm_rows(np.zeros((2, 3), np.float32), np.zeros(2, np.float32), np.zeros(3, np.float32), 1e-6)
