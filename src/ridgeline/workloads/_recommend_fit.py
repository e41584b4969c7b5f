"""Tasks `fit ease` and `fit itemknn`: fit on the training part of a split and rank for all held-out users.

Every contender gets the same histories and returns the first `DEPTH` items of each user; the record has recall and NDCG
beside the time. EASE and item-kNN must agree with a plain float64 solution. Other models have no correct result, so
the check only requires lists without seen items.

data    made   synthetic histories: likes follow products of random user and item vectors
        NAME   a folder of ratings, or its name in $RIDGELINE_DATA/movielens; split `random`, seed 0, likes from 4 stars
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.lab import OURS, Case, Check, Run, Steps, Work, installed
from ridgeline.lab.race import read_peaks
from ridgeline.machine import now_ns, topology
from ridgeline.recommend import Histories, Ratings, Split, mask_scores, measure, read, split_dataset, split_likes, top_k
from ridgeline.recommend.models import NEIGHBOURS, Ease, ItemKnn

KNN, ALS, SCIPY, TORCH = "implicit item-kNN", "implicit ALS", "SciPy EASE", "torch EASE"
PEERS = {"fit ease": [SCIPY, TORCH, ALS], "fit itemknn": [KNN]}
LIBRARIES = {SCIPY: "scipy", TORCH: "torch", KNN: "implicit", ALS: "implicit"}
DEPTH = 20
METRICS = ("recall@20", "ndcg@10")
PENALTY = 100.0
MAX_ERROR = 2e-3  # of NDCG@10, against float64: equal scores may swap places
ALS_TRIED = [
    {"factors": f, "alpha": a, "regularization": r} for f in (16, 64) for a in (1.0, 10.0) for r in (0.05, 5.0)
]
SETTINGS: dict[str, dict[str, Any]] = {
    OURS: {},
    SCIPY: {"solver": "scipy.linalg.inv, float32, positive definite"},
    TORCH: {"solver": "torch.linalg.cholesky and torch.cholesky_inverse, float32"},
    KNN: {"K": NEIGHBOURS + 1, "note": "an item is among its own neighbours there"},
    ALS: {"blas_threads": 1, "iterations": 15},
}

Fit = Callable[[Split], Callable[[], NDArray[Any]]]  # fits on a split; returns a function that ranks for all test users


def contenders(task: str) -> list[str]:
    return [OURS, *(name for name in PEERS[task] if installed(LIBRARIES[name]))]


def missing(task: str) -> dict[str, str]:
    extras = {"implicit": "peers", "torch": "torch"}
    return {name: extras[LIBRARIES[name]] for name in PEERS[task] if not installed(LIBRARIES[name])}


def work(case: Case) -> Work:
    train = load_split(*_key(case)).train
    width = train.width
    if case["task"] == "fit ease":  # Cholesky factor and inverse
        flops, model_bytes = float(width) ** 3, 4 * width * width
    else:
        flops, model_bytes = 2.0 * float((train.lengths.astype(np.float64) ** 2).sum()), 8 * NEIGHBOURS * width
    threads = len(topology().usable_cpus)
    return Work(1, "fits", flops, {"memory": model_bytes + 8 * len(train.items)}, mix="write", threads=threads)


def prepare(case: Case, contender: str) -> Run:
    split = load_split(*_key(case))
    if contender in (KNN, ALS):
        from threadpoolctl import threadpool_limits  # its documentation asks for one BLAS thread: it has other threads

        threadpool_limits(1, "blas")
        warnings.filterwarnings("ignore", message="Method expects CSR input")  # its own input
    library = LIBRARIES.get(contender)
    settings: dict[str, Any] = {"version": version(library)} if library else {}
    settings |= {**SETTINGS[contender], **(_als_settings(split) if contender == ALS else {})}
    fit: Fit = {OURS: _ours[case["task"]], SCIPY: _scipy, TORCH: _torch, KNN: _knn, ALS: lambda s: _als(s, settings)}[
        contender
    ]
    state: dict[str, Any] = {}
    stages: dict[str, list[int]] = {"fit": [], "rank": []}

    def reset() -> None:  # new arrays, so that no contender can cache an earlier turn
        state["split"] = _copy_split(split)

    def step() -> None:
        start = now_ns()
        rank = fit(state["split"])
        fitted = now_ns()
        state["rows"] = rank()
        stages["fit"].append(fitted - start)
        stages["rank"].append(now_ns() - fitted)

    reset()
    extras = lambda: {"stages_ns": stages, **read_peaks("cpu")}  # noqa: E731
    return Steps(step, lambda: {"rows": state["rows"], "by": contender}, reset, state.clear, settings, extras)


def check(case: Case, result: dict[str, Any]) -> Check:
    split, rows = load_split(*_key(case)), np.asarray(result["rows"], np.int64)
    if rows.shape != (len(split.test), min(DEPTH, split.train.width)):
        return Check(False, None, {}, f"{rows.shape} results for {len(split.test)} users and {DEPTH} items each")
    quality = _quality(split, rows)
    if quality is None:
        return Check(False, None, {}, "an item that the user has seen, or a duplicate, is among the results")
    if result["by"] in (KNN, ALS):
        return Check(True, None, quality, "lists without seen items; see quality for recall and NDCG")
    off = abs(quality["ndcg@10"] - _reference_quality(case)["ndcg@10"])
    return Check(off <= MAX_ERROR, off, quality, f"NDCG@10 against float64; allowed: {MAX_ERROR}")


def _quality(split: Split, rows: NDArray[np.int64]) -> dict[str, float] | None:
    """Return recall and NDCG of the first items (−1: no more items); None for seen or duplicate items."""
    scores = np.full((len(rows), split.train.width), -np.inf, np.float32)
    users, place = np.nonzero(rows >= 0)
    scores[users, rows[users, place]] = -place
    seen = scores[split.history.users, split.history.items]
    if not np.isneginf(seen).all() or (~np.isneginf(scores)).sum() != len(users):
        return None
    per_user, _ = measure(scores, split.test, METRICS)
    return {name: float(values.mean()) for name, values in per_user.items()}


@lru_cache(maxsize=2)
def load_split(data: str, users: int, items: int, likes: int) -> Split:
    if data == "made":
        return split_likes(draw_ratings(users, items, likes), np.arange(items), users, "random", 0)
    folder = Path(data)
    base = os.environ.get("RIDGELINE_DATA")
    if not folder.is_dir() and base:
        folder = Path(base) / "movielens" / data
    return split_dataset(read(folder), "random", 4.0)


def draw_ratings(users: int, items: int, likes: int) -> Ratings:
    """Draw `likes` different items per user, by 16 random factors and by popularity."""
    rng = np.random.default_rng(11)
    user_factors, item_factors = (rng.normal(size=(n, 16)).astype(np.float32) for n in (users, items))
    popularity = -np.log(np.arange(1, items + 1, dtype=np.float32))
    liked = np.empty((users, min(likes, items)), np.int64)
    for first in range(0, users, 512):
        part = user_factors[first : first + 512] @ item_factors.T / 2 + popularity
        part += rng.gumbel(size=part.shape).astype(np.float32)
        liked[first : first + 512] = np.argpartition(-part, liked.shape[1] - 1, axis=1)[:, : liked.shape[1]]
    count = liked.size
    user_column = np.repeat(np.arange(users), liked.shape[1])
    return Ratings(user_column, liked.ravel(), np.full(count, 5, np.float32), rng.permutation(count) + 1_000_000_000)


def _key(case: Case) -> tuple[str, int, int, int]:
    return case["data"], case["users"], case["items"], case["likes"]


def _copy_split(split: Split) -> Split:
    def fresh(h: Histories) -> Histories:
        return h.select(np.arange(len(h)))

    return Split(
        fresh(split.train), fresh(split.history), fresh(split.test), split.items, split.candidates, split.without_themes
    )


def _rank(scores: Any, split: Split) -> NDArray[Any]:
    return top_k(mask_scores(np.asarray(scores, np.float32), split.history, split.candidates), DEPTH)


def _fit_ease(split: Split) -> Callable[[], NDArray[Any]]:
    model = Ease(PENALTY).fit(split.train)
    return lambda: _rank(model.scores(split.history), split)


def _fit_knn(split: Split) -> Callable[[], NDArray[Any]]:
    model = ItemKnn().fit(split.train)
    return lambda: _rank(model.scores(split.history), split)


_ours: dict[str, Fit] = {"fit ease": _fit_ease, "fit itemknn": _fit_knn}


def _scipy(split: Split, dtype: Any = np.float32) -> Callable[[], NDArray[Any]]:
    """EASE of Steck's paper in five lines, with the solver for positive definite matrices."""
    from scipy.linalg import inv

    x = split.train.matrix()
    gram = (x.T @ x).toarray().astype(dtype)
    gram[np.diag_indices_from(gram)] += PENALTY
    inverse = inv(gram, overwrite_a=True, check_finite=False, assume_a="pos")
    weights = inverse / -np.diag(inverse)
    np.fill_diagonal(weights, 0)
    return lambda: _rank(split.history.matrix() @ weights, split)


def _torch(split: Split) -> Callable[[], NDArray[Any]]:
    """The same with torch: the matrix of counts by a product, inverted by its Cholesky factor."""
    import torch

    x = torch.from_numpy(split.train.matrix().toarray().astype(np.float32))
    gram = x.T @ x
    gram.diagonal().add_(PENALTY)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
    weights = inverse / -inverse.diagonal()
    weights.fill_diagonal_(0)
    return lambda: _rank(split.history.matrix() @ weights.numpy(), split)


def _knn(split: Split) -> Callable[[], NDArray[Any]]:
    from implicit.nearest_neighbours import CosineRecommender

    model = CosineRecommender(K=NEIGHBOURS + 1)
    model.fit(split.train.matrix(), show_progress=False)
    return lambda: _recommend(model, split)


def _als(split: Split, settings: dict[str, Any]) -> Callable[[], NDArray[Any]]:
    from implicit.cpu.als import AlternatingLeastSquares

    parameters = {k: settings[k] for k in ("factors", "alpha", "iterations", "regularization")}
    model = AlternatingLeastSquares(**parameters, random_state=0)
    model.fit(split.train.matrix(), show_progress=False)
    return lambda: _recommend(model, split)


def _recommend(model: Any, split: Split) -> NDArray[Any]:
    rows, scores = model.recommend(
        np.arange(len(split.history)), split.history.matrix(), N=DEPTH, filter_already_liked_items=True
    )
    lowest = np.finfo(np.float32).min
    recommended: NDArray[Any] = np.where((scores <= lowest) | (rows < 0), -1, rows)  # its marks for missing items
    return recommended


def _als_settings(split: Split) -> dict[str, Any]:
    """Choose the factors, confidence and penalty with the best NDCG on a split of the training data."""
    train = split.train
    inner = split_likes(
        Ratings(train.users, train.items, train.stars, train.times), split.items, len(train), "random", 1
    )
    results = []
    for parameters in ALS_TRIED:
        quality = _quality(inner, _als(inner, {**SETTINGS[ALS], **parameters})())
        results.append((quality["ndcg@10"] if quality else 0.0, parameters))
    return {**max(results, key=lambda pair: pair[0])[1], "chosen": "on a part of the training data"}


@lru_cache(maxsize=2)
def _reference(task: str, key: tuple[str, int, int, int]) -> dict[str, float]:
    split = load_split(*key)
    if task == "fit ease":
        rows = _scipy(split, np.float64)()
    else:
        x = split.train.matrix().toarray().astype(np.float64)
        length = np.maximum(np.linalg.norm(x, axis=0), 1)
        similarities = (x / length).T @ (x / length)
        np.fill_diagonal(similarities, 0)
        for row in similarities:
            row[np.argsort(-row.astype(np.float32), kind="stable")[NEIGHBOURS:]] = 0
        rows = _rank(split.history.matrix() @ similarities.T, split)
    return _quality(split, rows) or {}


def _reference_quality(case: Case) -> dict[str, float]:
    return _reference(case["task"], _key(case))
