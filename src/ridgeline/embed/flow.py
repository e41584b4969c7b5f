"""Batches through the encoder, overlapped, and smaller ones when the memory does not suffice."""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.embed.batches import Batch, batches_of, cut
from ridgeline.errors import BatchError, InputError, RidgelineError
from ridgeline.pipeline import Staging, busy, stream

Put = Callable[[Batch, NDArray[np.float32]], None]  # the vectors lie in memory that is used again


class Flow:
    """Feeds batches to the encoder. `budget` shrinks, once and for all, when the device runs out of memory."""

    def __init__(self, encoder: Any, device: Any, budget: int, staging: Staging | None = None) -> None:
        self._encoder, self._device, self.budget, self._staging = encoder, device, budget, staging
        self.shrank = False
        self.busy: Counter[str] = Counter()  # seconds of each stage of the stream, when it has ended
        self._waiting: deque[Batch] = deque()  # handed to the device, not answered yet
        self._again: deque[Batch] = deque()  # to be done anew, in smaller pieces

    def run(self, windows: Iterable[Any], put: Put) -> Iterator[Batch]:
        """Every batch of every window, once `put` has had its vectors, float32 [n, dim], to bring them away."""
        fresh = (batch for window in windows for batch in batches_of(window, self.budget))
        while True:
            try:
                take = partial(self._take, put)
                feed = self._feed(fresh)
                with stream(feed, self._compute, device=self._device, take=take, staging=self._staging) as results:
                    yield from results
                    self.busy.update(busy(results.timeline()))
                return
            except BatchError as error:
                if not out_of_memory(error.__cause__):
                    raise error.__cause__ if isinstance(error.__cause__, RidgelineError) else error from error.__cause__
            self._shrink()

    def _feed(self, fresh: Iterator[Batch]) -> Iterator[dict[str, Any]]:
        while True:
            batch = self._again.popleft() if self._again else next(fresh, None)
            if batch is None:
                return
            if len(batch.ids) > self.budget and len(batch) > 1:  # planned before the budget shrank
                self._again.extendleft(reversed([*cut(batch, self.budget)]))
                continue
            self._waiting.append(batch)
            yield {"ids": batch.ids, "offsets": batch.offsets}

    def _compute(self, tensors: dict[str, Any]) -> dict[str, Any]:
        from ridgeline.embed.layers import Packed

        # The stream pulls a batch and computes it before it pulls the next, so the last one pulled is this one.
        packed = Packed(tensors["offsets"], self._waiting[-1].runs)
        return {"vectors": self._encoder(tensors["ids"], packed)}

    def _take(self, put: Put, index: int, found: dict[str, Any]) -> Batch:
        batch = self._waiting.popleft()
        put(batch, found["vectors"].numpy())
        return batch

    def _shrink(self) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        failed = [*self._waiting]
        self._waiting.clear()
        largest = max(len(batch.ids) for batch in failed)
        if all(len(batch) == 1 for batch in failed):
            raise InputError(f"one text of {largest} tokens does not fit into the memory of {self._device}.")
        self.budget = max(1, min(self.budget, largest) // 2)
        if not self.shrank:
            self.shrank = True
            warnings.warn(
                f"out of memory on {self._device}: batches are cut to {self.budget} tokens, and further if need be; "
                "the work goes on.",
                stacklevel=2,
            )
        self._again = deque([*(part for batch in failed for part in cut(batch, self.budget)), *self._again])


def out_of_memory(error: BaseException | None) -> bool:
    """Whether a device, or the host's allocator, said so."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "not enough memory" in str(error)
