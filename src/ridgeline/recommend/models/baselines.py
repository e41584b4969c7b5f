"""The interface of a model, and the simple models that every other model must beat."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol, Self

import numpy as np

from ridgeline.recommend.data import Floats, Histories, Ints

DAY = 86_400
MONTH = 30 * DAY
WINDOW = 365 * DAY
HALF_LIFE = 180.0 * DAY
MAX_CACHED = 16  # moments; a server asks for one


class Model(Protocol):
    """Learns from histories, then scores every item for any users, also for users that it did not learn from."""

    name: str

    def fit(self, train: Histories) -> Self: ...

    def scores(self, users: Histories) -> Floats:
        """Score all items: float32 [n, items], high for liked items; items in the history are not left out."""

    def similar(self, item: int) -> Floats:
        """Score the similarity of every item to `item`: float32 [items]."""


class RandomModel:
    """Random scores: the quality of a ranking without knowledge."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self.width = 0

    def fit(self, train: Histories) -> Self:
        self.width = train.width
        return self

    def scores(self, users: Histories) -> Floats:
        return self._rng.random((len(users), users.width), np.float32)

    def similar(self, item: int) -> Floats:
        return self._rng.random(self.width, np.float32)


class Popularity:
    """The number of likes of an item, the same for all users."""

    name = "popularity"

    def fit(self, train: Histories) -> Self:
        self.counts = np.bincount(train.items, minlength=train.width).astype(np.float32)
        return self

    def scores(self, users: Histories) -> Floats:
        return np.broadcast_to(self.counts, (len(users), len(self.counts))).copy()

    def similar(self, item: int) -> Floats:
        """Return the popularity: it does not depend on `item`."""
        return self.counts.copy()


class DecayedPopularity:
    """Likes before each user's request, of which an older one counts less: half after `half_life` seconds.

    The moment of the request is rounded down to a month, so that users share their scores.
    """

    name = "popularity with decay"

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        self.half_life = half_life

    def fit(self, train: Histories) -> Self:
        order = np.argsort(train.times, kind="stable")
        self.times, self.items, self.width = train.times[order], train.items[order], train.width
        return self

    def scores(self, users: Histories) -> Floats:
        scores = np.zeros((len(users), self.width), np.float32)
        moments, which = np.unique(users.now // MONTH * MONTH, return_inverse=True)
        for number, moment in enumerate(moments.tolist()):
            last = int(np.searchsorted(self.times, moment))
            weights = np.exp2((self.times[:last] - moment) / self.half_life)
            scores[which == number] = np.bincount(self.items[:last], weights, minlength=self.width)
        return scores

    def similar(self, item: int) -> Floats:
        """Return zeros: it does not depend on `item`."""
        return np.zeros(self.width, np.float32)


class RecentPopularity:
    """The number of likes in the year before each user's request, and whether an item was released by then.

    It uses no like after the moment of the request, which is rounded down to a month so that users share their counts.
    """

    name = "era"

    def __init__(self, years: Ints) -> None:
        self.years = years  # of release; 0 if unknown
        self.cache: dict[int, Floats] = {}  # scores by moment

    def fit(self, train: Histories) -> Self:
        order = np.argsort(train.times, kind="stable")
        self.times, self.items = train.times[order], train.items[order]
        self.cache = {}
        return self

    def scores(self, users: Histories) -> Floats:
        scores = np.zeros((len(users), len(self.years)), np.float32)
        moments, which = np.unique(users.now // MONTH * MONTH, return_inverse=True)
        for number, moment in enumerate(moments.tolist()):
            part = self._count_likes(moment)
            scores[which == number, : len(part)] = part
        return scores

    def _count_likes(self, moment: int) -> Floats:
        """Return the scores at a moment, for the items up to the last liked one."""
        if moment not in self.cache:
            first, last = np.searchsorted(self.times, [moment - WINDOW, moment])
            if len(self.cache) >= MAX_CACHED:
                self.cache.clear()
            self.cache[moment] = np.log1p(np.bincount(self.items[first:last])).astype(np.float32)
        return self.cache[moment]

    def mark_unreleased(self, users: Histories) -> Floats:
        """Return float32 [n, items]: 1 for items released after the year of the user's request."""
        years = np.array([datetime.fromtimestamp(t, UTC).year if t > 0 else 9999 for t in users.now.tolist()])
        return np.asarray(self.years[None, :] > years[:, None], np.float32)

    def similar(self, item: int) -> Floats:
        return np.asarray(-np.abs(self.years - self.years[item]), np.float32)
