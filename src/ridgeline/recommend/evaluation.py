"""Evaluate models: split the likes, rank the complete catalogue, and measure every model on the same users.

    ridgeline recommend evaluate ml-latest-small --split temporal-user

Splits have a fixed seed. A like is a rating of `min_rating` or more; a user needs MIN_LIKES of them, an item one.

random           holds out 20 % of each user's likes (rounded, at least 1), drawn at random
temporal-user    holds out the latest 20 % of each user's likes
temporal-global  holds out all likes after one moment; 80 % of the likes are before it
strong           20 % of the users are not in the training data: 80 % of their likes are the input, the latest 20 % are
                 held out
cold-items       20 % of the items are not in the training data; they are ranked among themselves
given            the caller has split the data: training and held-out ratings are two datasets of one catalogue

Metrics over the complete catalogue, one value per user:

recall@k   share of the held-out items among the first k
ndcg@k     gains discounted by log2 of the rank; the ideal ranking has at most k items
mrr        1 / rank of the first held-out item, in the full ranking
coverage   share of the items that are among the first 10 of any user (one value for all users)

Beside accuracy, over the first 10 of each user:

novelty          mean −log2 of the share of users who like an item; 0 for what all users like
diversity        1 − mean cosine of the text vectors of two items; without texts there is none
popularity_bias  mean number of likes of these items relative to the items that the user likes, − 1; 0: as popular

Ties go by the item's row, so that a ranking is the same every time. No parameter is tuned on held-out likes: kNN's
neighbours are fixed, and a second split of the training data decides EASE's λ (`choose_penalty`) and the hybrid's
weights (`learn_blend`).
Intervals are 95 %, by bootstrap over users; paired differences (to EASE, and of the hybrid to each model) are over the
same users.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError, unknown
from ridgeline.recommend.data import Dataset, Floats, Histories, Ints, Ratings, build_histories
from ridgeline.recommend.diversity import check_diversity, rerank
from ridgeline.recommend.item_vectors import TEMPLATE, item_texts
from ridgeline.recommend.models import (
    DecayedPopularity,
    Ease,
    Hybrid,
    ItemKnn,
    Model,
    Popularity,
    RandomModel,
    RecentPopularity,
    Semantic,
    Tfidf,
    factors,
    make_ease,
)
from ridgeline.recommend.models.ease import DEFAULT_PENALTY, MAX_ITEMS
from ridgeline.recommend.models.hybrid import PARTS, WITHOUT_ORDER
from ridgeline.recommend.models.neighbour_ease import NEIGHBOURS, NeighbourEase, count_likes
from ridgeline.recommend.ranking import top_k

USER_BLOCK = 2_048  # users per block of scores [users, items] float32
MAX_BLEND_USERS = 4_000  # users for learning the blend; fewer if their scores exceed MAX_SCORES numbers
MAX_SCORES = 50_000_000
LEARNING_SCORES = 8_000_000  # the same for a catalogue that is too large for the dense EASE, and
LEARNING_ITEMS = 10_000  # its most liked items, to learn on
OBJECTIVE = ("ndcg@10", "ndcg@100")
PENALTIES = (10.0, 20.0, 50.0, DEFAULT_PENALTY, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0)  # of EASE, to choose from
PENALTY_ITEMS = 4_000  # most liked items for choosing λ; a solution takes time with the cube of their number
SPLIT_TEXTS = {
    "random": "each user's 20 % at random",
    "temporal-user": "each user's latest 20 %",
    "temporal-global": "all after the moment that has 80 % of the likes before it; items liked before it",
    "strong": "the latest 20 % of 20 % of the users, from whom nothing was learnt",
    "cold-items": "20 % of the items, from which nothing was learnt, ranked among themselves",
    "given": "the likes of a file of their own",
}

DIVERSIFIED, NO_ORDER = "hybrid, diversified", "hybrid without order"
Progress = Callable[[str], object]
Encode = Callable[[Sequence[str]], NDArray[Any]]
SPLITS = ("random", "temporal-user", "temporal-global", "strong", "cold-items")
MIN_LIKES = 5
TEST_SHARE = 0.2
COVERAGE_DEPTH = 10
BEYOND = ("coverage", "novelty", "diversity", "popularity_bias")  # reported beside any metrics
_METRIC = re.compile(r"(recall|ndcg)@([1-9]\d{0,4})|mrr|coverage")


@dataclass(frozen=True)
class EvaluationSettings:
    """The settings of an evaluation; likes are ratings of `min_rating` or more, `penalty` is EASE's λ (None: chosen on
    a part of the training data)."""

    split: str = "random"
    min_rating: float = 4.0
    metrics: Sequence[str] = ("recall@20", "ndcg@10")
    seed: int = 0
    penalty: float | None = None
    template: str = TEMPLATE
    device: str = "cpu"
    diversify: float = 0.0  # also measure the hybrid's lists reordered by this weight of differences


def evaluate(
    dataset: Dataset,
    encode: Encode,
    settings: EvaluationSettings,
    progress: Progress = lambda _: None,
    *,
    test: Dataset | None = None,
) -> dict[str, Any]:
    """Evaluate every model on one split of a dataset, or on the ratings of `test`, held out by the caller.

    `encode` turns item texts into vectors [N, dim]; `progress` receives the name of each stage. Returns {"protocol": …,
    "models": {name: {metric: {"mean", "ci"}, "paired_vs_ease": …}}}; raises InputError if the split is impossible.
    """
    if not settings.metrics:
        raise InputError("no metric is given; give some of recall@K, ndcg@K, mrr, coverage.")
    if test is not None:
        settings = replace(settings, split="given")
        split = join_given(dataset, test, settings.min_rating)
    else:
        split = split_dataset(dataset, settings.split, settings.min_rating, settings.seed)
    known = dataset.without_themes() if split.without_themes else dataset
    progress("item texts")
    texts = item_texts(known.catalogue, settings.template)
    texts = [texts[row] for row in split.items.tolist()]
    vectors = np.asarray(encode(texts), np.float32)
    years = dataset.catalogue.years[split.items]

    inner = _split_training(split, settings)
    progress("EASE's λ and the hybrid's weights, on a part of the training data")
    penalty = settings.penalty if settings.penalty is not None else choose_penalty(inner, settings.device)
    weights = learn_blend(inner, vectors, years, penalty, settings.device)
    uses_order = not set(weights) <= set(WITHOUT_ORDER)
    others = learn_blend(inner, vectors, years, penalty, settings.device, WITHOUT_ORDER) if uses_order else {}

    progress("the models")
    hybrid = _build_hybrid(vectors, years, penalty, settings.device, weights).fit(split.train)
    models: list[Model] = [
        RandomModel(settings.seed),
        hybrid.popularity,
        *([DecayedPopularity().fit(split.train)] if split.train.times.any() else []),
        hybrid.itemknn,
        *_fit_factors(split, inner),
        hybrid.ease,
        hybrid.semantic,
        Tfidf(texts),
        *([_forget_order(hybrid, others)] if uses_order else []),
        hybrid,
    ]
    values: dict[str, dict[str, NDArray[Any]]] = {}
    covered: dict[str, float] = {}
    for model in models:
        progress(f"ranking by {model.name}")
        values[model.name], covered[model.name] = _evaluate_model(model, split, settings.metrics, hybrid.semantic.items)
    if settings.diversify:
        check_diversity(settings.diversify)
        progress("ranking by hybrid, diversified")
        values[DIVERSIFIED], covered[DIVERSIFIED] = _evaluate_model(
            hybrid, split, settings.metrics, hybrid.semantic.items, settings.diversify
        )
    return {
        "protocol": _protocol(dataset, split, settings, penalty, weights),
        "models": {name: _summarize(name, values, covered, settings) for name in values},
    }


@dataclass(frozen=True)
class Split:
    """Models learn from `train`. `history` (the input) and `test` (the held-out likes) have one row per evaluated user.

    `items` are rows of the catalogue.

    `candidates` bool [items]: items that may be recommended. `without_themes`: item texts must not use users' tags.
    """

    train: Histories
    history: Histories
    test: Histories
    items: NDArray[np.int64]
    candidates: NDArray[np.bool_]
    without_themes: bool = False


def split_dataset(dataset: Dataset, kind: str, min_rating: float, seed: int = 0) -> Split:
    if kind not in SPLITS:
        raise unknown("split", kind, SPLITS)
    likes, items, users = select_likes(dataset, min_rating)
    if "temporal" in kind and not likes.times.any():
        raise InputError(f"'{dataset.name}' has no times, so a temporal split is impossible; use --split random.")
    if kind == "cold-items":
        # Ties go by row, and MovieLens numbers its films roughly by popularity, which would help a model that knows
        # nothing about cold items. Shuffle the rows.
        order = np.random.default_rng([seed, 1]).permutation(len(items))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        likes, items = replace(likes, items=place[likes.items]), items[order]
    return split_likes(likes, items, users, kind, seed)


def join_given(train: Dataset, test: Dataset, min_rating: float) -> Split:
    """Return the split that the caller made: two datasets of one catalogue. Users and items need no number of likes.

    Held-out likes of users without training ratings, and those that are also training likes, count as problems of
    `test`.
    """
    known = {str(user): row for row, user in enumerate(train.user_ids.tolist())}
    user_rows = np.array([known.get(str(user), -1) for user in test.user_ids.tolist()], np.int64)
    likes, held_out = (d.ratings.select(np.flatnonzero(d.ratings.stars >= min_rating)) for d in (train, test))
    held_out = replace(held_out, users=user_rows[held_out.users])
    strangers = len(np.unique(test.ratings.users[user_rows[test.ratings.users] < 0]))
    held_out = held_out.select(np.flatnonzero(held_out.users >= 0))
    width = len(train.catalogue)
    repeated = np.isin(held_out.users * width + held_out.items, likes.users * width + likes.items)
    held_out = held_out.select(np.flatnonzero(~repeated))
    for kind, count, sentence in (
        ("unknown user", strangers, f"users of '{test.name}' without training ratings"),
        ("in both files", int(repeated.sum()), f"likes of '{test.name}' are also training likes"),
    ):
        if count:
            test.problems.counts[kind], test.problems.examples[kind] = count, [sentence]
    items = np.union1d(likes.items, held_out.items)
    histories = [
        build_histories(replace(r, items=np.searchsorted(items, r.items)), len(train.user_ids), len(items))
        for r in (likes, held_out)
    ]
    return _select_users(histories[0], histories[0], histories[1], items, np.ones(len(items), bool))


def split_likes(likes: Ratings, items: NDArray[np.int64], users: int, kind: str, seed: int) -> Split:
    width = len(items)
    all_items = np.ones(width, bool)
    rng = np.random.default_rng(seed)
    if kind in ("random", "temporal-user"):
        held_out = mark_held_out(likes, users, rng if kind == "random" else None)
        train = build_histories(likes.select(~held_out), users, width)
        test = build_histories(likes.select(held_out), users, width)
        return _select_users(train, train, test, items, all_items)
    if kind == "temporal-global":
        cut = int(np.quantile(likes.times, 1 - TEST_SHARE, method="lower"))
        before = likes.times < cut
        train = build_histories(likes.select(np.flatnonzero(before)), users, width).at_moment(cut)
        test = build_histories(likes.select(np.flatnonzero(~before)), users, width)
        known = np.bincount(train.items, minlength=width) > 0
        return _select_users(train, train, _select_items(test, known), items, known, without_themes=True)
    if kind == "strong":
        hidden = np.zeros(users, bool)
        hidden[rng.permutation(users)[: max(1, round(TEST_SHARE * users))]] = True
        held_out = mark_held_out(likes, users, None)
        of_hidden_users = hidden[likes.users]
        train = build_histories(likes.select(np.flatnonzero(~of_hidden_users)), users, width)
        history = build_histories(likes.select(np.flatnonzero(of_hidden_users & ~held_out)), users, width)
        test = build_histories(likes.select(np.flatnonzero(of_hidden_users & held_out)), users, width)
        return _select_users(train, history, test, items, all_items)
    cold = np.zeros(width, bool)
    cold[rng.permutation(width)[: max(1, round(TEST_SHARE * width))]] = True
    held_out = cold[likes.items]
    train = build_histories(likes.select(np.flatnonzero(~held_out)), users, width)
    test = build_histories(likes.select(np.flatnonzero(held_out)), users, width)
    return _select_users(train, train, test, items, cold, without_themes=True)


def select_likes(dataset: Dataset, min_rating: float) -> tuple[Ratings, NDArray[np.int64], int]:
    """Return (likes with new user and item rows, the items' rows in the catalogue, the number of users)."""
    r = dataset.ratings
    is_like = r.stars >= min_rating
    enough = np.bincount(r.users[is_like], minlength=len(dataset.user_ids)) >= MIN_LIKES
    likes = r.select(is_like & enough[r.users])
    if not len(likes):
        raise InputError(
            f"no user of '{dataset.name}' has {MIN_LIKES} ratings of {min_rating:g} or more; lower --min-rating."
        )
    users, user_rows = _number(likes.users, len(dataset.user_ids))
    items, item_rows = _number(likes.items, len(dataset.catalogue))
    return Ratings(user_rows, item_rows, likes.stars, likes.times), items, len(users)


def _number(rows: Ints, count: int) -> tuple[Ints, Ints]:
    """Return what np.unique and its inverse return for rows below `count`, in less memory."""
    is_there = np.bincount(rows, minlength=count) > 0
    return np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[rows]


def mark_held_out(likes: Ratings, users: int, rng: np.random.Generator | None) -> NDArray[np.bool_]:
    """Return bool per like: the last 20 % of each user by time, or 20 % at random with `rng`."""
    held_out = np.zeros(len(likes), bool)
    order = np.lexsort((likes.times, likes.users))
    starts = np.r_[0, np.cumsum(np.bincount(likes.users, minlength=users))]
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        if last > first:
            user_likes: NDArray[Any] = order[first:last]
            user_likes = user_likes if rng is None else rng.permutation(user_likes)
            held_out[user_likes[-max(1, round(TEST_SHARE * len(user_likes))) :]] = True
    return held_out


def parse_metrics(text: str) -> list[str]:
    """Parse a list of metrics such as 'recall@20,ndcg@10'."""
    names = [w.strip().lower() for w in text.split(",") if w.strip()]
    for name in names:
        if not _METRIC.fullmatch(name):
            raise InputError(f"there is no metric '{name}'; there are recall@K, ndcg@K, mrr and coverage.")
    if not names:
        raise InputError("no metric is given; give some of recall@K, ndcg@K, mrr, coverage.")
    return list(dict.fromkeys(names))


def measure(scores: Floats, test: Histories, names: Sequence[str]) -> tuple[dict[str, NDArray[Any]], Ints]:
    """Return ({metric: values per user [n]} without coverage, the first items [n, k]). Masked `scores` are −inf."""
    depth = max([COVERAGE_DEPTH, *(int(n.partition("@")[2]) for n in names if "@" in n)])
    top = top_k(scores, depth)
    relevant = np.zeros(scores.shape, bool)
    relevant[test.users, test.items] = True
    hits = np.take_along_axis(relevant, np.maximum(top, 0), axis=1) & (top >= 0)
    count = test.lengths
    discount = 1.0 / np.log2(np.arange(2, depth + 2))
    ideal = np.cumsum(discount)
    values: dict[str, NDArray[Any]] = {}
    for name in names:
        kind, _, cut = name.partition("@")
        if kind == "recall":
            values[name] = hits[:, : int(cut)].sum(1) / count
        elif kind == "ndcg":
            k = min(int(cut), depth)
            values[name] = (hits[:, :k] * discount[: hits[:, :k].shape[1]]).sum(1) / ideal[np.minimum(count, k) - 1]
        elif kind == "mrr":
            values[name] = 1.0 / _first_ranks(scores, test)
    return values, top


def bootstrap_interval(values: NDArray[Any], seed: int = 0, draws: int = 1000) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean over users; the fixed seed gives every metric the same draws."""
    count = len(values)
    rng = np.random.default_rng(seed)
    means = np.array([values[rng.integers(0, count, count)].mean() for _ in range(draws)])
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def choose_penalty(split: Split, device: str) -> float:
    """Return the λ of PENALTIES with which EASE has the best NDCG on one split: walk up or down while it improves."""
    limited = limit_items(split)
    quality: dict[int, float] = {}
    fit: Callable[[float], Ease | NeighbourEase]
    if limited is split:
        history, objective = _make_objective(split)
        fit = lambda penalty: Ease(penalty, max_items=PENALTY_ITEMS, device=device).fit(split.train)  # noqa: E731
    else:
        history, objective = _make_objective(limited, LEARNING_SCORES)
        counts = count_likes(limited.train, NEIGHBOURS, device)
        fit = lambda penalty: NeighbourEase(penalty).fit(limited.train, counts)  # noqa: E731

    def get_quality(number: int) -> float:
        if not 0 <= number < len(PENALTIES):
            return -np.inf
        if number not in quality:
            quality[number] = objective(fit(PENALTIES[number]).scores(history))
        return quality[number]

    best = PENALTIES.index(DEFAULT_PENALTY)
    for step in (1, -1):
        while get_quality(best + step) > get_quality(best):
            best += step
    return PENALTIES[best]


def _make_objective(split: Split, max_scores: int = MAX_SCORES) -> tuple[Histories, Callable[[Floats], float]]:
    """Return (the histories, the quality of scores [n, items]) of some users of a split."""
    most = min(MAX_BLEND_USERS, len(split.test), max(1, max_scores // len(split.items)))
    some = np.linspace(0, len(split.test) - 1, most).astype(np.int64)
    history, test = split.history.select(some), split.test.select(some)

    def objective(scores: Floats) -> float:
        values, _ = measure(mask_scores(scores.copy(), history, split.candidates), test, OBJECTIVE)
        return float(np.mean([values[name].mean() for name in OBJECTIVE]))

    return history, objective


def learn_blend(
    split: Split,
    vectors: Floats,
    years: NDArray[np.int64],
    penalty: float,
    device: str,
    parts: Sequence[str] = PARTS,
) -> dict[str, float]:
    """Learn the weights of the hybrid's `parts` on one split."""
    limited = limit_items(split)
    if limited is not split:
        rows = np.searchsorted(split.items, limited.items)
        vectors, years = vectors[rows], years[rows]
    hybrid = _build_hybrid(vectors, years, penalty, device, None, len(split.items)).fit(limited.train)
    history, objective = _make_objective(limited, MAX_SCORES if limited is split else LEARNING_SCORES)
    return hybrid.learn(history, objective, parts).weights


def limit_items(split: Split) -> Split:
    """Return a split of the most liked items, if there are too many to learn on."""
    width = len(split.items)
    if width <= MAX_ITEMS:
        return split
    counts = np.bincount(split.train.items, minlength=width)
    rows = np.sort(np.argsort(-counts, kind="stable")[:LEARNING_ITEMS])
    place = np.full(width, -1, np.int64)
    place[rows] = np.arange(len(rows))

    def limit(h: Histories) -> Histories:
        is_shared = place[h.items] >= 0
        starts = np.r_[0, np.cumsum(is_shared)][h.starts]
        return replace(
            h,
            starts=starts,
            items=place[h.items[is_shared]],
            stars=h.stars[is_shared],
            times=h.times[is_shared],
            width=len(rows),
        )

    train, history, test = (limit(h) for h in (split.train, split.history, split.test))
    return _select_users(train, history, test, split.items[rows], split.candidates[rows], split.without_themes)


def mask_scores(scores: Floats, history: Histories, candidates: NDArray[np.bool_]) -> Floats:
    """Set the scores of the users' histories and of items that are no candidates to −inf, in place."""
    scores[:, ~candidates] = -np.inf
    scores[history.users, history.items] = -np.inf
    return scores


def _fit_factors(split: Split, inner: Split) -> list[Model]:
    """Fit ALS and BPR with the parameters that are best on a part of the training data, if implicit is installed."""
    if not factors.is_available():
        return []
    limited = limit_items(inner)
    history, objective = _make_objective(limited, MAX_SCORES if limited is inner else LEARNING_SCORES)
    kinds = (factors.Als, factors.Bpr)
    return [factors.choose_factors(kind, limited.train, history, objective).fit(split.train) for kind in kinds]


def _forget_order(hybrid: Hybrid, weights: dict[str, float]) -> Hybrid:
    """Return the same models with weights that were learnt without the order of likes: what the order adds."""
    model = copy(hybrid)
    model.name, model.weights = NO_ORDER, weights
    return model


def _build_hybrid(
    vectors: Floats,
    years: NDArray[np.int64],
    penalty: float,
    device: str,
    weights: dict[str, float] | None,
    items: int | None = None,
) -> Hybrid:
    """Build the models for a catalogue of `items` items (default: as many as there are vectors)."""
    ease = make_ease(penalty, len(vectors) if items is None else items, device)
    return Hybrid(ease, Semantic(vectors), Popularity(), ItemKnn(), RecentPopularity(years), weights)


def _split_training(split: Split, settings: EvaluationSettings) -> Split:
    train = split.train
    likes = Ratings(train.users, train.items, train.stars, train.times)
    kind = settings.split
    if kind in ("strong", "given"):
        kind = "temporal-user" if likes.times.any() else "random"
    return split_likes(likes, split.items, len(train), kind, settings.seed + 1)


def _evaluate_model(
    model: Model, split: Split, names: Sequence[str], vectors: Floats, diversify: float = 0.0
) -> tuple[dict[str, NDArray[Any]], float]:
    likes = np.bincount(split.train.items, minlength=split.train.width)
    parts: list[dict[str, NDArray[Any]]] = []
    covered = np.zeros(split.train.width, bool)
    for start in range(0, len(split.test), USER_BLOCK):
        users = np.arange(start, min(start + USER_BLOCK, len(split.test)))
        history, test = split.history.select(users), split.test.select(users)
        scores = mask_scores(model.scores(history), history, split.candidates)
        if diversify:
            rerank(scores, vectors, diversify)
        values, top = measure(scores, test, names)
        first = top[:, :COVERAGE_DEPTH]
        parts.append({**values, **measure_lists(first, history, likes, len(split.train), vectors)})
        covered[first[first >= 0]] = True
    joined = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    return joined, float(covered.sum() / split.candidates.sum())


def measure_lists(
    first: Ints, history: Histories, likes: Ints, users: int, vectors: Floats
) -> dict[str, NDArray[np.float64]]:
    """Return the novelty, diversity and popularity bias of each list [n, k] of item rows; −1: no more items.

    likes    [items] number of users who like an item, of `users` in total
    vectors  [items, dim] of unit length; without dimensions there is no diversity
    """
    is_listed = first >= 0
    count = np.maximum(is_listed.sum(1), 1)
    rows = np.maximum(first, 0)
    information = -np.log2(np.maximum(likes[rows], 1) / max(users, 1))
    lengths = np.maximum(history.lengths, 1)
    liked_popularity = np.bincount(history.users, likes[history.items], minlength=len(first)) / lengths
    popularity = (likes[rows] * is_listed).sum(1) / count
    values = {
        "novelty": (information * is_listed).sum(1) / count,
        "popularity_bias": popularity / np.maximum(liked_popularity, 1e-9) - 1,
    }
    if vectors.shape[1]:
        listed = vectors[rows].astype(np.float64) * is_listed[:, :, None]
        own_cosines = (listed**2).sum((1, 2))
        pairs = np.maximum(count * (count - 1), 1)
        values["diversity"] = 1 - ((listed.sum(1) ** 2).sum(1) - own_cosines) / pairs
    return values


def _summarize(
    name: str, values: dict[str, dict[str, NDArray[Any]]], covered: dict[str, float], settings: EvaluationSettings
) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    means = values[name]
    for metric in dict.fromkeys((*settings.metrics, *BEYOND)):
        if metric == "coverage":
            summary[metric] = {"mean": covered[name], "ci": None}
        elif metric in means:
            summary[metric] = {"mean": float(means[metric].mean()), "ci": bootstrap_interval(means[metric])}
    for other in values:
        if other != name and (other == "ease" or name == "hybrid"):
            summary[f"paired_vs_{other}"] = {
                metric: _compare(means[metric], values[other][metric])
                for metric in settings.metrics
                if metric != "coverage"
            }
    return summary


def _compare(ours: NDArray[Any], other: NDArray[Any]) -> dict[str, Any]:
    difference = ours - other
    return {"mean": float(difference.mean()), "ci": bootstrap_interval(difference)}


def _protocol(
    dataset: Dataset, split: Split, settings: EvaluationSettings, penalty: float, weights: dict[str, float]
) -> dict[str, Any]:
    return {
        "dataset": dataset.name,
        "split": settings.split,
        "held_out": SPLIT_TEXTS[settings.split],
        "share": TEST_SHARE,
        "seed": settings.seed,
        "min_rating": settings.min_rating,
        "least_likes": MIN_LIKES,
        "users": len(split.test),
        "items": len(split.items),
        "candidates": int(split.candidates.sum()),
        "likes_learnt_from": len(split.train.items),
        "likes_held_out": len(split.test.items),
        "ranking": "all candidates, training items masked; equal scores by the item's row",
        "ideal": "NDCG's ideal is cut at k; recall divides by the number held out; users averaged",
        "ease_lambda": penalty,
        "ease_lambda_from": "validation" if settings.penalty is None else "the caller",
        "itemknn_neighbours": ItemKnn().neighbours,
        "hybrid_weights": weights,
        "texts": "title, year, genres" if split.without_themes else "title, year, genres, themes",
        "intervals": "95 %, bootstrap over users, 1000 draws",
        "left_out": dict(dataset.problems.counts),
    }


def _select_users(
    train: Histories, history: Histories, test: Histories, items: Any, candidates: Any, without_themes: bool = False
) -> Split:
    """Select the users with both a history and held-out likes."""
    users = np.flatnonzero((test.lengths > 0) & (history.lengths > 0))
    if not len(users):
        raise InputError("after this split no user has both likes to learn from and held-out likes; use more data.")
    return Split(train, history.select(users), test.select(users), items, candidates, without_themes)


def _select_items(test: Histories, known: NDArray[np.bool_]) -> Histories:
    rows = np.flatnonzero(known[test.items])
    ratings = Ratings(test.users[rows], test.items[rows], test.stars[rows], test.times[rows])
    return build_histories(ratings, len(test), test.width)


def _first_ranks(scores: Floats, test: Histories) -> NDArray[Any]:
    ranks = np.empty(len(test))
    for row in range(len(test)):
        relevant = test.items[test.starts[row] : test.starts[row + 1]]
        values = scores[row, relevant]
        high = values.max()
        first = relevant[values == high].min()
        ranks[row] = 1 + (scores[row] > high).sum() + (scores[row, :first] == high).sum()
    return ranks
