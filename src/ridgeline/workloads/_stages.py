"""What the stages of a step took, as a record keeps it: {stage: [ns of each step]}."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from ridgeline.machine import now_ns

KEPT = 64  # of the last steps
MOST, MOST_NS = 9, 500_000_000  # laps of a step taken apart, and the time after which no more are made


def stages_of(steps: Iterable[Mapping[str, int]]) -> dict[str, list[int]]:
    """Of steps that were clocked while they were timed; a stage that one of them did without took no time there.

    >>> stages_of([{"read": 3, "hash": 4}, {"read": 5}])
    {'read': [3, 5], 'hash': [4, 0]}
    """
    held = list(steps)
    names = dict.fromkeys(name for step in held for name in step)
    return {name: [int(step.get(name, 0)) for step in held] for name in names}


class Laps:
    """A stop-watch: `laps("products")` says that a stage has ended. On a GPU it waits for what was queued, so it is for
    steps that are taken apart, not for those that are timed."""

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


def taken_apart(reset: Callable[[], None], step: Callable[[Laps], object], device: str) -> dict[str, list[int]]:
    """A step stage by stage, some times after a first one that warms up, each after a reset like the timed ones."""
    reset()
    step(Laps(device))
    found: list[Counter[str]] = []
    while not found or (len(found) < MOST and sum(sum(ns.values()) for ns in found) < MOST_NS):
        reset()
        laps = Laps(device)
        step(laps)
        found.append(laps.ns)
    return stages_of(found)
