"""Product codes in inverted lists: a row's score is a sum of one table entry per byte.

A row is its list's centre plus one of 256 pieces per part. The products of the query with all pieces are a table
[parts, 256] per query, which does not depend on the list: what the centre adds is one number per list, and for the
squared distance the row's own norm comes as `bias`. So one table serves all lists, under either metric.

    python -m pytest tests/kernels/test_search_inverted.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ridgeline.kernels.search.lists import TILE
from ridgeline.kernels.search.scan import finished, flags

SHAPE = (16, 2)  # parts at a time, warps. To be swept.


def scan(
    queries: torch.Tensor,
    centres: torch.Tensor,
    books: torch.Tensor,
    codes: torch.Tensor,
    lists: torch.Tensor,
    starts: torch.Tensor,
    most: int,
    *,
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    factor: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `search_lists.scan`, of codes uint8 [N, parts] and books float32 [parts, 256, D / parts]."""
    (many, probes), parts = lists.shape, books.shape[0]
    tiles = probes * most
    table = torch.einsum("qps,pcs->qpc", queries.view(many, parts, -1), books).contiguous()
    base = (queries[:, None, :] * centres[lists.long()]).sum(2)
    scores = torch.empty((many, tiles * TILE), dtype=torch.float32, device=codes.device)
    maxima = torch.empty((many, tiles), dtype=torch.float32, device=codes.device)
    begin = torch.empty((many, tiles), dtype=torch.int32, device=codes.device)
    end = torch.empty_like(begin)
    step, warps = SHAPE
    if many and tiles:
        _scan_codes[(many * tiles,)](
            table, base, codes, lists, starts, bias, flags(allowed), scores, maxima, begin, end, probes, most,
            codes.stride(0), factor, parts, min(step, triton.next_power_of_2(parts)), TILE, num_warps=warps,
        )  # fmt: skip
    return scores, maxima, begin, end


@triton.jit(do_not_specialize=["probes", "most", "code_stride"])
def _scan_codes(
    table, base, codes, lists, starts, bias, allowed, scores, maxima, begin, end, probes, most, code_stride, factor,
    PARTS: tl.constexpr, STEP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
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
    row = first.to(tl.int64) + local
    near = first.to(tl.int64) + tl.minimum(local, left - 1)
    own = table + (pair // probes).to(tl.int64) * (PARTS * 256)
    acc = tl.zeros([TILE, STEP], tl.float32)
    for start in tl.static_range(0, PARTS, STEP):
        part = start + tl.arange(0, STEP)
        known = part < PARTS
        code = tl.load(codes + near[:, None] * code_stride + part[None, :], mask=known[None, :], other=0)
        acc += tl.load(own + part[None, :] * 256 + code.to(tl.int32), mask=known[None, :], other=0)
    score = tl.sum(acc, 1) + tl.load(base + pair)
    score = finished(score, row, local < left, bias, allowed, factor)
    tl.store(scores + program.to(tl.int64) * TILE + local, score)
    tl.store(maxima + program, tl.max(score, 0))
