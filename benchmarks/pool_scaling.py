"""How a pool scales over its workers: items/s and efficiency against one worker, on the CPU.

    python benchmarks/pool_scaling.py [--workers 1 2] [--chunks 48] [--rounds 5] [--json FILE]

The job is singular values of small matrices in float64: 1.2 MB in, 25 KB out, some 15 ms a chunk. Each worker stands on
one CPU of its own, so that workers and not CPUs are added. Numbers of workers take turns; the medians are shown.
`alone` is what as many processes reach side by side in the same minute with nothing sent to them: on a machine that
others use too it falls short of linear, and `of alone` is the pool's own share. `transport` sends 8 MB each way through
one worker that does nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.machine import Placement, plan, topology
from ridgeline.pipeline import Pool, pool

Samples = dict[int, list[float]]  # by number of workers

ITEMS, SIDE = 64, 48  # matrices per chunk, and their side


def singular(device: str) -> Any:
    return lambda chunk: np.linalg.svd(chunk, compute_uv=False)


def alone(device: str) -> Any:
    """The same work on matrices of its own, nothing sent: what the CPUs give at that moment."""
    chunk = np.random.default_rng(3).normal(size=(ITEMS, SIDE, SIDE))

    def fn(count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            np.linalg.svd(chunk, compute_uv=False)
        return count * ITEMS / (time.perf_counter() - begin)

    return fn


def echo(device: str) -> Any:
    return lambda chunk: chunk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cpus = len(topology().usable_cpus)
    parser.add_argument(
        "--workers", type=int, nargs="+", default=sorted({1, *(2**k for k in range(1, 8) if 2**k <= cpus), cpus})
    )
    parser.add_argument("--chunks", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    chunks = np.random.default_rng(3).normal(size=(asked.chunks, ITEMS, SIDE, SIDE))
    wanted = [np.linalg.svd(chunk, compute_uv=False) for chunk in chunks]
    times: Samples = {n: [] for n in asked.workers}
    busy: Samples = {n: [] for n in asked.workers}
    free: Samples = {n: [] for n in asked.workers}
    for round_ in range(asked.rounds):
        for n in asked.workers if round_ % 2 else reversed(asked.workers):
            with pool(singular, ["cpu"] * n, place=seats(n)) as workers:
                list(workers.map(chunks[: 2 * n]))
                before = sum(s.busy_s for s in workers.stats())
                seconds = timed(workers, chunks, wanted)
                times[n].append(seconds)
                busy[n].append((sum(s.busy_s for s in workers.stats()) - before) / seconds / n)
            with pool(alone, ["cpu"] * n, place=seats(n)) as workers:
                list(workers.map([1] * n))
                free[n].append(sum(workers.map([asked.chunks // n] * n)))
    rows = table(times, busy, free, asked.chunks * ITEMS)
    moved = transport()
    print(f"transport: {moved:.2f} GB/s there and back, 8 MB a chunk, one worker")
    if asked.json:
        raw = {
            "items": asked.chunks * ITEMS,
            "cpus": cpus,
            "cpu": topology().model,
            "rows": rows,
            "transport_gb_s": moved,
        }
        asked.json.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


def seats(workers: int) -> list[Placement]:
    return [Placement(node=p.node, cpus=(p.cpus or ())[:1]) for p in plan(None, workers, "core")]


def timed(workers: Pool[Any, Any], chunks: Any, wanted: list[Any]) -> float:
    begin = time.perf_counter()
    results = list(workers.map(chunks))
    seconds = time.perf_counter() - begin
    if not all(np.array_equal(a, b) for a, b in zip(results, wanted, strict=True)):
        raise SystemExit("the pool's results differ from those of this process")
    return seconds


def table(times: Samples, busy: Samples, free: Samples, items: int) -> list[dict[str, Any]]:
    one = statistics.median(times[min(times)]) * min(times)
    print(f"{'workers':>7}{'items/s':>10}{'speed-up':>10}{'efficiency':>12}{'busy':>7}{'alone':>9}{'of alone':>10}")
    rows = []
    for n, seconds in times.items():
        middle = statistics.median(seconds)
        share, limit = statistics.median(busy[n]), statistics.median(free[n])
        rate, gain = items / middle, one / middle
        print(f"{n:>7}{rate:>10.0f}{gain:>10.2f}{gain / n:>12.0%}{share:>7.0%}{limit:>9.0f}{rate / limit:>10.0%}")
        rows.append({"workers": n, "seconds": seconds, "busy": busy[n], "alone_items_s": free[n]})
    return rows


def transport(chunks: int = 20, size: int = 1 << 20) -> float:
    data = np.zeros(size)
    with pool(echo, ["cpu"], place=None) as workers:
        list(workers.map([data] * 3))
        begin = time.perf_counter()
        for _ in workers.map(data for _ in range(chunks)):
            pass
        return 2 * chunks * data.nbytes / (time.perf_counter() - begin) / 1e9


if __name__ == "__main__":
    main()
