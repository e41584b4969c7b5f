"""Ranking metrics over the whole catalogue, one value per user.

recall@k   of what was held out, the share among the first k
ndcg@k     gains discounted by log2 of the rank; the ideal is cut at k
mrr        1 / rank of the first held-out item, in the full ranking
coverage   share of the items that stand among the first 10 of anybody (one value for all users)

Equal scores go by the item's row, so that a ranking is the same every time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.recommend.data import Real, Whole
from ridgeline.recommend.histories import Histories

COVERED = 10
_METRIC = re.compile(r"(recall|ndcg)@([1-9]\d{0,4})|mrr|coverage")


def checked_metrics(words: str) -> list[str]:
    """Names from 'recall@20,ndcg@10'."""
    names = [w.strip().lower() for w in words.split(",") if w.strip()]
    for name in names:
        if not _METRIC.fullmatch(name):
            raise InputError(f"there is no metric '{name}'; there are recall@K, ndcg@K, mrr and coverage.")
    if not names:
        raise InputError("no metric was named; give some of recall@K, ndcg@K, mrr, coverage.")
    return list(dict.fromkeys(names))


def best(scores: Real, k: int) -> Whole:
    """int64 [n, k]: the columns of the k highest scores, best first, equal ones by column; −inf are left out as −1."""
    k = min(k, scores.shape[1])
    if k == scores.shape[1]:
        order = np.argsort(-scores, axis=1, kind="stable")
    else:
        # All that could be among the first k: those at or above the k-th value, of which ties may make more than k.
        edge = np.partition(scores, -k, axis=1)[:, -k:][:, :1]
        near = scores >= edge
        order = np.empty((len(scores), k), np.int64)
        plain = np.count_nonzero(near, axis=1) == k
        some = (np.flatnonzero(near[plain]) % scores.shape[1]).reshape(-1, k)
        values = np.take_along_axis(scores[plain], some, axis=1)
        order[plain] = np.take_along_axis(some, np.argsort(-values, axis=1, kind="stable"), axis=1)
        for row in np.flatnonzero(~plain):
            some = np.flatnonzero(near[row])
            order[row] = some[np.argsort(-scores[row, some], kind="stable")[:k]]
    found = np.where(np.isneginf(np.take_along_axis(scores, order, axis=1)), -1, order)
    return np.asarray(found, np.int64)


def measured(scores: Real, test: Histories, names: Sequence[str]) -> tuple[dict[str, NDArray[Any]], Whole]:
    """Values per user [n] for every metric but coverage, and the first items [n, k]. `scores` has −inf where masked."""
    depth = max([COVERED, *(int(n.partition("@")[2]) for n in names if "@" in n)])
    top = best(scores, depth)
    wanted = np.zeros(scores.shape, bool)
    wanted[test.users, test.items] = True
    hits = np.take_along_axis(wanted, np.maximum(top, 0), axis=1) & (top >= 0)
    count = test.lengths
    discount = 1.0 / np.log2(np.arange(2, depth + 2))
    ideal = np.cumsum(discount)
    found: dict[str, NDArray[Any]] = {}
    for name in names:
        kind, _, cut = name.partition("@")
        if kind == "recall":
            found[name] = hits[:, : int(cut)].sum(1) / count
        elif kind == "ndcg":
            k = min(int(cut), depth)
            found[name] = (hits[:, :k] * discount[: hits[:, :k].shape[1]]).sum(1) / ideal[np.minimum(count, k) - 1]
        elif kind == "mrr":
            found[name] = 1.0 / _first_ranks(scores, test)
    return found, top


def _first_ranks(scores: Real, test: Histories) -> NDArray[Any]:
    ranks = np.empty(len(test))
    for row in range(len(test)):
        wanted = test.items[test.starts[row] : test.starts[row + 1]]
        values = scores[row, wanted]
        high = values.max()
        first = wanted[values == high].min()
        ranks[row] = 1 + (scores[row] > high).sum() + (scores[row, :first] == high).sum()
    return ranks


def interval(values: NDArray[Any], seed: int = 0, draws: int = 1000) -> tuple[float, float]:
    """The 95 % interval of the mean over users, by bootstrap; one seed, so the same draws for every metric."""
    count = len(values)
    rng = np.random.default_rng(seed)
    means = np.array([values[rng.integers(0, count, count)].mean() for _ in range(draws)])
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
