"""One query on one GPU, by each way of `search.cuda_engine.WAY`: wall, what the call itself takes, GPU time, and right.

    python benchmarks/search_gpu_ways.py [--rows 1000000] [--rounds 5] [--kernels] [--ways graph,direct]

Some two minutes on one H200, most of it compiling. The same vectors and the same clock as benchmarks/search_gpu.py and
the acceptance: a median over single calls, each with another query and a synchronisation after it. The ways take turns.
"call" is until `search` returns, "GPU" the recorded search back to back. "worst" is how much the exact float64 score of
a found row lies under the true one in its place (over the stored values for Flat, the originals for the others), "same"
the share of ids that are those of the first way.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch
from search_gpu import CENTRES, DIM, K, made, trained

import ridgeline
from ridgeline.search import cuda_engine

WAYS = ("graph", "short", "direct", "early")
CHECKED = 256  # queries
TURN = 100  # calls before the next way has its turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--kernels", action="store_true", help="also the time of each kernel")
    options = parser.parse_args()
    draw = torch.Generator(device="cuda").manual_seed(0)
    centres = torch.randn(CENTRES, DIM, device="cuda", generator=draw)
    vectors, queries = made(options.rows, centres, draw), made(1024, centres, draw)
    print(f"{torch.cuda.get_device_name()} · torch {torch.__version__} · {options.rows:,} × {DIM}, k = {K}")
    print(f"{'':30} {'way':7} {'recorded':9} {'wall':>7} {'p99':>7} {'call':>7} {'GPU':>7} ms   recall   worst    same")
    index = ridgeline.Index("Flat", metric="cosine", device="cuda", dtype="float16")
    index.add(vectors)
    stored = index._state.engine.stored.values(torch.arange(options.rows, device="cuda"))
    raced("Flat, float16", index, queries, stored, options)
    del stored
    index = trained("SQ8,Refine(Flat)", vectors)
    raced("SQ8,Refine(Flat)", index, queries, vectors, options)
    index = trained("IVF1024,Flat", vectors)
    for nprobe in (1, 4, 16):
        raced(f"IVF1024,Flat, nprobe {nprobe}", index, queries, vectors, options, nprobe=nprobe)


def raced(name: str, index: Any, queries: Any, vectors: Any, options: Any, **how: Any) -> None:
    ways, seen = options.ways.split(","), {}
    walls: dict[str, list[float]] = {way: [] for way in ways}
    calls: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(options.rounds):
        for way in ways:
            chosen(index, way)
            for at in range(TURN + 20):
                query = queries[(turn * TURN + at) % 1024][None]
                began = time.perf_counter()
                index.search(query, K, **how)
                returned = time.perf_counter()
                torch.cuda.synchronize()
                ended = time.perf_counter()
                if at >= 20:
                    walls[way].append(ended - began)
                    calls[way].append(returned - began)
    truth, best = exact(queries[:CHECKED], vectors)
    for way in ways:
        chosen(index, way)
        found = torch.cat([index.search(query[None], K, **how)[1] for query in queries[:CHECKED]])
        seen[way] = found
        score = torch.einsum("qd,qkd->qk", queries[:CHECKED].double(), vectors[found].double())
        recall = np.mean([len(set(a) & set(b)) / K for a, b in zip(found.tolist(), best.tolist(), strict=True)])
        line = sorted(walls[way])
        kind = type(recorded(index)).__name__
        print(
            f"{name:30} {way:7} {kind:9} {statistics.median(line) * 1e3:7.4f} "
            f"{line[int(0.99 * len(line))] * 1e3:7.4f} "
            f"{statistics.median(calls[way]) * 1e3:7.4f} {on_gpu(index):7.4f}      {recall:.4f} "
            f"{float((truth - score).max()):9.1e} {float((found == seen[ways[0]]).double().mean()):.4f}",
            flush=True,
        )
        print(f"{'':30} {way:7} from NumPy {from_numpy(index, queries, how) * 1e3:.4f}", flush=True)
        if options.kernels:
            kernels(index, queries, how)


def from_numpy(index: Any, queries: torch.Tensor, how: Any) -> float:
    """Seconds of a search from NumPy to NumPy."""
    taken = []
    for query in queries.cpu().numpy()[:TURN, None]:
        began = time.perf_counter()
        index.search(query, K, **how)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[20:])


def chosen(index: Any, way: str) -> None:
    cuda_engine.WAY = way
    index._state.doors.clear()


def exact(queries: torch.Tensor, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The K best scores in float64, and whose they are, from the best 64 in float32."""
    near = torch.cat([(part @ vectors.T).topk(64)[1] for part in queries.split(16)])
    score = torch.einsum("qd,qkd->qk", queries.double(), vectors[near].double())
    best = score.topk(K)
    return best[0], near.gather(1, best[1])


def recorded(index: Any) -> Any:
    """The search that was recorded last."""
    return next(iter(index._state.doors.values()))


def on_gpu(index: Any, rounds: int = 50) -> float:
    """Milliseconds of it, back to back."""
    once = recorded(index)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    taken = []
    for _ in range(5):
        first.record()
        for _ in range(rounds):
            once.again()
        last.record()
        torch.cuda.synchronize()
        taken.append(float(first.elapsed_time(last)) / rounds)
    return statistics.median(taken)


def kernels(index: Any, queries: torch.Tensor, how: Any) -> None:
    """Median time of each kernel and copy on the GPU, and how long the GPU stood idle before it, in a search."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as watch:
        for at in range(20):
            index.search(queries[at : at + 1], K, **how)
            torch.cuda.synchronize()
    events = sorted(
        (e for e in watch.events() if str(e.device_type).endswith("CUDA")), key=lambda e: e.time_range.start
    )
    took: dict[str, list[float]] = {}
    waited: dict[str, list[float]] = {}
    for before, event in zip([None, *events], events, strict=False):
        took.setdefault(event.name, []).append(event.time_range.elapsed_us())
        if before is not None:
            waited.setdefault(event.name, []).append(event.time_range.start - before.time_range.end)
    for name, times in took.items():
        idle = statistics.median(waited.get(name, [0.0]))
        print(f"    {name[:40]:40} {len(times) // 20} × {statistics.median(times):7.2f} µs, {idle:6.2f} idle before")


if __name__ == "__main__":
    main()
