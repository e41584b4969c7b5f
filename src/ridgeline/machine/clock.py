"""Timers: all timing in this package goes through here.

A timer calls `step` a number of times and returns the nanoseconds that passed: on the CPU by the monotonic clock,
on a GPU by events on the stream, so that start and end are read on the clock of the device. `choose_calls`
returns the number of calls per sample at which reading the clock no longer affects the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from ridgeline.errors import MissingExtra, unknown

OVERHEAD_SHARE = 0.002  # reading the clock may cost at most this share of a sample
MAX_REPEATS = 3  # measurements of one sample before it counts as long enough
PREEMPTED_NS = 100_000_000  # a scheduler rarely stops a process for longer

now_ns = time.perf_counter_ns


class Timer(Protocol):
    """Measures calls of a function on one device."""

    def time(self, step: Callable[[], object], calls: int) -> int:
        """Nanoseconds for `calls` calls of `step`."""
        ...

    def flush(self) -> None:
        """Remove earlier data from the caches."""
        ...


def measure_clock_cost_ns(rounds: int = 2000) -> float:
    """Nanoseconds that one reading of the clock and one empty loop iteration cost."""
    best = float("inf")
    for _ in range(5):
        start = now_ns()
        for _ in range(rounds):
            now_ns()
        best = min(best, (now_ns() - start) / rounds)
    return best


def choose_calls(timer: Timer, step: Callable[[], object], at_least_ns: int, most: int = 1 << 20) -> int:
    """Calls of `step` per sample so that a sample lasts `at_least_ns`: a power of two, at most `most`.

    A preempted call looks long; so a sample that seems long enough is measured again.
    """
    calls = 1
    while calls < most and measure_least_ns(timer, step, calls, at_least_ns) < at_least_ns:
        calls *= 2
    return calls


def measure_least_ns(timer: Timer, step: Callable[[], object], calls: int, at_least_ns: int = 0) -> int:
    """Nanoseconds of the shortest of up to three samples; a sample shorter than `at_least_ns` is measured once."""
    elapsed_ns = timer.time(step, calls)
    for _ in range(MAX_REPEATS - 1):
        if not at_least_ns <= elapsed_ns < PREEMPTED_NS:
            break
        elapsed_ns = min(elapsed_ns, timer.time(step, calls))
    return elapsed_ns


def make_timer(device: str = "cpu", cache_bytes: int = 64 << 20) -> Timer:
    """Return the timer of a device ("cpu", "cuda" or "cuda:N"); raises InputError for other names."""
    if device == "cpu":
        return CpuTimer(cache_bytes)
    if device.partition(":")[0] == "cuda":
        return CudaTimer(device)
    raise unknown("device", device, ["cpu", "cuda", "cuda:N"])


class CpuTimer:
    """Wall time by the monotonic nanosecond clock."""

    def __init__(self, cache_bytes: int = 64 << 20) -> None:
        self._cache_bytes = cache_bytes
        self._flush_buffer: Any = None

    def time(self, step: Callable[[], object], calls: int) -> int:
        repeats = range(calls)
        start = now_ns()
        for _ in repeats:
            step()
        return now_ns() - start

    def flush(self) -> None:
        """Write a buffer of twice the last-level cache."""
        from ridgeline.native import write

        if self._flush_buffer is None:
            import numpy as np

            self._flush_buffer = np.empty(2 * self._cache_bytes, np.uint8)
        write(self._flush_buffer, now_ns())


class CudaTimer:
    """Device time by CUDA events on the current stream; ends with the device idle."""

    def __init__(self, device: str = "cuda") -> None:
        try:
            import torch
        except ImportError:
            raise MissingExtra("timing on a GPU", "torch") from None
        self._torch = torch
        self._device = torch.device(device)
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        self._flush_buffer: Any = None

    def time(self, step: Callable[[], object], calls: int) -> int:
        with self._torch.cuda.device(self._device):
            self._torch.cuda.synchronize()
            self._start.record()
            for _ in range(calls):
                step()
            self._end.record()
            self._end.synchronize()
        milliseconds: float = self._start.elapsed_time(self._end)
        return max(1, round(milliseconds * 1e6))

    def flush(self) -> None:
        """Write a buffer of twice the L2 cache."""
        torch = self._torch
        if self._flush_buffer is None:
            size = getattr(torch.cuda.get_device_properties(self._device), "L2_cache_size", 64 << 20)
            self._flush_buffer = torch.empty(2 * size, dtype=torch.uint8, device=self._device)
        self._flush_buffer.fill_(now_ns() & 0x7F)
