"""Texts packed one after the other: each attends to itself only, and is pooled into one vector.

Nothing is padded: a program takes the tokens of one text, found by its offsets.

    python -m pytest tests/kernels/test_encoder.py
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def attention(
    qkv, offsets, out, scale, HEADS: tl.constexpr, DEPTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """qkv [tokens, 3, heads, depth] → out [tokens, heads, depth]; one program per text, head and block of queries.

    Texts of up to KEYS tokens take one round; longer ones carry maximum and sum from block to block. WIDEN multiplies
    in float32: Triton's interpreter knows no product of bfloat16.
    """
    text = tl.program_id(0)
    head = tl.program_id(1)
    start = tl.load(offsets + text).to(tl.int64)
    n = (tl.load(offsets + text + 1) - start).to(tl.int32)
    first = tl.program_id(2) * QUERIES
    if first >= n:
        return
    ROW: tl.constexpr = 3 * HEADS * DEPTH
    d = tl.arange(0, DEPTH)
    query = first + tl.arange(0, QUERIES)
    base = qkv + start * ROW + head * DEPTH
    q = tl.load(base + query[:, None] * ROW + d[None, :], mask=(query < n)[:, None], other=0)
    if WIDEN:
        q = q.to(tl.float32)
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, DEPTH], tl.float32)
    for begin in range(0, n, KEYS):
        key = begin + tl.arange(0, KEYS)
        there = key < n
        k = tl.load(base + HEADS * DEPTH + key[None, :] * ROW + d[:, None], mask=there[None, :], other=0)
        v = tl.load(base + 2 * HEADS * DEPTH + key[:, None] * ROW + d[None, :], mask=there[:, None], other=0)
        if WIDEN:
            k, v = k.to(tl.float32), v.to(tl.float32)
        score = tl.dot(q, k, input_precision="ieee") * (scale * LOG2_E)
        score = tl.where(there[None, :], score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(weight, 1)
        mixed = mixed * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        top = higher
    to = out + (start + query)[:, None] * (HEADS * DEPTH) + head * DEPTH + d[None, :]
    tl.store(to, (mixed / total[:, None]).to(out.dtype.element_ty), mask=(query < n)[:, None])


@triton.jit
def pool(
    hidden, offsets, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, MODE: tl.constexpr,
    UNIT: tl.constexpr,
):  # fmt: skip
    """hidden [tokens, width] → out float32 [texts, width]: mean, max or cls of each text, with UNIT of unit length."""
    text = tl.program_id(0).to(tl.int64)
    start = tl.load(offsets + text).to(tl.int64)
    n = (tl.load(offsets + text + 1) - start).to(tl.int32)
    d = tl.arange(0, BLOCK)
    inside = d < WIDTH
    base = hidden + start * WIDTH
    if MODE == "cls":
        y = tl.load(base + d, mask=d < WIDTH * tl.minimum(n, 1), other=0).to(tl.float32)
    else:
        y = tl.full([BLOCK], float("-inf") if MODE == "max" else 0.0, tl.float32)
        for first in range(0, n, ROWS):
            row = first + tl.arange(0, ROWS)
            both = (row < n)[:, None] & inside[None, :]
            x = tl.load(base + row[:, None] * WIDTH + d[None, :], mask=both, other=0).to(tl.float32)
            if MODE == "max":
                y = tl.maximum(y, tl.max(tl.where(both, x, float("-inf")), 0))
            else:
                y += tl.sum(x, 0)
        if MODE == "mean":
            y = y / tl.maximum(n, 1)
    if UNIT:
        size = tl.sqrt(tl.sum(tl.where(inside, y * y, 0.0), 0))
        y = y / tl.maximum(size, 1e-12)
    tl.store(out + text * WIDTH + d, y, mask=inside)
