"""Split tokens into batches and run them through the encoder, overlapped with the copies.

A `Window` holds some thousands of texts, sorted by length and packed without padding. Its batches are slices of it, cut
by a budget of tokens, so making a batch or splitting it copies nothing. Texts of equal length are neighbours, which
attention needs.
"""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.embed.tokens import Tokens
from ridgeline.errors import BatchError, InputError, RidgelineError
from ridgeline.native import sort_by_length
from ridgeline.pipeline import Staging, stream, sum_stage_seconds

Run = tuple[int, int, int]  # first token, texts, tokens each


@dataclass(frozen=True)
class Window:
    """Texts by ascending length: row k was row `rows[k]` of the input."""

    tokens: Tokens
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Texts `first` to `last` of a window."""

    window: Window
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def ids(self) -> NDArray[np.int32]:
        offsets = self.window.tokens.offsets
        return self.window.tokens.ids[offsets[self.first] : offsets[self.last]]

    @property
    def offsets(self) -> NDArray[np.int64]:
        """The start of each text in `ids`, [n + 1]."""
        part = self.window.tokens.offsets[self.first : self.last + 1]
        from_zero: NDArray[np.int64] = part - part[0]
        return from_zero

    @property
    def rows(self) -> NDArray[np.int64]:
        return self.window.rows[self.first : self.last]

    @property
    def runs(self) -> tuple[Run, ...]:
        return find_runs(self.offsets)


def make_window(tokens: Tokens, first_row: int = 0) -> Window:
    """Sort texts by length and pack them in that order; texts of equal length keep their order."""
    begin, end = tokens.offsets[0], tokens.offsets[-1]
    ids = np.ascontiguousarray(tokens.ids[begin:end], np.int32)
    offsets = np.ascontiguousarray(tokens.offsets - begin, np.int64)
    packed, starts, order = np.empty_like(ids), np.empty_like(offsets), np.empty(len(tokens), np.int64)
    sort_by_length(ids, offsets, packed, starts, order)
    order += first_row
    return Window(Tokens(packed, starts), order)


def split_window(window: Window, budget: int) -> Iterator[Batch]:
    """Yield batches of at most `budget` tokens; a longer text is a batch of its own.

    The longest come first: a device with too little memory fails at once, and the last batches, which nothing overlaps,
    are short.
    """
    yield from split_batch(Batch(window, 0, len(window.rows)), budget)


def split_batch(batch: Batch, budget: int) -> Iterator[Batch]:
    """Yield parts of a batch of at most `budget` tokens, from its end to its start."""
    offsets, last = batch.window.tokens.offsets, batch.last
    while last > batch.first:
        first = int(np.searchsorted(offsets, offsets[last] - budget, side="left"))
        first = max(batch.first, min(first, last - 1))
        yield Batch(batch.window, first, last)
        last = first


def find_runs(offsets: NDArray[np.int64]) -> tuple[Run, ...]:
    """Return runs of neighbours of equal length: (first token, texts, tokens each).

    >>> find_runs(np.array([0, 2, 4, 7]))
    ((0, 2, 2), (4, 1, 3))
    """
    lengths = np.diff(offsets)
    heads = np.flatnonzero(np.diff(lengths, prepend=-1))
    counts = np.diff(heads, append=len(lengths))
    return tuple(zip(offsets[heads].tolist(), counts.tolist(), lengths[heads].tolist(), strict=True))


Compute = Callable[[Any, Any], dict[str, Any]]  # ids [T] and Packed → tensors by name
StoreOutputs = Callable[[Batch, dict[str, NDArray[Any]]], None]  # the memory of the arrays is reused


class BatchRunner:
    """Runs batches through an encoder. `budget` is halved permanently when the device runs out of memory."""

    def __init__(self, compute: Compute, device: Any, budget: int, staging: Staging | None = None) -> None:
        self._compute_outputs, self._device, self.budget, self._staging = compute, device, budget, staging
        self.budget_reduced = False
        self.stage_seconds: Counter[str] = Counter()  # of each stage, after the stream has ended
        self._in_flight: deque[Batch] = deque()  # on the device
        self._retries: deque[Batch] = deque()  # to run again in smaller parts

    def run(self, windows: Iterable[Any], store: StoreOutputs) -> Iterator[Batch]:
        """Yield every batch of every window after `store` has copied its outputs."""
        new_batches = (batch for window in windows for batch in split_window(window, self.budget))
        while True:
            try:
                take = partial(self._take, store)
                batches = self._feed(new_batches)
                with stream(batches, self._compute, device=self._device, take=take, staging=self._staging) as results:
                    yield from results
                    self.stage_seconds.update(sum_stage_seconds(results.timeline()))
                return
            except BatchError as error:
                if not is_out_of_memory(error.__cause__):
                    raise error.__cause__ if isinstance(error.__cause__, RidgelineError) else error from error.__cause__
            self._shrink()

    def _feed(self, new_batches: Iterator[Batch]) -> Iterator[dict[str, Any]]:
        while True:
            batch = self._retries.popleft() if self._retries else next(new_batches, None)
            if batch is None:
                return
            if len(batch.ids) > self.budget and len(batch) > 1:  # made before the budget was reduced
                self._retries.extendleft(reversed([*split_batch(batch, self.budget)]))
                continue
            self._in_flight.append(batch)
            yield {"ids": batch.ids, "offsets": batch.offsets}

    def _compute(self, tensors: dict[str, Any]) -> dict[str, Any]:
        from ridgeline.embed.layers import Packed

        # The stream pulls a batch and computes it before it pulls the next, so the last one pulled is this one.
        packed = Packed(tensors["offsets"], self._in_flight[-1].runs)
        return self._compute_outputs(tensors["ids"], packed)

    def _take(self, store: StoreOutputs, index: int, outputs: dict[str, Any]) -> Batch:
        batch = self._in_flight.popleft()
        store(batch, {name: tensor.numpy() for name, tensor in outputs.items()})
        return batch

    def _shrink(self) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        failed = [*self._in_flight]
        self._in_flight.clear()
        largest = max(len(batch.ids) for batch in failed)
        if all(len(batch) == 1 for batch in failed):
            raise InputError(f"one text of {largest} tokens does not fit into the memory of {self._device}.")
        self.budget = max(1, min(self.budget, largest) // 2)
        if not self.budget_reduced:
            self.budget_reduced = True
            warnings.warn(
                f"out of memory on {self._device}: batches are reduced to {self.budget} tokens, and further if needed; "
                "the work continues.",
                stacklevel=2,
            )
        self._retries = deque([*(part for batch in failed for part in split_batch(batch, self.budget)), *self._retries])


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether the error is out of memory, on a device or on the host."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "not enough memory" in str(error)
