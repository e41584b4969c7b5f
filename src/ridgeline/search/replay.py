"""Searches of one shape, recorded and played back: the launches of a search take longer than a small one itself.

The first search of a shape runs plainly, the second is recorded, all others replay it, on the stream of whoever
searches; another stream waits for the last one, so one recording serves any number of threads in turn. One query is
a few kernels, launched directly: they read it where it is and write answers where they are to be. Others are a CUDA
graph: queries are copied to where it reads them, and answers from where it writes them.

One query over bytes with finer rows beside them reads half of each byte first (`kernels/search_sketch`). The sketch is
made with the first such recording, and kept if it suffices for most of some stored rows, asked as queries.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ridgeline.kernels.launch import Sequel
from ridgeline.kernels.search import handed, sketch_of
from ridgeline.search.arrays import Array
from ridgeline.search.cuda_steps import Answer, Steps

MOST = 8  # shapes kept
SEEN = 512  # shapes remembered
LARGEST = 4096  # queries: beyond, launches do not matter
TRIED = 32  # rows as queries
ENOUGH = 0.8  # of them: a sketch that does not suffice costs half a scan more


class Recording:
    """One shape; `holds` is what it reads besides the engine's own tensors."""

    def __init__(self, queries: torch.Tensor, steps: Steps, device: Any, holds: Any) -> None:
        self.holds, self.many = holds, len(queries)
        self._steps = steps  # whose tensors the graph reads
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

    def again(self) -> None:
        """For the queries that are there: what benchmarks time on the GPU."""
        self._graph.replay()

    def __call__(self, queries: torch.Tensor) -> Answer:
        with self._lock:
            stream = torch.cuda.current_stream(self._place.device)
            if stream != self._last:
                stream.wait_stream(self._last)
                self._last = stream
            self._place.copy_(queries, non_blocking=True)
            self._graph.replay()
            return handed(*self._answer)


class Direct:
    """The same for one query, as launches."""

    def __init__(self, queries: torch.Tensor, steps: Steps, device: Any, holds: Any) -> None:
        self.holds = holds
        self._lock = threading.Lock()
        self._dtype, self._device = queries.dtype, torch.device(device)
        self._index = self._device.index or 0
        given, out = queries.to(device).contiguous(), steps.room(device)
        self._own, self.many = (given, *out), 1
        self._sequel = Sequel(lambda: steps.short(given, out), self._own, steps.early)
        self._stream = torch.cuda.current_stream()
        self._host: list[torch.Tensor] | None = None  # the same three, in memory of the host that the GPU reaches

    def __call__(self, queries: torch.Tensor) -> Answer:
        if torch.cuda.current_device() != self._index:
            with torch.cuda.device(self._index):
                return self(queries)
        if queries.dtype != self._dtype or not queries.is_contiguous() or not queries.is_cuda or queries.is_neg():
            queries = queries.to(self._device, self._dtype).resolve_neg().contiguous()
        with self._lock:
            stream = raw_stream(self._index)
            if stream != self._stream.cuda_stream:
                self._moved()
            at = queries.data_ptr()
            self._sequel.begin(stream, at)
            scores, rows = torch.empty_like(self._own[1]), torch.empty_like(self._own[2])
            self._sequel.end(stream, at, scores.data_ptr(), rows.data_ptr())
            return scores, rows

    def on_host(self, query: Array) -> tuple[Array, Array]:
        """The same for a query that is a NumPy array: the kernels read it from, and write to, memory of the host."""
        if torch.cuda.current_device() != self._index:
            with torch.cuda.device(self._index):
                return self.on_host(query)
        with self._lock:
            if self._host is None:
                self._host = [torch.empty_like(t, device="cpu", pin_memory=True) for t in self._own]
            given, scores, rows = self._host
            with np.errstate(over="ignore", invalid="ignore"):  # what does not fit finds nothing
                given.numpy()[...] = query
            if raw_stream(self._index) != self._stream.cuda_stream:
                self._moved()
            self._sequel(self._stream.cuda_stream, given.data_ptr(), scores.data_ptr(), rows.data_ptr())
            self._stream.synchronize()
            return scores.numpy().copy(), rows.numpy().copy()

    def again(self) -> None:
        """For the query it was recorded with: what benchmarks time on the GPU."""
        self._sequel(raw_stream(self._index), *(t.data_ptr() for t in self._own))

    def _moved(self) -> None:
        """To another stream, which waits for the last one; its tensors are not to be reused before that has ended."""
        stream = torch.cuda.current_stream()
        stream.wait_stream(self._stream)
        for tensor in self._sequel.tensors:
            tensor.record_stream(stream)
        self._stream = stream


Recorded = Recording | Direct


def raw_stream(device: int) -> int:
    """The current stream's handle, without an object made for it."""
    return int(torch._C._cuda_getCurrentRawStream(device))


def recorded(queries: torch.Tensor, steps: Steps, device: Any, holds: Any) -> Recorded:
    if steps.is_short(queries):
        try:
            return Direct(queries, steps, device, holds)
        except (AttributeError, TypeError, KeyError, RuntimeError):  # a Triton or a driver that does it otherwise
            pass
    return Recording(queries, steps, device, holds)


class Replays:
    """By shape; an engine's own, since an engine never changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: set[Hashable] = set()
        self._kept: dict[Hashable, Recorded] = {}
        self._sketch: torch.Tensor | None = None
        self._sketching = True  # as long as nothing says that it does not pay
        self.masks: list[Any] = []  # the last filters and ids, as they are on the GPU

    def get(self, key: Hashable, holds: Any) -> Recorded | None:
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
                    recording = self._kept[key] = recorded(queries, self._sketched(queries, steps), device, holds)
                elif len(self._seen) < SEEN:
                    self._seen.add(key)
        return recording(queries) if recording is not None else handed(*steps(queries.to(device)))

    @property
    def nbytes(self) -> int:
        return 0 if self._sketch is None else self._sketch.nbytes

    def _sketched(self, queries: torch.Tensor, steps: Steps) -> Steps:
        """The same steps, with a sketch where that pays."""
        if not (self._sketching and steps.is_short(queries) and steps.may_sketch):
            return steps
        if self._sketch is None:
            try:
                made = replace(steps, sketch=sketch_of(steps.stored.codes.rows))
                self._sketching = suffices(made)
            except torch.OutOfMemoryError:
                self._sketching = False
            if not self._sketching:
                return steps
            self._sketch = made.sketch
        return replace(steps, sketch=self._sketch)


def suffices(steps: Steps) -> bool:
    """Whether the sketch does for most of some stored rows."""
    count = steps.stored.count
    rows = torch.arange(0, count, max(1, count // TRIED))[:TRIED].tolist()
    enough = 0
    for row in rows:
        query = steps.stored.values(torch.tensor([row], device=steps.stored.codes.buffer.device))
        enough += int(steps.sketched(query, steps.room(query.device))[1])
    return enough >= ENOUGH * len(rows)
