"""resample on the CPU for frames of many widths and types, beside torch eager, called in turn in one process; then with
rules and of other kinds, by itself.

    python benchmarks/trajectory_widths.py [ROUNDS]

A line for each: ours after torch has evicted the caches, ours once more right after it, torch's time over ours after
torch (medians over the rounds). float16 and bfloat16 are tensors, the others numpy's arrays; torch gets tensors. What
comes last is called in a loop and has no peer: it is for comparing builds.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import numpy as np
import torch
from trajectory_cpu import by_torch, time_call

import ridgeline

BATCH, STAMPS, TARGETS = 256, 100, 50
WIDTHS = {
    torch.float32: [1, 3, 7, 8, 14, 16, 21, 32, 48, 64],
    torch.float64: [7, 14, 16, 32],
    torch.float16: [7, 14, 32],
    torch.bfloat16: [7, 14, 32],
}


def main(rounds: int) -> None:
    rng = np.random.default_rng(0)
    times = 1.7e9 + np.cumsum(rng.uniform(0.001, 0.02, (BATCH, STAMPS)), 1)
    at = times[:, :1] + (times[:, -1:] - times[:, :1]) * np.linspace(0, 1, TARGETS)
    clocks = torch.from_numpy(times), torch.from_numpy(at)
    print(f"{BATCH} x ({STAMPS} -> {TARGETS}), float64 stamps, {torch.get_num_threads()} threads of torch")
    for dtype, widths in WIDTHS.items():
        for width in widths:
            tensor = torch.from_numpy(rng.standard_normal((BATCH, STAMPS, width))).to(dtype)
            ours = (tensor, *clocks) if dtype.itemsize == 2 else (tensor.numpy(), times, at)
            rows = []
            for k in range(rounds + 3):
                torch_s = time_call(lambda x=tensor: by_torch(x, *clocks))
                after, again = (time_call(lambda x=ours: ridgeline.resample(*x)) for _ in range(2))
                if k >= 3:
                    rows.append((after * 1e6, again * 1e6, torch_s / after))
            after, again, ratio = (statistics.median(column) for column in zip(*rows, strict=True))
            name = f"{str(dtype).removeprefix('torch.')} x {width}"
            print(f"{name:14s} {after:7.1f} us after torch {again:7.1f} us again, torch {ratio:5.1f} x", flush=True)
    for dtype in (np.float32, np.float16):
        for width in (8, 32):
            values = rng.standard_normal((BATCH, STAMPS, width)).astype(dtype)
            seconds_by_name = {
                name: statistics.median(
                    time_call(lambda x=values, h=how: ridgeline.resample(x, times, at, **h)) for _ in range(rounds)
                )
                for name, how in options(width).items()
            }
            words = "  ".join(f"{name} {seconds * 1e6:.0f}" for name, seconds in seconds_by_name.items())
            print(f"{np.dtype(dtype).name} x {width}, us: {words}", flush=True)


def options(width: int) -> dict[str, dict[str, Any]]:
    return {
        "plain": {},
        "mask": {"return_mask": True},
        "nan": {"outside": "nan"},
        "gap": {"max_gap": 0.5},
        "normalize": {"normalize": {"mean": np.zeros(width), "std": np.ones(width)}},
        "lengths": {"lengths": np.full(BATCH, STAMPS)},
        **{kind: {"kind": kind} for kind in ("previous", "nearest", "cubic", "angle", "slerp")},
        "slerp and linear": {"kind": [(slice(0, 4), "slerp")]},
    }


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 101)
