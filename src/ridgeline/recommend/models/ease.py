"""EASE: the linear model that predicts each item from all others, in closed form (Steck, WWW 2019, arXiv 1905.03375).

With G the co-occurrence of items and P = (G + λI)⁻¹, the weights are B = −P / diag(P), zero on the diagonal. G + λI is
positive definite with no eigenvalue below λ, so Cholesky in float32 is safe for usual λ; the residual is looked at all
the same, and float64 takes over where it is too large.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from ridgeline.errors import InputError
from ridgeline.recommend.data import Real, Whole
from ridgeline.recommend.histories import Histories

LAMBDA = 100.0
MOST = 20_000  # items: 1.6 GB of weights; beyond, the most liked ones take part and the rest score 0
BLOCK = 2_048  # items (or users) of the co-occurrence made at a time
RESIDUAL = 1e-3  # of (G + λI)P − I on random vectors, relative


class Ease:
    name = "ease"

    def __init__(self, penalty: float = LAMBDA, *, most: int = MOST, device: str = "cpu") -> None:
        if not penalty > 0:
            raise InputError(f"EASE's λ is {penalty}; give a number above 0, such as {LAMBDA:g}.")
        self.penalty, self.most, self.device = penalty, most, device

    def fit(self, train: Histories) -> Self:
        counts = np.bincount(train.items, minlength=train.width)
        liked = int((counts > 0).sum())
        best = np.argsort(-counts, kind="stable")[: min(liked, self.most)]
        self.kept: Whole = np.sort(best)
        self.width = train.width
        part = train.matrix()[:, self.kept].tocsr()
        self.weights = _solved(together(part, self.device), self.penalty, self.device)
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


def _solved(counts: Real, penalty: float, device: str) -> Real:
    """B float32 [K, K] of G float32 [K, K]."""
    import torch

    if not len(counts):
        return counts
    for dtype in (torch.float32, torch.float64):
        gram = torch.from_numpy(counts).to(device, dtype, copy=True)
        gram.diagonal().add_(penalty)
        factor, failed = torch.linalg.cholesky_ex(gram)
        if not int(failed):
            inverse = torch.cholesky_inverse(factor)
            del factor
            probe = torch.randn(len(gram), 4, generator=torch.Generator().manual_seed(0), dtype=dtype).to(device)
            off = (gram @ (inverse @ probe) - probe).norm() / probe.norm()
            if float(off) <= RESIDUAL:
                found = inverse.div_(-inverse.diagonal().clone()[None, :])
                found.fill_diagonal_(0)
                return np.asarray(found.to("cpu", torch.float32).numpy())
    raise InputError(f"EASE cannot be solved to {RESIDUAL:g} with λ = {penalty:g}; give a larger λ.")
