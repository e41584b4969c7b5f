"""Attention inside each text on the GPU, for all families: torch tensors in and out.

Texts are packed one after the other without padding. A window or the order can limit what a query sees, several queries
can share a key, and a bias can depend on the distance.

    python -m pytest tests/kernels/test_encoder.py tests/kernels/test_attention.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

INTERPRETED = triton.knobs.runtime.interpret
LOG2_E = tl.constexpr(1.4426950408889634)
MIN_WIDTH = 16  # of what tensor cores multiply

Shape = tuple[int, int, int, int]  # queries and keys at a time, warps, stages

# By benchmarks/records/h200-attention.txt: by the tokens of a text, then for longer texts by the width of a head.
# float32 is multiplied without tensor cores, and a shape that does not fit into registers takes twenty times as long.
SHAPES: dict[int, Shape] = {16: (16, 16, 1, 3), 32: (32, 32, 2, 3)}
MEDIUM_SHAPES: dict[int, Shape] = {128: (64, 32, 4, 3), 256: (64, 32, 4, 2)}  # also for windows
MEDIUM_TOKENS = {64: 128, 128: 512, 256: 1 << 30}  # of a text: the most that a medium shape is best for
LONG_SHAPE: Shape = (64, 64, 4, 3)
FLOAT32_SHAPES: dict[int, Shape] = {16: (16, 16, 1, 3), 32: (32, 32, 1, 3)}
FLOAT32_LONG_SHAPES: dict[int, Shape] = {64: (64, 32, 2, 3), 128: (32, 32, 4, 3), 256: (16, 16, 4, 3)}
NARROW_WINDOW = 128  # a window up to this has no block of keys that every query sees, or few
MAX_WIDTH = 256
MAX_SHORT_WIDTH = 64  # wider heads have no shapes for short texts


@dataclass(frozen=True)
class Distances:
    """DeBERTa's bias: products of queries and keys with vectors of distances, computed beforehand."""

    rows: torch.Tensor  # int32 [2 · reach + 1]: the row of each distance, key minus query, from -reach
    by_query: torch.Tensor | None  # [T, heads, distances]: query · vectors of distances
    by_key: torch.Tensor | None  # the same for keys


@dataclass(frozen=True)
class AttentionKind:
    """What differs between families and layers. The default is BERT's."""

    scale: float  # of the products of queries and keys
    key_heads: int | None = None  # fewer than heads: several queries share a key
    causal: bool = False  # a query sees no later key
    window: int | None = None  # the largest distance of a query to its keys
    bias: torch.Tensor | None = None  # float32 [heads, 2 · reach + 1] by distance, key minus query, from -reach
    distances: Distances | None = None


def attend(
    qkv: torch.Tensor,
    offsets: torch.Tensor,
    heads: int,
    width: int,
    longest: int,
    kind: AttentionKind | None = None,
    runs: tuple[tuple[int, int, int], ...] | None = None,
    at_most: bool = False,
) -> torch.Tensor:
    """qkv [T, (heads + 2 · key_heads) · width], offsets [n + 1] → [T, heads · width].

    longest  the tokens of the longest text
    runs     (first token, texts, tokens each) in ascending order. With runs the shape of the computation depends on the
             length of the text alone, so its result has the same bits in any batch. Else on `longest` alone.
    at_most  texts of a run can be shorter than it says
    """
    kind = kind or AttentionKind(width**-0.5)
    tokens, key_heads, texts = qkv.shape[0], kind.key_heads or heads, offsets.shape[0] - 1
    if not tokens or not texts:
        return torch.empty((tokens, heads * width), dtype=qkv.dtype, device=qkv.device)
    classes = _list_classes(width, qkv.dtype, kind.window is not None and kind.window <= NARROW_WINDOW)
    chosen = (
        [(0, 1 << 30, next(c.shape for c in classes if longest <= c.at_most), 0, texts, longest)]
        if runs is None
        else list(_split_texts(classes, runs, at_most))
    )
    out = torch.empty((tokens, heads * width), dtype=qkv.dtype, device=qkv.device)
    distances = kind.distances
    table = distances.rows if distances is not None else kind.bias
    reach = 0 if table is None else table.shape[-1] // 2
    by_query, by_key = (None, None) if distances is None else (distances.by_query, distances.by_key)
    span = next((t.shape[2] for t in (by_query, by_key) if t is not None), 0)
    for above, limit, shape, first, count, longest_here in chosen:
        queries, keys, warps, stages = shape
        blocks = triton.cdiv(longest_here, queries)
        most = longest_here if runs is None else limit
        window = -1 if kind.window is None or kind.window >= most - 1 else kind.window  # wider than any text
        _attend_kernel[(count * heads * blocks,)](
            qkv, offsets, out, kind.bias, None if distances is None else distances.rows, by_query, by_key, first,
            blocks, kind.scale, heads, key_heads, width, max(MIN_WIDTH, triton.next_power_of_2(width)), queries, keys,
            above, limit, kind.causal, window, reach, span, INTERPRETED, stages,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return out


class _Class(NamedTuple):
    """Texts of more than `above` and no more than `at_most` tokens are computed in blocks of this shape."""

    above: int
    at_most: int
    shape: Shape


def _list_classes(width: int, dtype: torch.dtype, narrow: bool) -> list[_Class]:
    """The classes from short texts to long ones. narrow: a query sees few keys, however long its text is."""
    accurate, any_length = dtype == torch.float32, 1 << 30
    limits = list((FLOAT32_SHAPES if accurate else SHAPES).items()) if width <= MAX_SHORT_WIDTH else []
    medium = next(s for most, s in (FLOAT32_LONG_SHAPES if accurate else MEDIUM_SHAPES).items() if width <= most)
    medium_tokens = next(tokens for most, tokens in MEDIUM_TOKENS.items() if width <= most)
    limits.append((any_length if accurate or narrow else medium_tokens, medium))
    if limits[-1][0] < any_length:
        limits.append((any_length, LONG_SHAPE))
    return [_Class(above, *last) for above, last in zip([0, *(k for k, _ in limits)], limits, strict=False)]


def _split_texts(
    classes: list[_Class], runs: tuple[tuple[int, int, int], ...], at_most: bool
) -> Iterator[tuple[int, int, Shape, int, int, int]]:
    """Yield (more tokens than, at most, shape, first text, texts, longest text) of each class that has texts.

    With `at_most` the program of a text that is not of its class does nothing.
    """
    for above, limit, shape in classes:
        first, count, last = 0, 0, 0
        for _, texts, length in runs:
            if length <= above:
                first += texts
            elif length <= limit or at_most:
                count, last = count + texts, min(limit, length)
        if count:
            yield above, limit, shape, 0 if at_most else first, count + first if at_most else count, last


def multiply_heads(x: torch.Tensor, first: int, vectors: torch.Tensor) -> torch.Tensor:
    """x [T, columns], vectors [heads, n, width] → [T, heads, n]: head h of x begins at column first + h · width."""
    (heads, count, width), tokens = vectors.shape, x.shape[0]
    out = torch.empty((tokens, heads, count), dtype=x.dtype, device=x.device)
    block = max(MIN_WIDTH, triton.next_power_of_2(width))
    if tokens:
        _multiply_heads_kernel[(triton.cdiv(tokens, 64), triton.cdiv(count, 64), heads)](
            x, vectors, out, tokens, x.shape[1], first, heads, count, width, block, 64, 64, INTERPRETED, num_warps=4
        )
    return out


@triton.jit
def _attend_to_keys(
    q, weighted, running_max, running_sum, qkv, bias, distance_rows, by_query, by_key, start, n, block, query, head,
    scale, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, REACH: tl.constexpr, SPAN: tl.constexpr, WIDEN: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """Add one block of keys to the weighted sum. With EDGE a query may not see some of its keys.

    Without it the scale is multiplied inside the exponent's one multiply-add, and nothing is compared.
    """
    ROW: tl.constexpr = (HEADS + 2 * KEY_HEADS) * WIDTH
    d = tl.arange(0, BLOCK)
    key = block + tl.arange(0, KEYS)
    k_ptr = qkv + start * ROW + (HEADS + head // (HEADS // KEY_HEADS)) * WIDTH + key[:, None] * ROW + d[None, :]
    if EDGE:
        mask = (key < n)[:, None] & (d < WIDTH)[None, :]
        k, v = tl.load(k_ptr, mask=mask, other=0), tl.load(k_ptr + KEY_HEADS * WIDTH, mask=mask, other=0)
    elif BLOCK != WIDTH:
        mask = (key >= 0)[:, None] & (d < WIDTH)[None, :]
        k, v = tl.load(k_ptr, mask=mask, other=0), tl.load(k_ptr + KEY_HEADS * WIDTH, mask=mask, other=0)
    else:
        k, v = tl.load(k_ptr), tl.load(k_ptr + KEY_HEADS * WIDTH)
    if WIDEN:
        k, v = k.to(tl.float32), v.to(tl.float32)
    score = tl.dot(q, tl.trans(k), input_precision="ieee")
    factor = scale * LOG2_E
    distance = key[None, :] - query[:, None]
    if bias is not None or distance_rows is not None:
        score *= factor
        factor = 1.0
        known = (key < n)[None, :] & (query < n)[:, None]
        if bias is not None:
            score += LOG2_E * tl.load(bias + head * (2 * REACH + 1) + REACH + distance, mask=known, other=0)
        if distance_rows is not None:
            row = tl.load(distance_rows + REACH + distance, mask=known, other=0)
            if by_query is not None:
                at = (start + query)[:, None] * (HEADS * SPAN) + head * SPAN + row
                score += tl.load(by_query + at, mask=known, other=0).to(tl.float32) * (scale * LOG2_E)
            if by_key is not None:
                at = (start + key)[None, :] * (HEADS * SPAN) + head * SPAN + row
                score += tl.load(by_key + at, mask=known, other=0).to(tl.float32) * (scale * LOG2_E)
    if EDGE:
        seen = (key < n)[None, :]
        if CAUSAL:
            seen = seen & (distance <= 0)
        if WINDOW >= 0:
            seen = seen & (distance <= WINDOW) & (distance >= -WINDOW)
        score = tl.where(seen, score, float("-inf"))
    new_max = tl.maximum(running_max, tl.max(score, 1) * factor)
    origin = new_max
    if EDGE and (CAUSAL or WINDOW >= 0):  # a block can hold no key that a query sees
        origin = tl.where(new_max == float("-inf"), 0.0, new_max)
    weight = tl.exp2(score * factor - origin[:, None])
    decay = tl.exp2(running_max - origin)
    running_sum = running_sum * decay + tl.sum(weight, 1)
    weighted = tl.dot(weight.to(v.dtype), v, weighted * decay[:, None], input_precision="ieee")
    return weighted, new_max, running_sum


@triton.jit(do_not_specialize=["first_text", "blocks"])
def _attend_kernel(
    qkv, offsets, out, bias, distance_rows, by_query, by_key, first_text, blocks, scale, HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, ABOVE: tl.constexpr, LIMIT: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, REACH: tl.constexpr, SPAN: tl.constexpr, WIDEN: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """qkv [tokens, heads + 2 · key heads, WIDTH] → out [tokens, heads, WIDTH].

    One program per text, head and block of queries; texts of other lengths than ABOVE + 1 to LIMIT are left out. Blocks
    of keys carry maximum and sum. Blocks that every query sees in full need no masks. They lie between those at the
    edges of the window, which are few and are not loaded ahead: that would take as much shared memory again. WIDEN
    multiplies in float32, because Triton's interpreter cannot multiply bfloat16.
    """
    text = first_text + tl.program_id(0) // (HEADS * blocks)
    head = tl.program_id(0) // blocks % HEADS
    start = tl.load(offsets + text).to(tl.int64)
    n = (tl.load(offsets + text + 1) - start).to(tl.int32)
    first = tl.program_id(0) % blocks * QUERIES
    if (first >= n) | (n <= ABOVE) | (n > LIMIT):
        return
    ROW: tl.constexpr = (HEADS + 2 * KEY_HEADS) * WIDTH
    BIASED: tl.constexpr = bias is not None or distance_rows is not None
    d = tl.arange(0, BLOCK)
    query = first + tl.arange(0, QUERIES)
    q_mask = (query < n)[:, None] & (d < WIDTH)[None, :]
    q = tl.load(qkv + start * ROW + head * WIDTH + query[:, None] * ROW + d[None, :], mask=q_mask, other=0)
    if WIDEN:
        q = q.to(tl.float32)
    running_max = tl.full([QUERIES], float("-inf"), tl.float32)
    running_sum = tl.zeros([QUERIES], tl.float32)
    weighted = tl.zeros([QUERIES, BLOCK], tl.float32)
    begin, end, full, full_end = 0, n, 0, n
    if WINDOW >= 0:
        begin = tl.maximum(first - WINDOW, 0) // KEYS * KEYS
        end = tl.minimum(n, first + QUERIES + WINDOW)
        full = tl.cdiv(tl.maximum(first + QUERIES - 1 - WINDOW, 0), KEYS) * KEYS
        full_end = tl.minimum(n, first + WINDOW + 1)
    if CAUSAL:
        end = tl.minimum(end, first + QUERIES)
        full_end = tl.minimum(full_end, first + 1)
    full = tl.minimum(full, tl.cdiv(end, KEYS) * KEYS)
    full_end = tl.maximum(full_end // KEYS * KEYS, full)
    if BIASED or LIMIT <= KEYS:
        full, full_end = begin, begin
    if WINDOW >= 0 and not BIASED and LIMIT > KEYS:
        for block in tl.range(begin, full, KEYS, num_stages=1):
            weighted, running_max, running_sum = _attend_to_keys(
                q, weighted, running_max, running_sum, qkv, bias, distance_rows, by_query, by_key, start, n, block,
                query, head, scale, HEADS, KEY_HEADS, WIDTH, BLOCK, KEYS, CAUSAL, WINDOW, REACH, SPAN, WIDEN, True
            )  # fmt: skip
    if not BIASED and LIMIT > KEYS:
        for block in range(full, full_end, KEYS):
            weighted, running_max, running_sum = _attend_to_keys(
                q, weighted, running_max, running_sum, qkv, bias, distance_rows, by_query, by_key, start, n, block,
                query, head, scale, HEADS, KEY_HEADS, WIDTH, BLOCK, KEYS, CAUSAL, WINDOW, REACH, SPAN, WIDEN, False
            )  # fmt: skip
    if BIASED or CAUSAL or WINDOW >= 0:
        for block in tl.range(full_end, end, KEYS, num_stages=STAGES if BIASED else 1):
            weighted, running_max, running_sum = _attend_to_keys(
                q, weighted, running_max, running_sum, qkv, bias, distance_rows, by_query, by_key, start, n, block,
                query, head, scale, HEADS, KEY_HEADS, WIDTH, BLOCK, KEYS, CAUSAL, WINDOW, REACH, SPAN, WIDEN, True
            )  # fmt: skip
    elif full_end < end:
        weighted, running_max, running_sum = _attend_to_keys(
            q, weighted, running_max, running_sum, qkv, bias, distance_rows, by_query, by_key, start, n, full_end,
            query, head, scale, HEADS, KEY_HEADS, WIDTH, BLOCK, KEYS, CAUSAL, WINDOW, REACH, SPAN, WIDEN, True
        )  # fmt: skip
    out_ptr = out + (start + query)[:, None] * (HEADS * WIDTH) + head * WIDTH + d[None, :]
    tl.store(out_ptr, (weighted / running_sum[:, None]).to(out.dtype.element_ty), mask=q_mask)


@triton.jit(do_not_specialize=["tokens"])
def _multiply_heads_kernel(
    x, vectors, out, tokens, row_width, first, HEADS: tl.constexpr, COUNT: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Products of one block of tokens with one block of vectors, for one head."""
    head = tl.program_id(2)
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    d = tl.arange(0, BLOCK)
    a_mask = (token < tokens)[:, None] & (d < WIDTH)[None, :]
    a = tl.load(x + token[:, None] * row_width + first + head * WIDTH + d[None, :], mask=a_mask, other=0)
    b_mask = (column < COUNT)[:, None] & (d < WIDTH)[None, :]
    b = tl.load(vectors + (head * COUNT + column[:, None]) * WIDTH + d[None, :], mask=b_mask, other=0)
    if WIDEN:
        a, b = a.to(tl.float32), b.to(tl.float32)
    total = tl.dot(a, tl.trans(b), input_precision="ieee")
    out_ptr = out + token[:, None] * (HEADS * COUNT) + head * COUNT + column[None, :]
    tl.store(out_ptr, total.to(out.dtype.element_ty), mask=(token < tokens)[:, None] & (column < COUNT)[None, :])
