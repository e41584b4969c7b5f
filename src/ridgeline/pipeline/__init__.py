"""Host → device → compute → host, overlapped; a pool of placed workers, one per GPU.

>>> import numpy as np
>>> halves = stream(({"x": np.full(2, n)} for n in (2.0, 4.0)), lambda b: {"half": b["x"] / 2}, device="cpu")
>>> [result["half"].tolist() for result in halves]
[[1.0, 1.0], [2.0, 2.0]]
"""

from __future__ import annotations

from ridgeline.pipeline.pool import Pool, pool
from ridgeline.pipeline.post import WorkerStats
from ridgeline.pipeline.staging import Staging, pinned
from ridgeline.pipeline.stream import Stream, stream
from ridgeline.pipeline.timeline import STAGES, Intervals, busy, excerpt
from ridgeline.pipeline.trace import chrome_trace, overlap

__all__ = [
    "STAGES",
    "Intervals",
    "Pool",
    "Staging",
    "Stream",
    "WorkerStats",
    "busy",
    "chrome_trace",
    "excerpt",
    "overlap",
    "pinned",
    "pool",
    "stream",
]
