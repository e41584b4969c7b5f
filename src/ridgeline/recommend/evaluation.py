"""The published protocol: the whole catalogue ranked, training items masked, every model on the same users.

    ridgeline recommend evaluate ml-latest-small --split temporal-user

Nothing is tuned on what is held out: EASE's λ and kNN's neighbours are fixed, the hybrid's weights are learnt on a part
of the training data that is split off in the same way (`_blend`). Intervals are 95 %, by bootstrap over users; the
paired difference to EASE is over the same users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.recommend.data import Dataset, Ratings, Real
from ridgeline.recommend.histories import Histories
from ridgeline.recommend.metrics import COVERED, interval, measured
from ridgeline.recommend.models import (
    Chance,
    Ease,
    Era,
    Hybrid,
    ItemKnn,
    Model,
    Popularity,
    Semantic,
    Tfidf,
)
from ridgeline.recommend.splits import LEAST, SHARE, Split, divided, split_of
from ridgeline.recommend.texts import TEMPLATE, item_texts

USERS = 2_048  # scored at a time: [USERS, items] float32 stays in memory
LEARNT_ON = 4_000  # users that the blend looks at, fewer
HELD = 50_000_000  # where [users, items] would have more numbers than this
OBJECTIVE = ("ndcg@10", "ndcg@100")
WORDS = {
    "random": "each user's 20 % at random",
    "temporal-user": "each user's latest 20 %",
    "temporal-global": "all after the moment that has 80 % of the likes before it; items liked before it",
    "strong": "the latest 20 % of 20 % of the users, from whom nothing was learnt",
    "cold-items": "20 % of the items, from which nothing was learnt, ranked among themselves",
}

Tell = Callable[[str], object]
Encode = Callable[[Sequence[str]], NDArray[Any]]


@dataclass(frozen=True)
class Settings:
    split: str = "random"
    min_rating: float = 4.0
    metrics: Sequence[str] = ("recall@20", "ndcg@10")
    seed: int = 0
    penalty: float = 100.0
    template: str = TEMPLATE
    device: str = "cpu"


def evaluate(dataset: Dataset, encode: Encode, settings: Settings, tell: Tell = lambda _: None) -> dict[str, Any]:
    """`{"protocol": …, "models": {name: {metric: {"mean", "ci"}, "paired_vs_ease": …}}}`."""
    if not settings.metrics:
        raise InputError("no metric was named; give some of recall@K, ndcg@K, mrr, coverage.")
    split = split_of(dataset, settings.split, settings.min_rating, settings.seed)
    known = dataset.without_themes() if split.bare else dataset
    tell("item texts")
    texts = item_texts(known.catalogue, settings.template)
    texts = [texts[row] for row in split.items.tolist()]
    vectors = np.asarray(encode(texts), np.float32)
    years = dataset.catalogue.years[split.items]

    inner = _inner(split, settings)
    tell("the hybrid's weights, on a part of the training data")
    weights = blend(inner, vectors, years, settings.penalty, settings.device)

    tell("the models")
    hybrid = _parts(vectors, years, settings.penalty, settings.device, weights).fit(split.train)
    models: list[Model] = [
        Chance(settings.seed),
        hybrid.popularity,
        hybrid.itemknn,
        hybrid.ease,
        hybrid.semantic,
        Tfidf(texts),
        hybrid,
    ]
    values: dict[str, dict[str, NDArray[Any]]] = {}
    covered: dict[str, float] = {}
    for model in models:
        tell(f"ranking by {model.name}")
        values[model.name], covered[model.name] = _valued(model, split, settings.metrics)
    return {
        "protocol": _protocol(dataset, split, settings, weights),
        "models": {name: _summed(name, values, covered, settings) for name in values},
    }


def blend(split: Split, vectors: Real, years: NDArray[np.int64], penalty: float, device: str) -> dict[str, float]:
    """The hybrid's weights, learnt on one split."""
    hybrid = _parts(vectors, years, penalty, device, None).fit(split.train)
    most = min(LEARNT_ON, len(split.test), max(1, HELD // len(split.items)))
    some = np.linspace(0, len(split.test) - 1, most).astype(np.int64)
    shown, test = split.shown.taken(some), split.test.taken(some)

    def objective(scores: Real) -> float:
        found, _ = measured(masked(scores.copy(), shown, split.candidates), test, OBJECTIVE)
        return float(np.mean([found[name].mean() for name in OBJECTIVE]))

    return hybrid.learn(shown, objective).weights


def masked(scores: Real, shown: Histories, candidates: NDArray[np.bool_]) -> Real:
    """In place: −inf for what the user has seen and for what is no candidate."""
    scores[:, ~candidates] = -np.inf
    scores[shown.users, shown.items] = -np.inf
    return scores


def _parts(
    vectors: Real, years: NDArray[np.int64], penalty: float, device: str, weights: dict[str, float] | None
) -> Hybrid:
    ease = Ease(penalty, device=device)
    return Hybrid(ease, Semantic(vectors), Popularity(), ItemKnn(), Era(years), weights)


def _inner(split: Split, settings: Settings) -> Split:
    train = split.train
    likes = Ratings(train.users, train.items, train.stars, train.times)
    kind = "temporal-user" if settings.split == "strong" else settings.split
    return divided(likes, split.items, len(train), kind, settings.seed + 1)


def _valued(model: Model, split: Split, names: Sequence[str]) -> tuple[dict[str, NDArray[Any]], float]:
    parts: list[dict[str, NDArray[Any]]] = []
    shown_to_anybody = np.zeros(split.train.width, bool)
    for start in range(0, len(split.test), USERS):
        users = np.arange(start, min(start + USERS, len(split.test)))
        shown, test = split.shown.taken(users), split.test.taken(users)
        found, top = measured(masked(model.scores(shown), shown, split.candidates), test, names)
        parts.append(found)
        first = top[:, :COVERED]
        shown_to_anybody[first[first >= 0]] = True
    joined = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    return joined, float(shown_to_anybody.sum() / split.candidates.sum())


def _summed(
    name: str, values: dict[str, dict[str, NDArray[Any]]], covered: dict[str, float], settings: Settings
) -> dict[str, Any]:
    told: dict[str, Any] = {}
    paired = {}
    for metric in settings.metrics:
        if metric == "coverage":
            told[metric] = {"mean": covered[name], "ci": None}
            continue
        found = values[name][metric]
        told[metric] = {"mean": float(found.mean()), "ci": interval(found)}
        difference = found - values["ease"][metric]
        paired[metric] = {"mean": float(difference.mean()), "ci": interval(difference)}
    return told if name == "ease" else {**told, "paired_vs_ease": paired}


def _protocol(dataset: Dataset, split: Split, settings: Settings, weights: dict[str, float]) -> dict[str, Any]:
    return {
        "dataset": dataset.name,
        "split": settings.split,
        "held_out": WORDS[settings.split],
        "share": SHARE,
        "seed": settings.seed,
        "min_rating": settings.min_rating,
        "least_likes": LEAST,
        "users": len(split.test),
        "items": len(split.items),
        "candidates": int(split.candidates.sum()),
        "likes_learnt_from": len(split.train.items),
        "likes_held_out": len(split.test.items),
        "ranking": "all candidates, training items masked; equal scores by the item's row",
        "ideal": "NDCG's ideal is cut at k; recall divides by the number held out; users averaged",
        "ease_lambda": settings.penalty,
        "itemknn_neighbours": ItemKnn().neighbours,
        "hybrid_weights": weights,
        "texts": "title, year, genres" if split.bare else "title, year, genres, themes",
        "intervals": "95 %, bootstrap over users, 1000 draws",
        "left_out": dict(dataset.problems.counts),
    }
