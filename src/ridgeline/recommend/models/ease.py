"""EASE: the linear model that predicts each item from all others, in closed form (Steck, WWW 2019, arXiv 1905.03375).

With G the co-occurrence of items and P = (G + λI)⁻¹, the weights are B = −P / diag(P), zero on the diagonal. G + λI is
positive definite with no eigenvalue below λ, so Cholesky in float32 is safe for usual λ. The code checks the residual
and repeats the solution in float64 if it is too large.

With few users and many items, the same P comes from a matrix of users × users: with X the likes [users, items],
(XᵀX + λI)⁻¹ = (I − Xᵀ(XXᵀ + λI)⁻¹X) / λ. For 610 users and 6,298 items that is a fifth of the work.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Self

import numpy as np

from ridgeline.errors import InputError
from ridgeline.native import sum_rows
from ridgeline.recommend.data import Floats, Histories, Ints
from ridgeline.recommend.models.fold_in import FoldIn
from ridgeline.recommend.weights import weigh_likes

DEFAULT_PENALTY = 100.0
MAX_ITEMS = 20_000  # 1.6 GB of weights; with more items, only the most liked take part and the rest score 0
BLOCK = 2_048  # items (or users) per block of the co-occurrence
MAX_RESIDUAL = 1e-3  # of (G + λI)P − I on random vectors, relative
MIN_ITEMS_PER_USER = 4  # from this ratio on, the users × users matrix is faster
CACHED_LIKES = 64  # sums over the oldest likes are cached, for a multiple of these: each takes 4 µs
MAX_CACHE_BYTES = 128 << 20
Solution = tuple[Any, Callable[[Any], Any]]  # P [K, K], and the product of G + λI with [K, n]


class Ease:
    name = "ease"

    def __init__(self, penalty: float = DEFAULT_PENALTY, *, max_items: int = MAX_ITEMS, device: str = "cpu") -> None:
        if not 0 < penalty < math.inf:
            raise InputError(f"EASE's λ is {penalty}; give a finite number above 0, such as {DEFAULT_PENALTY:g}.")
        self.penalty, self.max_items, self.device = penalty, max_items, device
        self.fold: FoldIn | None = None  # items that arrived after the fit
        self._cached: dict[tuple[Any, ...], Floats] = {}  # sums of histories, the one used last at the end
        self._lock = threading.Lock()  # of _cached; both are shared by copies with other items folded in

    def fit(self, train: Histories) -> Self:
        counts = np.bincount(train.items, minlength=train.width)
        liked = int((counts > 0).sum())
        best = np.argsort(-counts, kind="stable")[: min(liked, self.max_items)]
        self.item_rows: Ints = np.sort(best)
        self.width = train.width
        part = train.matrix()[:, self.item_rows].tocsr()
        self.weights = np.ascontiguousarray(_solve(part, self.penalty, self.device))
        self._cached = {}
        return self

    def scores(self, users: Histories, weights: Any = None) -> Floats:
        """Score all items: float32 [n, items]. `weights` has one number per entry of the histories (default: 1)."""
        scores = np.zeros((len(users), self.width), np.float32)
        likes = users.matrix(weights)
        part = (likes if self.fold is None else self.fold.spread(likes))[:, self.item_rows]
        scores[:, self.item_rows] = np.asarray(part @ self.weights)
        if self.fold is not None:
            self.fold.fill(scores)
        return scores

    def score_user(self, items: Ints, half_lives: Sequence[float | None]) -> Floats:
        """Score all items for the likes of one user, the latest last: float32 [kinds, items], for several half-lives.

        The same scores as those of `scores` with `recency_weights`, in less time: the likes of a long history but the
        last ones are summed once, and cached until they change.
        """
        cached = len(items) // CACHED_LIKES * CACHED_LIKES
        weights = weigh_likes(len(items), half_lives)
        part = self._sum_likes(items[cached:], weights[:, cached:])
        if cached:
            part += (
                self._sum_cached(items[:cached], half_lives) * weigh_likes(len(items) - cached + 1, half_lives)[:, :1]
            )
        if self.fold is not None:
            shared, shares = self.fold.share_likes(items, weights)
            if len(shared):
                part += self._sum_likes(shared, shares)
        scores = np.zeros((len(half_lives), self.width), np.float32)
        scores[:, self.item_rows] = part
        if self.fold is not None:
            self.fold.fill(scores)
        return scores

    def _sum_likes(self, items: Ints, weights: Floats) -> Floats:
        """Return the weighted sums of the rows of learnt items: float32 [kinds, K]."""
        part = np.zeros((len(weights), len(self.item_rows)), np.float32)
        if len(self.item_rows) and len(items):
            rows = np.minimum(np.searchsorted(self.item_rows, items), len(self.item_rows) - 1)
            known = np.flatnonzero(self.item_rows[rows] == items)
            sum_rows(self.weights, rows[known], np.ascontiguousarray(weights[:, known], np.float32), part)
        return part

    def _sum_cached(self, items: Ints, half_lives: Sequence[float | None]) -> Floats:
        """Return the sums over `items` as a complete history, from the cache if they are there. Do not change them."""
        key = (hashlib.blake2b(items.tobytes(), digest_size=16).digest(), *half_lives)
        with self._lock:
            part = self._cached.pop(key, None)
            if part is not None:
                self._cached[key] = part  # the latest one
                return part
        part = self._sum_likes(items, weigh_likes(len(items), half_lives))
        with self._lock:
            self._cached[key] = part
            while len(self._cached) > max(1, MAX_CACHE_BYTES // max(1, part.nbytes)):
                del self._cached[next(iter(self._cached))]
        return part

    def extend(self, width: int, fold: FoldIn) -> Ease:
        """Return this model for a catalogue of `width` items, with the new ones folded in; the weights are shared."""
        model = copy(self)
        model.width, model.fold = width, fold
        return model

    def get_weights(self, liked: Ints, items: Ints) -> Floats:
        """Return the weights of liked items for other items: float32 [items, liked], 0 for items it does not know."""
        block = np.zeros((len(items), len(liked)), np.float32)
        place = np.full(max(self.width, int(max(liked.max(initial=-1), items.max(initial=-1))) + 1), -1, np.int64)
        place[self.item_rows] = np.arange(len(self.item_rows))
        rows, columns = np.flatnonzero(place[liked] >= 0), np.flatnonzero(place[items] >= 0)
        block[np.ix_(columns, rows)] = self.weights[np.ix_(place[liked[rows]], place[items[columns]])].T
        return block

    def similar(self, item: int) -> Floats:
        scores = np.zeros(self.width, np.float32)
        row = np.searchsorted(self.item_rows, item)
        if row < len(self.item_rows) and self.item_rows[row] == item:
            scores[self.item_rows] = self.weights[row]
        return scores


def count_co_likes(liked: Any, device: str) -> Floats:
    """Count the users who like both items: float32 [K, K] from a sparse matrix [users, K], exact below 2²⁴."""
    import torch

    users, width = liked.shape
    if device.startswith("cuda"):  # dense blocks of users: a GPU multiplies zeros faster than it skips them
        device_counts = torch.zeros((width, width), device=device)
        for start in range(0, users, BLOCK):
            block = torch.from_numpy(liked[start : start + BLOCK].toarray()).to(device)
            device_counts.addmm_(block.T, block)
        return np.asarray(device_counts.cpu().numpy())
    counts = np.zeros((width, width), np.float32)
    by_item = liked.T.tocsr()
    for start in range(0, width, BLOCK):  # in blocks: the complete sparse product would take three times the memory
        counts[start : start + BLOCK] = (by_item[start : start + BLOCK] @ liked).toarray()
    return counts


def _solve(liked: Any, penalty: float, device: str) -> Floats:
    """Compute B, float32 [K, K], from a sparse matrix of likes [users, K]."""
    import torch

    users, width = liked.shape
    if not width:
        return np.zeros((0, 0), np.float32)
    by_users = users * MIN_ITEMS_PER_USER <= width
    matrix = torch.from_numpy(liked.toarray() if by_users else count_co_likes(liked, device)).to(device)
    diagonal = matrix.diagonal().clone()
    for dtype in (torch.float32, torch.float64):
        if not by_users:
            matrix.diagonal().copy_(diagonal)  # without the λ of the first attempt
        solution = (_invert_by_users if by_users else _invert_by_items)(matrix.to(dtype), penalty)
        if solution is None:
            continue
        inverse, multiply = solution
        probe = torch.randn(width, 4, generator=torch.Generator().manual_seed(0), dtype=dtype).to(device)
        residual = (multiply(inverse @ probe) - probe).norm() / probe.norm()
        if float(residual) <= MAX_RESIDUAL:
            weights = inverse.div_(-inverse.diagonal().clone()[None, :])
            weights.fill_diagonal_(0)
            return np.asarray(weights.to("cpu", torch.float32).numpy())
    raise InputError(f"EASE cannot be solved to {MAX_RESIDUAL:g} with λ = {penalty:g}; give a larger λ.")


def _invert_by_items(counts: Any, penalty: float) -> Solution | None:
    """Invert G + λI from G [K, K], whose diagonal it changes; None if Cholesky fails in this type."""
    import torch

    counts.diagonal().add_(penalty)
    factor, failed = torch.linalg.cholesky_ex(counts)
    if int(failed):
        return None
    if counts.is_cuda:
        return torch.cholesky_inverse(factor), lambda x: counts @ x
    # On a CPU two products with threads take less time than LAPACK's inverse of a Cholesky factor.
    half = torch.linalg.solve_triangular(factor, torch.eye(len(counts), dtype=counts.dtype), upper=False)
    return half.T @ half, lambda x: counts @ x


def _invert_by_users(liked: Any, penalty: float) -> Solution | None:
    """Invert G + λI from X [users, K]; None if Cholesky of XXᵀ + λI fails in this type."""
    import torch

    gram = liked @ liked.T
    gram.diagonal().add_(penalty)
    factor, failed = torch.linalg.cholesky_ex(gram)
    if int(failed):
        return None
    half = torch.linalg.solve_triangular(factor, liked, upper=False)
    inverse = (half.T @ half).neg_()
    inverse.diagonal().add_(1)
    return inverse.div_(penalty), lambda x: liked.T @ (liked @ x) + penalty * x
