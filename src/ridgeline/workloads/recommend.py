"""`recommend`: the parts of a recommender, from item texts to the best ten items of every user.

    ridgeline bench recommend --case task=semantic,users=2000,items=4000

task      embed        `items` texts → vectors, `batch` texts at a time (0: as the contender thinks best)
          users        histories and item vectors → user vectors
          semantic     user vectors from histories, products with all item vectors, masked, top 10
          ease         sparse histories times EASE's weights, masked, top 10
          one          the same as semantic for a single user
          fit ease     learn from one split, rank for everybody; fit itemknn: the same (`_recommend_fit.py`)

Histories are made: item popularity falls with its rank, as in MovieLens. They are drawn anew before every turn. The
weights and vectors are drawn too, since time does not depend on what they mean. Work: 2·users·items·dim operations for
semantic; for ease 2·items per like, for users 2·dim. What comes out is held against float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import unknown
from ridgeline.lab import Case, Check, Profile, Run, Steps, Work
from ridgeline.lab.contender import peaks
from ridgeline.lab.workload import OURS, installed
from ridgeline.machine import Placement, topology
from ridgeline.recommend.histories import Histories
from ridgeline.recommend.models.semantic import Semantic
from ridgeline.recommend.models.taste import taste
from ridgeline.recommend.ranking import rank_ease, rank_vectors
from ridgeline.workloads import _recommend_fit as fits
from ridgeline.workloads import _recommend_texts as texts
from ridgeline.workloads import _recommend_users as profiles
from ridgeline.workloads.trajectory import on_device

BASE: dict[str, Any] = {"task": "semantic", "users": 2_000, "items": 4_000, "likes": 40, "dim": 384, "k": 10}
NUMPY, TORCH = "NumPy + SciPy, argpartition", "torch dense matmul + topk"
BASE |= {"batch": 0, "data": "made"}
TASKS = ("embed", "users", "semantic", "ease", "one", *fits.PEERS)
ALLOWED = {"cpu": 1e-4, "cuda": 5e-3}  # of a score: float32 sums; float16 values
CHECKED = 64  # users whose answers are held against float64


class Recommend:
    name = "recommend"
    weight = 3.0
    devices = ("cpu", "cuda")

    note = "implicit's item-kNN and ALS are models of their own: beside their time stands what they find (NDCG)."

    def cases(self, profile: Profile) -> Iterable[Case]:
        # A CPU of a few cores gets the smaller ones, a GPU the shape of MovieLens 25M.
        few: dict[str, Any] = {"users": 500}
        cpu: list[dict[str, Any]] = [
            few,
            {"task": "ease", **few},
            {"task": "one", "users": 1},
            {"task": "users", **few},
        ]
        cpu += [{"task": task, **few, "items": 600} for task in fits.PEERS]
        large: dict[str, Any] = {"users": 162_541, "items": 62_423}
        gpu: list[dict[str, Any]] = [
            large,
            {"task": "ease", **large, "items": 20_000},
            {"task": "one", "users": 1, "items": 62_423},
            {"task": "users", **large},
        ]
        if texts.possible():
            cpu += [{"task": "embed", "items": 32}]
            gpu += [{"task": "embed", "items": 62_423}]
        if profile is Profile.FULL:
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
        if case["task"] in fits.PEERS:
            return fits.work(case)
        users, items, dim, likes = case["users"], case["items"], case["dim"], case["likes"]
        ease = case["task"] == "ease"
        size = 4 if case.device == "cpu" or ease else 2
        held = items * items * size if ease else items * dim * size
        each = likes * dim if case["task"] == "users" else items * (likes if ease else dim)
        return Work(
            items=users * case.ranks,
            unit="users",
            flops=2.0 * users * each * case.ranks,
            bytes={"memory": (held + 8 * users * likes) * case.ranks},
            dtype="float32" if size == 4 else "float16",
            mix="read",
            working_set=held,
            threads=len(topology().usable_cpus),
        )

    def contenders(self, case: Case) -> Sequence[str]:
        if _task(case) == "embed":
            return texts.contenders()
        return fits.contenders(case["task"]) if case["task"] in fits.PEERS else [OURS, *_peers(case)]

    def missing(self, case: Case) -> dict[str, str]:
        if _task(case) == "embed":
            return texts.missing()
        if case["task"] in fits.PEERS:
            return fits.missing(case["task"])
        return {} if installed("torch") else {profiles.TORCH if case["task"] == "users" else TORCH: "torch"}

    def libraries(self, case: Case, contender: str) -> Sequence[str]:
        uses_torch = case.device != "cpu" or "torch" in contender or case["task"] == "embed"
        return ("torch",) if uses_torch else ()

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        device = on_device(case, place)
        if _task(case) == "embed":
            return texts.prepare(case, contender, device)
        if case["task"] in fits.PEERS:
            return fits.prepare(case, contender)
        state: dict[str, Any] = {"turn": 0}
        if case["task"] == "users":
            find = profiles.user_vectors(contender, _semantic(case["items"], case["dim"]), device)
        else:
            find = {OURS: _ours, NUMPY: _numpy, TORCH: _torch}[contender](case, device)

        def reset() -> None:
            state["drawn"] = histories(case["users"], case["items"], case["likes"], state["turn"])
            state["turn"] += 1

        def step() -> None:
            state["found"] = find(state["drawn"])

        def result() -> dict[str, Any]:
            if case["task"] == "users":
                return {"turn": state["turn"] - 1, "vectors": np.asarray(state["found"])}
            rows, scores = state["found"]
            return {"turn": state["turn"] - 1, "rows": np.asarray(rows), "scores": np.asarray(scores)}

        reset()
        return Steps(step, result, reset, state.clear, {"device": device}, lambda: peaks(case.device))

    def check(self, case: Case, result: dict[str, Any]) -> Check:
        if _task(case) == "embed":
            return texts.check(case, result)
        if case["task"] in fits.PEERS:
            return fits.check(case, result)
        drawn = histories(case["users"], case["items"], case["likes"], result["turn"])
        if case["task"] == "users":
            return _check_vectors(case, drawn, result["vectors"])
        rows, scores = result["rows"], result["scores"]
        if rows.shape != (case["users"], case["k"]):
            return Check(False, None, {}, f"{rows.shape} answers for {case['users']} users and k = {case['k']}")
        some = np.linspace(0, case["users"] - 1, min(CHECKED, case["users"])).astype(np.int64)
        part = drawn.taken(some)
        truth = _truth(case, part)
        truth[part.users, part.items] = -np.inf
        best = -np.sort(-truth, axis=1)[:, : case["k"]]
        own = np.take_along_axis(truth, rows[some], axis=1)
        if np.isneginf(own).any():
            return Check(False, None, {}, "an item the user has seen is among the answers")
        off = float(max(np.abs(own - scores[some]).max(), (best - np.sort(own, axis=1)[:, ::-1]).max()))
        allowed = ALLOWED["cpu" if case.device == "cpu" else "cuda"]
        return Check(off <= allowed, off, {}, f"against float64, {len(some)} users; allowed: {allowed}")


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
def _semantic(items: int, dim: int) -> Semantic:
    drawn = np.random.default_rng(1).normal(size=(items, dim)).astype(np.float32)
    return Semantic(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


@lru_cache(maxsize=1)
def _weights(items: int) -> NDArray[np.float32]:
    return np.random.default_rng(2).normal(0, 0.02, (items, items)).astype(np.float32)


def _truth(case: Case, users: Histories) -> NDArray[np.float64]:
    if case["task"] == "ease":
        found = np.zeros((len(users), case["items"]))
        weights = _weights(case["items"])
        for row in range(len(users)):
            found[row] = weights[users.items[users.starts[row] : users.starts[row + 1]]].astype(np.float64).sum(0)
        return found
    return np.asarray(_profiles(case, users) @ _semantic(case["items"], case["dim"]).items.astype(np.float64).T)


def _profiles(case: Case, users: Histories) -> NDArray[np.float64]:
    items, weights = _semantic(case["items"], case["dim"]).items.astype(np.float64), taste(users).astype(np.float64)
    found = np.zeros((len(users), case["dim"]))
    np.add.at(found, users.users, items[users.items] * weights[:, None])
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True))


def _check_vectors(case: Case, drawn: Histories, found: NDArray[Any]) -> Check:
    if found.shape != (case["users"], case["dim"]):
        return Check(False, None, {}, f"{found.shape} numbers for {case['users']} users of {case['dim']} dimensions")
    some = np.linspace(0, case["users"] - 1, min(CHECKED, case["users"])).astype(np.int64)
    off = float(np.abs(found[some] - _profiles(case, drawn.taken(some))).max())
    allowed = ALLOWED["cpu"]
    return Check(off <= allowed, off, {}, f"against float64, {len(some)} users; allowed: {allowed}")


def _task(case: Case) -> str:
    if case["task"] not in TASKS:
        raise unknown("task", case["task"], TASKS)
    return str(case["task"])


def _peers(case: Case) -> list[str]:
    numpy, torch = (profiles.NUMPY, profiles.TORCH) if case["task"] == "users" else (NUMPY, TORCH)
    return [*([numpy] if case.device == "cpu" else []), *([torch] if installed("torch") else [])]


def _ours(case: Case, device: str) -> Any:
    k = case["k"]
    if case["task"] == "ease":
        weights, kept = _weights(case["items"]), np.arange(case["items"])
        return lambda users: rank_ease(users, kept, weights, users, k, device)
    model = _semantic(case["items"], case["dim"])
    return lambda users: rank_vectors(model.users(users), model.items, users, k, device)


def _numpy(case: Case, device: str) -> Any:
    k = case["k"]

    def find(users: Histories) -> Any:
        if case["task"] == "ease":
            scores = np.asarray(users.matrix() @ _weights(case["items"]))
        else:
            model = _semantic(case["items"], case["dim"])
            scores = model.users(users) @ model.items.T
        scores[users.users, users.items] = -np.inf
        some = np.argpartition(-scores, k, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(scores, some, axis=1), axis=1)
        rows = np.take_along_axis(some, order, axis=1)
        return rows, np.take_along_axis(scores, rows, axis=1)

    return find


def _torch(case: Case, device: str) -> Any:
    """Histories as a dense matrix, as most training code keeps them; blocks of users that fit."""
    import torch

    ease = case["task"] == "ease"
    model = None if ease else _semantic(case["items"], case["dim"])
    right = torch.from_numpy(_weights(case["items"]) if model is None else model.items.T.copy()).to(device)

    def find(users: Histories) -> Any:
        found = []
        for first in range(0, len(users), 2_048):
            part = users.taken(np.arange(first, min(first + 2_048, len(users))))
            if model is None:
                left = torch.zeros((len(part), case["items"]), device=device)
                left[torch.from_numpy(part.users).to(device), torch.from_numpy(part.items).to(device)] = 1.0
            else:
                left = torch.from_numpy(model.users(part)).to(device)
            scores = left @ right
            scores[torch.from_numpy(part.users).to(device), torch.from_numpy(part.items).to(device)] = -torch.inf
            best, rows = scores.topk(case["k"], dim=1)
            found.append((rows.cpu().numpy(), best.cpu().numpy()))
        return np.concatenate([r for r, _ in found]), np.concatenate([b for _, b in found])

    return find


workload = Recommend()
