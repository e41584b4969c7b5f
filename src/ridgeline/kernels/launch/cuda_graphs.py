"""Record CUDA graphs in a process with several threads: one at a time, on a stream that nothing else uses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

# Held while a graph is recorded, and while one is released, whose pinned memory leaves an event in the same stream.
recording = threading.RLock()


@cache
def get_recording_stream(device: Any) -> Any:
    """The stream of all recordings. torch gives 32 streams in turn to all threads: work of another thread on the
    stream of a recording would become a part of it. Streams with a priority are others.
    """
    return torch.cuda.Stream(device, priority=-1)


def record_graph(steps: Callable[[], None], device: Any, pool: Any = None) -> torch.cuda.CUDAGraph:
    """Record the steps, which have run before: that compiled their kernels. `pool` is memory that graphs share."""
    # Another thread may load a model meanwhile: memory that it takes from CUDA would end a recording of mode "global".
    graph = torch.cuda.CUDAGraph()
    with recording, torch.cuda.device(device):
        stream = get_recording_stream(device)
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            steps()
    return graph
