"""The one home of timing.

A timer runs `step` a number of times and says how many nanoseconds passed: on the CPU by the monotonic
clock, on a GPU by events on the stream, so that both ends of the measurement are on the device's own clock.
`batch_for` finds how many calls one sample must hold so that reading the clock is no part of the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from ridgeline.errors import MissingExtra, unknown

OVERHEAD_SHARE = 0.002  # the clock's own cost may be at most this part of a sample
LOOKS = 3  # at a sample, before it is called long enough
PREEMPTED_NS = 100_000_000  # no scheduler keeps a process waiting for longer, as a rule

now_ns = time.perf_counter_ns


class Timer(Protocol):
    def time(self, step: Callable[[], object], calls: int) -> int:
        """Nanoseconds for `calls` calls of `step`."""
        ...

    def flush(self) -> None:
        """Drive earlier data out of the caches."""
        ...


def clock_cost_ns(rounds: int = 2000) -> float:
    """What one reading of the clock plus an empty loop turn costs here."""
    best = float("inf")
    for _ in range(5):
        start = now_ns()
        for _ in range(rounds):
            now_ns()
        best = min(best, (now_ns() - start) / rounds)
    return best


def batch_for(timer: Timer, step: Callable[[], object], at_least_ns: int, most: int = 1 << 20) -> int:
    """Calls per sample so that a sample lasts `at_least_ns` (by doubling, so it is a power of two).

    A call that was preempted looks long; so a sample that seems long enough is looked at again.
    """
    calls = 1
    while calls < most and least_ns(timer, step, calls, at_least_ns) < at_least_ns:
        calls *= 2
    return calls


def least_ns(timer: Timer, step: Callable[[], object], calls: int, at_least_ns: int = 0) -> int:
    """How long a sample lasts when nobody interrupts it; what is shorter than `at_least_ns` is looked at once only."""
    took = timer.time(step, calls)
    for _ in range(LOOKS - 1):
        if not at_least_ns <= took < PREEMPTED_NS:
            break
        took = min(took, timer.time(step, calls))
    return took


def timer(device: str = "cpu", cache_bytes: int = 64 << 20) -> Timer:
    """The clock of a device: "cpu", "cuda" or "cuda:1"."""
    if device == "cpu":
        return CpuTimer(cache_bytes)
    if device.partition(":")[0] == "cuda":
        return CudaTimer(device)
    raise unknown("device", device, ["cpu", "cuda", "cuda:N"])


class CpuTimer:
    """Wall time by the monotonic nanosecond clock."""

    def __init__(self, cache_bytes: int = 64 << 20) -> None:
        self._cache_bytes = cache_bytes
        self._evictor: Any = None

    def time(self, step: Callable[[], object], calls: int) -> int:
        turns = range(calls)
        start = now_ns()
        for _ in turns:
            step()
        return now_ns() - start

    def flush(self) -> None:
        """Write a buffer of twice the last-level cache."""
        from ridgeline.native import write

        if self._evictor is None:
            import numpy as np

            self._evictor = np.empty(2 * self._cache_bytes, np.uint8)
        write(self._evictor, now_ns())


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
        self._evictor: Any = None

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
        if self._evictor is None:
            size = getattr(torch.cuda.get_device_properties(self._device), "L2_cache_size", 64 << 20)
            self._evictor = torch.empty(2 * size, dtype=torch.uint8, device=self._device)
        self._evictor.fill_(now_ns() & 0x7F)
