"""resample in turn with torch, whose threads keep every CPU busy for a while after each operation.

    python benchmarks/trajectory_beside.py [SECONDS]

Torch eager, ours, ours again; medians, the slowest tenth of ours, and torch's total time ÷ our total time after it. One
line per second, then one for all.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from trajectory_cpu import by_torch, time_call

import ridgeline

BATCH, STAMPS, TARGETS, CHANNELS = 256, 100, 50, 32


def main(seconds: int) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((BATCH, STAMPS, CHANNELS)).astype(np.float32)
    times = 1.7e9 + np.cumsum(rng.uniform(0.001, 0.02, (BATCH, STAMPS)), 1)
    at = times[:, :1] + (times[:, -1:] - times[:, :1]) * np.linspace(0, 1, TARGETS)
    tensors = [torch.from_numpy(a) for a in (values, times, at)]
    print(f"{BATCH} x ({STAMPS} -> {TARGETS}) x {CHANNELS}, float32, {torch.get_num_threads()} threads of torch")
    ridgeline.resample(values, times, at)  # the first call of all imports what it needs
    everything = []
    for second in range(1, seconds + 1):
        rounds, until = [], time.perf_counter() + 1
        while time.perf_counter() < until:
            torch_s = time_call(lambda: by_torch(*tensors))
            after, again = (time_call(lambda: ridgeline.resample(values, times, at)) for _ in range(2))
            rounds.append((torch_s, after, again))
        print_rounds(f"second {second}", rounds)
        everything += rounds
    print_rounds("all", everything)


def print_rounds(name: str, rounds: list[tuple[float, ...]]) -> None:
    torch_s, after, again = np.array(rounds).T * 1e6
    print(
        f"{name:10s} torch {np.median(torch_s):7.1f} us, ours after it {np.median(after):6.1f} us "
        f"(a tenth {np.percentile(after, 90):6.1f} and more), again {np.median(again):6.1f} us, "
        f"torch {torch_s.sum() / after.sum():5.1f} x",
        flush=True,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
