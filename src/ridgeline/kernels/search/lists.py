"""Inverted lists: rows stand list by list, and a query looks into the `probes` lists whose centres are nearest.

Which lists those are, how long they are and how many queries meet in one is known on the GPU only, and stays there.
A query's lists are laid out as tiles: `most` per list, the number the longest list needs; programs for tiles that
a list does not have leave at once. From there on all is as in exact search: best tiles, then rows.

Many queries: pairs of query and list are sorted by list; a program takes one list and up to QUERIES of its pairs,
so that a list is read once for all of them, and again only where more meet.

    python benchmarks/search_gpu_sweep.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ridgeline.kernels.launch import direct
from ridgeline.kernels.search import scan as search_scan
from ridgeline.kernels.search.keys import place_of
from ridgeline.kernels.search.scan import ROUNDED, chunk_for, dots, finished, flags
from ridgeline.kernels.search.select import best_of, few, keys, room, scratch, warps_for

TILE = 32  # rows
SCAN = (64, 4)  # elements at a time, warps, for one query; not swept
# Queries and rows per program, elements at a time, warps, stages; by bytes per element. Swept for 2 bytes
# (benchmarks/records/h200-search-sweep.txt), not for the others.
SHAPES = {2: (64, 128, 64, 4, 3), 4: (32, 64, 32, 4, 3), 1: (32, 128, 64, 4, 3)}
MOST_LISTS = 8192  # that one program chooses from
CENTRE_TILE = 16  # centres per program: there are few of them
INTERPRETED = triton.knobs.runtime.interpret


def probe(queries: torch.Tensor, centres: torch.Tensor, probes: int, *, metric: str = "ip") -> torch.Tensor:
    """queries float32 [Q, D], centres float32 [C, D], probes <= C → the nearest lists int32 [Q, probes], best first."""
    many, lists = queries.shape[0], centres.shape[0]
    bias = -centres.square().sum(1) if metric == "l2" else None
    factor = 2.0 if metric == "l2" else 1.0
    if many <= 4:
        scores, _ = search_scan.scan(queries, centres, bias=bias, factor=factor, tile=CENTRE_TILE, shape=(16, 32, 1))
    else:
        scores = queries @ centres.T
        if bias is not None:
            scores = scores.mul_(factor).add_(bias)
    if lists > MOST_LISTS:
        return scores.topk(probes, dim=1).indices.int()
    out = torch.empty((many, probes), dtype=torch.int32, device=queries.device)
    wanted = triton.next_power_of_2(max(2, probes))  # Triton 3.6 has no best one of many
    lines = min(triton.next_power_of_2(lists), max(wanted, 16))
    if many:
        _probe[(many,)](
            scores, out, scratch(many, wanted, queries), lists, probes, scores.stride(0), wanted, lines,
            triton.next_power_of_2(triton.cdiv(lists, lines)), room(wanted), num_warps=warps_for(wanted),
        )  # fmt: skip
    return out


def tiles_of(lists: torch.Tensor, starts: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """lists [Q, probes], starts int32 [C + 1] → first row and end of each tile, int32 [Q, probes · most]."""
    many = lists.shape[0]
    at = lists.long()
    step = torch.arange(0, most * TILE, TILE, dtype=torch.int32, device=lists.device)
    end = starts[at + 1][:, :, None]
    begin = torch.minimum(starts[at][:, :, None] + step, end)
    # With one list to look into, reshape would give a view of stride 0.
    return begin.view(many, -1), end.expand(-1, -1, most).contiguous().view(many, -1)


def scan(
    queries: torch.Tensor,
    rows: torch.Tensor,
    lists: torch.Tensor,
    starts: torch.Tensor,
    most: int,
    *,
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    factor: float = 1.0,
    l2: bool = False,
    early: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """For few queries: scores float32 [Q, T · TILE] and maxima [Q, T] of the T = probes · most tiles, and first row and
    end of each, int32 [Q, T]. Scores of tiles that are not there are not written."""
    many, probes = lists.shape
    tiles = probes * most
    scores = torch.empty((many, tiles * TILE), dtype=torch.float32, device=rows.device)
    maxima = torch.empty((many, tiles), dtype=torch.float32, device=rows.device)
    begin = torch.empty((many, tiles), dtype=torch.int32, device=rows.device)
    end = torch.empty_like(begin)
    chunk, warps = SCAN
    if many and tiles:
        direct.launch(
            _scan_lists, many * tiles,
            queries, rows, lists, starts, bias, flags(allowed), scores, maxima, begin, end, probes, most,
            queries.stride(0), rows.stride(0), factor, queries.shape[1], chunk_for(queries.shape[1], chunk), TILE,
            l2, early, num_warps=warps, **ROUNDED,
        )  # fmt: skip
    return scores, maxima, begin, end


def maxima(
    queries: torch.Tensor,
    size: torch.Tensor,
    rows: torch.Tensor,
    lists: torch.Tensor,
    starts: torch.Tensor,
    most: int,
    *,
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    factor: float = 1.0,
    shape: tuple[int, int, int, int, int] | None = None,
) -> torch.Tensor:
    """For many queries, as `search_batch.rounded` gives them: the best of each tile, float32 [Q, probes · most]."""
    many, probes = lists.shape
    kinds = starts.shape[0] - 1
    together, wide, chunk, warps, stages = shape or SHAPES[rows.element_size()]
    out = torch.empty((many, probes * most), dtype=torch.float32, device=rows.device)
    if not many or not most:
        return out
    lined, pair = lists.reshape(-1).sort(stable=True)
    edges = torch.searchsorted(lined, torch.arange(kinds + 1, dtype=torch.int32, device=rows.device), out_int32=True)
    blocks = (edges.diff() + (together - 1)) // together
    upto = blocks.cumsum(0, dtype=torch.int32)
    items = triton.cdiv(many * probes, together) + min(kinds, many * probes)  # no more than that
    item = torch.arange(items, dtype=torch.int32, device=rows.device)
    owner = torch.searchsorted(upto, item, right=True, out_int32=True)  # `kinds` for the spare ones
    _maxima_of_lists[(items,)](
        queries, size, rows, owner, pair, edges, blocks, upto, starts, bias, flags(allowed), out, kinds, probes, most,
        queries.stride(0), rows.stride(0), factor, queries.shape[1], together, wide,
        chunk_for(queries.shape[1], chunk), TILE, INTERPRETED, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["lists", "probes", "score_stride"])
def _probe(
    scores, out, scratch, lists, probes, score_stride, K: tl.constexpr, LINES: tl.constexpr, FAN: tl.constexpr,
    ROOM: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    scratch += query * ROOM
    at = tl.arange(0, LINES)[:, None] + LINES * tl.arange(0, FAN)[None, :]
    score = tl.load(scores + query * score_stride + at, mask=at < lists, other=float("-inf"))
    left = few(scratch, score, at, K, ROOM)
    if left <= ROOM:  # noqa: SIM108 (a choice of the program's, not of its elements)
        best = best_of(scratch, left, K, ROOM)
    else:
        best = tl.topk(keys(score, at), K)
    slot = tl.arange(0, K)
    tl.store(out + query * probes + slot, place_of(best), mask=slot < probes)


@triton.jit(do_not_specialize=["probes", "most"])
def _scan_lists(
    queries, rows, lists, starts, bias, allowed, scores, maxima, begin, end, probes, most, query_stride, row_stride,
    factor, DEPTH: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, L2: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    program = tl.program_id(0)
    pair = program // most
    kind = tl.load(lists + pair)
    first = tl.load(starts + kind) + (program % most) * TILE
    stop = tl.load(starts + kind + 1)
    tl.store(begin + program, tl.minimum(first, stop))
    tl.store(end + program, stop)
    left = stop - first
    if left <= 0:
        tl.store(maxima + program, float("-inf"))
        return
    local = tl.arange(0, TILE)
    near = tl.minimum(local, left - 1)
    query = queries + (pair // probes).to(tl.int64) * query_stride
    row = first.to(tl.int64)
    score = dots(rows + row * row_stride, query, near, row_stride, DEPTH, CHUNK, TILE, L2)
    score = finished(score, row + local, local < left, bias, allowed, factor)
    tl.store(scores + program.to(tl.int64) * TILE + local, score)
    tl.store(maxima + program, tl.max(score, 0))


@triton.jit(do_not_specialize=["kinds", "probes", "most"])
def _maxima_of_lists(
    queries, size, rows, owner, pairs, edges, blocks, upto, starts, bias, allowed, out, kinds, probes, most,
    query_stride, row_stride, factor, DEPTH: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, TILE: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0)
    kind = tl.load(owner + item)
    if kind >= kinds:
        return
    block = item - (tl.load(upto + kind) - tl.load(blocks + kind))
    place = tl.load(edges + kind) + block * QUERIES + tl.arange(0, QUERIES)
    last = tl.load(edges + kind + 1)
    real = place < last
    pair = tl.load(pairs + tl.minimum(place, last - 1))
    query = pair // probes
    q_at = queries + query[:, None] * query_stride
    scale = tl.load(size + query) * factor
    first = tl.load(starts + kind).to(tl.int64)
    left = (tl.load(starts + kind + 1) - first).to(tl.int32)
    to = out + pair[:, None] * most
    PER: tl.constexpr = ROWS // TILE
    for begin in range(0, left, ROWS):
        local = begin + tl.arange(0, ROWS)
        near = tl.minimum(local, left - 1)
        x_at = rows + first * row_stride + near[:, None] * row_stride
        acc = tl.zeros([QUERIES, ROWS], tl.float32)
        for start in range(0, DEPTH, CHUNK):
            d = start + tl.arange(0, CHUNK)
            if DEPTH % CHUNK == 0:
                q = tl.load(q_at + d[None, :])
                x = tl.load(x_at + d[None, :])
            else:
                q = tl.load(q_at + d[None, :], mask=(d < DEPTH)[None, :], other=0)
                x = tl.load(x_at + d[None, :], mask=(d < DEPTH)[None, :], other=0)
            x = x.to(q.dtype)  # codes
            if WIDEN:
                q, x = q.to(tl.float32), x.to(tl.float32)
            acc = tl.dot(q, tl.trans(x), acc)
        score = acc * scale[:, None]
        if bias is not None:
            score += tl.load(bias + first + near)[None, :]
        inside = local < left
        if allowed is not None:
            inside = inside & (tl.load(allowed + first + near) != 0)
        score = tl.where(inside[None, :], score, float("-inf"))
        best = tl.max(tl.reshape(score, [QUERIES, PER, TILE]), 2)
        tile = begin // TILE + tl.arange(0, PER)
        tl.store(to + tile[None, :], best, mask=real[:, None] & (tile < most)[None, :])
    for begin in range((left + ROWS - 1) // ROWS * PER, most, PER):
        tile = begin + tl.arange(0, PER)
        nothing = tl.full([QUERIES, PER], float("-inf"), tl.float32)
        tl.store(to + tile[None, :], nothing, mask=real[:, None] & (tile < most)[None, :])
