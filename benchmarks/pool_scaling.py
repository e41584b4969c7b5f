"""How a pool scales over its workers: items/s and efficiency against one worker, on the CPU.

    python benchmarks/pool_scaling.py [--workers 1 2] [--chunks 48] [--rounds 5] [--json FILE]

The job is singular values of small matrices in float64: 1.2 MB in, 25 KB out, about 15 ms per chunk. Each worker runs
on one separate CPU. The numbers of workers take turns; the medians are printed. `alone` is the rate of the same number
of processes without any messages, measured in the same minute: on a shared machine it is below linear, and `of alone`
is the share that the pool reaches. `transport` sends 8 MB in each direction through one worker that does nothing.
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


def make_svd(device: str) -> Any:
    return lambda chunk: np.linalg.svd(chunk, compute_uv=False)


def make_svd_alone(device: str) -> Any:
    """The same work on local matrices, without messages: the limit of the CPUs at that time."""
    chunk = np.random.default_rng(3).normal(size=(ITEMS, SIDE, SIDE))

    def fn(count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            np.linalg.svd(chunk, compute_uv=False)
        return count * ITEMS / (time.perf_counter() - begin)

    return fn


def make_echo(device: str) -> Any:
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
    arguments = parser.parse_args()
    chunks = np.random.default_rng(3).normal(size=(arguments.chunks, ITEMS, SIDE, SIDE))
    expected = [np.linalg.svd(chunk, compute_uv=False) for chunk in chunks]
    times: Samples = {n: [] for n in arguments.workers}
    busy: Samples = {n: [] for n in arguments.workers}
    free: Samples = {n: [] for n in arguments.workers}
    for round_ in range(arguments.rounds):
        for n in arguments.workers if round_ % 2 else reversed(arguments.workers):
            with pool(make_svd, ["cpu"] * n, place=place_on_cores(n)) as workers:
                list(workers.map(chunks[: 2 * n]))
                before = sum(s.busy_s for s in workers.stats())
                seconds = time_map(workers, chunks, expected)
                times[n].append(seconds)
                busy[n].append((sum(s.busy_s for s in workers.stats()) - before) / seconds / n)
            with pool(make_svd_alone, ["cpu"] * n, place=place_on_cores(n)) as workers:
                list(workers.map([1] * n))
                free[n].append(sum(workers.map([arguments.chunks // n] * n)))
    rows = print_table(times, busy, free, arguments.chunks * ITEMS)
    transport = measure_transport()
    print(f"transport: {transport:.2f} GB/s in both directions, 8 MB a chunk, one worker")
    if arguments.json:
        raw = {
            "items": arguments.chunks * ITEMS,
            "cpus": cpus,
            "cpu": topology().model,
            "rows": rows,
            "transport_gb_s": transport,
        }
        arguments.json.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


def place_on_cores(workers: int) -> list[Placement]:
    return [Placement(node=p.node, cpus=(p.cpus or ())[:1]) for p in plan(None, workers, "core")]


def time_map(workers: Pool[Any, Any], chunks: Any, expected: list[Any]) -> float:
    begin = time.perf_counter()
    results = list(workers.map(chunks))
    seconds = time.perf_counter() - begin
    if not all(np.array_equal(a, b) for a, b in zip(results, expected, strict=True)):
        raise SystemExit("the pool's results differ from those of this process")
    return seconds


def print_table(times: Samples, busy: Samples, free: Samples, items: int) -> list[dict[str, Any]]:
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


def measure_transport(chunks: int = 20, size: int = 1 << 20) -> float:
    data = np.zeros(size)
    with pool(make_echo, ["cpu"], place=None) as workers:
        list(workers.map([data] * 3))
        begin = time.perf_counter()
        for _ in workers.map(data for _ in range(chunks)):
            pass
        return 2 * chunks * data.nbytes / (time.perf_counter() - begin) / 1e9


if __name__ == "__main__":
    main()
