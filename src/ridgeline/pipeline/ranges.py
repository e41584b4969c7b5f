"""Names for stretches of time that a profiler shows (NVTX); nothing where there is no CUDA.

with span("warm-up"):
    ...                    # nsys profile ridgeline run experiment=quick_test

Under a profiler each batch of a stream has its three stages named too ("h2d 7", "compute 7", "d2h 7"); RIDGELINE_NVTX=1
asks for them without one, RIDGELINE_NVTX=0 has none. Otherwise a batch pays nothing for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, TypeVar

# What profilers leave in the environment of what they start: NVTX's own way in, and Nsight Systems' session.
PROFILED = ("NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
Result = TypeVar("Result")


@contextmanager
def span(name: str) -> Iterator[None]:
    nvtx = _nvtx() if "torch" in sys.modules else None  # who has not loaded torch has no CUDA either
    if nvtx is None:
        yield
        return
    nvtx.range_push(name)
    try:
        yield
    finally:
        nvtx.range_pop()


def profiled() -> bool:
    """Whether every batch is to be named: by the environment, where there is CUDA."""
    said = os.environ.get("RIDGELINE_NVTX", "")
    wanted = said != "0" if said else any(os.environ.get(name) for name in PROFILED)
    return wanted and "torch" in sys.modules and _nvtx() is not None


def named(stage: str, do: Callable[..., Result]) -> Callable[..., Result]:
    """`do` within a range named after its stage and its first argument, the batch's number."""

    @wraps(do)
    def within(index: int, *rest: Any) -> Result:
        with span(f"{stage} {index}"):
            return do(index, *rest)

    return within


@cache  # asking CUDA each time would cost more than a small batch
def _nvtx() -> Any:
    import torch

    return torch.cuda.nvtx if torch.cuda.is_available() else None
