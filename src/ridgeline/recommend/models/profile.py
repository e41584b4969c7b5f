"""How much each liked item says about a user: more stars say more, and so does what was liked lately.

Weights are above 0 for every rating there can be, so that a user with one rating, or with the same stars for
everything, has a profile like any other. Stars are held against the user's own most, so that a profile is the same
whoever else is asked for.
"""

from __future__ import annotations

import numpy as np

from ridgeline.recommend.data import Real
from ridgeline.recommend.histories import Histories

HALF = 30.0  # likes after which one counts half
LEAST = 1e-6  # stars: nothing is divided by less


def taste(users: Histories, half: float | None = HALF) -> Real:
    """float32, one per entry of the histories."""
    weight = 0.5 + 0.5 * np.clip(users.stars / _most(users), 0.0, 1.0)
    return np.asarray(weight * recency(users, half), np.float32)


def _most(users: Histories) -> Real | float:
    """The most stars that the user of an entry gave: one per entry, or one for all of them."""
    if len(users) == 1 or not len(users.items):
        return float(users.stars.max(initial=LEAST))
    lengths = users.lengths
    some = lengths > 0
    most = np.maximum.reduceat(users.stars, users.starts[:-1][some])
    return np.asarray(np.repeat(np.maximum(most, LEAST), lengths[some]), np.float32)


def recency(users: Histories, half: float | None) -> Real:
    if half is None:
        return np.ones(len(users.items), np.float32)
    return np.exp2(-users.ages / half).astype(np.float32)
