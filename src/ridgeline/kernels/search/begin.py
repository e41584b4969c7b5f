"""One query made ready for its scan in one launch: its norm, unit length, digits; with lists, which are the nearest.

The centres are few, so every program measures the query for itself and meets some of them. Whoever ends last, which a
counter tells, has all their scores before it and picks the lists; it also puts the counter back for the next launch.

    python -m pytest tests/kernels/test_search_short.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ridgeline.kernels.launch import direct
from ridgeline.kernels.search import bytes as search_bytes
from ridgeline.kernels.search import sketch as search_sketch
from ridgeline.kernels.search.bytes import put_words
from ridgeline.kernels.search.finish import lines, room
from ridgeline.kernels.search.keys import NOTHING, place_of
from ridgeline.kernels.search.queries import measured
from ridgeline.kernels.search.scan import ROUNDED
from ridgeline.kernels.search.sketch import put_digits
from ridgeline.kernels.search.threshold import keyed, least_of, narrowed, put

MOST_LISTS = 8192  # that one program chooses from
MOST_PROBES = 64
AT_ONCE = 8192  # elements of centres per program
WARPS = 4

Ready = tuple[torch.Tensor, torch.Tensor]  # the query float32 [1, D] and its norm float64 [1]
Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def prepare(
    queries: torch.Tensor,
    unit: bool,
    grid: tuple[torch.Tensor, torch.Tensor] | None = None,
    *,
    metric: str = "ip",
    digits: search_sketch.Digits | None = None,
    early: bool = False,
) -> tuple[Ready, Words | None]:
    """queries [1, D] of any float type → as of `search_queries.ready`, and with a grid `search_bytes.words_of`; into
    `digits` what a sketch of the codes is scanned with."""
    depth, terms = queries.shape[1], search_bytes.TERMS
    width = triton.cdiv(depth, 16) * 4
    ready = _ready(queries)
    words = None
    if grid is not None:
        words = (
            torch.empty((1, terms, width), dtype=torch.int32, device=queries.device),
            torch.empty(1, dtype=torch.float32, device=queries.device),
            torch.empty(1, dtype=torch.float32, device=queries.device),
        )
    direct.launch(
        _prepare, 1, queries, *(grid or (None, None)), *ready, *(words or (None, None, None)),
        *(digits or (None, None)), depth, width, triton.next_power_of_2(width), terms, 2.0 if metric == "l2" else 1.0,
        search_sketch.MARGIN, unit, early, num_warps=WARPS,
    )  # fmt: skip
    return ready, words


def nearest(
    queries: torch.Tensor,
    unit: bool,
    centres: torch.Tensor,
    probes: int,
    *,
    metric: str = "ip",
    step: torch.Tensor | None = None,
    early: bool = False,
) -> tuple[Ready, torch.Tensor, torch.Tensor]:
    """queries [1, D] of any float type, centres float32 [C, D], probes ≤ C → the query made ready, what the scan of
    codes with this step asks with (else the same), and the nearest lists int32 [1, probes], best first."""
    count, depth = centres.shape
    block = triton.next_power_of_2(depth)
    some = max(1, min(16, AT_ONCE // block))
    ready = _ready(queries)
    asked = ready[0] if step is None else torch.empty_like(ready[0])
    lists = torch.empty((1, probes), dtype=torch.int32, device=queries.device)
    scores = torch.empty(count, dtype=torch.float32, device=queries.device)
    kept = torch.empty(room(probes), dtype=torch.int64, device=queries.device)
    ended = torch.zeros(1, dtype=torch.int32, device=queries.device)
    whole = max(2 * lines(probes), triton.next_power_of_2(count))
    direct.launch(
        _nearest, triton.cdiv(count, some), queries, centres, step, *ready, asked, lists, scores, kept, ended, count,
        probes, depth, block, some, whole, lines(probes), room(probes), metric == "l2", unit, early,
        num_warps=WARPS, **ROUNDED,
    )  # fmt: skip
    return ready, asked, lists


def _ready(queries: torch.Tensor) -> Ready:
    return (
        torch.empty(queries.shape, dtype=torch.float32, device=queries.device),
        torch.empty(1, dtype=torch.float64, device=queries.device),
    )


@triton.jit(do_not_specialize_on_alignment=["queries"])
def _prepare(
    queries, step, middle, out, norms, words, unit, constant, digits, told, DEPTH: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, TERMS: tl.constexpr, FACTOR: tl.constexpr, MARGIN: tl.constexpr, UNIT: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    word = tl.arange(0, BLOCK)
    d = word[:, None] * 4 + tl.arange(0, 4)[None, :]
    there = d < DEPTH
    x, norm = measured(tl.load(queries + d, mask=there, other=0).to(tl.float32), UNIT)
    tl.store(norms, norm)
    tl.store(out + d, x, mask=there)
    if step is not None:
        if digits is not None:
            put_digits(x, word, step, middle, digits, told, DEPTH, WIDTH, FACTOR, MARGIN)
        put_words(x, word, step, middle, words, unit, constant, DEPTH, WIDTH, TERMS, FACTOR)


@triton.jit(do_not_specialize=["count", "probes"], do_not_specialize_on_alignment=["queries"])
def _nearest(
    queries, centres, step, out, norms, asked, lists, scores, kept, ended, count, probes, DEPTH: tl.constexpr,
    BLOCK: tl.constexpr, SOME: tl.constexpr, WHOLE: tl.constexpr, LINES: tl.constexpr, ROOM: tl.constexpr,
    L2: tl.constexpr, UNIT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    there = d < DEPTH
    centre = program * SOME + tl.arange(0, SOME)
    near = tl.minimum(centre, count - 1)
    c = tl.load(centres + near[:, None] * DEPTH + d[None, :], mask=there[None, :], other=0)
    x, norm = measured(tl.load(queries + d, mask=there, other=0).to(tl.float32), UNIT)
    if L2:
        away = c - x[None, :]
        score = -tl.sum(away * away, 1)
    else:
        score = tl.sum(c * x[None, :], 1)
    tl.store(scores + centre, score, mask=centre < count)
    if program == 0:
        tl.store(norms, norm)
        tl.store(out + d, x, mask=there)
        if step is not None:
            factor = 2.0 if L2 else 1.0
            tl.store(asked + d, x * (tl.load(step + d, mask=there, other=0) * factor), mask=there)
    tl.debug_barrier()  # all threads have written before one of them says so
    before = tl.atomic_add(ended, 1, sem="acq_rel", scope="gpu")
    if before == tl.num_programs(0) - 1:
        tl.store(ended, 0)
        spread = tl.arange(0, WHOLE // LINES)[:, None] * LINES + tl.arange(0, LINES)[None, :]
        seen = tl.load(scores + spread, mask=spread < count, other=float("-inf"), cache_modifier=".cg")
        least = least_of(tl.max(seen, 0), probes)
        at = tl.arange(0, WHOLE)
        every = tl.load(scores + at, mask=at < count, other=float("-inf"), cache_modifier=".cg")
        keys = keyed(every, at)
        left = put(kept, 0, keys, (every >= least) & (every > float("-inf")), ROOM)
        if left > ROOM:
            low = narrowed(tl.where(every >= least, keys, NOTHING), probes, ROOM)
            tl.debug_barrier()
            left = put(kept, 0, keys, keys >= low, ROOM)
        tl.debug_barrier()
        slot = tl.arange(0, ROOM)
        key = tl.load(kept + slot, mask=slot < left, other=NOTHING)
        ahead = key[None, :] > key[:, None]
        ahead = ahead | ((key[None, :] == key[:, None]) & (slot[None, :] < slot[:, None]))
        rank = tl.sum(tl.where(ahead, 1, 0), 1)
        # A query that is not finite is near to none: any list will do, and nothing of it is found.
        tl.store(lists + rank, tl.maximum(place_of(key), 0), mask=rank < probes)
