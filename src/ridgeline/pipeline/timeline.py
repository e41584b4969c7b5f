"""When each batch went up, was computed and came back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

STAGES = ("h2d", "compute", "d2h")
EXCERPT = 12  # batches of it in a picture
KEPT = 1 << 16  # batches: a stream without end must not fill the memory with its own diary

Interval = tuple[float, float]


@dataclass(frozen=True)
class Intervals:
    """One batch: begin and end of each stage, in seconds since the stream began."""

    index: int
    h2d: Interval
    compute: Interval
    d2h: Interval


class Log:
    """The intervals of the last batches, in order."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, Sequence[float]]] = deque(maxlen=KEPT)

    def add(self, index: int, at: Sequence[float]) -> None:
        """Six moments: begin and end of H2D, compute, D2H."""
        self._kept.append((index, at))

    def all(self) -> list[Intervals]:
        return [Intervals(n, (at[0], at[1]), (at[2], at[3]), (at[4], at[5])) for n, at in self._kept]


def busy(timeline: Iterable[Intervals]) -> dict[str, float]:
    """Seconds each stage was at work, summed over the batches.

    >>> busy([Intervals(0, (0.0, 1.0), (1.0, 1.5), (1.5, 2.0)), Intervals(1, (1.0, 2.0), (2.0, 2.5), (2.5, 3.0))])
    {'h2d': 2.0, 'compute': 1.0, 'd2h': 1.0}
    """
    seconds = dict.fromkeys(STAGES, 0.0)
    for batch in timeline:
        for stage in STAGES:
            begin, end = getattr(batch, stage)
            seconds[stage] += end - begin
    return seconds


def excerpt(timeline: Sequence[Intervals], most: int = EXCERPT) -> dict[str, list[list[float]]]:
    """Some batches from the middle, stage by stage, in seconds since the first of them began: what a picture shows.

    >>> excerpt([Intervals(0, (1.0, 2.0), (2.0, 2.5), (2.5, 3.0))])
    {'h2d': [[0.0, 1.0]], 'compute': [[1.0, 1.5]], 'd2h': [[1.5, 2.0]]}
    """
    start = max(0, (len(timeline) - most) // 2)
    part = timeline[start : start + most]
    origin = min((batch.h2d[0] for batch in part), default=0.0)
    return {stage: [[round(t - origin, 9) for t in getattr(batch, stage)] for batch in part] for stage in STAGES}
