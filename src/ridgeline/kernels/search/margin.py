"""All rows within a margin of the best ones, by their finer values: many programs look, the last one ranks.

Scores of a scan that reads less than it could (`search_sketch`) say which rows may be among the best: those that reach
the wanted-th score, less a margin. Every program takes each so-manieth tile, neighbours being in different ones,
computes what it finds there in float64 and adds it to a list. Whoever ends last, which a counter tells, ranks the list.
Where it is too long the answer is left open and the whole codes are scanned by those who come next: `done` tells them.

    python -m pytest tests/kernels/test_search_margin.py
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ridgeline.kernels.launch import direct
from ridgeline.kernels.search.finish import lines, room
from ridgeline.kernels.search.groups import LOWEST, scores_of
from ridgeline.kernels.search.scan import ROUNDED
from ridgeline.kernels.search.settle import exact_of
from ridgeline.kernels.search.threshold import least_of, put

PROGRAMS = 128  # at most; all of them under way at once
EACH = 64  # tiles that a program is worth, at least
TILES = 256  # looked at at a time
SLOTS = 8  # tiles with something in them, at a time
SOME = 8  # rows in float64 at a time
DEEP = 128  # elements of a row at a time
LONGEST = 1024  # list
WARPS = 4


def settle(
    queries: torch.Tensor,
    norms: torch.Tensor,
    rows: torch.Tensor,
    scores: torch.Tensor,
    maxima: torch.Tensor,
    groups: torch.Tensor,
    told: torch.Tensor,
    out: tuple[torch.Tensor, torch.Tensor],
    *,
    tile: int,
    wanted: int,
    metric: str = "ip",
    ids: torch.Tensor | None = None,
    early: bool = False,
) -> torch.Tensor:
    """queries float32 [1, D], norms float64 [1], rows [N, D]; scores [1, tiles · tile], maxima [1, tiles or more] and
    groups of tiles as `search_sketch.scan` leaves them (groups are set back); told [3] with the margin → done int32
    [1]: 1 where out, float32 and int64 [1, k], is the answer, 0 where too many rows lie within the margin."""
    values, numbers = out
    tiles, device = scores.shape[1] // tile, queries.device
    k = values.shape[1]
    programs = max(1, min(PROGRAMS, triton.cdiv(tiles, EACH)))
    done = torch.zeros(1, dtype=torch.int32, device=device)
    given: tuple[Any, ...] = (
        queries, norms, rows, scores, maxima, groups, told, ids,
        torch.empty((programs, TILES), dtype=torch.int32, device=device),
        torch.empty((programs, SLOTS * tile), dtype=torch.int32, device=device),
        torch.empty(LONGEST, dtype=torch.int32, device=device),
        torch.empty(LONGEST, dtype=torch.float64, device=device),
        torch.empty(LONGEST, dtype=torch.int64, device=device),
        torch.zeros(2, dtype=torch.int32, device=device), done, values, numbers,
        tiles, k, wanted, rows.stride(0), queries.shape[1], tile, lines(wanted), len(groups), TILES, SLOTS, SOME,
        LONGEST, lines(k), room(k), min(DEEP, triton.next_power_of_2(queries.shape[1])), metric == "l2", early,
    )  # fmt: skip
    direct.launch(_margin, programs, *given, num_warps=WARPS, **ROUNDED)
    return done


@triton.jit(do_not_specialize=["tiles", "k", "wanted"])
def _margin(
    queries, norms, rows, scores, maxima, groups, told, ids, found, picked, kept, exacts, names, state, done, values,
    numbers, tiles, k, wanted, row_stride, DEPTH: tl.constexpr, TILE: tl.constexpr, LINES: tl.constexpr,
    GROUPS: tl.constexpr, TILES: tl.constexpr, SLOTS: tl.constexpr, SOME: tl.constexpr, LONGEST: tl.constexpr,
    FEW: tl.constexpr, ROOM: tl.constexpr, CHUNK: tl.constexpr, L2: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    found += program * TILES
    picked += program * SLOTS * TILE
    spread = tl.arange(0, GROUPS // LINES)[:, None] * LINES + tl.arange(0, LINES)[None, :]
    floor = least_of(tl.max(scores_of(tl.load(groups + spread)), 0), wanted) - tl.load(told + 2)
    norm = tl.load(norms)
    floor = tl.where(norm - norm == 0, floor, float("nan"))  # a query that is not finite has found nothing
    for begin in range(0, tl.cdiv(tiles, programs), TILES):
        tile = (begin + tl.arange(0, TILES)) * programs + program
        best = tl.load(maxima + tile, mask=tile < tiles, other=float("-inf"))
        looked = put(found, 0, tile, (best >= floor) & (best > float("-inf")), TILES)
        tl.debug_barrier()
        for slots in range(0, looked, SLOTS):
            at = tl.arange(0, SLOTS * TILE)
            owner = tl.load(found + slots + at // TILE, mask=slots + at // TILE < looked, other=-1)
            score = tl.load(scores + owner * TILE + at % TILE, mask=owner >= 0, other=float("-inf"))
            row = (at % TILE) * tiles + owner
            left = put(picked, 0, row, (score >= floor) & (score > float("-inf")), SLOTS * TILE)
            tl.debug_barrier()
            for some in range(0, left, SOME):
                slot = some + tl.arange(0, SOME)
                there = slot < left
                near = tl.load(picked + slot, mask=there, other=0)
                exact = exact_of(queries, rows, near, there, None, None, None, row_stride, DEPTH, CHUNK, SOME, L2)
                name = near.to(tl.int64)
                if ids is not None:
                    name = tl.load(ids + near, mask=there, other=0).to(tl.int64)
                place = tl.atomic_add(state, tl.minimum(left - some, SOME), sem="relaxed") + tl.arange(0, SOME)
                tl.store(exacts + place, exact, mask=there & (place < LONGEST))
                tl.store(names + place, name, mask=there & (place < LONGEST))
            tl.debug_barrier()
    tl.debug_barrier()  # all threads have written before one of them says so
    before = tl.atomic_add(state + 1, 1, sem="acq_rel", scope="gpu")
    if before == programs - 1:
        many = tl.load(state, cache_modifier=".cg")
        tl.debug_barrier()
        tl.store(state, 0)
        tl.store(state + 1, 0)
        tl.store(groups + tl.arange(0, GROUPS), tl.full([GROUPS], LOWEST, tl.int32))
        tl.store(done, (many <= LONGEST).to(tl.int32))
        if many <= LONGEST:
            _rank(exacts, names, kept, norms, values, numbers, many, k, FEW, ROOM, LONGEST, L2)


@triton.jit
def _rank(
    exacts, names, found, norms, values, numbers, many, k, LINES: tl.constexpr, ROOM: tl.constexpr,
    LONGEST: tl.constexpr, L2: tl.constexpr,
):  # fmt: skip
    """The best k of the list, by score and then by name; the rest of k with nothing."""
    spread = tl.arange(0, LONGEST // LINES)[:, None] * LINES + tl.arange(0, LINES)[None, :]
    line = tl.max(tl.load(exacts + spread, mask=spread < many, other=float("-inf")), 0)
    least = least_of(line, k)
    every = tl.arange(0, LONGEST)
    high = (tl.load(exacts + every, mask=every < many, other=float("-inf")) >= least) & (every < many)
    left = put(found, 0, every, high, LONGEST)
    tl.debug_barrier()
    for own in range(0, left, ROOM):  # once, but where many are equal
        slot = own + tl.arange(0, ROOM)
        at = tl.load(found + slot, mask=slot < left, other=0)
        exact = tl.load(exacts + at)
        name = tl.load(names + at)
        rank = tl.zeros([ROOM], tl.float32)  # whole numbers would be counted by way of memory
        for others in range(0, left, ROOM):
            there = others + tl.arange(0, ROOM) < left
            other = tl.load(found + others + tl.arange(0, ROOM), mask=there, other=0)
            score = tl.load(exacts + other, mask=there, other=float("-inf"))
            called = tl.load(names + other)
            ahead = score[None, :] > exact[:, None]
            tied = (score[None, :] == exact[:, None]) & (called[None, :] < name[:, None]) & there[None, :]
            rank += tl.sum(tl.where(ahead | tied, 1.0, 0.0), 1)
        place = rank.to(tl.int32)
        shown = exact
        if L2:
            shown = -exact
        tl.store(values + place, shown.to(tl.float32), mask=(slot < left) & (place < k))
        tl.store(numbers + place, name, mask=(slot < left) & (place < k))
    far = float("-inf")
    if L2:
        far = float("inf")
    norm = tl.load(norms)
    nothing = tl.where(norm - norm == 0, far, float("nan"))
    for first in range(many, k, ROOM):
        slot = first + tl.arange(0, ROOM)
        tl.store(values + slot, nothing + tl.zeros([ROOM], tl.float32), mask=slot < k)
        tl.store(numbers + slot, tl.full([ROOM], -1, tl.int64), mask=slot < k)
