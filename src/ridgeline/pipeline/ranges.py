"""Names for stretches of time that a profiler shows (NVTX); nothing where there is no CUDA.

with span("warm-up"):
    ...                    # nsys profile ridgeline run experiment=quick_test
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def span(name: str) -> Iterator[None]:
    torch = sys.modules.get("torch")  # who has not loaded it has no CUDA either
    if torch is None or not torch.cuda.is_available():
        yield
        return
    torch.cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()
