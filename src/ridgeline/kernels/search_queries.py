"""Queries made ready for a search in one launch: float32, of unit length where that is wanted, and their norms.

A norm is not finite exactly where a component is not, or where float32 cannot hold the sum of squares, so whoever
reads the norms afterwards knows which query to refuse, without having waited for them before the search.

    python -m pytest tests/kernels/test_search_queries.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def ready(queries: torch.Tensor, unit: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """queries [Q, D] of any float type → float32 [Q, D] and norms float64 [Q]; a zero query stays one."""
    many, depth = queries.shape
    out = torch.empty((many, depth), dtype=torch.float32, device=queries.device)
    norms = torch.empty(many, dtype=torch.float64, device=queries.device)
    if many:
        _ready[(many,)](queries, out, norms, *queries.stride(), depth, triton.next_power_of_2(depth), unit, num_warps=4)
    return out, norms


@triton.jit
def _ready(
    queries, out, norms, query_stride, element_stride, DEPTH: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    there = d < DEPTH
    x = tl.load(queries + query * query_stride + d * element_stride, mask=there, other=0).to(tl.float32)
    wide = x.to(tl.float64)
    norm = tl.sqrt(tl.sum(wide * wide, 0))
    tl.store(norms + query, norm)
    if UNIT:
        x = tl.where(norm > 0, wide / norm, wide).to(tl.float32)
    tl.store(out + query * DEPTH + d, x, mask=there)
