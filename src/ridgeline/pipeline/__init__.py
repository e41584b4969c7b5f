"""Host → device → compute → host, overlapped; a pool of placed worker processes, one per GPU.

>>> import numpy as np
>>> from ridgeline.pipeline import stream
>>> halves = stream(({"x": np.full(2, n)} for n in (2.0, 4.0)), lambda b: {"half": b["x"] / 2}, device="cpu")
>>> [result["half"].tolist() for result in halves]
[[1.0, 1.0], [2.0, 2.0]]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.pipeline.batch_stream import BatchStream as BatchStream
    from ridgeline.pipeline.batch_stream import stream as stream
    from ridgeline.pipeline.cuda_graph import Fn as Fn
    from ridgeline.pipeline.cuda_graph import GraphRecording as GraphRecording
    from ridgeline.pipeline.nvtx_ranges import span as span
    from ridgeline.pipeline.pinned_memory import Staging as Staging
    from ridgeline.pipeline.pinned_memory import allocate_pinned as allocate_pinned
    from ridgeline.pipeline.shared_memory import Payload as Payload
    from ridgeline.pipeline.shared_memory import pack as pack
    from ridgeline.pipeline.timeline import STAGES as STAGES
    from ridgeline.pipeline.timeline import Intervals as Intervals
    from ridgeline.pipeline.timeline import compute_overlap as compute_overlap
    from ridgeline.pipeline.timeline import make_chrome_trace as make_chrome_trace
    from ridgeline.pipeline.timeline import sum_stage_seconds as sum_stage_seconds
    from ridgeline.pipeline.timeline import take_excerpt as take_excerpt
    from ridgeline.pipeline.worker import die_with_parent as die_with_parent
    from ridgeline.pipeline.worker import is_importing_main as is_importing_main
    from ridgeline.pipeline.worker_placement import is_integer as is_integer
    from ridgeline.pipeline.worker_pool import Pool as Pool
    from ridgeline.pipeline.worker_pool import pool as pool
    from ridgeline.pipeline.worker_process import Task as Task
    from ridgeline.pipeline.worker_process import WorkerProcess as WorkerProcess
    from ridgeline.pipeline.worker_process import WorkerStats as WorkerStats

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "batch_stream": ["BatchStream", "stream"],
        "cuda_graph": ["Fn", "GraphRecording"],
        "nvtx_ranges": ["span"],
        "pinned_memory": ["Staging", "allocate_pinned"],
        "shared_memory": ["Payload", "pack"],
        "timeline": [
            "Intervals",
            "STAGES",
            "compute_overlap",
            "make_chrome_trace",
            "sum_stage_seconds",
            "take_excerpt",
        ],
        "worker": ["die_with_parent", "is_importing_main"],
        "worker_placement": ["is_integer"],
        "worker_pool": ["Pool", "pool"],
        "worker_process": ["Task", "WorkerProcess", "WorkerStats"],
    },
)
