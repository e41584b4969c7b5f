"""Measure how resampling scales with P processes, each with its share and one core or one GPU.

python examples/resample_scaling.py             # 1, 2, … processes, as many as there are GPUs, else cores (at most 4)
python examples/resample_scaling.py 1 2 4 8
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import ridgeline
from ridgeline.trajectory import on_device

TRAJECTORIES, FRAMES, CHANNELS, STEPS = 2048, 100, 32, 50
SECONDS = 0.5  # of measuring per row


def made_up() -> list[tuple[np.ndarray, np.ndarray]]:
    """Trajectories of 50 to 100 frames with uneven stamps."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(FRAMES // 2, FRAMES + 1, TRAJECTORIES)
    return [(np.cumsum(rng.uniform(0.005, 0.015, n)), rng.standard_normal((n, CHANNELS), np.float32)) for n in lengths]


def work(rank: int, world: int, gpus: int, begin: Any, answers: Any) -> None:
    """One process: its own core or GPU, its own share, batch after batch; answers (trajectories, seconds)."""
    if gpus:
        device = f"cuda:{rank}"
    else:
        device = "cpu"
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dataset = ridgeline.TrajectoryDataset(made_up())
    sampler = dataset.share(rank, world)
    how = ridgeline.collate(steps=STEPS, device=device)
    loader = on_device(DataLoader(dataset, batch_size=128, sampler=sampler, collate_fn=how))
    done = sum(len(batch) for batch in loader)  # warm
    begin.wait()
    start, done, epoch = time.perf_counter(), 0, 0
    while time.perf_counter() - start < SECONDS:
        epoch += 1
        sampler.set_epoch(epoch)
        for batch in loader:
            done += len(batch)
        float(batch.values[0, 0, 0])  # a GPU has finished when its last number is here
    answers.put((done, time.perf_counter() - start))


def rate(world: int, gpus: int) -> float:
    """Trajectories per second of `world` processes together."""
    start = multiprocessing.get_context("spawn" if gpus else "fork")
    begin, answers = start.Barrier(world), start.Queue()
    ranks = [start.Process(target=work, args=(rank, world, gpus, begin, answers)) for rank in range(world)]
    for process in ranks:
        process.start()
    rank_results = [answers.get(timeout=120) for _ in ranks]
    for process in ranks:
        process.join()
    return sum(done / seconds for done, seconds in rank_results)


def main() -> None:
    gpus = torch.cuda.device_count()
    most = gpus or min(4, len(os.sched_getaffinity(0)))
    worlds = [int(word) for word in sys.argv[1:]] or sorted({1, 2, most} & set(range(1, most + 1)))
    if gpus and max(worlds) > gpus:
        raise SystemExit(f"{max(worlds)} processes need as many GPUs; there are {gpus}.")
    place = "GPU" if gpus else "core"
    print(f"{TRAJECTORIES} trajectories of {FRAMES // 2} to {FRAMES} × {CHANNELS} → {STEPS}, one {place} per process")
    print(f"{'processes':>9} {'trajectories/s':>15} {'speed-up':>9} {'efficiency':>11}")
    base = None
    for world in worlds:
        now = rate(world, gpus)
        base = base or now / world
        print(f"{world:>9} {now:>15,.0f} {now / base:>9.2f} {now / base / world:>11.0%}")


if __name__ == "__main__":
    main()
