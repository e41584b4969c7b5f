"""One query over SQ8,Refine(Flat) on one GPU: whole bytes, and half of each byte first, over vectors of many kinds.

    python benchmarks/search_halves.py [--rows 1000000]

Under a minute on one H200. Wall is the median of 300 single calls with a synchronisation after each, GPU the mean of
200 back to back. "good": answers that reach the true tenth score (float32, less 3e-4 for float16), over 1,024 queries.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from unittest.mock import patch

import torch

import ridgeline
from ridgeline.search.cuda_search import ReplayCache

DIM, K, CENTRES, QUERIES = 384, 10, 4_000, 1_024
Vectors = torch.Tensor
unit: Callable[[Vectors], Vectors] = lambda x: torch.nn.functional.normalize(x, dim=1)  # noqa: E731


def kinds(rows: int) -> Iterator[tuple[str, Vectors, Vectors]]:
    """Name, vectors, queries."""
    draw = torch.Generator(device="cuda").manual_seed(0)

    def normal(*shape: int) -> Vectors:
        return torch.randn(*shape, device="cuda", generator=draw)

    def pick_rows(most: int, count: int) -> Vectors:
        return torch.randint(0, most, (count,), device="cuda", generator=draw)

    def make_clusters(which: Vectors) -> Vectors:
        return unit(centres[which] + 0.9 * normal(len(which), DIM))

    centres = normal(CENTRES, DIM)
    queries = make_clusters(pick_rows(CENTRES, QUERIES))
    yield "clustered", make_clusters(pick_rows(CENTRES, rows)), queries
    yield "clustered, in order", make_clusters(pick_rows(CENTRES, rows).sort()[0]), queries
    yield "random", unit(normal(rows, DIM)), unit(normal(QUERIES, DIM))
    sizes = torch.exp(normal(DIM))
    yield "uneven dimensions", unit(make_clusters(pick_rows(CENTRES, rows)) * sizes), unit(queries * sizes)
    outliers = make_clusters(pick_rows(CENTRES, rows))
    outliers[5] = 0
    outliers[5, 7] = 1
    outliers[6] = -outliers[5]
    yield "outliers", outliers, queries
    yield "copies", make_clusters(pick_rows(CENTRES, 2_000))[pick_rows(2_000, rows)], queries


def measure_sketch(vectors: Vectors, queries: Vectors) -> tuple[float, float, Vectors, Vectors]:
    """Milliseconds wall, milliseconds on the GPU, scores, ids."""
    index = ridgeline.Index("SQ8,Refine(Flat)", metric="cosine", device="cuda")
    index.train(vectors)
    index.add(vectors)
    for turn in range(20):
        index.search(queries[turn : turn + 1], K)
    select_rows = []
    for turn in range(300):
        torch.cuda.synchronize()
        start_s = time.perf_counter()
        index.search(queries[turn : turn + 1], K)
        torch.cuda.synchronize()
        select_rows.append(time.perf_counter() - start_s)
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for turn in range(200):
        index.search(queries[turn : turn + 1], K)
    stop.record()
    stop.synchronize()
    values = [index.search(query[None], K) for query in queries]
    return (
        statistics.median(select_rows) * 1e3,
        start.elapsed_time(stop) / 200,
        torch.cat([scores for scores, _ in values]),
        torch.cat([ids for _, ids in values]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    for name, vectors, queries in kinds(rows):
        true = torch.cat([(part @ vectors.T).topk(K)[0][:, -1:] for part in queries.split(128)])
        with patch.object(ReplayCache, "_sketched", lambda _, __, steps: steps):
            complete = measure_sketch(vectors, queries)
        half = measure_sketch(vectors, queries)
        reported = [
            f"{way} {wall:.4f} wall {gpu:.4f} gpu {(scores >= true - 3e-4).double().mean():.5f} good"
            for way, (wall, gpu, scores, _) in (("bytes", complete), ("halves", half))
        ]
        same = (complete[3] == half[3]).double().mean()
        print(f"{name:20} {' | '.join(reported)} | same answers {same:.5f}", flush=True)


if __name__ == "__main__":
    main()
