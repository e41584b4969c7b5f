"""A score and where it stands as one 64-bit integer: the larger the key, the better, and of equal scores the lower
place is the larger key. So "best, ties to the lower row" is a plain maximum, and a sort needs no second column.

    python -m pytest tests/kernels/test_search_exact.py
"""

from __future__ import annotations

import triton
import triton.language as tl

NOTHING = tl.constexpr(-(1 << 63))  # under every key
LAST = tl.constexpr(0x7FFFFFFF)


@triton.jit
def key_of(score, place):
    """score float32, place int32 >= 0 → int64. Float bits as a signed integer order like the floats once the
    magnitude of negative ones is flipped; adding zero makes -0.0 and 0.0 one."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & LAST)
    return (bits.to(tl.int64) << 32) | (place ^ LAST).to(tl.int64)


@triton.jit
def place_of(key):
    """The place of a key; -1 of NOTHING."""
    return tl.where(key == NOTHING, -1, (key & 0xFFFFFFFF).to(tl.int32) ^ LAST)


@triton.jit
def score_of(key):
    """The score of a key; -inf of NOTHING."""
    bits = (key >> 32).to(tl.int32)
    bits = bits ^ ((bits >> 31) & LAST)
    return tl.where(key == NOTHING, float("-inf"), bits.to(tl.float32, bitcast=True))


@triton.jit
def merged(kept, keys, K: tl.constexpr):
    """The best K of kept [K] and keys [M], best first. Where nothing new is better, as in most rounds once the good
    places have been seen, the sort is left out."""
    if tl.max(keys, 0) > tl.min(kept, 0):
        kept = tl.topk(tl.reshape(tl.join(kept, tl.topk(keys, K)), [2 * K]), K)
    return kept


@triton.jit
def gathered(scratch, keys, keep, ROOM: tl.constexpr):
    """Write the keys [M] that are to be kept one after the other into scratch [ROOM]; how many there are, which may
    be more than ROOM. Seen by the whole program when it returns."""
    flag = keep.to(tl.int32)
    at = tl.cumsum(flag, 0) - flag
    tl.debug_barrier()  # what stood there before has been read
    tl.store(scratch + at, keys, mask=keep & (at < ROOM))
    tl.debug_barrier()
    return tl.sum(flag, 0)
