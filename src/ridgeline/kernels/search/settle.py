"""From the best tiles to the k best rows, by float64 sums over the stored values, in order.

python -m pytest tests/kernels/test_search_exact.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ridgeline.kernels.search import select as search_select
from ridgeline.kernels.search.keys import NOTHING, merged, place_of, score_of
from ridgeline.kernels.search.scan import ROUNDED
from ridgeline.kernels.search.select import best_of, few, keys, room, scratch, warps_for

DEEP = 64  # elements of a row at a time in float64
ENDLESS = 0x7FFFFFFF
MOST = 256  # candidates that are ranked by comparing all with all


def settle(
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
    """The best k rows of the picked tiles → float32 [Q, k] and int64 [Q, k], padded with -inf (l2: inf) and -1.

    scores_by "row": [Q, N]; "slot": [Q, tiles · tile], in the order of `tiles` [Q, tiles]; "tile": [Q, T · tile], by
    the number of the tile. A tile holds rows tile_number · tile and on, or with `starts`, `ends` [Q, T] those from
    one to the other. The best `candidates` (a power of two, at least k) are computed again in float64 from rows
    [N, D]: as they stand, or for codes as middle[d] + step[d] · code; without rows their scores stand.
    `places` [N]: where in `rows` the scanned row stands, if they are ordered otherwise.
    `ids` [N]: what to return instead of the scanned row's number; ties go to the lower. metric: "ip", or "l2" for
    the squared distance. certificate: bound [Q], error [Q] and settled uint8 [Q], which becomes 1 where no row
    outside of the tiles can be better than the k-th.
    """
    many = queries.shape[0]
    values, numbers = out or (
        torch.empty((many, k), dtype=torch.float32, device=queries.device),
        torch.empty((many, k), dtype=torch.int64, device=queries.device),
    )
    bound, error, settled = certificate or (None, None, None)
    width = tiles.shape[1]
    if many:
        _settle[(many,)](
            queries, rows, scores, tiles, starts, ends, ids, step, middle, places, bound, error, settled, done,
            scratch(many, candidates, queries), values, numbers,
            scores.shape[1] if scores_by == "row" else ENDLESS,  # otherwise rows that are not there have no score
            k, queries.stride(0), 0 if rows is None else rows.stride(0), scores.stride(0),
            0 if starts is None else starts.stride(0), queries.shape[1], width, tile,
            max(1, min(width, max(search_select.AT_ONCE, candidates) // tile)), candidates, room(candidates),
            min(DEEP, triton.next_power_of_2(queries.shape[1])), metric == "l2", scores_by,
            num_warps=warps_for(candidates), **ROUNDED,
        )  # fmt: skip
    return values, numbers


@triton.jit
def _in_tiles(
    slot, tiles, starts, ends, scores, count, TILE: tl.constexpr, BY: tl.constexpr
):  # fmt: skip
    """Scores and rows of the tiles in some slots: [slots, TILE] each."""
    tile = tl.load(tiles + slot)
    there = tile >= 0
    if starts is None:
        start = tile * TILE
        end = tl.full(slot.shape, 0, tl.int32) + count
    else:
        start = tl.load(starts + tile, mask=there, other=0)
        end = tl.load(ends + tile, mask=there, other=0)
    local = tl.arange(0, TILE)
    row = start[:, None] + local[None, :]
    at = row
    if BY == "slot":
        at = slot[:, None] * TILE + local[None, :]
    if BY == "tile":
        at = tile[:, None] * TILE + local[None, :]
    inside = there[:, None] & (row < end[:, None])
    return tl.load(scores + at, mask=inside, other=float("-inf")), row


@triton.jit
def exact_of(
    queries, rows, near, there, places, step, middle, row_stride, DEPTH: tl.constexpr, CHUNK: tl.constexpr,
    C: tl.constexpr, L2: tl.constexpr,
):  # fmt: skip
    """float64 [C], higher is nearer, of the rows at near [C]."""
    stored = near
    if places is not None:
        stored = tl.load(places + near)
    base = rows + stored.to(tl.int64)[:, None] * row_stride
    total = tl.zeros([C, CHUNK], tl.float64)
    for first in tl.static_range(0, DEPTH, CHUNK):
        d = first + tl.arange(0, CHUNK)
        known = d < DEPTH
        x = tl.load(base + d[None, :], mask=there[:, None] & known[None, :], other=0).to(tl.float64)
        q = tl.load(queries + d, mask=known, other=0).to(tl.float64)
        if step is not None:
            scale = tl.load(step + d, mask=known, other=0).to(tl.float64)
            x = tl.load(middle + d, mask=known, other=0).to(tl.float64)[None, :] + scale[None, :] * x
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
def ranks(exact, number, there, C: tl.constexpr):
    """The place of each of C rows among them: by score, then by number."""
    # Where there is no row the slot stands for it, after all rows: every rank is taken once.
    last = tl.arange(0, C).to(tl.int64) + (1 << 62)
    exact = tl.where(there, exact, float("-inf"))
    tie = tl.where(there, number, last)
    ahead = exact[None, :] > exact[:, None]
    ahead = ahead | ((exact[None, :] == exact[:, None]) & (tie[None, :] < tie[:, None]))
    return tl.sum(tl.where(ahead, 1, 0), 1)


@triton.jit(do_not_specialize=["count", "k", "query_stride", "score_stride", "start_stride"])
def _settle(
    queries, rows, scores, tiles, starts, ends, ids, step, middle, places, bound, error, settled, done, scratch,
    values, numbers, count, k, query_stride, row_stride, score_stride, start_stride, DEPTH: tl.constexpr,
    WIDTH: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, C: tl.constexpr, ROOM: tl.constexpr,
    CHUNK: tl.constexpr, L2: tl.constexpr, BY: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    if done is not None:  # noqa: SIM102 (both at once would load what is not there)
        if tl.load(done + query) != 0:
            return
    queries += query * query_stride
    scores += query * score_stride
    tiles += query * WIDTH
    scratch += query * ROOM
    if starts is not None:
        starts += query * start_stride
        ends += query * start_stride
    left = ROOM + 1
    if C <= WIDTH:
        score, place = _in_tiles(tl.arange(0, WIDTH), tiles, starts, ends, scores, count, TILE, BY)
        left = few(scratch, score, place, C, ROOM)
    if left <= ROOM:
        best = best_of(scratch, left, C, ROOM)
    else:
        best = tl.full([C], NOTHING, tl.int64)
        for begin in range(0, WIDTH, STEP):
            slot = begin + tl.arange(0, STEP)
            some, at = _in_tiles(slot, tiles, starts, ends, scores, count, TILE, BY)
            best = merged(best, keys(some, at), C)
    row = place_of(best)
    there = row >= 0
    near = tl.where(there, row, 0)
    exact = score_of(best).to(tl.float64)
    if rows is not None:
        exact = exact_of(queries, rows, near, there, places, step, middle, row_stride, DEPTH, CHUNK, C, L2)
    number = near.to(tl.int64)
    if ids is not None:
        number = tl.load(ids + near, mask=there, other=0).to(tl.int64)
    exact = tl.where(there, exact, float("-inf"))
    rank = ranks(exact, number, there, C)
    shown = exact
    if L2:
        shown = tl.where(there, -exact, float("inf"))
    tl.store(values + query * k + rank, shown.to(tl.float32), mask=rank < k)
    tl.store(numbers + query * k + rank, tl.where(there, number, -1), mask=rank < k)
    if settled is not None:
        # The k-th score, in the scan's measure; there may be fewer than k rows in the tiles, and then none outside.
        worst = tl.min(tl.where((rank < k) & there, exact, float("inf")), 0)
        filled = tl.sum((there & (rank < k)).to(tl.int32), 0) == k
        outside = tl.load(bound + query).to(tl.float64)
        if L2:
            q2 = tl.zeros([CHUNK], tl.float64)
            for first in tl.static_range(0, DEPTH, CHUNK):
                d = first + tl.arange(0, CHUNK)
                q = tl.load(queries + d, mask=d < DEPTH, other=0).to(tl.float64)
                q2 += q * q
            outside -= tl.sum(q2, 0)  # 2·q·x - |x|² = |q|² - |q - x|²
        sure = (outside == float("-inf")) | (filled & (outside + tl.load(error + query) < worst))
        tl.store(settled + query, sure.to(tl.uint8))
