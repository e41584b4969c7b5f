"""Popularity: how many liked an item; the same for everybody, and the least a model must beat."""

from __future__ import annotations

from typing import Self

import numpy as np

from ridgeline.recommend.data import Real
from ridgeline.recommend.histories import Histories


class Popularity:
    name = "popularity"

    def fit(self, train: Histories) -> Self:
        self.counts = np.bincount(train.items, minlength=train.width).astype(np.float32)
        return self

    def scores(self, users: Histories) -> Real:
        return np.broadcast_to(self.counts, (len(users), len(self.counts))).copy()

    def similar(self, item: int) -> Real:
        """The same for every item: popularity knows no likeness."""
        return self.counts.copy()
