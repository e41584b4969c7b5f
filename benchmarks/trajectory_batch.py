"""The cost of a batch of `collate` for a worker, and for the process that receives it.

    python benchmarks/trajectory_batch.py

256 trajectories of 60 to 180 frames × 14 channels. "cross" is the work of torch's DataLoader between
the two: pickling and unpickling a batch, both in this process. Medians of 100.
"""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch.multiprocessing

import ridgeline


def main() -> None:
    torch.multiprocessing.set_sharing_strategy("file_system")  # a file descriptor can be read by another process only
    rng = np.random.default_rng(0)
    runs = [
        (np.cumsum(rng.integers(1, 9, frames)) * 10**6, rng.standard_normal((frames, 14)).astype(np.float32))
        for frames in rng.integers(60, 181, 256)
    ]
    dataset, how = ridgeline.TrajectoryDataset(runs), ridgeline.collate(steps=100, device="cpu", outside="clamp")
    samples = [dataset[i] for i in range(256)]
    packed = how.pack(samples)
    places = pickle.dumps(packed.origins)
    print_median("pack", lambda: how.pack(samples))
    print_median("cross", lambda: pickle.loads(ForkingPickler.dumps(packed)))  # noqa: S301
    print_median("places alone, read", lambda: pickle.loads(places))  # noqa: S301
    print_median("resample here", packed.resample)


def print_median(name: str, call: Callable[[], Any]) -> None:
    taken = []
    for _ in range(100):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    print(f"{name:20}{statistics.median(taken) * 1e3:8.3f} ms", flush=True)


if __name__ == "__main__":
    main()
