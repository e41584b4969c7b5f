"""Rescore candidates with float64 sums over the stored values, and rank them.

`rescore_candidates` takes the selected tiles of any number of queries. `rescore_one_query` goes from the maxima of
all tiles to the result of one query in one launch. `rescore_within_margin` does the same after a scan of a sketch.

    python -m pytest tests/kernels/test_search_exact.py tests/kernels/test_search_one_query.py
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ridgeline.kernels.launch import launch_kernel
from ridgeline.kernels.search.scan import NO_FMA
from ridgeline.kernels.search.top_k import (
    EMPTY_GROUP,
    EMPTY_KEY,
    LARGE_COUNT,
    RANK_BLOCK,
    SELECT_WARPS,
    SMALL_COUNT,
    append_selected,
    choose_capacity,
    decode_group_scores,
    find_nth_largest,
    find_nth_of_many,
    pack_keys,
    raise_threshold,
    raise_threshold_in_memory,
    select_tiles_by_group,
    unpack_position,
    unpack_score,
)

RESCORE_CHUNK = 64  # elements of a row at a time in float64
RESCORE_ROWS = {64: 32, 256: 16, 512: 32}  # rows at a time in float64; by capacity
GROUP_ROWS = 8  # rows of a tile whose largest score is compared: more groups than candidates give a higher threshold
SCORES_BY = {"row": 0, "slot": 1, "tile": 2}
UNBOUNDED = 0x7FFFFFFF
MAX_CANDIDATES = LARGE_COUNT


def rescore_candidates(
    queries: torch.Tensor,
    rows: torch.Tensor | None,
    scores: torch.Tensor,
    tiles: torch.Tensor,
    k: int,
    *,
    tile: int,
    candidates: int,
    metric: str = "ip",
    starts: torch.Tensor | None = None,
    ends: torch.Tensor | None = None,
    scores_by: str = "row",
    ids: torch.Tensor | None = None,
    step: torch.Tensor | None = None,
    middle: torch.Tensor | None = None,
    places: torch.Tensor | None = None,
    certificate: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    done: torch.Tensor | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best k rows of the selected tiles: scores float32 [Q, k] and numbers int64 [Q, k].

    Missing results are -inf (l2: inf) and -1.

    scores       by `scores_by`: "row": [Q, N]; "slot": [Q, tiles · tile], in the order of `tiles` [Q, tiles]; "tile":
                 [Q, T · tile], by the number of the tile
    starts, ends [Q, T]: the rows of a tile; without them tile t holds the rows from t · tile on
    candidates   at least k: how many of the best rows (or a few more) are computed in float64 from rows [N, D]; codes
                 stand for middle[d] + step[d] · code; without rows the scores are not computed again
    places       [N]: the position in `rows` of each scanned row, if the order differs
    ids          [N]: the numbers to return instead of row numbers; ties go to the lower number
    metric       "ip", or "l2" for the squared distance
    certificate  bound [Q], error [Q] and certified uint8 [Q], which becomes 1 if no row outside the tiles can be better
                 than the k-th
    done         uint8 [Q]: queries to skip
    """
    query_count = queries.shape[0]
    values, numbers = out or (
        torch.empty((query_count, k), dtype=torch.float32, device=queries.device),
        torch.empty((query_count, k), dtype=torch.int64, device=queries.device),
    )
    bound, error, certified = certificate or (None, None, None)
    capacity = choose_capacity(max(candidates, tiles.shape[1]))
    scratch_shape, device = (query_count, capacity), queries.device
    if query_count:
        _rescore_candidates_kernel[(query_count,)](
            queries, rows, scores, tiles, starts, ends, ids, step, middle, places, bound, error, certified, done,
            torch.empty(scratch_shape, dtype=torch.int64, device=device),
            torch.empty(scratch_shape, dtype=torch.float64, device=device),
            torch.empty(scratch_shape, dtype=torch.int64, device=device), values, numbers,
            scores.shape[1] if scores_by == "row" else UNBOUNDED,  # otherwise missing rows have no score
            k, candidates, tiles.shape[1], SCORES_BY[scores_by], queries.stride(0),
            0 if rows is None else rows.stride(0), scores.stride(0), 0 if starts is None else starts.stride(0),
            queries.shape[1], tile, capacity, RESCORE_ROWS[capacity],
            min(RESCORE_CHUNK, triton.next_power_of_2(queries.shape[1])), RANK_BLOCK, min(GROUP_ROWS, tile),
            metric == "l2", num_warps=SELECT_WARPS[capacity], **NO_FMA,
        )  # fmt: skip
    return values, numbers


@triton.jit
def compute_exact_scores(
    queries, rows, row, valid, places, step, middle, row_stride, DEPTH: tl.constexpr, CHUNK: tl.constexpr,
    C: tl.constexpr, L2: tl.constexpr,
):  # fmt: skip
    """Return float64 [C] scores, higher is nearer, of the rows at row [C]."""
    stored = row
    if places is not None:
        stored = tl.load(places + row)
    base = rows + stored.to(tl.int64)[:, None] * row_stride
    total = tl.zeros([C, CHUNK], tl.float64)
    for first in tl.static_range(0, DEPTH, CHUNK):
        d = first + tl.arange(0, CHUNK)
        inside = d < DEPTH
        x = tl.load(base + d[None, :], mask=valid[:, None] & inside[None, :], other=0).to(tl.float64)
        q = tl.load(queries + d, mask=inside, other=0).to(tl.float64)
        if step is not None:
            scale = tl.load(step + d, mask=inside, other=0).to(tl.float64)
            x = tl.load(middle + d, mask=inside, other=0).to(tl.float64)[None, :] + scale[None, :] * x
        if L2:
            x = x - q[None, :]
            total = tl.fma(x, x, total)
        else:
            total = tl.fma(x, tl.broadcast_to(q[None, :], x.shape), total)
    exact = tl.sum(total, 1)
    if L2:
        exact = -exact
    return exact


@triton.jit
def compute_ranks(exact, number, valid, C: tl.constexpr):
    """Return the rank of each of C rows: by score, then by number."""
    # A missing row sorts by its slot, after all rows: every rank occurs once.
    last = tl.arange(0, C).to(tl.int64) + (1 << 62)
    exact = tl.where(valid, exact, float("-inf"))
    tie = tl.where(valid, number, last)
    ahead = exact[None, :] > exact[:, None]
    ahead = ahead | ((exact[None, :] == exact[:, None]) & (tie[None, :] < tie[:, None]))
    return tl.sum(tl.where(ahead, 1, 0), 1)


@triton.jit(
    do_not_specialize=[
        "count",
        "k",
        "candidate_count",
        "width",
        "scores_by",
        "query_stride",
        "score_stride",
        "start_stride",
    ]
)
def _rescore_candidates_kernel(
    queries, rows, scores, tiles, starts, ends, ids, step, middle, places, bound, error, certified, done, scratch,
    exact_scores, exact_ids, values, numbers, count, k, candidate_count, width, scores_by, query_stride, row_stride,
    score_stride, start_stride, DEPTH: tl.constexpr, TILE: tl.constexpr, CAPACITY: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, L2: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    if done is not None:  # noqa: SIM102 (one condition would load a null pointer)
        if tl.load(done + query) != 0:
            return
    queries += query * query_stride
    scores += query * score_stride
    tiles += query * width
    scratch += query * CAPACITY
    exact_scores += query * CAPACITY
    exact_ids += query * CAPACITY
    # Scores of all rows of the tiles [slots, TILE].
    tile_slot = tl.arange(0, CAPACITY // 2)
    tile = tl.load(tiles + tile_slot, mask=tile_slot < width, other=-1)
    is_tile = tile >= 0
    if starts is None:
        start = tile * TILE
        end = tl.full(tile.shape, 0, tl.int32) + count
    else:
        start = tl.load(starts + query * start_stride + tile, mask=is_tile, other=0)
        end = tl.load(ends + query * start_stride + tile, mask=is_tile, other=0)
    local = tl.arange(0, TILE)
    row = start[:, None] + local[None, :]
    at = row
    if scores_by == 1:
        at = tile_slot[:, None] * TILE + local[None, :]
    if scores_by == 2:
        at = tile[:, None] * TILE + local[None, :]
    score = tl.load(scores + at, mask=is_tile[:, None] & (row < end[:, None]), other=float("-inf"))
    # The maxima of groups are scores of different rows, so the candidates reach the last one of as many maxima.
    group_maxima = tl.max(tl.reshape(score, [CAPACITY // 2 * TILE // GROUP, GROUP]), 1)
    least = find_nth_of_many(group_maxima, tl.minimum(candidate_count, CAPACITY // 2))
    flat_score = tl.reshape(score, [CAPACITY // 2 * TILE])
    keys = pack_keys(flat_score, tl.reshape(row, [CAPACITY // 2 * TILE]))
    keep = (flat_score >= least) & (flat_score > float("-inf"))
    selected = append_selected(scratch, 0, keys, keep, CAPACITY)
    if selected > CAPACITY:  # fewer tiles than `candidate_count`, or many good rows in a tile
        low = raise_threshold(tl.where(keep, keys, EMPTY_KEY), candidate_count, CAPACITY)
        tl.debug_barrier()
        selected = append_selected(scratch, 0, keys, keys >= low, CAPACITY)
    tl.debug_barrier()
    for begin in range(0, selected, ROWS):
        slot = begin + tl.arange(0, ROWS)
        key = tl.load(scratch + slot, mask=slot < selected, other=EMPTY_KEY)
        position = unpack_position(key)
        valid = position >= 0
        safe_row = tl.where(valid, position, 0)
        exact = unpack_score(key).to(tl.float64)
        if rows is not None:
            exact = compute_exact_scores(
                queries, rows, safe_row, valid, places, step, middle, row_stride, DEPTH, CHUNK, ROWS, L2
            )
        number = safe_row.to(tl.int64)
        if ids is not None:
            number = tl.load(ids + safe_row, mask=valid, other=0).to(tl.int64)
        tl.store(exact_scores + slot, exact, mask=slot < selected)
        tl.store(exact_ids + slot, number, mask=slot < selected)
    tl.debug_barrier()
    slot = tl.arange(0, CAPACITY)
    filled = slot < selected
    exact = tl.load(exact_scores + slot, mask=filled, other=float("-inf"))
    number = tl.load(exact_ids + slot, mask=filled, other=-1)
    rank = tl.zeros([CAPACITY], tl.float32)  # an int32 sum would go through shared memory
    for begin in range(0, selected, BLOCK):
        other_slot = begin + tl.arange(0, BLOCK)
        is_row = other_slot < selected
        other = tl.load(exact_scores + other_slot, mask=is_row, other=float("-inf"))
        other_number = tl.load(exact_ids + other_slot, mask=is_row, other=0)
        ahead = other[None, :] > exact[:, None]
        tied = (other[None, :] == exact[:, None]) & (other_number[None, :] < number[:, None])
        rank += tl.sum(tl.where((ahead | tied) & is_row[None, :], 1.0, 0.0), 1)
    place = tl.where(filled, rank.to(tl.int32), slot)
    value = exact
    if L2:
        value = -exact
    tl.store(values + query * k + place, value.to(tl.float32), mask=place < k)
    tl.store(numbers + query * k + place, number, mask=place < k)
    if certified is not None:
        # The k-th score in units of the scan. If the tiles hold fewer than k rows, there are no rows outside.
        best = filled & (place < k)
        worst = tl.min(tl.where(best, exact, float("inf")), 0)
        outside = tl.load(bound + query).to(tl.float64)
        if L2:
            q2 = tl.zeros([CHUNK], tl.float64)
            for first in tl.static_range(0, DEPTH, CHUNK):
                d = first + tl.arange(0, CHUNK)
                q = tl.load(queries + d, mask=d < DEPTH, other=0).to(tl.float64)
                q2 += q * q
            outside -= tl.sum(q2, 0)  # 2·q·x - |x|² = |q|² - |q - x|²
        certain = (outside == float("-inf")) | ((selected >= k) & (outside + tl.load(error + query) < worst))
        tl.store(certified + query, certain.to(tl.uint8))


# One query: from the maximum of each tile to the k best rows, in one launch of one program, without a sort.
#
# The program selects the tiles whose maximum reaches a threshold (`top_k.py`), then the rows in them that reach it,
# computes float64 sums over the stored values, and ranks the rows by comparing all pairs. A query that is not finite
# has no neighbours.


ONE_QUERY_CHUNK = 128  # elements of a row at a time in float64
MAX_ONE_QUERY_CANDIDATES = SMALL_COUNT
ONE_QUERY_CAPACITY = 2 * SMALL_COUNT  # scores that may reach the threshold, and buckets that it is found with
TILE_STEP = 1024  # tiles at a time
ONE_QUERY_WARPS = 8


def rescore_one_query(
    queries: torch.Tensor,
    norms: torch.Tensor,
    rows: torch.Tensor,
    scores: torch.Tensor,
    maxima: torch.Tensor,
    out: tuple[torch.Tensor, torch.Tensor],
    *,
    tile: int,
    candidate_count: int,
    metric: str = "ip",
    starts: torch.Tensor | None = None,
    ends: torch.Tensor | None = None,
    ids: torch.Tensor | None = None,
    step: torch.Tensor | None = None,
    middle: torch.Tensor | None = None,
    places: torch.Tensor | None = None,
    groups: torch.Tensor | None = None,
    done: torch.Tensor | None = None,
    early: bool = False,
) -> None:
    """Rescore one query from the scores of all its tiles and write out: float32 and int64 [1, k].

    queries float32 [1, D], norms float64 [1], scores and maxima [1, T]. Other arguments as in `rescore_candidates`;
    with `starts` and `ends` scores are by tile, else by row. At least the best `candidate_count` rows, k or more, are
    computed in float64. groups: maxima of groups from the scan; they are reset. done int32 [1]: if it is not 0, out is
    complete.
    """
    values, numbers = out
    tiles, k = maxima.shape[1], values.shape[1]
    group_count = 0 if groups is None else len(groups)
    arguments: tuple[Any, ...] = (
        queries, norms, rows, scores, maxima, starts, ends, ids, step, middle, places, groups, done,
        torch.empty(2 * ONE_QUERY_CAPACITY, dtype=torch.int32, device=queries.device),
        torch.empty(ONE_QUERY_CAPACITY, dtype=torch.int64, device=queries.device), values, numbers,
        scores.shape[1] if starts is None else 0, tiles, k, candidate_count, rows.stride(0), queries.shape[1], tile,
        ONE_QUERY_CAPACITY, TILE_STEP, group_count,
        triton.next_power_of_2(triton.cdiv(tiles, group_count)) if group_count else 0,
        min(ONE_QUERY_CHUNK, triton.next_power_of_2(queries.shape[1])), metric == "l2", early,
    )  # fmt: skip
    launch_kernel(_rescore_one_query_kernel, 1, *arguments, num_warps=ONE_QUERY_WARPS, **NO_FMA)


@triton.jit
def _load_scores_at(position, tile, starts, ends, scores, count, TILE: tl.constexpr):
    """Load scores and rows at positions inside some tiles (tile -1: no row)."""
    local = position % TILE
    valid = tile >= 0
    if starts is None:
        row = tile * TILE + local
        score = tl.load(scores + row, mask=valid & (row < count), other=float("-inf"))
    else:
        row = tl.load(starts + tile, mask=valid, other=0) + local
        inside = valid & (row < tl.load(ends + tile, mask=valid, other=0))
        score = tl.load(scores + tile * TILE + local, mask=inside, other=float("-inf"))
    return score, row


@triton.jit
def _select_best_tiles(maxima, tiles, tile_ids, candidate_count, STEP: tl.constexpr, CAPACITY: tl.constexpr):
    """Write to tile_ids [CAPACITY] the tiles that hold the best `candidate_count` rows.

    Returns the score that these rows reach, and the number of tiles, which can exceed CAPACITY.
    """
    bucket_maxima = tl.full([CAPACITY], float("-inf"), tl.float32)
    for begin in range(0, tiles, STEP):
        position = begin + tl.arange(0, STEP // CAPACITY)[:, None] * CAPACITY + tl.arange(0, CAPACITY)[None, :]
        bucket_maxima = tl.maximum(
            bucket_maxima, tl.max(tl.load(maxima + position, mask=position < tiles, other=float("-inf")), 0)
        )
    least = find_nth_largest(bucket_maxima, candidate_count)
    count = 0
    for begin in range(0, tiles, STEP):
        position = begin + tl.arange(0, STEP)
        score = tl.load(maxima + position, mask=position < tiles, other=float("-inf"))
        count = append_selected(tile_ids, count, position, (score >= least) & (score > float("-inf")), CAPACITY)
    tl.debug_barrier()
    return least, count


@triton.jit
def _select_fewer_tiles(maxima, tiles, least, tile_ids, candidate_count, STEP: tl.constexpr, CAPACITY: tl.constexpr):
    """Write at most CAPACITY tiles to `tile_ids` if more than that reach `least`; return their number."""
    low = raise_threshold_in_memory(maxima, tiles, least, candidate_count, CAPACITY, STEP)
    tl.debug_barrier()
    count = 0
    for begin in range(0, tiles, STEP):
        position = begin + tl.arange(0, STEP)
        keys = pack_keys(tl.load(maxima + position, mask=position < tiles, other=float("-inf")), position)
        count = append_selected(tile_ids, count, position, keys >= low, CAPACITY)
    tl.debug_barrier()
    return count


@triton.jit(do_not_specialize=["count", "tiles", "k", "candidate_count"])
def _rescore_one_query_kernel(
    queries, norms, rows, scores, maxima, starts, ends, ids, step, middle, places, groups, done, tile_ids,
    scratch, values, numbers, count, tiles, k, candidate_count, row_stride, DEPTH: tl.constexpr, TILE: tl.constexpr,
    CAPACITY: tl.constexpr, STEP: tl.constexpr, GROUPS: tl.constexpr, TILES_PER_GROUP: tl.constexpr,
    CHUNK: tl.constexpr, L2: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_wait()
    if done is not None:  # noqa: SIM102 (one condition would load a null pointer)
        if tl.load(done) != 0:
            return
    if groups is None:
        least, picked = _select_best_tiles(maxima, tiles, tile_ids, candidate_count, STEP, CAPACITY)
    else:
        least, picked = select_tiles_by_group(
            groups, maxima, tiles, tile_ids, candidate_count, GROUPS, TILES_PER_GROUP, CAPACITY
        )
    if picked > CAPACITY:
        picked = _select_fewer_tiles(maxima, tiles, least, tile_ids, candidate_count, STEP, CAPACITY)
    position = tl.arange(0, CAPACITY * TILE)
    tile = tl.load(tile_ids + position // TILE, mask=position // TILE < picked, other=-1)
    score, row = _load_scores_at(position, tile, starts, ends, scores, count, TILE)
    keys = pack_keys(score, row)
    selected = append_selected(scratch, 0, keys, (score >= least) & (score > float("-inf")), CAPACITY)
    if selected > CAPACITY:
        low = raise_threshold(tl.where(score >= least, keys, EMPTY_KEY), candidate_count, CAPACITY)
        tl.debug_barrier()
        selected = append_selected(scratch, 0, keys, keys >= low, CAPACITY)
    tl.debug_barrier()
    slot = tl.arange(0, CAPACITY)
    row = unpack_position(tl.load(scratch + slot, mask=slot < selected, other=EMPTY_KEY))
    norm = tl.load(norms)
    finite = norm - norm == 0
    row = tl.where(finite, row, -1)
    valid = row >= 0
    safe_row = tl.where(valid, row, 0)
    exact = compute_exact_scores(
        queries, rows, safe_row, valid, places, step, middle, row_stride, DEPTH, CHUNK, CAPACITY, L2
    )
    number = safe_row.to(tl.int64)
    if ids is not None:
        number = tl.load(ids + safe_row, mask=valid, other=0).to(tl.int64)
    rank = compute_ranks(exact, number, valid, CAPACITY)
    value = exact
    if L2:
        value = -exact
    no_score = float("-inf")
    if L2:
        no_score = float("inf")
    value = tl.where(finite, tl.where(valid, value.to(tl.float32), no_score), float("nan"))
    tl.store(values + rank, value, mask=rank < k)
    tl.store(numbers + rank, tl.where(valid, number, -1), mask=rank < k)


# All rows within a margin of the best scores of a sketch: many programs rescore, the last one ranks.
#
# The scores of a sketch (`scan_sketch`) show which rows can be among the best: those that reach the C-th best score
# less a margin. Program p takes every tile t with t modulo programs = p, so neighbouring tiles go to different
# programs. It computes the rows that it selects in float64 and appends them to a list. A counter shows which program
# ends last; that program ranks the list. If the list overflows, `done` stays 0 and the next kernels scan the full
# codes.
#
#     python -m pytest tests/kernels/test_search_sketch.py


MARGIN_PROGRAMS = 128  # at most; all of them run at once
MARGIN_TILES_PER_PROGRAM = 64  # at least
MARGIN_TILES_PER_STEP = 256
MARGIN_SLOTS = 8  # selected tiles at a time
MARGIN_ROWS_PER_STEP = 8  # rows in float64 at a time
MARGIN_CHUNK = 128  # elements of a row at a time
MARGIN_CAPACITY = 1024  # rows in the list
MARGIN_WARPS = 4


def rescore_within_margin(
    queries: torch.Tensor,
    norms: torch.Tensor,
    rows: torch.Tensor,
    scores: torch.Tensor,
    maxima: torch.Tensor,
    groups: torch.Tensor,
    coefficients: torch.Tensor,
    out: tuple[torch.Tensor, torch.Tensor],
    *,
    tile: int,
    candidate_count: int,
    metric: str = "ip",
    ids: torch.Tensor | None = None,
    early: bool = False,
) -> torch.Tensor:
    """Rescore all rows whose sketch score is within the margin; return done int32 [1].

    queries float32 [1, D], norms float64 [1], rows [N, D]; scores [1, tiles · tile], maxima [1, tiles or more] and
    groups from `scan_sketch` (groups are reset); coefficients [3] hold the margin. done is 1 if out, float32 and int64
    [1, k], is complete, and 0 if too many rows are within the margin.
    """
    values, numbers = out
    tiles, device = scores.shape[1] // tile, queries.device
    k = values.shape[1]
    programs = max(1, min(MARGIN_PROGRAMS, triton.cdiv(tiles, MARGIN_TILES_PER_PROGRAM)))
    done = torch.zeros(1, dtype=torch.int32, device=device)
    arguments: tuple[Any, ...] = (
        queries, norms, rows, scores, maxima, groups, coefficients, ids,
        torch.empty((programs, MARGIN_TILES_PER_STEP), dtype=torch.int32, device=device),
        torch.empty((programs, MARGIN_SLOTS * tile), dtype=torch.int32, device=device),
        torch.empty(MARGIN_CAPACITY, dtype=torch.int32, device=device),
        torch.empty(MARGIN_CAPACITY, dtype=torch.float64, device=device),
        torch.empty(MARGIN_CAPACITY, dtype=torch.int64, device=device),
        torch.zeros(2, dtype=torch.int32, device=device), done, values, numbers, tiles, k, candidate_count,
        rows.stride(0), queries.shape[1], tile, ONE_QUERY_CAPACITY, len(groups), MARGIN_TILES_PER_STEP,
        MARGIN_SLOTS, MARGIN_ROWS_PER_STEP, MARGIN_CAPACITY, ONE_QUERY_CAPACITY, ONE_QUERY_CAPACITY,
        min(MARGIN_CHUNK, triton.next_power_of_2(queries.shape[1])), metric == "l2", early,
    )  # fmt: skip
    launch_kernel(_rescore_within_margin_kernel, programs, *arguments, num_warps=MARGIN_WARPS, **NO_FMA)
    return done


@triton.jit(do_not_specialize=["tiles", "k", "candidate_count"])
def _rescore_within_margin_kernel(
    queries, norms, rows, scores, maxima, groups, coefficients, ids, tile_ids, row_ids, order, exact_scores, exact_ids,
    state, done, values, numbers, tiles, k, candidate_count, row_stride, DEPTH: tl.constexpr, TILE: tl.constexpr,
    BUCKETS: tl.constexpr, GROUPS: tl.constexpr, TILES: tl.constexpr, SLOTS: tl.constexpr, ROWS: tl.constexpr,
    LIST_CAPACITY: tl.constexpr, RANK_BUCKETS: tl.constexpr, CAPACITY: tl.constexpr, CHUNK: tl.constexpr,
    L2: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    tile_ids += program * TILES
    row_ids += program * SLOTS * TILE
    spread = tl.arange(0, GROUPS // BUCKETS)[:, None] * BUCKETS + tl.arange(0, BUCKETS)[None, :]
    floor = find_nth_largest(tl.max(decode_group_scores(tl.load(groups + spread)), 0), candidate_count) - tl.load(
        coefficients + 2
    )
    norm = tl.load(norms)
    floor = tl.where(norm - norm == 0, floor, float("nan"))  # a query that is not finite has no result
    for begin in range(0, tl.cdiv(tiles, programs), TILES):
        tile = (begin + tl.arange(0, TILES)) * programs + program
        best = tl.load(maxima + tile, mask=tile < tiles, other=float("-inf"))
        tile_count = append_selected(tile_ids, 0, tile, (best >= floor) & (best > float("-inf")), TILES)
        tl.debug_barrier()
        for slots in range(0, tile_count, SLOTS):
            position = tl.arange(0, SLOTS * TILE)
            owner = tl.load(tile_ids + slots + position // TILE, mask=slots + position // TILE < tile_count, other=-1)
            score = tl.load(scores + owner * TILE + position % TILE, mask=owner >= 0, other=float("-inf"))
            row = (position % TILE) * tiles + owner
            selected = append_selected(row_ids, 0, row, (score >= floor) & (score > float("-inf")), SLOTS * TILE)
            tl.debug_barrier()
            for first in range(0, selected, ROWS):
                slot = first + tl.arange(0, ROWS)
                valid = slot < selected
                row_id = tl.load(row_ids + slot, mask=valid, other=0)
                exact = compute_exact_scores(
                    queries, rows, row_id, valid, None, None, None, row_stride, DEPTH, CHUNK, ROWS, L2
                )
                result_id = row_id.to(tl.int64)
                if ids is not None:
                    result_id = tl.load(ids + row_id, mask=valid, other=0).to(tl.int64)
                list_slot = tl.atomic_add(state, tl.minimum(selected - first, ROWS), sem="relaxed") + tl.arange(0, ROWS)
                tl.store(exact_scores + list_slot, exact, mask=valid & (list_slot < LIST_CAPACITY))
                tl.store(exact_ids + list_slot, result_id, mask=valid & (list_slot < LIST_CAPACITY))
            tl.debug_barrier()
    tl.debug_barrier()  # all threads must have written before the counter rises
    before = tl.atomic_add(state + 1, 1, sem="acq_rel", scope="gpu")
    if before == programs - 1:
        list_length = tl.load(state, cache_modifier=".cg")
        tl.debug_barrier()
        tl.store(state, 0)
        tl.store(state + 1, 0)
        tl.store(groups + tl.arange(0, GROUPS), tl.full([GROUPS], EMPTY_GROUP, tl.int32))
        tl.store(done, (list_length <= LIST_CAPACITY).to(tl.int32))
        if list_length <= LIST_CAPACITY:
            _rank_within_margin(
                exact_scores,
                exact_ids,
                order,
                norms,
                values,
                numbers,
                list_length,
                k,
                RANK_BUCKETS,
                CAPACITY,
                LIST_CAPACITY,
                L2,
            )


@triton.jit
def _rank_within_margin(
    exact_scores, exact_ids, order, norms, values, numbers, list_length, k, BUCKETS: tl.constexpr,
    CAPACITY: tl.constexpr, LIST_CAPACITY: tl.constexpr, L2: tl.constexpr,
):  # fmt: skip
    """Write the best k of the list, by score and then by id; pad with missing results."""
    spread = tl.arange(0, LIST_CAPACITY // BUCKETS)[:, None] * BUCKETS + tl.arange(0, BUCKETS)[None, :]
    bucket_maxima = tl.max(tl.load(exact_scores + spread, mask=spread < list_length, other=float("-inf")), 0)
    least = find_nth_largest(bucket_maxima, k)
    position = tl.arange(0, LIST_CAPACITY)
    high = (tl.load(exact_scores + position, mask=position < list_length, other=float("-inf")) >= least) & (
        position < list_length
    )
    selected = append_selected(order, 0, position, high, LIST_CAPACITY)
    tl.debug_barrier()
    for block in range(0, selected, CAPACITY):  # one round, except among many equal scores
        slot = block + tl.arange(0, CAPACITY)
        candidate = tl.load(order + slot, mask=slot < selected, other=0)
        score = tl.load(exact_scores + candidate)
        result_id = tl.load(exact_ids + candidate)
        rank = tl.zeros([CAPACITY], tl.float32)  # an int32 sum would go through shared memory
        for other_block in range(0, selected, CAPACITY):
            valid = other_block + tl.arange(0, CAPACITY) < selected
            other = tl.load(order + other_block + tl.arange(0, CAPACITY), mask=valid, other=0)
            other_score = tl.load(exact_scores + other, mask=valid, other=float("-inf"))
            other_id = tl.load(exact_ids + other)
            ahead = other_score[None, :] > score[:, None]
            tied = (other_score[None, :] == score[:, None]) & (other_id[None, :] < result_id[:, None]) & valid[None, :]
            rank += tl.sum(tl.where(ahead | tied, 1.0, 0.0), 1)
        rank_int = rank.to(tl.int32)
        value = score
        if L2:
            value = -score
        tl.store(values + rank_int, value.to(tl.float32), mask=(slot < selected) & (rank_int < k))
        tl.store(numbers + rank_int, result_id, mask=(slot < selected) & (rank_int < k))
    no_score = float("-inf")
    if L2:
        no_score = float("inf")
    norm = tl.load(norms)
    missing_value = tl.where(norm - norm == 0, no_score, float("nan"))
    for first in range(list_length, k, CAPACITY):
        slot = first + tl.arange(0, CAPACITY)
        tl.store(values + slot, missing_value + tl.zeros([CAPACITY], tl.float32), mask=slot < k)
        tl.store(numbers + slot, tl.full([CAPACITY], -1, tl.int64), mask=slot < k)
