"""Chance: what a ranking is worth that knows nothing."""

from __future__ import annotations

from typing import Self

import numpy as np

from ridgeline.recommend.data import Real
from ridgeline.recommend.histories import Histories


class Chance:
    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self._draw = np.random.default_rng(seed)
        self.width = 0

    def fit(self, train: Histories) -> Self:
        self.width = train.width
        return self

    def scores(self, users: Histories) -> Real:
        return self._draw.random((len(users), users.width), np.float32)

    def similar(self, item: int) -> Real:
        return self._draw.random(self.width, np.float32)
