"""Rows stored as one byte per element (SQ8), scanned for one query at the speed of memory.

A row is middle[d] + step[d] · code[d]. The query takes the steps into itself; what the middles add is the same for
all rows. Converting a byte to a float costs more than reading it (quarter-rate instructions), so the query becomes
integers instead: 8 bits times TERMS, each term meeting four codes in one dp4a. Integer sums are exact; the query
is off by less than 2^-15 of its largest element with two terms, 2^-23 with three.

    python benchmarks/search_gpu_sweep.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ridgeline.kernels.launch import direct
from ridgeline.kernels.search.groups import join
from ridgeline.kernels.search.scan import chunk_for, finished, flags

TILE = 64
SHAPE = (64, 32, 4)  # rows in flight at once, words of 4 codes at a time, warps (h200-search-one.txt)
REGISTERS = 128  # at most; without a bound fewer programs are under way (h200-search-one.txt)
TERMS = 3
AGAIN = 528  # programs: four for each multiprocessor of an H200
INTERPRETED = triton.knobs.runtime.interpret


def grid_of(sample: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """sample [n, D] → step and middle float32 [D]: the range of each element in 255 even steps."""
    low, high = sample.float().aminmax(dim=0)
    step = ((high - low) / 255).clamp_min(1e-30)
    return step, low + 128 * step


def encode(rows: torch.Tensor, step: torch.Tensor, middle: torch.Tensor) -> torch.Tensor:
    """rows [N, D] → codes int8 [N, D'], D' = D made a multiple of 16 with zeros: whole vectors are read."""
    count, depth = rows.shape
    out = torch.zeros((count, triton.cdiv(depth, 16) * 16), dtype=torch.int8, device=rows.device)
    few = max(1, (1 << 27) // max(1, depth))  # rows at a time: what lies between is float32
    for at in range(0, count, few):
        part = (rows[at : at + few].float() - middle) / step
        out[at : at + few, :depth] = part.round_().clamp_(-128, 127)
    return out


def words_of(
    queries: torch.Tensor, step: torch.Tensor, middle: torch.Tensor, metric: str = "ip", terms: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """queries float32 [Q, D] → words int32 [Q, terms, D' / 4], unit [Q] and constant [Q]:
    factor · q·x = unit · (sum over terms of 256^term · word·code) + constant, with factor 2 for l2."""
    terms = terms or TERMS
    many, depth = queries.shape
    width = triton.cdiv(depth, 16) * 4
    words = torch.empty((many, terms, width), dtype=torch.int32, device=queries.device)
    unit = torch.empty(many, dtype=torch.float32, device=queries.device)
    constant = torch.empty(many, dtype=torch.float32, device=queries.device)
    if many:
        _words[(many,)](
            queries, step, middle, words, unit, constant, queries.stride(0), depth, width,
            triton.next_power_of_2(width), terms, 2.0 if metric == "l2" else 1.0, num_warps=4,
        )  # fmt: skip
    return words, unit, constant


def scan(
    words: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    codes: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    shape: tuple[int, int, int] | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    groups: torch.Tensor | None = None,
    early: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """words of `words_of`, codes int8 [N, D'] (contiguous) → scores float32 [Q, N], maxima [Q, ceil(N / TILE)].

    groups: of one query, told of the best of their tiles (`search_groups`).
    """
    query, unit, constant = words
    many, terms, width = query.shape
    count = codes.shape[0]
    tiles = triton.cdiv(count, TILE)
    scores, maxima = out or (
        torch.empty((many, count), dtype=torch.float32, device=codes.device),
        torch.empty((many, tiles), dtype=torch.float32, device=codes.device),
    )
    step, chunk, warps = shape or SHAPE
    if many and tiles:
        direct.launch(
            _scan_bytes, tiles * many,
            codes.view(torch.int32), query, unit, constant, bias, flags(allowed), scores, maxima, count, many,
            scores.stride(0), maxima.stride(0), width, chunk_for(width, chunk), min(step, TILE), TILE, terms,
            groups, 0 if groups is None else len(groups), not INTERPRETED, early, num_warps=warps,
            maxnreg=REGISTERS,
        )  # fmt: skip
    return scores, maxima


def scan_again(
    words: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    codes: torch.Tensor,
    out: tuple[torch.Tensor, torch.Tensor],
    done: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    groups: torch.Tensor | None = None,
    early: bool = False,
) -> None:
    """`scan` of one query into `out`, unless done int32 [1] is not 0: then nothing, at once."""
    query, unit, constant = words
    width, count = query.shape[2], codes.shape[0]
    scores, maxima = out
    step, chunk, warps = SHAPE
    tiles = triton.cdiv(count, TILE)
    direct.launch(
        _scan_again, min(AGAIN, tiles), codes.view(torch.int32), query, unit, constant, bias, flags(allowed), scores,
        maxima, count, tiles, done, width, chunk_for(width, chunk), min(step, TILE), TILE, query.shape[1], groups,
        0 if groups is None else len(groups), not INTERPRETED, early, num_warps=warps, maxnreg=REGISTERS,
    )  # fmt: skip


@triton.jit
def put_words(
    x, word, step, middle, words, unit, constant, DEPTH: tl.constexpr, WIDTH: tl.constexpr, TERMS: tl.constexpr,
    FACTOR: tl.constexpr,
):  # fmt: skip
    """One query x [words, 4], as `words_of` says."""
    d = word[:, None] * 4 + tl.arange(0, 4)[None, :]
    there = d < DEPTH
    plain = x * FACTOR
    middles = tl.load(middle + d, mask=there, other=0)
    tl.store(constant, tl.sum(tl.sum(plain.to(tl.float64) * middles.to(tl.float64), 1), 0).to(tl.float32))
    q = plain * tl.load(step + d, mask=there, other=0)
    top = tl.max(tl.max(tl.abs(q), 1), 0)
    top = tl.where(top > 0, top, 1.0)
    MOST: tl.constexpr = 127 * 256 ** (TERMS - 1)  # so that no digit leaves -128 … 127
    whole = tl.floor(q.to(tl.float64) * (MOST / top.to(tl.float64)) + 0.5).to(tl.int32)
    for term in tl.static_range(TERMS):
        digit = ((whole + 128) & 255) - 128
        whole = (whole - digit) >> 8
        packed = tl.sum((digit & 255) << (8 * tl.arange(0, 4))[None, :], 1)
        tl.store(words + term * WIDTH + word, packed, mask=word < WIDTH)
    tl.store(unit, top / MOST)


@triton.jit(do_not_specialize=["query_stride"])
def _words(
    queries, step, middle, words, unit, constant, query_stride, DEPTH: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, TERMS: tl.constexpr, FACTOR: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    word = tl.arange(0, BLOCK)
    d = word[:, None] * 4 + tl.arange(0, 4)[None, :]
    there = d < DEPTH
    x = tl.load(queries + query * query_stride + d, mask=there, other=0)
    words += query * TERMS * WIDTH
    put_words(x, word, step, middle, words, unit + query, constant + query, DEPTH, WIDTH, TERMS, FACTOR)


@triton.jit
def fours(a, b, acc, FAST: tl.constexpr):
    """acc + the sum of four products of signed bytes."""
    if FAST:
        return tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, acc], tl.int32, is_pure=True, pack=1
        )
    for byte in tl.static_range(4):
        acc += ((a << (24 - 8 * byte)) >> 24) * ((b << (24 - 8 * byte)) >> 24)
    return acc


@triton.jit(do_not_specialize=["count", "many", "score_stride", "maxima_stride"])
def _scan_bytes(
    codes, words, unit, constant, bias, allowed, scores, maxima, count, many, score_stride, maxima_stride,
    WIDTH: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, TILE: tl.constexpr, TERMS: tl.constexpr,
    groups, GROUPS: tl.constexpr, FAST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    program = tl.program_id(0)
    query = program % many
    tile = program // many
    words += query * (TERMS * WIDTH)
    scores += query.to(tl.int64) * score_stride
    maxima += query.to(tl.int64) * maxima_stride
    _scan_tile(
        tile, codes, words, tl.load(unit + query), tl.load(constant + query), bias, allowed, scores, maxima, count,
        WIDTH, CHUNK, STEP, TILE, TERMS, groups, GROUPS, FAST,
    )  # fmt: skip


@triton.jit(do_not_specialize=["count", "tiles"])
def _scan_again(
    codes, words, unit, constant, bias, allowed, scores, maxima, count, tiles, done, WIDTH: tl.constexpr,
    CHUNK: tl.constexpr, STEP: tl.constexpr, TILE: tl.constexpr, TERMS: tl.constexpr, groups, GROUPS: tl.constexpr,
    FAST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Of one query, by few programs, which end at once where it is done already."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    if tl.load(done) == 0:
        size = tl.load(unit)
        more = tl.load(constant)
        for begin in range(0, tiles - tl.program_id(0), tl.num_programs(0)):
            _scan_tile(
                begin + tl.program_id(0), codes, words, size, more, bias, allowed, scores, maxima, count, WIDTH, CHUNK,
                STEP, TILE, TERMS, groups, GROUPS, FAST,
            )  # fmt: skip


@triton.jit
def _scan_tile(
    tile, codes, words, size, more, bias, allowed, scores, maxima, count, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
    STEP: tl.constexpr, TILE: tl.constexpr, TERMS: tl.constexpr, groups, GROUPS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """One query's scores of the rows of one tile, and their best."""
    first = tile.to(tl.int64) * TILE
    left = (count - first).to(tl.int32)
    best = tl.full([STEP], float("-inf"), tl.float32)
    for begin in tl.static_range(0, TILE, STEP):
        local = begin + tl.arange(0, STEP)
        inside = local < left
        near = tl.minimum(local, left - 1)
        at = codes + first * WIDTH + near[:, None] * WIDTH
        low = tl.zeros([STEP, CHUNK], tl.int32)
        mid = tl.zeros([STEP, CHUNK], tl.int32)
        high = tl.zeros([STEP, CHUNK], tl.int32)
        for start in tl.static_range(0, WIDTH, CHUNK):
            word = start + tl.arange(0, CHUNK)
            if start + CHUNK <= WIDTH:
                x = tl.load(at + word[None, :])
                low = fours(x, tl.load(words + word)[None, :], low, FAST)
                mid = fours(x, tl.load(words + WIDTH + word)[None, :], mid, FAST)
                if TERMS == 3:
                    high = fours(x, tl.load(words + 2 * WIDTH + word)[None, :], high, FAST)
            else:
                known = word < WIDTH
                x = tl.load(at + word[None, :], mask=known[None, :], other=0)
                low = fours(x, tl.load(words + word, mask=known, other=0)[None, :], low, FAST)
                mid = fours(x, tl.load(words + WIDTH + word, mask=known, other=0)[None, :], mid, FAST)
                if TERMS == 3:
                    high = fours(x, tl.load(words + 2 * WIDTH + word, mask=known, other=0)[None, :], high, FAST)
        score = tl.sum(low, 1).to(tl.float32) + 256.0 * tl.sum(mid, 1).to(tl.float32)
        if TERMS == 3:
            score += 65536.0 * tl.sum(high, 1).to(tl.float32)
        score = finished(score, first + local, inside, bias, allowed, size) + more
        tl.store(scores + first + local, score, mask=inside)
        best = tl.maximum(best, score)
    top = tl.max(best, 0)
    tl.store(maxima + tile, top)
    if groups is not None:
        join(groups, tile, top, GROUPS)
