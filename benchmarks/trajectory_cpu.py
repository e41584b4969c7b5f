"""resample on the CPU beside torch eager and np.interp, called in turn in one process, and what a call costs by itself.

    python benchmarks/trajectory_cpu.py [ROUNDS]

The order alternates; ratios are medians over the rounds. "small" is a call of two frames: nearly all of it is the way
in and out. After torch has evicted the caches that way costs many times what it costs in a loop. "bytes" resamples
nothing: torch's threads, awake already, add every second frame to the one before it, so they read all values and write
a new tensor as large as the answer. Like ours it has values of its own, which torch's resampling does not touch. It is
what torch makes of the memory, not what the memory allows.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import ridgeline

BATCH, STAMPS, TARGETS, CHANNELS = 256, 100, 50, 32


def main(rounds: int) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((BATCH, STAMPS, CHANNELS)).astype(np.float32)
    times = 1.7e9 + np.cumsum(rng.uniform(0.001, 0.02, (BATCH, STAMPS)), 1)
    at = times[:, :1] + (times[:, -1:] - times[:, :1]) * np.linspace(0, 1, TARGETS)
    tiny = (values[:1, :2].copy(), times[:1, :2].copy(), at[:1, :2].copy())
    tensors = [torch.tensor(a) for a in (values, times, at)]

    def ours() -> None:
        ridgeline.resample(values, times, at)

    def small() -> None:
        ridgeline.resample(*tiny)

    def eager() -> None:
        by_torch(*tensors)

    tensor = torch.tensor(values)

    def bytes_only() -> None:
        torch.add(tensor[:, ::2], tensor[:, 1::2])

    def loop() -> None:
        out = np.empty((BATCH, TARGETS, CHANNELS), np.float32)
        for b in range(BATCH):
            for d in range(CHANNELS):
                out[b, :, d] = np.interp(at[b], times[b], values[b, :, d])

    shape = f"{BATCH} x ({STAMPS} -> {TARGETS}) x {CHANNELS}"
    print(f"{shape} float32, float64 stamps, {torch.get_num_threads()} threads of torch")
    race("torch eager", eager, "ours", ours, rounds)
    race("torch eager", eager, "small", small, rounds)
    race("torch eager", eager, "bytes", bytes_only, rounds)
    race("np.interp loop", loop, "ours", ours, max(3, rounds // 30))
    alone = statistics.median(time_call(small) for _ in range(rounds))
    print(f"small, called in a loop: {alone * 1e6:.1f} us")
    alone = statistics.median(time_call(ours) for _ in range(rounds))
    print(f"ours, called in a loop: {alone * 1e6:.1f} us")


def race(peer: str, run_peer: Callable[[], None], name: str, run_ours: Callable[[], None], rounds: int) -> None:
    run_peer(), run_ours()
    pairs = []
    for k in range(rounds):
        if k % 2:
            b = time_call(run_ours)
            a = time_call(run_peer)
        else:
            a = time_call(run_peer)
            b = time_call(run_ours)
        pairs.append((a, b))
    a, b = (statistics.median(side) * 1e6 for side in zip(*pairs, strict=True))
    ratio = statistics.median(x / y for x, y in pairs)
    least = min(y for _, y in pairs) * 1e6
    print(f"{peer} {a:.0f} us, {name} {b:.1f} us (least {least:.1f}), ratio {ratio:.1f}")


def time_call(step: Callable[[], None]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def by_torch(values: Any, times: Any, at: Any) -> Any:
    right = torch.searchsorted(times, at, right=True).clamp(1, times.shape[1] - 1)
    a, b = times.gather(1, right - 1), times.gather(1, right)
    weight = ((at - a) / (b - a)).clamp(0, 1).unsqueeze(-1).to(values.dtype)
    frame = right.unsqueeze(-1).expand(-1, -1, values.shape[2])
    left = values.gather(1, frame - 1)
    return left + (values.gather(1, frame) - left) * weight


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 201)
