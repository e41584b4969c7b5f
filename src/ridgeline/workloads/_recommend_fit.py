"""Tasks `fit ease` and `fit itemknn`: learn taste from one split's training part and rank for everybody held out.

Every contender gets the same histories and gives the first `DEEP` items of each user; recall and NDCG by our own
evaluation stand beside its time. EASE and item-kNN must be what a plain float64 solution is; what other models find is
not right or wrong, only good or bad, so they are held to lists without seen items.

data    made   histories of people with a taste: likes follow products of hidden vectors
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
from ridgeline.lab.race import peaks
from ridgeline.machine import now_ns, topology
from ridgeline.recommend import Histories, Ratings, Split, best, divided, masked, measured, read, split_of
from ridgeline.recommend.models import NEIGHBOURS, Ease, ItemKnn

KNN, ALS, SCIPY = "implicit item-kNN", "implicit ALS", "SciPy EASE"
PEERS = {"fit ease": [SCIPY, ALS], "fit itemknn": [KNN]}
DEEP = 20
METRICS = ("recall@20", "ndcg@10")
PENALTY = 100.0
ALLOWED = 2e-3  # of NDCG@10, against float64: equal scores may change places
ALS_TRIED = [
    {"factors": f, "alpha": a, "regularization": r} for f in (16, 64) for a in (1.0, 10.0) for r in (0.05, 5.0)
]
SETTINGS: dict[str, dict[str, Any]] = {
    OURS: {},
    SCIPY: {"solver": "scipy.linalg.inv, float32, positive definite"},
    KNN: {"K": NEIGHBOURS + 1, "note": "an item is among its own neighbours there"},
    ALS: {"blas_threads": 1, "iterations": 15},
}

Fit = Callable[[Split], Callable[[], NDArray[Any]]]  # a split → (learnt) → first items of every user asked


def contenders(task: str) -> list[str]:
    return [OURS, *(name for name in PEERS[task] if name == SCIPY or installed("implicit"))]


def missing(task: str) -> dict[str, str]:
    return {} if installed("implicit") else {name: "peers" for name in PEERS[task] if name != SCIPY}


def work(case: Case) -> Work:
    train = split_for(*_key(case)).train
    width = train.width
    if case["task"] == "fit ease":  # a Cholesky factor and the inverse from it
        flops, held = float(width) ** 3, 4 * width * width
    else:
        flops, held = 2.0 * float((train.lengths.astype(np.float64) ** 2).sum()), 8 * NEIGHBOURS * width
    threads = len(topology().usable_cpus)
    return Work(1, "fits", flops, {"memory": held + 8 * len(train.items)}, mix="write", threads=threads)


def prepare(case: Case, contender: str) -> Run:
    given = split_for(*_key(case))
    if contender in (KNN, ALS):
        from threadpoolctl import threadpool_limits  # its documentation asks for one BLAS thread: it has its own

        threadpool_limits(1, "blas")
        warnings.filterwarnings("ignore", message="Method expects CSR input")  # which it made itself
    library = {SCIPY: "scipy", KNN: "implicit", ALS: "implicit"}.get(contender)
    told: dict[str, Any] = {"version": version(library)} if library else {}
    told |= {**SETTINGS[contender], **(_als_settings(given) if contender == ALS else {})}
    fit: Fit = {OURS: _ours[case["task"]], SCIPY: _scipy, KNN: _knn, ALS: lambda s: _als(s, told)}[contender]
    state: dict[str, Any] = {}
    stages: dict[str, list[int]] = {"fit": [], "rank": []}

    def reset() -> None:  # fresh arrays, so that nothing can be kept from an earlier turn
        state["split"] = _copied(given)

    def step() -> None:
        began = now_ns()
        rank = fit(state["split"])
        learnt = now_ns()
        state["found"] = rank()
        stages["fit"].append(learnt - began)
        stages["rank"].append(now_ns() - learnt)

    reset()
    extras = lambda: {"stages_ns": stages, **peaks("cpu")}  # noqa: E731
    return Steps(step, lambda: {"rows": state["found"], "by": contender}, reset, state.clear, told, extras)


def check(case: Case, result: dict[str, Any]) -> Check:
    split, rows = split_for(*_key(case)), np.asarray(result["rows"], np.int64)
    if rows.shape != (len(split.test), min(DEEP, split.train.width)):
        return Check(False, None, {}, f"{rows.shape} answers for {len(split.test)} users and {DEEP} items each")
    quality = _quality(split, rows)
    if quality is None:
        return Check(False, None, {}, "an item the user has seen, or one twice, is among the answers")
    if result["by"] in (KNN, ALS):
        return Check(True, None, quality, "lists without seen items; how good they are says the quality")
    off = abs(quality["ndcg@10"] - _truth(case)["ndcg@10"])
    return Check(off <= ALLOWED, off, quality, f"NDCG@10 against float64; allowed: {ALLOWED}")


def _quality(split: Split, rows: NDArray[np.int64]) -> dict[str, float] | None:
    """Recall and NDCG of first items, −1 where there are no more."""
    scores = np.full((len(rows), split.train.width), -np.inf, np.float32)
    who, place = np.nonzero(rows >= 0)
    scores[who, rows[who, place]] = -place
    seen = scores[split.shown.users, split.shown.items]
    if not np.isneginf(seen).all() or (~np.isneginf(scores)).sum() != len(who):
        return None
    found, _ = measured(scores, split.test, METRICS)
    return {name: float(values.mean()) for name, values in found.items()}


@lru_cache(maxsize=2)
def split_for(data: str, users: int, items: int, likes: int) -> Split:
    if data == "made":
        return divided(made(users, items, likes), np.arange(items), users, "random", 0)
    folder = Path(data)
    base = os.environ.get("RIDGELINE_DATA")
    if not folder.is_dir() and base:
        folder = Path(base) / "movielens" / data
    return split_of(read(folder), "random", 4.0)


def made(users: int, items: int, likes: int) -> Ratings:
    """`likes` different items for everybody, drawn by taste (16 hidden numbers) and by fame."""
    rng = np.random.default_rng(11)
    taste, kind = (rng.normal(size=(n, 16)).astype(np.float32) for n in (users, items))
    fame = -np.log(np.arange(1, items + 1, dtype=np.float32))
    liked = np.empty((users, min(likes, items)), np.int64)
    for first in range(0, users, 512):
        part = taste[first : first + 512] @ kind.T / 2 + fame
        part += rng.gumbel(size=part.shape).astype(np.float32)
        liked[first : first + 512] = np.argpartition(-part, liked.shape[1] - 1, axis=1)[:, : liked.shape[1]]
    count = liked.size
    who = np.repeat(np.arange(users), liked.shape[1])
    return Ratings(who, liked.ravel(), np.full(count, 5, np.float32), rng.permutation(count) + 1_000_000_000)


def _key(case: Case) -> tuple[str, int, int, int]:
    return case["data"], case["users"], case["items"], case["likes"]


def _copied(split: Split) -> Split:
    def fresh(h: Histories) -> Histories:
        return h.taken(np.arange(len(h)))

    return Split(fresh(split.train), fresh(split.shown), fresh(split.test), split.items, split.candidates, split.bare)


def _first(scores: Any, split: Split) -> NDArray[Any]:
    return best(masked(np.asarray(scores, np.float32), split.shown, split.candidates), DEEP)


def _fit_ease(split: Split) -> Callable[[], NDArray[Any]]:
    model = Ease(PENALTY).fit(split.train)
    return lambda: _first(model.scores(split.shown), split)


def _fit_knn(split: Split) -> Callable[[], NDArray[Any]]:
    model = ItemKnn().fit(split.train)
    return lambda: _first(model.scores(split.shown), split)


_ours: dict[str, Fit] = {"fit ease": _fit_ease, "fit itemknn": _fit_knn}


def _scipy(split: Split, dtype: Any = np.float32) -> Callable[[], NDArray[Any]]:
    """Steck's paper in five lines, as its users write it, and with the solver that knows what the matrix is."""
    from scipy.linalg import inv

    x = split.train.matrix()
    gram = (x.T @ x).toarray().astype(dtype)
    gram[np.diag_indices_from(gram)] += PENALTY
    inverse = inv(gram, overwrite_a=True, check_finite=False, assume_a="pos")
    weights = inverse / -np.diag(inverse)
    np.fill_diagonal(weights, 0)
    return lambda: _first(split.shown.matrix() @ weights, split)


def _knn(split: Split) -> Callable[[], NDArray[Any]]:
    from implicit.nearest_neighbours import CosineRecommender

    model = CosineRecommender(K=NEIGHBOURS + 1)
    model.fit(split.train.matrix(), show_progress=False)
    return lambda: _asked(model, split)


def _als(split: Split, told: dict[str, Any]) -> Callable[[], NDArray[Any]]:
    from implicit.cpu.als import AlternatingLeastSquares

    words = {k: told[k] for k in ("factors", "alpha", "iterations", "regularization")}
    model = AlternatingLeastSquares(**words, random_state=0)
    model.fit(split.train.matrix(), show_progress=False)
    return lambda: _asked(model, split)


def _asked(model: Any, split: Split) -> NDArray[Any]:
    rows, scores = model.recommend(
        np.arange(len(split.shown)), split.shown.matrix(), N=DEEP, filter_already_liked_items=True
    )
    lowest = np.finfo(np.float32).min
    found: NDArray[Any] = np.where((scores <= lowest) | (rows < 0), -1, rows)  # how it says that there are no more
    return found


def _als_settings(split: Split) -> dict[str, Any]:
    """The factors, confidence and penalty that find most of a part of the training data."""
    train = split.train
    inner = divided(Ratings(train.users, train.items, train.stars, train.times), split.items, len(train), "random", 1)
    tried = []
    for words in ALS_TRIED:
        quality = _quality(inner, _als(inner, {**SETTINGS[ALS], **words})())
        tried.append((quality["ndcg@10"] if quality else 0.0, words))
    return {**max(tried, key=lambda pair: pair[0])[1], "chosen": "on a part of the training data"}


@lru_cache(maxsize=2)
def _reference(task: str, key: tuple[str, int, int, int]) -> dict[str, float]:
    split = split_for(*key)
    if task == "fit ease":
        rows = _scipy(split, np.float64)()
    else:
        x = split.train.matrix().toarray().astype(np.float64)
        length = np.maximum(np.linalg.norm(x, axis=0), 1)
        near = (x / length).T @ (x / length)
        np.fill_diagonal(near, 0)
        for row in near:
            row[np.argsort(-row.astype(np.float32), kind="stable")[NEIGHBOURS:]] = 0
        rows = _first(split.shown.matrix() @ near.T, split)
    return _quality(split, rows) or {}


def _truth(case: Case) -> dict[str, float]:
    return _reference(case["task"], _key(case))
