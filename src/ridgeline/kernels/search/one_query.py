"""Search for one query in three launches: prepare (`queries.py`), scan, rescore (`rescore_one_query`).

The search of one query is so short that its launches are the main cost. These functions only launch kernels with
`launch_kernel`, so a `LaunchSequence` can launch them again for another query without Triton or torch.

    python -m pytest tests/kernels/test_search_one_query.py
"""

from __future__ import annotations

from typing import Any, cast

import torch
import triton

from ridgeline.kernels.search import inverted_lists, rescore, scalar_codes, scan
from ridgeline.kernels.search import queries as search_queries
from ridgeline.kernels.search.inverted_lists import scan_lists
from ridgeline.kernels.search.queries import (
    QueryWords,
    Rounding,
    prepare_and_probe,
    prepare_one_query,
    prepare_queries,
)
from ridgeline.kernels.search.rescore import rescore_one_query, rescore_within_margin
from ridgeline.kernels.search.scalar_codes import allocate_digits, rescan_codes, scan_codes, scan_sketch
from ridgeline.kernels.search.scan import scan_rows
from ridgeline.kernels.search.search import Grid, choose_candidate_count
from ridgeline.kernels.search.top_k import allocate_groups, choose_group_count

Result = tuple[torch.Tensor, torch.Tensor]


def can_search_one_query(queries: torch.Tensor, rows: torch.Tensor, k: int, candidates: int | None) -> bool:
    """Return whether `search_rows_one_query` supports this search."""
    candidate_count = candidates or choose_candidate_count(k)
    return bool(len(queries) == 1 and len(rows) > 0 and candidate_count <= rescore.MAX_ONE_QUERY_CANDIDATES)


def can_search_one_query_in_lists(centres: torch.Tensor, probes: int) -> bool:
    """Return whether `search_lists_one_query` supports this number of lists and probes."""
    return len(centres) <= search_queries.MAX_PROBED_LISTS and min(probes, len(centres)) <= search_queries.MAX_PROBES


def search_rows_one_query(
    queries: torch.Tensor,
    unit: bool,
    rows: torch.Tensor,
    out: Result,
    *,
    metric: str = "ip",
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    ids: torch.Tensor | None = None,
    grid: Grid | None = None,
    refine: torch.Tensor | None = None,
    candidates: int | None = None,
    rounding: Rounding | None = None,
    early: bool = False,
) -> torch.Tensor:
    """Search all rows for one query.

    queries [1, D] of any float type, not normalised; unit: normalise it. Writes out: scores float32 [1, k] and numbers
    int64 [1, k], as `search_rows` returns them. Returns the norm [1]. A query that is not finite gets nan and -1.
    rounding: as for many queries; the search does not need it, but the same kernel then serves both.
    early: each kernel may start before its predecessor ends, and waits for it on the GPU (programmatic dependent
    launch).
    """
    words = None
    if grid is None:
        prepared, norms, _ = prepare_queries(queries, unit, rounding, early=early)
    else:
        (prepared, norms), words = prepare_one_query(queries, unit, grid, metric=metric, early=early)
    rescore_source: dict[str, Any] = {}
    tile = scan.SCAN_TILE if words is None else scalar_codes.CODE_TILE
    candidate_count = candidates or choose_candidate_count(out[0].shape[1])
    scores, maxima, groups = allocate_scores(len(rows), tile, rows.device)
    if words is None:
        scan_rows(prepared, rows, allowed=allowed, l2=metric == "l2", out=(scores, maxima), groups=groups, early=early)
    else:
        scan_codes(words, rows, bias=bias, allowed=allowed, out=(scores, maxima), groups=groups, early=early)
        if refine is None and grid is not None:
            rescore_source = {"step": grid[0], "middle": grid[1]}
    rescore_one_query(
        prepared, norms, rows if refine is None else refine, scores, maxima, out, tile=tile,
        candidate_count=candidate_count, metric=metric, ids=ids, groups=groups, early=early, **rescore_source,
    )  # fmt: skip
    return norms


def search_sketch_one_query(
    queries: torch.Tensor,
    unit: bool,
    rows: torch.Tensor,
    out: Result,
    *,
    sketch: torch.Tensor,
    grid: Grid,
    refine: torch.Tensor,
    candidates: int,
    metric: str = "ip",
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    ids: torch.Tensor | None = None,
    early: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Like `search_rows_one_query` for codes with finer rows, but scan the sketch first.

    Returns the norm [1] of the query and whether the sketch sufficed. There are five launches: prepare the query, scan
    the sketch, rescore all rows within a margin of the best; then the scan of the codes and its rescoring, which end at
    once if the sketch sufficed.
    """
    digits = allocate_digits(sketch)
    (prepared, norms), words = prepare_one_query(queries, unit, grid, metric=metric, digits=digits, early=early)
    tiles, tile, _ = sketch.shape
    scores, maxima, groups = allocate_scores(tiles * tile, tile, rows.device)
    scan_sketch(digits, sketch, len(rows), (scores, maxima), bias=bias, allowed=allowed, groups=groups, early=early)
    done = rescore_within_margin(
        prepared, norms, refine, scores, maxima, cast("torch.Tensor", groups), digits[1], out,
        tile=tile, candidate_count=candidates, metric=metric, ids=ids, early=early,
    )  # fmt: skip
    scores, maxima, groups = allocate_scores(len(rows), scalar_codes.CODE_TILE, rows.device)
    query_words = cast("QueryWords", words)
    rescan_codes(query_words, rows, (scores, maxima), done, bias=bias, allowed=allowed, groups=groups, early=early)
    rescore_one_query(
        prepared, norms, refine, scores, maxima, out, tile=scalar_codes.CODE_TILE, candidate_count=candidates,
        metric=metric, ids=ids, groups=groups, done=done, early=early,
    )  # fmt: skip
    return norms, done


def can_search_by_sketch(count: int, candidates: int) -> bool:
    """Return whether there are enough rows for groups of tiles, from which the margin is computed."""
    return candidates <= rescore.MAX_ONE_QUERY_CANDIDATES and _choose_group_count(count, scalar_codes.SKETCH_TILE) > 0


def _choose_group_count(count: int, tile: int) -> int:
    return choose_group_count(_count_tiles(count, tile), rescore.ONE_QUERY_CAPACITY)


def _count_tiles(count: int, tile: int) -> int:
    """A multiple of 16, because kernels read several at a time. The maximum of a tile without rows is -inf."""
    size: int = triton.cdiv(triton.cdiv(count, tile), 16) * 16
    return size


def allocate_scores(
    count: int, tile: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Allocate the scores of one query, the maxima of tiles, and the maxima of groups of tiles."""
    return (
        torch.empty((1, count), dtype=torch.float32, device=device),
        torch.full((1, _count_tiles(count, tile)), float("-inf"), dtype=torch.float32, device=device),
        allocate_groups(_choose_group_count(count, tile), device),
    )


def search_lists_one_query(
    queries: torch.Tensor,
    unit: bool,
    centres: torch.Tensor,
    starts: torch.Tensor,
    longest_list: int,
    rows: torch.Tensor,
    probes: int,
    out: Result,
    *,
    metric: str = "ip",
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    ids: torch.Tensor | None = None,
    grid: Grid | None = None,
    refine: torch.Tensor | None = None,
    places: torch.Tensor | None = None,
    candidates: int | None = None,
    early: bool = False,
) -> torch.Tensor:
    """Search the nearest lists for one query; arguments as in `search_rows_one_query` and `search_lists`."""
    probes = min(probes, centres.shape[0])
    tiles_per_list = triton.cdiv(longest_list, inverted_lists.LIST_TILE)
    step = None if grid is None else grid[0]
    (prepared, norms), scan_query, lists = prepare_and_probe(
        queries, unit, centres, probes, metric=metric, step=step, early=early
    )
    options: dict[str, Any] = {"bias": bias} if grid is not None else {"l2": metric == "l2"}
    rescore_source: dict[str, Any] = {}
    if refine is not None:
        rescore_source = {"places": places}
    elif grid is not None:
        rescore_source = {"step": grid[0], "middle": grid[1]}
    scores, maxima, begin, end = scan_lists(
        scan_query, rows, lists, starts, tiles_per_list, allowed=allowed, early=early, **options
    )
    rescore_one_query(
        prepared, norms, rows if refine is None else refine, scores, maxima, out, tile=inverted_lists.LIST_TILE,
        candidate_count=candidates or choose_candidate_count(out[0].shape[1]), metric=metric, starts=begin, ends=end,
        ids=ids, early=early, **rescore_source,
    )  # fmt: skip
    return norms
