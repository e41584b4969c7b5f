"""One query in three launches: made ready (`search_begin`), scanned, finished (`search_finish`).

A search of one query is over so soon that the launches in a row are what is left to save. Nothing here but kernels
launched through `direct`, so that they can be launched again for another query without Triton or torch between.

    python -m pytest tests/kernels/test_search_short.py
"""

from __future__ import annotations

from typing import Any, cast

import torch
import triton

from ridgeline.kernels.search import begin as search_begin
from ridgeline.kernels.search import bytes as search_bytes
from ridgeline.kernels.search import finish as search_finish
from ridgeline.kernels.search import groups as search_groups
from ridgeline.kernels.search import lists as search_lists
from ridgeline.kernels.search import margin as search_margin
from ridgeline.kernels.search import scan as search_scan
from ridgeline.kernels.search import sketch as search_sketch
from ridgeline.kernels.search.exact import Grid, candidates_for

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
    wanted = candidates or candidates_for(out[0].shape[1])
    scores, maxima, groups = room_for(len(rows), tile, wanted, rows.device)
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


def sketched(
    queries: torch.Tensor,
    unit: bool,
    rows: torch.Tensor,
    out: Answer,
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
    """As `flat` of codes with finer rows, by half of each code first; the query's norm [1] and whether that sufficed.

    Five launches: the query made ready, the halves scanned, all rows within a margin of the best settled; and, which
    end at once where that was enough, the scan of the codes and its finish.
    """
    digits = search_sketch.digits_for(sketch)
    (ready, norms), words = search_begin.prepare(queries, unit, grid, metric=metric, digits=digits, early=early)
    tiles, tile, _ = sketch.shape
    scores, maxima, groups = room_for(tiles * tile, tile, candidates, rows.device)
    search_sketch.scan(
        digits, sketch, len(rows), (scores, maxima), bias=bias, allowed=allowed, groups=groups, early=early
    )
    done = search_margin.settle(
        ready, norms, refine, scores, maxima, cast("torch.Tensor", groups), digits[1], out,
        tile=tile, wanted=candidates, metric=metric, ids=ids, early=early,
    )  # fmt: skip
    scores, maxima, groups = room_for(len(rows), search_bytes.TILE, candidates, rows.device)
    whole = cast("search_begin.Words", words)
    search_bytes.scan_again(whole, rows, (scores, maxima), done, bias=bias, allowed=allowed, groups=groups, early=early)
    search_finish.finish(
        ready, norms, refine, scores, maxima, out, tile=search_bytes.TILE, wanted=candidates, metric=metric, ids=ids,
        groups=groups, done=done, early=early,
    )  # fmt: skip
    return norms, done


def fits_sketch(count: int, candidates: int) -> bool:
    """Whether there are so many rows that their tiles are told to groups, on which the margin stands."""
    return _groups_for(count, search_sketch.TILE, candidates) > 0


def _groups_for(count: int, tile: int, wanted: int) -> int:
    return search_groups.groups_for(_tiles_for(count, tile), search_finish.lines(wanted))


def _tiles_for(count: int, tile: int) -> int:
    """In whole sixteens: they are read several at a time. Tiles that are not there have found nothing."""
    size: int = triton.cdiv(triton.cdiv(count, tile), 16) * 16
    return size


def room_for(
    count: int, tile: int, wanted: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """For one query's scores, the best of each tile, and of groups of tiles."""
    return (
        torch.empty((1, count), dtype=torch.float32, device=device),
        torch.full((1, _tiles_for(count, tile)), float("-inf"), dtype=torch.float32, device=device),
        search_groups.made(_groups_for(count, tile, wanted), device),
    )


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
