"""Matrix factors through the library implicit, if it is installed: ALS and BPR, baselines of evaluations.

Their parameters are chosen on a part of the training data, as EASE's λ is. Both compute the factors of a user from the
history, so they also answer for users that they did not learn from.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Self

import numpy as np

from ridgeline.recommend.data import Floats, Histories

REGULARIZATION, ITERATIONS = 0.05, 15  # of ALS
BPR_REGULARIZATION, BPR_ITERATIONS = 0.01, 100
FOLD_IN_ROUNDS, FOLD_IN_RATE = 30, 0.1  # of a user's factors by BPR, while the items' stay


class Als:
    name = "ALS"
    tried = tuple((factors, alpha) for factors in (16, 64) for alpha in (1.0, 10.0))

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


class Bpr:
    name = "BPR"
    tried = tuple((factors, rate) for factors in (16, 64) for rate in (0.01, 0.05))

    def __init__(self, factors: int = 64, rate: float = 0.05) -> None:
        """Use this many `factors`; `rate` is the learning rate."""
        self.factors, self.rate = factors, rate

    def fit(self, train: Histories) -> Self:
        from implicit.cpu.bpr import BayesianPersonalizedRanking

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._model = BayesianPersonalizedRanking(
                factors=self.factors,
                learning_rate=self.rate,
                regularization=BPR_REGULARIZATION,
                iterations=BPR_ITERATIONS,
                random_state=0,
                num_threads=1,  # several threads change the same factors in another order each time
            )
        self._model.fit(train.matrix(), show_progress=False)
        return self

    def scores(self, users: Histories) -> Floats:
        """Score all items by factors that raise the user's likes above other items, as BPR learns them."""
        items = self._model.item_factors[:, :-1]
        bias = self._model.item_factors[:, -1]
        rng, owners = np.random.default_rng(0), users.users
        factors = np.zeros((len(users), items.shape[1]), np.float32)
        lengths = np.maximum(users.lengths, 1)[:, None]
        for _ in range(FOLD_IN_ROUNDS):
            other = rng.integers(0, users.width, len(owners))
            difference = items[users.items] - items[other]
            margin = np.einsum("ef,ef->e", factors[owners], difference) + bias[users.items] - bias[other]
            pull = np.zeros_like(factors)
            np.add.at(pull, owners, difference / (1 + np.exp(np.minimum(margin, 80)))[:, None])
            factors += FOLD_IN_RATE * (pull - BPR_REGULARIZATION * lengths * factors)
        return np.asarray(factors @ items.T + bias, np.float32)

    def similar(self, item: int) -> Floats:
        items = self._model.item_factors[:, :-1]
        return np.asarray(items @ items[item], np.float32)


def is_available() -> bool:
    return find_spec("implicit") is not None


def choose_factors(
    kind: type[Als] | type[Bpr], train: Histories, history: Histories, objective: Callable[[Floats], float]
) -> Als | Bpr:
    """Return the model of this kind with the parameters that have the best quality of its scores; it is not fitted."""
    quality = {tried: objective(kind(*tried).fit(train).scores(history)) for tried in kind.tried}
    return kind(*max(quality, key=lambda tried: quality[tried]))
