"""Scan rows stored as one byte per element (SQ8), and sketches of the upper half of each byte.

A row is middle[d] + step[d] · code[d]. The query is multiplied by the steps; the middles add the same constant to all
rows. Converting a byte to a float takes longer than reading it (quarter-rate instructions), so the query becomes
integers instead: TERMS times 8 bits, and each term meets four codes in one dp4a. Integer sums are exact; the error of
the query is below 2^-15 of its largest element with two terms, 2^-23 with three.

    python benchmarks/search_gpu_sweep.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ridgeline.kernels.launch import launch_kernel
from ridgeline.kernels.search.scan import choose_chunk, finish_scores, view_mask
from ridgeline.kernels.search.top_k import update_group

CODE_TILE = 64
CODE_SHAPE = (64, 32, 4)  # rows in flight at once, words of 4 codes at a time, warps (h200-search-one.txt)
CODE_REGISTERS = 128  # at most; without a bound fewer programs run at once (h200-search-one.txt)
TERMS = 3
RESCAN_PROGRAMS = 528  # four for each multiprocessor of an H200
INTERPRETED = triton.knobs.runtime.interpret


def fit_grid(sample: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """sample [n, D] → step and middle float32 [D]: 255 even steps over the range of each element."""
    low, high = sample.float().aminmax(dim=0)
    step = ((high - low) / 255).clamp_min(1e-30)
    return step, low + 128 * step


def encode_scalar(rows: torch.Tensor, step: torch.Tensor, middle: torch.Tensor) -> torch.Tensor:
    """rows [N, D] → codes int8 [N, D']; D' is D padded with zeros to a multiple of 16, so that loads are aligned."""
    count, depth = rows.shape
    out = torch.zeros((count, triton.cdiv(depth, 16) * 16), dtype=torch.int8, device=rows.device)
    rows_per_step = max(1, (1 << 27) // max(1, depth))  # the intermediate values are float32
    for at in range(0, count, rows_per_step):
        part = (rows[at : at + rows_per_step].float() - middle) / step
        out[at : at + rows_per_step, :depth] = part.round_().clamp_(-128, 127)
    return out


def pack_queries(
    queries: torch.Tensor, step: torch.Tensor, middle: torch.Tensor, metric: str = "ip", terms: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pack queries float32 [Q, D] into integer words int32 [Q, terms, D' / 4], unit [Q] and constant [Q].

    factor · q·x = unit · (sum over terms of 256^term · word·code) + constant, with factor 2 for l2.
    """
    terms = terms or TERMS
    query_count, depth = queries.shape
    width = triton.cdiv(depth, 16) * 4
    words = torch.empty((query_count, terms, width), dtype=torch.int32, device=queries.device)
    unit = torch.empty(query_count, dtype=torch.float32, device=queries.device)
    constant = torch.empty(query_count, dtype=torch.float32, device=queries.device)
    if query_count:
        _pack_queries_kernel[(query_count,)](
            queries, step, middle, words, unit, constant, queries.stride(0), depth, width,
            triton.next_power_of_2(width), terms, 2.0 if metric == "l2" else 1.0, num_warps=4,
        )  # fmt: skip
    return words, unit, constant


def scan_codes(
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
    """Score codes int8 [N, D'] (contiguous) against queries of `pack_queries`.

    Returns scores float32 [Q, N] and maxima [Q, ceil(N / CODE_TILE)]. groups: for one query, the kernel also updates
    the maxima of groups of tiles.
    """
    query, unit, constant = words
    query_count, terms, width = query.shape
    count = codes.shape[0]
    tiles = triton.cdiv(count, CODE_TILE)
    scores, maxima = out or (
        torch.empty((query_count, count), dtype=torch.float32, device=codes.device),
        torch.empty((query_count, tiles), dtype=torch.float32, device=codes.device),
    )
    step, chunk, warps = shape or CODE_SHAPE
    if query_count and tiles:
        launch_kernel(
            _scan_codes_kernel, tiles * query_count, codes.view(torch.int32), query, unit, constant, bias,
            view_mask(allowed), scores, maxima, count, query_count, scores.stride(0), maxima.stride(0), width,
            choose_chunk(width, chunk), min(step, CODE_TILE), CODE_TILE, terms, groups,
            0 if groups is None else len(groups), not INTERPRETED, early, num_warps=warps, maxnreg=CODE_REGISTERS,
        )  # fmt: skip
    return scores, maxima


def rescan_codes(
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
    """Run `scan_codes` for one query into `out` if done int32 [1] is 0; otherwise end at once."""
    query, unit, constant = words
    width, count = query.shape[2], codes.shape[0]
    scores, maxima = out
    step, chunk, warps = CODE_SHAPE
    tiles = triton.cdiv(count, CODE_TILE)
    launch_kernel(
        _rescan_codes_kernel, min(RESCAN_PROGRAMS, tiles), codes.view(torch.int32), query, unit, constant, bias,
        view_mask(allowed), scores, maxima, count, tiles, done, width, choose_chunk(width, chunk), min(step, CODE_TILE),
        CODE_TILE, query.shape[1], groups, 0 if groups is None else len(groups), not INTERPRETED, early,
        num_warps=warps, maxnreg=CODE_REGISTERS,
    )  # fmt: skip


@triton.jit
def store_query_words(
    x, word, step, middle, words, unit, constant, DEPTH: tl.constexpr, WIDTH: tl.constexpr, TERMS: tl.constexpr,
    FACTOR: tl.constexpr,
):  # fmt: skip
    """Store the words, unit and constant of one query x [words, 4], as `pack_queries` describes."""
    d = word[:, None] * 4 + tl.arange(0, 4)[None, :]
    valid = d < DEPTH
    plain = x * FACTOR
    middles = tl.load(middle + d, mask=valid, other=0)
    tl.store(constant, tl.sum(tl.sum(plain.to(tl.float64) * middles.to(tl.float64), 1), 0).to(tl.float32))
    q = plain * tl.load(step + d, mask=valid, other=0)
    top = tl.max(tl.max(tl.abs(q), 1), 0)
    top = tl.where(top > 0, top, 1.0)
    LARGEST: tl.constexpr = 127 * 256 ** (TERMS - 1)  # keeps every digit in -128 … 127
    rounded = tl.floor(q.to(tl.float64) * (LARGEST / top.to(tl.float64)) + 0.5).to(tl.int32)
    for term in tl.static_range(TERMS):
        digit = ((rounded + 128) & 255) - 128
        rounded = (rounded - digit) >> 8
        packed = tl.sum((digit & 255) << (8 * tl.arange(0, 4))[None, :], 1)
        tl.store(words + term * WIDTH + word, packed, mask=word < WIDTH)
    tl.store(unit, top / LARGEST)


@triton.jit(do_not_specialize=["query_stride"])
def _pack_queries_kernel(
    queries, step, middle, words, unit, constant, query_stride, DEPTH: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, TERMS: tl.constexpr, FACTOR: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    word = tl.arange(0, BLOCK)
    d = word[:, None] * 4 + tl.arange(0, 4)[None, :]
    valid = d < DEPTH
    x = tl.load(queries + query * query_stride + d, mask=valid, other=0)
    words += query * TERMS * WIDTH
    store_query_words(x, word, step, middle, words, unit + query, constant + query, DEPTH, WIDTH, TERMS, FACTOR)


@triton.jit
def dot_4_bytes(a, b, acc, FAST: tl.constexpr):
    """Return acc + the sum of four products of signed bytes."""
    if FAST:
        return tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, acc], tl.int32, is_pure=True, pack=1
        )
    for byte in tl.static_range(4):
        acc += ((a << (24 - 8 * byte)) >> 24) * ((b << (24 - 8 * byte)) >> 24)
    return acc


@triton.jit(do_not_specialize=["count", "query_count", "score_stride", "maxima_stride"])
def _scan_codes_kernel(
    codes, words, unit, constant, bias, allowed, scores, maxima, count, query_count, score_stride, maxima_stride,
    WIDTH: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, TILE: tl.constexpr, TERMS: tl.constexpr,
    groups, GROUPS: tl.constexpr, FAST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    program = tl.program_id(0)
    query = program % query_count
    tile = program // query_count
    words += query * (TERMS * WIDTH)
    scores += query.to(tl.int64) * score_stride
    maxima += query.to(tl.int64) * maxima_stride
    _scan_code_tile(
        tile, codes, words, tl.load(unit + query), tl.load(constant + query), bias, allowed, scores, maxima, count,
        WIDTH, CHUNK, STEP, TILE, TERMS, groups, GROUPS, FAST,
    )  # fmt: skip


@triton.jit(do_not_specialize=["count", "tiles"])
def _rescan_codes_kernel(
    codes, words, unit, constant, bias, allowed, scores, maxima, count, tiles, done, WIDTH: tl.constexpr,
    CHUNK: tl.constexpr, STEP: tl.constexpr, TILE: tl.constexpr, TERMS: tl.constexpr, groups, GROUPS: tl.constexpr,
    FAST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Scan one query with few programs, which end at once if `done` is not 0."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    if tl.load(done) == 0:
        scale = tl.load(unit)
        offset = tl.load(constant)
        for begin in range(0, tiles - tl.program_id(0), tl.num_programs(0)):
            _scan_code_tile(
                begin + tl.program_id(0), codes, words, scale, offset, bias, allowed, scores, maxima, count, WIDTH,
                CHUNK, STEP, TILE, TERMS, groups, GROUPS, FAST,
            )  # fmt: skip


@triton.jit
def _scan_code_tile(
    tile, codes, words, scale, offset, bias, allowed, scores, maxima, count, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
    STEP: tl.constexpr, TILE: tl.constexpr, TERMS: tl.constexpr, groups, GROUPS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Write the scores of one query against the rows of one tile, and their maximum."""
    first = tile.to(tl.int64) * TILE
    left = (count - first).to(tl.int32)
    best = tl.full([STEP], float("-inf"), tl.float32)
    for begin in tl.static_range(0, TILE, STEP):
        local = begin + tl.arange(0, STEP)
        inside = local < left
        clamped = tl.minimum(local, left - 1)
        at = codes + first * WIDTH + clamped[:, None] * WIDTH
        low = tl.zeros([STEP, CHUNK], tl.int32)
        mid = tl.zeros([STEP, CHUNK], tl.int32)
        high = tl.zeros([STEP, CHUNK], tl.int32)
        for start in tl.static_range(0, WIDTH, CHUNK):
            word = start + tl.arange(0, CHUNK)
            if start + CHUNK <= WIDTH:
                x = tl.load(at + word[None, :])
                low = dot_4_bytes(x, tl.load(words + word)[None, :], low, FAST)
                mid = dot_4_bytes(x, tl.load(words + WIDTH + word)[None, :], mid, FAST)
                if TERMS == 3:
                    high = dot_4_bytes(x, tl.load(words + 2 * WIDTH + word)[None, :], high, FAST)
            else:
                valid = word < WIDTH
                x = tl.load(at + word[None, :], mask=valid[None, :], other=0)
                low = dot_4_bytes(x, tl.load(words + word, mask=valid, other=0)[None, :], low, FAST)
                mid = dot_4_bytes(x, tl.load(words + WIDTH + word, mask=valid, other=0)[None, :], mid, FAST)
                if TERMS == 3:
                    high = dot_4_bytes(x, tl.load(words + 2 * WIDTH + word, mask=valid, other=0)[None, :], high, FAST)
        score = tl.sum(low, 1).to(tl.float32) + 256.0 * tl.sum(mid, 1).to(tl.float32)
        if TERMS == 3:
            score += 65536.0 * tl.sum(high, 1).to(tl.float32)
        score = finish_scores(score, first + local, inside, bias, allowed, scale) + offset
        tl.store(scores + first + local, score, mask=inside)
        best = tl.maximum(best, score)
    top = tl.max(best, 0)
    tl.store(maxima + tile, top)
    if groups is not None:
        update_group(groups, tile, top, GROUPS)


# A sketch holds the upper half of every code, two in a byte. Scanning it reads half the bytes and finds the rows that
# need exact scores.
#
# A code is 16 · u − 128 + rest, with u from 0 to 15. The rest, 0 to 15, is not in the sketch and is taken as 7.5. What
# the rests of a row add to its score is a sum of many small terms of either sign: its standard deviation follows from
# the query, and `rescore_within_margin` computes the exact scores of all rows within a few deviations of the best. The
# query is rounded to a byte per element, which adds little to the deviation.
#
#     python benchmarks/search_gpu_sweep.py --only halves
#     python benchmarks/search_halves.py


SKETCH_TILE = 64
SKETCH_SHAPE = (32, 64, 4)  # rows in flight at once, words of 8 halves at a time, warps (h200-search-sweep.txt)
SKETCH_MARGIN = 3.0  # standard deviations below the score of the last candidate
SKETCH_TILES_PER_STEP = 1 << 14

Digits = tuple[torch.Tensor, torch.Tensor]  # int32 [2 · words] and coefficients float32 [3]


def build_sketch(codes: torch.Tensor) -> torch.Tensor:
    """Build the sketch int32 [tiles, TILE, words] of codes int8 [N, D'] from `encode_scalar`.

    Element d is in the lower four bits of byte d, or in the upper four bits of byte d − 4 · words. Position `local` of
    a tile holds row local · tiles + tile: neighbouring rows, which are often similar, are in different tiles, so the
    maxima of tiles show how good the best rows are.
    """
    count, width = codes.shape
    words, tiles = count_sketch_words(width), triton.cdiv(count, SKETCH_TILE)
    out = torch.empty((tiles, SKETCH_TILE, words), dtype=torch.int32, device=codes.device)
    local = torch.arange(SKETCH_TILE, device=codes.device) * tiles
    for at in range(0, tiles, SKETCH_TILES_PER_STEP):
        row = torch.arange(at, min(tiles, at + SKETCH_TILES_PER_STEP), device=codes.device)[:, None] + local
        upper = (codes[row.clamp_(max=count - 1)].view(torch.uint8) ^ 128) >> 4
        upper = torch.nn.functional.pad(upper, (0, 8 * words - width))
        both = upper[..., : 4 * words] | (upper[..., 4 * words :] << 4)
        out[at : at + SKETCH_TILES_PER_STEP] = both.view(torch.int32)
    return out


def count_sketch_words(width: int) -> int:
    """The words of a row of `width` codes: a multiple of 4, because a load reads 16 bytes."""
    size: int = triton.cdiv(triton.cdiv(width, 8), 4) * 4
    return size


def allocate_digits(sketch: torch.Tensor) -> Digits:
    """Allocate what `store_query_digits` writes."""
    device = sketch.device
    return (
        torch.zeros(2 * sketch.shape[2], dtype=torch.int32, device=device),
        torch.empty(3, dtype=torch.float32, device=device),
    )


def scan_sketch(
    digits: Digits,
    sketch: torch.Tensor,
    count: int,
    out: tuple[torch.Tensor, torch.Tensor],
    *,
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    groups: torch.Tensor | None = None,
    shape: tuple[int, int, int] | None = None,
    early: bool = False,
) -> None:
    """Scan a sketch of `count` rows with the digits of one query.

    Writes out: scores float32 [1, tiles · TILE] in the order of the sketch, and the maximum of each tile.
    """
    tiles, tile, words = sketch.shape
    scores, maxima = out
    step, chunk, warps = shape or SKETCH_SHAPE
    launch_kernel(
        _scan_sketch_kernel, tiles, sketch, *digits, bias, view_mask(allowed), scores, maxima, count, words,
        min(chunk, triton.next_power_of_2(words)), min(step, tile), tile, groups, 0 if groups is None else len(groups),
        not INTERPRETED, early, num_warps=warps,
    )  # fmt: skip


@triton.jit
def store_query_digits(
    x, word, step, middle, digits, coefficients, DEPTH: tl.constexpr, WIDTH: tl.constexpr, FACTOR: tl.constexpr,
    MARGIN: tl.constexpr,
):  # fmt: skip
    """Store one query x [words, 4] as a byte per element, and its coefficients: scale, shift and margin."""
    d = word[:, None] * 4 + tl.arange(0, 4)[None, :]
    valid = d < DEPTH
    plain = x * FACTOR
    q = plain * tl.load(step + d, mask=valid, other=0)
    top = tl.max(tl.max(tl.abs(q), 1), 0)
    unit = tl.where(top > 0, top, 1.0) / 127.0
    scaled = q / unit
    digit = tl.floor(scaled + 0.5).to(tl.int32)
    tl.store(digits + word, tl.sum((digit & 255) << (8 * tl.arange(0, 4))[None, :], 1), mask=word < WIDTH)
    middles = tl.load(middle + d, mask=valid, other=0)
    shift = tl.sum(tl.sum(plain.to(tl.float64) * middles.to(tl.float64), 1), 0).to(tl.float32)
    shift -= 120.5 * unit * tl.sum(tl.sum(digit, 1), 0).to(tl.float32)
    # Variances: 21.25 for 0 … 15; 1 / 12 for a rounding, which meets codes of a variance of 5,419 at most.
    spread = unit * tl.sqrt(21.25 * tl.sum(tl.sum(scaled * scaled, 1), 0) + DEPTH * 5419.0 / 12.0)
    tl.store(coefficients, 16.0 * unit)
    tl.store(coefficients + 1, shift)
    tl.store(coefficients + 2, MARGIN * spread)


@triton.jit(do_not_specialize=["count"])
def _scan_sketch_kernel(
    sketch, digits, coefficients, bias, allowed, scores, maxima, count, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
    STEP: tl.constexpr, TILE: tl.constexpr, groups, GROUPS: tl.constexpr, FAST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    tile = tl.program_id(0)
    sketch += tile.to(tl.int64) * TILE * WIDTH
    scores += tile * TILE
    scale = tl.load(coefficients)
    shift = tl.load(coefficients + 1)
    best = tl.full([STEP], float("-inf"), tl.float32)
    for begin in tl.static_range(0, TILE, STEP):
        local = begin + tl.arange(0, STEP)
        row = local * tl.num_programs(0) + tile
        inside = row < count
        at = sketch + local[:, None] * WIDTH
        total = tl.zeros([STEP, CHUNK], tl.int32)
        for start in tl.static_range(0, WIDTH, CHUNK):
            word = start + tl.arange(0, CHUNK)
            if start + CHUNK <= WIDTH:
                x = tl.load(at + word[None, :])
                low = tl.load(digits + word)
                high = tl.load(digits + WIDTH + word)
            else:
                valid = word < WIDTH
                x = tl.load(at + word[None, :], mask=valid[None, :], other=0)
                low, high = (
                    tl.load(digits + word, mask=valid, other=0),
                    tl.load(digits + WIDTH + word, mask=valid, other=0),
                )
            total = dot_4_bytes(x & 0x0F0F0F0F, low[None, :], total, FAST)
            total = dot_4_bytes((x >> 4) & 0x0F0F0F0F, high[None, :], total, FAST)
        score = finish_scores(tl.sum(total, 1).to(tl.float32), row, inside, bias, allowed, scale) + shift
        tl.store(scores + local, score)
        best = tl.maximum(best, score)
    top = tl.max(best, 0)
    tl.store(maxima + tile, top)
    if groups is not None:
        update_group(groups, tile, top, GROUPS)
