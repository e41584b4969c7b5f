"""NVTX ranges: names for spans of time in a profiler; they do nothing without CUDA.

with span("warm-up"):
    ...                    # nsys profile ridgeline run experiment=quick_test

Under a profiler each batch of a stream also names its three stages ("h2d 7", "compute 7", "d2h 7"). RIDGELINE_NVTX=1
names them without a profiler, RIDGELINE_NVTX=0 never. Otherwise a batch has no cost for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, TypeVar

# Profilers set these variables for the processes that they start: NVTX itself, and Nsight Systems.
PROFILER_VARIABLES = ("NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
Result = TypeVar("Result")


@contextmanager
def span(name: str) -> Iterator[None]:
    """Name the time inside the `with` in a profiler."""
    nvtx = _get_nvtx() if "torch" in sys.modules else None  # a process without torch has no CUDA
    if nvtx is None:
        yield
        return
    nvtx.range_push(name)
    try:
        yield
    finally:
        nvtx.range_pop()


def is_profiled() -> bool:
    """Whether each batch names its stages: the environment decides, and CUDA is needed."""
    setting = os.environ.get("RIDGELINE_NVTX", "")
    enabled = setting != "0" if setting else any(os.environ.get(name) for name in PROFILER_VARIABLES)
    return enabled and "torch" in sys.modules and _get_nvtx() is not None


def wrap_stage(stage: str, function: Callable[..., Result]) -> Callable[..., Result]:
    """Wrap `function` in a range that is named after the stage and the first argument, the batch number."""

    @wraps(function)
    def run_in_range(index: int, *rest: Any) -> Result:
        with span(f"{stage} {index}"):
            return function(index, *rest)

    return run_in_range


@cache  # a query of CUDA each time would cost more than a small batch
def _get_nvtx() -> Any:
    import torch

    return torch.cuda.nvtx if torch.cuda.is_available() else None
