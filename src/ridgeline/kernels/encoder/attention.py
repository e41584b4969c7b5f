"""Attention inside each text on the GPU, for all families: torch tensors in and out.

Texts are packed one after the other without padding. A window or the order can limit what a query sees, several queries
can share a key, and a bias can depend on the distance. Long texts without a bias go to torch's flash attention.

    python -m pytest tests/kernels/test_encoder.py tests/kernels/test_attention.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

INTERPRETED = triton.knobs.runtime.interpret
LOG2_E = tl.constexpr(1.4426950408889634)
MIN_WIDTH = 16  # of what tensor cores multiply

Shape = tuple[int, int, int, int]  # queries and keys at a time, warps, stages

# By benchmarks/records/h200-embed-sweep.txt: by the tokens of a text, then for longer texts by the width of a head.
# float32 is multiplied without tensor cores, and a shape that does not fit into registers takes twenty times as long.
SHAPES: dict[int, Shape] = {16: (16, 16, 1, 3), 32: (32, 32, 2, 3), 64: (64, 32, 2, 3)}
LONG_SHAPES: dict[int, Shape] = {64: (128, 64, 4, 3), 128: (128, 64, 8, 3), 256: (64, 32, 4, 3)}
WINDOW_SHAPES: dict[int, Shape] = {64: (64, 32, 4, 3), 128: (64, 32, 4, 3), 256: (64, 32, 4, 3)}
FLOAT32_SHAPES: dict[int, Shape] = {16: (16, 16, 1, 3), 32: (32, 32, 1, 3)}
FLOAT32_LONG_SHAPES: dict[int, Shape] = {64: (64, 32, 2, 3), 128: (32, 32, 4, 3), 256: (16, 16, 4, 3)}
MAX_OWN_WINDOW = 128  # torch's flash attention is slower with a window than without
MAX_WIDTH = 256
MAX_SHORT_WIDTH = 64  # wider heads have one shape for texts of any length


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
    library = _flash_fits(qkv, width, kind)
    classes = _list_classes(width, qkv.dtype, library, kind.window is not None and kind.window <= MAX_OWN_WINDOW)
    chosen = (
        [(0, 1 << 30, next(c.shape for c in classes if longest <= c.at_most), 0, texts, longest)]
        if runs is None
        else list(_split_texts(classes, runs, at_most))
    )
    out = torch.empty((0, heads * width), dtype=qkv.dtype, device=qkv.device)
    distances = kind.distances
    table = distances.rows if distances is not None else kind.bias
    reach = 0 if table is None else table.shape[-1] // 2
    by_query, by_key = (None, None) if distances is None else (distances.by_query, distances.by_key)
    span = next((t.shape[2] for t in (by_query, by_key) if t is not None), 0)
    for above, limit, shape, first, count, longest_here in sorted(chosen, key=lambda c: c[2] is not None):
        if shape is None:  # it comes first, and writes the rows of all texts that it is given
            if count == texts or at_most:
                out = _attend_by_library(qkv, offsets, heads, width, longest_here, kind)
            else:  # the longest texts of the batch
                rows = sum(n * length for _, n, length in (runs or ()) if length <= above)
                out = torch.empty((tokens, heads * width), dtype=qkv.dtype, device=qkv.device)
                part = offsets[first : first + count + 1] - rows
                out[rows : rows + sum(n * length for _, n, length in (runs or ()) if length > above)] = (
                    _attend_by_library(qkv[rows:], part, heads, width, longest_here, kind)
                )
            continue
        if not len(out):
            out = torch.empty((tokens, heads * width), dtype=qkv.dtype, device=qkv.device)
        queries, keys, warps, stages = shape
        _attend_kernel[(count, heads, triton.cdiv(longest_here, queries))](
            qkv, offsets, out, kind.bias, None if distances is None else distances.rows, by_query, by_key, first,
            kind.scale, heads, key_heads, width, max(MIN_WIDTH, triton.next_power_of_2(width)), queries, keys, above,
            limit, kind.causal, -1 if kind.window is None else kind.window, reach, span, INTERPRETED, num_warps=warps,
            num_stages=stages,
        )  # fmt: skip
    return out


def _flash_fits(qkv: torch.Tensor, width: int, kind: AttentionKind) -> bool:
    """Whether torch's flash attention computes this: one block of queries at a time, in an order that its type and
    width alone decide.
    """
    short = qkv.dtype in (torch.float16, torch.bfloat16)
    biased = kind.bias is not None or kind.distances is not None
    if kind.window is not None and kind.window <= MAX_OWN_WINDOW:
        return False
    return qkv.is_cuda and short and not biased and width % 8 == 0 and width <= MAX_WIDTH and _has_flash(qkv.device)


@cache
def _has_flash(device: torch.device) -> bool:
    """Whether this build of torch has it for packed texts on this device."""
    qkv, offsets = torch.zeros(3, 3 * 64, dtype=torch.float16, device=device), torch.tensor([0, 3], device=device)
    try:
        return bool((_attend_by_library(qkv, offsets, 1, 64, 3, AttentionKind(1.0, window=1)) == 0).all())
    except (RuntimeError, TypeError, AttributeError, NotImplementedError):
        return False


def _attend_by_library(
    qkv: torch.Tensor, offsets: torch.Tensor, heads: int, width: int, longest: int, kind: AttentionKind
) -> torch.Tensor:
    key_heads = kind.key_heads or heads
    q, k, v = qkv.view(len(qkv), -1, width).split([heads, key_heads, key_heads], 1)
    ends = offsets.int()
    window = -1 if kind.window is None else kind.window
    right = 0 if kind.causal and kind.window is not None else window
    out = torch.ops.aten._flash_attention_forward(
        q, k, v, ends, ends, longest, longest, 0.0, kind.causal, False, scale=kind.scale, window_size_left=window,
        window_size_right=right,
    )[0]  # fmt: skip
    return out.view(len(qkv), heads * width)


class _Class(NamedTuple):
    """Texts of more than `above` and no more than `at_most` tokens are computed in blocks of this shape."""

    above: int
    at_most: int
    shape: Shape | None  # None: by torch's flash attention


def _list_classes(width: int, dtype: torch.dtype, library: bool, narrow: bool) -> list[_Class]:
    """The classes from short texts to long ones."""
    short, long = (FLOAT32_SHAPES, FLOAT32_LONG_SHAPES) if dtype == torch.float32 else (SHAPES, LONG_SHAPES)
    long = WINDOW_SHAPES if narrow and dtype != torch.float32 else long
    wide = next(shape for most, shape in long.items() if width <= most)
    limits: list[tuple[int, Shape | None]] = list(short.items()) if width <= MAX_SHORT_WIDTH else []
    if library and width > MAX_SHORT_WIDTH:
        limits.append((16, wide))  # the library has another order for texts of one token
    limits.append((1 << 30, None if library else wide))
    return [_Class(above, *last) for above, last in zip([0, *(k for k, _ in limits)], limits, strict=False)]


def _split_texts(
    classes: list[_Class], runs: tuple[tuple[int, int, int], ...], at_most: bool
) -> Iterator[tuple[int, int, Shape | None, int, int, int]]:
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


@triton.jit(do_not_specialize=["first_text"])
def _attend_kernel(
    qkv, offsets, out, bias, distance_rows, by_query, by_key, first_text, scale, HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, ABOVE: tl.constexpr, LIMIT: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, REACH: tl.constexpr, SPAN: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """qkv [tokens, heads + 2 · key heads, WIDTH] → out [tokens, heads, WIDTH].

    One program per text, head and block of queries; texts of other lengths than ABOVE + 1 to LIMIT are left out. Texts
    of up to KEYS tokens take one round; longer ones carry maximum and sum from block to block. WIDEN multiplies in
    float32, because Triton's interpreter cannot multiply bfloat16.
    """
    text = first_text + tl.program_id(0)
    head = tl.program_id(1)
    start = tl.load(offsets + text).to(tl.int64)
    n = (tl.load(offsets + text + 1) - start).to(tl.int32)
    first = tl.program_id(2) * QUERIES
    if (first >= n) | (n <= ABOVE) | (n > LIMIT):
        return
    ROW: tl.constexpr = (HEADS + 2 * KEY_HEADS) * WIDTH
    d = tl.arange(0, BLOCK)
    inside = d[None, :] < WIDTH
    query = first + tl.arange(0, QUERIES)
    is_query = query < n
    q_mask = is_query[:, None] & inside
    q_ptr = qkv + start * ROW + head * WIDTH + query[:, None] * ROW + d[None, :]
    q = tl.load(q_ptr, mask=q_mask, other=0)
    if WIDEN:
        q = q.to(tl.float32)
    running_max = tl.full([QUERIES], float("-inf"), tl.float32)
    running_sum = tl.zeros([QUERIES], tl.float32)
    weighted = tl.zeros([QUERIES, BLOCK], tl.float32)
    begin, end = 0, n
    if WINDOW >= 0:
        begin = tl.maximum(first - WINDOW, 0) // KEYS * KEYS
        end = tl.minimum(n, first + QUERIES + WINDOW)
    if CAUSAL:
        end = tl.minimum(end, first + QUERIES)
    key_base = qkv + start * ROW + (HEADS + head // (HEADS // KEY_HEADS)) * WIDTH
    for block in range(begin, end, KEYS):
        key = block + tl.arange(0, KEYS)
        is_key = key < n
        k_mask = is_key[:, None] & inside
        k_ptr = key_base + key[:, None] * ROW + d[None, :]
        k = tl.load(k_ptr, mask=k_mask, other=0)
        v = tl.load(k_ptr + KEY_HEADS * WIDTH, mask=k_mask, other=0)
        if WIDEN:
            k, v = k.to(tl.float32), v.to(tl.float32)
        score = tl.dot(q, tl.trans(k), input_precision="ieee")
        score *= scale * LOG2_E
        seen = is_key[None, :] & is_query[:, None]
        distance = key[None, :] - query[:, None]
        if bias is not None:
            score += LOG2_E * tl.load(bias + head * (2 * REACH + 1) + REACH + distance, mask=seen, other=0)
        if distance_rows is not None:
            row = tl.load(distance_rows + REACH + distance, mask=seen, other=0)
            if by_query is not None:
                at = (start + query)[:, None] * (HEADS * SPAN) + head * SPAN + row
                score += tl.load(by_query + at, mask=seen, other=0).to(tl.float32) * (scale * LOG2_E)
            if by_key is not None:
                at = (start + key)[None, :] * (HEADS * SPAN) + head * SPAN + row
                score += tl.load(by_key + at, mask=seen, other=0).to(tl.float32) * (scale * LOG2_E)
        seen = is_key[None, :]
        if CAUSAL:
            seen = seen & (distance <= 0)
        if WINDOW >= 0:
            seen = seen & (distance <= WINDOW) & (distance >= -WINDOW)
        score = tl.where(seen, score, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(score, 1))
        origin = new_max
        if CAUSAL or WINDOW >= 0:  # a block can hold no key that a query sees
            origin = tl.where(new_max == float("-inf"), 0.0, new_max)
        weight = tl.exp2(score - origin[:, None])
        decay = tl.exp2(running_max - origin)
        running_sum = running_sum * decay + tl.sum(weight, 1)
        weighted = weighted * decay[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        running_max = new_max
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
