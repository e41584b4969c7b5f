"""The cost of a call of resample: as users call it, by its Python function, and by torch.

    python benchmarks/trajectory_calls.py

Contenders take turns of some calls each; the output has the medians and their ratios to ours. On a GPU a
call ends when the next could be made, as in a loop that keeps the device busy; `add_` is torch's smallest launch.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from trajectory_cpu import by_torch

import ridgeline
from ridgeline.trajectory import resampling

SIZES = ((1, 20, 10, 7), (16, 50, 50, 14), (256, 100, 50, 32))  # trajectories, stamps, targets, channels
TURNS, TURN_S = 60, 0.01
OURS = "as it is called"
Call = Callable[[], Any]


def main() -> None:
    print("torch", torch.__version__, "·", torch.get_num_threads(), "threads")
    behind = resampling._resample_any
    for size in SIZES:
        arrays = draw_arrays(*size)
        tensors = [torch.from_numpy(a) for a in arrays]
        out = torch.empty(size[0], size[2], size[3])
        race_calls(
            "{} × ({} → {}) × {}, float32, in host memory".format(*size),
            {
                OURS: functools.partial(ridgeline.resample, *tensors),
                "into out=": functools.partial(ridgeline.resample, *tensors, out=out),
                "Python function": functools.partial(behind, *tensors),
                "numpy's arrays": functools.partial(ridgeline.resample, *arrays),
                "torch eager": functools.partial(by_torch, *tensors),
            },
        )
    if torch.cuda.is_available():
        on_the_gpu(behind)


def on_the_gpu(behind: Any) -> None:
    print(torch.cuda.get_device_name())
    for dtype in (torch.bfloat16, torch.float32):
        for kind in ("linear", "cubic", "slerp"):
            values, times, at = (torch.from_numpy(a).cuda() for a in draw_arrays(256, 100, 50, 32))
            values, times, at = values.to(dtype), times.float(), at.float()
            out, one = torch.empty(256, 50, 32, device="cuda", dtype=dtype), torch.zeros(8, device="cuda")
            how: dict[str, Any] = {"kind": kind, "out": out, "check": False}
            call = functools.partial(ridgeline.resample, values, times, at, **how)
            for _ in range(3):
                call()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            race_calls(
                f"256 × (100 → 50) × 32, {dtype}, {kind}, on the GPU",
                {
                    OURS: call,
                    "Python function": functools.partial(behind, values, times, at, **how),
                    "a graph's replay": graph.replay,
                    "add_": functools.partial(one.add_, 1),
                },
                torch.cuda.synchronize,
            )


def draw_arrays(batch: int, stamps: int, targets: int, channels: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((batch, stamps, channels)).astype(np.float32)
    return [values, np.sort(rng.random((batch, stamps)), 1), np.sort(rng.random((batch, targets)), 1)]


def race_calls(title: str, contenders: dict[str, Call], settled: Call = lambda: None) -> None:
    counts = {name: count_calls(call, settled) for name, call in contenders.items()}
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    luck = np.random.default_rng(0)
    for _ in range(TURNS):
        for name in luck.permutation(list(contenders)).tolist():
            taken[name].append(turn(contenders[name], counts[name], settled))
    ours = statistics.median(taken[OURS])
    print(f"\n{title}")
    for name, turns in taken.items():
        median = statistics.median(turns)
        print(f"  {name:18}{1e6 * median:10.2f} µs{median / ours:8.2f} ×")


def turn(call: Call, count: int, settled: Call) -> float:
    settled()
    start = time.perf_counter()
    for _ in range(count):
        call()
    settled()
    return (time.perf_counter() - start) / count


def count_calls(call: Call, settled: Call) -> int:
    """That fill a turn; the first ones warm up."""
    turn(call, 3, settled)
    return max(1, round(TURN_S / turn(call, 10, settled)))


if __name__ == "__main__":
    main()
