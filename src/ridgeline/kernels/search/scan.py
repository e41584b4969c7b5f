"""Every row against one query: float32 sums, each row read once, at the speed of memory.

A program takes one tile of rows, 16 bytes per thread and load, with all its loads under way before the first sum.
It writes the tile's scores (4 bytes per row beside the hundreds that were read; they stay in the L2 cache) and the
best of them: what comes after looks at the best of the tiles only. Several queries are neighbours in the grid, so
that a tile comes from memory once and from the cache for the others.

    python benchmarks/search_gpu_sweep.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ridgeline.kernels.launch import direct
from ridgeline.kernels.search.groups import join

# For kernels that compare sums. Several threads hold the same sum and have added in different orders, which changes
# nothing as long as each product was rounded before; a compiler that makes one multiplication and one addition of a
# sum into one instruction leaves out another rounding in each of them, and then a score is not equal to itself.
ROUNDED = {"enable_fp_fusion": False}

# Rows per tile, rows in flight at once, elements of a row at a time, warps; by bytes per element. Swept for 2 bytes
# (benchmarks/records/h200-search-sweep.txt), not for the others.
TILE = 64
SHAPES = {2: (64, 64, 8), 4: (16, 32, 4), 1: (32, 128, 4)}
REGISTERS = {2: 80}  # so that three programs of 8 warps are under way on a multiprocessor, not two: a third of the time


def scan(
    queries: torch.Tensor,
    rows: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    factor: float = 1.0,
    l2: bool = False,
    tile: int | None = None,
    shape: tuple[int, int, int] | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    groups: torch.Tensor | None = None,
    early: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """queries float32 [Q, D] · rows [N, D] → scores float32 [Q, N] and maxima [Q, ceil(N / tile)].

    groups: of one query, told of the best of their tiles (`search_groups`).

    A score is factor · q·x + bias[row], or with l2 -|q - x|², or -inf where `allowed` [N] is 0. (2·q·x - |x|² orders
    rows like the distance, but far from the origin its float32 sums cancel.)
    """
    tile = tile or TILE
    (count, depth), many = rows.shape, queries.shape[0]
    tiles = triton.cdiv(count, tile)
    scores, maxima = out or (
        torch.empty((many, count), dtype=torch.float32, device=rows.device),
        torch.empty((many, tiles), dtype=torch.float32, device=rows.device),
    )
    step, chunk, warps = shape or SHAPES[rows.element_size()]
    if tiles and many:
        direct.launch(
            _scan, tiles * many,
            rows, queries, bias, flags(allowed), scores, maxima, count, many, rows.stride(0), queries.stride(0),
            scores.stride(0), maxima.stride(0), factor, depth, chunk_for(depth, chunk), min(step, tile), tile,
            groups, 0 if groups is None else len(groups), l2, early, num_warps=warps,
            maxnreg=REGISTERS.get(rows.element_size()), **ROUNDED,
        )  # fmt: skip
    return scores, maxima


def flags(allowed: torch.Tensor | None) -> torch.Tensor | None:
    return allowed.view(torch.uint8) if allowed is not None and allowed.dtype == torch.bool else allowed


def chunk_for(depth: int, most: int) -> int:
    size: int = min(most, max(16, triton.next_power_of_2(depth)))
    return size


@triton.jit
def dots(
    rows, query, local, row_stride, DEPTH: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, L2: tl.constexpr
):  # fmt: skip
    """Of the rows at local [STEP]: float32 products with one query, summed; with L2 the negative squared distance."""
    acc = tl.zeros([STEP, CHUNK], tl.float32)
    for begin in tl.static_range(0, DEPTH, CHUNK):
        d = begin + tl.arange(0, CHUNK)
        at = rows + local[:, None] * row_stride + d[None, :]
        if begin + CHUNK <= DEPTH:
            x = tl.load(at)
            q = tl.load(query + d)
        else:
            x = tl.load(at, mask=(d < DEPTH)[None, :], other=0)
            q = tl.load(query + d, mask=d < DEPTH, other=0)
        if L2:
            away = x.to(tl.float32) - q[None, :]
            acc = tl.fma(-away, away, acc)
        else:
            acc = tl.fma(x.to(tl.float32), tl.broadcast_to(q[None, :], x.shape), acc)
    return tl.sum(acc, 1)


@triton.jit
def finished(score, row, inside, bias, allowed, factor):
    """factor · score + bias, or -inf for rows that are not there or not allowed."""
    score = score * factor
    if bias is not None:
        score += tl.load(bias + row, mask=inside, other=0)
    if allowed is not None:
        inside = inside & (tl.load(allowed + row, mask=inside, other=0) != 0)
    return tl.where(inside, score, float("-inf"))


@triton.jit(do_not_specialize=["count", "many", "score_stride", "maxima_stride"])
def _scan(
    rows, queries, bias, allowed, scores, maxima, count, many, row_stride, query_stride, score_stride, maxima_stride,
    factor, DEPTH: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, TILE: tl.constexpr,
    groups, GROUPS: tl.constexpr, L2: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    program = tl.program_id(0)
    query = program % many
    tile = program // many
    first = tile.to(tl.int64) * TILE
    left = (count - first).to(tl.int32)
    best = tl.full([STEP], float("-inf"), tl.float32)
    for begin in tl.static_range(0, TILE, STEP):
        local = begin + tl.arange(0, STEP)
        inside = local < left
        # Rows beyond the end are read as the last one: cheaper than masked loads, and never counted.
        near = tl.minimum(local, left - 1)
        own = queries + query * query_stride
        score = dots(rows + first * row_stride, own, near, row_stride, DEPTH, CHUNK, STEP, L2)
        score = finished(score, first + local, inside, bias, allowed, factor)
        tl.store(scores + query.to(tl.int64) * score_stride + first + local, score, mask=inside)
        best = tl.maximum(best, score)
    top = tl.max(best, 0)
    tl.store(maxima + query.to(tl.int64) * maxima_stride + tile, top)
    if groups is not None:
        join(groups, tile, top, GROUPS)
