"""How much each liked item of a user counts: more stars count more, and so do recent likes.

Weights are above 0 for every rating, so that a user with one rating, or with equal stars for all items, has a profile.
Stars are relative to the user's highest rating, so a profile does not depend on the other users of a request.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.recommend.data import Floats, Histories

HALF_LIFE = 30.0  # likes after which an older like counts half
MIN_STARS = 1e-6  # smallest divisor
MAX_HALVINGS = 30  # a weight that was halved more often is 0


def preference_weights(users: Histories, half_life: float | None = HALF_LIFE) -> Floats:
    """Return the weight of every entry of the histories, float32."""
    weight = 0.5 + 0.5 * np.clip(users.stars / _find_max_stars(users), 0.0, 1.0)
    return np.asarray(weight * recency_weights(users, half_life), np.float32)


def recency_weights(users: Histories, half_life: float | None) -> Floats:
    """Return a weight per entry that halves after `half_life` newer likes of the same user; None: 1 for all."""
    if half_life is None:
        return np.ones(len(users.items), np.float32)
    return np.exp2(-users.ages / half_life).astype(np.float32)


def weigh_likes(count: int, half_lives: Sequence[float | None]) -> Floats:
    """Return the recency weights of `count` likes of one user, the latest last: float32 [half-lives, count].

    A weight that is too small to change a sum of float32 is 0: the native sums skip it.
    """
    ages = np.arange(count)[::-1]
    weights = np.ones((len(half_lives), count), np.float32)
    for line, half_life in zip(weights, half_lives, strict=True):
        if half_life is not None:
            line[:] = np.where(ages < MAX_HALVINGS * half_life, np.exp2(-ages / half_life), 0.0)
    return weights


def _find_max_stars(users: Histories) -> Floats | float:
    """Return the highest rating of each entry's user: one per entry, or one number for a single user."""
    if len(users) == 1 or not len(users.items):
        return float(users.stars.max(initial=MIN_STARS))
    lengths = users.lengths
    filled = lengths > 0
    max_stars = np.maximum.reduceat(users.stars, users.starts[:-1][filled])
    return np.asarray(np.repeat(np.maximum(max_stars, MIN_STARS), lengths[filled]), np.float32)
