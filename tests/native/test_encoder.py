"""Layers in float16: near a float64 reference over any shape, the same to the last bit however they are shared out.

python -m pytest tests/native/test_encoder.py
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.native.encoder_reference import (
    ACTIVATIONS,
    EPSILON,
    POSITIONS,
    compute_layer,
    draw_embedding,
    draw_layer,
    draw_texts,
    embed_ids,
)

from ridgeline.native import HalfEncoder, half_supported

pytestmark = pytest.mark.skipif(not half_supported(), reason="this CPU does not multiply float16")


def build(begin, layers, hidden, heads, width, activation="gelu", *, keep=True, padding=-1):
    stack = HalfEncoder(hidden, heads, width, width**-0.5, EPSILON, activation)
    stack.set_embedding(*begin, padding)
    for layer in layers:
        stack.add(*layer)
    if keep:
        qkv, bias = layers[0][:2]
        factors = qkv * begin[2]
        stack.cache_products(factors, begin[1] @ factors.T, factors.sum(1), qkv @ begin[3] + bias)
    return stack


def through(stack, ids, offsets, hidden, threads=1):
    rows = np.empty((len(ids), hidden), np.float32)
    stack(ids, offsets, rows, threads)
    return rows


@settings(deadline=None)  # the reference is slow
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    words=st.integers(1, 300),
    hidden=st.integers(16, 120),
    heads=st.integers(1, 4),
    width=st.sampled_from((16, 32, 48, 64)),
    inner=st.integers(1, 450),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    threads=st.integers(1, 4),
    keep=st.booleans(),
    padding=st.sampled_from((-1, 0, 1)),
)
@example(1, [130, 1, 63], 500, 384, 12, 32, 1536, "gelu", 2, True, -1)
@example(2, [399, 0, 3], 40, 32, 2, 16, 64, "tanh", 1, False, 0)
@example(3, [16] * 16, 7, 96, 3, 32, 800, "relu", 3, True, 1)
def test_a_layer_is_that_of_float64(
    seed, lengths, words, hidden, heads, width, inner, activation, threads, keep, padding
):
    begin, layer = draw_embedding(seed, words, hidden), draw_layer(seed, hidden, heads * width, inner)
    ids, offsets = draw_texts(seed, lengths, words)
    expected = compute_layer(embed_ids(begin, ids, offsets, padding), offsets, layer, heads, activation)
    stack = build(begin, [layer], hidden, heads, width, activation, keep=keep, padding=padding)
    for _ in range(2):  # the second time every word is known
        result = through(stack, ids, offsets, hidden, threads)
        wrong = np.abs(result - expected) / (1 + np.abs(expected))
        assert wrong.size == 0 or (wrong.max() <= 0.02 and np.sqrt((wrong**2).mean()) <= 2e-3)


@settings(deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(1, 30), min_size=2, max_size=20),
    st.integers(1, 4),
    st.booleans(),
)
def test_a_text_is_the_same_to_the_last_bit_alone_and_among_others(seed, lengths, threads, keep):
    layers = [draw_layer(seed, 40, 32, 60), draw_layer(seed + 1, 40, 32, 60)]
    among, alone = (build(draw_embedding(seed, 90, 40), layers, 40, 2, 16, keep=keep) for _ in range(2))
    ids, offsets = draw_texts(seed, lengths, 90)
    k = seed % len(lengths)
    part = slice(offsets[k], offsets[k + 1])
    all_of_them = through(among, ids, offsets, 40, threads)
    for stack in (among, alone):  # after the other texts, and as the first text
        one = through(stack, ids[part].copy(), np.array([0, lengths[k]]), 40)
        np.testing.assert_array_equal(one, all_of_them[part])


@settings(deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.lists(st.integers(1, 30), min_size=1, max_size=9), st.booleans(), st.integers(1, 3)
)
def test_means_are_those_of_the_rows(seed, lengths, unit, threads):
    stack = build(draw_embedding(seed, 90, 40), [draw_layer(seed, 40, 32, 60)], 40, 2, 16)
    ids, offsets = draw_texts(seed, lengths, 90)
    rows = through(stack, ids, offsets, 40).astype(float)
    expected = np.stack([rows[a:b].mean(0) for a, b in pairwise(offsets)])
    if unit:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    result = np.empty((len(lengths), 40), np.float32)
    stack.means(ids, offsets, result, unit, threads)
    np.testing.assert_allclose(result, expected, atol=3e-6)


def test_means_for_another_number_of_texts_are_refused():
    stack = build(draw_embedding(1, 9, 24), [draw_layer(1, 24, 16, 20)], 24, 1, 16)
    with pytest.raises(ValueError, match=r"rows must be \[1, 24\]"):
        stack.means(np.zeros(3, np.int32), np.array([0, 3]), np.zeros((2, 24), np.float32), True)


def test_callers_at_the_same_time_get_what_one_gets():
    begin, layers = draw_embedding(1, 4_000, 64), [draw_layer(k, 64, 64, 96) for k in range(2)]
    calls = [draw_texts(seed, [9, 30, 1, 17] * 8, 4_000) for seed in range(12)]
    expected = [through(build(begin, layers, 64, 2, 32), *call, 64) for call in calls]
    stack = build(begin, layers, 64, 2, 32)
    with ThreadPoolExecutor(4) as pool:
        result = list(pool.map(lambda call: through(stack, *call, 64, 2), calls))
    for one, other in zip(result, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("size", [1e-6, 1e-3, 30.0])
def test_words_of_any_size_keep_their_digits(size):
    begin, layer = draw_embedding(4, 50, 48), draw_layer(4, 48, 48, 64)
    begin[0], begin[1] = (np.float32(size) * table for table in begin[:2])
    ids, offsets = draw_texts(4, [40, 9], 50)
    stack = HalfEncoder(48, 3, 16, 0.25, 1e-20, "gelu")
    stack.set_embedding(*begin)
    stack.add(*layer)
    direct = through(stack, ids, offsets, 48)
    factors = layer[0] * begin[2]
    stack.cache_products(factors, begin[1] @ factors.T, factors.sum(1), layer[0] @ begin[3] + layer[1])
    retained = through(stack, ids, offsets, 48)
    assert np.sqrt(((retained - direct) ** 2).mean()) < 2e-3
    assert not np.array_equal(retained, direct)  # another way


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e6, -1e6])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("keep", [True, False])
def test_what_float16_cannot_hold_stays_in_its_text_and_is_not_hidden(value, activation, keep):
    begin, layer = draw_embedding(5, 22, 24), draw_layer(5, 24, 32, 50)
    ids, offsets = np.arange(21, dtype=np.int32), np.array([0, 7, 16, 21])
    clean = through(build(begin, [layer], 24, 2, 16, activation, keep=keep), ids, offsets, 24)
    begin[0] = begin[0].copy()
    begin[0][10] = np.float32(value) if not np.isfinite(value) else begin[0][10]
    begin[3] = begin[3].copy()
    if np.isfinite(value):  # a norm takes size away; what is large behind it is the bias of the next one
        layer = [*layer[:5], layer[5] * 0 + np.float32(value), *layer[6:]]
    result = through(build(begin, [layer], 24, 2, 16, activation, keep=keep), ids, offsets, 24)
    others = (np.arange(21) < 7) | (np.arange(21) >= 16)
    if np.isfinite(value):
        assert not np.isfinite(result).any()
    else:
        np.testing.assert_array_equal(result[others], clean[others])
        assert not np.isfinite(result[~others]).any()


def test_sums_of_many_terms_are_not_rounded_at_every_term():
    begin, layer = draw_embedding(7, 100, 384), draw_layer(7, 384, 64, 1536)
    layer[0] *= 0  # nothing from attention but a bias
    ids, offsets = draw_texts(7, [100], 100)
    expected = compute_layer(embed_ids(begin, ids, offsets), offsets, layer, 2, "relu")
    result = through(build(begin, [layer], 384, 2, 32, "relu"), ids, offsets, 384)
    assert np.sqrt(((result - expected) ** 2).mean()) < 2e-3  # float16 throughout: 3.9e-3


@pytest.mark.parametrize(
    ("ids", "offsets", "width", "message"),
    [
        ([1] * 4, [0, 4], 25, r"rows must be \[4, 24\]"),
        ([1] * 4, [0, 3], 24, "offsets must run"),
        ([1] * 4, [1, 4], 24, "offsets must run"),
        ([1] * 4, [], 24, "offsets must run"),
        ([1] * 4, [0, 3, 2, 4], 24, "offsets must not decrease"),
        ([1, 9, 1], [0, 3], 24, "token 9 is not a row"),
        ([1, -1, 1], [0, 3], 24, "token -1 is not a row"),
        ([1] * 9, [0, 3, 9], 24, "text 1 has more tokens"),
    ],
)
def test_tokens_and_offsets_that_do_not_fit_are_refused(ids, offsets, width, message):
    stack = build(draw_embedding(1, 9, 24, places=5), [draw_layer(1, 24, 16, 20)], 24, 1, 16)
    with pytest.raises(ValueError, match=message):
        through(stack, np.array(ids, np.int32), np.array(offsets, np.int64), width)


def test_a_stack_without_tables_is_refused():
    stack = HalfEncoder(24, 1, 16, 0.25, EPSILON, "gelu")
    with pytest.raises(ValueError, match="no tables yet"):
        through(stack, np.zeros(1, np.int32), np.array([0, 1]), 24)


@pytest.mark.parametrize("k", range(4))
def test_tables_of_another_shape_are_refused(k):
    begin = draw_embedding(1, 9, 24)
    begin[k] = np.zeros((*begin[k].shape[:-1], 25), np.float32)
    with pytest.raises(ValueError, match=r"a table must be|as wide as the rows"):
        build(begin, [draw_layer(1, 24, 16, 20)], 24, 1, 16)


@pytest.mark.parametrize("padding", [-2, 400])
def test_a_padding_that_is_no_place_is_refused(padding):
    with pytest.raises(ValueError, match="not a position"):
        build(draw_embedding(1, 9, 24), [draw_layer(1, 24, 16, 20)], 24, 1, 16, padding=padding)


@pytest.mark.parametrize("k", range(12))
def test_a_weight_of_another_shape_is_refused(k):
    layer = draw_layer(1, 24, 16, 20)
    layer[k] = np.zeros(tuple(n + 1 for n in layer[k].shape), np.float32)
    with pytest.raises(ValueError, match=r"a weight is|one bias per row|as wide as the rows"):
        build(draw_embedding(1, 9, 24), [layer], 24, 1, 16, keep=False)


@pytest.mark.parametrize("k", range(4))
def test_products_of_another_shape_are_refused(k):
    stack = build(draw_embedding(1, 9, 24), [draw_layer(1, 24, 16, 20)], 24, 1, 16, keep=False)
    parts = [np.zeros(shape, np.float32) for shape in ((48, 24), (POSITIONS, 48), (48,), (48,))]
    stack.cache_products(*parts)
    parts[k] = np.zeros(tuple(n + 1 for n in parts[k].shape), np.float32)
    with pytest.raises(ValueError, match=r"a weight is|one bias per row|as wide as the factors"):
        stack.cache_products(*parts)


@pytest.mark.parametrize(
    ("words", "message"),
    [((24, 2, 24), "width of a head"), ((24, 0, 16), "width of a head"), ((24, 2, 16, "silu"), "no activation 'silu'")],
)
def test_a_stack_that_cannot_be_is_refused(words, message):
    with pytest.raises(ValueError, match=message):
        build(draw_embedding(1, 9, 24), [], *words, keep=False)
