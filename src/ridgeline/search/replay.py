"""Searches of one shape, recorded and played back: the launches of a search take longer than a small one itself.

The first search of a shape runs plainly, the second is recorded as a CUDA graph, all others replay it. Queries are
copied to where the recording reads them, and answers from where it writes them, on the stream of whoever searches;
another stream waits for the last one, so one recording serves any number of threads in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

import torch

from ridgeline.kernels.search_queries import handed

MOST = 8  # shapes kept
SEEN = 512  # shapes remembered
LARGEST = 4096  # queries: beyond, launches do not matter

Answer = tuple[torch.Tensor, torch.Tensor]  # scores and rows
Steps = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]  # and the norms of the queries


class Recording:
    """One shape; `holds` is what it reads besides the engine's own tensors."""

    def __init__(self, queries: torch.Tensor, steps: Steps, device: Any, holds: Any) -> None:
        self.holds = holds
        self._lock = threading.Lock()
        self._place = torch.empty(queries.shape, dtype=queries.dtype, device=device)
        self._place.copy_(queries)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            steps(self._place)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._answer = steps(self._place)
        self._last = torch.cuda.current_stream()

    def __call__(self, queries: torch.Tensor) -> Answer:
        with self._lock:
            stream = torch.cuda.current_stream(self._place.device)
            if stream != self._last:
                stream.wait_stream(self._last)
                self._last = stream
            self._place.copy_(queries, non_blocking=True)
            self._graph.replay()
            return handed(*self._answer)


class Replays:
    """By shape; an engine's own, since an engine never changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: set[Hashable] = set()
        self._kept: dict[Hashable, Recording] = {}
        self.masks: list[Any] = []  # the last filters and ids, as they are on the GPU

    def get(self, key: Hashable, holds: Any) -> Recording | None:
        recording = self._kept.get(key)
        return recording if recording is not None and recording.holds is holds else None

    def search(self, key: Hashable, queries: torch.Tensor, steps: Steps, device: Any, holds: Any) -> Answer:
        """The answer of `steps`; the current device is `device`."""
        recording = self.get(key, holds)
        if recording is None:
            with self._lock:
                again = key in self._seen and len(queries) <= LARGEST
                if again:
                    if len(self._kept) >= MOST:
                        self._kept.pop(next(iter(self._kept)))
                    recording = self._kept[key] = Recording(queries, steps, device, holds)
                elif len(self._seen) < SEEN:
                    self._seen.add(key)
        return recording(queries) if recording is not None else handed(*steps(queries.to(device)))
