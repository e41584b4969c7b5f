"""What encoders compute, in float64, and models drawn at random."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

EPSILON = 1e-6
POSITIONS = 400
_erf = np.vectorize(math.erf, otypes=[float])
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
    "tanh": lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def draw_layer(seed, hidden, mixed, inner, size=1.0):
    """The twelve of a layer, as `HalfEncoder.add` and `FloatEncoder.add` takes them."""
    random = np.random.default_rng(seed)

    def linear(out, into):
        drawn = size * random.standard_normal((out, into)) / into**0.5
        return [drawn.astype(np.float32), random.standard_normal(out).astype(np.float32)]

    def norm():
        return [random.uniform(0.5, 2, hidden).astype(np.float32), random.standard_normal(hidden).astype(np.float32)]

    first = *linear(3 * mixed, hidden), *linear(hidden, mixed), *norm()
    return [*first, *linear(inner, hidden), *linear(hidden, inner), *norm()]


def normalize_rows(x, weight, bias):
    off = x - x.mean(1, keepdims=True)
    return off / np.sqrt((off**2).mean(1, keepdims=True) + EPSILON) * weight + bias


def attention(qkv, offsets, heads):
    width = qkv.shape[1] // 3 // heads
    result = np.empty((len(qkv), heads * width))
    for begin, end in pairwise(offsets):
        if begin == end:
            continue
        q, k, v = qkv[begin:end].reshape(end - begin, 3, heads, width).transpose(1, 2, 0, 3)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(width)
        shares = np.exp(scores - scores.max(2, keepdims=True))
        shares /= shares.sum(2, keepdims=True)
        result[begin:end] = (shares @ v).transpose(1, 0, 2).reshape(end - begin, -1)
    return result


def compute_layer(x, offsets, layer, heads, activation):
    """One layer in float64, from factors that were not rounded."""
    qkv, qkv_bias, out, out_bias, out_norm, out_norm_bias, up, up_bias, down, down_bias, norm, norm_bias = (
        w.astype(float) for w in layer
    )
    x = x.astype(float)
    x = normalize_rows(attention(x @ qkv.T + qkv_bias, offsets, heads) @ out.T + out_bias + x, out_norm, out_norm_bias)
    return normalize_rows(ACTIVATIONS[activation](x @ up.T + up_bias) @ down.T + down_bias + x, norm, norm_bias)


def draw_embedding(seed, words, hidden, positions=POSITIONS):
    """The tables of words and positions, and their norm, as `HalfEncoder.set_embedding` takes them."""
    random = np.random.default_rng([seed, 1])
    tables = [random.standard_normal((rows, hidden), np.float32) for rows in (words, positions)]
    return [*tables, random.uniform(0.5, 2, hidden).astype(np.float32), random.standard_normal(hidden, np.float32)]


def draw_texts(seed, lengths, words):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return np.random.default_rng(seed).integers(0, words, offsets[-1]).astype(np.int32), offsets


def embed_ids(begin, ids, offsets, padding=-1):
    """What tokens are before the first layer, in float64."""
    places = []
    for first, last in pairwise(offsets):
        place = padding
        for token in ids[first:last]:
            counts = padding < 0 or token != padding
            place += counts
            places.append(place if counts else padding)
    words, tables, weight, bias = (part.astype(float) for part in begin)
    return normalize_rows(words[ids] + tables[np.array(places, int)], weight, bias)
