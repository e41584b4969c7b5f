"""The k best rows for each query, exact over what is stored: a scan, a choice of tiles, and float64 at the end.

Few queries: every row against every query in float32 (`search_scan`). Many: matrix units and tile maxima
(`search_batch`). Either way the scan finds candidates only, a few more than k; what is returned, and its order,
comes from float64 sums over the stored values. Nothing here waits for the GPU, so a call can be captured in a graph.

    python -m pytest tests/kernels/test_search_exact.py
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from ridgeline.kernels.search import batch as search_batch
from ridgeline.kernels.search import bytes as search_bytes
from ridgeline.kernels.search import scan as search_scan
from ridgeline.kernels.search import select as search_select
from ridgeline.kernels.search import settle as search_settle

MARGIN = 4  # candidates beyond k, at least
FEWEST = 16  # candidates, at least
ROOM_FOR_SCORES = 1 << 26  # float32 at a time, where they are kept

Grid = tuple[torch.Tensor, torch.Tensor]  # step and middle of codes


def one(
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
    """queries float32 [Q, D], rows [N, D] → scores float32 [Q, k], numbers int64 [Q, k]; for one or a few queries.

    metric "ip" (higher is nearer), or "l2": the squared distance; `many`, and codes, need bias = -|x|² float32 [N]
    then. For the cosine give unit rows and queries. allowed uint8 or bool [N]: rows that may be found. ids int64 [N]:
    their names.
    grid: step and middle [D] of rows that are codes of `search_bytes.encode`, int8 [N, D']. refine [N, D]: the rows
    from which the candidates (a power of two) are computed again; without it, from what was scanned.
    """
    wanted = candidates or candidates_for(k)
    if rows.shape[0] == 0:
        return nothing(queries, k, metric)
    if grid is None:
        scores, maxima = search_scan.scan(queries, rows, allowed=allowed, l2=metric == "l2")
        tile = search_scan.TILE
    else:
        words = search_bytes.words_of(queries, *grid, metric)
        scores, maxima = search_bytes.scan(words, rows, bias=bias, allowed=allowed)
        tile = search_bytes.TILE
    last = _last(queries, rows, grid, refine)
    if wanted > search_settle.MOST:
        return by_sorting(queries, scores=scores, k=k, metric=metric, ids=ids, wanted=wanted, **last)
    tiles, _ = search_select.picked(maxima, wanted)
    return search_settle.settle(
        queries, scores=scores, tiles=tiles, k=k, tile=tile, candidates=wanted, metric=metric, ids=ids, **last
    )


def many(
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for many queries. longest float32 [1]: no row's norm is larger (of codes: as codes)."""
    wanted = candidates or candidates_for(k)
    if rows.shape[0] == 0 or queries.shape[0] == 0 or wanted > search_settle.MOST:
        return in_turn(
            queries, rows, k, metric=metric, bias=bias, allowed=allowed, ids=ids, grid=grid, refine=refine,
            candidates=candidates,
        )  # fmt: skip
    factor = 2.0 if metric == "l2" else 1.0
    asked, shift = queries, None
    if grid is not None:
        asked, shift, factor = queries * (grid[0] * factor), (queries * (grid[1] * factor)).sum(1), 1.0
        rows = rows[:, : queries.shape[1]]
    small, size, error = search_batch.rounded(asked, rows.dtype, longest, metric if grid is None else "ip")
    rest: dict[str, Any] = {"bias": bias, "allowed": allowed, "factor": factor}
    maxima = search_batch.maxima(small, size, rows, **rest)
    if grid is None and metric == "l2":
        rest = {"allowed": allowed, "l2": True}
    tiles, bound = search_select.picked(maxima, wanted)
    scores = search_batch.rescore(asked, rows, tiles, **rest)

    def settle(**more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return search_settle.settle(
            queries, scores=scores, tiles=tiles, k=k, tile=search_batch.TILE, candidates=wanted, metric=metric,
            scores_by="slot", ids=ids, **_last(queries, rows, grid, refine), **more,
        )  # fmt: skip

    if refine is not None:
        return settle()  # which rows are refined is no matter of proof
    if shift is not None:
        bound += shift
    settled = torch.empty(queries.shape[0], dtype=torch.uint8, device=rows.device)
    out = settle(certificate=(bound, error, settled))
    # All over again for those queries whose answer is not certain; nearly always for none.
    search_batch.again(asked, rows, maxima, settled, **rest)
    search_select.picked(maxima, wanted, settled, (tiles, bound))
    search_batch.rescore(asked, rows, tiles, **rest, done=settled, out=scores)
    return settle(done=settled, out=out)


def _last(queries: torch.Tensor, rows: torch.Tensor, grid: Grid | None, refine: torch.Tensor | None) -> dict[str, Any]:
    """What the last, exact sums are taken from."""
    if refine is not None or grid is None:
        return {"rows": rows if refine is None else refine}
    return {"rows": rows[:, : queries.shape[1]], "step": grid[0], "middle": grid[1]}


def in_turn(queries: torch.Tensor, rows: torch.Tensor, k: int, **rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """`one` for a few queries at a time: their scores [Q, N] are all there at once."""
    few = max(1, ROOM_FOR_SCORES // max(1, rows.shape[0]))
    parts = [one(queries[at : at + few], rows, k, **rest) for at in range(0, queries.shape[0], few)]
    if not parts:
        return nothing(queries, k, rest.get("metric", "ip"))
    return torch.cat([v for v, _ in parts]), torch.cat([n for _, n in parts])


def candidates_for(k: int) -> int:
    size: int = triton.next_power_of_2(max(FEWEST, k + MARGIN))
    return size


def nothing(queries: torch.Tensor, k: int, metric: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What is found where there is nothing."""
    shape = (queries.shape[0], k)
    far = float("inf") if metric == "l2" else float("-inf")
    return (
        torch.full(shape, far, dtype=torch.float32, device=queries.device),
        torch.full(shape, -1, dtype=torch.int64, device=queries.device),
    )


def by_sorting(
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
    wanted: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """For large k: from scores [Q, N] through torch's own top-k and sort. Arguments as of `search_settle.settle`."""
    values, numbers = nothing(queries, k, metric)
    wanted = min(wanted or candidates_for(k), scores.shape[1])
    order = (scores + 0.0).view(torch.int32)
    order = order ^ ((order >> 31) & 0x7FFFFFFF)
    place = torch.arange(scores.shape[1], device=scores.device)
    keys = (order.long() << 32) | (0x7FFFFFFF - place)
    row = 0x7FFFFFFF - (keys.topk(wanted, dim=1).values & 0xFFFFFFFF)
    there = scores.gather(1, row) > float("-inf")
    q = queries.double()[:, None, :]
    if rows is None:
        exact = scores.gather(1, row).double()
        exact = exact - q.square().sum(2) if metric == "l2" else exact
    else:
        x = rows[row if places is None else places[row].long()].double()
        if step is not None and middle is not None:
            x = middle.double() + step.double() * x
        exact = -(x - q).square().sum(2) if metric == "l2" else (x * q).sum(2)
    exact = torch.where(there, exact, float("-inf"))
    number = torch.where(there, row if ids is None else ids[row], torch.iinfo(torch.int64).max)
    number, by_number = number.sort(dim=1)
    exact, by_score = exact.gather(1, by_number).sort(dim=1, descending=True, stable=True)
    number = number.gather(1, by_score)
    many = min(k, wanted)
    known = exact[:, :many] > float("-inf")
    shown = (-exact if metric == "l2" else exact)[:, :many].float()
    values[:, :many] = torch.where(known, shown, values[:, :many])
    numbers[:, :many] = torch.where(known, number[:, :many], -1)
    return values, numbers
