"""How much each liked item says about a user: more stars say more, and so does what was liked lately.

Weights are above 0 for every rating there can be, so that a user with one rating, or with the same stars for
everything, has a profile like any other.
"""

from __future__ import annotations

import numpy as np

from ridgeline.recommend.data import Real
from ridgeline.recommend.histories import Histories

HALF = 30.0  # likes after which one counts half


def taste(users: Histories, half: float | None = HALF) -> Real:
    """float32, one per entry of the histories."""
    top = max(float(users.stars.max(initial=0.0)), 1e-6)
    weight = 0.5 + 0.5 * np.clip(users.stars / top, 0.0, 1.0)
    return np.asarray(weight * recency(users, half), np.float32)


def recency(users: Histories, half: float | None) -> Real:
    if half is None:
        return np.ones(len(users.items), np.float32)
    return np.exp2(-users.ages / half).astype(np.float32)
