"""What each user liked, oldest first, as compressed rows: what every model learns from and answers for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.recommend.data import Ratings, Real, Whole


@dataclass(frozen=True)
class Histories:
    """`items`, `stars`, `times` of user u lie at starts[u]:starts[u + 1], oldest first; `width` items there are.

    `now` [n] is the moment an answer is asked for: nothing later may be used for that user.
    """

    starts: Whole
    items: Whole
    stars: Real
    times: Whole
    width: int
    now: Whole

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Whole:
        return np.diff(self.starts)

    @property
    def users(self) -> Whole:
        """The user of every entry."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def ages(self) -> Whole:
        """For every entry how many of the same user came after it: 0 is the latest."""
        return np.repeat(self.starts[1:], self.lengths) - 1 - np.arange(len(self.items))

    def matrix(self, weights: NDArray[Any] | None = None) -> Any:
        """A SciPy CSR matrix [n, width] of ones, or of weights in the order of `items`."""
        from scipy.sparse import csr_matrix

        values = np.ones(len(self.items), np.float32) if weights is None else np.asarray(weights, np.float32)
        return csr_matrix((values, self.items, self.starts), shape=(len(self), self.width))

    def taken(self, users: NDArray[Any]) -> Histories:
        """Some users, in the order given."""
        users = np.asarray(users, np.int64)
        lengths = self.lengths[users]
        starts = np.r_[0, np.cumsum(lengths)]
        rows = np.repeat(self.starts[users] - starts[:-1], lengths) + np.arange(starts[-1])
        return replace(
            self,
            starts=starts,
            items=self.items[rows],
            stars=self.stars[rows],
            times=self.times[rows],
            now=self.now[users],
        )

    def asked_at(self, moment: int) -> Histories:
        return replace(self, now=np.full(len(self), moment, np.int64))


def histories_of(ratings: Ratings, users: int, width: int) -> Histories:
    """Histories of `users` users; asked for at the moment of each one's last rating."""
    order = np.lexsort((ratings.times, ratings.users))  # stable: equal times stay in the order of the file
    starts = np.r_[0, np.cumsum(np.bincount(ratings.users, minlength=users))].astype(np.int64)
    times = ratings.times[order]
    now = np.zeros(users, np.int64)
    some = np.diff(starts) > 0
    now[some] = times[starts[1:][some] - 1]
    return Histories(starts, ratings.items[order], ratings.stars[order], times, width, now)


def one_history(items: NDArray[Any], stars: NDArray[Any], width: int, now: int) -> Histories:
    """A user who is not in the data: what they liked, in the order they named it."""
    count = len(items)
    return Histories(
        np.array([0, count], np.int64),
        np.asarray(items, np.int64),
        np.asarray(stars, np.float32),
        np.full(count, now, np.int64),
        width,
        np.array([now], np.int64),
    )
