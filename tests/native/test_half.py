"""Layers in float16: near a float64 reference over any shape, the same to the last bit however they are shared out.

python -m pytest tests/native/test_half.py
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ridgeline.native import HalfStack, half_here, norm_rows

pytestmark = pytest.mark.skipif(not half_here(), reason="this CPU does not multiply float16")

EPSILON = 1e-6
_erf = np.vectorize(math.erf, otypes=[float])
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
    "tanh": lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def weights(seed, hidden, mixed, inner, size=1.0):
    """The twelve of a layer, as `HalfStack.add` takes them."""
    random = np.random.default_rng(seed)

    def linear(out, into):
        drawn = size * random.standard_normal((out, into)) / into**0.5
        return [drawn.astype(np.float32), random.standard_normal(out).astype(np.float32)]

    def norm():
        return [random.uniform(0.5, 2, hidden).astype(np.float32), random.standard_normal(hidden).astype(np.float32)]

    first = *linear(3 * mixed, hidden), *linear(hidden, mixed), *norm()
    return [*first, *linear(inner, hidden), *linear(hidden, inner), *norm()]


def tokens(seed, lengths, hidden):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return np.random.default_rng(seed).standard_normal((offsets[-1], hidden), np.float32), offsets


def normed(x, weight, bias):
    off = x - x.mean(1, keepdims=True)
    return off / np.sqrt((off**2).mean(1, keepdims=True) + EPSILON) * weight + bias


def attention(qkv, offsets, heads):
    width = qkv.shape[1] // 3 // heads
    found = np.empty((len(qkv), heads * width))
    for begin, end in pairwise(offsets):
        if begin == end:
            continue
        q, k, v = qkv[begin:end].reshape(end - begin, 3, heads, width).transpose(1, 2, 0, 3)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(width)
        shares = np.exp(scores - scores.max(2, keepdims=True))
        shares /= shares.sum(2, keepdims=True)
        found[begin:end] = (shares @ v).transpose(1, 0, 2).reshape(end - begin, -1)
    return found


def reference(x, offsets, layer, heads, activation):
    """One layer in float64, from factors that were not rounded."""
    qkv, qkv_bias, out, out_bias, out_norm, out_norm_bias, up, up_bias, down, down_bias, norm, norm_bias = (
        w.astype(float) for w in layer
    )
    x = x.astype(float)
    x = normed(attention(x @ qkv.T + qkv_bias, offsets, heads) @ out.T + out_bias + x, out_norm, out_norm_bias)
    return normed(ACTIVATIONS[activation](x @ up.T + up_bias) @ down.T + down_bias + x, norm, norm_bias)


def made(layers, hidden, heads, width, activation="gelu"):
    stack = HalfStack(hidden, heads, width, width**-0.5, EPSILON, activation)
    for layer in layers:
        stack.add(*layer)
    return stack


@settings(deadline=None)  # the reference is slow
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    hidden=st.integers(16, 120),
    heads=st.integers(1, 4),
    width=st.sampled_from((16, 32, 48, 64)),
    inner=st.integers(1, 450),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    threads=st.integers(1, 4),
)
@example(1, [130, 1, 63], 384, 12, 32, 1536, "gelu", 2)
@example(2, [400, 0, 3], 32, 2, 16, 64, "tanh", 1)
@example(3, [16] * 16, 96, 3, 32, 800, "relu", 3)
def test_a_layer_is_that_of_float64(seed, lengths, hidden, heads, width, inner, activation, threads):
    layer = weights(seed, hidden, heads * width, inner)
    x, offsets = tokens(seed, lengths, hidden)
    wanted = reference(x, offsets, layer, heads, activation)
    made([layer], hidden, heads, width, activation)(x, offsets, threads)
    wrong = np.abs(x - wanted) / (1 + np.abs(wanted))
    assert wrong.size == 0 or (wrong.max() <= 0.02 and np.sqrt((wrong**2).mean()) <= 2e-3)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 30), min_size=2, max_size=20), st.integers(1, 4))
def test_a_text_is_the_same_to_the_last_bit_alone_and_among_others(seed, lengths, threads):
    stack = made([weights(seed, 40, 32, 60), weights(seed + 1, 40, 32, 60)], 40, 2, 16)
    x, offsets = tokens(seed, lengths, 40)
    k = seed % len(lengths)
    part = slice(offsets[k], offsets[k + 1])
    alone = x[part].copy()
    stack(x, offsets, threads)
    stack(alone, np.array([0, lengths[k]]))
    np.testing.assert_array_equal(alone, x[part])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e6, -1e6])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_what_float16_cannot_hold_stays_in_its_text_and_is_not_hidden(value, activation):
    stack = made([weights(5, 24, 32, 50)], 24, 2, 16, activation)
    x, offsets = tokens(3, [7, 9, 5], 24)
    clean = x.copy()
    stack(clean, offsets)
    x[10, 9] = value
    stack(x, offsets)
    others = (np.arange(21) < 7) | (np.arange(21) >= 16)
    np.testing.assert_array_equal(x[others], clean[others])
    assert not np.isfinite(x[7:16]).any()


def test_sums_of_many_terms_are_not_rounded_at_every_term():
    layer = weights(7, 384, 64, 1536)
    layer[0] *= 0  # nothing from attention but a bias
    x, offsets = tokens(7, [100], 384)
    wanted = reference(x, offsets, layer, 2, "relu")
    made([layer], 384, 2, 32, "relu")(x, offsets)
    assert np.sqrt(((x - wanted) ** 2).mean()) < 2e-3  # float16 throughout: 3.9e-3


@pytest.mark.parametrize(
    ("shape", "offsets", "said"),
    [
        ((4, 25), [0, 4], "rows must be"),
        ((4, 24), [0, 3], "offsets must run"),
        ((4, 24), [1, 4], "offsets must run"),
        ((4, 24), [], "offsets must run"),
        ((4, 24), [0, 3, 2, 4], "offsets must not fall"),
    ],
)
def test_rows_and_offsets_that_do_not_fit_are_refused(shape, offsets, said):
    stack = made([weights(1, 24, 16, 20)], 24, 1, 16)
    with pytest.raises(ValueError, match=said):
        stack(np.zeros(shape, np.float32), np.array(offsets, np.int64))


@pytest.mark.parametrize("k", range(12))
def test_a_weight_of_another_shape_is_refused(k):
    layer = weights(1, 24, 16, 20)
    layer[k] = np.zeros(tuple(n + 1 for n in layer[k].shape), np.float32)
    with pytest.raises(ValueError, match=r"a weight is|one bias per row|as wide as the rows"):
        made([layer], 24, 1, 16)


@pytest.mark.parametrize(
    ("words", "said"),
    [((24, 2, 24), "width of a head"), ((24, 0, 16), "width of a head"), ((24, 2, 16, "silu"), "no activation 'silu'")],
)
def test_a_stack_that_cannot_be_is_refused(words, said):
    with pytest.raises(ValueError, match=said):
        made([], *words)


@given(st.integers(0, 150), st.integers(1, 50), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_rows_are_normed_as_in_float64(rows, width, threads, seed):
    values, _ = tokens(seed, [rows], width)
    weight, bias = np.random.default_rng(seed).standard_normal((2, width), np.float32)
    values += np.float32(3)
    wide = values.astype(float)
    norm_rows(values, weight, bias, EPSILON, threads)
    np.testing.assert_allclose(
        values, normed(wide, weight, bias), atol=1e-4 if width > 2 else 2e-3
    )  # two alike differ by rounding


def test_weights_of_another_width_are_refused():
    with pytest.raises(ValueError, match="as wide as the rows"):
        norm_rows(np.zeros((2, 3), np.float32), np.zeros(2, np.float32), np.zeros(3, np.float32), 1e-6)
