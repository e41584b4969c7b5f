"""The best k items of very many users: scored, masked and ranked on the device, a block of users at a time.

    ranker = ByVectors(semantic.items, "cuda")
    items, scores = ranker.best(ranker.users(histories), histories, 10)

What items are (vectors, EASE's weights) goes to the device once, histories as row and column numbers, never as a
matrix; only the answers come back. On a GPU products in float16 find a few more items than asked, and products in
float32 decide between those. For a few users a GPU would wait for the host more than it works: the host makes their
profiles and decides, and the device is asked one thing, once. On a CPU the threads of torch or BLAS would take longer
to meet than to work: native loops and NumPy do all of it.
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
from ridgeline.recommend.data import Real, Whole
from ridgeline.recommend.histories import Histories
from ridgeline.recommend.models.profile import HALF, LEAST, taste

BLOCK = {"cpu": 1_024, "cuda": 8_192}  # users: [BLOCK, items] scores are held
MORE = 6  # items found beyond k where float16 is not sure of the last ones
FEW = 10_000  # entries of histories whose weights the CPU has sooner than a GPU
FEW_USERS, FEW_LIKES = 4, 1_000  # and users, with so many entries, whose profiles it has sooner

Found = tuple[Whole, Real]
Done = Callable[[str], None]  # hears of each stage when it ends; what a GPU was told to do may still be under way


def _unheard(_stage: str) -> None:
    """Nobody listens."""


class ByVectors:
    """Items by their vectors, float32 [items, dim] of unit length; `dtype`: what the products are made in."""

    def __init__(self, items: NDArray[Any], device: str = "cpu", dtype: Any = None) -> None:
        import torch

        self.device, self._host = device, np.ascontiguousarray(items, np.float32)
        self._items = _sent(self._host, device)
        self._right = self._items.to(dtype or (torch.float16 if _gpu(device) else torch.float32)).T

    def users(self, liked: Histories) -> Any:
        """The weighted means of what they liked: float32 [n, dim] of unit length, 0 without likes. On the device, but
        for a few users, whose answers begin here."""
        if _few(liked) and (self._narrow or not _gpu(self.device)):
            return _profiles(self._host, liked)
        import torch
        from torch.nn.functional import embedding_bag

        rows, starts = self._there(liked.items), self._there(liked.starts)
        weights = self._there(taste(liked)) if len(liked.items) <= FEW else _taste(self._there(liked.stars), starts)
        summed = embedding_bag(rows, self._items, starts[:-1], mode="sum", per_sample_weights=weights)
        length = torch.linalg.vector_norm(summed, dim=1, keepdim=True)
        return torch.where(length > 1e-12, summed / length.clamp_min(1e-12), 0.0)

    def best(self, users: Any, seen: Histories, k: int, done: Done = _unheard) -> Found:
        """(items int64 [n, k], scores float32 [n, k]) by products; seen ones left out, −1 where none is left."""
        import torch

        if _few(seen) and isinstance(users, np.ndarray):
            if not _gpu(self.device):
                return self._best_here(users, seen, k, done)
            if self._narrow:
                return self._best_of_few(users, seen, k, done)
        left = self._there(users) if isinstance(users, np.ndarray) else users

        def scores(first: int, last: int) -> Any:
            return left[first:last].to(self._right.dtype) @ self._right

        def exact(first: int, last: int, rows: Any) -> Any:
            return torch.einsum("ukd,ud->uk", self._items[rows], left[first:last])

        return _ranked(scores, exact if self._narrow else None, len(left), seen, k, self.device, done)

    def _best_here(self, users: NDArray[Any], seen: Histories, k: int, done: Done) -> Found:
        """On a CPU."""
        _checked(len(users), seen, k)
        k, crew = min(k, seen.width), len(os.sched_getaffinity(0))
        scores = np.empty((len(users), len(self._host)), np.float32)
        for user, out in zip(np.ascontiguousarray(users, np.float32), scores, strict=True):
            dot_floats(user, self._host, out, crew)
        done("products with all items")
        scores[seen.users, seen.items] = -np.inf
        done("masking what was seen")
        rows = np.argpartition(scores, seen.width - k, axis=1)[:, seen.width - k :]
        values = np.take_along_axis(scores, rows, 1)
        order = np.argsort(-values, axis=1, kind="stable")
        rows, values = np.take_along_axis(rows, order, 1), np.take_along_axis(values, order, 1)
        done("top-k")
        return np.where(np.isneginf(values), -1, rows), values

    def _best_of_few(self, users: NDArray[Any], seen: Histories, k: int, done: Done) -> Found:
        """One way there, one back: what the device finds is scored here."""
        import torch

        _checked(len(users), seen, k)
        k, wide = min(k, seen.width), min(k + MORE, seen.width)
        users, hidden = np.ascontiguousarray(users, np.float32), seen.users * seen.width + seen.items
        told = np.concatenate([hidden.view(np.uint8), users.reshape(-1).view(np.uint8)])
        there = self._there(told)
        done("h2d")
        left = there[hidden.nbytes :].view(torch.float32).view(users.shape).to(self._right.dtype)
        scores = left @ self._right
        done("products with all items")
        scores.view(-1).index_fill_(0, there[: hidden.nbytes].view(torch.int64), -torch.inf)
        done("masking what was seen")
        best, at = scores.topk(wide, dim=1, sorted=False)
        done("top-k")
        rows, gone = at.cpu().numpy(), np.isneginf(best.cpu().numpy())
        done("d2h")
        values = np.einsum("ukd,ud->uk", self._host[rows], users)
        values[gone] = -np.inf
        order = np.argsort(-values, axis=1, kind="stable")[:, :k]
        rows, values = np.take_along_axis(rows, order, 1), np.take_along_axis(values, order, 1)
        done("deciding in float32")
        return np.where(np.isneginf(values), -1, rows), values

    @property
    def _narrow(self) -> bool:
        """Whether what the products find must be looked at again."""
        return bool(self._right.dtype.itemsize < 4)

    def _there(self, array: NDArray[Any]) -> Any:
        return _sent(array, self.device)


class ByEase:
    """EASE's weights [K, K] over the items `kept`; the other items score 0."""

    def __init__(self, kept: NDArray[Any], weights: NDArray[Any], device: str = "cpu") -> None:
        self.device, self._kept, self._weights = device, np.asarray(kept, np.int64), np.asarray(weights, np.float32)
        self._rows = _sent(self._weights, device)
        self._columns = _sent(self._kept, device)

    def best(
        self, liked: Histories, seen: Histories, k: int, sparse: bool | None = None, done: Done = _unheard
    ) -> Found:
        """As `ByVectors.best`; `sparse`: by SciPy's product, which is the quick one on a CPU, else by sums of rows."""
        import torch

        sparse = not _gpu(self.device) if sparse is None else sparse
        part = self._by_scipy(liked) if sparse else self._by_rows(liked)
        whole = np.array_equal(self._kept, np.arange(liked.width))
        done("sending histories")  # or making a matrix of them

        def scores(first: int, last: int) -> Any:
            found = part(first, last)
            if whole:
                return found
            return torch.zeros((last - first, liked.width), device=self.device).index_copy_(1, self._columns, found)

        return _ranked(scores, None, len(liked), seen, k, self.device, done)

    def _by_scipy(self, liked: Histories) -> Callable[[int, int], Any]:
        matrix = liked.matrix()[:, self._kept].tocsr()
        return lambda first, last: _sent(np.asarray(matrix[first:last] @ self._weights), self.device)

    def _by_rows(self, liked: Histories) -> Callable[[int, int], Any]:
        """The weights' rows of what a user liked, added up: no matrix of histories is made."""
        import torch
        from torch.nn.functional import embedding_bag, pad

        place = torch.full((liked.width,), -1, dtype=torch.int64, device=self.device)
        place[self._columns] = torch.arange(len(self._kept), device=self.device)
        rows, starts = place[_sent(liked.items, self.device)], _sent(liked.starts, self.device)
        there = rows >= 0
        starts = pad(there.cumsum(0), (1, 0))[starts]
        rows, begins = rows[there], starts.cpu().numpy()

        def part(first: int, last: int) -> Any:
            mine = rows[int(begins[first]) : int(begins[last])]
            if not len(mine):
                return torch.zeros((last - first, len(self._kept)), device=self.device)
            return embedding_bag(mine, self._rows, starts[first:last] - starts[first], mode="sum")

        return part


def rank_vectors(users: NDArray[Any], items: NDArray[Any], seen: Histories, k: int, device: str = "cpu") -> Found:
    """One answer by `ByVectors`, for vectors of users."""
    return ByVectors(items, device).best(users, seen, k)


def rank_ease(
    liked: Histories, kept: NDArray[Any], weights: NDArray[Any], seen: Histories, k: int, device: str = "cpu"
) -> Found:
    """One answer by `ByEase`."""
    return ByEase(kept, weights, device).best(liked, seen, k)


def _ranked(
    scores: Callable[[int, int], Any],
    exact: Callable[[int, int, Any], Any] | None,
    count: int,
    seen: Histories,
    k: int,
    device: str,
    done: Done,
) -> Found:
    import torch

    _checked(count, seen, k)
    block = BLOCK["cuda" if _gpu(device) else "cpu"]
    k = min(k, seen.width)
    wide = k if exact is None else min(k + MORE, seen.width)
    hidden, owners = _sent(seen.items, device), _owners(seen, device)
    rows = torch.empty((count, k), dtype=torch.int64, device=device)
    values = torch.empty((count, k), dtype=torch.float32, device=device)
    done("sending histories")
    for first in range(0, count, block):
        last = min(first + block, count)
        found = scores(first, last)
        done("products with all items")
        mine = slice(int(seen.starts[first]), int(seen.starts[last]))
        found[owners[mine] - first, hidden[mine]] = -torch.inf
        done("masking what was seen")
        best, at = found.topk(wide, dim=1, sorted=exact is None)
        done("top-k")
        if exact is not None:
            best, order = torch.where(best == -torch.inf, -torch.inf, exact(first, last, at)).topk(k, dim=1)
            at = at.gather(1, order)
            done("deciding in float32")
        values[first:last], rows[first:last] = best, at
    rows.masked_fill_(values == -torch.inf, -1)
    found = rows.cpu().numpy(), values.cpu().numpy()
    done("answers")
    return found


def _checked(count: int, seen: Histories, k: int) -> None:
    if len(seen) != count:
        raise InputError(f"{len(seen)} histories of seen items for {count} users; give one for each.")
    if k < 1:
        raise InputError(f"k is {k}; ask for 1 or more.")


def _few(users: Histories) -> bool:
    return 0 < len(users) <= FEW_USERS and len(users.items) <= FEW_LIKES


def _profiles(items: NDArray[Any], liked: Histories) -> Real:
    """`ByVectors.users` by the host."""
    weights, bounds = taste(liked), liked.starts
    found = np.stack([(weights[a:b, None] * items[liked.items[a:b]]).sum(0) for a, b in pairwise(bounds)])
    length = np.linalg.norm(found, axis=1, keepdims=True)
    return np.asarray(np.where(length > 1e-12, found / np.maximum(length, 1e-12), 0.0), np.float32)


def _taste(stars: Any, starts: Any) -> Any:
    """`taste` on the device: there are millions of entries where there are many users."""
    import torch

    each = torch.arange(len(stars), device=stars.device)
    users = torch.arange(len(starts) - 1, device=stars.device)
    whose = torch.repeat_interleave(users, starts.diff(), output_size=len(stars))
    most = torch.full((len(users),), LEAST, device=stars.device).scatter_reduce_(0, whose, stars, "amax")
    return (0.5 + 0.5 * (stars / most[whose]).clamp(0.0, 1.0)) * torch.exp2((each + 1 - starts[1:][whose]) / HALF)


def _owners(seen: Histories, device: str) -> Any:
    """The user of every entry."""
    import torch

    if len(seen.items) <= FEW:
        return _sent(seen.users, device)
    lengths = _sent(seen.lengths, device)
    return torch.repeat_interleave(torch.arange(len(seen), device=device), lengths, output_size=len(seen.items))


def _sent(array: NDArray[Any], device: str) -> Any:
    from ridgeline.search import seen

    return seen(np.ascontiguousarray(array)).to(device)


def _gpu(device: str) -> bool:
    return device.startswith("cuda")
