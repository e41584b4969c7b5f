"""Seconds by the clock of the GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch


def time_on_device(step: Callable[[], Any], repeats: int = 20, rounds: int = 5) -> float:
    """Seconds per step on the device, one after the other; the median of several rounds."""
    for _ in range(3):
        step()
    samples = []
    for _ in range(rounds):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(repeats):
            step()
        last.record()
        torch.cuda.synchronize()
        samples.append(first.elapsed_time(last) / 1e3 / repeats)
    return float(statistics.median(samples))
