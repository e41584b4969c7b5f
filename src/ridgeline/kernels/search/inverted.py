"""The k best rows of the nearest lists, for each query: the lists, their tiles, their rows, float64 at the end.

What comes back is exact over the lists that were looked into (for many queries but for the rounding of `search_batch`,
whose candidates have a margin); how good that is, the index has to measure. Nothing here waits for the GPU.

    python -m pytest tests/kernels/test_search_inverted.py
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from ridgeline.kernels.search import batch as search_batch
from ridgeline.kernels.search import codes as search_codes
from ridgeline.kernels.search import lists as search_lists
from ridgeline.kernels.search import select as search_select
from ridgeline.kernels.search import settle as search_settle
from ridgeline.kernels.search.exact import Grid, by_sorting, candidates_for, nothing

FEW = 8  # queries that are scanned each for itself
ROOM_FOR_SCORES = 1 << 26  # float32 at a time, where they are kept


def search(
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """queries float32 [Q, D] → scores float32 [Q, k], numbers int64 [Q, k], as of `search_exact.one`.

    centres float32 [C, D]; rows [N, ·] stand list by list, starts int32 [C + 1]; longest_list: the most rows in one.
    bias, allowed, ids [N] are in the order of rows. Rows are values [N, D], codes int8 [N, D'] with `grid`, or product
    codes uint8 [N, parts] of a row less its centre with `books` [parts, 256, D / parts]. refine [M, D]: the rows from
    which candidates are computed again, the row n of the lists being refine[places[n]] (without places: refine[n]).
    """
    count, many = rows.shape[0], queries.shape[0]
    wanted = candidates or candidates_for(k)
    probes = min(probes, centres.shape[0])
    most = triton.cdiv(longest_list, search_lists.TILE)
    if not count or not many or not probes:
        return nothing(queries, k, metric)
    room = max(1, ROOM_FOR_SCORES // (probes * most * search_lists.TILE))
    whole = books is not None or wanted > search_settle.MOST  # all scores are there at once
    if whole and many > room:
        parts = [
            search(
                queries[at : at + room], centres, starts, longest_list, rows, k, probes, metric=metric, bias=bias,
                allowed=allowed, ids=ids, grid=grid, books=books, refine=refine, places=places, candidates=candidates,
            )
            for at in range(0, many, room)
        ]  # fmt: skip
        return torch.cat([v for v, _ in parts]), torch.cat([n for _, n in parts])
    factor = 2.0 if metric == "l2" else 1.0
    lists = search_lists.probe(queries, centres, probes, metric=metric)
    asked = queries
    if grid is not None:
        # What the middles add is the same for all rows: only the order of scores counts until the last sums.
        asked, factor = queries * (grid[0] * factor), 1.0
        rows = rows[:, : queries.shape[1]]
    rest: dict[str, Any] = {"bias": bias, "allowed": allowed, "factor": factor}
    plain: dict[str, Any] | None = (
        {"allowed": allowed, "l2": True} if metric == "l2" and grid is None and books is None else None
    )
    scores_by = "tile"
    if books is not None:
        scores, maxima, begin, end = search_codes.scan(queries, centres, books, rows, lists, starts, most, **rest)
    elif many <= FEW or whole:
        scores, maxima, begin, end = search_lists.scan(asked, rows, lists, starts, most, **(plain or rest))
    else:
        unknown = torch.ones(1, dtype=torch.float32, device=rows.device)  # the error is not asked for here
        small, size, _ = search_batch.rounded(asked, rows.dtype, unknown)
        maxima = search_lists.maxima(small, size, rows, lists, starts, most, **rest)
        begin, end = search_lists.tiles_of(lists, starts, most)
        scores_by = "slot"
    exact: dict[str, Any] = {"rows": None if books is not None else rows}
    if refine is not None:
        exact = {"rows": refine, "places": places}
    elif grid is not None:
        exact = {"rows": rows, "step": grid[0], "middle": grid[1]}
    if wanted > search_settle.MOST:
        return _sorted(queries, scores, begin, end, k, wanted, metric, ids, exact)
    tiles, _ = search_select.picked(maxima, wanted)
    if scores_by == "slot":
        scores = search_batch.rescore(
            asked, rows, tiles, tile=search_lists.TILE, starts=begin, ends=end, **(plain or rest)
        )
    values, numbers = search_settle.settle(
        queries, scores=scores, tiles=tiles, k=k, tile=search_lists.TILE, candidates=wanted, metric=metric,
        starts=begin, ends=end, scores_by=scores_by, ids=ids, **exact,
    )  # fmt: skip
    if exact["rows"] is None and metric == "l2":
        values = (values + queries.square().sum(1)[:, None]).clamp_min_(0)  # -(2·q·x - |x|²) + |q|²
    return values, numbers


def _sorted(
    queries: torch.Tensor, scores: torch.Tensor, begin: torch.Tensor, end: torch.Tensor, k: int, wanted: int,
    metric: str, ids: torch.Tensor | None, exact: dict[str, Any],
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """For large k: each query by itself through torch, its scores at the rows' own places."""
    tile = search_lists.TILE
    row = begin[:, :, None] + torch.arange(tile, dtype=torch.int32, device=begin.device)
    there = row < end[:, :, None]
    scores = torch.where(there, scores.view(row.shape), float("-inf")).flatten(1)
    row = torch.where(there, row, 0).flatten(1).long()
    found = []
    for q in range(len(queries)):
        place = row[q] if exact.get("places") is None else exact["places"][row[q]].long()
        names = row[q] if ids is None else ids[row[q]]
        given = {**exact, "places": None if exact["rows"] is None else place}
        found.append(
            by_sorting(
                queries[q : q + 1], scores=scores[q : q + 1], k=k, metric=metric, ids=names, wanted=wanted, **given
            )
        )
    return torch.cat([v for v, _ in found]), torch.cat([n for _, n in found])
