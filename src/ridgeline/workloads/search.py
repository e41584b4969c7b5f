"""`search`: vectors → nearest vectors, exactly or with a requested recall.

    ridgeline bench search --case rows=40000,queries=256,recall=1

data     clustered or texts (_search_data.py)
recall   1        all contenders search exactly; scores are compared with float64
         below 1  approximate indexes, each tuned to reach it; the report shows the recall beside every time

Queries are unit vectors and drawn again before every turn. Building and tuning are not timed; their times are in the
extras of the record. Exact work: each vector is read once, 2·rows·dim operations per query; the only compulsory work
of an approximate search is reading its queries.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ridgeline.lab import OURS, Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.lab.race import read_peaks
from ridgeline.machine import Placement, topology
from ridgeline.workloads import _search_peers as peers
from ridgeline.workloads._search_data import Vectors, draw_queries, draw_vectors, find_truth
from ridgeline.workloads.trajectory import on_device

BASE: dict[str, Any] = {"data": "clustered", "rows": 40_000, "dim": 384, "queries": 1, "k": 10, "recall": 1.0}
RECALL_QUERIES = 256  # for the recall of an approximate contender
CHECKED_QUERIES = 32  # compared with float64
RECALL_TOLERANCE = 0.03  # a sample of queries may be this far below the requested recall
SCORE_TOLERANCE = {"cpu": 1e-5, "cuda": 2e-3}  # largest error of a score: float32 sums; float16 values


class Search:
    name = "search"
    weight = 3.0
    devices = ("cpu", "cuda")
    note = "Approximate contenders were each set to the recall of the case; what they reached stands beside the time."

    def cases(self, profile: Profile) -> Iterable[Case]:
        changes = _list_quick_cases() if profile is Profile.QUICK else _list_full_cases()
        return [Case({**BASE, **change}, device) for device, change in changes]

    def work(self, case: Case) -> Work:
        rows, dim, queries = case["rows"], case["dim"], case["queries"]
        size = 4 if case.device == "cpu" else 2
        query_bytes = 4 * dim * queries
        exact = case["recall"] >= 1
        return Work(
            items=queries * case.ranks,
            unit="queries",
            flops=2.0 * rows * dim * queries * case.ranks if exact else 0,
            bytes={"memory": ((rows * dim * size if exact else 0) + query_bytes) * case.ranks},
            dtype="float32" if case.device == "cpu" else "float16",
            mix="read",
            working_set=rows * dim * size,
            threads=len(topology().usable_cpus),
        )

    def contenders(self, case: Case) -> Sequence[str]:
        return [OURS, *(name for name in _list_peers(case) if peers.is_available(name))]

    def missing(self, case: Case) -> dict[str, str]:
        return {name: "peers" for name in _list_peers(case) if not peers.is_available(name)}

    def libraries(self, case: Case, contender: str) -> Sequence[str]:
        return ("torch",) if case.device != "cpu" or contender == peers.TORCH else ()

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        device = on_device(case, place)
        vectors = draw_vectors(case["data"], case["rows"], case["dim"])
        start_s = time.perf_counter()
        find, settings = (
            _prepare_ridgeline(case, vectors, device)
            if contender == OURS
            else peers.build_peer(contender, vectors, case, device)
        )
        build_s = time.perf_counter() - start_s
        state: dict[str, Any] = {"turn": 0}

        def reset() -> None:
            new_queries = draw_queries(case["data"], case["queries"], case["rows"], case["dim"], state["turn"])
            state["turn"] += 1
            state["drawn"] = new_queries
            state["queries"] = _to_device(new_queries, device)

        def step() -> None:
            state["found"] = find(state["queries"], case["k"])

        def result() -> dict[str, Any]:
            scores, rows = _to_host(state["found"])
            outputs = {"queries": state["drawn"], "scores": scores, "rows": rows}
            if case["recall"] < 1:  # one call has too few queries: repeat it, untimed, over many
                new_queries = draw_queries(case["data"], RECALL_QUERIES, case["rows"], case["dim"], 0)
                size = case["queries"]
                parts = [new_queries[at : at + size] for at in range(0, RECALL_QUERIES, size)]
                sampled_rows = [_to_host(find(_to_device(part, device), case["k"]))[1] for part in parts]
                outputs |= {"sampled": new_queries, "sampled rows": np.concatenate(sampled_rows)}
            return outputs

        def extras() -> dict[str, Any]:
            return {"build_seconds": build_s, **read_peaks(case.device)}

        reset()
        return Steps(step, result, reset, state.clear, settings, extras)

    def check(self, case: Case, result: dict[str, Any]) -> Check:
        queries, scores, rows = (result[name] for name in ("queries", "scores", "rows"))
        k = min(case["k"], case["rows"])
        if rows.shape[0] != len(queries) or rows.shape[1] < k:
            return Check(False, None, {}, f"{rows.shape} neighbours for {len(queries)} queries and k = {case['k']}")
        step = max(1, len(queries) // CHECKED_QUERIES)
        queries, scores, rows = queries[::step], scores[::step, :k], rows[::step, :k]
        vectors = draw_vectors(case["data"], case["rows"], case["dim"])
        truth, best = find_truth(queries, vectors, k)
        if rows.min() < 0 and case["recall"] >= 1:
            return Check(False, None, {"recall": 0.0}, "neighbours are missing")
        values = np.einsum("qd,qkd->qk", queries.astype(float), vectors[np.maximum(rows, 0)].astype(float))
        valid = rows >= 0
        score_error = float(np.abs(np.where(valid, scores - values, 0)).max())
        recall = _compute_recall(truth, rows)
        tolerance = SCORE_TOLERANCE["cpu" if case.device == "cpu" else "cuda"]
        if case["recall"] >= 1:
            rank_error = float((best - np.sort(values, 1)[:, ::-1]).max())
            note = f"how far the worst neighbour is below the true one, {len(queries)} queries; allowed: {tolerance}"
            return Check(
                rank_error <= tolerance and score_error <= tolerance,
                max(rank_error, score_error),
                {"recall": recall},
                note,
            )
        truth, _ = find_truth(result["sampled"], vectors, k)
        recall, query_count = _compute_recall(truth, result["sampled rows"][:, :k]), len(result["sampled"])
        passed = recall >= case["recall"] - RECALL_TOLERANCE
        # A quantised peer ranks by approximate scores; only ridgeline promises those of the stored values.
        return Check(
            passed, None, {"recall": recall}, f"recall {recall:.3f} of {case['recall']} asked, {query_count} queries"
        )


def _list_peers(case: Case) -> list[str]:
    return peers.list_peers(case.device, case["recall"], case["rows"])


def _prepare_ridgeline(case: Case, vectors: Vectors, device: str) -> peers.Peer:
    index, settings = _build_index(case["data"], case["rows"], case["dim"], case["k"], case["recall"], device)
    if case["recall"] >= 1:
        return index.search, settings
    point = index.curve.pick(case["recall"]) or index.curve.best()
    options = {"nprobe": point.nprobe, "depth": point.depth, "recall when measured": point.recall}
    return lambda queries, k: index.search(queries, k, recall=case["recall"]), {**settings, **options}


@lru_cache(maxsize=1)
def _build_index(data: str, rows: int, dim: int, k: int, recall: float, device: str) -> tuple[Any, dict[str, Any]]:
    import ridgeline

    spec = "Flat" if recall >= 1 else f"IVF{peers.choose_list_count(rows)},Flat"
    index = ridgeline.Index(spec, metric="ip", device=device)
    vectors = draw_vectors(data, rows, dim)
    if not index.trained:
        index.train(vectors)
    index.add(vectors)
    if recall < 1:
        index.measure_recall(sample=min(500, rows), k=k)
    return index, {"spec": spec, "dtype": index.dtype}


def _compute_recall(truth: Any, rows: Any) -> float:
    return float((truth[:, :, None] == rows[:, None, :]).any(2).mean())


def _to_host(result: tuple[Any, Any]) -> tuple[Any, Any]:
    scores, rows = (np.asarray(v.cpu() if hasattr(v, "cpu") else v) for v in result)
    return scores, rows


def _to_device(queries: Vectors, device: str) -> Any:
    if device == "cpu":
        return queries
    import torch

    return torch.from_numpy(queries).to(device)


def _list_quick_cases() -> list[tuple[str, dict[str, Any]]]:
    cpu: list[dict[str, Any]] = [{}, {"queries": 64}, {"recall": 0.95, "rows": 10_000}]
    gpu: list[dict[str, Any]] = [{}, {"queries": 256}, {"recall": 0.95}, {"queries": 1024}]
    return [("cpu", c) for c in cpu] + [("cuda", {"rows": 1_000_000, **c}) for c in gpu]


def _list_full_cases() -> list[tuple[str, dict[str, Any]]]:
    """One parameter at a time around the base, and the frontier: every recall, for one query and for many."""
    sizes, query_counts = (1_000, 10_000, 100_000, 1_000_000), (1, 4, 16, 64, 256, 1024, 4096)
    frontier: list[dict[str, Any]] = [
        {"recall": r, "queries": n} for n in (1, 256) for r in (0.8, 0.9, 0.95, 0.99, 1.0)
    ]
    cpu: list[dict[str, Any]] = [{"rows": n, "queries": q} for q in (1, 256) for n in sizes]
    cpu += [{"queries": n} for n in query_counts] + [{"k": k, "queries": 256} for k in (1, 10, 100)] + frontier
    cpu += [{"recall": 0.95, "rows": 10_000}]
    gpu: list[dict[str, Any]] = [{"rows": n, "queries": q} for q in (1, 1024) for n in (*sizes, 10_000_000)]
    gpu += [
        {"rows": 1_000_000, **c}
        for c in [{"queries": n} for n in query_counts] + [{"k": k} for k in (1, 10, 100)] + frontier
    ]
    if installed("torch") and installed("safetensors"):
        cpu += [{"data": "texts", "rows": 2_000, "queries": q, "recall": r} for q in (1, 256) for r in (0.95, 1.0)]
        gpu += [{"data": "texts", "rows": 100_000, "queries": q, "recall": r} for q in (1, 1024) for r in (0.95, 1.0)]
    cases = [("cpu", c) for c in cpu] + [("cuda", c) for c in gpu]
    unique = {(device, tuple(sorted({**BASE, **c}.items()))): (device, c) for device, c in cases}
    return list(unique.values())


workload = Search()
