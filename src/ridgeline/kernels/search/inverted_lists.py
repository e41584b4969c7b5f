"""Inverted lists (IVF): rows are stored list by list, and a query scans the `probes` lists with the nearest centres.

Which lists these are, how long they are and how many queries share a list is known on the GPU only, and stays there.
The lists of a query are laid out as tiles: `tiles_per_list` per list, the number that the longest list needs. Programs
for tiles that a list does not have end at once. The next steps are those of exact search: best tiles, then rows.

With many queries, pairs of query and list are sorted by list. A program takes one list and up to QUERIES of its pairs,
so a list is read once for all of them, and again only if more queries share it.

    python benchmarks/search_gpu_sweep.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ridgeline.kernels.launch import launch_kernel
from ridgeline.kernels.search.kmeans import multiply_rows
from ridgeline.kernels.search.scan import NO_FMA, choose_chunk, compute_scores, finish_scores, view_mask
from ridgeline.kernels.search.top_k import MEDIUM_COUNT, select_tiles

LIST_TILE = 32  # rows
LIST_BATCH_TILE = 16  # rows, for several queries: of the selected tiles all rows are scored again
LIST_PROGRAMS = 4 * 132  # fewer pairs of query and list share the rows of a list among several programs
SMALL_INTEGER = 1 << 15
LIST_SCAN_SHAPE = (64, 4)  # elements at a time, warps, for one query; not tuned
# Queries and rows per program, elements at a time, warps, stages; by bytes per element. Tuned for 2 bytes
# (benchmarks/records/h200-search-sweep.txt), not for the others.
LIST_BATCH_SHAPES = {2: (64, 128, 64, 4, 3), 4: (32, 64, 32, 4, 3), 1: (32, 128, 64, 4, 3)}
INTERPRETED = triton.knobs.runtime.interpret


def find_nearest_lists(
    queries: torch.Tensor, centres: torch.Tensor, probes: int, *, metric: str = "ip", half: bool = False
) -> torch.Tensor:
    """Return the nearest lists, int32 [Q, probes], best first, of queries float32 [Q, D] and centres float32 [C, D];
    probes <= C.

    half: multiply in float16 on a GPU, for vectors of unit length: of two lists that are nearly as near any is taken.
    """
    scores = multiply_rows(queries.half(), centres) if half and queries.is_cuda else queries @ centres.T
    if metric == "l2":
        scores = scores.mul_(2.0).sub_(centres.square().sum(1))
    if probes > MEDIUM_COUNT:
        return scores.topk(probes, dim=1).indices.int()
    # A query that is not finite gets any lists; its result is empty.
    return select_tiles(scores, probes)[0].clamp_(min=0)


def compute_list_tiles(
    lists: torch.Tensor, starts: torch.Tensor, tiles_per_list: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """lists [Q, probes], starts int32 [C + 1] → first row and end of each tile of LIST_BATCH_TILE rows, int32
    [Q, probes · tiles_per_list].
    """
    query_count = lists.shape[0]
    list_ids = lists.long()
    step = LIST_BATCH_TILE * torch.arange(tiles_per_list, dtype=torch.int32, device=lists.device)
    end = starts[list_ids + 1][:, :, None]
    begin = torch.minimum(starts[list_ids][:, :, None] + step, end)
    # With one probe, reshape would return a view of stride 0.
    return begin.view(query_count, -1), end.expand(-1, -1, tiles_per_list).contiguous().view(query_count, -1)


def scan_lists(
    queries: torch.Tensor,
    rows: torch.Tensor,
    lists: torch.Tensor,
    starts: torch.Tensor,
    tiles_per_list: int,
    *,
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    factor: float = 1.0,
    l2: bool = False,
    early: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scan the lists of a few queries.

    Returns scores float32 [Q, T · LIST_TILE], maxima [Q, T], and the first row and the end of each tile, int32 [Q, T],
    with T = probes · tiles_per_list. Scores of tiles that a list does not have are not written.
    """
    query_count, probes = lists.shape
    tiles = probes * tiles_per_list
    scores = torch.empty((query_count, tiles * LIST_TILE), dtype=torch.float32, device=rows.device)
    maxima = torch.empty((query_count, tiles), dtype=torch.float32, device=rows.device)
    begin = torch.empty((query_count, tiles), dtype=torch.int32, device=rows.device)
    end = torch.empty_like(begin)
    chunk, warps = LIST_SCAN_SHAPE
    if query_count and tiles:
        launch_kernel(
            _scan_lists_kernel, query_count * tiles, queries, rows, lists, starts, bias, view_mask(allowed), scores,
            maxima, begin, end, probes, tiles_per_list, queries.stride(0), rows.stride(0), factor, queries.shape[1],
            choose_chunk(queries.shape[1], chunk), LIST_TILE, l2, early, num_warps=warps, **NO_FMA,
        )  # fmt: skip
    return scores, maxima, begin, end


def compute_list_maxima(
    queries: torch.Tensor,
    size: torch.Tensor,
    rows: torch.Tensor,
    lists: torch.Tensor,
    starts: torch.Tensor,
    tiles_per_list: int,
    *,
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    factor: float = 1.0,
    shape: tuple[int, int, int, int, int] | None = None,
) -> torch.Tensor:
    """Return the maximum of each tile of LIST_BATCH_TILE rows, float32 [Q, probes · tiles_per_list], for several
    rounded queries.
    """
    query_count, probes = lists.shape
    list_count = starts.shape[0] - 1
    queries_per_program, rows_per_program, chunk, warps, stages = shape or LIST_BATCH_SHAPES[rows.element_size()]
    out = torch.empty((query_count, probes * tiles_per_list), dtype=torch.float32, device=rows.device)
    if not query_count or not tiles_per_list:
        return out
    # Sorting 16 bits takes half the time of 32.
    integer = torch.int16 if list_count < SMALL_INTEGER else torch.int32
    sorted_lists, pairs = lists.reshape(-1).to(integer).sort(stable=True)
    edges = torch.searchsorted(
        sorted_lists, torch.arange(list_count + 1, dtype=integer, device=rows.device), out_int32=True
    )
    blocks = (edges.diff() + (queries_per_program - 1)) // queries_per_program
    block_ends = blocks.cumsum(0, dtype=torch.int32)
    items = triton.cdiv(query_count * probes, queries_per_program) + min(
        list_count, query_count * probes
    )  # an upper bound
    item = torch.arange(items, dtype=torch.int32, device=rows.device)
    item_lists = torch.searchsorted(block_ends, item, right=True, out_int32=True)  # `list_count` for unused items
    blocks_per_list = triton.cdiv(tiles_per_list * LIST_BATCH_TILE, rows_per_program)
    shares = max(1, min(LIST_PROGRAMS // items, blocks_per_list))
    _list_maxima_kernel[(items, shares)](
        queries, size, rows, item_lists, pairs, edges, blocks, block_ends, starts, bias, view_mask(allowed), out,
        list_count, probes, tiles_per_list, queries.stride(0), rows.stride(0), factor, queries.shape[1],
        queries_per_program, rows_per_program, choose_chunk(queries.shape[1], chunk), LIST_BATCH_TILE, INTERPRETED,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["probes", "tiles_per_list"])
def _scan_lists_kernel(
    queries, rows, lists, starts, bias, allowed, scores, maxima, begin, end, probes, tiles_per_list, query_stride,
    row_stride, factor, DEPTH: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, L2: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    program = tl.program_id(0)
    pair = program // tiles_per_list
    list_id = tl.load(lists + pair)
    first = tl.load(starts + list_id) + (program % tiles_per_list) * TILE
    stop = tl.load(starts + list_id + 1)
    tl.store(begin + program, tl.minimum(first, stop))
    tl.store(end + program, stop)
    left = stop - first
    if left <= 0:
        tl.store(maxima + program, float("-inf"))
        return
    local = tl.arange(0, TILE)
    clamped = tl.minimum(local, left - 1)
    query = queries + (pair // probes).to(tl.int64) * query_stride
    row = first.to(tl.int64)
    score = compute_scores(rows + row * row_stride, query, clamped, row_stride, DEPTH, CHUNK, TILE, L2)
    score = finish_scores(score, row + local, local < left, bias, allowed, factor)
    tl.store(scores + program.to(tl.int64) * TILE + local, score)
    tl.store(maxima + program, tl.max(score, 0))


@triton.jit(do_not_specialize=["list_count", "probes", "tiles_per_list"])
def _list_maxima_kernel(
    queries, size, rows, item_lists, pairs, edges, blocks, block_ends, starts, bias, allowed, out, list_count, probes,
    tiles_per_list, query_stride, row_stride, factor, DEPTH: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, TILE: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0)
    list_id = tl.load(item_lists + item)
    if list_id >= list_count:
        return
    block = item - (tl.load(block_ends + list_id) - tl.load(blocks + list_id))
    position = tl.load(edges + list_id) + block * QUERIES + tl.arange(0, QUERIES)
    last = tl.load(edges + list_id + 1)
    valid = position < last
    pair = tl.load(pairs + tl.minimum(position, last - 1))
    query = pair // probes
    q_at = queries + query[:, None] * query_stride
    scale = tl.load(size + query) * factor
    first = tl.load(starts + list_id).to(tl.int64)
    left = (tl.load(starts + list_id + 1) - first).to(tl.int32)
    to = out + pair[:, None] * tiles_per_list
    TILES_PER_STEP: tl.constexpr = ROWS // TILE
    share, shares = tl.program_id(1), tl.num_programs(1)
    for begin in range(share * ROWS, left, shares * ROWS):
        local = begin + tl.arange(0, ROWS)
        clamped = tl.minimum(local, left - 1)
        x_at = rows + first * row_stride + clamped[:, None] * row_stride
        acc = tl.zeros([QUERIES, ROWS], tl.float32)
        for start in range(0, DEPTH, CHUNK):
            d = start + tl.arange(0, CHUNK)
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
        score = acc * scale[:, None]
        if bias is not None:
            score += tl.load(bias + first + clamped)[None, :]
        inside = local < left
        if allowed is not None:
            inside = inside & (tl.load(allowed + first + clamped) != 0)
        score = tl.where(inside[None, :], score, float("-inf"))
        best = tl.max(tl.reshape(score, [QUERIES, TILES_PER_STEP, TILE]), 2)
        tile = begin // TILE + tl.arange(0, TILES_PER_STEP)
        tl.store(to + tile[None, :], best, mask=valid[:, None] & (tile < tiles_per_list)[None, :])
    first_empty = (left + ROWS - 1) // ROWS * TILES_PER_STEP
    for begin in range(first_empty + share * TILES_PER_STEP, tiles_per_list, shares * TILES_PER_STEP):
        tile = begin + tl.arange(0, TILES_PER_STEP)
        no_score = tl.full([QUERIES, TILES_PER_STEP], float("-inf"), tl.float32)
        tl.store(to + tile[None, :], no_score, mask=valid[:, None] & (tile < tiles_per_list)[None, :])
