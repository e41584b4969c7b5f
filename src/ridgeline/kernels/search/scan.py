"""Score all rows against queries, and keep the best score of each tile of rows.

One or a few queries (`scan_rows`) are limited by memory bandwidth. A program takes one tile of rows, 16 bytes per
thread and load, and starts all loads before the first sum. It writes the scores of the tile (4 bytes per row beside
the hundreds that it read; they stay in the L2 cache) and their maximum; the next kernel reads only the maxima.
Programs of several queries are neighbours in the grid, so a tile comes from memory once and from the cache for the
other queries.

Many queries (`compute_tile_maxima`) use the matrix units and write no score matrix. Queries are rounded to the type
of the rows; sums are float32. `prepare_queries` returns a bound on the effect of that rounding for each query
(|q - rounded q| · longest row, by Cauchy and Schwarz, plus a little for the sums). `rescore.py` uses the bound to
certify that no row outside the selected tiles can be among the k best. `recompute_tile_maxima` computes the maxima of
queries without the certificate again in full float32. Usually no query needs it, and its programs end at once, so the
host never has to wait for the certificate.

Queries are the left operand: a thread then holds neighbouring rows of one query and finds the maximum of a tile in
its registers and with two shuffles. Programs on the same rows are neighbours in the grid: rows come from memory once.

    python benchmarks/search_gpu_sweep.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ridgeline.kernels.launch import launch_kernel
from ridgeline.kernels.search.top_k import update_group

Scores = tuple[torch.Tensor, torch.Tensor]  # tiles and their scores

# For kernels that compare sums. Several threads compute the same sum in different orders. The results are equal only if
# every product is rounded before it is added. A compiler that fuses a multiplication and an addition skips that
# rounding at different terms in different threads, and then a score is not equal to itself.
NO_FMA = {"enable_fp_fusion": False}

# Rows per tile, rows in flight at once, elements of a row at a time, warps; by bytes per element. Tuned for 2 bytes
# (benchmarks/records/h200-search-sweep.txt), not for the others.
SCAN_TILE = 64
SCAN_SHAPES = {2: (64, 64, 8), 4: (16, 32, 4), 1: (32, 128, 4)}
SCAN_REGISTERS = {2: 80}  # three programs of 8 warps per multiprocessor instead of two: a third less time


def scan_rows(
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
    """queries float32 [Q, D], rows [N, D] → scores float32 [Q, N] and maxima [Q, ceil(N / tile)].

    A score is factor · q·x + bias[row], or with l2 -|q - x|², or -inf where `allowed` [N] is 0. (2·q·x - |x|² orders
    rows like the distance, but far from the origin its float32 sums cancel.) groups: for one query, the kernel also
    updates the maxima of groups of tiles.
    """
    tile = tile or SCAN_TILE
    (count, depth), query_count = rows.shape, queries.shape[0]
    tiles = triton.cdiv(count, tile)
    scores, maxima = out or (
        torch.empty((query_count, count), dtype=torch.float32, device=rows.device),
        torch.empty((query_count, tiles), dtype=torch.float32, device=rows.device),
    )
    step, chunk, warps = shape or SCAN_SHAPES[rows.element_size()]
    if tiles and query_count:
        launch_kernel(
            _scan_rows_kernel, tiles * query_count, rows, queries, bias, view_mask(allowed), scores, maxima, count,
            query_count, rows.stride(0), queries.stride(0), scores.stride(0), maxima.stride(0), factor, depth,
            choose_chunk(depth, chunk), min(step, tile), tile, groups, 0 if groups is None else len(groups), l2, early,
            num_warps=warps, maxnreg=SCAN_REGISTERS.get(rows.element_size()), **NO_FMA,
        )  # fmt: skip
    return scores, maxima


def view_mask(allowed: torch.Tensor | None) -> torch.Tensor | None:
    """View a bool mask as uint8, which Triton can load."""
    return allowed.view(torch.uint8) if allowed is not None and allowed.dtype == torch.bool else allowed


def choose_chunk(depth: int, largest: int) -> int:
    size: int = min(largest, max(16, triton.next_power_of_2(depth)))
    return size


@triton.jit
def compute_scores(
    rows, query, local, row_stride, DEPTH: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, L2: tl.constexpr
):  # fmt: skip
    """Return float32 sums of products of one query with the rows at local [STEP]; with L2 the negative squared
    distance.
    """
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
def finish_scores(score, row, inside, bias, allowed, factor):
    """Return factor · score + bias, or -inf for rows that do not exist or are not allowed."""
    score = score * factor
    if bias is not None:
        score += tl.load(bias + row, mask=inside, other=0)
    if allowed is not None:
        inside = inside & (tl.load(allowed + row, mask=inside, other=0) != 0)
    return tl.where(inside, score, float("-inf"))


@triton.jit(do_not_specialize=["count", "query_count", "score_stride", "maxima_stride"])
def _scan_rows_kernel(
    rows, queries, bias, allowed, scores, maxima, count, query_count, row_stride, query_stride, score_stride,
    maxima_stride, factor, DEPTH: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, TILE: tl.constexpr, groups,
    GROUPS: tl.constexpr, L2: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    program = tl.program_id(0)
    query = program % query_count
    tile = program // query_count
    first = tile.to(tl.int64) * TILE
    left = (count - first).to(tl.int32)
    best = tl.full([STEP], float("-inf"), tl.float32)
    for begin in tl.static_range(0, TILE, STEP):
        local = begin + tl.arange(0, STEP)
        inside = local < left
        # Rows beyond the end read the last row: cheaper than masked loads; their scores are dropped.
        clamped = tl.minimum(local, left - 1)
        query_ptr = queries + query * query_stride
        score = compute_scores(rows + first * row_stride, query_ptr, clamped, row_stride, DEPTH, CHUNK, STEP, L2)
        score = finish_scores(score, first + local, inside, bias, allowed, factor)
        tl.store(scores + query.to(tl.int64) * score_stride + first + local, score, mask=inside)
        best = tl.maximum(best, score)
    top = tl.max(best, 0)
    tl.store(maxima + query.to(tl.int64) * maxima_stride + tile, top)
    if groups is not None:
        update_group(groups, tile, top, GROUPS)


BATCH_TILE = 32  # rows per tile
# Queries and rows per program, elements at a time, warps, stages; by bytes per element of the rows. Tuned for
# 2 bytes (benchmarks/records/h200-search-sweep.txt), not for the others.
BATCH_SHAPES = {2: (128, 128, 64, 8, 3), 4: (128, 128, 32, 8, 3), 1: (128, 128, 64, 8, 3)}
SMALL_BATCH_SHAPE = (16, 128, 64, 4, 4)  # up to 16 queries: limited by memory
RESCORE_SHAPE = (64, 4)  # elements at a time, warps
RECOMPUTE_PROGRAMS = 4 * 132
SUM_ERROR = 2.0**-14  # relative, of sums on the matrix units: 384 terms, aligned to about 2^-22
TF32_ERROR = 2.0**-9  # both operands lose their last 13 bits
INTERPRETED = triton.knobs.runtime.interpret  # the interpreter cannot multiply bfloat16


def compute_tile_maxima(
    queries: torch.Tensor,
    size: torch.Tensor,
    rows: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    factor: float = 1.0,
    shape: tuple[int, int, int, int, int] | None = None,
) -> torch.Tensor:
    """Return the maximum of each BATCH_TILE rows, float32 [Q, ceil(N / BATCH_TILE)], for rounded queries and rows [N,
    D].
    """
    (count, depth), query_count = rows.shape, queries.shape[0]
    tiles = triton.cdiv(count, BATCH_TILE)
    # A row stride of a multiple of 16 tiles lets the compiler store several at a time.
    out = torch.empty((query_count, triton.cdiv(tiles, 16) * 16), dtype=torch.float32, device=rows.device)[:, :tiles]
    queries_per_program, rows_per_program, chunk, warps, stages = shape or (
        SMALL_BATCH_SHAPE if query_count <= SMALL_BATCH_SHAPE[0] else BATCH_SHAPES[rows.element_size()]
    )
    if query_count and tiles:
        _tile_maxima_kernel[(triton.cdiv(query_count, queries_per_program) * triton.cdiv(count, rows_per_program),)](
            queries, size, rows, bias, view_mask(allowed), out, query_count, count, tiles, queries.stride(0),
            rows.stride(0), out.stride(0), factor, depth, queries_per_program, rows_per_program,
            choose_chunk(depth, chunk), BATCH_TILE, INTERPRETED, num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return out


def recompute_tile_maxima(
    queries: torch.Tensor,
    rows: torch.Tensor,
    out: torch.Tensor,
    certified: torch.Tensor,
    scratch: Scores,
    *,
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    factor: float = 1.0,
    l2: bool = False,
) -> None:
    """Compute the maxima [Q, T] without rounding for float32 queries [Q, D] whose `certified` [Q] is 0.

    scratch: the tiles and scores of `rescore_tiles`, which are not changed.
    """
    if out.numel():
        tiles, scores = scratch
        _launch_score_tiles(
            min(out.shape[1], RECOMPUTE_PROGRAMS), queries, rows, tiles, None, None, bias, allowed, certified,
            certified.all(), scores, out, BATCH_TILE, factor, l2,
        )  # fmt: skip


def rescore_tiles(
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
    maxima: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the float32 scores of all rows in the selected tiles [Q, K]: [Q, K · tile].

    A tile of -1 has no scores: they are not written.

    starts, ends [Q, T]: the rows of a tile, as in `rescore_candidates`. maxima: those that `recompute_tile_maxima`
    may compute later; with them it is the same kernel.
    """
    tile = tile or BATCH_TILE
    query_count, width = tiles.shape
    if out is None:
        out = torch.empty((query_count, width * tile), dtype=torch.float32, device=rows.device)
    if query_count:
        _launch_score_tiles(
            query_count * width, queries, rows, tiles, starts, ends, bias, allowed, done, None, out, maxima, tile,
            factor, l2,
        )  # fmt: skip
    return out


def _launch_score_tiles(
    programs: int, queries: torch.Tensor, rows: torch.Tensor, tiles: torch.Tensor, starts: torch.Tensor | None,
    ends: torch.Tensor | None, bias: torch.Tensor | None, allowed: torch.Tensor | None, done: torch.Tensor | None,
    all_done: torch.Tensor | None, scores: torch.Tensor, maxima: torch.Tensor | None, tile: int, factor: float,
    l2: bool,
) -> None:  # fmt: skip
    """Score the selected tiles; with `all_done` all tiles of the queries that are not done, for their maxima."""
    chunk, warps = RESCORE_SHAPE
    everything = all_done is not None
    if maxima is not None and all_done is None:
        all_done = done  # not read
    _score_tiles_kernel[(programs,)](
        queries, rows, tiles, starts, ends, bias, view_mask(allowed), done, all_done, scores, maxima, len(queries),
        rows.shape[0], 0 if maxima is None else maxima.shape[1], tiles.shape[1], int(everything), queries.stride(0),
        rows.stride(0), 0 if starts is None else starts.stride(0), 0 if maxima is None else maxima.stride(0), factor,
        rows.shape[1], choose_chunk(rows.shape[1], chunk), tile, l2, num_warps=warps, **NO_FMA,
    )  # fmt: skip


@triton.jit(do_not_specialize=["query_count", "count", "tiles"])
def _tile_maxima_kernel(
    queries, size, rows, bias, allowed, out, query_count, count, tiles, query_stride, row_stride, out_stride, factor,
    DEPTH: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(query_count, QUERIES)
    query = (tl.program_id(0) % blocks) * QUERIES + tl.arange(0, QUERIES)
    block = tl.program_id(0) // blocks
    first = block.to(tl.int64) * ROWS
    local = tl.arange(0, ROWS)
    left = (count - first).to(tl.int32)
    clamped = tl.minimum(local, left - 1)
    q_at = queries + tl.minimum(query, query_count - 1)[:, None] * query_stride
    x_at = rows + first * row_stride + clamped[:, None] * row_stride
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
    scale = tl.load(size + query, mask=query < query_count, other=0) * factor
    score = acc * scale[:, None]
    if bias is not None:
        score += tl.load(bias + first + clamped)[None, :]
    inside = local < left
    if allowed is not None:
        inside = inside & (tl.load(allowed + first + clamped) != 0)
    score = tl.where(inside[None, :], score, float("-inf"))
    best = tl.max(tl.reshape(score, [QUERIES, ROWS // TILE, TILE]), 2)
    tile = block * (ROWS // TILE) + tl.arange(0, ROWS // TILE)
    at = out + query.to(tl.int64)[:, None] * out_stride + tile[None, :]
    tl.store(at, best, mask=(query < query_count)[:, None] & (tile < tiles)[None, :])


# One kernel for two uses, so that it is compiled once. Each program scores one selected tile, or, with `everything`,
# some of all tiles for the queries that are not done.
@triton.jit(
    do_not_specialize=[
        "query_count",
        "count",
        "tiles",
        "width",
        "everything",
        "start_stride",
        "maxima_stride",
    ]
)
def _score_tiles_kernel(
    queries, rows, picked, starts, ends, bias, allowed, done, all_done, scores, maxima, query_count, count, tiles,
    width, everything, query_stride, row_stride, start_stride, maxima_stride, factor, DEPTH: tl.constexpr,
    CHUNK: tl.constexpr, TILE: tl.constexpr, L2: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    first_query = program // width
    query_end = first_query + 1
    turn_end = program + 1
    if maxima is not None:  # noqa: SIM102 (one condition would load a null pointer)
        if everything != 0:
            first_query = 0
            query_end = query_count
            turn_end = tiles
            if tl.load(all_done) != 0:
                query_end = 0
    local = tl.arange(0, TILE)
    for query_number in range(first_query, query_end):
        query = tl.cast(query_number, tl.int64)
        pending = True
        if done is not None:
            pending = tl.load(done + query) == 0
        if pending:
            for turn in range(program, turn_end, tl.num_programs(0)):
                tile = turn
                if everything == 0:
                    tile = tl.load(picked + turn)
                if tile >= 0:
                    if starts is None:
                        first = tl.cast(tile, tl.int64) * TILE
                        left = (count - first).to(tl.int32)
                    else:
                        first = tl.load(starts + query * start_stride + tile).to(tl.int64)
                        left = (tl.load(ends + query * start_stride + tile) - first).to(tl.int32)
                    clamped = tl.minimum(local, left - 1)
                    score = compute_scores(
                        rows + first * row_stride, queries + query * query_stride, clamped, row_stride, DEPTH, CHUNK,
                        TILE, L2,
                    )  # fmt: skip
                    score = finish_scores(score, first + local, local < left, bias, allowed, factor)
                    if everything == 0:
                        tl.store(scores + tl.cast(turn, tl.int64) * TILE + local, score)
                    if maxima is not None:  # noqa: SIM102
                        if everything != 0:
                            tl.store(maxima + query * maxima_stride + tile, tl.max(score, 0))
