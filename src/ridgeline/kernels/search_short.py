"""One query in three launches: made ready (`search_begin`), scanned, finished (`search_finish`).

A search of one query is over so soon that the launches in a row are what is left to save. Nothing here but kernels
launched through `direct`, so that they can be launched again for another query without Triton or torch between.

    python -m pytest tests/kernels/test_search_short.py
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from ridgeline.kernels import search_begin, search_bytes, search_finish, search_groups, search_lists, search_scan
from ridgeline.kernels.search_exact import Grid, candidates_for

Answer = tuple[torch.Tensor, torch.Tensor]


def fits(queries: torch.Tensor, rows: torch.Tensor, k: int, candidates: int | None) -> bool:
    wanted = candidates or candidates_for(k)
    return bool(len(queries) == 1 and len(rows) > 0 and wanted <= search_finish.MOST)


def fits_lists(centres: torch.Tensor, probes: int) -> bool:
    return len(centres) <= search_begin.MOST_LISTS and min(probes, len(centres)) <= search_begin.MOST_PROBES


def flat(
    queries: torch.Tensor,
    unit: bool,
    rows: torch.Tensor,
    out: Answer,
    *,
    metric: str = "ip",
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    ids: torch.Tensor | None = None,
    grid: Grid | None = None,
    refine: torch.Tensor | None = None,
    candidates: int | None = None,
    early: bool = False,
) -> torch.Tensor:
    """queries [1, D] of any float type, as they came → out: scores float32 [1, k], numbers int64 [1, k]; its norm [1].

    As of `search_exact.one`; a query that is not finite finds nothing: nan and -1. early: each kernel may begin before
    the one ahead has ended, and waits for it by itself (`direct.overlapping`).
    """
    (ready, norms), words = search_begin.prepare(queries, unit, grid, metric=metric, early=early)
    exact: dict[str, Any] = {}
    tile = search_scan.TILE if words is None else search_bytes.TILE
    # Tiles that are not there have found nothing: in whole sixteens they are read several at a time.
    tiles = triton.cdiv(triton.cdiv(len(rows), tile), 16) * 16
    scores = torch.empty((1, len(rows)), dtype=torch.float32, device=rows.device)
    maxima = torch.full((1, tiles), float("-inf"), dtype=torch.float32, device=rows.device)
    wanted = candidates or candidates_for(out[0].shape[1])
    groups = search_groups.made(search_groups.groups_for(tiles, search_finish.lines(wanted)), rows.device)
    if words is None:
        search_scan.scan(
            ready, rows, allowed=allowed, l2=metric == "l2", out=(scores, maxima), groups=groups, early=early
        )
    else:
        search_bytes.scan(words, rows, bias=bias, allowed=allowed, out=(scores, maxima), groups=groups, early=early)
        if refine is None and grid is not None:
            exact = {"step": grid[0], "middle": grid[1]}
    search_finish.finish(
        ready, norms, rows if refine is None else refine, scores, maxima, out, tile=tile,
        wanted=wanted, metric=metric, ids=ids, groups=groups, early=early, **exact,
    )  # fmt: skip
    return norms


def lists(
    queries: torch.Tensor,
    unit: bool,
    centres: torch.Tensor,
    starts: torch.Tensor,
    longest_list: int,
    rows: torch.Tensor,
    probes: int,
    out: Answer,
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
    """The same among the nearest lists; as of `search_inverted.search`."""
    probes = min(probes, centres.shape[0])
    most = triton.cdiv(longest_list, search_lists.TILE)
    step = None if grid is None else grid[0]
    (ready, norms), asked, near = search_begin.nearest(
        queries, unit, centres, probes, metric=metric, step=step, early=early
    )
    how: dict[str, Any] = {"bias": bias} if grid is not None else {"l2": metric == "l2"}
    exact: dict[str, Any] = {}
    if refine is not None:
        exact = {"places": places}
    elif grid is not None:
        exact = {"step": grid[0], "middle": grid[1]}
    scores, maxima, begin, end = search_lists.scan(asked, rows, near, starts, most, allowed=allowed, early=early, **how)
    search_finish.finish(
        ready, norms, rows if refine is None else refine, scores, maxima, out, tile=search_lists.TILE,
        wanted=candidates or candidates_for(out[0].shape[1]), metric=metric, starts=begin, ends=end, ids=ids,
        early=early, **exact,
    )  # fmt: skip
    return norms
