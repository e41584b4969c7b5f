"""Search on one GPU through `ridgeline.Index`: wall time and GPU time of a query, of 1,024, recall beside each.

    python benchmarks/search_gpu.py [--rows 1000000] [--large] [--profile]

Some two minutes on one H200, most of it compiling. Vectors are clustered and of unit length (4,000 centres, noise 0.9,
384 dimensions); recall@10 is against exact search over the float32 originals, so what float16 loses is in it. Wall is
the median of single calls with a synchronisation after each, GPU the time of a replay of the recorded search.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from typing import Any

import numpy as np
import torch

import ridgeline

DIM, K, CENTRES = 384, 10, 4_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--large", action="store_true", help="also one query over ten times as many rows")
    parser.add_argument("--profile", action="store_true", help="also where the host's time goes")
    options = parser.parse_args()
    draw = torch.Generator(device="cuda").manual_seed(0)
    centres = torch.randn(CENTRES, DIM, device="cuda", generator=draw)
    vectors, queries = make_vectors(options.rows, centres, draw), make_vectors(1024, centres, draw)
    truth = (queries @ vectors.T).topk(K)[1].cpu().numpy()
    print(f"{torch.cuda.get_device_name()} · torch {torch.__version__} · {options.rows:,} × {DIM}, k = {K}")

    index = ridgeline.Index("Flat", metric="cosine", device="cuda", dtype="float16")
    index.add(vectors)
    format_row("Flat, float16", index, queries, truth)
    if options.profile:
        profile(index, queries[:1])
    index = train_index("SQ8,Refine(Flat)", vectors)
    for depth in (1, 2, 8):
        format_row(f"SQ8,Refine(Flat), depth {depth}", index, queries, truth, depth=depth)
    torch.cuda.synchronize()
    start_s = time.perf_counter()
    index = train_index("IVF1024,Flat", vectors)
    torch.cuda.synchronize()
    print(f"IVF1024,Flat built in {time.perf_counter() - start_s:.3f} s")
    start_s = time.perf_counter()
    print(f"{index.measure_recall(sample=500, k=K)}, measured in {time.perf_counter() - start_s:.1f} s")
    format_row("IVF1024,Flat, recall 0.95", index, queries, truth, recall=0.95)
    for nprobe in (4, 16):
        format_row(f"IVF1024,Flat, nprobe {nprobe}", index, queries, truth, nprobe=nprobe)
    index = train_index("IVF1024,PQ48,Refine(Flat)", vectors)
    format_row("IVF1024,PQ48,Refine(Flat), nprobe 4", index, queries, truth, nprobe=4)
    if options.large:
        index = ridgeline.Index("Flat", metric="cosine", device="cuda", dtype="float16")
        for part in range(10):
            index.add(vectors + 0.01 * part)
        print(f"Flat, {len(index):,} rows: one query {wall(index, queries, 1, 20) * 1e3:.3f} ms")


def make_vectors(count: int, centres: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    nearest = centres[torch.randint(0, CENTRES, (count,), device="cuda", generator=draw)]
    return torch.nn.functional.normalize(nearest + 0.9 * torch.randn(count, DIM, device="cuda", generator=draw), dim=1)


def train_index(spec: str, vectors: torch.Tensor) -> Any:
    index = ridgeline.Index(spec, metric="cosine", device="cuda", dtype="float16")
    index.train(vectors)
    index.add(vectors)
    return index


def format_row(name: str, index: Any, queries: torch.Tensor, truth: Any, **how: Any) -> None:
    one, many = wall(index, queries, 1, 200, **how), wall(index, queries, 1024, 30, **how)
    measured_values = index.search(queries, K, **how)[1].cpu().numpy()
    recall = np.mean([len(set(a) & set(b)) / K for a, b in zip(measured_values, truth, strict=True)])
    print(
        f"{name:36} one {one * 1e3:.4f} ms (GPU {on_gpu(index, 1):.4f}), 1,024 {many * 1e3:.3f} ms "
        f"(GPU {on_gpu(index, 1024):.3f}) = {1024 / many:,.0f}/s, recall {recall:.4f}",
        flush=True,
    )


def wall(index: Any, queries: torch.Tensor, count: int, rounds: int, **how: Any) -> float:
    """Seconds of one call, results waited for; each with other queries."""
    select_rows = []
    for turn in range(rounds + 20):
        at = turn % (1025 - count)
        start_s = time.perf_counter()
        index.search(queries[at : at + count], K, **how)
        torch.cuda.synchronize()
        select_rows.append(time.perf_counter() - start_s)
    return statistics.median(select_rows[20:])


def on_gpu(index: Any, count: int) -> float:
    """Milliseconds of the recorded search; the last one of that many queries."""
    saved = [r for r in index._snapshot.engine.replays._recordings.values() if r.query_count == count]
    if not saved:
        return float("nan")
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(20):
        saved[-1].replay()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / 20


def profile(index: Any, query: torch.Tensor) -> None:
    watch = cProfile.Profile()
    watch.enable()
    for _ in range(300):
        index.search(query, K)
    watch.disable()
    torch.cuda.synchronize()
    pstats.Stats(watch).sort_stats("tottime").print_stats(12)


if __name__ == "__main__":
    main()
