"""The times of the stages of a step, as in a record: {stage: [ns of each step]}."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from ridgeline.machine import now_ns

MAX_STEPS = 64  # only the last steps are recorded
MAX_PROFILED, MAX_PROFILED_NS = 9, 500_000_000  # profiled steps, and the time after which no more are run


def collect_stages(steps: Iterable[Mapping[str, int]]) -> dict[str, list[int]]:
    """Collect the times of steps by stage; a stage that a step does not have counts 0.

    >>> collect_stages([{"read": 3, "hash": 4}, {"read": 5}])
    {'read': [3, 5], 'hash': [4, 0]}
    """
    rows = list(steps)
    names = dict.fromkeys(name for step in rows for name in step)
    return {name: [int(step.get(name, 0)) for step in rows] for name in names}


class StageClock:
    """Measures stages: `clock("products")` ends a stage. On a GPU it waits for the queued work, so it is for profiled
    steps, not for timed ones."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.ns: Counter[str] = Counter()
        self._wait()
        self._last = now_ns()

    def __call__(self, stage: str) -> None:
        self._wait()
        now = now_ns()
        self.ns[stage] += now - self._last
        self._last = now

    def _wait(self) -> None:
        if self._device != "cpu":
            import torch

            torch.cuda.synchronize(self._device)


def profile_stages(
    reset: Callable[[], None], step: Callable[[StageClock], object], device: str
) -> dict[str, list[int]]:
    """Measure the stages of a step several times, after a warm-up; each time after a reset, like timed steps."""
    reset()
    step(StageClock(device))
    steps: list[Counter[str]] = []
    while not steps or (len(steps) < MAX_PROFILED and sum(sum(ns.values()) for ns in steps) < MAX_PROFILED_NS):
        reset()
        clock = StageClock(device)
        step(clock)
        steps.append(clock.ns)
    return collect_stages(steps)
