"""Prepare queries for a search in one launch: float32, unit length if needed, their norms, and the nearest lists.

A norm is not finite exactly if a component is not finite, or if float32 cannot hold the sum of squares. So the caller
can read the norms after the search to refuse a query, and need not wait for them before the search.

    python -m pytest tests/kernels/test_search_queries.py tests/kernels/test_search_one_query.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
import triton
import triton.language as tl

from ridgeline.kernels.launch import launch_kernel
from ridgeline.kernels.search import scalar_codes
from ridgeline.kernels.search.scalar_codes import Digits, store_query_digits, store_query_words
from ridgeline.kernels.search.scan import NO_FMA, SUM_ERROR, TF32_ERROR
from ridgeline.kernels.search.top_k import (
    EMPTY_KEY,
    append_selected,
    find_nth_largest,
    pack_keys,
    raise_threshold,
    unpack_position,
)


class RoundedQueries(NamedTuple):
    """Queries for the matrix units."""

    values: torch.Tensor  # [Q, D] of the type that meets the rows
    size: torch.Tensor  # float32 [Q], a power of two: query = size · values
    error: torch.Tensor  # float32 [Q]: the largest possible error of a score


@dataclass(frozen=True)
class Rounding:
    """How to round queries that meet rows of `dtype`, whose largest norm is longest float32 [1].

    scale float32 [D] multiplies the queries first, for rows that are codes; they are met as fp16, and `longest` is the
    norm of the codes then.
    """

    dtype: torch.dtype
    longest: torch.Tensor
    metric: str = "ip"
    scale: torch.Tensor | None = None


def prepare_queries(
    queries: torch.Tensor, unit: bool, rounding: Rounding | None = None, *, early: bool = False
) -> tuple[torch.Tensor, torch.Tensor, RoundedQueries | None]:
    """Return queries [Q, D] of any float type as float32 [Q, D], their norms, float64 [Q], and rounded queries.

    unit: divide each query by its norm; a zero query stays zero.
    """
    query_count, depth = queries.shape
    device = queries.device
    out = torch.empty((query_count, depth), dtype=torch.float32, device=device)
    norms = torch.empty(query_count, dtype=torch.float64, device=device)
    rounded, scale, longest, full, squared = None, None, None, False, False
    if rounding is not None:
        dtype = torch.float16 if rounding.dtype == torch.int8 else rounding.dtype
        rounded = RoundedQueries(
            torch.empty((query_count, depth), dtype=dtype, device=device),
            torch.empty(query_count, dtype=torch.float32, device=device),
            torch.empty(query_count, dtype=torch.float32, device=device),
        )
        scale, longest, full, squared = (
            rounding.scale,
            rounding.longest,
            dtype == torch.float32,
            rounding.metric == "l2",
        )
    if query_count:
        launch_kernel(
            _prepare_queries_kernel, query_count, queries, out, norms, scale, longest, *(rounded or (None, None, None)),
            *queries.stride(), depth, triton.next_power_of_2(depth), unit, full, squared, SUM_ERROR, TF32_ERROR, early,
            num_warps=WARPS,
        )  # fmt: skip
    return out, norms, rounded


def round_queries(queries: torch.Tensor, rounding: Rounding) -> RoundedQueries:
    """Round queries float32 [Q, D] that are prepared."""
    return cast("RoundedQueries", prepare_queries(queries, False, rounding)[2])


@triton.jit
def normalize_query(x, UNIT: tl.constexpr):
    """Return x as float32, at unit length if UNIT, and its norm before that."""
    wide = x.to(tl.float64)
    norm = tl.sqrt(tl.sum(wide * wide))
    if UNIT:
        x = tl.where(norm > 0, wide / norm, wide).to(tl.float32)
    return x, norm


@triton.jit(do_not_specialize=["query_stride", "element_stride"], do_not_specialize_on_alignment=["queries"])
def _prepare_queries_kernel(
    queries, out, norms, scale, longest, rounded, size, error, query_stride, element_stride, DEPTH: tl.constexpr,
    BLOCK: tl.constexpr, UNIT: tl.constexpr, FULL: tl.constexpr, L2: tl.constexpr, SLACK: tl.constexpr,
    TF32: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    query = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    inside = d < DEPTH
    x = tl.load(queries + query * query_stride + d * element_stride, mask=inside, other=0).to(tl.float32)
    x, norm = normalize_query(x, UNIT)
    tl.store(norms + query, norm)
    tl.store(out + query * DEPTH + d, x, mask=inside)
    if rounded is not None:
        q = x
        if scale is not None:
            q = q * tl.load(scale + d, mask=inside, other=0)
        # The power of two of the largest element, by its exponent: dividing by it is exact, and fp16 holds the
        # quotient.
        largest = tl.max(tl.abs(q), 0)
        bits = largest.to(tl.int32, bitcast=True) & 0x7F800000
        power = tl.where(bits > 0, bits.to(tl.float32, bitcast=True), 1.0)
        rounded_query = (q / power).to(rounded.dtype.element_ty)
        difference = q - rounded_query.to(tl.float32) * power
        length = tl.sqrt(tl.sum(q * q, 0))
        score_error = tl.sqrt(tl.sum(difference * difference, 0))
        if FULL:
            score_error = TF32 * length
        longest_norm = tl.load(longest)
        score_error = (score_error * 1.0001 + SLACK * length) * longest_norm
        if L2:
            score_error = 2 * score_error + longest_norm * longest_norm * 2.4e-7
        tl.store(rounded + query * DEPTH + d, rounded_query, mask=inside)
        tl.store(size + query, power)
        tl.store(error + query, score_error)


def copy_results(
    values: torch.Tensor, numbers: torch.Tensor, norms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Copy results [Q, k] into new memory; a query whose norm is not finite gets nan and -1."""
    bad = ~torch.isfinite(norms)[:, None]
    return values.masked_fill(bad, float("nan")), numbers.masked_fill(bad, -1)


# One query: norm, unit length and digits, or the nearest lists, in one launch.
#
# There are few centres, so every program normalises the query itself and scores some of the centres. A counter shows
# which program ends last; that program sees all scores, selects the lists, and resets the counter for the next launch.


MAX_PROBED_LISTS = 8192  # that one program selects from
MAX_PROBES = 64
PROBE_CAPACITY = 128  # lists that may reach the threshold of a selection, and buckets that it is found with
CENTRE_ELEMENTS = 8192  # elements of centres per program
WARPS = 4

PreparedQuery = tuple[torch.Tensor, torch.Tensor]  # the query float32 [1, D] and its norm float64 [1]
QueryWords = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def prepare_one_query(
    queries: torch.Tensor,
    unit: bool,
    grid: tuple[torch.Tensor, torch.Tensor] | None = None,
    *,
    metric: str = "ip",
    digits: Digits | None = None,
    early: bool = False,
) -> tuple[PreparedQuery, QueryWords | None]:
    """Prepare one query [1, D] of any float type.

    Returns what `prepare_queries` returns, and with a grid what `pack_queries` returns (else None). Writes to `digits`
    what `scan_sketch` needs.
    """
    depth, terms = queries.shape[1], scalar_codes.TERMS
    width = triton.cdiv(depth, 16) * 4
    prepared = _allocate_query(queries)
    words = None
    if grid is not None:
        words = (
            torch.empty((1, terms, width), dtype=torch.int32, device=queries.device),
            torch.empty(1, dtype=torch.float32, device=queries.device),
            torch.empty(1, dtype=torch.float32, device=queries.device),
        )
    launch_kernel(
        _prepare_one_query_kernel, 1, queries, *(grid or (None, None)), *prepared, *(words or (None, None, None)),
        *(digits or (None, None)), depth, width, triton.next_power_of_2(width), terms, 2.0 if metric == "l2" else 1.0,
        scalar_codes.SKETCH_MARGIN, unit, early, num_warps=WARPS,
    )  # fmt: skip
    return prepared, words


def prepare_and_probe(
    queries: torch.Tensor,
    unit: bool,
    centres: torch.Tensor,
    probes: int,
    *,
    metric: str = "ip",
    step: torch.Tensor | None = None,
    early: bool = False,
) -> tuple[PreparedQuery, torch.Tensor, torch.Tensor]:
    """Prepare one query [1, D] of any float type and find its nearest lists.

    centres float32 [C, D], probes ≤ C. Returns the prepared query, the query for the scan (multiplied by `step` if rows
    are codes with this step), and the nearest lists int32 [1, probes], best first.
    """
    count, depth = centres.shape
    block = triton.next_power_of_2(depth)
    centres_per_program = max(1, min(16, CENTRE_ELEMENTS // block))
    prepared = _allocate_query(queries)
    scan_query = prepared[0] if step is None else torch.empty_like(prepared[0])
    lists = torch.empty((1, probes), dtype=torch.int32, device=queries.device)
    scores = torch.empty(count, dtype=torch.float32, device=queries.device)
    scratch = torch.empty(PROBE_CAPACITY, dtype=torch.int64, device=queries.device)
    finished_programs = torch.zeros(1, dtype=torch.int32, device=queries.device)
    padded_count = max(2 * PROBE_CAPACITY, triton.next_power_of_2(count))
    launch_kernel(
        _prepare_and_probe_kernel, triton.cdiv(count, centres_per_program), queries, centres, step, *prepared,
        scan_query, lists, scores, scratch, finished_programs, count, probes, depth, block, centres_per_program,
        padded_count, PROBE_CAPACITY, metric == "l2", unit, early,
        num_warps=WARPS, **NO_FMA,
    )  # fmt: skip
    return prepared, scan_query, lists


def _allocate_query(queries: torch.Tensor) -> PreparedQuery:
    return (
        torch.empty(queries.shape, dtype=torch.float32, device=queries.device),
        torch.empty(1, dtype=torch.float64, device=queries.device),
    )


@triton.jit(do_not_specialize_on_alignment=["queries"])
def _prepare_one_query_kernel(
    queries, step, middle, out, norms, words, unit, constant, digits, coefficients, DEPTH: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, TERMS: tl.constexpr, FACTOR: tl.constexpr, MARGIN: tl.constexpr,
    UNIT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    word = tl.arange(0, BLOCK)
    d = word[:, None] * 4 + tl.arange(0, 4)[None, :]
    inside = d < DEPTH
    x, norm = normalize_query(tl.load(queries + d, mask=inside, other=0).to(tl.float32), UNIT)
    tl.store(norms, norm)
    tl.store(out + d, x, mask=inside)
    if step is not None:
        if digits is not None:
            store_query_digits(x, word, step, middle, digits, coefficients, DEPTH, WIDTH, FACTOR, MARGIN)
        store_query_words(x, word, step, middle, words, unit, constant, DEPTH, WIDTH, TERMS, FACTOR)


@triton.jit(do_not_specialize=["count", "probes"], do_not_specialize_on_alignment=["queries"])
def _prepare_and_probe_kernel(
    queries, centres, step, out, norms, scan_query, lists, scores, scratch, finished_programs, count, probes,
    DEPTH: tl.constexpr, BLOCK: tl.constexpr, CENTRES: tl.constexpr, PADDED_COUNT: tl.constexpr,
    CAPACITY: tl.constexpr, L2: tl.constexpr, UNIT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    inside = d < DEPTH
    centre = program * CENTRES + tl.arange(0, CENTRES)
    clamped = tl.minimum(centre, count - 1)
    c = tl.load(centres + clamped[:, None] * DEPTH + d[None, :], mask=inside[None, :], other=0)
    x, norm = normalize_query(tl.load(queries + d, mask=inside, other=0).to(tl.float32), UNIT)
    if L2:
        difference = c - x[None, :]
        score = -tl.sum(difference * difference, 1)
    else:
        score = tl.sum(c * x[None, :], 1)
    tl.store(scores + centre, score, mask=centre < count)
    if program == 0:
        tl.store(norms, norm)
        tl.store(out + d, x, mask=inside)
        if step is not None:
            factor = 2.0 if L2 else 1.0
            tl.store(scan_query + d, x * (tl.load(step + d, mask=inside, other=0) * factor), mask=inside)
    tl.debug_barrier()  # all threads must have written before the counter rises
    finished_before = tl.atomic_add(finished_programs, 1, sem="acq_rel", scope="gpu")
    if finished_before == tl.num_programs(0) - 1:
        tl.store(finished_programs, 0)
        spread = tl.arange(0, PADDED_COUNT // CAPACITY)[:, None] * CAPACITY + tl.arange(0, CAPACITY)[None, :]
        spread_scores = tl.load(scores + spread, mask=spread < count, other=float("-inf"), cache_modifier=".cg")
        least = find_nth_largest(tl.max(spread_scores, 0), probes)
        position = tl.arange(0, PADDED_COUNT)
        all_scores = tl.load(scores + position, mask=position < count, other=float("-inf"), cache_modifier=".cg")
        keys = pack_keys(all_scores, position)
        selected = append_selected(scratch, 0, keys, (all_scores >= least) & (all_scores > float("-inf")), CAPACITY)
        if selected > CAPACITY:
            low = raise_threshold(tl.where(all_scores >= least, keys, EMPTY_KEY), probes, CAPACITY)
            tl.debug_barrier()
            selected = append_selected(scratch, 0, keys, keys >= low, CAPACITY)
        tl.debug_barrier()
        slot = tl.arange(0, CAPACITY)
        key = tl.load(scratch + slot, mask=slot < selected, other=EMPTY_KEY)
        ahead = key[None, :] > key[:, None]
        ahead = ahead | ((key[None, :] == key[:, None]) & (slot[None, :] < slot[:, None]))
        rank = tl.sum(tl.where(ahead, 1, 0), 1)
        # A query that is not finite gets any lists; its result is empty.
        tl.store(lists + rank, tl.maximum(unpack_position(key), 0), mask=rank < probes)
