"""Hybrid: a weighted sum of EASE, item-kNN, text vectors and popularity. It learns the weights on held-out likes.

Each part is standardized per user over all items, so that a weight means the same for all users. EASE has weight 1. The
other weights are learnt one after the other, in two rounds, by their gain in NDCG. A part without gain gets weight 0
and is not computed for a recommendation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import numpy as np

from ridgeline.recommend.data import Floats, Histories
from ridgeline.recommend.models.baselines import Popularity, RecentPopularity
from ridgeline.recommend.models.content import Semantic
from ridgeline.recommend.models.ease import Ease
from ridgeline.recommend.models.itemknn import ItemKnn
from ridgeline.recommend.models.neighbour_ease import NeighbourEase
from ridgeline.recommend.weights import recency_weights

WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.8)
ROUNDS = 2
MIN_GAIN = 2e-4  # in NDCG; a smaller gain is noise and does not change a weight
HALF_LIVES = {
    "ease lately": 20.0,
    "ease just now": 4.0,
}  # EASE with recency weights: likes after which an older like counts half

FEW_USERS = 4  # up to here each user is scored alone: native loops that wait for no other thread

Objective = Callable[[Floats], float]
WITHOUT_ORDER = ("ease", "unreleased", "era", "semantic", "itemknn", "popularity")  # the order of likes is not used
PARTS = ("ease", *HALF_LIVES, *WITHOUT_ORDER[1:])


class Hybrid:
    name = "hybrid"

    def __init__(
        self,
        ease: Ease | NeighbourEase,
        semantic: Semantic,
        popularity: Popularity,
        itemknn: ItemKnn,
        recent: RecentPopularity,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """Combine models; without `weights`, the hybrid is EASE alone until `learn`."""
        self.ease, self.semantic, self.popularity, self.itemknn, self.recent = (
            ease,
            semantic,
            popularity,
            itemknn,
            recent,
        )
        self.weights = dict(weights) if weights is not None else {"ease": 1.0}

    def fit(self, train: Histories) -> Self:
        for part in (self.ease, self.semantic, self.popularity, self.itemknn, self.recent):
            part.fit(train)
        return self

    def part(self, name: str, users: Histories) -> Floats:
        if name == "ease":
            return standardize(self.ease.scores(users))
        if name in HALF_LIVES:
            return standardize(self.ease.scores(users, recency_weights(users, HALF_LIVES[name])))
        if name == "semantic":
            return standardize(self.semantic.scores(users))
        if name == "itemknn":
            return standardize(self.itemknn.scores(users))
        if name == "popularity":
            return standardize(np.log1p(self.popularity.scores(users)))
        if name == "era":
            return standardize(self.recent.scores(users))
        return -self.recent.mark_unreleased(users)

    def learn(self, users: Histories, objective: Objective, parts: Sequence[str] = PARTS) -> Self:
        """Learn the weights of `parts`; `objective` returns the quality of scores [n, items] for these users."""
        total = self.part("ease", users)
        best = objective(total)
        weights = {"ease": 1.0}
        for _ in range(ROUNDS):
            for name in parts:
                if name == "ease":
                    continue
                part = self.part(name, users)
                old_weight = weights.get(name, 0.0)
                rest = total - old_weight * part
                best_weight = old_weight
                for weight in WEIGHTS:
                    quality = objective(rest + weight * part) if weight != old_weight else best
                    if quality > best + MIN_GAIN:
                        best, best_weight = quality, weight
                weights[name] = best_weight
                total = rest + best_weight * part
        self.weights = {name: weight for name, weight in weights.items() if weight}
        return self

    def scores(self, users: Histories) -> Floats:
        if 0 < len(users) <= FEW_USERS:
            return np.stack([self._score_user(users.select(np.array([row]))) for row in range(len(users))])
        total = np.zeros((len(users), users.width), np.float32)
        for name, weight in self.weights.items():
            total += np.float32(weight) * self.part(name, users)
        return total

    def _score_user(self, user: Histories) -> Floats:
        """Return the scores of one user: float32 [items]. EASE's rows are read once for all weightings of the likes."""
        eases = [name for name in self.weights if name == "ease" or name in HALF_LIVES]
        half_lives = [HALF_LIVES.get(name) for name in eases]
        parts = dict(zip(eases, standardize(self.ease.score_user(user.items, half_lives)), strict=True))
        total = np.zeros(user.width, np.float32)
        for name, weight in self.weights.items():
            total += np.float32(weight) * (parts[name] if name in parts else self.part(name, user)[0])
        return total

    def similar(self, item: int) -> Floats:
        """Score by EASE and text vectors, half each; an item without likes by text vectors alone."""
        total = standardize(self.semantic.similar(item)[None])[0]
        ease_scores = self.ease.similar(item)
        if ease_scores.any():
            total += standardize(ease_scores[None])[0]
        return np.asarray(total)


def standardize(scores: Floats) -> Floats:
    """Scale each row to mean 0 and standard deviation 1; a row of equal values becomes 0."""
    centred = scores - scores.mean(1, keepdims=True)
    spread = centred.std(1, keepdims=True)
    return np.asarray(np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 1e-12))
