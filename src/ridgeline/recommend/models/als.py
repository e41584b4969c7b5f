"""Alternating least squares through the library implicit, if it is installed: a baseline of evaluations.

Its factors and its confidence are chosen on a part of the training data, as EASE's λ is. BPR of the same library has no
factors for a user that it did not learn from, so it is not among the baselines.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Self

import numpy as np

from ridgeline.recommend.data import Floats, Histories

TRIED = tuple((factors, alpha) for factors in (16, 64) for alpha in (1.0, 10.0))
REGULARIZATION, ITERATIONS = 0.05, 15


class Als:
    name = "ALS"

    def __init__(self, factors: int = 64, alpha: float = 10.0) -> None:
        """Use this many `factors`; `alpha` is the confidence in a like."""
        self.factors, self.alpha = factors, alpha

    def fit(self, train: Histories) -> Self:
        from implicit.cpu.als import AlternatingLeastSquares

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the number of BLAS threads
            self._model = AlternatingLeastSquares(
                factors=self.factors,
                alpha=self.alpha,
                regularization=REGULARIZATION,
                iterations=ITERATIONS,
                random_state=0,
            )
        self._model.fit(train.matrix(), show_progress=False)
        return self

    def scores(self, users: Histories) -> Floats:
        """Score all items by factors that are computed from the histories, also for new users."""
        vectors = self._model.recalculate_user(np.arange(len(users)), users.matrix())
        return np.asarray(np.asarray(vectors).reshape(len(users), -1) @ self._model.item_factors.T, np.float32)

    def similar(self, item: int) -> Floats:
        return np.asarray(self._model.item_factors @ self._model.item_factors[item], np.float32)


def is_available() -> bool:
    return find_spec("implicit") is not None


def choose_als(train: Histories, history: Histories, objective: Callable[[Floats], float]) -> Als:
    """Return the ALS of TRIED with the best quality of its scores; it is not fitted."""
    quality = {tried: objective(Als(*tried).fit(train).scores(history)) for tried in TRIED}
    return Als(*max(quality, key=lambda tried: quality[tried]))
