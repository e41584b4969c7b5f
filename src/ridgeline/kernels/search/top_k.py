"""Select the best scores on the GPU: keys, top k by sorting, top k by a threshold, and groups of tiles.

A scan writes the best score of each tile of rows. The k best rows lie in the k tiles with the best maxima, and those
tiles lie in the k groups of tiles with the best maxima. `reduce_groups` computes the maxima of groups,
`select_tiles_in_groups` goes from groups to tiles, and `rescore.py` goes from tiles to rows. On the way down each of
the k parents has a child that is as good as the worst parent, so everything below that is dropped before the sort.
Ties go to the lower position at every level: of a thousand equal rows the first k are returned.

Sizes and strides that no load depends on are not specialised (in all search kernels): a sort takes seconds to
compile, and a growing index would compile it again and again.

    python -m pytest tests/kernels/test_search_exact.py tests/kernels/test_search_one_query.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

MAX_GROUP_SIZE = 128  # tiles per group, at most
SORT_BLOCK = 512  # keys per sort if too many candidates are left
CAPACITY_FACTOR = 4  # times the candidates may pass the threshold before they are sorted in rounds
GROUPS_PER_PROGRAM = 8


def choose_group_size(tiles: int, candidate_count: int) -> int:
    """Tiles per group: the largest size that leaves several times more groups than candidates."""
    size = MAX_GROUP_SIZE
    while size > 4 and tiles < 4 * candidate_count * size:
        size //= 2
    return size


def reduce_groups(
    maxima: torch.Tensor, group: int, done: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """maxima [Q, T] → the maximum of each `group` tiles, [Q, ceil(T / group)]; `done` queries are skipped."""
    query_count, tiles = maxima.shape
    groups = triton.cdiv(tiles, group)
    if out is None:
        out = torch.empty((query_count, groups), dtype=torch.float32, device=maxima.device)
    if query_count and groups:
        _reduce_groups_kernel[(triton.cdiv(groups, GROUPS_PER_PROGRAM), query_count)](
            maxima, out, done, tiles, groups, maxima.stride(0), out.stride(0), group, GROUPS_PER_PROGRAM, num_warps=4
        )
    return out


def select_tiles_in_groups(
    maxima: torch.Tensor,
    groups: torch.Tensor,
    group: int,
    tiles: int,
    done: torch.Tensor | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Select the best `tiles` (a power of two) of each query from maxima [Q, T] and groups [Q, ceil(T / group)].

    Returns the tiles int32 [Q, tiles], best first, padded with -1, and the maximum of the last one [Q]: no other tile
    has a better maximum.
    """
    query_count = maxima.shape[0]
    picked_tiles, bound = out or (
        torch.empty((query_count, tiles), dtype=torch.int32, device=maxima.device),
        torch.empty(query_count, dtype=torch.float32, device=maxima.device),
    )
    if query_count:
        _select_tiles_kernel[(query_count,)](
            maxima, groups, picked_tiles, bound, done, allocate_scratch(query_count, tiles, maxima), maxima.shape[1],
            groups.shape[1], maxima.stride(0), groups.stride(0), tiles, group,
            _choose_groups_per_sort(groups.shape[1], tiles), max(1, min(tiles, max(SORT_BLOCK, tiles) // group)),
            choose_sort_capacity(tiles), num_warps=choose_warps(tiles),
        )  # fmt: skip
    return picked_tiles, bound


def select_tiles(
    maxima: torch.Tensor,
    tiles: int,
    done: torch.Tensor | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `reduce_groups` and `select_tiles_in_groups`."""
    group = choose_group_size(maxima.shape[1], tiles)
    return select_tiles_in_groups(maxima, reduce_groups(maxima, group, done), group, tiles, done, out)


def choose_warps(candidate_count: int) -> int:
    return 8 if candidate_count <= 32 else 16


def choose_sort_capacity(candidate_count: int) -> int:
    return max(64, CAPACITY_FACTOR * candidate_count)


def allocate_scratch(query_count: int, candidate_count: int, like: torch.Tensor) -> torch.Tensor:
    return torch.empty((query_count, choose_sort_capacity(candidate_count)), dtype=torch.int64, device=like.device)


def _choose_groups_per_sort(groups: int, tiles: int) -> int:
    """Sort all groups at once up to 1024."""
    size: int = max(tiles, min(1024, triton.next_power_of_2(max(1, groups))))
    return size


@triton.jit(do_not_specialize=["tiles", "groups", "maxima_stride", "out_stride"])
def _reduce_groups_kernel(
    maxima, out, done, tiles, groups, maxima_stride, out_stride, GROUP: tl.constexpr, STEP: tl.constexpr
):  # fmt: skip
    query = tl.program_id(1).to(tl.int64)
    if done is not None:  # noqa: SIM102 (one condition would load a null pointer)
        if tl.load(done + query) != 0:
            return
    group = tl.program_id(0) * STEP + tl.arange(0, STEP)
    tile = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    best = tl.load(maxima + query * maxima_stride + tile, mask=tile < tiles, other=float("-inf"))
    tl.store(out + query * out_stride + group, tl.max(best, 1), mask=group < groups)


@triton.jit
def _load_children(parents, values, count, FAN: tl.constexpr):
    """Load the scores of the children of parents [P] (-1: no parent), FAN each, as [P, FAN], and their positions."""
    child = parents[:, None] * FAN + tl.arange(0, FAN)[None, :]
    valid = (parents >= 0)[:, None] & (child < count)
    return tl.load(values + child, mask=valid, other=float("-inf")), child


@triton.jit
def pack_key_matrix(score, position):
    """score and position [A, B] → keys [A · B]."""
    keys = tl.where(score > float("-inf"), pack_key(score, position), EMPTY_KEY)
    return tl.reshape(keys, [score.shape[0] * score.shape[1]])


@triton.jit
def collect_candidates(scratch, score, position, K: tl.constexpr, CAPACITY: tl.constexpr):
    """Write to scratch the keys that can be among the best K of score [P, F], P >= K; return their number.

    Each of the P lines has a score as good as the worst maximum of a line, so lower scores cannot be among the best K.
    """
    least = tl.min(tl.max(score, 1), 0)
    keep = tl.reshape((score >= least) & (score > float("-inf")), [score.shape[0] * score.shape[1]])
    return write_selected_keys(scratch, pack_key_matrix(score, position), keep, CAPACITY)


@triton.jit
def sort_candidates(scratch, count, K: tl.constexpr, CAPACITY: tl.constexpr):
    slot = tl.arange(0, CAPACITY)
    return tl.topk(tl.load(scratch + slot, mask=slot < count, other=EMPTY_KEY), K)


@triton.jit(do_not_specialize=["tiles", "group_count", "maxima_stride", "group_stride"])
def _select_tiles_kernel(
    maxima, groups, picked_tiles, bound, done, scratch, tiles, group_count, maxima_stride, group_stride,
    K: tl.constexpr, GROUP: tl.constexpr, FIRST: tl.constexpr, STEP: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    if done is not None:  # noqa: SIM102 (one condition would load a null pointer)
        if tl.load(done + query) != 0:
            return
    maxima += query * maxima_stride
    groups += query * group_stride
    picked_tiles += query * K
    scratch += query * CAPACITY
    best = tl.full([K], EMPTY_KEY, tl.int64)
    for begin in range(0, group_count, FIRST):
        group = begin + tl.arange(0, FIRST)
        value = tl.load(groups + group, mask=group < group_count, other=float("-inf"))
        best = merge_top_k(best, tl.where(value > float("-inf"), pack_key(value, group), EMPTY_KEY), K)
    parents = unpack_position(best)
    score, child = _load_children(parents, maxima, tiles, GROUP)
    selected = collect_candidates(scratch, score, child, K, CAPACITY)
    if selected <= CAPACITY:
        top = sort_candidates(scratch, selected, K, CAPACITY)
    else:
        # Similar rows are neighbours, or many are equal. Go through memory, a few parents per round:
        # the best parents come first, so most rounds skip the sort.
        tl.store(picked_tiles + tl.arange(0, K), parents)
        tl.debug_barrier()
        top = tl.full([K], EMPTY_KEY, tl.int64)
        for begin in range(0, K, STEP):
            score_block, child_block = _load_children(
                tl.load(picked_tiles + begin + tl.arange(0, STEP)), maxima, tiles, GROUP
            )
            top = merge_top_k(top, pack_key_matrix(score_block, child_block), K)
        tl.debug_barrier()
    tl.store(picked_tiles + tl.arange(0, K), unpack_position(top))
    tl.store(bound + query, unpack_score(tl.min(top, 0)))


# Top k without a sort: find a threshold that at least C scores reach, then collect the scores that reach it.
#
# The scores are distributed over BUCKETS buckets, neighbours into different ones. The maxima of the buckets are
# different scores, so at least C scores reach the C-th largest maximum. With 4 · C buckets hardly more than C reach it
# (for scores in random order, C of 4 · C buckets hold 1.15 · C of the best). If more scores reach the threshold than
# the buffer holds, as among many equal ones, bisection finds a threshold that fits: keys of score and position are
# never equal.


@triton.jit
def find_nth_largest(values, n):
    """Return the n-th largest of values [L]; -inf if there are fewer."""
    position = tl.arange(0, values.shape[0])
    ahead = values[None, :] > values[:, None]
    ahead = ahead | ((values[None, :] == values[:, None]) & (position[None, :] < position[:, None]))
    rank = tl.sum(tl.where(ahead, 1.0, 0.0), 1)  # an int32 sum would go through shared memory
    return tl.max(tl.where(rank == n - 1, values, float("-inf")), 0)


@triton.jit
def pack_keys(score, position):
    return tl.where(score > float("-inf"), pack_key(score, position), EMPTY_KEY)


@triton.jit
def append_selected(scratch, count, values, keep, CAPACITY: tl.constexpr):
    """Append values [M] with `keep` to the `count` values in scratch; return the new number, which can exceed CAPACITY.

    The program sees them after a barrier.
    """
    flag = keep.to(tl.int32)
    slot = count + tl.cumsum(flag, 0) - flag
    tl.store(scratch + slot, values, mask=keep & (slot < CAPACITY))
    return count + tl.sum(flag, 0)


@triton.jit
def raise_threshold(keys, candidate_count, CAPACITY: tl.constexpr):
    """Return a key that at least `candidate_count` and at most CAPACITY of keys [M] reach, of which more than CAPACITY
    exist.
    """
    low = tl.min(tl.where(keys == EMPTY_KEY, 0x7FFFFFFFFFFFFFFF, keys), 0)
    high = tl.max(keys, 0) + 1
    reached = CAPACITY + 1
    while reached > CAPACITY:
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        enough = tl.sum((keys >= middle).to(tl.int32), 0)
        if enough >= candidate_count:
            low = middle
            reached = enough
        else:
            high = middle
    return low


@triton.jit
def raise_threshold_in_memory(values, count, least, candidate_count, CAPACITY: tl.constexpr, STEP: tl.constexpr):
    """Like `raise_threshold` for the keys of values [count] in memory, of which more than CAPACITY reach `least`."""
    low = pack_key(least, tl.full([], 0x7FFFFFFF, tl.int32))
    high = low
    for begin in range(0, count, STEP):
        position = begin + tl.arange(0, STEP)
        high = tl.maximum(
            high,
            tl.max(pack_keys(tl.load(values + position, mask=position < count, other=float("-inf")), position), 0) + 1,
        )
    reached = CAPACITY + 1
    while reached > CAPACITY:
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        enough = 0
        for begin in range(0, count, STEP):
            position = begin + tl.arange(0, STEP)
            keys = pack_keys(tl.load(values + position, mask=position < count, other=float("-inf")), position)
            enough += tl.sum((keys >= middle).to(tl.int32), 0)
        if enough >= candidate_count:
            low = middle
            reached = enough
        else:
            high = middle
    return low


# The best score of each group of tiles, written by the programs that scan them, so that no kernel reads all tiles
# again.
#
# Tile t belongs to group t modulo the number of groups: neighbouring tiles, which are often similar, are in different
# groups. The maximum of a group is stored as an integer that orders like the score. The kernel that reads the groups
# resets them for the next scan.


MIN_TILES_FOR_GROUPS = 4096  # reading fewer tiles is fast enough
MAX_GROUPS = 4096  # that one program reads at once
EMPTY_GROUP = tl.constexpr(-0x7F800001)  # the integer of -inf


def choose_group_count(tiles: int, fewest: int) -> int:
    """A power of two, with fewer tiles per group than groups; 0 if groups do not pay."""
    if tiles < MIN_TILES_FOR_GROUPS:
        return 0
    size: int = triton.next_power_of_2(4 * int(tiles**0.5))
    return max(fewest, min(MAX_GROUPS, size))


def allocate_groups(groups: int, device: torch.device) -> torch.Tensor | None:
    return torch.full((groups,), EMPTY_GROUP.value, dtype=torch.int32, device=device) if groups else None


@triton.jit
def update_group(groups, tile, best, GROUPS: tl.constexpr):
    """Raise the maximum of the tile's group to `best`."""
    best = tl.where(best > float("-inf"), best + 0.0, float("-inf"))  # -0.0 becomes 0.0, NaN becomes -inf
    bits = best.to(tl.int32, bitcast=True)
    tl.atomic_max(groups + tile % GROUPS, bits ^ ((bits >> 31) & INT32_MAX), sem="relaxed")


@triton.jit
def select_tiles_by_group(
    groups, maxima, tiles, tile_ids, candidate_count, GROUPS: tl.constexpr, TILES_PER_GROUP: tl.constexpr,
    BUCKETS: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """Write to tile_ids [CAPACITY] the tiles that hold the best `candidate_count` rows, and reset the groups.

    Returns the score that these rows reach, and the number of tiles; it exceeds CAPACITY if tile_ids cannot hold them.
    tile_ids [CAPACITY, 2 · CAPACITY) is scratch.
    """
    spread = tl.arange(0, GROUPS // BUCKETS)[:, None] * BUCKETS + tl.arange(0, BUCKETS)[None, :]
    least = find_nth_largest(tl.max(decode_group_scores(tl.load(groups + spread)), 0), candidate_count)
    group = tl.arange(0, GROUPS)
    score = decode_group_scores(tl.load(groups + group))
    picked = append_selected(tile_ids + CAPACITY, 0, group, (score >= least) & (score > float("-inf")), CAPACITY)
    tl.debug_barrier()
    tl.store(groups + group, tl.full([GROUPS], EMPTY_GROUP, tl.int32))
    count = picked
    if picked <= CAPACITY:
        at = tl.arange(0, CAPACITY * TILES_PER_GROUP)
        slot = at % CAPACITY
        tile = tl.load(tile_ids + CAPACITY + slot, mask=slot < picked, other=tiles) + (at // CAPACITY) * GROUPS
        best = tl.load(maxima + tile, mask=tile < tiles, other=float("-inf"))
        count = append_selected(tile_ids, 0, tile, (best >= least) & (best > float("-inf")), CAPACITY)
        tl.debug_barrier()
    return least, count


@triton.jit
def decode_group_scores(bits):
    return (bits ^ ((bits >> 31) & INT32_MAX)).to(tl.float32, bitcast=True)


# A key packs a score and its position into one 64-bit integer. A larger key is a better score; of equal scores the
# lower position has the larger key. So "best, ties to the lower row" is a plain maximum, and a sort needs no second
# column.


EMPTY_KEY = tl.constexpr(-(1 << 63))  # below every key
INT32_MAX = tl.constexpr(0x7FFFFFFF)


@triton.jit
def pack_key(score, position):
    """score float32, position int32 >= 0 → int64.

    The bits of a float, as a signed integer, order like the floats once the magnitude of negative ones is flipped.
    Adding zero turns -0.0 into 0.0.
    """
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & INT32_MAX)
    return (bits.to(tl.int64) << 32) | (position ^ INT32_MAX).to(tl.int64)


@triton.jit
def unpack_position(key):
    """Return the position of a key; -1 for EMPTY_KEY."""
    return tl.where(key == EMPTY_KEY, -1, (key & 0xFFFFFFFF).to(tl.int32) ^ INT32_MAX)


@triton.jit
def unpack_score(key):
    """Return the score of a key; -inf for EMPTY_KEY."""
    bits = (key >> 32).to(tl.int32)
    bits = bits ^ ((bits >> 31) & INT32_MAX)
    return tl.where(key == EMPTY_KEY, float("-inf"), bits.to(tl.float32, bitcast=True))


@triton.jit
def merge_top_k(best, keys, K: tl.constexpr):
    """Return the best K of best [K] and keys [M], best first.

    Most rounds bring no better key and skip the sort.
    """
    if tl.max(keys, 0) > tl.min(best, 0):
        best = tl.topk(tl.reshape(tl.join(best, tl.topk(keys, K)), [2 * K]), K)
    return best


@triton.jit
def write_selected_keys(scratch, keys, keep, CAPACITY: tl.constexpr):
    """Write the keys [M] with `keep` into scratch [CAPACITY]; return their number, which can exceed CAPACITY.

    All threads of the program see them on return.
    """
    flag = keep.to(tl.int32)
    slot = tl.cumsum(flag, 0) - flag
    tl.debug_barrier()  # all threads must have read the old keys
    tl.store(scratch + slot, keys, mask=keep & (slot < CAPACITY))
    tl.debug_barrier()
    return tl.sum(flag, 0)


MIN_BUCKETS = 64


def choose_threshold_capacity(candidate_count: int) -> int:
    """The number of scores that may reach a threshold before it is raised: a power of two."""
    size: int = 2 * triton.next_power_of_2(candidate_count)
    return size


def choose_buckets(candidate_count: int) -> int:
    size: int = max(MIN_BUCKETS, 4 * triton.next_power_of_2(candidate_count))
    return size


def choose_step(count: int, candidate_count: int, steps: tuple[int, ...]) -> int:
    """The number of scores that one step reads."""
    return max(choose_buckets(candidate_count), next((step for step in steps if step >= count), steps[-1]))
