"""Thread pool and bindings of `native/`: compare builds in processes that take turns.

    python benchmarks/threads.py                                  # this build alone
    python benchmarks/threads.py before=OLD/src after=NEW/src     # folders that hold a built `ridgeline` package
    python benchmarks/threads.py --rounds 7 before=… after=…

Each round starts one process per build, in turn. A process measures every case and reports the median time of a call.
The table shows the median over the rounds, the fastest and the slowest round, and the ratio to the first build.

Cases are resample of B trajectories x (100 -> 50) x 32 float32 and search over 100,000 x 384 vectors:
  loop       calls follow each other at once: the workers still spin
  pause      20 ms before each call: the workers sleep
  torch      a torch matmul before each call: torch's OpenMP workers spin on all cores
  nanobind   the same loop through the general nanobind binding, with `out` given
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

BATCHES = (1, 16, 256, 4096)
STAMPS, TARGETS, CHANNELS = 100, 50, 32
ROWS, DIM = 100_000, 384
CASE_S = 0.6  # time for one case in one process


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the thread pools and bindings of several builds.")
    parser.add_argument("builds", nargs="*", metavar="NAME=FOLDER", help="A folder with a built ridgeline package.")
    parser.add_argument("--rounds", type=int, default=5, help="Processes per build (default: 5).")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure_cases()))
        return
    builds = dict(build.split("=", 1) for build in options.builds) or {"this": ""}
    results: dict[str, list[dict[str, float]]] = {name: [] for name in builds}
    for _ in range(options.rounds):
        for name, folder in builds.items():
            results[name].append(run_process(folder))
    print_table(results)


def run_process(folder: str) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": folder} if folder else None
    command = [sys.executable, __file__, "--measure"]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    times: dict[str, float] = json.loads(output)
    return times


def print_table(results: dict[str, list[dict[str, float]]]) -> None:
    first = next(iter(results))
    print(f"{len(os.sched_getaffinity(0))} CPUs; microseconds per call: median (fastest to slowest round)")
    for case in results[first][0]:
        medians = {name: statistics.median(times[case] for times in rounds) for name, rounds in results.items()}
        cells = []
        for name, rounds in results.items():
            times = sorted(times[case] for times in rounds)
            ratio = medians[name] / medians[first]
            cells.append(f"{name} {medians[name]:9.1f} ({times[0]:.1f} to {times[-1]:.1f}) {ratio:5.2f} x")
        print(f"{case:28}{'   '.join(cells)}")


def measure_cases() -> dict[str, float]:
    import numpy as np
    import torch

    import ridgeline
    from ridgeline import native

    rng = np.random.default_rng(0)
    square = torch.randn(256, 256)
    times: dict[str, float] = {}
    for batch in BATCHES:
        values = rng.standard_normal((batch, STAMPS, CHANNELS)).astype(np.float32)
        stamps = 1.7e9 + np.cumsum(rng.uniform(0.001, 0.02, (batch, STAMPS)), 1)
        at = stamps[:, :1] + (stamps[:, -1:] - stamps[:, :1]) * np.linspace(0, 1, TARGETS)
        out = np.empty((batch, TARGETS, CHANNELS), np.float32)
        general = (
            values, stamps, at, out, None, None, None, None, [(0, CHANNELS, "linear")], "clamp", None, None, None, None,
            "float32", False, 0, True,
        )  # fmt: skip
        calls = {"": lambda v=values, t=stamps, a=at: ridgeline.resample(v, t, a)}
        tensors = [torch.from_numpy(a) for a in (values, stamps, at)]
        calls[" tensors"] = lambda x=tensors: ridgeline.resample(*x)
        for kind, call in calls.items():
            times[f"resample {batch}{kind}, loop"] = median_us(call)
        times[f"resample {batch}, nanobind"] = median_us(lambda g=general: native.resample(*g))
        times[f"resample {batch}, pause"] = median_us(calls[""], lambda: time.sleep(0.02))
        times[f"resample {batch}, torch"] = median_us(calls[""], lambda: torch.mm(square, square))
    vectors = rng.standard_normal((ROWS, DIM)).astype(np.float32)
    for spec in ("Flat", "IVF256,Flat"):
        index = ridgeline.Index(spec, metric="cosine")
        if "IVF" in spec:
            index.train(vectors[:20_000])
        index.add(vectors)
        for count in (1, 100):
            queries = rng.standard_normal((count, DIM)).astype(np.float32)
            times[f"search {spec} {count}, loop"] = median_us(lambda i=index, q=queries: i.search(q, 10))
    return times


def median_us(call: Callable[[], Any], before: Callable[[], Any] | None = None) -> float:
    """The median time of `call` in microseconds; `before` runs ahead of each call and does not count."""
    for _ in range(3):
        call()
    times, stop = [], time.perf_counter() + CASE_S
    while time.perf_counter() < stop or len(times) < 5:
        if before is not None:
            before()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


if __name__ == "__main__":
    main()
