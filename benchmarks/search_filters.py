"""Filtered search beside hnswlib and FAISS HNSW: recall and CPU time at a selectivity of 0.1, 1, 10 and 50 %.

    python benchmarks/search_filters.py [--rows 20000] [--queries 60]

Two minutes on one core. Needs hnswlib and faiss-cpu; a missing one is left out. 384 dimensions of which 28 are latent,
without clusters, so that recall must be paid for. The filter is a column with random values: `label < n`. Ours is Flat,
exact by construction; the others filter inside the walk of the graph, hnswlib by its callback, FAISS by a selector of
ids, both at ef 64 and 512. One thread, one query per call; medians of the CPU time per query, contenders in turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import ridgeline

DIM, LATENT, K = 384, 28, 10
SELECTED = (0.001, 0.01, 0.1, 0.5)
EFFORTS = (64, 512)
Find = Callable[[Any], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--queries", type=int, default=60)
    args = parser.parse_args()
    random = np.random.default_rng(0)
    basis = random.standard_normal((LATENT, DIM)).astype(np.float32)

    def draw(count: int) -> Any:
        vectors = random.standard_normal((count, LATENT)).astype(np.float32) @ basis
        vectors += 0.8 * random.standard_normal((count, DIM)).astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    vectors, queries = draw(args.rows), draw(args.queries)
    labels = random.integers(0, 1000, args.rows)
    scores = queries.astype(np.float64) @ vectors.astype(np.float64).T
    index = ridgeline.Index("Flat", metric="cosine", device="cpu")
    index.add(vectors, meta={"label": labels})
    makers: dict[str, Callable[[Any, int], Find]] = {"ridgeline Flat": lambda allowed, cut: search_flat(index, cut)}
    makers |= build_hnswlib(vectors) | build_faiss(vectors)
    print(f"{args.rows} rows, {DIM} dimensions, {args.queries} queries, k {K}, {os.cpu_count()} CPUs seen, 1 used")
    print("selected | contender | recall@10 | ms of CPU time per query")
    for share in SELECTED:
        cut = round(share * 1000)
        allowed = labels < cut
        expected = np.argsort(-np.where(allowed, scores, -9), 1, kind="stable")[:, : min(K, int(allowed.sum()))]
        contenders = {name: make(allowed, cut) for name, make in makers.items()}
        times: dict[str, list[float]] = {name: [] for name in contenders}
        hits = dict.fromkeys(contenders, 0)
        for number, query in enumerate(queries):
            names = list(contenders)
            random.shuffle(names)
            for name in names:
                start = time.process_time()
                found = contenders[name](query)
                times[name].append(time.process_time() - start)
                hits[name] += len(set(np.asarray(found).tolist()) & set(expected[number].tolist()))
        for name in contenders:
            recall = hits[name] / expected.size
            print(f"{share:.1%} | {name} | {recall:.3f} | {statistics.median(times[name]) * 1e3:.2f}")


def search_flat(index: Any, cut: int) -> Find:
    return lambda query: index.search(query, K, where=f"label < {cut}")[1]


def build_hnswlib(vectors: Any) -> dict[str, Callable[[Any, int], Find]]:
    try:
        import hnswlib
    except ImportError:
        return {}
    graph = hnswlib.Index("cosine", DIM)
    graph.init_index(len(vectors), M=16, ef_construction=100)
    graph.set_num_threads(1)
    graph.add_items(vectors)

    def make(effort: int) -> Callable[[Any, int], Find]:
        def with_filter(allowed: Any, cut: int) -> Find:
            mask = allowed.tolist()

            def find(query: Any) -> Any:
                graph.set_ef(effort)
                for count in range(K, 0, -1):  # it raises if it finds fewer than it was asked for
                    try:
                        return graph.knn_query(query, count, num_threads=1, filter=lambda row: mask[row])[0][0]
                    except RuntimeError:
                        continue
                return np.zeros(0, np.int64)

            return find

        return with_filter

    return {f"hnswlib M16 ef {effort}": make(effort) for effort in EFFORTS}


def build_faiss(vectors: Any) -> dict[str, Callable[[Any, int], Find]]:
    try:
        import faiss
    except ImportError:
        return {}
    faiss.omp_set_num_threads(1)
    graph = faiss.IndexHNSWFlat(DIM, 16, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = 100
    graph.add(vectors)

    def make(effort: int) -> Callable[[Any, int], Find]:
        def with_filter(allowed: Any, cut: int) -> Find:
            selector = faiss.IDSelectorBatch(np.flatnonzero(allowed))
            parameters = faiss.SearchParametersHNSW(sel=selector, efSearch=effort)

            def find(query: Any) -> Any:
                _ = selector  # FAISS does not own it
                return graph.search(query[None], K, params=parameters)[1][0]

            return find

        return with_filter

    return {f"FAISS HNSW16 ef {effort}": make(effort) for effort in EFFORTS}


if __name__ == "__main__":
    main()
