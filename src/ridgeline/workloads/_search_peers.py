"""The other ways to find neighbours, each tuned as its own documentation would have it.

A peer is built over the vectors and gives `find(queries, k)`. Approximate ones have knobs: they are set to the first of
a rising list that reaches the recall that was asked for, measured with queries that are not the timed ones.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ridgeline.lab import installed
from ridgeline.workloads._search_data import Vectors, queries_of, truth_of

Find = Callable[[Any, int], tuple[Any, Any]]  # scores, rows
Made = tuple[Find, dict[str, Any]]

TORCH, FAISS, QDRANT, USEARCH = "torch matmul + topk", "FAISS Flat", "qdrant local", "usearch"
FAST_SCAN, HNSW = "FAISS IVF-PQ fast-scan", "FAISS HNSW"
FAISS_GPU, CUVS = "FAISS-GPU Flat", "cuVS brute force"
NEEDS = {
    TORCH: ("torch",),
    FAISS: ("faiss",),
    FAST_SCAN: ("faiss",),
    HNSW: ("faiss",),
    USEARCH: ("usearch",),
    QDRANT: ("qdrant_client",),
    FAISS_GPU: ("faiss", "faiss_gpu"),
    CUVS: ("cuvs",),
}
QDRANT_ROWS = 20_000  # its local mode is Python: more takes minutes to fill
TUNE_QUERIES = 200


def wanted(device: str, recall: float, rows: int) -> list[str]:
    """Who takes part, installed or not."""
    if device != "cpu":
        return [TORCH, FAISS_GPU, CUVS] if recall >= 1 else []
    if recall >= 1:
        return [TORCH, FAISS, USEARCH, *([QDRANT] if rows <= QDRANT_ROWS else [])]
    return [FAST_SCAN, HNSW, USEARCH]


def there(name: str) -> bool:
    return all(installed(module) for module in NEEDS[name])


def made(name: str, vectors: Vectors, case: Any, device: str) -> Made:
    builders: dict[str, Callable[[], Made]] = {
        TORCH: lambda: _torch(vectors, device),
        FAISS: lambda: _faiss_flat(vectors),
        FAST_SCAN: lambda: _fast_scan(vectors, case),
        HNSW: lambda: _hnsw(vectors, case),
        USEARCH: lambda: _usearch(vectors, case),
        QDRANT: lambda: _qdrant(vectors),
        FAISS_GPU: lambda: _faiss_gpu(vectors),
        CUVS: lambda: _cuvs(vectors),
    }
    return builders[name]()


def lists_for(rows: int) -> int:
    """Four lists per square root of the rows, a power of two: what FAISS's guidelines and ours have in common."""
    root = int(4 * math.sqrt(rows))
    return 1 << max(2, root.bit_length() - 1)


def tuned(find: Callable[[Any], Find], knobs: Sequence[Any], vectors: Vectors, case: Any) -> tuple[Any, float]:
    """The first knob that reaches the case's recall, or the last one; with what it reached."""
    queries = queries_of(case["data"], TUNE_QUERIES, case["rows"], case["dim"], -1)
    truth, _ = truth_of(queries, vectors, case["k"])
    knob, reached = knobs[-1], 0.0
    for knob in knobs:
        rows = np.asarray(find(knob)(queries, case["k"])[1])
        reached = float((truth[:, :, None] == rows[:, None, :]).any(2).mean())
        if reached >= case["recall"]:
            break
    return knob, reached


def _torch(vectors: Vectors, device: str) -> Made:
    import torch

    dtype = torch.float32 if device == "cpu" else torch.float16
    held = torch.from_numpy(vectors).to(device, dtype)

    def find(queries: Any, k: int) -> tuple[Any, Any]:
        given = torch.from_numpy(queries) if isinstance(queries, np.ndarray) else queries
        scores, found = torch.topk(given.to(device, dtype) @ held.T, k)
        return scores, found

    return find, {"dtype": str(dtype), "threads": torch.get_num_threads()}


def _faiss() -> Any:
    """Its default leaves small batches to a loop; and its BLAS must know the CPU (set before it is loaded)."""
    os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX" if os.uname().machine == "x86_64" else "")
    if not os.environ["OPENBLAS_CORETYPE"]:
        del os.environ["OPENBLAS_CORETYPE"]
    import faiss

    faiss.cvar.distance_compute_blas_threshold = 20
    return faiss


def _faiss_flat(vectors: Vectors) -> Made:
    faiss = _faiss()
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index.search, {"distance_compute_blas_threshold": 20, "threads": faiss.omp_get_max_threads()}


def _fast_scan(vectors: Vectors, case: Any) -> Made:
    faiss = _faiss()
    lists, parts = lists_for(len(vectors)), vectors.shape[1] // 4
    words = f"IVF{lists},PQ{parts}x4fs,RFlat"
    index = faiss.index_factory(vectors.shape[1], words, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    inner = faiss.extract_index_ivf(index.base_index)
    pairs = [(1 << n, factor) for n in range(lists.bit_length()) for factor in (1, 4, 16, 64)]

    def find(knob: Any) -> Find:
        inner.nprobe, index.k_factor = knob
        return index.search  # type: ignore[no-any-return]

    knob, reached = tuned(find, sorted(pairs, key=lambda p: p[0] * (8 + p[1])), vectors, case)
    return find(knob), {"index": words, "nprobe": knob[0], "k_factor": knob[1], "recall when tuned": reached}


def _hnsw(vectors: Vectors, case: Any) -> Made:
    faiss = _faiss()
    index = faiss.IndexHNSWFlat(vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 80
    index.add(vectors)

    def find(knob: Any) -> Find:
        index.hnsw.efSearch = knob
        return index.search  # type: ignore[no-any-return]

    knob, reached = tuned(find, [1 << n for n in range(4, 12)], vectors, case)
    return find(knob), {"M": 32, "efConstruction": 80, "efSearch": knob, "recall when tuned": reached}


def _usearch(vectors: Vectors, case: Any) -> Made:
    from usearch.index import Index, MetricKind, search

    if case["recall"] >= 1:

        def exact(queries: Any, k: int) -> tuple[Any, Any]:
            found = search(vectors, queries, k, MetricKind.IP, exact=True)
            return 1 - _rows(found.distances, len(queries)), _rows(found.keys, len(queries)).astype(np.int64)

        return exact, {"exact": True}
    index = Index(ndim=vectors.shape[1], metric=MetricKind.IP, dtype="f32")
    index.add(np.arange(len(vectors)), vectors)

    def find(knob: Any) -> Find:
        index.expansion_search = knob

        def search_it(queries: Any, k: int) -> tuple[Any, Any]:
            found = index.search(queries, k)
            return 1 - _rows(found.distances, len(queries)), _rows(found.keys, len(queries)).astype(np.int64)

        return search_it

    knob, reached = tuned(find, [1 << n for n in range(4, 12)], vectors, case)
    return find(knob), {"expansion_search": knob, "recall when tuned": reached}


def _rows(values: Any, queries: int) -> Any:
    """usearch answers one query with one row."""
    return np.asarray(values).reshape(queries, -1)


def _qdrant(vectors: Vectors) -> Made:
    from qdrant_client import QdrantClient, models

    client = QdrantClient(":memory:")
    size = models.VectorParams(size=vectors.shape[1], distance=models.Distance.DOT)
    client.create_collection("v", vectors_config=size)
    client.upload_collection("v", vectors=vectors, ids=list(range(len(vectors))))

    def find(queries: Any, k: int) -> tuple[Any, Any]:
        asked = [models.QueryRequest(query=q.tolist(), limit=k) for q in queries]
        found = [answer.points for answer in client.query_batch_points("v", asked)]
        return np.array([[p.score for p in a] for a in found]), np.array([[p.id for p in a] for a in found])

    return find, {"mode": "local, exact"}


def _faiss_gpu(vectors: Vectors) -> Made:
    import faiss

    index = faiss.GpuIndexFlatIP(faiss.StandardGpuResources(), vectors.shape[1])
    index.add(vectors)
    return lambda queries, k: index.search(np.asarray(queries.cpu()), k), {"dtype": "float32"}


def _cuvs(vectors: Vectors) -> Made:
    import torch
    from cuvs.neighbors import brute_force

    index = brute_force.build(torch.from_numpy(vectors).half().cuda(), metric="inner_product")

    def find(queries: Any, k: int) -> tuple[Any, Any]:
        scores, rows = brute_force.search(index, queries.half(), k)
        return torch.as_tensor(scores, device="cuda"), torch.as_tensor(rows, device="cuda")

    return find, {"dtype": "float16"}
