"""`recommend`: the parts of a recommender, from item texts to the best ten items of every user.

    ridgeline bench recommend --case task=semantic,users=2000,items=4000

task      embed        `items` texts → vectors, `batch` texts at a time (0: as the contender thinks best)
          users        histories and item vectors → user vectors
          semantic     user vectors from histories, products with all item vectors, masked, top 10
          ease         sparse histories times EASE's weights over 20,000 items at most, masked, top 10 of all
          one          the same as semantic for a single user
          fit ease     learn from one split, rank for everybody; fit itemknn: the same (`_recommend_fit.py`)

Histories are made: item popularity falls with its rank, as in MovieLens. They are drawn anew before every turn. The
weights and vectors are drawn too, since time does not depend on what they mean. Work: 2·users·items·dim operations for
semantic; for ease 2·items per like, for users 2·dim. What comes out is held against float64. What items are lies on the
device before the clock runs, histories do not. extras["stages_ns"]: of ranking, what each stage takes in steps taken
apart after the race, on a GPU by waiting for each; of embed and fit, by clocks in the timed steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import unknown
from ridgeline.lab import OURS, Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.lab.race import peaks
from ridgeline.machine import Placement, topology
from ridgeline.recommend import FEW_USERS, ByEase, ByVectors, Done, Histories
from ridgeline.recommend.models import MOST, taste
from ridgeline.workloads import _recommend_fit as fits
from ridgeline.workloads import _recommend_texts as texts
from ridgeline.workloads import _recommend_users as profiles
from ridgeline.workloads._recommend_made import histories, semantic, weights_of
from ridgeline.workloads._stages import taken_apart
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
            {"task": "ease", **large},
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
        kept = min(items, MOST)
        held = kept * kept * size if ease else items * dim * size
        # Of a like, the share whose item takes part in EASE costs a row of weights.
        each = likes * dim if case["task"] == "users" else likes * kept / items * kept if ease else items * dim
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
        find: Any
        if case["task"] == "users":
            find = profiles.user_vectors(contender, semantic(case["items"], case["dim"]), device)
        else:
            find = {OURS: _ours, NUMPY: _numpy, TORCH: _torch}[contender](case, device)

        def reset() -> None:
            state["drawn"] = histories(case["users"], case["items"], case["likes"], state["turn"])
            state["turn"] += 1

        def step() -> None:
            state["found"] = state["turn"] - 1, find(state["drawn"])

        def result() -> dict[str, Any]:
            turn, found = state["found"]
            if case["task"] == "users":
                return {"turn": turn, "vectors": np.asarray(found)}
            rows, scores = found
            return {"turn": turn, "rows": np.asarray(rows), "scores": np.asarray(scores)}

        def extras() -> dict[str, Any]:
            told: dict[str, Any] = peaks(case.device)
            if contender == OURS and case["task"] != "users":
                told["stages_ns"] = taken_apart(reset, lambda laps: find(state["drawn"], laps), device)
            return told

        reset()
        return Steps(step, result, reset, state.clear, {"device": device}, extras)

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


def _truth(case: Case, users: Histories) -> NDArray[np.float64]:
    if case["task"] == "ease":
        found = np.zeros((len(users), case["items"]))
        weights = weights_of(case["items"])
        for row in range(len(users)):
            own = users.items[users.starts[row] : users.starts[row + 1]]
            found[row, : len(weights)] = weights[own[own < len(weights)]].astype(np.float64).sum(0)
        return found
    return np.asarray(_profiles(case, users) @ semantic(case["items"], case["dim"]).items.astype(np.float64).T)


def _profiles(case: Case, users: Histories) -> NDArray[np.float64]:
    items, weights = semantic(case["items"], case["dim"]).items.astype(np.float64), taste(users).astype(np.float64)
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
        weights = weights_of(case["items"])
        ease = ByEase(np.arange(len(weights)), weights, device)
        return lambda users, done=_unheard: ease.best(users, users, k, done=done)
    model = semantic(case["items"], case["dim"])
    ranker = ByVectors(model.items, device)
    profiles_of = model.users if device == "cpu" and case["users"] > FEW_USERS else ranker.users

    def best(users: Histories, done: Done = _unheard) -> Any:
        vectors = profiles_of(users)
        done("user profiles")
        return ranker.best(vectors, users, k, done)

    return best


def _unheard(_stage: str) -> None:
    """Nobody listens."""


def _numpy(case: Case, device: str) -> Any:
    k = case["k"]

    def find(users: Histories) -> Any:
        if case["task"] == "ease":
            weights, scores = weights_of(case["items"]), np.zeros((len(users), case["items"]), np.float32)
            scores[:, : len(weights)] = users.matrix()[:, : len(weights)] @ weights
        else:
            model = semantic(case["items"], case["dim"])
            scores = model.users(users) @ model.items.T
        scores[users.users, users.items] = -np.inf
        some = np.argpartition(-scores, k, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(scores, some, axis=1), axis=1)
        rows = np.take_along_axis(some, order, axis=1)
        return rows, np.take_along_axis(scores, rows, axis=1)

    return find


def _torch(case: Case, device: str) -> Any:
    """Histories as a dense matrix, as most training code keeps them; blocks of users that fit. On a GPU in float16."""
    import torch
    from torch.nn.functional import embedding_bag, normalize

    ease = case["task"] == "ease"
    dtype = torch.float32 if device == "cpu" else torch.float16
    table = torch.from_numpy(weights_of(case["items"]) if ease else semantic(case["items"], case["dim"]).items)
    right = (table if ease else table.T).to(device, dtype).contiguous()
    table = right if ease else table.to(device)

    def find(users: Histories) -> Any:
        found = []
        for first in range(0, len(users), 2_048):
            part = users.taken(np.arange(first, min(first + 2_048, len(users))))
            rows, columns = (torch.from_numpy(a).to(device) for a in (part.users, part.items))
            if ease:
                left = torch.zeros((len(part), case["items"]), device=device, dtype=dtype)
                left[rows, columns] = 1.0
                scores = torch.zeros_like(left)
                scores[:, : len(right)] = left[:, : len(right)] @ right
            else:
                starts, weights = (torch.from_numpy(a).to(device) for a in (part.starts[:-1], taste(part)))
                mean = embedding_bag(columns, table, starts, mode="sum", per_sample_weights=weights)
                scores = normalize(mean).to(dtype) @ right
            scores[rows, columns] = -torch.inf
            best, at = scores.topk(case["k"], dim=1)
            found.append((at.cpu().numpy(), best.float().cpu().numpy()))
        return np.concatenate([r for r, _ in found]), np.concatenate([b for _, b in found])

    return find


workload = Recommend()
