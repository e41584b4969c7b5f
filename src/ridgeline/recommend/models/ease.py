"""EASE: the linear model that predicts each item from all others, in closed form (Steck, WWW 2019, arXiv 1905.03375).

With G the co-occurrence of items and P = (G + λI)⁻¹, the weights are B = −P / diag(P), zero on the diagonal. G + λI is
positive definite with no eigenvalue below λ, so Cholesky in float32 is safe for usual λ; the residual is looked at all
the same, and float64 takes over where it is too large.

Where users are few beside items, the same P comes from a matrix of users × users: with X the likes [users, items],
(XᵀX + λI)⁻¹ = (I − Xᵀ(XXᵀ + λI)⁻¹X) / λ. For 610 users and 6,298 items that is a fifth of the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from ridgeline.errors import InputError
from ridgeline.recommend.data import Real, Whole
from ridgeline.recommend.histories import Histories

LAMBDA = 100.0
MOST = 20_000  # items: 1.6 GB of weights; beyond, the most liked ones take part and the rest score 0
BLOCK = 2_048  # items (or users) of the co-occurrence made at a time
RESIDUAL = 1e-3  # of (G + λI)P − I on random vectors, relative
FEW = 4  # items per user from which the way by users is the shorter one


class Ease:
    name = "ease"

    def __init__(self, penalty: float = LAMBDA, *, most: int = MOST, device: str = "cpu") -> None:
        if not 0 < penalty < math.inf:
            raise InputError(f"EASE's λ is {penalty}; give a finite number above 0, such as {LAMBDA:g}.")
        self.penalty, self.most, self.device = penalty, most, device

    def fit(self, train: Histories) -> Self:
        counts = np.bincount(train.items, minlength=train.width)
        liked = int((counts > 0).sum())
        best = np.argsort(-counts, kind="stable")[: min(liked, self.most)]
        self.kept: Whole = np.sort(best)
        self.width = train.width
        part = train.matrix()[:, self.kept].tocsr()
        self.weights = _solved(part, self.penalty, self.device)
        return self

    def scores(self, users: Histories, weights: Any = None) -> Real:
        """`weights` in the order of the histories' items, all 1 if not given."""
        found = np.zeros((len(users), self.width), np.float32)
        part = users.matrix(weights)[:, self.kept]
        found[:, self.kept] = np.asarray(part @ self.weights)
        return found

    def similar(self, item: int) -> Real:
        found = np.zeros(self.width, np.float32)
        row = np.searchsorted(self.kept, item)
        if row < len(self.kept) and self.kept[row] == item:
            found[self.kept] = self.weights[row]
        return found


def together(liked: Any, device: str) -> Real:
    """How many liked both, float32 [K, K], of a sparse matrix [users, K]; exact, since counts stay below 2²⁴."""
    import torch

    users, width = liked.shape
    if device.startswith("cuda"):  # dense blocks of users: a GPU multiplies zeros faster than it skips them
        found = torch.zeros((width, width), device=device)
        for start in range(0, users, BLOCK):
            block = torch.from_numpy(liked[start : start + BLOCK].toarray()).to(device)
            found.addmm_(block.T, block)
        return np.asarray(found.cpu().numpy())
    counts = np.zeros((width, width), np.float32)
    by_item = liked.T.tocsr()
    for start in range(0, width, BLOCK):  # by blocks: the whole product as a sparse matrix would take thrice the memory
        counts[start : start + BLOCK] = (by_item[start : start + BLOCK] @ liked).toarray()
    return counts


def _solved(liked: Any, penalty: float, device: str) -> Real:
    """B float32 [K, K] of a sparse matrix [users, K]."""
    import torch

    users, width = liked.shape
    if not width:
        return np.zeros((0, 0), np.float32)
    few = users * FEW <= width
    given = torch.from_numpy(liked.toarray() if few else together(liked, device))
    for dtype in (torch.float32, torch.float64):
        made = (_by_users if few else _by_items)(given.to(device, dtype, copy=True), penalty)
        if made is None:
            continue
        inverse, times = made
        probe = torch.randn(width, 4, generator=torch.Generator().manual_seed(0), dtype=dtype).to(device)
        off = (times(inverse @ probe) - probe).norm() / probe.norm()
        if float(off) <= RESIDUAL:
            found = inverse.div_(-inverse.diagonal().clone()[None, :])
            found.fill_diagonal_(0)
            return np.asarray(found.to("cpu", torch.float32).numpy())
    raise InputError(f"EASE cannot be solved to {RESIDUAL:g} with λ = {penalty:g}; give a larger λ.")


Made = tuple[Any, Callable[[Any], Any]]  # P [K, K], and the product of G + λI with [K, n]


def _by_items(counts: Any, penalty: float) -> Made | None:
    """Of G [K, K]; None where it has no factor in this type."""
    import torch

    counts.diagonal().add_(penalty)
    factor, failed = torch.linalg.cholesky_ex(counts)
    return None if int(failed) else (torch.cholesky_inverse(factor), lambda x: counts @ x)


def _by_users(liked: Any, penalty: float) -> Made | None:
    """Of X [users, K]; None where XXᵀ + λI has no factor in this type."""
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
