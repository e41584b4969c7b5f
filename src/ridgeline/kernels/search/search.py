"""Search over all rows (exact) or over the nearest inverted lists: scan, select tiles, rescore in float64.

Few queries are scanned in float32 (`scan_rows`), many on the matrix units (`compute_tile_maxima`). The scan finds only
candidates, a few more than k; the returned scores and their order come from float64 sums over the stored values. Over
lists, the result is exact for the lists that were scanned (for many queries except for the rounding of
`round_queries`, which the extra candidates cover); the index measures the recall. Nothing waits for the GPU, so a call
can be captured in a CUDA graph.

    python -m pytest tests/kernels/test_search_exact.py tests/kernels/test_search_inverted.py
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from ridgeline.kernels.search import inverted_lists, scalar_codes, scan
from ridgeline.kernels.search import rescore as search_rescore
from ridgeline.kernels.search.inverted_lists import (
    compute_list_maxima,
    compute_list_tiles,
    find_nearest_lists,
    scan_lists,
)
from ridgeline.kernels.search.product_codes import scan_product_codes
from ridgeline.kernels.search.queries import RoundedQueries, Rounding, round_queries
from ridgeline.kernels.search.rescore import rescore_candidates
from ridgeline.kernels.search.scalar_codes import pack_queries, scan_codes
from ridgeline.kernels.search.scan import (
    compute_tile_maxima,
    recompute_tile_maxima,
    rescore_tiles,
    scan_rows,
)
from ridgeline.kernels.search.top_k import select_tiles

EXTRA_CANDIDATES = 4  # beyond k, at least
EXTRA_SHARE = 16  # over lists: one more candidate for this many results
MIN_CANDIDATES = 16
MAX_SCORES = 1 << 26  # float32 scores in memory at a time

Grid = tuple[torch.Tensor, torch.Tensor]  # step and middle of codes


def search_rows(
    queries: torch.Tensor,
    rows: torch.Tensor,
    k: int,
    *,
    metric: str = "ip",
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    ids: torch.Tensor | None = None,
    grid: Grid | None = None,
    refine: torch.Tensor | None = None,
    candidates: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Search all rows for one or a few queries: scores float32 [Q, k], numbers int64 [Q, k].

    queries     float32 [Q, D]; for the cosine, rows and queries have unit length
    rows        [N, D], or with `grid` codes int8 [N, D'] from `encode_scalar`
    metric      "ip" (higher is nearer), or "l2" for the squared distance
    bias        float32 [N]: -|x|², which codes and `search_rows_batch` need for "l2"
    allowed     uint8 or bool [N]: rows that may be returned
    ids         int64 [N]: numbers to return instead of row numbers
    grid        step and middle [D] of codes
    refine      [N, D]: rows from which the candidates are computed in float64; by default the scanned rows
    candidates  how many rows are computed in float64
    """
    candidate_count = candidates or choose_candidate_count(k)
    if rows.shape[0] == 0:
        return empty_result(queries, k, metric)
    if grid is None:
        scores, maxima = scan_rows(queries, rows, allowed=allowed, l2=metric == "l2")
        tile = scan.SCAN_TILE
    else:
        words = pack_queries(queries, *grid, metric)
        scores, maxima = scan_codes(words, rows, bias=bias, allowed=allowed)
        tile = scalar_codes.CODE_TILE
    rescore_rows = _choose_rescore_rows(queries, rows, grid, refine)
    if candidate_count > search_rescore.MAX_CANDIDATES:
        return rank_by_sorting(
            queries, scores=scores, k=k, metric=metric, ids=ids, candidate_count=candidate_count, **rescore_rows
        )
    tiles, _ = select_tiles(maxima, candidate_count)
    return rescore_candidates(
        queries,
        scores=scores,
        tiles=tiles,
        k=k,
        tile=tile,
        candidates=candidate_count,
        metric=metric,
        ids=ids,
        **rescore_rows,
    )


def search_rows_batch(
    queries: torch.Tensor,
    rows: torch.Tensor,
    k: int,
    longest: torch.Tensor,
    *,
    metric: str = "ip",
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    ids: torch.Tensor | None = None,
    grid: Grid | None = None,
    refine: torch.Tensor | None = None,
    candidates: int | None = None,
    rounded: RoundedQueries | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Like `search_rows` for many queries. longest float32 [1]: the largest norm of a row (of codes: as codes).

    rounded: the queries by `choose_rounding`, if they are there already.
    """
    candidate_count = candidates or choose_candidate_count(k)
    if rows.shape[0] == 0 or queries.shape[0] == 0 or candidate_count > search_rescore.MAX_CANDIDATES:
        return search_rows_in_parts(
            queries, rows, k, metric=metric, bias=bias, allowed=allowed, ids=ids, grid=grid, refine=refine,
            candidates=candidates,
        )  # fmt: skip
    factor = 2.0 if metric == "l2" else 1.0
    scan_queries, shift = queries, None
    if grid is not None:
        scan_queries, shift, factor = queries * (grid[0] * factor), (queries * (grid[1] * factor)).sum(1), 1.0
        rows = rows[:, : queries.shape[1]]
    values, size, error = rounded or round_queries(queries, choose_rounding(rows.dtype, longest, metric, grid))
    options: dict[str, Any] = {"bias": bias, "allowed": allowed, "factor": factor}
    maxima = compute_tile_maxima(values, size, rows, **options)
    if grid is None and metric == "l2":
        options = {"allowed": allowed, "l2": True}
    # The same kernels run again for queries without a certificate, so the first time no query is done.
    none_done = torch.zeros(queries.shape[0], dtype=torch.uint8, device=rows.device) if refine is None else None
    tiles, bound = select_tiles(maxima, candidate_count, none_done)
    again = {} if refine is not None else {"maxima": maxima}
    scores = rescore_tiles(scan_queries, rows, tiles, **options, **again, done=none_done)

    def rescore(**more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return rescore_candidates(
            queries, scores=scores, tiles=tiles, k=k, tile=scan.BATCH_TILE, candidates=candidate_count, metric=metric,
            scores_by="slot", ids=ids, **_choose_rescore_rows(queries, rows, grid, refine), **more,
        )  # fmt: skip

    if refine is not None:
        return rescore()  # the choice of refined rows needs no certificate
    if shift is not None:
        bound += shift
    certified = torch.empty(queries.shape[0], dtype=torch.uint8, device=rows.device)
    certificate = (bound, error, certified)
    out = rescore(certificate=certificate, done=none_done)
    # Repeat the search for queries without a certificate: nearly always none.
    recompute_tile_maxima(scan_queries, rows, maxima, certified, (tiles, scores), **options)
    select_tiles(maxima, candidate_count, certified, (tiles, bound))
    rescore_tiles(scan_queries, rows, tiles, **options, **again, done=certified, out=scores)
    return rescore(certificate=certificate, done=certified, out=out)


def choose_rounding(
    dtype: torch.dtype, longest: torch.Tensor, metric: str = "ip", grid: Grid | None = None
) -> Rounding:
    """How `search_rows_batch` and `search_lists` round queries; with `grid` rows are codes."""
    if grid is None:
        return Rounding(dtype, longest, metric)
    return Rounding(dtype, longest, "ip", grid[0] * (2.0 if metric == "l2" else 1.0))


def _choose_rescore_rows(
    queries: torch.Tensor, rows: torch.Tensor, grid: Grid | None, refine: torch.Tensor | None
) -> dict[str, Any]:
    """The arguments that say what the float64 sums read."""
    if refine is not None or grid is None:
        return {"rows": rows if refine is None else refine}
    return {"rows": rows[:, : queries.shape[1]], "step": grid[0], "middle": grid[1]}


def search_rows_in_parts(
    queries: torch.Tensor, rows: torch.Tensor, k: int, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `search_rows` for a few queries at a time, because it stores all scores [Q, N]."""
    queries_per_part = max(1, MAX_SCORES // max(1, rows.shape[0]))
    parts = [
        search_rows(queries[at : at + queries_per_part], rows, k, **options)
        for at in range(0, queries.shape[0], queries_per_part)
    ]
    if not parts:
        return empty_result(queries, k, options.get("metric", "ip"))
    return torch.cat([v for v, _ in parts]), torch.cat([n for _, n in parts])


def choose_candidate_count(k: int) -> int:
    size: int = triton.next_power_of_2(max(MIN_CANDIDATES, k + EXTRA_CANDIDATES))
    return size


def empty_result(queries: torch.Tensor, k: int, metric: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result of a search without rows."""
    shape = (queries.shape[0], k)
    no_score = float("inf") if metric == "l2" else float("-inf")
    return (
        torch.full(shape, no_score, dtype=torch.float32, device=queries.device),
        torch.full(shape, -1, dtype=torch.int64, device=queries.device),
    )


def rank_by_sorting(
    queries: torch.Tensor,
    rows: torch.Tensor | None,
    scores: torch.Tensor,
    k: int,
    *,
    metric: str = "ip",
    ids: torch.Tensor | None = None,
    step: torch.Tensor | None = None,
    middle: torch.Tensor | None = None,
    places: torch.Tensor | None = None,
    candidate_count: int | None = None,
    row_numbers: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rank scores [Q, N] by torch's top-k and sort, for large k. Arguments as in `rescore_candidates`.

    row_numbers [Q, N]: the row of each score; by default its column.
    """
    values, numbers = empty_result(queries, k, metric)
    candidate_count = min(candidate_count or choose_candidate_count(k), scores.shape[1])
    order = (scores + 0.0).view(torch.int32)
    order = order ^ ((order >> 31) & 0x7FFFFFFF)
    position = torch.arange(scores.shape[1], device=scores.device)
    keys = (order.long() << 32) | (0x7FFFFFFF - position)
    column = 0x7FFFFFFF - (keys.topk(candidate_count, dim=1).values & 0xFFFFFFFF)
    row = column if row_numbers is None else row_numbers.gather(1, column)
    valid = scores.gather(1, column) > float("-inf")
    q = queries.double()[:, None, :]
    if rows is None:
        exact = scores.gather(1, column).double()
        exact = exact - q.square().sum(2) if metric == "l2" else exact
    else:
        x = rows[row if places is None else places[row].long()].double()
        if step is not None and middle is not None:
            x = middle.double() + step.double() * x
        exact = -(x - q).square().sum(2) if metric == "l2" else (x * q).sum(2)
    exact = torch.where(valid, exact, float("-inf"))
    number = torch.where(valid, row if ids is None else ids[row], torch.iinfo(torch.int64).max)
    number, by_number = number.sort(dim=1)
    exact, by_score = exact.gather(1, by_number).sort(dim=1, descending=True, stable=True)
    number = number.gather(1, by_score)
    filled = min(k, candidate_count)
    present = exact[:, :filled] > float("-inf")
    value = (-exact if metric == "l2" else exact)[:, :filled].float()
    values[:, :filled] = torch.where(present, value, values[:, :filled])
    numbers[:, :filled] = torch.where(present, number[:, :filled], -1)
    return values, numbers


def search_lists(
    queries: torch.Tensor,
    centres: torch.Tensor,
    starts: torch.Tensor,
    longest_list: int,
    rows: torch.Tensor,
    k: int,
    probes: int,
    *,
    metric: str = "ip",
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    ids: torch.Tensor | None = None,
    grid: Grid | None = None,
    books: torch.Tensor | None = None,
    refine: torch.Tensor | None = None,
    places: torch.Tensor | None = None,
    candidates: int | None = None,
    rounded: RoundedQueries | None = None,
    half: bool = False,
    early: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Search the nearest lists: scores float32 [Q, k], numbers int64 [Q, k], as `search_rows` returns them.

    centres float32 [C, D]; rows [N, ·] are stored list by list, starts int32 [C + 1]; longest_list: the largest number
    of rows in a list. bias, allowed, ids [N] are in the order of rows. Rows are values [N, D], codes int8 [N, D'] with
    `grid`, or product codes uint8 [N, parts] of a row less its centre with `books` [parts, 256, D / parts]. refine [M,
    D]: the rows from which candidates are computed in float64; row n of the lists is refine[places[n]] (without places:
    refine[n]). rounded: the queries by `choose_rounding`, if they are there already. half: of `find_nearest_lists`.
    early: as for one query; a search of few queries then uses the same kernel.
    """
    count, query_count = rows.shape[0], queries.shape[0]
    candidate_count = candidates or k + max(EXTRA_CANDIDATES, k // EXTRA_SHARE)
    probes = min(probes, centres.shape[0])
    needs_all_scores = books is not None or candidate_count > search_rescore.MAX_CANDIDATES
    tile = inverted_lists.LIST_TILE if needs_all_scores else inverted_lists.LIST_BATCH_TILE
    tiles_per_list = triton.cdiv(longest_list, tile)
    if not count or not query_count or not probes:
        return empty_result(queries, k, metric)
    queries_per_part = max(1, MAX_SCORES // (probes * tiles_per_list * tile))
    if needs_all_scores and query_count > queries_per_part:
        parts = [
            search_lists(
                queries[at : at + queries_per_part], centres, starts, longest_list, rows, k, probes, metric=metric,
                bias=bias, allowed=allowed, ids=ids, grid=grid, books=books, refine=refine, places=places,
                candidates=candidates, half=half, early=early,
            )
            for at in range(0, query_count, queries_per_part)
        ]  # fmt: skip
        return torch.cat([v for v, _ in parts]), torch.cat([n for _, n in parts])
    factor = 2.0 if metric == "l2" else 1.0
    lists = find_nearest_lists(queries, centres, probes, metric=metric, half=half)
    scan_queries = queries
    if grid is not None:
        # The middles add the same to all rows; until the float64 sums only the order of scores matters.
        scan_queries, factor = queries * (grid[0] * factor), 1.0
        rows = rows[:, : queries.shape[1]]
    options: dict[str, Any] = {"bias": bias, "allowed": allowed, "factor": factor}
    l2_options: dict[str, Any] | None = (
        {"allowed": allowed, "l2": True} if metric == "l2" and grid is None and books is None else None
    )
    scores_by = "tile"
    if books is not None:
        scores, maxima, begin, end = scan_product_codes(
            queries, centres, books, rows, lists, starts, tiles_per_list, **options
        )
    elif needs_all_scores:
        scores, maxima, begin, end = scan_lists(
            scan_queries, rows, lists, starts, tiles_per_list, early=early, **(l2_options or options)
        )
    else:
        if rounded is None:
            unit_norm = torch.ones(1, dtype=torch.float32, device=rows.device)  # the error is not used
            rounded = round_queries(queries, choose_rounding(rows.dtype, unit_norm, metric, grid))
        maxima = compute_list_maxima(rounded.values, rounded.size, rows, lists, starts, tiles_per_list, **options)
        begin, end = compute_list_tiles(lists, starts, tiles_per_list)
        scores_by = "slot"
    rescore_source: dict[str, Any] = {"rows": None if books is not None else rows}
    if refine is not None:
        rescore_source = {"rows": refine, "places": places}
    elif grid is not None:
        rescore_source = {"rows": rows, "step": grid[0], "middle": grid[1]}
    if candidate_count > search_rescore.MAX_CANDIDATES:
        return _rank_lists_by_sorting(queries, scores, begin, end, k, candidate_count, metric, ids, rescore_source)
    tiles, _ = select_tiles(maxima, candidate_count)
    if scores_by == "slot":
        scores = rescore_tiles(
            scan_queries,
            rows,
            tiles,
            tile=tile,
            starts=begin,
            ends=end,
            **(l2_options or options),
        )
    values, numbers = rescore_candidates(
        queries, scores=scores, tiles=tiles, k=k, tile=tile, candidates=candidate_count,
        metric=metric, starts=begin, ends=end, scores_by=scores_by, ids=ids, **rescore_source,
    )  # fmt: skip
    if rescore_source["rows"] is None and metric == "l2":
        values = (values + queries.square().sum(1)[:, None]).clamp_min_(0)  # -(2·q·x - |x|²) + |q|²
    return values, numbers


def _rank_lists_by_sorting(
    queries: torch.Tensor, scores: torch.Tensor, begin: torch.Tensor, end: torch.Tensor, k: int, candidate_count: int,
    metric: str, ids: torch.Tensor | None, rescore_source: dict[str, Any],
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Rank the scores of all tiles with torch, for large k."""
    tile = inverted_lists.LIST_TILE
    row = begin[:, :, None] + torch.arange(tile, dtype=torch.int32, device=begin.device)
    valid = row < end[:, :, None]
    return rank_by_sorting(
        queries,
        scores=torch.where(valid, scores.view(row.shape), float("-inf")).flatten(1),
        k=k,
        metric=metric,
        ids=ids,
        candidate_count=candidate_count,
        row_numbers=torch.where(valid, row, 0).flatten(1).long(),
        **rescore_source,
    )
