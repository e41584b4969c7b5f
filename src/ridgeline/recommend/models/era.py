"""Era: what was liked by others in the year before the user's moment, and what existed then at all.

Nothing later than the moment is looked at; it is rounded down to a month so that users share their counts.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Self

import numpy as np

from ridgeline.recommend.data import Real, Whole
from ridgeline.recommend.histories import Histories

DAY = 86_400
MONTH = 30 * DAY
WINDOW = 365 * DAY


class Era:
    name = "era"

    def __init__(self, years: Whole) -> None:
        self.years = years  # of release, 0 where unknown

    def fit(self, train: Histories) -> Self:
        order = np.argsort(train.times, kind="stable")
        self.times, self.items = train.times[order], train.items[order]
        return self

    def scores(self, users: Histories) -> Real:
        found = np.zeros((len(users), len(self.years)), np.float32)
        moments, which = np.unique(users.now // MONTH * MONTH, return_inverse=True)
        for number, moment in enumerate(moments.tolist()):
            first, last = np.searchsorted(self.times, [moment - WINDOW, moment])
            counts = np.bincount(self.items[first:last], minlength=len(self.years))
            found[which == number] = np.log1p(counts).astype(np.float32)
        return found

    def unreleased(self, users: Histories) -> Real:
        """float32 [n, items]: 1 where the item came out after the year of the user's moment."""
        years = np.array([datetime.fromtimestamp(t, UTC).year if t > 0 else 9999 for t in users.now.tolist()])
        return np.asarray(self.years[None, :] > years[:, None], np.float32)

    def similar(self, item: int) -> Real:
        return np.asarray(-np.abs(self.years - self.years[item]), np.float32)
