"""RaBitQ beside the other lists on one CPU core: CPU time per query at equal recall, contenders in turn.

    python benchmarks/search_rabitq.py [--rows 20000] [--lists 128]

Two minutes. Vectors of 384 dimensions without clusters (28 latent dimensions and noise), of unit length; k is 10, the
recall is measured against exact search with 300 queries that are also timed, 1, 3 and 100 at a time. A contender uses
its smallest nprobe (and depth) that reaches the recall. Medians of rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import numpy as np

from ridgeline import Index

DIM, LATENT, K, QUERIES, ROUNDS = 384, 28, 10, 300, 9
PROBES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
CODES = ("Flat", "SQ8,Refine(Flat)", *(f"RaBitQ{bits},Refine(Flat)" for bits in (4, 3, 2, 1)))
BATCHES = {1: 40, 3: 20, 100: 1}  # queries at a time, and how many such calls a round times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--lists", type=int, default=128)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    random = np.random.default_rng(0)
    mixture = random.standard_normal((LATENT, DIM)).astype(np.float32)
    vectors, queries = draw(random, given.rows, mixture), draw(random, QUERIES, mixture)
    truth = np.argsort(-(queries @ vectors.T), 1)[:, :K]
    contenders: list[tuple[str, float, dict[str, int], float, Any]] = []
    for codes in CODES:
        index = Index(f"IVF{given.lists},{codes}", metric="cosine", device="cpu")
        start = time.process_time()
        index.train(vectors[: 40 * given.lists])
        index.add(vectors)
        print(f"{index.spec}: built in {time.process_time() - start:.1f} s of CPU time", flush=True)
        for recall in (0.95, 0.99):
            setting = find_setting(index, queries, truth, recall, given.lists)
            if setting is not None:
                contenders.append((index.spec, recall, *setting, index))
    times: dict[tuple[str, float, int], list[float]] = {}
    for turn in range(ROUNDS):
        for spec, recall, how, _, index in contenders:
            for count, calls in BATCHES.items():
                starts = [(7 * turn + 3 * call) % (QUERIES - count) for call in range(calls)]
                batches = [np.ascontiguousarray(queries[at : at + count]) for at in starts]
                index.search(batches[0], K, **how)
                start = time.process_time()
                for batch in batches:
                    index.search(batch, K, **how)
                times.setdefault((spec, recall, count), []).append((time.process_time() - start) / calls / count)
    print(f"{given.rows} rows without clusters, {DIM} dimensions, one thread; us of CPU time per query")
    print("spec | recall asked | reached | setting | 1 query | 3 at a time | 100 at a time")
    for spec, recall, how, reached, _ in contenders:
        cells = [f"{1e6 * statistics.median(times[spec, recall, count]):.1f}" for count in BATCHES]
        print(f"{spec} | {recall} | {reached:.4f} | {how} | " + " | ".join(cells))


def draw(random: np.random.Generator, count: int, mixture: Any) -> Any:
    latent = random.standard_normal((count, LATENT)).astype(np.float32)
    values = latent @ mixture + 0.8 * random.standard_normal((count, DIM)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def find_setting(
    index: Index, queries: Any, truth: Any, recall: float, lists: int
) -> tuple[dict[str, int], float] | None:
    depths = (1, 2, 4) if "SQ8" in index.spec else (0,)
    for nprobe in (n for n in PROBES if n <= lists):
        for depth in depths:
            how = {"nprobe": nprobe} | ({"depth": depth} if depth else {})
            rows = index.search(queries, K, **how)[1]
            reached = float((truth[:, :, None] == rows[:, None, :]).any(2).mean())
            if reached >= recall:
                return how, reached
    return None


if __name__ == "__main__":
    main()
