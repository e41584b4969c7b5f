"""Names for stretches of time that a profiler shows (NVTX); nothing where there is no CUDA.

with span("warm-up"):
    ...                    # nsys profile ridgeline run experiment=quick_test
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


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


@cache  # asking CUDA each time would cost more than a small batch
def _nvtx() -> Any:
    import torch

    return torch.cuda.nvtx if torch.cuda.is_available() else None
