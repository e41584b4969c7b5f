"""The timeline of a stream: when each batch is copied to the device, computed and copied back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STAGES = ("h2d", "compute", "d2h")
STAGE_NAMES = {"h2d": "to the device", "compute": "compute", "d2h": "back"}
EXCERPT = 12  # batches in a picture
MAX_BATCHES = 1 << 16  # so that an endless stream does not fill the memory with its log

Interval = tuple[float, float]


@dataclass(frozen=True)
class Intervals:
    """One batch: start and end of each stage, in seconds since the start of the stream."""

    index: int
    h2d: Interval
    compute: Interval
    d2h: Interval


class Log:
    """The intervals of the last batches, in order."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, Sequence[float]]] = deque(maxlen=MAX_BATCHES)

    def add(self, index: int, times: Sequence[float]) -> None:
        """Add six times: start and end of H2D, compute, D2H."""
        self._batches.append((index, times))

    def all(self) -> list[Intervals]:
        return [Intervals(n, (t[0], t[1]), (t[2], t[3]), (t[4], t[5])) for n, t in self._batches]


def sum_stage_seconds(timeline: Iterable[Intervals]) -> dict[str, float]:
    """Return the seconds of each stage, summed over the batches.

    >>> batches = [Intervals(0, (0.0, 1.0), (1.0, 1.5), (1.5, 2.0)), Intervals(1, (1.0, 2.0), (2.0, 2.5), (2.5, 3.0))]
    >>> sum_stage_seconds(batches)
    {'h2d': 2.0, 'compute': 1.0, 'd2h': 1.0}
    """
    seconds = dict.fromkeys(STAGES, 0.0)
    for batch in timeline:
        for stage in STAGES:
            begin, end = getattr(batch, stage)
            seconds[stage] += end - begin
    return seconds


def take_excerpt(timeline: Sequence[Intervals], most: int = EXCERPT) -> dict[str, list[list[float]]]:
    """Return up to `most` batches from the middle, by stage, in seconds since the first of them starts: for a picture.

    >>> take_excerpt([Intervals(0, (1.0, 2.0), (2.0, 2.5), (2.5, 3.0))])
    {'h2d': [[0.0, 1.0]], 'compute': [[1.0, 1.5]], 'd2h': [[1.5, 2.0]]}
    """
    start = max(0, (len(timeline) - most) // 2)
    part = timeline[start : start + most]
    origin = min((batch.h2d[0] for batch in part), default=0.0)
    return {stage: [[round(t - origin, 9) for t in getattr(batch, stage)] for batch in part] for stage in STAGES}


def make_chrome_trace(timeline: Iterable[Intervals], process: str = "stream") -> dict[str, Any]:
    """Return a Chrome trace for `json.dump`: complete events in microseconds, a thread per stage.

    chrome://tracing and Perfetto open it. `process` is the name of the process in the trace.

    >>> trace = make_chrome_trace([Intervals(0, (0.0, 1e-3), (1e-3, 3e-3), (3e-3, 4e-3))])
    >>> [(e["name"], e["tid"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"]
    [('batch 0', 0, 0.0, 1000.0), ('batch 0', 1, 1000.0, 2000.0), ('batch 0', 2, 3000.0, 1000.0)]
    """
    events: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 0, "args": {"name": process}}]
    for line, stage in enumerate(STAGES):
        events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": line, "args": {"name": STAGE_NAMES[stage]}})
    for batch in timeline:
        for line, stage in enumerate(STAGES):
            begin, end = getattr(batch, stage)
            span = {"ts": round(begin * 1e6, 3), "dur": round((end - begin) * 1e6, 3)}
            events.append({"name": f"batch {batch.index}", "cat": stage, "ph": "X", "pid": 0, "tid": line, **span})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def compute_overlap(stage_seconds: Mapping[str, float], total_seconds: float) -> float:
    """Return the time of the slowest stage alone over the time of all together: 1 is perfect overlap.

    >>> compute_overlap({"h2d": 2.0, "compute": 3.0, "d2h": 1.0}, 4.0)
    0.75
    """
    return max(stage_seconds.values(), default=0.0) / total_seconds if total_seconds else 0.0
