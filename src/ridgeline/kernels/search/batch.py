"""Many queries at once on the matrix units: the best score of each small tile of rows, and no score matrix.

Queries are rounded to the rows' type; sums are float32. How far that rounding can move a score is known for each
query (|q - rounded q| · longest row, by Cauchy and Schwarz, and a little for the sums): `rounded` says it, and
`search_settle` uses it to certify that nothing outside of the picked tiles can be among the k best. For queries
without the certificate `again` computes the maxima once more in full float32; where all have it, as is usual, its
programs leave at once, so that nobody has to ask the GPU how it went.

Queries are the left operand: a thread then holds neighbouring rows of one query, and the best of a tile is found in
its registers and two shuffles. Programs on the same rows are neighbours in the grid: rows come from memory once.

    python benchmarks/search_gpu_sweep.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ridgeline.kernels.search.scan import ROUNDED, chunk_for, dots, finished, flags

TILE = 32  # rows per tile
# Queries and rows per program, elements at a time, warps, stages; by bytes per element of the rows. Swept for
# 2 bytes (benchmarks/records/h200-search-sweep.txt), not for the others.
SHAPES = {2: (128, 128, 64, 8, 3), 4: (128, 128, 32, 8, 3), 1: (128, 128, 64, 8, 3)}
FEW = (16, 128, 64, 4, 4)  # up to 16 queries: the rows' bytes are the cost
RESCORE = (64, 4)  # elements at a time, warps
AGAIN_PROGRAMS = 4 * 132
SLACK = 2.0**-14  # of the sums on the matrix units: 384 terms, their alignment cut off at some 2^-22
TF32 = 2.0**-9  # both operands lose their last 13 bits
INTERPRETED = triton.knobs.runtime.interpret  # which knows no product of bfloat16


def rounded(
    queries: torch.Tensor, dtype: torch.dtype, longest: torch.Tensor, metric: str = "ip",
    scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """queries float32 [Q, D] → [Q, D] in the type that meets rows of `dtype`, size [Q] (a power of two: query =
    size · rounded query), and the most that a score can be wrong, float32 [Q]. longest: the longest row's norm, [1].

    scale float32 [D] multiplies the queries first: that is how codes are met, as fp16; `longest` is of the codes then.
    """
    many, depth = queries.shape
    kind = torch.float16 if dtype == torch.int8 else dtype
    out = torch.empty((many, depth), dtype=kind, device=queries.device)
    size = torch.empty(many, dtype=torch.float32, device=queries.device)
    error = torch.empty(many, dtype=torch.float32, device=queries.device)
    if many:
        _rounded[(many,)](
            queries, scale, longest, out, size, error, queries.stride(0), depth, triton.next_power_of_2(depth),
            kind == torch.float32, metric == "l2", SLACK, TF32, num_warps=4,
        )  # fmt: skip
    return out, size, error


def maxima(
    queries: torch.Tensor,
    size: torch.Tensor,
    rows: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    factor: float = 1.0,
    shape: tuple[int, int, int, int, int] | None = None,
) -> torch.Tensor:
    """Of `rounded` queries [Q, D] and rows [N, D]: the best of each TILE rows, float32 [Q, ceil(N / TILE)]."""
    (count, depth), many = rows.shape, queries.shape[0]
    tiles = triton.cdiv(count, TILE)
    # Lines of a multiple of 16 tiles: the compiler then stores several at a time.
    out = torch.empty((many, triton.cdiv(tiles, 16) * 16), dtype=torch.float32, device=rows.device)[:, :tiles]
    most, wide, chunk, warps, stages = shape or (FEW if many <= FEW[0] else SHAPES[rows.element_size()])
    if many and tiles:
        _maxima[(triton.cdiv(many, most) * triton.cdiv(count, wide),)](
            queries, size, rows, bias, flags(allowed), out, many, count, tiles, queries.stride(0), rows.stride(0),
            out.stride(0), factor, depth, most, wide, chunk_for(depth, chunk), TILE, INTERPRETED, num_warps=warps,
            num_stages=stages,
        )  # fmt: skip
    return out


def again(
    queries: torch.Tensor,
    rows: torch.Tensor,
    out: torch.Tensor,
    settled: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    factor: float = 1.0,
    l2: bool = False,
) -> None:
    """Of float32 queries [Q, D] whose `settled` [Q] is 0: the maxima [Q, T] once more, without rounding."""
    (count, depth), (many, tiles) = rows.shape, out.shape
    chunk, warps = RESCORE
    if many and tiles:
        _again[(min(tiles, AGAIN_PROGRAMS),)](
            queries, rows, bias, flags(allowed), out, settled, many, count, tiles, queries.stride(0), rows.stride(0),
            out.stride(0), factor, depth, chunk_for(depth, chunk), TILE, triton.next_power_of_2(many), l2,
            num_warps=warps, **ROUNDED,
        )  # fmt: skip


def rescore(
    queries: torch.Tensor,
    rows: torch.Tensor,
    tiles: torch.Tensor,
    *,
    tile: int | None = None,
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    factor: float = 1.0,
    l2: bool = False,
    starts: torch.Tensor | None = None,
    ends: torch.Tensor | None = None,
    done: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Scores of all rows in the picked tiles [Q, K], float32 [Q, K · tile]; -inf where there is none.

    starts, ends [Q, T]: which rows a tile holds, as in `search_settle.settle`.
    """
    tile = tile or TILE
    many, width = tiles.shape
    if out is None:
        out = torch.empty((many, width * tile), dtype=torch.float32, device=rows.device)
    chunk, warps = RESCORE
    if many:
        _rescore[(many * width,)](
            queries, rows, tiles, starts, ends, bias, flags(allowed), done, out, rows.shape[0], queries.stride(0),
            rows.stride(0), 0 if starts is None else starts.stride(0), factor, rows.shape[1],
            chunk_for(rows.shape[1], chunk), width, tile, l2, num_warps=warps, **ROUNDED,
        )  # fmt: skip
    return out


@triton.jit
def _rounded(
    queries, scale, longest, out, size, error, query_stride, DEPTH: tl.constexpr, BLOCK: tl.constexpr,
    FULL: tl.constexpr, L2: tl.constexpr, SLACK: tl.constexpr, TF32: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    q = tl.load(queries + query * query_stride + d, mask=d < DEPTH, other=0)
    if scale is not None:
        q = q * tl.load(scale + d, mask=d < DEPTH, other=0)
    # The largest element's power of two, by its exponent: dividing by it is exact, and fp16 has room for the rest.
    most = tl.max(tl.abs(q), 0)
    bits = most.to(tl.int32, bitcast=True) & 0x7F800000
    power = tl.where(bits > 0, bits.to(tl.float32, bitcast=True), 1.0)
    small = (q / power).to(out.dtype.element_ty)
    off = q - small.to(tl.float32) * power
    length = tl.sqrt(tl.sum(q * q, 0))
    wrong = tl.sqrt(tl.sum(off * off, 0))
    if FULL:
        wrong = TF32 * length
    reach = tl.load(longest)
    wrong = (wrong * 1.0001 + SLACK * length) * reach
    if L2:
        wrong = 2 * wrong + reach * reach * 2.4e-7
    tl.store(out + query * DEPTH + d, small, mask=d < DEPTH)
    tl.store(size + query, power)
    tl.store(error + query, wrong)


@triton.jit(do_not_specialize=["many", "count", "tiles"])
def _maxima(
    queries, size, rows, bias, allowed, out, many, count, tiles, query_stride, row_stride, out_stride, factor,
    DEPTH: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(many, QUERIES)
    query = (tl.program_id(0) % blocks) * QUERIES + tl.arange(0, QUERIES)
    block = tl.program_id(0) // blocks
    first = block.to(tl.int64) * ROWS
    local = tl.arange(0, ROWS)
    left = (count - first).to(tl.int32)
    near = tl.minimum(local, left - 1)
    q_at = queries + tl.minimum(query, many - 1)[:, None] * query_stride
    x_at = rows + first * row_stride + near[:, None] * row_stride
    acc = tl.zeros([QUERIES, ROWS], tl.float32)
    for begin in range(0, DEPTH, CHUNK):
        d = begin + tl.arange(0, CHUNK)
        if DEPTH % CHUNK == 0:
            q = tl.load(q_at + d[None, :])
            x = tl.load(x_at + d[None, :])
        else:
            q = tl.load(q_at + d[None, :], mask=(d < DEPTH)[None, :], other=0)
            x = tl.load(x_at + d[None, :], mask=(d < DEPTH)[None, :], other=0)
        x = x.to(q.dtype)  # codes
        if WIDEN:
            q, x = q.to(tl.float32), x.to(tl.float32)
        acc = tl.dot(q, tl.trans(x), acc)
    scale = tl.load(size + query, mask=query < many, other=0) * factor
    score = acc * scale[:, None]
    if bias is not None:
        score += tl.load(bias + first + near)[None, :]
    inside = local < left
    if allowed is not None:
        inside = inside & (tl.load(allowed + first + near) != 0)
    score = tl.where(inside[None, :], score, float("-inf"))
    best = tl.max(tl.reshape(score, [QUERIES, ROWS // TILE, TILE]), 2)
    tile = block * (ROWS // TILE) + tl.arange(0, ROWS // TILE)
    at = out + query.to(tl.int64)[:, None] * out_stride + tile[None, :]
    tl.store(at, best, mask=(query < many)[:, None] & (tile < tiles)[None, :])


@triton.jit(do_not_specialize=["many", "count", "tiles", "out_stride"])
def _again(
    queries, rows, bias, allowed, out, settled, many, count, tiles, query_stride, row_stride, out_stride, factor,
    DEPTH: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, MANY: tl.constexpr, L2: tl.constexpr,
):  # fmt: skip
    every = tl.arange(0, MANY)
    if tl.min(tl.load(settled + every, mask=every < many, other=1).to(tl.int32), 0) != 0:
        return
    for query in range(many):
        if tl.load(settled + query) == 0:
            for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
                first = tl.cast(tile, tl.int64) * TILE
                local = tl.arange(0, TILE)
                left = (count - first).to(tl.int32)
                near = tl.minimum(local, left - 1)
                score = dots(
                    rows + first * row_stride,
                    queries + query * query_stride,
                    near,
                    row_stride,
                    DEPTH,
                    CHUNK,
                    TILE,
                    L2,
                )
                score = finished(score, first + local, local < left, bias, allowed, factor)
                tl.store(out + tl.cast(query, tl.int64) * out_stride + tile, tl.max(score, 0))


@triton.jit(do_not_specialize=["count", "start_stride"])
def _rescore(
    queries, rows, tiles, starts, ends, bias, allowed, done, out, count, query_stride, row_stride, start_stride,
    factor, DEPTH: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, L2: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    query = (program // WIDTH).to(tl.int64)
    if done is not None:  # noqa: SIM102 (both at once would load what is not there)
        if tl.load(done + query) != 0:
            return
    tile = tl.load(tiles + program)
    local = tl.arange(0, TILE)
    to = out + program.to(tl.int64) * TILE + local
    if tile < 0:
        tl.store(to, tl.full([TILE], float("-inf"), tl.float32))
        return
    if starts is None:
        first = tile.to(tl.int64) * TILE
        left = (count - first).to(tl.int32)
    else:
        first = tl.load(starts + query * start_stride + tile).to(tl.int64)
        left = (tl.load(ends + query * start_stride + tile) - first).to(tl.int32)
    near = tl.minimum(local, left - 1)
    own = queries + query * query_stride
    score = dots(rows + first * row_stride, own, near, row_stride, DEPTH, CHUNK, TILE, L2)
    tl.store(to, finished(score, first + local, local < left, bias, allowed, factor))
