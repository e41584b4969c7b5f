"""Attention of short texts: near a float64 reference over any lengths, the same to the last bit however shared out.

python -m pytest tests/native/test_half_attention.py
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ridgeline.native import half_attention, half_here

pytestmark = pytest.mark.skipif(not half_here(), reason="this CPU does not multiply float16")


def reference(qkv, offsets, heads):
    width = qkv.shape[1] // 3 // heads
    found = np.empty((len(qkv), heads * width))
    for begin, end in pairwise(offsets):
        if begin == end:
            continue
        q, k, v = qkv[begin:end].astype(float).reshape(end - begin, 3, heads, width).transpose(1, 2, 0, 3)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(width)
        shares = np.exp(scores - scores.max(2, keepdims=True))
        shares /= shares.sum(2, keepdims=True)
        found[begin:end] = (shares @ v).transpose(1, 0, 2).reshape(end - begin, -1)
    return found


def drawn(seed, lengths, hidden, size=1.0):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    qkv = size * np.random.default_rng(seed).standard_normal((offsets[-1], 3 * hidden), np.float32)
    return qkv.astype(np.float32), offsets, np.full((offsets[-1], hidden), np.nan, np.float16)


@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    heads=st.integers(1, 4),
    width=st.sampled_from((8, 16, 32, 40)),
    size=st.sampled_from((0.01, 1.0, 30.0)),
    threads=st.integers(1, 4),
)
@example(seed=1, lengths=[130, 1, 63], heads=3, width=32, size=1.0, threads=2)
def test_each_text_attends_to_itself_only(seed, lengths, heads, width, size, threads):
    qkv, offsets, out = drawn(seed, lengths, heads * width, size)
    half_attention(qkv, offsets, out, heads, threads)
    wanted = reference(qkv, offsets, heads)
    np.testing.assert_allclose(out, wanted, rtol=2e-3, atol=1e-3 * size)


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 30), min_size=2, max_size=6))
def test_a_text_is_the_same_to_the_last_bit_alone_and_among_others(seed, lengths):
    qkv, offsets, out = drawn(seed, lengths, 32)
    half_attention(qkv, offsets, out, 4, 3)
    k = seed % len(lengths)
    part = slice(offsets[k], offsets[k + 1])
    alone = np.empty((lengths[k], 32), np.float16)
    half_attention(qkv[part].copy(), np.array([0, lengths[k]]), alone, 4)
    np.testing.assert_array_equal(alone, out[part])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_text_and_is_not_hidden(value):
    qkv, offsets, out = drawn(3, [7, 9, 5], 16)
    half_attention(qkv, offsets, out, 2)
    clean = out.copy()
    qkv[10, :] = value
    half_attention(qkv, offsets, out, 2)
    others = (np.arange(21) < 7) | (np.arange(21) >= 16)
    np.testing.assert_array_equal(out[others], clean[others])
    assert not np.isfinite(out[7:16]).any()


@pytest.mark.parametrize(
    ("shape", "offsets", "hidden", "heads", "said"),
    [
        ((4, 48), [0, 4], 16, 4, "width of a head"),
        ((4, 48), [0, 4], 16, 0, "width of a head"),
        ((4, 32), [0, 4], 16, 2, "qkv must be"),
        ((4, 48), [0, 3], 16, 2, "offsets must run"),
        ((4, 48), [], 16, 2, "offsets must run"),
        ((4, 48), [0, 3, 2, 4], 16, 2, "offsets must not fall"),
    ],
)
def test_what_does_not_fit_is_refused(shape, offsets, hidden, heads, said):
    out = np.zeros((shape[0], hidden), np.float16)
    with pytest.raises(ValueError, match=said):
        half_attention(np.zeros(shape, np.float32), np.array(offsets, np.int64), out, heads)


def test_a_result_that_is_not_float16_is_refused():
    with pytest.raises(ValueError, match="out must be float16"):
        half_attention(np.zeros((4, 48), np.float32), np.array([0, 4]), np.zeros((4, 16), np.float32), 2)
