"""fn as a CUDA graph: what it asks of the GPU is recorded once for each slot of the ring and then played in one call.

A model of many small kernels takes its host longer to launch than its GPU to compute; played, it does not. The first
batch of a shape is computed plainly, the next ones are recorded. Each slot has a recording of its own, with inputs and
answers where it left them, since several batches are under way; it is kept with the slot (`Staging`) for later streams
of the same fn. Shapes that change from batch to batch are computed plainly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ridgeline.errors import BatchError
from ridgeline.pipeline.batch import Tensors, answered, memory, refuse_reuse

Fn = Callable[[Tensors], Mapping[str, Any]]
Shapes = list[tuple[str, Any, Any]]  # name, shape and type of each tensor of a batch


class Recording:
    """One fn over batches of one shape, in memory of its own."""

    __slots__ = ("answer", "device", "fn", "held", "inputs", "play", "shapes")

    def __init__(self, index: int, fn: Fn, sources: Tensors, device: Any, stream: Any, held: Iterable[int]) -> None:
        import torch

        self.fn, self.device, self.shapes = fn, device, shapes(sources)
        self.inputs = {n: torch.empty(t.shape, dtype=t.dtype, device=device) for n, t in sources.items()}
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                answer = answered(index, fn(dict(self.inputs)), device)
                refuse_reuse(index, answer, set(held))
                self.answer = {name: tensor.contiguous() for name, tensor in answer.items()}
        except Exception as error:
            told = error if isinstance(error, BatchError) else error.__context__  # what an end of recording hides
            if isinstance(told, BatchError):
                raise told from None
            said = f"fn cannot be recorded as a CUDA graph ({type(error).__name__}: {error}); stream without graph=True"
            raise BatchError(index, said) from error
        self.held = [memory(tensor) for tensor in self.answer.values()]
        self.play = graph.replay


class Recorder:
    """Which recording serves a batch."""

    def __init__(self, fn: Fn, device: Any, stream: Any) -> None:
        self._fn, self._device, self._stream = fn, device, stream
        self._last: Shapes | None = None

    def of(self, index: int, sources: Tensors, slot: Any, pending: Iterable[Any]) -> Recording | None:
        """The slot's, made now if a batch like this has just gone through; None: call fn."""
        seen, last = shapes(sources), self._last
        self._last = seen
        kept: Recording | None = slot.recording
        if kept is not None and kept.fn is self._fn and kept.device == self._device and kept.shapes == seen:
            return kept
        if seen != last:
            return None
        slot.recording = kept = None  # its memory goes before the new one's comes
        held = (place for flight in pending for place in flight.held)
        slot.recording = Recording(index, self._fn, sources, self._device, self._stream, held)
        made: Recording = slot.recording
        return made


def shapes(batch: Tensors) -> Shapes:
    return [(name, tensor.shape, tensor.dtype) for name, tensor in batch.items()]
