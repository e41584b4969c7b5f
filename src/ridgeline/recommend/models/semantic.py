"""Semantic: a user is the weighted mean of the vectors of what they liked; items near it are recommended.

All item texts have something in common ("Genres: …"), so the mean item is taken off first: what is left is what tells
items apart.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ridgeline.recommend.data import Real
from ridgeline.recommend.histories import Histories
from ridgeline.recommend.models.profile import taste


class Semantic:
    name = "semantic"

    def __init__(self, vectors: NDArray[Any]) -> None:
        """`vectors` float32 [items, dim], of unit length."""
        given = np.asarray(vectors, np.float32)
        self.mean = given.mean(0)
        self.items = unit(given - self.mean)

    def fit(self, train: Histories) -> Self:
        return self

    def users(self, users: Histories) -> Real:
        """float32 [n, dim], of unit length; 0 for a user without likes."""
        summed = users.matrix(taste(users)) @ self.items
        return unit(np.asarray(summed, np.float32))

    def scores(self, users: Histories) -> Real:
        return np.asarray(self.users(users) @ self.items.T, np.float32)

    def similar(self, item: int) -> Real:
        return np.asarray(self.items @ self.items[item], np.float32)

    def query(self, vector: NDArray[Any]) -> Real:
        """A text's vector among the items' own, centred as they are."""
        return np.asarray(unit((np.asarray(vector, np.float32) - self.mean)[None])[0])


def unit(vectors: Real) -> Real:
    """Rows at length 1; a row without length stays 0."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 1e-12))
