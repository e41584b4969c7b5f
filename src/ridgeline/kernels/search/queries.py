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
def measured(x, UNIT: tl.constexpr):
    """float32, of unit length where that is wanted, and the norm it had."""
    wide = x.to(tl.float64)
    norm = tl.sqrt(tl.sum(wide * wide))
    if UNIT:
        x = tl.where(norm > 0, wide / norm, wide).to(tl.float32)
    return x, norm


@triton.jit
def _ready(
    queries, out, norms, query_stride, element_stride, DEPTH: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    there = d < DEPTH
    x = tl.load(queries + query * query_stride + d * element_stride, mask=there, other=0).to(tl.float32)
    x, norm = measured(x, UNIT)
    tl.store(norms + query, norm)
    tl.store(out + query * DEPTH + d, x, mask=there)


def handed(
    values: torch.Tensor, numbers: torch.Tensor, norms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Answers [Q, k] in memory of their own; a query whose norm is not finite has found nothing: nan and -1."""
    many, k = values.shape
    out = torch.empty_like(values), torch.empty_like(numbers)
    if many and k:
        _handed[(many,)](values, numbers, norms, *out, k, triton.next_power_of_2(k), num_warps=1)
    return out


@triton.jit(do_not_specialize=["k"])
def _handed(values, numbers, norms, out_values, out_numbers, k, BLOCK: tl.constexpr):
    query = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    there = at < k
    norm = tl.load(norms + query)
    fine = norm - norm == 0
    value = tl.load(values + query * k + at, mask=there, other=0)
    number = tl.load(numbers + query * k + at, mask=there, other=0)
    tl.store(out_values + query * k + at, tl.where(fine, value, float("nan")), mask=there)
    tl.store(out_numbers + query * k + at, tl.where(fine, number, -1), mask=there)
