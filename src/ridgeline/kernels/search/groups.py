"""The best score of each group of tiles, kept by the programs that scan them: then nobody reads all tiles again.

Tile t belongs to group t modulo the number of groups, so that neighbours, which are often alike, are in different ones.
A group's best is a whole number that orders like the score; whoever has used them sets them back for the next scan.

    python -m pytest tests/kernels/test_search_short.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ridgeline.kernels.search.keys import LAST
from ridgeline.kernels.search.threshold import least_of, put

FEWEST_TILES = 4096  # with fewer, all of them are soon looked at
MOST = 4096  # groups: as many as one program reads at once
LOWEST = tl.constexpr(-0x7F800001)  # the number of -inf


def groups_for(tiles: int, fewest: int) -> int:
    """How many groups: a power of two, with fewer tiles in a group than there are groups; 0 where they do not pay."""
    if tiles < FEWEST_TILES:
        return 0
    size: int = triton.next_power_of_2(4 * int(tiles**0.5))
    return max(fewest, min(MOST, size))


def made(groups: int, device: torch.device) -> torch.Tensor | None:
    return torch.full((groups,), LOWEST.value, dtype=torch.int32, device=device) if groups else None


@triton.jit
def join(groups, tile, best, GROUPS: tl.constexpr):
    """Tell the tile's group of its best score."""
    best = tl.where(
        best > float("-inf"), best + 0.0, float("-inf")
    )  # one zero, and what is no number counts for nothing
    bits = best.to(tl.int32, bitcast=True)
    tl.atomic_max(groups + tile % GROUPS, bits ^ ((bits >> 31) & LAST), sem="relaxed")


@triton.jit
def tiles_of_best(
    groups, maxima, tiles, found, wanted, GROUPS: tl.constexpr, EACH: tl.constexpr, LINES: tl.constexpr,
    ROOM: tl.constexpr,
):  # fmt: skip
    """Writes to found [ROOM] the tiles in which the best `wanted` rows are; the score those reach, and how many the
    tiles are: more than ROOM where found does not hold them. found [ROOM, 2 · ROOM) is used too. Sets groups back."""
    spread = tl.arange(0, GROUPS // LINES)[:, None] * LINES + tl.arange(0, LINES)[None, :]
    least = least_of(tl.max(scores_of(tl.load(groups + spread)), 0), wanted)
    group = tl.arange(0, GROUPS)
    score = scores_of(tl.load(groups + group))
    picked = put(found + ROOM, 0, group, (score >= least) & (score > float("-inf")), ROOM)
    tl.debug_barrier()
    tl.store(groups + group, tl.full([GROUPS], LOWEST, tl.int32))
    count = picked
    if picked <= ROOM:
        at = tl.arange(0, ROOM * EACH)
        slot = at % ROOM
        tile = tl.load(found + ROOM + slot, mask=slot < picked, other=tiles) + (at // ROOM) * GROUPS
        best = tl.load(maxima + tile, mask=tile < tiles, other=float("-inf"))
        count = put(found, 0, tile, (best >= least) & (best > float("-inf")), ROOM)
        tl.debug_barrier()
    return least, count


@triton.jit
def scores_of(number):
    return (number ^ ((number >> 31) & LAST)).to(tl.float32, bitcast=True)
