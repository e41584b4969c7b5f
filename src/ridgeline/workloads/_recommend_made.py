"""What the workload `recommend` works on, drawn by a fixed recipe: histories, item vectors, EASE's weights."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ridgeline.recommend import Histories
from ridgeline.recommend.models import MOST, Semantic


def histories(users: int, items: int, likes: int, turn: int) -> Histories:
    """`likes` different items for every user, the popular ones more often; the same for a turn."""
    rng = np.random.default_rng([7, turn])
    # A stride that shares no factor with the number of items never meets an item twice within one user.
    stride = next(s for s in range(items // 3 + 1, 2 * items) if np.gcd(s, items) == 1)
    first = (items * rng.random(users) ** 2).astype(np.int64)
    own = (first[:, None] + stride * np.arange(min(likes, items))) % items
    count = own.shape[1]
    starts = np.arange(users + 1, dtype=np.int64) * count
    stars = rng.integers(4, 6, own.size).astype(np.float32)
    times = np.zeros(own.size, np.int64)
    return Histories(starts, own.ravel(), stars, times, items, np.zeros(users, np.int64))


@lru_cache(maxsize=2)
def semantic(items: int, dim: int) -> Semantic:
    drawn = np.random.default_rng(1).normal(size=(items, dim)).astype(np.float32)
    return Semantic(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


@lru_cache(maxsize=1)
def weights_of(items: int) -> NDArray[np.float32]:
    """Of the first `MOST` items, which are the most liked ones; even, between −0.035 and 0.035."""
    kept = min(items, MOST)
    drawn = np.random.default_rng(2).random((kept, kept), dtype=np.float32)
    drawn -= 0.5
    drawn *= 0.07
    return drawn
