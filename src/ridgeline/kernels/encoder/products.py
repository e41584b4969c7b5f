"""A product with its bias and activation in one launch: the widest tensor of a layer is written once and not read back.

As many programs as the GPU has multiprocessors, each taking one tile after the other, so that the next tile's operands
are on their way while an activation is computed. Operands come and results go by the tensor copy engine. Sums are in
float32; the weight is `[out, in]` as models store it.

    python -m pytest tests/kernels/test_products.py
"""

from __future__ import annotations

import triton
import triton.language as tl

from ridgeline.kernels.encoder.rows import activation


@triton.jit
def linear_activate(
    x, weight, bias, out, tokens, WIDTH: tl.constexpr, DEPTH: tl.constexpr, KIND: tl.constexpr, TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr, STEP: tl.constexpr, PROGRAMS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """x [tokens, DEPTH] · weight [WIDTH, DEPTH]ᵀ + bias, through its activation → out [tokens, WIDTH].

    Neighbouring programs take neighbouring columns of the same tokens, so x is read from memory once. A tile is
    finished in two halves: one half of it in registers beside the whole sum is all there is room for. WIDEN multiplies
    in float32: Triton's interpreter knows no product of bfloat16.
    """
    TILES: tl.constexpr = WIDTH // COLUMNS
    HALF: tl.constexpr = COLUMNS // 2
    half = tl.arange(0, HALF)
    for tile in tl.range(tl.program_id(0), tl.cdiv(tokens, TOKENS) * TILES, PROGRAMS, flatten=True):
        row = (tile // TILES) * TOKENS
        column = (tile % TILES) * COLUMNS
        total = tl.zeros([TOKENS, COLUMNS], tl.float32)
        for d in range(0, DEPTH, STEP):
            a, b = x.load([row, d]), weight.load([column, d])
            if WIDEN:
                a, b = a.to(tl.float32), b.to(tl.float32)
            total = tl.dot(a, b.T, total, input_precision="ieee")
        left, right = tl.split(tl.permute(tl.reshape(total, (TOKENS, 2, HALF)), (0, 2, 1)))
        left = activation(left + tl.load(bias + column + half).to(tl.float32)[None, :], KIND)
        out.store([row, column], left.to(out.dtype))
        right = activation(right + tl.load(bias + column + HALF + half).to(tl.float32)[None, :], KIND)
        out.store([row, column + HALF], right.to(out.dtype))
