"""Searches of one shape, recorded and played back: the launches of a search take longer than a small one itself.

The first search of a shape runs plainly, the second is recorded as a CUDA graph, all others replay it. Queries are
copied to where the recording reads them and answers from where it writes them, and each search is waited for before
the next may begin, so one recording serves any number of threads in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

MOST = 8  # shapes kept
LARGEST = 4096  # queries: beyond, launches do not matter

Answer = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # scores, rows, norms of the queries
Steps = Callable[[torch.Tensor], Answer]


@dataclass
class Recording:
    graph: Any
    queries: torch.Tensor
    answer: Answer
    norms: torch.Tensor  # pinned
    holds: Any  # what the recording reads besides the engine's own tensors

    def play(self, queries: torch.Tensor) -> Answer:
        self.queries.copy_(queries, non_blocking=True)
        self.graph.replay()
        scores, rows = self.answer[0].clone(), self.answer[1].clone()
        torch.cuda.current_stream(self.queries.device).synchronize()
        return scores, rows, self.norms


class Replays:
    """By shape; an engine's own, since an engine never changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: set[Hashable] = set()
        self._kept: dict[Hashable, Recording] = {}
        self.masks: list[Any] = []  # the last filters and ids, as they are on the GPU

    def search(self, key: Hashable, queries: torch.Tensor, steps: Steps, holds: Any) -> Answer:
        """The answer of `steps`, its norms in host memory. `holds` must be the same object for a key's every use."""
        with self._lock:
            recording = self._kept.get(key)
            if recording is not None and recording.holds is holds:
                return recording.play(queries)
            if key in self._seen and len(queries) <= LARGEST:
                if len(self._kept) >= MOST:
                    self._kept.pop(next(iter(self._kept)))
                recording = self._kept[key] = _recorded(queries, steps, holds)
                return recording.play(queries)
            if len(self._seen) >= 64 * MOST:
                self._seen.clear()
            self._seen.add(key)
        scores, rows, norms = steps(queries.to(_device(steps, queries)))
        return scores, rows, norms.cpu()


def _device(steps: Any, queries: torch.Tensor) -> Any:
    return getattr(steps, "device", queries.device)


def _recorded(queries: torch.Tensor, steps: Steps, holds: Any) -> Recording:
    device = _device(steps, queries)
    with torch.cuda.device(device):
        place = torch.empty(queries.shape, dtype=queries.dtype, device=device)
        place.copy_(queries)
        norms = torch.empty(len(queries), dtype=torch.float64, pin_memory=True)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            steps(place)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            answer = steps(place)
            norms.copy_(answer[2], non_blocking=True)
    return Recording(graph, place, answer, norms, holds)
