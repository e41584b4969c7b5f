"""`recommend`: the parts of a recommender, from item texts to the best ten items of every user.

    ridgeline bench recommend --case task=semantic,users=2000,items=4000

task      embed        `items` texts → vectors, `batch` texts at a time (0: the contender chooses)
          users        histories and item vectors → user vectors
          semantic     user vectors from histories, products with all item vectors, masked, top 10
          ease         sparse histories times EASE's weights over 20,000 items at most, masked, top 10 of all
          one          the same as semantic for a single user
          serve        a user's list over HTTP, for `clients` clients, while ratings arrive (`_recommend_serve.py`)
          fit ease     fit on one split, rank for all users; fit itemknn: the same (`_recommend_fit.py`)

Histories are synthetic: item popularity falls with its rank, as in MovieLens. Every turn draws new ones. Weights and
vectors are random too, because time does not depend on their meaning. Work: 2·users·items·dim operations for semantic;
2·items per like for ease, 2·dim for users. Results are compared with float64. Item data is on the device before the
clock starts, histories are not. extras["stages_ns"]: for ranking, the time of each stage, measured after the race with
a wait after each stage; for embed and fit, measured in the timed steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import unknown
from ridgeline.lab import OURS, Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.lab.race import read_peaks
from ridgeline.machine import Placement, topology
from ridgeline.recommend import (
    SMALL_BATCH_USERS,
    EaseRanker,
    Histories,
    StageCallback,
    VectorRanker,
    preference_weights,
)
from ridgeline.recommend.models import MAX_ITEMS, Semantic
from ridgeline.workloads import _recommend_fit as fits
from ridgeline.workloads import _recommend_serve as serving
from ridgeline.workloads import _recommend_texts as texts
from ridgeline.workloads._stages import profile_stages
from ridgeline.workloads.trajectory import on_device

BASE: dict[str, Any] = {"task": "semantic", "users": 2_000, "items": 4_000, "likes": 40, "dim": 384, "k": 10}
NUMPY, TORCH = "NumPy + SciPy, argpartition", "torch dense matmul + topk"
BASE |= {"batch": 0, "data": "made"}
TASKS = ("embed", "users", "semantic", "ease", "one", "serve", *fits.PEERS)
SERVED: dict[str, Any] = {"task": "serve", "users": 500, "items": 1_000, **serving.SETTINGS}
MAX_ERROR = {"cpu": 1e-4, "cuda": 5e-3}  # of a score: float32 sums; float16 values
CHECKED_USERS = 64  # users whose results are compared with float64
USERS_NUMPY, USERS_TORCH = "NumPy gather + reduceat", "torch embedding_bag"
USER_BLOCK = 2_048


class Recommend:
    name = "recommend"
    weight = 3.0
    devices = ("cpu", "cuda")
    controls = (serving.IN_PROCESS,)

    note = "implicit's item-kNN and ALS are other models: compare their quality (NDCG) as well as their time."

    def cases(self, profile: Profile) -> Iterable[Case]:
        # A CPU gets small cases, a GPU the shape of MovieLens 25M.
        small: dict[str, Any] = {"users": 500}
        cpu: list[dict[str, Any]] = [
            small,
            {"task": "ease", **small},
            {"task": "one", "users": 1},
            {"task": "users", **small},
        ]
        cpu += [{"task": task, **small, "items": 600} for task in fits.PEERS]
        large: dict[str, Any] = {"users": 162_541, "items": 62_423}
        gpu: list[dict[str, Any]] = [
            large,
            {"task": "ease", **large},
            {"task": "one", "users": 1, "items": 62_423},
            {"task": "users", **large},
        ]
        if texts.possible():
            cpu += [{"task": "embed", "items": 32}]
            gpu += [{"task": "embed", "items": 62_423}]
        if not serving.missing():
            cpu.append(SERVED)
        if profile is Profile.FULL:
            if not serving.missing():
                cpu.append({**SERVED, "items": 4_000, "users": 2_000, "updates": 20, "clients": 32})
            if texts.possible():
                cpu += [{"task": "embed", "items": n} for n in (250, 500, 1_000)]
                cpu += [{"task": "embed", "items": 500, "batch": n} for n in (8, 32, 128, 512)]
                gpu += [{"task": "embed", "items": n} for n in (4_000, 16_000)]
                gpu += [{"task": "embed", "items": 62_423, "batch": n} for n in (128, 256, 512, 1_024, 2_048)]
            cpu += [{}, {"task": "ease"}, {"task": "users"}]
            cpu += [{"task": task, "users": 1_000, "items": 1_500} for task in fits.PEERS]
            cpu += [{"users": n} for n in (1, 100, 10_000)] + [{"items": n} for n in (1_000, 10_000)]
        return [Case({**BASE, **c}, d) for d, changes in (("cpu", cpu), ("cuda", gpu)) for c in changes]

    def work(self, case: Case) -> Work:
        if _task(case) == "embed":
            return texts.work(case)
        if case["task"] == "serve":
            return serving.work(case)
        if case["task"] in fits.PEERS:
            return fits.work(case)
        users, items, dim, likes = case["users"], case["items"], case["dim"], case["likes"]
        ease = case["task"] == "ease"
        size = 4 if case.device == "cpu" or ease else 2
        ease_items = min(items, MAX_ITEMS)
        item_bytes = ease_items * ease_items * size if ease else items * dim * size
        # A like of an item in EASE costs a row of weights.
        each = (
            likes * dim if case["task"] == "users" else likes * ease_items / items * ease_items if ease else items * dim
        )
        return Work(
            items=users * case.ranks,
            unit="users",
            flops=2.0 * users * each * case.ranks,
            bytes={"memory": (item_bytes + 8 * users * likes) * case.ranks},
            dtype="float32" if size == 4 else "float16",
            mix="read",
            working_set=item_bytes,
            threads=len(topology().usable_cpus),
        )

    def contenders(self, case: Case) -> Sequence[str]:
        if _task(case) == "embed":
            return texts.contenders()
        if case["task"] == "serve":
            return serving.contenders()
        return fits.contenders(case["task"]) if case["task"] in fits.PEERS else [OURS, *_peers(case)]

    def missing(self, case: Case) -> dict[str, str]:
        if _task(case) == "embed":
            return texts.missing()
        if case["task"] == "serve":
            return serving.missing()
        if case["task"] in fits.PEERS:
            return fits.missing(case["task"])
        return {} if installed("torch") else {USERS_TORCH if case["task"] == "users" else TORCH: "torch"}

    def libraries(self, case: Case, contender: str) -> Sequence[str]:
        uses_torch = case.device != "cpu" or "torch" in contender or case["task"] == "embed"
        return ("torch",) if uses_torch else ()

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        device = on_device(case, place)
        if _task(case) == "embed":
            return texts.prepare(case, contender, device)
        if case["task"] == "serve":
            return serving.prepare(case, contender)
        if case["task"] in fits.PEERS:
            return fits.prepare(case, contender)
        state: dict[str, Any] = {"turn": 0}
        find: Any
        if case["task"] == "users":
            find = prepare_user_vectors(contender, draw_semantic(case["items"], case["dim"]), device)
        else:
            find = {OURS: _ours, NUMPY: _numpy, TORCH: _torch}[contender](case, device)

        def reset() -> None:
            state["drawn"] = draw_histories(case["users"], case["items"], case["likes"], state["turn"])
            state["turn"] += 1

        def step() -> None:
            state["results"] = state["turn"] - 1, find(state["drawn"])

        def result() -> dict[str, Any]:
            turn, results = state["results"]
            if case["task"] == "users":
                return {"turn": turn, "vectors": np.asarray(results)}
            rows, scores = results
            return {"turn": turn, "rows": np.asarray(rows), "scores": np.asarray(scores)}

        def extras() -> dict[str, Any]:
            values: dict[str, Any] = read_peaks(case.device)
            if contender == OURS and case["task"] != "users":
                values["stages_ns"] = profile_stages(reset, lambda laps: find(state["drawn"], laps), device)
            return values

        reset()
        return Steps(step, result, reset, state.clear, {"device": device}, extras)

    def check(self, case: Case, result: dict[str, Any]) -> Check:
        if _task(case) == "embed":
            return texts.check(case, result)
        if case["task"] == "serve":
            return serving.check(case, result)
        if case["task"] in fits.PEERS:
            return fits.check(case, result)
        drawn = draw_histories(case["users"], case["items"], case["likes"], result["turn"])
        if case["task"] == "users":
            return _check_vectors(case, drawn, result["vectors"])
        rows, scores = result["rows"], result["scores"]
        if rows.shape != (case["users"], case["k"]):
            return Check(False, None, {}, f"{rows.shape} results for {case['users']} users and k = {case['k']}")
        checked_users = np.linspace(0, case["users"] - 1, min(CHECKED_USERS, case["users"])).astype(np.int64)
        part = drawn.select(checked_users)
        truth = _truth(case, part)
        truth[part.users, part.items] = -np.inf
        best = -np.sort(-truth, axis=1)[:, : case["k"]]
        true_scores = np.take_along_axis(truth, rows[checked_users], axis=1)
        if np.isneginf(true_scores).any():
            return Check(False, None, {}, "an item that the user has seen is among the results")
        off = float(
            max(np.abs(true_scores - scores[checked_users]).max(), (best - np.sort(true_scores, axis=1)[:, ::-1]).max())
        )
        allowed = MAX_ERROR["cpu" if case.device == "cpu" else "cuda"]
        return Check(off <= allowed, off, {}, f"against float64, {len(checked_users)} users; allowed: {allowed}")


def _truth(case: Case, users: Histories) -> NDArray[np.float64]:
    if case["task"] == "ease":
        scores = np.zeros((len(users), case["items"]))
        weights = draw_ease_weights(case["items"])
        for row in range(len(users)):
            liked = users.items[users.starts[row] : users.starts[row + 1]]
            scores[row, : len(weights)] = weights[liked[liked < len(weights)]].astype(np.float64).sum(0)
        return scores
    return np.asarray(_profiles(case, users) @ draw_semantic(case["items"], case["dim"]).items.astype(np.float64).T)


def _profiles(case: Case, users: Histories) -> NDArray[np.float64]:
    items, weights = (
        draw_semantic(case["items"], case["dim"]).items.astype(np.float64),
        preference_weights(users).astype(np.float64),
    )
    sums = np.zeros((len(users), case["dim"]))
    np.add.at(sums, users.users, items[users.items] * weights[:, None])
    return np.asarray(sums / np.linalg.norm(sums, axis=1, keepdims=True))


def _check_vectors(case: Case, drawn: Histories, vectors: NDArray[Any]) -> Check:
    if vectors.shape != (case["users"], case["dim"]):
        return Check(False, None, {}, f"{vectors.shape} numbers for {case['users']} users of {case['dim']} dimensions")
    checked_users = np.linspace(0, case["users"] - 1, min(CHECKED_USERS, case["users"])).astype(np.int64)
    off = float(np.abs(vectors[checked_users] - _profiles(case, drawn.select(checked_users))).max())
    allowed = MAX_ERROR["cpu"]
    return Check(off <= allowed, off, {}, f"against float64, {len(checked_users)} users; allowed: {allowed}")


def _task(case: Case) -> str:
    if case["task"] not in TASKS:
        raise unknown("task", case["task"], TASKS)
    return str(case["task"])


def _peers(case: Case) -> list[str]:
    numpy, torch = (USERS_NUMPY, USERS_TORCH) if case["task"] == "users" else (NUMPY, TORCH)
    return [*([numpy] if case.device == "cpu" else []), *([torch] if installed("torch") else [])]


def _ours(case: Case, device: str) -> Any:
    k = case["k"]
    if case["task"] == "ease":
        weights = draw_ease_weights(case["items"])
        ease = EaseRanker(np.arange(len(weights)), weights, device)
        return lambda users, on_stage=_ignore_stage: ease.top_items(users, users, k, on_stage=on_stage)
    model = draw_semantic(case["items"], case["dim"])
    ranker = VectorRanker(model.items, device)
    embed_users = model.embed_users if device == "cpu" and case["users"] > SMALL_BATCH_USERS else ranker.embed_users

    def best(users: Histories, on_stage: StageCallback = _ignore_stage) -> Any:
        vectors = embed_users(users)
        on_stage("user profiles")
        return ranker.top_items(vectors, users, k, on_stage)

    return best


def _ignore_stage(_stage: str) -> None:
    """Do nothing."""


def _numpy(case: Case, device: str) -> Any:
    k = case["k"]

    def find(users: Histories) -> Any:
        if case["task"] == "ease":
            weights, scores = draw_ease_weights(case["items"]), np.zeros((len(users), case["items"]), np.float32)
            scores[:, : len(weights)] = users.matrix()[:, : len(weights)] @ weights
        else:
            model = draw_semantic(case["items"], case["dim"])
            scores = model.embed_users(users) @ model.items.T
        scores[users.users, users.items] = -np.inf
        some = np.argpartition(-scores, k, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(scores, some, axis=1), axis=1)
        rows = np.take_along_axis(some, order, axis=1)
        return rows, np.take_along_axis(scores, rows, axis=1)

    return find


def _torch(case: Case, device: str) -> Any:
    """Histories as a dense matrix, as in most training code; in blocks of users. On a GPU in float16."""
    import torch
    from torch.nn.functional import embedding_bag, normalize

    ease = case["task"] == "ease"
    dtype = torch.float32 if device == "cpu" else torch.float16
    table = torch.from_numpy(
        draw_ease_weights(case["items"]) if ease else draw_semantic(case["items"], case["dim"]).items
    )
    right = (table if ease else table.T).to(device, dtype).contiguous()
    table = right if ease else table.to(device)

    def find(users: Histories) -> Any:
        parts = []
        for first in range(0, len(users), 2_048):
            part = users.select(np.arange(first, min(first + 2_048, len(users))))
            rows, columns = (torch.from_numpy(a).to(device) for a in (part.users, part.items))
            if ease:
                left = torch.zeros((len(part), case["items"]), device=device, dtype=dtype)
                left[rows, columns] = 1.0
                scores = torch.zeros_like(left)
                scores[:, : len(right)] = left[:, : len(right)] @ right
            else:
                starts, weights = (torch.from_numpy(a).to(device) for a in (part.starts[:-1], preference_weights(part)))
                mean = embedding_bag(columns, table, starts, mode="sum", per_sample_weights=weights)
                scores = normalize(mean).to(dtype) @ right
            scores[rows, columns] = -torch.inf
            best, at = scores.topk(case["k"], dim=1)
            parts.append((at.cpu().numpy(), best.float().cpu().numpy()))
        return np.concatenate([r for r, _ in parts]), np.concatenate([b for _, b in parts])

    return find


def draw_histories(users: int, items: int, likes: int, turn: int) -> Histories:
    """Draw `likes` different items for every user, popular ones more often; a turn always gives the same."""
    rng = np.random.default_rng([7, turn])
    # A stride coprime to the number of items never repeats an item of a user.
    stride = next(s for s in range(items // 3 + 1, 2 * items) if np.gcd(s, items) == 1)
    first = (items * rng.random(users) ** 2).astype(np.int64)
    liked = (first[:, None] + stride * np.arange(min(likes, items))) % items
    count = liked.shape[1]
    starts = np.arange(users + 1, dtype=np.int64) * count
    stars = rng.integers(4, 6, liked.size).astype(np.float32)
    times = np.zeros(liked.size, np.int64)
    return Histories(starts, liked.ravel(), stars, times, items, np.zeros(users, np.int64))


@lru_cache(maxsize=2)
def draw_semantic(items: int, dim: int) -> Semantic:
    drawn = np.random.default_rng(1).normal(size=(items, dim)).astype(np.float32)
    return Semantic(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


@lru_cache(maxsize=1)
def draw_ease_weights(items: int) -> NDArray[np.float32]:
    """Draw EASE weights for the first `MAX_ITEMS` items, uniform between −0.035 and 0.035."""
    count = min(items, MAX_ITEMS)
    drawn = np.random.default_rng(2).random((count, count), dtype=np.float32)
    drawn -= 0.5
    drawn *= 0.07
    return drawn


def prepare_user_vectors(contender: str, model: Semantic, device: str) -> Callable[[Histories], Any]:
    if contender == OURS and device != "cpu":
        ranker = VectorRanker(model.items, device)
        return lambda users: ranker.embed_users(users).cpu().numpy()
    if contender == OURS:
        return model.embed_users
    return {USERS_NUMPY: _sum_with_numpy, USERS_TORCH: _sum_with_torch}[contender](model.items, device)


def _sum_with_numpy(items: Any, device: str) -> Callable[[Histories], Any]:
    """Gather and sum rows, a block of users at a time."""

    def find(users: Histories) -> Any:
        weights, vectors = preference_weights(users), np.empty((len(users), items.shape[1]), np.float32)
        for first in range(0, len(users), USER_BLOCK):
            last = min(first + USER_BLOCK, len(users))
            begin, end = users.starts[first], users.starts[last]
            rows = items[users.items[begin:end]] * weights[begin:end, None]
            vectors[first:last] = np.add.reduceat(rows, users.starts[first:last] - begin)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    return find


def _sum_with_torch(items: Any, device: str) -> Callable[[Histories], Any]:
    """Use `embedding_bag`, torch's operation for weighted sums."""
    import torch

    table = torch.from_numpy(items).to(device)

    def find(users: Histories) -> Any:
        rows, starts, weights = (
            torch.from_numpy(a).to(device) for a in (users.items, users.starts[:-1], preference_weights(users))
        )
        vectors = torch.nn.functional.embedding_bag(rows, table, starts, mode="sum", per_sample_weights=weights)
        return torch.nn.functional.normalize(vectors).cpu().numpy()

    return find


workload = Recommend()
