"""Host → device → compute → host, overlapped; a pool of placed workers, one per GPU.

>>> import numpy as np
>>> halves = stream(({"x": np.full(2, n)} for n in (2.0, 4.0)), lambda b: {"half": b["x"] / 2}, device="cpu")
>>> [result["half"].tolist() for result in halves]
[[1.0, 1.0], [2.0, 2.0]]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.pipeline.ranges import span as span
    from ridgeline.pipeline.recording import Fn as Fn
    from ridgeline.pipeline.recording import Recording as Recording
    from ridgeline.pipeline.shared import Parcel as Parcel
    from ridgeline.pipeline.shared import pack as pack
    from ridgeline.pipeline.staging import Staging as Staging
    from ridgeline.pipeline.staging import pinned as pinned
    from ridgeline.pipeline.streaming import Stream as Stream
    from ridgeline.pipeline.streaming import stream as stream
    from ridgeline.pipeline.timeline import STAGES as STAGES
    from ridgeline.pipeline.timeline import Intervals as Intervals
    from ridgeline.pipeline.timeline import busy as busy
    from ridgeline.pipeline.timeline import excerpt as excerpt
    from ridgeline.pipeline.trace import chrome_trace as chrome_trace
    from ridgeline.pipeline.trace import overlap as overlap
    from ridgeline.pipeline.worker import die_with_parent as die_with_parent
    from ridgeline.pipeline.worker_placement import is_whole as is_whole
    from ridgeline.pipeline.worker_pool import Pool as Pool
    from ridgeline.pipeline.worker_pool import pool as pool
    from ridgeline.pipeline.worker_process import Post as Post
    from ridgeline.pipeline.worker_process import Task as Task
    from ridgeline.pipeline.worker_process import WorkerStats as WorkerStats

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ranges": ["span"],
        "recording": ["Fn", "Recording"],
        "shared": ["Parcel", "pack"],
        "staging": ["Staging", "pinned"],
        "streaming": ["Stream", "stream"],
        "timeline": ["Intervals", "STAGES", "busy", "excerpt"],
        "trace": ["chrome_trace", "overlap"],
        "worker": ["die_with_parent"],
        "worker_placement": ["is_whole"],
        "worker_pool": ["Pool", "pool"],
        "worker_process": ["Post", "Task", "WorkerStats"],
    },
)
