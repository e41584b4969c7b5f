"""The layers of a transformer encoder on the GPU: torch tensors in and out, one launch each.

Texts are packed one after the other without padding: T tokens of n texts, text i at offsets[i]:offsets[i + 1]. Sums
are in float32 for all types.

    python -m pytest tests/kernels/test_encoder.py tests/kernels/test_products.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ridgeline.kernels.encoder.activations import _apply_activation

ELEMENTS_PER_PROGRAM = 2048  # of a row kernel; complete rows, so at least one row
MAX_POOLED_COLUMNS = 2048  # at a time, of vectors that are not scaled


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
    x_bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    epsilon: float,
    rms: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Norm of x [T, width] + x_bias + residual; written over x, or to `out`. rms: by the root of the mean square."""
    tokens, width = x.shape
    out = x if out is None else out
    block, step = _choose_block(width)
    if tokens:
        _add_and_normalize_kernel[(triton.cdiv(tokens, step),)](
            x, x_bias, residual, None, None, None, weight, bias, out, tokens, epsilon, width, block, step, rms,
            num_warps=4,
        )  # fmt: skip
    return out


def add_then_normalize(
    x: torch.Tensor,
    x_bias: torch.Tensor | None,
    residual: torch.Tensor,
    inner: tuple[torch.Tensor, torch.Tensor | None] | None,
    norm: tuple[torch.Tensor, torch.Tensor | None] | None,
    epsilon: float,
    rms: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum x [T, width] + x_bias + residual, and its norm, in one pass; the sum is written over `residual`.

    inner  weight and bias of a norm of x + x_bias before the residual is added
    norm   weight and bias; without it both results are the sum
    """
    tokens, width = x.shape
    block, step = _choose_block(width)
    (inner_weight, inner_bias), (weight, bias) = inner or (None, None), norm or (None, None)
    if tokens:
        _add_and_normalize_kernel[(triton.cdiv(tokens, step),)](
            x, x_bias, residual, inner_weight, inner_bias, residual, weight, bias, x, tokens, epsilon, width, block,
            step, rms, num_warps=4,
        )  # fmt: skip
    return residual, residual if norm is None else x


def prepare_heads(
    x: torch.Tensor,
    heads: int,
    key_heads: int,
    width: int,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    epsilon: float,
    turns: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None,
) -> torch.Tensor:
    """Norm and rotation of each query and key of x [T, (heads + 2 · key_heads) · width]; written over x.

    norms  the weights [width] of queries and of keys, divided by the root of the mean square
    turns  the position of each token [T], and cosine and sine [positions, width / 2]
    """
    tokens, half = x.shape[0], width // 2
    block = triton.next_power_of_2(half)
    per_token = min(8, triton.next_power_of_2(heads + key_heads))
    step = max(1, ELEMENTS_PER_PROGRAM // (2 * block * per_token))
    if tokens:
        _prepare_heads_kernel[(triton.cdiv(tokens, step), triton.cdiv(heads + key_heads, per_token))](
            x, *(norms or (None, None)), *(turns or (None, None, None)), tokens, epsilon, heads, key_heads, half, block,
            step, per_token, num_warps=4,
        )  # fmt: skip
    return x


def activate(x: torch.Tensor, bias: torch.Tensor | None, kind: str) -> torch.Tensor:
    """Activation of x [T, width] + bias; written over x."""
    tokens, width = x.shape
    block = min(512, triton.next_power_of_2(width))
    step = max(1, ELEMENTS_PER_PROGRAM // block)
    if tokens:
        _activate_kernel[(triton.cdiv(tokens, step), triton.cdiv(width, block))](
            x, bias, tokens, width, kind, block, step, num_warps=4
        )
    return x


def activate_gate(x: torch.Tensor, bias: torch.Tensor | None, kind: str, width: int, columns: int) -> torch.Tensor:
    """Activation of the gate times what it gates, from x by a weight of `join_gate` → [T, width]."""
    tokens, joined = x.shape
    out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    step = max(1, ELEMENTS_PER_PROGRAM // columns)
    if tokens:
        _activate_gate_kernel[(triton.cdiv(tokens, step), joined // (2 * columns))](
            x, bias, out, tokens, width, joined, kind, columns, step, num_warps=4
        )
    return out


def pool(hidden: torch.Tensor, offsets: torch.Tensor, mode: str, unit: bool) -> torch.Tensor:
    """Pool hidden [T, width] of each text into one vector: float32 [n, width].

    mode: "mean", "max", "sum" or "cls"; unit: scale the vectors to length 1.
    """
    count, width = offsets.shape[0] - 1, hidden.shape[1]
    out = torch.empty((count, width), dtype=torch.float32, device=hidden.device)
    block, step = _choose_block(width if unit else min(width, MAX_POOLED_COLUMNS))
    if count:
        _pool_kernel[(count, triton.cdiv(width, block))](
            hidden, offsets, out, width, block, step, mode, unit, num_warps=4
        )
    return out


def _choose_block(width: int) -> tuple[int, int]:
    """Return the width rounded up to a power of two, and the rows per program."""
    block = triton.next_power_of_2(width)
    return block, max(1, ELEMENTS_PER_PROGRAM // block)


# Kernels over rows [tokens, width]: embedding, residual and bias, layer norm, activation. A program takes some rows and
# reads them once.


@triton.jit
def _normalize_rows(x, weight, bias, d, inside, width, epsilon, RMS: tl.constexpr):
    """(x - mean) / deviation · weight + bias, along the second axis; with RMS x / root of the mean square · weight."""
    if not RMS:
        x = tl.where(inside[None, :], x - (tl.sum(tl.where(inside[None, :], x, 0.0), 1) / width)[:, None], 0.0)
    x *= (1 / tl.sqrt(tl.sum(x * x, 1) / width + epsilon))[:, None]
    x *= tl.load(weight + d, mask=inside, other=0).to(tl.float32)[None, :]
    if bias is not None:
        x += tl.load(bias + d, mask=inside, other=0).to(tl.float32)[None, :]
    return x


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
@triton.jit(do_not_specialize=["texts", "tokens"])
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
    y = tl.where(valid[:, None], _normalize_rows(x, weight, bias, d, inside, WIDTH, epsilon, False), 0.0)
    out_ptr = out + row.to(tl.int64)[:, None] * WIDTH + d[None, :]
    tl.store(out_ptr, y.to(out.dtype.element_ty), mask=(row < tokens)[:, None] & inside[None, :])


# Specialised on the number of tokens, a kernel could sum a row in another order.
@triton.jit(do_not_specialize=["tokens"])
def _add_and_normalize_kernel(
    x, x_bias, residual, inner_weight, inner_bias, total, weight, bias, out, tokens, epsilon, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, RMS: tl.constexpr,
):  # fmt: skip
    """Norm of x + its bias + residual → out: the step after the two products that lead back to the hidden state.

    With `inner_weight` x + its bias is normalised before the residual is added; the sum goes to `total`.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK)
    inside = d < WIDTH
    mask = (row < tokens)[:, None] & inside[None, :]
    offset = row[:, None] * WIDTH + d[None, :]
    y = tl.load(x + offset, mask=mask, other=0).to(tl.float32)
    if x_bias is not None:
        y += tl.load(x_bias + d, mask=inside, other=0).to(tl.float32)[None, :]
    if inner_weight is not None:
        y = _normalize_rows(y, inner_weight, inner_bias, d, inside, WIDTH, epsilon, RMS)
    if residual is not None:
        y += tl.load(residual + offset, mask=mask, other=0).to(tl.float32)
    if total is not None:
        y = y.to(total.dtype.element_ty)
        tl.store(total + offset, y, mask=mask)
        y = y.to(tl.float32)
    if weight is not None:
        y = _normalize_rows(y, weight, bias, d, inside, WIDTH, epsilon, RMS)
        tl.store(out + offset, y.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tokens"])
def _prepare_heads_kernel(
    x, query_norm, key_norm, positions, cosine, sine, tokens, epsilon, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr,
    HALF: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """TOKENS tokens, PARTS of their queries and keys: both halves [TOKENS, PARTS, HALF]."""
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1) * PARTS + tl.arange(0, PARTS)
    d = tl.arange(0, BLOCK)
    is_token, is_head, inside = (token < tokens)[:, None, None], (head < HEADS + KEY_HEADS)[None, :, None], d < HALF
    mask = is_token & is_head & inside[None, None, :]
    ptr = x + (token[:, None, None] * (HEADS + 2 * KEY_HEADS) + head[None, :, None]) * (2 * HALF) + d[None, None, :]
    a = tl.load(ptr, mask=mask, other=0).to(tl.float32)
    b = tl.load(ptr + HALF, mask=mask, other=0).to(tl.float32)
    if query_norm is not None:
        scale = 1 / tl.sqrt((tl.sum(a * a, 2) + tl.sum(b * b, 2)) / (2 * HALF) + epsilon)
        is_query = (head < HEADS)[None, :, None]
        wq = tl.load(query_norm + d, mask=inside, other=0).to(tl.float32)[None, None, :]
        wk = tl.load(key_norm + d, mask=inside, other=0).to(tl.float32)[None, None, :]
        a *= scale[:, :, None] * tl.where(is_query, wq, wk)
        wq = tl.load(query_norm + HALF + d, mask=inside, other=0).to(tl.float32)[None, None, :]
        wk = tl.load(key_norm + HALF + d, mask=inside, other=0).to(tl.float32)[None, None, :]
        b *= scale[:, :, None] * tl.where(is_query, wq, wk)
    if positions is not None:
        position = tl.load(positions + token, mask=token < tokens, other=0)
        turn = position[:, None, None] * HALF + d[None, None, :]
        known = is_token & inside[None, None, :]
        c, s = tl.load(cosine + turn, mask=known, other=0), tl.load(sine + turn, mask=known, other=0)
        a, b = a * c - b * s, b * c + a * s
    tl.store(ptr, a.to(x.dtype.element_ty), mask=mask)
    tl.store(ptr + HALF, b.to(x.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tokens"])
def _activate_kernel(
    x, bias, tokens, WIDTH: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """x [tokens, width] = activation of x + bias, in place."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < tokens)[:, None] & (d < WIDTH)[None, :]
    x_ptr = x + row[:, None] * WIDTH + d[None, :]
    y = tl.load(x_ptr, mask=mask, other=0).to(tl.float32)
    if bias is not None:
        y += tl.load(bias + d, mask=d < WIDTH, other=0).to(tl.float32)[None, :]
    y = _apply_activation(y, KIND)
    tl.store(x_ptr, y.to(x.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tokens"])
def _activate_gate_kernel(
    x, bias, out, tokens, WIDTH: tl.constexpr, JOINED: tl.constexpr, KIND: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """One block of columns of the gate, and the same block of what it gates beside it."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, COLUMNS)
    column = tl.program_id(1) * 2 * COLUMNS + d
    mask = (row < tokens)[:, None] & (d >= 0)[None, :]
    x_ptr = x + row[:, None] * JOINED + column[None, :]
    gate = tl.load(x_ptr, mask=mask, other=0).to(tl.float32)
    up = tl.load(x_ptr + COLUMNS, mask=mask, other=0).to(tl.float32)
    if bias is not None:
        gate += tl.load(bias + column).to(tl.float32)[None, :]
        up += tl.load(bias + column + COLUMNS).to(tl.float32)[None, :]
    y = _apply_activation(gate, KIND) * up
    out_column = tl.program_id(1) * COLUMNS + d
    out_ptr = out + row[:, None] * WIDTH + out_column[None, :]
    tl.store(out_ptr, y.to(out.dtype.element_ty), mask=(row < tokens)[:, None] & (out_column < WIDTH)[None, :])


# Pooling: a program takes the tokens of one text.


@triton.jit
def _pool_kernel(
    hidden, offsets, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, MODE: tl.constexpr,
    UNIT: tl.constexpr,
):  # fmt: skip
    """hidden [tokens, width] → out float32 [texts, width]: mean, max, sum or cls of texts; with UNIT at length 1."""
    text = tl.program_id(0).to(tl.int64)
    start = tl.load(offsets + text).to(tl.int64)
    n = (tl.load(offsets + text + 1) - start).to(tl.int32)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < WIDTH
    base = hidden + start * WIDTH
    if MODE == "cls":
        y = tl.load(base + d, mask=d < tl.where(n > 0, WIDTH, 0), other=0).to(tl.float32)
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
