"""The few best of many without a sort: a threshold that at least so many reach, and then those that reach it.

Scores are dealt out to LINES lines, neighbours to different ones. The lines' best are different scores, so the C-th
best of them is reached by C scores or more; with four times as many lines as are wanted, hardly by more than C (for
scores in no order, C of 4·C lines hold 1.15·C of the best). Where more reach it than there is room for, as among many
equal ones, halving finds a threshold that fits: keys of score and place are never equal.

    python -m pytest tests/kernels/test_search_short.py
"""

from __future__ import annotations

import triton
import triton.language as tl

from ridgeline.kernels.search.keys import NOTHING, key_of


@triton.jit
def least_of(line, wanted):
    """The wanted-th largest of line [L]; -inf where there are fewer."""
    at = tl.arange(0, line.shape[0])
    ahead = line[None, :] > line[:, None]
    ahead = ahead | ((line[None, :] == line[:, None]) & (at[None, :] < at[:, None]))
    rank = tl.sum(tl.where(ahead, 1.0, 0.0), 1)  # whole numbers would be counted by way of memory
    return tl.max(tl.where(rank == wanted - 1, line, float("-inf")), 0)


@triton.jit
def keyed(score, place):
    return tl.where(score > float("-inf"), key_of(score, place), NOTHING)


@triton.jit
def put(scratch, count, given, keep, ROOM: tl.constexpr):
    """Write what is kept of given [M] behind the `count` that are there already; how many there are then, which may be
    more than ROOM. For the whole program to see after a barrier."""
    flag = keep.to(tl.int32)
    at = count + tl.cumsum(flag, 0) - flag
    tl.store(scratch + at, given, mask=keep & (at < ROOM))
    return count + tl.sum(flag, 0)


@triton.jit
def narrowed(keys, wanted, ROOM: tl.constexpr):
    """A key that `wanted` to ROOM of keys [M] reach, where more than ROOM are there."""
    low = tl.min(tl.where(keys == NOTHING, 0x7FFFFFFFFFFFFFFF, keys), 0)
    high = tl.max(keys, 0) + 1
    reached = ROOM + 1
    while reached > ROOM:
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        enough = tl.sum((keys >= middle).to(tl.int32), 0)
        if enough >= wanted:
            low = middle
            reached = enough
        else:
            high = middle
    return low


@triton.jit
def narrowed_in(values, count, least, wanted, ROOM: tl.constexpr, STEP: tl.constexpr):
    """The same of the keys of values [count] in memory, of which more than ROOM reach `least`."""
    low = key_of(least, tl.full([], 0x7FFFFFFF, tl.int32))
    high = low
    for begin in range(0, count, STEP):
        at = begin + tl.arange(0, STEP)
        high = tl.maximum(high, tl.max(keyed(tl.load(values + at, mask=at < count, other=float("-inf")), at), 0) + 1)
    reached = ROOM + 1
    while reached > ROOM:
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        enough = 0
        for begin in range(0, count, STEP):
            at = begin + tl.arange(0, STEP)
            keys = keyed(tl.load(values + at, mask=at < count, other=float("-inf")), at)
            enough += tl.sum((keys >= middle).to(tl.int32), 0)
        if enough >= wanted:
            low = middle
            reached = enough
        else:
            high = middle
    return low
