"""What is learnt from and what is held out: five ways, each with a fixed draw.

random          each user's likes: 20 % (rounded, at least 1) drawn at random
temporal-user   each user's likes: the latest 20 %
temporal-global one moment for all: learnt before it (80 % of all likes), asked after it
strong          20 % of the users are not learnt from at all; of theirs 80 % are shown, the latest 20 % asked
cold-items      20 % of the items are not learnt from at all; ranked among themselves

A like is a rating of `min_rating` or more; users need LEAST of them; items are all with one like.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError, unknown
from ridgeline.recommend.data import Dataset, Ratings
from ridgeline.recommend.histories import Histories, histories_of

SPLITS = ("random", "temporal-user", "temporal-global", "strong", "cold-items")
LEAST = 5
SHARE = 0.2


@dataclass(frozen=True)
class Split:
    """`train` is learnt from; `shown` and `test` have a row per user that is asked. `items` are rows of the catalogue.

    `candidates` bool [items] may be recommended. `bare` says that item texts must not carry what users wrote.
    """

    train: Histories
    shown: Histories
    test: Histories
    items: NDArray[np.int64]
    candidates: NDArray[np.bool_]
    bare: bool = False


def likes_of(dataset: Dataset, min_rating: float) -> tuple[Ratings, NDArray[np.int64], int]:
    """(likes with users and items counted anew, the catalogue's rows of the items, users)."""
    r = dataset.ratings
    kept = r.taken(np.flatnonzero(r.stars >= min_rating))
    enough = np.bincount(kept.users, minlength=len(dataset.user_ids)) >= LEAST
    kept = kept.taken(np.flatnonzero(enough[kept.users]))
    if not len(kept):
        raise InputError(
            f"no user of '{dataset.name}' has {LEAST} ratings of {min_rating:g} or more; lower --min-rating."
        )
    users, user_rows = np.unique(kept.users, return_inverse=True)
    items, item_rows = np.unique(kept.items, return_inverse=True)
    return Ratings(user_rows.astype(np.int64), item_rows.astype(np.int64), kept.stars, kept.times), items, len(users)


def split_of(dataset: Dataset, kind: str, min_rating: float, seed: int = 0) -> Split:
    if kind not in SPLITS:
        raise unknown("split", kind, SPLITS)
    likes, items, users = likes_of(dataset, min_rating)
    if "temporal" in kind and not likes.times.any():
        raise InputError(f"'{dataset.name}' has no times, so nothing can be split by them; use --split random.")
    if kind == "cold-items":
        # Equal scores go by row, and MovieLens numbers its films roughly by fame: a model that knows nothing of a cold
        # item would be given that. Mixed rows tell nothing.
        order = np.random.default_rng([seed, 1]).permutation(len(items))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        likes, items = replace(likes, items=place[likes.items]), items[order]
    return divided(likes, items, users, kind, seed)


def divided(likes: Ratings, items: NDArray[np.int64], users: int, kind: str, seed: int) -> Split:
    width = len(items)
    every = np.ones(width, bool)
    rng = np.random.default_rng(seed)
    if kind in ("random", "temporal-user"):
        held = held_out(likes, users, rng if kind == "random" else None)
        train = histories_of(likes.taken(np.flatnonzero(~held)), users, width)
        test = histories_of(likes.taken(np.flatnonzero(held)), users, width)
        return _asked(train, train, test, items, every)
    if kind == "temporal-global":
        cut = int(np.quantile(likes.times, 1 - SHARE, method="lower"))
        before = likes.times < cut
        train = histories_of(likes.taken(np.flatnonzero(before)), users, width).asked_at(cut)
        test = histories_of(likes.taken(np.flatnonzero(~before)), users, width)
        known = np.bincount(train.items, minlength=width) > 0
        return _asked(train, train, _within(test, known), items, known, bare=True)
    if kind == "strong":
        hidden = np.zeros(users, bool)
        hidden[rng.permutation(users)[: max(1, round(SHARE * users))]] = True
        held = held_out(likes, users, None)
        theirs = hidden[likes.users]
        train = histories_of(likes.taken(np.flatnonzero(~theirs)), users, width)
        shown = histories_of(likes.taken(np.flatnonzero(theirs & ~held)), users, width)
        test = histories_of(likes.taken(np.flatnonzero(theirs & held)), users, width)
        return _asked(train, shown, test, items, every)
    cold = np.zeros(width, bool)
    cold[rng.permutation(width)[: max(1, round(SHARE * width))]] = True
    held = cold[likes.items]
    train = histories_of(likes.taken(np.flatnonzero(~held)), users, width)
    test = histories_of(likes.taken(np.flatnonzero(held)), users, width)
    return _asked(train, train, test, items, cold, bare=True)


def held_out(likes: Ratings, users: int, rng: np.random.Generator | None) -> NDArray[np.bool_]:
    """bool per like: the last fifth of each user by time, or of a random order of it."""
    held = np.zeros(len(likes), bool)
    order = np.lexsort((likes.times, likes.users))
    starts = np.r_[0, np.cumsum(np.bincount(likes.users, minlength=users))]
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        if last > first:
            own: NDArray[Any] = order[first:last]
            own = own if rng is None else rng.permutation(own)
            held[own[-max(1, round(SHARE * len(own))) :]] = True
    return held


def _asked(
    train: Histories, shown: Histories, test: Histories, items: Any, candidates: Any, bare: bool = False
) -> Split:
    """Only users who have something to show and something to find."""
    users = np.flatnonzero((test.lengths > 0) & (shown.lengths > 0))
    if not len(users):
        raise InputError(
            "after this split no user has both something to learn from and something to find; use more data."
        )
    return Split(train, shown.taken(users), test.taken(users), items, candidates, bare)


def _within(test: Histories, known: NDArray[np.bool_]) -> Histories:
    keep = np.flatnonzero(known[test.items])
    kept = Ratings(test.users[keep], test.items[keep], test.stars[keep], test.times[keep])
    return histories_of(kept, len(test), test.width)
