"""The upper half of every code, two in a byte: half the bytes to read, to find the rows that are worth more.

A code is 16 · u − 128 + rest, with u from 0 to 15 and the rest, 0 to 15, unknown here and taken as 7.5. What the rests
of a row add to its score is a sum of many small terms, as often up as down: its spread follows from the query, and rows
within a few spreads of the best are looked at in full (`search_margin`). The query is rounded to a byte per element,
which adds to the spread what little it does.

    python benchmarks/search_gpu_sweep.py --only halves
    python benchmarks/search_halves.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ridgeline.kernels.launch import direct
from ridgeline.kernels.search.bytes import INTERPRETED, fours
from ridgeline.kernels.search.groups import join
from ridgeline.kernels.search.scan import finished, flags

TILE = 64
SHAPE = (32, 64, 4)  # rows in flight at once, words of 8 halves at a time, warps (h200-search-sweep.txt)
MARGIN = 3.0  # spreads below the last score that is wanted
AT_ONCE = 1 << 14  # tiles made at a time

Digits = tuple[torch.Tensor, torch.Tensor]  # the query's int32 [2 · words], and float32 [3]: scale, shift and margin


def sketch_of(codes: torch.Tensor) -> torch.Tensor:
    """codes int8 [N, D'] of `search_bytes.encode` → int32 [tiles, TILE, words]: element d in the lower four bits of
    byte d, or in the upper ones of byte d − 4 · words. Place `local` of a tile is row local · tiles + tile: neighbours,
    which are often alike, are in different tiles, so that the best of the tiles say how good the best rows are."""
    count, width = codes.shape
    words, tiles = words_for(width), triton.cdiv(count, TILE)
    out = torch.empty((tiles, TILE, words), dtype=torch.int32, device=codes.device)
    local = torch.arange(TILE, device=codes.device) * tiles
    for at in range(0, tiles, AT_ONCE):
        row = torch.arange(at, min(tiles, at + AT_ONCE), device=codes.device)[:, None] + local
        upper = (codes[row.clamp_(max=count - 1)].view(torch.uint8) ^ 128) >> 4
        upper = torch.nn.functional.pad(upper, (0, 8 * words - width))
        both = upper[..., : 4 * words] | (upper[..., 4 * words :] << 4)
        out[at : at + AT_ONCE] = both.view(torch.int32)
    return out


def words_for(width: int) -> int:
    """Of a row of `width` codes: a multiple of 4, since 16 bytes are read at a time."""
    size: int = triton.cdiv(triton.cdiv(width, 8), 4) * 4
    return size


def digits_for(sketch: torch.Tensor) -> Digits:
    """Room for what `put_digits` writes."""
    device = sketch.device
    return (
        torch.zeros(2 * sketch.shape[2], dtype=torch.int32, device=device),
        torch.empty(3, dtype=torch.float32, device=device),
    )


def scan(
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
    """One query's digits, a sketch of `count` rows → out: scores float32 [1, tiles · TILE] as the halves tell them, in
    the order of the sketch, and the best of each tile."""
    tiles, tile, words = sketch.shape
    scores, maxima = out
    step, chunk, warps = shape or SHAPE
    direct.launch(
        _scan_halves, tiles, sketch, *digits, bias, flags(allowed), scores, maxima, count, words,
        min(chunk, triton.next_power_of_2(words)), min(step, tile), tile, groups, 0 if groups is None else len(groups),
        not INTERPRETED, early, num_warps=warps,
    )  # fmt: skip


@triton.jit
def put_digits(
    x, word, step, middle, digits, told, DEPTH: tl.constexpr, WIDTH: tl.constexpr, FACTOR: tl.constexpr,
    MARGIN: tl.constexpr,
):  # fmt: skip
    """One query x [words, 4] as a byte per element; what a score is of their sum: scale, shift; and the margin."""
    d = word[:, None] * 4 + tl.arange(0, 4)[None, :]
    there = d < DEPTH
    plain = x * FACTOR
    q = plain * tl.load(step + d, mask=there, other=0)
    top = tl.max(tl.max(tl.abs(q), 1), 0)
    unit = tl.where(top > 0, top, 1.0) / 127.0
    whole = q / unit
    digit = tl.floor(whole + 0.5).to(tl.int32)
    tl.store(digits + word, tl.sum((digit & 255) << (8 * tl.arange(0, 4))[None, :], 1), mask=word < WIDTH)
    middles = tl.load(middle + d, mask=there, other=0)
    shift = tl.sum(tl.sum(plain.to(tl.float64) * middles.to(tl.float64), 1), 0).to(tl.float32)
    shift -= 120.5 * unit * tl.sum(tl.sum(digit, 1), 0).to(tl.float32)
    # Variances: of 0 … 15 it is 21.25; of a rounding 1 / 12, which meets codes of a variance of 5,419 at most.
    spread = unit * tl.sqrt(21.25 * tl.sum(tl.sum(whole * whole, 1), 0) + DEPTH * 5419.0 / 12.0)
    tl.store(told, 16.0 * unit)
    tl.store(told + 1, shift)
    tl.store(told + 2, MARGIN * spread)


@triton.jit(do_not_specialize=["count"])
def _scan_halves(
    sketch, digits, told, bias, allowed, scores, maxima, count, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
    STEP: tl.constexpr, TILE: tl.constexpr, groups, GROUPS: tl.constexpr, FAST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    tile = tl.program_id(0)
    sketch += tile.to(tl.int64) * TILE * WIDTH
    scores += tile * TILE
    scale = tl.load(told)
    shift = tl.load(told + 1)
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
                known = word < WIDTH
                x = tl.load(at + word[None, :], mask=known[None, :], other=0)
                low, high = (
                    tl.load(digits + word, mask=known, other=0),
                    tl.load(digits + WIDTH + word, mask=known, other=0),
                )
            total = fours(x & 0x0F0F0F0F, low[None, :], total, FAST)
            total = fours((x >> 4) & 0x0F0F0F0F, high[None, :], total, FAST)
        score = finished(tl.sum(total, 1).to(tl.float32), row, inside, bias, allowed, scale) + shift
        tl.store(scores + local, score)
        best = tl.maximum(best, score)
    top = tl.max(best, 0)
    tl.store(maxima + tile, top)
    if groups is not None:
        join(groups, tile, top, GROUPS)
