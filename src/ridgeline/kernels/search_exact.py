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

from ridgeline.kernels import search_batch, search_scan, search_select, search_settle

MARGIN = 4  # candidates beyond k, at least
FEWEST = 16  # candidates, at least
ROOM_FOR_SCORES = 1 << 26  # float32 at a time, where they are kept


def one(
    queries: torch.Tensor,
    rows: torch.Tensor,
    k: int,
    *,
    metric: str = "ip",
    bias: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    ids: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """queries float32 [Q, D], rows [N, D] → scores float32 [Q, k], numbers int64 [Q, k]; for one or a few queries.

    metric "ip" (higher is nearer), or "l2": the squared distance, which needs bias = -|x|² float32 [N]. For the
    cosine give unit rows and queries. allowed uint8 or bool [N]: rows that may be found. ids int64 [N]: their names.
    """
    if rows.shape[0] == 0:
        return nothing(queries, k, metric)
    factor = 2.0 if metric == "l2" else 1.0
    scores, maxima = search_scan.scan(queries, rows, bias=bias, allowed=allowed, factor=factor)
    wanted = candidates_for(k)
    if wanted > search_settle.MOST:
        return by_sorting(queries, rows, scores, k, metric=metric, ids=ids)
    tiles, _ = search_select.pick(maxima, search_select.coarse(maxima), wanted)
    return search_settle.settle(
        queries, rows, scores, tiles, k, tile=search_scan.TILE, candidates=wanted, metric=metric, ids=ids
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
    picked: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for many queries. longest float32 [1]: no row's norm is larger. picked: tiles rescored per query."""
    wanted = candidates_for(k)
    if rows.shape[0] == 0 or wanted > search_settle.MOST:
        return in_turn(queries, rows, k, metric=metric, bias=bias, allowed=allowed, ids=ids)
    factor = 2.0 if metric == "l2" else 1.0
    small, size, error = search_batch.rounded(queries, rows.dtype, longest, metric)
    maxima = search_batch.maxima(small, size, rows, bias=bias, allowed=allowed, factor=factor)
    groups = search_select.coarse(maxima)
    tiles, bound = search_select.pick(maxima, groups, picked or wanted)
    scores = search_batch.rescore(queries, rows, tiles, bias=bias, allowed=allowed, factor=factor)
    settled = torch.empty(queries.shape[0], dtype=torch.uint8, device=rows.device)

    def settle(**rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return search_settle.settle(
            queries, rows, scores, tiles, k, tile=search_batch.TILE, candidates=wanted, metric=metric, by_slot=True,
            ids=ids, **rest,
        )  # fmt: skip

    out = settle(certificate=(bound, error, settled))
    # All over again for those queries whose answer is not certain; nearly always for none.
    search_batch.again(queries, rows, maxima, settled, bias=bias, allowed=allowed, factor=factor)
    search_select.coarse(maxima, settled, groups)
    search_select.pick(maxima, groups, picked or wanted, settled, (tiles, bound))
    search_batch.rescore(
        queries, rows, tiles, bias=bias, allowed=allowed, factor=factor, done=settled, out=scores
    )  # fmt: skip
    return settle(done=settled, out=out)


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
    rows: torch.Tensor,
    scores: torch.Tensor,
    k: int,
    *,
    metric: str = "ip",
    ids: torch.Tensor | None = None,
    step: torch.Tensor | None = None,
    middle: torch.Tensor | None = None,
    places: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """For large k: from scores [Q, N] through torch's own top-k and sort. Arguments as of `search_settle.settle`."""
    values, numbers = nothing(queries, k, metric)
    wanted = min(candidates_for(k), scores.shape[1])
    order = (scores + 0.0).view(torch.int32)
    order = order ^ ((order >> 31) & 0x7FFFFFFF)
    place = torch.arange(scores.shape[1], device=scores.device)
    keys = (order.long() << 32) | (0x7FFFFFFF - place)
    row = 0x7FFFFFFF - (keys.topk(wanted, dim=1).values & 0xFFFFFFFF)
    there = scores.gather(1, row) > float("-inf")
    x = rows[row if places is None else places[row].long()].double()
    if step is not None and middle is not None:
        x = middle.double() + step.double() * x
    q = queries.double()[:, None, :]
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
