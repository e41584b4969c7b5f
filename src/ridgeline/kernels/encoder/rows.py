"""Rows of a transformer: embedding, residual and bias, normalised; bias and activation. One pass over memory each.

A program takes some rows of [tokens, width]; sums are in float32 whatever the rows are.

    python -m pytest tests/kernels/test_encoder.py
"""

from __future__ import annotations

import triton
import triton.language as tl

ROOT_HALF = tl.constexpr(0.7071067811865476)
ROOT_2_OVER_PI = tl.constexpr(0.7978845608028654)


@triton.jit
def _normalised(x, weight, bias, d, inside, width, epsilon):
    """(x - mean) / deviation · weight + bias, along the second axis."""
    mean = tl.sum(tl.where(inside[None, :], x, 0.0), 1) / width
    off = tl.where(inside[None, :], x - mean[:, None], 0.0)
    per_deviation = 1 / tl.sqrt(tl.sum(off * off, 1) / width + epsilon)
    w = tl.load(weight + d, mask=inside, other=0).to(tl.float32)
    b = tl.load(bias + d, mask=inside, other=0).to(tl.float32)
    return off * per_deviation[:, None] * w[None, :] + b[None, :]


@triton.jit
def _text_of(token, offsets, texts):
    """The text each token belongs to: the last whose offset is not beyond it."""
    low = tl.zeros(token.shape, tl.int32)
    size = texts
    while size > 1:  # the answer is in [low, low + size)
        half = size // 2
        middle = low + half
        beyond = tl.load(offsets + middle, mask=middle < texts, other=1 << 62) > token
        low = tl.where(beyond, low, middle)
        size -= half
    return low


# One text has a kernel of its own otherwise, which Triton 3.6 fails to compile.
@triton.jit(do_not_specialize=["texts"])
def embed(
    ids, offsets, positions, word, position, weight, bias, out, tokens, texts, epsilon,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """word[ids] + position[place in its text], normalised. Without `positions` [tokens] a token's place is counted.

    `tokens` rows are written; those that belong to no text (from offsets[texts] on) are zero.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK)
    inside = d < WIDTH
    known = row < tl.minimum(tokens, tl.load(offsets + texts))
    if positions is None:
        place = row - tl.load(offsets + _text_of(row, offsets, texts), mask=known, other=0)
    else:
        place = tl.load(positions + row, mask=known, other=0)
    number = tl.load(ids + row, mask=known, other=0).to(tl.int64)
    both = known[:, None] & inside[None, :]
    x = tl.load(word + number[:, None] * WIDTH + d[None, :], mask=both, other=0).to(tl.float32)
    x += tl.load(position + place.to(tl.int64)[:, None] * WIDTH + d[None, :], mask=both, other=0).to(tl.float32)
    y = tl.where(known[:, None], _normalised(x, weight, bias, d, inside, WIDTH, epsilon), 0.0)
    to = out + row.to(tl.int64)[:, None] * WIDTH + d[None, :]
    tl.store(to, y.to(out.dtype.element_ty), mask=(row < tokens)[:, None] & inside[None, :])


@triton.jit
def add_norm(
    x, x_bias, residual, weight, bias, out, tokens, epsilon, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """x + its bias + residual, normalised: what follows the two products that lead back to the hidden state."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK)
    inside = d < WIDTH
    both = (row < tokens)[:, None] & inside[None, :]
    place = row[:, None] * WIDTH + d[None, :]
    y = tl.load(x + place, mask=both, other=0).to(tl.float32) + tl.load(residual + place, mask=both, other=0).to(
        tl.float32
    )
    y += tl.load(x_bias + d, mask=inside, other=0).to(tl.float32)[None, :]
    y = _normalised(y, weight, bias, d, inside, WIDTH, epsilon)
    tl.store(out + place, y.to(out.dtype.element_ty), mask=both)


@triton.jit
def _normal_share(x):
    """The share of a normal distribution below x: an odd polynomial in x up to 4.2, none or all of it beyond.

    x times it is off by less than 6e-5 (the tanh formula: 5e-4), which 16 bits cannot show. Fitted to the least maximum
    of x · error; at 4.2 what is left out is 5.6e-5. NaN stays NaN.
    """
    s = x * x
    p = 4.9238162414779974e-11
    p = p * s - 4.795659948304342e-09
    p = p * s + 2.072475686093252e-07
    p = p * s - 5.28956346288296e-06
    p = p * s + 8.98359335624548e-05
    p = p * s - 0.001086458959693502
    p = p * s + 0.009740940012027797
    p = p * s - 0.06622207647378231
    p = p * s + 0.39883457819177476
    share = tl.where(x > 4.2, 1.0, 0.5 + x * p)
    return tl.where(x < -4.2, 0.0, share)


@triton.jit
def activation(y, KIND: tl.constexpr):
    """gelu (by erf), gelu_16 (the same, for results of 16 bits), gelu_tanh, relu."""
    if KIND == "relu":
        y = tl.maximum(y, 0.0)
    elif KIND == "gelu":
        y = 0.5 * y * (1 + tl.erf(y * ROOT_HALF))
    elif KIND == "gelu_16":
        y = y * _normal_share(y)
    else:
        inner = ROOT_2_OVER_PI * (y + 0.044715 * y * y * y)
        y = y / (1 + tl.exp(-2 * inner))  # y·(1 + tanh) / 2
    return y


@triton.jit
def activate(
    x, bias, tokens, WIDTH: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """x [tokens, width] + bias, through its activation, in place."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    both = (row < tokens)[:, None] & (d < WIDTH)[None, :]
    place = x + row[:, None] * WIDTH + d[None, :]
    y = tl.load(place, mask=both, other=0).to(tl.float32)
    y += tl.load(bias + d, mask=d < WIDTH, other=0).to(tl.float32)[None, :]
    y = activation(y, KIND)
    tl.store(place, y.to(x.dtype.element_ty), mask=both)
