"""Select the best scores on the GPU: keys, top k by a threshold, and groups of tiles.

A scan writes the best score of each tile of rows. The k best rows lie in the k tiles with the best maxima:
`select_tiles` selects these, and `rescore.py` goes from tiles to rows. Ties go to the lower position at every level: of
a thousand equal rows the first k are returned.

Nothing is sorted: a kernel with a sort takes up to a minute to compile. And kernels are compiled for three sizes of
results only (`choose_capacity`): k, the number of lists to probe, of queries and of rows are arguments that no code is
specialised on, so other settings compile nothing.

    python -m pytest tests/kernels/test_search_exact.py tests/kernels/test_search_one_query.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

SMALL_COUNT, MEDIUM_COUNT, LARGE_COUNT = 32, 128, 256  # candidates: the sizes that kernels are compiled for
# Maxima at a time and warps, by capacity. Larger steps need more registers, so fewer programs run at once.
SELECT_STEPS = {64: 2048, 256: 2048, 512: 4096}
SELECT_WARPS = {64: 8, 256: 8, 512: 16}
RANK_BLOCK = 16  # keys that are compared with all others at a time
MIN_SCORES_FOR_SLICES, SLICES = 8192, 16  # of one query in `select_best`


def choose_capacity(candidate_count: int) -> int:
    """Return how many selected scores a kernel has room for: twice the next size of candidates."""
    return 2 * next(size for size in (SMALL_COUNT, MEDIUM_COUNT, LARGE_COUNT) if candidate_count <= size)


def select_tiles(
    maxima: torch.Tensor,
    tiles: int,
    done: torch.Tensor | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Select the best `tiles`, LARGE_COUNT or fewer, of each query from maxima [Q, T].

    Returns the tiles int32 [Q, tiles], best first, padded with -1, and the maximum of the last one [Q]: no other tile
    has a better maximum. Queries whose `done` uint8 [Q] is not 0 are skipped.
    """
    query_count = maxima.shape[0]
    picked_tiles, bound = out or (
        torch.empty((query_count, tiles), dtype=torch.int32, device=maxima.device),
        torch.empty(query_count, dtype=torch.float32, device=maxima.device),
    )
    _launch_select(maxima, tiles, picked_tiles, bound, done=done)
    return picked_tiles, bound


def select_best(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Select the best `count` scores, LARGE_COUNT or fewer, of each query from scores [Q, N].

    Returns (scores float32 [Q, count], positions int32 [Q, count]), best first, padded with -inf and -1. Many scores of
    a query are cut into slices, whose best are selected side by side: one program would read all of them alone.
    """
    query_count, size = scores.shape
    slices = SLICES if size >= MIN_SCORES_FOR_SLICES else 1
    if slices == 1:
        return _select_labelled(scores, None, count)
    width = triton.cdiv(size, slices)
    if size % slices:
        scores = torch.nn.functional.pad(scores, (0, width * slices - size), value=float("-inf"))
    best, position = _select_labelled(scores.view(query_count * slices, width), None, count)
    starts = torch.arange(0, width * slices, width, dtype=torch.int32, device=scores.device)
    labels = position.view(query_count, slices, count) + starts[:, None]
    shape = (query_count, slices * count)
    return _select_labelled(best.view(shape), labels.view(shape), count)


def _select_labelled(
    scores: torch.Tensor, labels: torch.Tensor | None, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best scores [Q, count] and their labels (their positions if there are none), best first."""
    query_count, device = len(scores), scores.device
    best = torch.empty((query_count, count), dtype=torch.float32, device=device)
    picked = torch.empty((query_count, count), dtype=torch.int32, device=device)
    bound = torch.empty(query_count, dtype=torch.float32, device=device)
    _launch_select(scores, count, picked, bound, labels=labels, best=best)
    return best, picked


def _launch_select(
    scores: torch.Tensor,
    count: int,
    picked: torch.Tensor,
    bound: torch.Tensor,
    done: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    best: torch.Tensor | None = None,
) -> None:
    query_count, device = len(scores), scores.device
    if query_count:
        capacity = choose_capacity(count)
        _select_tiles_kernel[(query_count,)](
            scores, picked, bound, done,
            torch.empty((query_count, capacity), dtype=torch.int64, device=device),
            torch.zeros(query_count, dtype=torch.int32, device=device), scores.shape[1], count, scores.stride(0),
            labels, best, capacity, SELECT_STEPS[capacity], RANK_BLOCK, num_warps=SELECT_WARPS[capacity],
        )  # fmt: skip


@triton.jit(do_not_specialize=["tiles", "candidate_count", "maxima_stride"])
def _select_tiles_kernel(
    maxima, picked_tiles, bound, done, scratch, counts, tiles, candidate_count, maxima_stride, labels, picked_maxima,
    CAPACITY: tl.constexpr, STEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    if done is not None:  # noqa: SIM102 (one condition would load a null pointer)
        if tl.load(done + query) != 0:
            return
    maxima += query * maxima_stride
    picked_tiles += query * candidate_count
    scratch += query * CAPACITY
    bucket_maxima = tl.full([CAPACITY], float("-inf"), tl.float32)
    for begin in range(0, tiles, STEP):
        spread = begin + tl.arange(0, STEP // CAPACITY)[:, None] * CAPACITY + tl.arange(0, CAPACITY)[None, :]
        values = tl.load(maxima + spread, mask=spread < tiles, other=float("-inf"))
        bucket_maxima = tl.maximum(bucket_maxima, tl.max(values, 0))
    least = find_nth_of_many(bucket_maxima, candidate_count)
    # Few scores reach it: each takes its slot from a counter, so that no step waits for all threads.
    for begin in range(0, tiles, STEP):
        position = begin + tl.arange(0, STEP)
        score = tl.load(maxima + position, mask=position < tiles, other=float("-inf"))
        keep = (score >= least) & (score > float("-inf"))
        slot = tl.atomic_add(counts + query + tl.zeros([STEP], tl.int32), 1, mask=keep, sem="relaxed")
        tl.store(scratch + slot, pack_keys(score, position), mask=keep & (slot < CAPACITY))
    tl.debug_barrier()
    count = tl.load(counts + query, cache_modifier=".cg")
    if count > CAPACITY:  # many are equal, or those of a bucket are similar
        low = raise_threshold_in_memory(maxima, tiles, least, candidate_count, CAPACITY, STEP)
        tl.debug_barrier()
        count = 0
        for begin in range(0, tiles, STEP):
            position = begin + tl.arange(0, STEP)
            keys = pack_keys(tl.load(maxima + position, mask=position < tiles, other=float("-inf")), position)
            count = append_selected(scratch, count, keys, keys >= low, CAPACITY)
    tl.debug_barrier()
    slot = tl.arange(0, CAPACITY)
    key = tl.load(scratch + slot, mask=slot < count, other=EMPTY_KEY)
    rank = tl.zeros([CAPACITY], tl.float32)  # an int32 sum would go through shared memory
    for begin in range(0, count, BLOCK):
        other_slot = begin + tl.arange(0, BLOCK)
        other = tl.load(scratch + other_slot, mask=other_slot < count, other=EMPTY_KEY)
        rank += tl.sum(tl.where(other[None, :] > key[:, None], 1.0, 0.0), 1)
    place = tl.where(slot < count, rank.to(tl.int32), slot)
    position = unpack_position(key)
    if labels is not None:
        position = tl.load(labels + query * tiles + position, mask=position >= 0, other=-1)
    tl.store(picked_tiles + place, position, mask=place < candidate_count)
    if picked_maxima is not None:
        tl.store(picked_maxima + query * candidate_count + place, unpack_score(key), mask=place < candidate_count)
    tl.store(bound + query, tl.max(tl.where(place == candidate_count - 1, unpack_score(key), float("-inf")), 0))


@triton.jit
def find_nth_of_many(values, n):
    """Return the n-th largest of values [L], n <= L, by a search over the bits of floats, 16 guesses at a time.

    Comparing all pairs (`find_nth_largest`) takes more registers than there are if L is large.
    """
    if values.shape[0] <= 128:
        return find_nth_largest(values, n)
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    bits = (bits ^ ((bits >> 31) & INT32_MAX)).to(tl.int64)
    low = tl.min(bits, 0)
    high = tl.max(bits, 0)
    while low < high:
        guess = low + (((high - low + 1) * (tl.arange(0, 16) + 1)) >> 4)
        guess = tl.maximum(tl.minimum(guess, high), low + 1)
        reached = tl.sum(tl.where(bits[:, None] >= guess[None, :], 1.0, 0.0), 0)
        enough = reached >= n
        high = tl.min(tl.where(enough, high, guess - 1), 0)
        low = tl.max(tl.where(enough, guess, low), 0)
    return decode_group_scores(low.to(tl.int32))


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
    CAPACITY: tl.constexpr,
):  # fmt: skip
    """Write to tile_ids [CAPACITY] the tiles that hold the best `candidate_count` rows, and reset the groups.

    Returns the score that these rows reach, and the number of tiles; it exceeds CAPACITY if tile_ids cannot hold them.
    tile_ids [CAPACITY, 2 · CAPACITY) is scratch.
    """
    spread = tl.arange(0, GROUPS // CAPACITY)[:, None] * CAPACITY + tl.arange(0, CAPACITY)[None, :]
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
