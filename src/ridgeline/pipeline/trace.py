"""A timeline as a Chrome trace: open it in chrome://tracing or Perfetto, one line per stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ridgeline.pipeline.timeline import STAGES, Intervals

NAMES = {"h2d": "to the device", "compute": "compute", "d2h": "back"}


def chrome_trace(timeline: Iterable[Intervals], process: str = "stream") -> dict[str, Any]:
    """Complete events in microseconds, a thread per stage; `json.dump` it.

    >>> trace = chrome_trace([Intervals(0, (0.0, 1e-3), (1e-3, 3e-3), (3e-3, 4e-3))])
    >>> [(e["name"], e["tid"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"]
    [('batch 0', 0, 0.0, 1000.0), ('batch 0', 1, 1000.0, 2000.0), ('batch 0', 2, 3000.0, 1000.0)]
    """
    events: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 0, "args": {"name": process}}]
    for line, stage in enumerate(STAGES):
        events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": line, "args": {"name": NAMES[stage]}})
    for batch in timeline:
        for line, stage in enumerate(STAGES):
            begin, end = getattr(batch, stage)
            span = {"ts": round(begin * 1e6, 3), "dur": round((end - begin) * 1e6, 3)}
            events.append({"name": f"batch {batch.index}", "cat": stage, "ph": "X", "pid": 0, "tid": line, **span})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def overlap(alone: Mapping[str, float], achieved: float) -> float:
    """The slowest stage by itself over what all of them together took: 1 is all that overlapping can give.

    >>> overlap({"h2d": 2.0, "compute": 3.0, "d2h": 1.0}, 4.0)
    0.75
    """
    return max(alone.values(), default=0.0) / achieved if achieved else 0.0
