"""The layers of a transformer encoder on the GPU: torch tensors in and out, one launch each.

Texts are packed one after the other without padding: T tokens of n texts, text i at offsets[i]:offsets[i + 1]. Sums
are in float32 for all types.

    python -m pytest tests/kernels/test_encoder.py tests/kernels/test_products.py
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

ACTIVATIONS = ("gelu", "gelu_16", "gelu_tanh", "relu", "silu")
INTERPRETED = triton.knobs.runtime.interpret
ELEMENTS_PER_PROGRAM = 2048  # of a row kernel; complete rows, so at least one row
# Shapes by benchmarks/records/h200-embed-sweep.txt. Product: tokens, columns, step along the depth, warps, stages; and
# the number of tokens from which it pays.
LINEAR_SHAPE, MIN_LINEAR_TOKENS = (128, 256, 64, 8, 4), 16_384
# Attention, by the longest text: queries and keys at a time, warps. float32 is multiplied without tensor cores, and a
# shape that does not fit into registers takes twenty times as long.
ATTENTION_SHAPES = {16: (16, 16, 1), 32: (32, 32, 2), 64: (64, 32, 2)}
LONG_ATTENTION_SHAPE = (128, 64, 4)
FLOAT32_ATTENTION_SHAPES = {16: (16, 16, 1), 32: (32, 32, 1)}
FLOAT32_LONG_ATTENTION_SHAPE = (64, 32, 2)


def embed_tokens(
    ids: torch.Tensor,
    offsets: torch.Tensor,
    word: torch.Tensor,
    position: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """Word and position embeddings with layer norm: ids [T], offsets [n + 1] → [T, width].

    Rows from offsets[n] on are zero. Without `positions` [T] the position of a token is its index in its text.
    """
    tokens, width = ids.shape[0], word.shape[1]
    out = torch.empty((tokens, width), dtype=word.dtype, device=word.device)
    block, step = _choose_block(width)
    if tokens:
        _embed_tokens_kernel[(triton.cdiv(tokens, step),)](
            ids, offsets, positions, word, position, weight, bias, out, tokens, offsets.shape[0] - 1, epsilon,
            width, block, step, num_warps=4,
        )  # fmt: skip
    return out


def add_and_normalize(
    x: torch.Tensor,
    x_bias: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float,
) -> torch.Tensor:
    """Layer norm of x [T, width] + x_bias + residual; written over x."""
    tokens, width = x.shape
    block, step = _choose_block(width)
    if tokens:
        _add_and_normalize_kernel[(triton.cdiv(tokens, step),)](
            x, x_bias, residual, weight, bias, x, tokens, epsilon, width, block, step, num_warps=4
        )
    return x


def activate(x: torch.Tensor, bias: torch.Tensor, kind: str) -> torch.Tensor:
    """Activation of x [T, width] + bias; written over x."""
    tokens, width = x.shape
    block = min(512, triton.next_power_of_2(width))
    step = max(1, ELEMENTS_PER_PROGRAM // block)
    if tokens:
        _activate_kernel[(triton.cdiv(tokens, step), triton.cdiv(width, block))](
            x, bias, tokens, width, kind, block, step, num_warps=4
        )
    return x


def linear_activate_pays(weight: torch.Tensor, tokens: int) -> bool:
    """Return whether `linear_activate` supports this weight and is faster than a product and `activate`."""
    width, depth = weight.shape
    return width % LINEAR_SHAPE[1] == 0 and depth % LINEAR_SHAPE[2] == 0 and tokens >= MIN_LINEAR_TOKENS


def linear_activate(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, kind: str) -> torch.Tensor:
    """Activation of x [T, depth] · weight [width, depth]ᵀ + bias → [T, width]."""
    (tokens, depth), width = x.shape, weight.shape[0]
    out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    tokens_per_tile, columns, step, warps, stages = LINEAR_SHAPE
    programs = min(count_multiprocessors(x.get_device()), triton.cdiv(tokens, tokens_per_tile) * (width // columns))
    if tokens:
        _linear_activate_kernel[(programs,)](
            TensorDescriptor.from_tensor(x, [tokens_per_tile, step]),
            TensorDescriptor.from_tensor(weight, [columns, step]), bias,
            TensorDescriptor.from_tensor(out, [tokens_per_tile, columns // 2]), tokens, width, depth, kind,
            tokens_per_tile, columns, step, programs, INTERPRETED, num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return out


@cache
def count_multiprocessors(device: int) -> int:
    """The multiprocessors of a GPU; 4 in the interpreter."""
    return 4 if device < 0 else torch.cuda.get_device_properties(device).multi_processor_count


def attend(qkv: torch.Tensor, offsets: torch.Tensor, heads: int, longest: int) -> torch.Tensor:
    """Self-attention inside each text: qkv [T, 3 · heads · depth], offsets [n + 1] → [T, heads · depth].

    longest: the tokens of the longest text.
    """
    tokens, width = qkv.shape[0], qkv.shape[1] // 3
    out = torch.empty((tokens, width), dtype=qkv.dtype, device=qkv.device)
    float32 = qkv.dtype == torch.float32
    shapes, long_shape = (
        (FLOAT32_ATTENTION_SHAPES, FLOAT32_LONG_ATTENTION_SHAPE)
        if float32
        else (ATTENTION_SHAPES, LONG_ATTENTION_SHAPE)
    )
    queries, keys, warps = next((shape for limit, shape in shapes.items() if longest <= limit), long_shape)
    grid = (offsets.shape[0] - 1, heads, triton.cdiv(longest, queries))
    if tokens:
        _attend_kernel[grid](
            qkv, offsets, out, (width // heads) ** -0.5, heads, width // heads, queries, keys, INTERPRETED,
            num_warps=warps,
        )  # fmt: skip
    return out


def pool(hidden: torch.Tensor, offsets: torch.Tensor, mode: str, unit: bool) -> torch.Tensor:
    """Pool hidden [T, width] of each text into one vector: float32 [n, width].

    mode: "mean", "max" or "cls"; unit: scale the vectors to length 1.
    """
    count, width = offsets.shape[0] - 1, hidden.shape[1]
    out = torch.empty((count, width), dtype=torch.float32, device=hidden.device)
    block, step = _choose_block(width)
    if count:
        _pool_kernel[(count,)](hidden, offsets, out, width, block, step, mode, unit, num_warps=4)
    return out


def _choose_block(width: int) -> tuple[int, int]:
    """Return the width rounded up to a power of two, and the rows per program."""
    block = triton.next_power_of_2(width)
    return block, max(1, ELEMENTS_PER_PROGRAM // block)


# Kernels over rows [tokens, width]: embedding, residual and bias, layer norm, activation. A program takes some rows and
# reads them once.


ROOT_HALF = tl.constexpr(0.7071067811865476)
ROOT_2_OVER_PI = tl.constexpr(0.7978845608028654)


@triton.jit
def _normalize_rows(x, weight, bias, d, inside, width, epsilon):
    """(x - mean) / deviation · weight + bias, along the second axis."""
    mean = tl.sum(tl.where(inside[None, :], x, 0.0), 1) / width
    centred = tl.where(inside[None, :], x - mean[:, None], 0.0)
    per_deviation = 1 / tl.sqrt(tl.sum(centred * centred, 1) / width + epsilon)
    w = tl.load(weight + d, mask=inside, other=0).to(tl.float32)
    b = tl.load(bias + d, mask=inside, other=0).to(tl.float32)
    return centred * per_deviation[:, None] * w[None, :] + b[None, :]


@triton.jit
def _find_text(token, offsets, texts):
    """Return the text of each token: the last text whose offset is not after it."""
    low = tl.zeros(token.shape, tl.int32)
    size = texts
    while size > 1:  # the answer is in [low, low + size)
        half = size // 2
        middle = low + half
        after = tl.load(offsets + middle, mask=middle < texts, other=1 << 62) > token
        low = tl.where(after, low, middle)
        size -= half
    return low


# Specialised on one text, Triton 3.6 fails to compile it.
@triton.jit(do_not_specialize=["texts"])
def _embed_tokens_kernel(
    ids, offsets, positions, word, position, weight, bias, out, tokens, texts, epsilon,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Layer norm of word[ids] + position[index in the text]; without `positions` [tokens] the index is counted.

    `tokens` rows are written; those after offsets[texts] are zero.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK)
    inside = d < WIDTH
    valid = row < tl.minimum(tokens, tl.load(offsets + texts))
    if positions is None:
        index = row - tl.load(offsets + _find_text(row, offsets, texts), mask=valid, other=0)
    else:
        index = tl.load(positions + row, mask=valid, other=0)
    token_id = tl.load(ids + row, mask=valid, other=0).to(tl.int64)
    mask = valid[:, None] & inside[None, :]
    x = tl.load(word + token_id[:, None] * WIDTH + d[None, :], mask=mask, other=0).to(tl.float32)
    x += tl.load(position + index.to(tl.int64)[:, None] * WIDTH + d[None, :], mask=mask, other=0).to(tl.float32)
    y = tl.where(valid[:, None], _normalize_rows(x, weight, bias, d, inside, WIDTH, epsilon), 0.0)
    out_ptr = out + row.to(tl.int64)[:, None] * WIDTH + d[None, :]
    tl.store(out_ptr, y.to(out.dtype.element_ty), mask=(row < tokens)[:, None] & inside[None, :])


@triton.jit
def _add_and_normalize_kernel(
    x, x_bias, residual, weight, bias, out, tokens, epsilon, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Layer norm of x + its bias + residual: the step after the two products that lead back to the hidden state."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK)
    inside = d < WIDTH
    mask = (row < tokens)[:, None] & inside[None, :]
    offset = row[:, None] * WIDTH + d[None, :]
    y = tl.load(x + offset, mask=mask, other=0).to(tl.float32) + tl.load(residual + offset, mask=mask, other=0).to(
        tl.float32
    )
    y += tl.load(x_bias + d, mask=inside, other=0).to(tl.float32)[None, :]
    y = _normalize_rows(y, weight, bias, d, inside, WIDTH, epsilon)
    tl.store(out + offset, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _normal_cdf(x):
    """The cumulative normal distribution at x: an odd polynomial in x up to 4.2, 0 or 1 beyond.

    x times the error is below 6e-5 (the tanh formula: 5e-4), less than 16 bits can show. Fitted to the least maximum of
    x · error; at 4.2 the cut-off part is 5.6e-5. NaN stays NaN.
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
    cdf = tl.where(x > 4.2, 1.0, 0.5 + x * p)
    return tl.where(x < -4.2, 0.0, cdf)


@triton.jit
def _apply_activation(y, KIND: tl.constexpr):
    """gelu (by erf), gelu_16 (the same, for results of 16 bits), gelu_tanh, relu, silu."""
    if KIND == "relu":
        y = tl.maximum(y, 0.0)
    elif KIND == "silu":
        y = y / (1 + tl.exp(-y))
    elif KIND == "gelu":
        y = 0.5 * y * (1 + tl.erf(y * ROOT_HALF))
    elif KIND == "gelu_16":
        y = y * _normal_cdf(y)
    else:
        inner = ROOT_2_OVER_PI * (y + 0.044715 * y * y * y)
        y = y / (1 + tl.exp(-2 * inner))  # y·(1 + tanh) / 2
    return y


@triton.jit
def _activate_kernel(
    x, bias, tokens, WIDTH: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """x [tokens, width] = activation of x + bias, in place."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < tokens)[:, None] & (d < WIDTH)[None, :]
    x_ptr = x + row[:, None] * WIDTH + d[None, :]
    y = tl.load(x_ptr, mask=mask, other=0).to(tl.float32)
    y += tl.load(bias + d, mask=d < WIDTH, other=0).to(tl.float32)[None, :]
    y = _apply_activation(y, KIND)
    tl.store(x_ptr, y.to(x.dtype.element_ty), mask=mask)


# A matrix product with its bias and activation in one launch: the widest tensor of a layer is written once and never
# read back. There are as many programs as multiprocessors; each takes one tile after the other, so the operands of the
# next tile load while an activation is computed. The tensor copy engine loads operands and stores results.


@triton.jit
def _linear_activate_kernel(
    x, weight, bias, out, tokens, WIDTH: tl.constexpr, DEPTH: tl.constexpr, KIND: tl.constexpr, TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr, STEP: tl.constexpr, PROGRAMS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Activation of x [tokens, DEPTH] · weight [WIDTH, DEPTH]ᵀ + bias → out [tokens, WIDTH].

    Neighbouring programs take neighbouring columns of the same tokens, so x is read from memory once. A tile is
    finished in two halves: the registers hold one half beside the sum. WIDEN multiplies in float32, because Triton's
    interpreter cannot multiply bfloat16.
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
        left = _apply_activation(left + tl.load(bias + column + half).to(tl.float32)[None, :], KIND)
        out.store([row, column], left.to(out.dtype))
        right = _apply_activation(right + tl.load(bias + column + HALF + half).to(tl.float32)[None, :], KIND)
        out.store([row, column + HALF], right.to(out.dtype))


# Kernels over texts: attention inside each text, and pooling into one vector. A program takes the tokens of one text.


LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _attend_kernel(
    qkv, offsets, out, scale, HEADS: tl.constexpr, DEPTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """qkv [tokens, 3, heads, depth] → out [tokens, heads, depth]; one program per text, head and block of queries.

    Texts of up to KEYS tokens take one round; longer ones carry maximum and sum from block to block. WIDEN multiplies
    in float32, because Triton's interpreter cannot multiply bfloat16.
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
    running_max = tl.full([QUERIES], float("-inf"), tl.float32)
    running_sum = tl.zeros([QUERIES], tl.float32)
    weighted = tl.zeros([QUERIES, DEPTH], tl.float32)
    for begin in range(0, n, KEYS):
        key = begin + tl.arange(0, KEYS)
        valid = key < n
        k = tl.load(base + HEADS * DEPTH + key[None, :] * ROW + d[:, None], mask=valid[None, :], other=0)
        v = tl.load(base + 2 * HEADS * DEPTH + key[:, None] * ROW + d[None, :], mask=valid[:, None], other=0)
        if WIDEN:
            k, v = k.to(tl.float32), v.to(tl.float32)
        score = tl.dot(q, k, input_precision="ieee") * (scale * LOG2_E)
        score = tl.where(valid[None, :], score, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(score, 1))
        weight = tl.exp2(score - new_max[:, None])
        decay = tl.exp2(running_max - new_max)
        running_sum = running_sum * decay + tl.sum(weight, 1)
        weighted = weighted * decay[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        running_max = new_max
    out_ptr = out + (start + query)[:, None] * (HEADS * DEPTH) + head * DEPTH + d[None, :]
    tl.store(out_ptr, (weighted / running_sum[:, None]).to(out.dtype.element_ty), mask=(query < n)[:, None])


@triton.jit
def _pool_kernel(
    hidden, offsets, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, MODE: tl.constexpr,
    UNIT: tl.constexpr,
):  # fmt: skip
    """hidden [tokens, width] → out float32 [texts, width]: mean, max or cls of each text; with UNIT at length 1."""
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
            mask = (row < n)[:, None] & inside[None, :]
            x = tl.load(base + row[:, None] * WIDTH + d[None, :], mask=mask, other=0).to(tl.float32)
            if MODE == "max":
                y = tl.maximum(y, tl.max(tl.where(mask, x, float("-inf")), 0))
            else:
                y += tl.sum(x, 0)
        if MODE == "mean":
            y = y / tl.maximum(n, 1)
    if UNIT:
        size = tl.sqrt(tl.sum(tl.where(inside, y * y, 0.0), 0))
        y = y / tl.maximum(size, 1e-12)
    tl.store(out + text * WIDTH + d, y, mask=inside)
