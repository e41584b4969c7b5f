"""The k best items of many users: scored, masked and ranked on the device, a block of users at a time.

    ranker = ByVectors(semantic.items, "cuda")
    items, scores = ranker.top_items(ranker.embed_users(histories), histories, 10)

Item vectors or EASE's weights go to the device once, histories as row and column numbers, never as a matrix; only the
results come back. On a GPU, products in float16 find a few more items than requested, and products in float32 choose
between them. For a small batch of users the host computes the profiles and the final choice, so that the device gets
one request: otherwise it would wait for the host most of the time. On a CPU, native loops and NumPy do all the work,
because synchronizing the threads of torch or BLAS takes longer than the work.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.native import dot_floats
from ridgeline.recommend.data import Floats, Histories, Ints
from ridgeline.recommend.weights import HALF_LIFE, MIN_STARS, preference_weights

USER_BLOCKS = {"cpu": 1_024, "cuda": 8_192}  # users per block of scores [users, items]
EXTRA_CANDIDATES = 6  # items beyond k, because float16 may misorder the last ones
SMALL_HISTORY = 10_000  # entries; the CPU computes their weights faster than a GPU
SMALL_BATCH_USERS, SMALL_BATCH_LIKES = 4, 1_000  # limits of a batch whose profiles the CPU computes faster

TopItems = tuple[Ints, Floats]
StageCallback = Callable[[str], None]  # called after each stage; a GPU may still be working on it


def _ignore_stage(_stage: str) -> None:
    """Do nothing."""


class VectorRanker:
    """Ranks by item vectors, float32 [items, dim] of unit length; `dtype` is the type of the products."""

    def __init__(self, items: NDArray[Any], device: str = "cpu", dtype: Any = None) -> None:
        import torch

        self.device, self._host_items = device, np.ascontiguousarray(items, np.float32)
        self._items = _to_device(self._host_items, device)
        self._transposed = self._items.to(dtype or (torch.float16 if _is_gpu(device) else torch.float32)).T

    def embed_users(self, liked: Histories) -> Any:
        """Return the weighted means of liked items: [n, dim] float32 of unit length, 0 without likes. They are on the
        device, except for a small batch."""
        if _is_small_batch(liked) and (self._approximate or not _is_gpu(self.device)):
            return _profiles(self._host_items, liked)
        import torch
        from torch.nn.functional import embedding_bag

        rows, starts = self._send(liked.items), self._send(liked.starts)
        weights = (
            self._send(preference_weights(liked))
            if len(liked.items) <= SMALL_HISTORY
            else _device_weights(self._send(liked.stars), starts)
        )
        summed = embedding_bag(rows, self._items, starts[:-1], mode="sum", per_sample_weights=weights)
        length = torch.linalg.vector_norm(summed, dim=1, keepdim=True)
        return torch.where(length > 1e-12, summed / length.clamp_min(1e-12), 0.0)

    def top_items(self, users: Any, seen: Histories, k: int, on_stage: StageCallback = _ignore_stage) -> TopItems:
        """Return (items int64 [n, k], scores float32 [n, k]) without seen items; −1 if no item remains."""
        import torch

        if _is_small_batch(seen) and isinstance(users, np.ndarray):
            if not _is_gpu(self.device):
                return self._top_on_cpu(users, seen, k, on_stage)
            if self._approximate:
                return self._top_small_batch(users, seen, k, on_stage)
        left = self._send(users) if isinstance(users, np.ndarray) else users

        def scores(first: int, last: int) -> Any:
            return left[first:last].to(self._transposed.dtype) @ self._transposed

        def exact(first: int, last: int, rows: Any) -> Any:
            return torch.einsum("ukd,ud->uk", self._items[rows], left[first:last])

        return _rank_blocks(scores, exact if self._approximate else None, len(left), seen, k, self.device, on_stage)

    def _top_on_cpu(self, users: NDArray[Any], seen: Histories, k: int, on_stage: StageCallback) -> TopItems:
        """Rank with native loops and NumPy."""
        _check_request(len(users), seen, k)
        k, threads = min(k, seen.width), len(os.sched_getaffinity(0))
        scores = np.empty((len(users), len(self._host_items)), np.float32)
        for user, out in zip(np.ascontiguousarray(users, np.float32), scores, strict=True):
            dot_floats(user, self._host_items, out, threads)
        on_stage("products with all items")
        scores[seen.users, seen.items] = -np.inf
        on_stage("masking what was seen")
        rows = np.argpartition(scores, seen.width - k, axis=1)[:, seen.width - k :]
        values = np.take_along_axis(scores, rows, 1)
        order = np.argsort(-values, axis=1, kind="stable")
        rows, values = np.take_along_axis(rows, order, 1), np.take_along_axis(values, order, 1)
        on_stage("top-k")
        return np.where(np.isneginf(values), -1, rows), values

    def _top_small_batch(self, users: NDArray[Any], seen: Histories, k: int, on_stage: StageCallback) -> TopItems:
        """Rank a small batch on a GPU with one copy to it and one back; the host computes the final scores."""
        import torch

        _check_request(len(users), seen, k)
        k, candidate_count = min(k, seen.width), min(k + EXTRA_CANDIDATES, seen.width)
        users, hidden = np.ascontiguousarray(users, np.float32), seen.users * seen.width + seen.items
        payload = np.concatenate([hidden.view(np.uint8), users.reshape(-1).view(np.uint8)])
        device_payload = self._send(payload)
        on_stage("h2d")
        left = device_payload[hidden.nbytes :].view(torch.float32).view(users.shape).to(self._transposed.dtype)
        scores = left @ self._transposed
        on_stage("products with all items")
        scores.view(-1).index_fill_(0, device_payload[: hidden.nbytes].view(torch.int64), -torch.inf)
        on_stage("masking what was seen")
        best, at = scores.topk(candidate_count, dim=1, sorted=False)
        on_stage("top-k")
        rows, hidden_rows = at.cpu().numpy(), np.isneginf(best.cpu().numpy())
        on_stage("d2h")
        values = np.einsum("ukd,ud->uk", self._host_items[rows], users)
        values[hidden_rows] = -np.inf
        order = np.argsort(-values, axis=1, kind="stable")[:, :k]
        rows, values = np.take_along_axis(rows, order, 1), np.take_along_axis(values, order, 1)
        on_stage("deciding in float32")
        return np.where(np.isneginf(values), -1, rows), values

    @property
    def _approximate(self) -> bool:
        """Whether the products need a second pass in float32."""
        return bool(self._transposed.dtype.itemsize < 4)

    def _send(self, array: NDArray[Any]) -> Any:
        return _to_device(array, self.device)


class EaseRanker:
    """Ranks by EASE's weights [K, K] over the items `item_rows`; other items score 0."""

    def __init__(self, item_rows: NDArray[Any], weights: NDArray[Any], device: str = "cpu") -> None:
        self.device, self._item_rows, self._weights = (
            device,
            np.asarray(item_rows, np.int64),
            np.asarray(weights, np.float32),
        )
        self._rows = _to_device(self._weights, device)
        self._columns = _to_device(self._item_rows, device)

    def top_items(
        self,
        liked: Histories,
        seen: Histories,
        k: int,
        sparse: bool | None = None,
        on_stage: StageCallback = _ignore_stage,
    ) -> TopItems:
        """As `VectorRanker.top_items`. `sparse`: use SciPy's product (default on a CPU), else sums of rows."""
        import torch

        sparse = not _is_gpu(self.device) if sparse is None else sparse
        part = self._by_scipy(liked) if sparse else self._by_rows(liked)
        covers_all = np.array_equal(self._item_rows, np.arange(liked.width))
        on_stage("sending histories")

        def scores(first: int, last: int) -> Any:
            block_scores = part(first, last)
            if covers_all:
                return block_scores
            return torch.zeros((last - first, liked.width), device=self.device).index_copy_(
                1, self._columns, block_scores
            )

        return _rank_blocks(scores, None, len(liked), seen, k, self.device, on_stage)

    def _by_scipy(self, liked: Histories) -> Callable[[int, int], Any]:
        matrix = liked.matrix()[:, self._item_rows].tocsr()
        return lambda first, last: _to_device(np.asarray(matrix[first:last] @ self._weights), self.device)

    def _by_rows(self, liked: Histories) -> Callable[[int, int], Any]:
        """Sum the weights' rows of liked items, without a matrix of histories."""
        import torch
        from torch.nn.functional import embedding_bag, pad

        place = torch.full((liked.width,), -1, dtype=torch.int64, device=self.device)
        place[self._columns] = torch.arange(len(self._item_rows), device=self.device)
        rows, starts = place[_to_device(liked.items, self.device)], _to_device(liked.starts, self.device)
        included = rows >= 0
        starts = pad(included.cumsum(0), (1, 0))[starts]
        rows, begins = rows[included], starts.cpu().numpy()

        def part(first: int, last: int) -> Any:
            block_rows = rows[int(begins[first]) : int(begins[last])]
            if not len(block_rows):
                return torch.zeros((last - first, len(self._item_rows)), device=self.device)
            return embedding_bag(block_rows, self._rows, starts[first:last] - starts[first], mode="sum")

        return part


def top_k(scores: Floats, k: int) -> Ints:
    """Return the columns of the k highest scores, int64 [n, k], best first, ties by column; −1 for −inf scores."""
    k = min(k, scores.shape[1])
    if k == scores.shape[1]:
        order = np.argsort(-scores, axis=1, kind="stable")
    else:
        # Candidates have at least the k-th value; ties can make more than k candidates.
        edge = np.partition(scores, -k, axis=1)[:, -k:][:, :1]
        candidates = scores >= edge
        order = np.empty((len(scores), k), np.int64)
        without_ties = np.count_nonzero(candidates, axis=1) == k
        columns = (np.flatnonzero(candidates[without_ties]) % scores.shape[1]).reshape(-1, k)
        values = np.take_along_axis(scores[without_ties], columns, axis=1)
        order[without_ties] = np.take_along_axis(columns, np.argsort(-values, axis=1, kind="stable"), axis=1)
        for row in np.flatnonzero(~without_ties):
            columns = np.flatnonzero(candidates[row])
            order[row] = columns[np.argsort(-scores[row, columns], kind="stable")[:k]]
    rows = np.where(np.isneginf(np.take_along_axis(scores, order, axis=1)), -1, order)
    return np.asarray(rows, np.int64)


def rank_vectors(users: NDArray[Any], items: NDArray[Any], seen: Histories, k: int, device: str = "cpu") -> TopItems:
    """Rank once by `VectorRanker`, for user vectors."""
    return VectorRanker(items, device).top_items(users, seen, k)


def rank_ease(
    liked: Histories, item_rows: NDArray[Any], weights: NDArray[Any], seen: Histories, k: int, device: str = "cpu"
) -> TopItems:
    """Rank once by `EaseRanker`."""
    return EaseRanker(item_rows, weights, device).top_items(liked, seen, k)


def _rank_blocks(
    scores: Callable[[int, int], Any],
    exact: Callable[[int, int, Any], Any] | None,
    count: int,
    seen: Histories,
    k: int,
    device: str,
    on_stage: StageCallback,
) -> TopItems:
    import torch

    _check_request(count, seen, k)
    block = USER_BLOCKS["cuda" if _is_gpu(device) else "cpu"]
    k = min(k, seen.width)
    candidate_count = k if exact is None else min(k + EXTRA_CANDIDATES, seen.width)
    hidden, owners = _to_device(seen.items, device), _entry_users(seen, device)
    rows = torch.empty((count, k), dtype=torch.int64, device=device)
    values = torch.empty((count, k), dtype=torch.float32, device=device)
    on_stage("sending histories")
    for first in range(0, count, block):
        last = min(first + block, count)
        block_scores = scores(first, last)
        on_stage("products with all items")
        entries = slice(int(seen.starts[first]), int(seen.starts[last]))
        block_scores[owners[entries] - first, hidden[entries]] = -torch.inf
        on_stage("masking what was seen")
        best, at = block_scores.topk(candidate_count, dim=1, sorted=exact is None)
        on_stage("top-k")
        if exact is not None:
            best, order = torch.where(best == -torch.inf, -torch.inf, exact(first, last, at)).topk(k, dim=1)
            at = at.gather(1, order)
            on_stage("deciding in float32")
        values[first:last], rows[first:last] = best, at
    rows.masked_fill_(values == -torch.inf, -1)
    block_scores = rows.cpu().numpy(), values.cpu().numpy()
    on_stage("answers")
    return block_scores


def _check_request(count: int, seen: Histories, k: int) -> None:
    if len(seen) != count:
        raise InputError(f"{len(seen)} histories of seen items for {count} users; give one for each.")
    if k < 1:
        raise InputError(f"k is {k}; give 1 or more.")


def _is_small_batch(users: Histories) -> bool:
    return 0 < len(users) <= SMALL_BATCH_USERS and len(users.items) <= SMALL_BATCH_LIKES


def _profiles(items: NDArray[Any], liked: Histories) -> Floats:
    """Compute `VectorRanker.embed_users` on the host."""
    weights, bounds = preference_weights(liked), liked.starts
    sums = np.stack([(weights[a:b, None] * items[liked.items[a:b]]).sum(0) for a, b in pairwise(bounds)])
    length = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.asarray(np.where(length > 1e-12, sums / np.maximum(length, 1e-12), 0.0), np.float32)


def _device_weights(stars: Any, starts: Any) -> Any:
    """Compute `preference_weights` on the device: many users have millions of entries."""
    import torch

    entries = torch.arange(len(stars), device=stars.device)
    users = torch.arange(len(starts) - 1, device=stars.device)
    entry_users = torch.repeat_interleave(users, starts.diff(), output_size=len(stars))
    max_stars = torch.full((len(users),), MIN_STARS, device=stars.device).scatter_reduce_(0, entry_users, stars, "amax")
    return (0.5 + 0.5 * (stars / max_stars[entry_users]).clamp(0.0, 1.0)) * torch.exp2(
        (entries + 1 - starts[1:][entry_users]) / HALF_LIFE
    )


def _entry_users(seen: Histories, device: str) -> Any:
    """Return the user row of every entry."""
    import torch

    if len(seen.items) <= SMALL_HISTORY:
        return _to_device(seen.users, device)
    lengths = _to_device(seen.lengths, device)
    return torch.repeat_interleave(torch.arange(len(seen), device=device), lengths, output_size=len(seen.items))


def _to_device(array: NDArray[Any], device: str) -> Any:
    from ridgeline.search import view_as_tensor

    return view_as_tensor(np.ascontiguousarray(array)).to(device)


def _is_gpu(device: str) -> bool:
    return device.startswith("cuda")
