"""From the best score of each tile to the k best rows of one query, in one launch of one program, without a sort.

The tiles whose best reaches a threshold (`search_few`), then the rows in them that do, then float64 sums over the
stored values, which are ranked by comparing all with all. A query that is not finite has found nothing.

    python -m pytest tests/kernels/test_search_short.py
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ridgeline.kernels.launch import direct
from ridgeline.kernels.search.groups import tiles_of_best
from ridgeline.kernels.search.keys import NOTHING, place_of
from ridgeline.kernels.search.scan import ROUNDED
from ridgeline.kernels.search.settle import exact_of, ranks
from ridgeline.kernels.search.threshold import keyed, least_of, narrowed, narrowed_in, put

DEEP = 128  # elements of a row at a time in float64
MOST = 64  # wanted at most
STEPS = (1024, 4096, 16384)  # tiles at a time
WHOLE = (1024, 4096)  # rows that are looked at all at once, without tiles
WARPS = 8
FEWEST_LINES = 64


def room(wanted: int) -> int:
    """How many may reach the threshold before it is narrowed: a power of two."""
    size: int = 2 * triton.next_power_of_2(wanted)
    return size


def lines(wanted: int) -> int:
    size: int = max(FEWEST_LINES, 4 * triton.next_power_of_2(wanted))
    return size


def step_for(count: int, wanted: int, steps: tuple[int, ...]) -> int:
    """How many of `count` scores are looked at at once."""
    return max(lines(wanted), next((step for step in steps if step >= count), steps[-1]))


def finish(
    queries: torch.Tensor,
    norms: torch.Tensor,
    rows: torch.Tensor,
    scores: torch.Tensor,
    maxima: torch.Tensor,
    out: tuple[torch.Tensor, torch.Tensor],
    *,
    tile: int,
    wanted: int,
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
    """queries float32 [1, D], norms float64 [1], scores and maxima [1, T] of its tiles → out: float32 and int64 [1, k].

    As of `search_settle.settle`; with `starts` and `ends` scores stand by tile, else by row. At least the best
    `wanted` rows, k or more of them, are computed in float64. groups: as the scan has left them; they are set back.
    done int32 [1]: where it is not 0 the answer is there already.
    """
    values, numbers = out
    tiles, k = maxima.shape[1], values.shape[1]
    many = 0 if groups is None else len(groups)
    whole = step_for(tiles * tile, wanted, WHOLE) if tiles * tile <= WHOLE[-1] else 0
    given: tuple[Any, ...] = (
        queries, norms, rows, scores, maxima, starts, ends, ids, step, middle, places,
        groups, done, torch.empty(2 * room(wanted), dtype=torch.int32, device=queries.device),
        torch.empty(room(wanted), dtype=torch.int64, device=queries.device), values, numbers,
        scores.shape[1] if starts is None else 0, tiles, k, wanted, rows.stride(0), queries.shape[1], tile,
        lines(wanted), step_for(tiles, wanted, STEPS), whole, room(wanted), many,
        triton.next_power_of_2(triton.cdiv(tiles, many)) if many else 0,
        min(DEEP, triton.next_power_of_2(queries.shape[1])), metric == "l2", early,
    )  # fmt: skip
    direct.launch(_finish, 1, *given, num_warps=WARPS, **ROUNDED)


@triton.jit
def _scores_at(at, tile, starts, ends, scores, count, TILE: tl.constexpr):
    """Scores and rows at places `at` of some tiles (-1: none)."""
    local = at % TILE
    there = tile >= 0
    if starts is None:
        row = tile * TILE + local
        score = tl.load(scores + row, mask=there & (row < count), other=float("-inf"))
    else:
        row = tl.load(starts + tile, mask=there, other=0) + local
        inside = there & (row < tl.load(ends + tile, mask=there, other=0))
        score = tl.load(scores + tile * TILE + local, mask=inside, other=float("-inf"))
    return score, row


@triton.jit
def _best_tiles(maxima, tiles, found, wanted, LINES: tl.constexpr, STEP: tl.constexpr, ROOM: tl.constexpr):
    """Writes to found [ROOM] the tiles in which the best `wanted` rows are; the score those reach, and how many the
    tiles are, which may be more than ROOM."""
    line = tl.full([LINES], float("-inf"), tl.float32)
    for begin in range(0, tiles, STEP):
        at = begin + tl.arange(0, STEP // LINES)[:, None] * LINES + tl.arange(0, LINES)[None, :]
        line = tl.maximum(line, tl.max(tl.load(maxima + at, mask=at < tiles, other=float("-inf")), 0))
    least = least_of(line, wanted)
    count = 0
    for begin in range(0, tiles, STEP):
        at = begin + tl.arange(0, STEP)
        score = tl.load(maxima + at, mask=at < tiles, other=float("-inf"))
        count = put(found, count, at, (score >= least) & (score > float("-inf")), ROOM)
    tl.debug_barrier()
    return least, count


@triton.jit
def _narrowed_tiles(maxima, tiles, least, found, wanted, STEP: tl.constexpr, ROOM: tl.constexpr):
    """Writes to `found` no more than there is room for, where more tiles reach `least`; how many."""
    SHORT: tl.constexpr = STEP if STEP <= 1024 else STEP // 4  # keys take twice the room of scores
    low = narrowed_in(maxima, tiles, least, wanted, ROOM, SHORT)
    tl.debug_barrier()
    count = 0
    for begin in range(0, tiles, SHORT):
        some = begin + tl.arange(0, SHORT)
        keys = keyed(tl.load(maxima + some, mask=some < tiles, other=float("-inf")), some)
        count = put(found, count, some, keys >= low, ROOM)
    tl.debug_barrier()
    return count


@triton.jit(do_not_specialize=["count", "k", "wanted"])
def _finish(
    queries, norms, rows, scores, maxima, starts, ends, ids, step, middle, places, groups, done, found,
    scratch, values, numbers, count, tiles, k, wanted, row_stride, DEPTH: tl.constexpr, TILE: tl.constexpr,
    LINES: tl.constexpr, STEP: tl.constexpr, WHOLE: tl.constexpr, ROOM: tl.constexpr, GROUPS: tl.constexpr,
    EACH: tl.constexpr, CHUNK: tl.constexpr, L2: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_wait()
    if done is not None:  # noqa: SIM102 (both at once would load what is not there)
        if tl.load(done) != 0:
            return
    if WHOLE:
        # So few rows that all of them are looked at at once.
        spread = tl.arange(0, WHOLE // LINES)[:, None] * LINES + tl.arange(0, LINES)[None, :]
        owner = tl.where(spread < tiles * TILE, spread // TILE, -1)
        dealt, _ = _scores_at(spread, owner, starts, ends, scores, count, TILE)
        least = least_of(tl.max(dealt, 0), wanted)
        at = tl.arange(0, WHOLE)
        tile = tl.where(at < tiles * TILE, at // TILE, -1)
    else:
        if groups is None:
            least, picked = _best_tiles(maxima, tiles, found, wanted, LINES, STEP, ROOM)
        else:
            least, picked = tiles_of_best(groups, maxima, tiles, found, wanted, GROUPS, EACH, LINES, ROOM)
        if picked > ROOM:
            picked = _narrowed_tiles(maxima, tiles, least, found, wanted, STEP, ROOM)
        at = tl.arange(0, ROOM * TILE)
        tile = tl.load(found + at // TILE, mask=at // TILE < picked, other=-1)
    score, row = _scores_at(at, tile, starts, ends, scores, count, TILE)
    keys = keyed(score, row)
    left = put(scratch, 0, keys, (score >= least) & (score > float("-inf")), ROOM)
    if left > ROOM:
        low = narrowed(tl.where(score >= least, keys, NOTHING), wanted, ROOM)
        tl.debug_barrier()
        left = put(scratch, 0, keys, keys >= low, ROOM)
    tl.debug_barrier()
    slot = tl.arange(0, ROOM)
    row = place_of(tl.load(scratch + slot, mask=slot < left, other=NOTHING))
    norm = tl.load(norms)
    fine = norm - norm == 0
    row = tl.where(fine, row, -1)
    there = row >= 0
    near = tl.where(there, row, 0)
    exact = exact_of(queries, rows, near, there, places, step, middle, row_stride, DEPTH, CHUNK, ROOM, L2)
    number = near.to(tl.int64)
    if ids is not None:
        number = tl.load(ids + near, mask=there, other=0).to(tl.int64)
    rank = ranks(exact, number, there, ROOM)
    shown = exact
    if L2:
        shown = -exact
    far = float("-inf")
    if L2:
        far = float("inf")
    shown = tl.where(fine, tl.where(there, shown.to(tl.float32), far), float("nan"))
    tl.store(values + rank, shown, mask=rank < k)
    tl.store(numbers + rank, tl.where(there, number, -1), mask=rank < k)
