"""From the best score of each tile to the best tiles: two small kernels, nothing sorted that cannot matter.

The k best rows lie in the k tiles with the best maxima, and those in the k groups of GROUP tiles with the best
maxima. `coarse` finds the maxima of groups, `pick` goes down from groups to tiles, and `search_settle` on to rows.
Going down, each of k parents has a child as good as the worst parent: what is under that is left out before
anything is sorted. Ties go to the lower place all the way, so that of a thousand equal rows the first k come out.

Sizes and strides that no load depends on are not specialised (here and in the other search kernels): a sort takes
seconds to compile, and an index that grows would ask for it again and again.

    python -m pytest tests/kernels/test_search_exact.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ridgeline.kernels.search.keys import NOTHING, gathered, key_of, merged, place_of, score_of

GROUP = 128  # tiles per group, at most
AT_ONCE = 512  # keys sorted at a time where too many are left
ROOM = 4  # times as many as wanted may be left by the threshold, before they are sorted round by round
GROUPS_PER_PROGRAM = 8


def group_for(tiles: int, wanted: int) -> int:
    """Tiles per group: as many as leave several times more groups than are wanted."""
    size = GROUP
    while size > 4 and tiles < 4 * wanted * size:
        size //= 2
    return size


def coarse(
    maxima: torch.Tensor, group: int, done: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """maxima [Q, T] → the maximum of each `group` of them [Q, ceil(T / group)]; rows of `done` queries are left."""
    many, tiles = maxima.shape
    groups = triton.cdiv(tiles, group)
    if out is None:
        out = torch.empty((many, groups), dtype=torch.float32, device=maxima.device)
    if many and groups:
        _coarse[(triton.cdiv(groups, GROUPS_PER_PROGRAM), many)](
            maxima, out, done, tiles, groups, maxima.stride(0), out.stride(0), group, GROUPS_PER_PROGRAM, num_warps=4
        )
    return out


def pick(
    maxima: torch.Tensor,
    groups: torch.Tensor,
    group: int,
    tiles: int,
    done: torch.Tensor | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """maxima [Q, T], groups [Q, ceil(T / group)] → the best `tiles` (a power of two) of each query, best first,
    int32 [Q, tiles] with -1 where there are no more, and the last one's maximum [Q]: no tile left out has a better."""
    many = maxima.shape[0]
    found, bound = out or (
        torch.empty((many, tiles), dtype=torch.int32, device=maxima.device),
        torch.empty(many, dtype=torch.float32, device=maxima.device),
    )
    if many:
        _pick[(many,)](
            maxima, groups, found, bound, done, scratch(many, tiles, maxima), maxima.shape[1], groups.shape[1],
            maxima.stride(0), groups.stride(0), tiles, group, _first(groups.shape[1], tiles),
            max(1, min(tiles, max(AT_ONCE, tiles) // group)), room(tiles), num_warps=warps_for(tiles),
        )  # fmt: skip
    return found, bound


def picked(
    maxima: torch.Tensor,
    tiles: int,
    done: torch.Tensor | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`coarse` and `pick` in one."""
    group = group_for(maxima.shape[1], tiles)
    return pick(maxima, coarse(maxima, group, done), group, tiles, done, out)


def warps_for(wanted: int) -> int:
    return 8 if wanted <= 32 else 16


def room(wanted: int) -> int:
    return max(64, ROOM * wanted)


def scratch(many: int, wanted: int, like: torch.Tensor) -> torch.Tensor:
    return torch.empty((many, room(wanted)), dtype=torch.int64, device=like.device)


def _first(groups: int, tiles: int) -> int:
    """How many groups are sorted at a time: all, as long as that is not much."""
    size: int = max(tiles, min(1024, triton.next_power_of_2(max(1, groups))))
    return size


@triton.jit(do_not_specialize=["tiles", "groups", "maxima_stride", "out_stride"])
def _coarse(
    maxima, out, done, tiles, groups, maxima_stride, out_stride, GROUP: tl.constexpr, STEP: tl.constexpr
):  # fmt: skip
    query = tl.program_id(1).to(tl.int64)
    if done is not None:  # noqa: SIM102 (both at once would load what is not there)
        if tl.load(done + query) != 0:
            return
    group = tl.program_id(0) * STEP + tl.arange(0, STEP)
    tile = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    best = tl.load(maxima + query * maxima_stride + tile, mask=tile < tiles, other=float("-inf"))
    tl.store(out + query * out_stride + group, tl.max(best, 1), mask=group < groups)


@triton.jit
def _under(parents, values, count, FAN: tl.constexpr):
    """Scores of the children of parents [P] (-1: none), FAN each, as [P, FAN], and their places."""
    child = parents[:, None] * FAN + tl.arange(0, FAN)[None, :]
    there = (parents >= 0)[:, None] & (child < count)
    return tl.load(values + child, mask=there, other=float("-inf")), child


@triton.jit
def keys(score, place):
    """[A, B] → keys [A · B]."""
    keys = tl.where(score > float("-inf"), key_of(score, place), NOTHING)
    return tl.reshape(keys, [score.shape[0] * score.shape[1]])


@triton.jit
def few(scratch, score, place, K: tl.constexpr, ROOM: tl.constexpr):
    """Keys that can be among the best K of score [P, F], when there are P >= K lines: each line has one as good as
    the worst line's best, so nothing under that can matter. Written to scratch; their number."""
    least = tl.min(tl.max(score, 1), 0)
    keep = tl.reshape((score >= least) & (score > float("-inf")), [score.shape[0] * score.shape[1]])
    return gathered(scratch, keys(score, place), keep, ROOM)


@triton.jit
def best_of(scratch, count, K: tl.constexpr, ROOM: tl.constexpr):
    slot = tl.arange(0, ROOM)
    return tl.topk(tl.load(scratch + slot, mask=slot < count, other=NOTHING), K)


@triton.jit(do_not_specialize=["tiles", "group_count", "maxima_stride", "group_stride"])
def _pick(
    maxima, groups, found, bound, done, scratch, tiles, group_count, maxima_stride, group_stride, K: tl.constexpr,
    GROUP: tl.constexpr, FIRST: tl.constexpr, STEP: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    if done is not None:  # noqa: SIM102 (both at once would load what is not there)
        if tl.load(done + query) != 0:
            return
    maxima += query * maxima_stride
    groups += query * group_stride
    found += query * K
    scratch += query * ROOM
    best = tl.full([K], NOTHING, tl.int64)
    for begin in range(0, group_count, FIRST):
        group = begin + tl.arange(0, FIRST)
        value = tl.load(groups + group, mask=group < group_count, other=float("-inf"))
        best = merged(best, tl.where(value > float("-inf"), key_of(value, group), NOTHING), K)
    parents = place_of(best)
    score, child = _under(parents, maxima, tiles, GROUP)
    left = few(scratch, score, child, K, ROOM)
    if left <= ROOM:
        kept = best_of(scratch, left, K, ROOM)
    else:
        # Rows in an order that puts like beside like, or many equal ones. Through memory, a few parents a round:
        # they come best first, so that most rounds find nothing new and sort nothing.
        tl.store(found + tl.arange(0, K), parents)
        tl.debug_barrier()
        kept = tl.full([K], NOTHING, tl.int64)
        for begin in range(0, K, STEP):
            some, at = _under(tl.load(found + begin + tl.arange(0, STEP)), maxima, tiles, GROUP)
            kept = merged(kept, keys(some, at), K)
        tl.debug_barrier()
    tl.store(found + tl.arange(0, K), place_of(kept))
    tl.store(bound + query, score_of(tl.min(kept, 0)))
