"""Products of an encoder with what follows them in one launch: bias and activation, or bias, residual and norm.

The product stays in registers until it is finished, so the widest tensors of a layer are written once and never read
back in between. A program takes some tokens and, of the weights, a tile or all; weights `[out, in]` as models store
them. Sums are in float32.

    python -m pytest tests/kernels/test_products.py
"""

from __future__ import annotations

import triton
import triton.language as tl

from ridgeline.kernels.rows import activation


@triton.jit
def _rows_of(tokens, TOKENS: tl.constexpr, block):
    """The rows of a block; beyond the end the last one again, whose result is thrown away."""
    row = block * TOKENS + tl.arange(0, TOKENS)
    return row, tl.minimum(row, tokens - 1).to(tl.int64)


@triton.jit
def _product(x, weight, DEPTH: tl.constexpr, WIDEN: tl.constexpr, total):
    """total + x · weightᵀ for one step along the depth."""
    if WIDEN:  # Triton's interpreter knows no product of bfloat16
        x, weight = x.to(tl.float32), weight.to(tl.float32)
    return tl.dot(x, tl.trans(weight), total, input_precision="ieee")


@triton.jit
def linear_activate(
    x, weight, bias, out, tokens, WIDTH: tl.constexpr, DEPTH: tl.constexpr, KIND: tl.constexpr, TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr, STEP: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """x [tokens, DEPTH] · weight [WIDTH, DEPTH]ᵀ + bias, through its activation → out [tokens, WIDTH].

    Neighbouring programs take neighbouring columns of the same tokens, so x is read from memory once.
    """
    TILES: tl.constexpr = WIDTH // COLUMNS
    program = tl.program_id(0)
    row, source = _rows_of(tokens, TOKENS, program // TILES)
    column = (program % TILES) * COLUMNS + tl.arange(0, COLUMNS)
    step = tl.arange(0, STEP)
    from_x = x + source[:, None] * DEPTH + step[None, :]
    from_weight = weight + column[:, None] * DEPTH + step[None, :]
    total = tl.zeros([TOKENS, COLUMNS], tl.float32)
    for d in range(0, DEPTH, STEP):
        total = _product(tl.load(from_x + d), tl.load(from_weight + d), DEPTH, WIDEN, total)
    total += tl.load(bias + column).to(tl.float32)[None, :]
    y = activation(total, KIND)
    place = out + row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    tl.store(place, y.to(out.dtype.element_ty), mask=(row < tokens)[:, None])


@triton.jit
def linear_add_norm(
    x, weight, x_bias, residual, norm_weight, norm_bias, out, tokens, epsilon, DEPTH: tl.constexpr,
    TILES: tl.constexpr, TOKENS: tl.constexpr, STEP: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """x [tokens, DEPTH] · weight [TILES · 128, DEPTH]ᵀ + x_bias + residual, normalised → out, in whole rows.

    A row of 384 is no power of two: it is held as tiles of 128 columns, up to four of them.
    """
    WIDTH: tl.constexpr = TILES * 128
    row, source = _rows_of(tokens, TOKENS, tl.program_id(0))
    d, step = tl.arange(0, 128), tl.arange(0, STEP)
    from_x = x + source[:, None] * DEPTH + step[None, :]
    from_weight = weight + d[:, None] * DEPTH + step[None, :]
    a = tl.zeros([TOKENS, 128], tl.float32)
    b = tl.zeros([TOKENS, 128], tl.float32)
    c = tl.zeros([TOKENS, 128], tl.float32)
    e = tl.zeros([TOKENS, 128], tl.float32)
    for s in range(0, DEPTH, STEP):
        part = tl.load(from_x + s)
        a = _product(part, tl.load(from_weight + s), DEPTH, WIDEN, a)
        if TILES > 1:
            b = _product(part, tl.load(from_weight + s + 128 * DEPTH), DEPTH, WIDEN, b)
        if TILES > 2:
            c = _product(part, tl.load(from_weight + s + 256 * DEPTH), DEPTH, WIDEN, c)
        if TILES > 3:
            e = _product(part, tl.load(from_weight + s + 384 * DEPTH), DEPTH, WIDEN, e)
    base = residual + source[:, None] * WIDTH + d[None, :]
    a = _summed(a, x_bias + d, base)
    total = tl.sum(a, 1)
    if TILES > 1:
        b = _summed(b, x_bias + 128 + d, base + 128)
        total += tl.sum(b, 1)
    if TILES > 2:
        c = _summed(c, x_bias + 256 + d, base + 256)
        total += tl.sum(c, 1)
    if TILES > 3:
        e = _summed(e, x_bias + 384 + d, base + 384)
        total += tl.sum(e, 1)
    mean = total[:, None] / WIDTH
    square = tl.sum((a - mean) * (a - mean), 1)
    if TILES > 1:
        square += tl.sum((b - mean) * (b - mean), 1)
    if TILES > 2:
        square += tl.sum((c - mean) * (c - mean), 1)
    if TILES > 3:
        square += tl.sum((e - mean) * (e - mean), 1)
    scale = (1 / tl.sqrt(square / WIDTH + epsilon))[:, None]
    to = out + row.to(tl.int64)[:, None] * WIDTH + d[None, :]
    there = (row < tokens)[:, None]
    tl.store(to, _scaled(a, mean, scale, norm_weight + d, norm_bias + d).to(out.dtype.element_ty), mask=there)
    if TILES > 1:
        y = _scaled(b, mean, scale, norm_weight + 128 + d, norm_bias + 128 + d)
        tl.store(to + 128, y.to(out.dtype.element_ty), mask=there)
    if TILES > 2:
        y = _scaled(c, mean, scale, norm_weight + 256 + d, norm_bias + 256 + d)
        tl.store(to + 256, y.to(out.dtype.element_ty), mask=there)
    if TILES > 3:
        y = _scaled(e, mean, scale, norm_weight + 384 + d, norm_bias + 384 + d)
        tl.store(to + 384, y.to(out.dtype.element_ty), mask=there)


@triton.jit
def _summed(product, bias, residual):
    return product + tl.load(bias).to(tl.float32)[None, :] + tl.load(residual).to(tl.float32)


@triton.jit
def _scaled(x, mean, scale, weight, bias):
    return (x - mean) * scale * tl.load(weight).to(tl.float32)[None, :] + tl.load(bias).to(tl.float32)[None, :]
