"""Hybrid: taste, meaning and time, blended; the weights are learnt on a part of the training data held back.

Each part is standardised per user over all items, so that a weight means the same for everybody. The first part, EASE,
weighs 1; the others are found one after the other, going round, by what they add to NDCG on the held-back part. A part
that adds nothing keeps the weight 0 and is not computed when answering.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

import numpy as np

from ridgeline.recommend.data import Real
from ridgeline.recommend.histories import Histories
from ridgeline.recommend.models.ease import Ease
from ridgeline.recommend.models.era import Era
from ridgeline.recommend.models.itemknn import ItemKnn
from ridgeline.recommend.models.popularity import Popularity
from ridgeline.recommend.models.profile import recency
from ridgeline.recommend.models.semantic import Semantic

GRID = (0.0, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.8)
ROUNDS = 2
LEAST = 2e-4  # of NDCG: less is noise, and the smaller weight stays
HALVES = {"ease lately": 20.0, "ease just now": 4.0}  # likes after which one counts half

Objective = Callable[[Real], float]


class Hybrid:
    name = "hybrid"

    def __init__(
        self,
        ease: Ease,
        semantic: Semantic,
        popularity: Popularity,
        itemknn: ItemKnn,
        era: Era,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """Parts that are fitted; without `weights` it is EASE alone until `learn`."""
        self.ease, self.semantic, self.popularity, self.itemknn, self.era = ease, semantic, popularity, itemknn, era
        self.weights = dict(weights) if weights is not None else {"ease": 1.0}

    def fit(self, train: Histories) -> Self:
        for part in (self.ease, self.semantic, self.popularity, self.itemknn, self.era):
            part.fit(train)
        return self

    def part(self, name: str, users: Histories) -> Real:
        if name == "ease":
            return standard(self.ease.scores(users))
        if name in HALVES:
            return standard(self.ease.scores(users, recency(users, HALVES[name])))
        if name == "semantic":
            return standard(self.semantic.scores(users))
        if name == "itemknn":
            return standard(self.itemknn.scores(users))
        if name == "popularity":
            return standard(np.log1p(self.popularity.scores(users)))
        if name == "era":
            return standard(self.era.scores(users))
        return -self.era.unreleased(users)

    def learn(self, users: Histories, objective: Objective) -> Self:
        """Find the weights; `objective` tells the quality of scores [n, items] for these users."""
        total = self.part("ease", users)
        best = objective(total)
        weights = {"ease": 1.0}
        for _ in range(ROUNDS):
            for name in PARTS[1:]:
                part = self.part(name, users)
                had = weights.get(name, 0.0)
                rest = total - had * part
                chosen = had
                for weight in GRID:
                    found = objective(rest + weight * part) if weight != had else best
                    if found > best + LEAST:
                        best, chosen = found, weight
                weights[name] = chosen
                total = rest + chosen * part
        self.weights = {name: weight for name, weight in weights.items() if weight}
        return self

    def scores(self, users: Histories) -> Real:
        found = np.zeros((len(users), users.width), np.float32)
        for name, weight in self.weights.items():
            found += np.float32(weight) * self.part(name, users)
        return found

    def similar(self, item: int) -> Real:
        """Half by taste, half by meaning; for an item nobody rated by meaning alone."""
        found = standard(self.semantic.similar(item)[None])[0]
        near = self.ease.similar(item)
        if near.any():
            found += standard(near[None])[0]
        return np.asarray(found)


PARTS = ("ease", *HALVES, "unreleased", "era", "semantic", "itemknn", "popularity")


def standard(scores: Real) -> Real:
    """Each row with mean 0 and deviation 1; a row of equal values becomes 0."""
    centred = scores - scores.mean(1, keepdims=True)
    spread = centred.std(1, keepdims=True)
    return np.asarray(np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 1e-12))
