"""The peers of `search`, each tuned as its documentation recommends.

A peer is built over the vectors and returns `find(queries, k)`. An approximate one has settings: it uses the first of
an ascending list that reaches the recall of the case, measured with queries that are not timed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ridgeline.lab import installed
from ridgeline.workloads import _search_gpu_peers as gpu
from ridgeline.workloads._search_data import Vectors, draw_queries, find_truth

Find = Callable[[Any, int], tuple[Any, Any]]  # scores, rows
Peer = tuple[Find, dict[str, Any]]

TORCH, FAISS, QDRANT, USEARCH = "torch matmul + topk", "FAISS Flat", "qdrant local", "usearch"
FAST_SCAN, HNSW = "FAISS IVF-PQ fast-scan", "FAISS HNSW"
NEEDS = {
    TORCH: ("torch",),
    FAISS: ("faiss",),
    FAST_SCAN: ("faiss",),
    HNSW: ("faiss",),
    USEARCH: ("usearch",),
    QDRANT: ("qdrant_client",),
}
QDRANT_ROWS = 20_000  # its local mode is Python: more rows take minutes to add
TUNE_QUERIES = 200


def list_peers(device: str, recall: float, rows: int) -> list[str]:
    """The peers of a case, installed or not."""
    if device != "cpu":
        return [TORCH, *gpu.EXACT] if recall >= 1 else list(gpu.APPROXIMATE)
    if recall >= 1:
        return [TORCH, FAISS, USEARCH, *([QDRANT] if rows <= QDRANT_ROWS else [])]
    return [FAST_SCAN, HNSW, USEARCH]


def is_available(name: str) -> bool:
    if name not in NEEDS:
        return gpu.is_available(name)
    return all(installed(module) for module in NEEDS[name])


def build_peer(name: str, vectors: Vectors, case: Any, device: str) -> Peer:
    builders: dict[str, Callable[[], Peer]] = {
        TORCH: lambda: _build_torch(vectors, device),
        FAISS: lambda: _build_faiss_flat(vectors),
        FAST_SCAN: lambda: _build_fast_scan(vectors, case),
        HNSW: lambda: _build_hnsw(vectors, case),
        USEARCH: lambda: _build_usearch(vectors, case),
        QDRANT: lambda: _build_qdrant(vectors),
    }
    if name not in builders:
        return _build_gpu_peer(name, vectors, case, device)
    return builders[name]()


def choose_list_count(rows: int) -> int:
    """Four lists per square root of the rows, a power of two: common to FAISS's guidelines and ridgeline's."""
    root = int(4 * math.sqrt(rows))
    return 1 << max(2, root.bit_length() - 1)


def tune(find: Callable[[Any], Find], knobs: Sequence[Any], vectors: Vectors, case: Any) -> tuple[Any, float]:
    """Return the first setting that reaches the recall of the case, or the last one; with its recall."""
    queries = draw_queries(case["data"], TUNE_QUERIES, case["rows"], case["dim"], -1)
    truth, _ = find_truth(queries, vectors, case["k"])
    knob, recall = knobs[-1], 0.0
    for knob in knobs:
        rows = np.asarray(find(knob)(queries, case["k"])[1])
        recall = float((truth[:, :, None] == rows[:, None, :]).any(2).mean())
        if recall >= case["recall"]:
            break
    return knob, recall


def _build_torch(vectors: Vectors, device: str) -> Peer:
    import torch

    dtype = torch.float32 if device == "cpu" else torch.float16
    stored = torch.from_numpy(vectors).to(device, dtype)

    def find(queries: Any, k: int) -> tuple[Any, Any]:
        query_tensor = torch.from_numpy(queries) if isinstance(queries, np.ndarray) else queries
        scores, rows = torch.topk(query_tensor.to(device, dtype) @ stored.T, k)
        return scores, rows

    return find, {"dtype": str(dtype), "threads": torch.get_num_threads()}


def _load_faiss() -> Any:
    """FAISS uses a loop for small batches by default, and its BLAS must know the CPU (set before the import)."""
    os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX" if os.uname().machine == "x86_64" else "")
    if not os.environ["OPENBLAS_CORETYPE"]:
        del os.environ["OPENBLAS_CORETYPE"]
    import faiss

    faiss.cvar.distance_compute_blas_threshold = 20
    return faiss


def _build_faiss_flat(vectors: Vectors) -> Peer:
    faiss = _load_faiss()
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index.search, {"distance_compute_blas_threshold": 20, "threads": faiss.omp_get_max_threads()}


def _build_fast_scan(vectors: Vectors, case: Any) -> Peer:
    faiss = _load_faiss()
    lists, parts = choose_list_count(len(vectors)), vectors.shape[1] // 4
    spec = f"IVF{lists},PQ{parts}x4fs,RFlat"
    index = faiss.index_factory(vectors.shape[1], spec, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    inner = faiss.extract_index_ivf(index.base_index)
    pairs = [(1 << n, factor) for n in range(lists.bit_length()) for factor in (1, 4, 16, 64)]

    def find(knob: Any) -> Find:
        inner.nprobe, index.k_factor = knob
        return index.search  # type: ignore[no-any-return]

    knob, reached = tune(find, sorted(pairs, key=lambda p: p[0] * (8 + p[1])), vectors, case)
    return find(knob), {"index": spec, "nprobe": knob[0], "k_factor": knob[1], "recall when tuned": reached}


def _build_hnsw(vectors: Vectors, case: Any) -> Peer:
    faiss = _load_faiss()
    index = faiss.IndexHNSWFlat(vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 80
    index.add(vectors)

    def find(knob: Any) -> Find:
        index.hnsw.efSearch = knob
        return index.search  # type: ignore[no-any-return]

    knob, recall = tune(find, [1 << n for n in range(4, 12)], vectors, case)
    return find(knob), {"M": 32, "efConstruction": 80, "efSearch": knob, "recall when tuned": recall}


def _build_usearch(vectors: Vectors, case: Any) -> Peer:
    from usearch.index import Index, MetricKind, search

    if case["recall"] >= 1:

        def exact(queries: Any, k: int) -> tuple[Any, Any]:
            matches = search(vectors, queries, k, MetricKind.IP, exact=True)
            return 1 - _reshape_rows(matches.distances, len(queries)), _reshape_rows(matches.keys, len(queries)).astype(
                np.int64
            )

        return exact, {"exact": True}
    index = Index(ndim=vectors.shape[1], metric=MetricKind.IP, dtype="f32")
    index.add(np.arange(len(vectors)), vectors)

    def find(knob: Any) -> Find:
        index.expansion_search = knob

        def search_approximately(queries: Any, k: int) -> tuple[Any, Any]:
            matches = index.search(queries, k)
            return 1 - _reshape_rows(matches.distances, len(queries)), _reshape_rows(matches.keys, len(queries)).astype(
                np.int64
            )

        return search_approximately

    knob, reached = tune(find, [1 << n for n in range(4, 12)], vectors, case)
    return find(knob), {"expansion_search": knob, "recall when tuned": reached}


def _reshape_rows(values: Any, queries: int) -> Any:
    """usearch returns one row for one query."""
    return np.asarray(values).reshape(queries, -1)


def _build_qdrant(vectors: Vectors) -> Peer:
    from qdrant_client import QdrantClient, models

    client = QdrantClient(":memory:")
    size = models.VectorParams(size=vectors.shape[1], distance=models.Distance.DOT)
    client.create_collection("v", vectors_config=size)
    client.upload_collection("v", vectors=vectors, ids=list(range(len(vectors))))

    def find(queries: Any, k: int) -> tuple[Any, Any]:
        requests = [models.QueryRequest(query=q.tolist(), limit=k) for q in queries]
        results = [answer.points for answer in client.query_batch_points("v", requests)]
        return np.array([[p.score for p in a] for a in results]), np.array([[p.id for p in a] for a in results])

    return find, {"mode": "local, exact"}


def _build_gpu_peer(name: str, vectors: Vectors, case: Any, device: str) -> Peer:
    import torch

    def find_setting(find: Callable[[Any], Find], knobs: Sequence[Any]) -> tuple[Any, float]:
        def on_device(knob: Any) -> Find:
            search = find(knob)

            def from_host(queries: Any, k: int) -> tuple[Any, Any]:
                scores, rows = search(torch.from_numpy(queries).to(device), k)
                return scores.cpu().numpy(), rows.cpu().numpy()

            return from_host

        return tune(on_device, knobs, vectors, case)

    sample = draw_queries(case["data"], case["queries"], case["rows"], case["dim"], -1)
    lists = choose_list_count(len(vectors))
    return gpu.build_gpu_peer(name, vectors, lists, device, find_setting, torch.from_numpy(sample).to(device))
