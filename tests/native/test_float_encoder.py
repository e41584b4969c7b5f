"""Layers in float32 and 8 bits: near a float64 reference over any shape, the same bits in any batch and on any CPU.

python -m pytest tests/native/test_float_encoder.py
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.native.encoder_reference import (
    ACTIVATIONS,
    EPSILON,
    compute_layer,
    draw_embedding,
    draw_layer,
    draw_texts,
    embed_ids,
)

from ridgeline.native import FloatEncoder, instruction_sets

SETS = instruction_sets()


def build(embedding, layers, heads, width, activation, *, in_bytes=False, isa="", int8="", padding=-1):
    encoder = FloatEncoder(embedding[0].shape[1], heads, width, width**-0.5, EPSILON, activation, in_bytes, isa, int8)
    encoder.set_embedding(*embedding, padding)
    for layer in layers:
        encoder.add(*layer)
    return encoder


def run(encoder, ids, offsets, hidden, threads=1):
    rows = np.full((len(ids), hidden), np.nan, np.float32)
    encoder(ids, offsets, rows, threads)
    return rows


def draw_model(seed, layers=2, hidden=48, heads=3, width=16, inner=80):
    return draw_embedding(seed, 50, hidden), [draw_layer(seed + i, hidden, heads * width, inner) for i in range(layers)]


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    hidden=st.sampled_from((16, 48, 64, 80, 144)),
    heads=st.integers(1, 3),
    width=st.sampled_from((16, 32, 48, 64)),
    inner=st.sampled_from((16, 32, 112, 208)),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    threads=st.integers(1, 3),
    isa=st.sampled_from(SETS),
    padding=st.sampled_from((-1, 0, 1)),
)
def test_layers_agree_with_float64(seed, lengths, hidden, heads, width, inner, activation, threads, isa, padding):
    embedding = draw_embedding(seed, 30, hidden)
    layers = [draw_layer(seed + i, hidden, heads * width, inner) for i in range(2)]
    ids, offsets = draw_texts(seed, lengths, 30)
    encoder = build(embedding, layers, heads, width, activation, isa=isa, padding=padding)
    expected = embed_ids(embedding, ids, offsets, padding)
    for layer in layers:
        expected = compute_layer(expected, offsets, layer, heads, activation)
    np.testing.assert_allclose(run(encoder, ids, offsets, hidden, threads), expected, rtol=2e-4, atol=2e-4)


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=30),
    threads=st.integers(1, 3),
    in_bytes=st.booleans(),
    isa=st.sampled_from(SETS),
)
def test_a_text_has_the_same_bits_alone_and_in_any_batch(seed, lengths, threads, in_bytes, isa):
    embedding, layers = draw_model(seed)
    ids, offsets = draw_texts(seed, lengths, 50)
    encoder = build(embedding, layers, 3, 16, "gelu", in_bytes=in_bytes, isa=isa)
    together = run(encoder, ids, offsets, 48, threads)
    for first, last in pairwise(offsets):
        alone = run(encoder, ids[first:last], np.array([0, last - first]), 48)
        np.testing.assert_array_equal(together[first:last].view(np.uint32), alone.view(np.uint32))


def test_sums_of_bytes_are_exact_so_all_instruction_sets_agree():
    embedding, layers = draw_model(5, hidden=64, heads=2, width=32, inner=208)
    ids, offsets = draw_texts(5, [1, 7, 30], 50)
    results = [run(build(embedding, layers, 2, 32, "relu", in_bytes=True, isa=isa), ids, offsets, 64) for isa in SETS]
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], rtol=0, atol=2e-2)


def test_bytes_stay_near_float32():
    embedding, layers = draw_model(3, hidden=128, heads=4, width=32, inner=256)
    ids, offsets = draw_texts(3, [5, 20, 90], 50)
    exact, rounded = (
        run(build(embedding, layers, 4, 32, "gelu", in_bytes=b), ids, offsets, 128) for b in (False, True)
    )
    cosines = (exact * rounded).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(rounded, axis=1)
    assert 0.999 < cosines.min() < 1 - 1e-7  # in bytes, indeed


def test_zeros_and_large_values_survive_in_bytes():
    embedding, layers = draw_model(4)
    embedding[0][:] = 0
    embedding[1][:] = 0
    embedding[3][:] = 0  # the bias of the norm: all tokens are zero before the first layer
    ids, offsets = draw_texts(4, [3, 9], 50)
    assert np.isfinite(run(build(embedding, layers, 3, 16, "gelu", in_bytes=True), ids, offsets, 48)).all()
    layers[0][6][:] *= 1e6  # the widening weight
    assert np.isfinite(run(build(embedding, layers, 3, 16, "gelu", in_bytes=True), ids, offsets, 48)).all()


@pytest.mark.parametrize("in_bytes", [False, True])
def test_nan_in_one_text_stays_in_that_text(in_bytes):
    embedding, layers = draw_model(6)
    embedding[0][7] = np.nan
    ids, offsets = np.array([1, 2, 3, 7, 1, 4, 5], np.int32), np.array([0, 2, 5, 7])
    rows = run(build(embedding, layers, 3, 16, "gelu", in_bytes=in_bytes), ids, offsets, 48)
    assert np.isfinite(rows[[0, 1, 5, 6]]).all()
    assert np.isnan(rows[2:5]).any()


def test_wrong_shapes_are_refused():
    embedding, _ = draw_model(7)
    with pytest.raises(ValueError, match="multiples of 16"):
        FloatEncoder(40, 3, 16, 0.25, EPSILON, "gelu")
    with pytest.raises(ValueError, match="no activation 'swish'"):
        FloatEncoder(48, 3, 16, 0.25, EPSILON, "swish")
    encoder = FloatEncoder(48, 3, 16, 0.25, EPSILON, "gelu")
    ids, offsets = draw_texts(7, [4], 50)
    with pytest.raises(ValueError, match="no tables yet"):
        run(encoder, ids, offsets, 48)
    with pytest.raises(ValueError, match="a weight is"):
        encoder.add(*draw_layer(1, 64, 48, 80))
    encoder.set_embedding(*embedding)
    with pytest.raises(ValueError, match="token 50 is not a row of words"):
        run(encoder, np.full(4, 50, np.int32), offsets, 48)
    with pytest.raises(ValueError, match="more tokens than there are positions"):
        run(encoder, *draw_texts(7, [401], 50), 48)


def test_means_are_those_of_the_rows():
    embedding, layers = draw_model(8)
    ids, offsets = draw_texts(8, [4, 1, 12], 50)
    encoder = build(embedding, layers, 3, 16, "tanh")
    means = np.empty((3, 48), np.float32)
    encoder.means(ids, offsets, means, True, 2)
    rows = run(encoder, ids, offsets, 48).astype(float)
    expected = np.stack([rows[a:b].mean(0) for a, b in pairwise(offsets)])
    np.testing.assert_allclose(means, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-6)
