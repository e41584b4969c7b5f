"""fn as a CUDA graph: its kernels are recorded once for each slot of the ring and then replayed in one call.

The host needs longer to launch a model of many small kernels than the GPU to compute it; a replay removes that. The
first batch of a shape runs fn, the next ones record it. Each slot has a separate recording, with its inputs and results
at fixed addresses, because several batches are in progress. The slot (`Staging`) keeps the recording for later streams
of the same fn. If the shape changes from batch to batch, fn runs each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ridgeline.errors import BatchError
from ridgeline.pipeline.batch import Tensors, check_result, get_storage_address, refuse_reuse

Fn = Callable[[Tensors], Mapping[str, Any]]
Shapes = list[tuple[str, Any, Any]]  # name, shape and type of each tensor of a batch


class GraphRecording:
    """One fn over batches of one shape, with fixed memory for inputs and results."""

    __slots__ = ("addresses", "device", "fn", "inputs", "replay", "result", "shapes")

    def __init__(
        self, index: int, fn: Fn, sources: Tensors, device: Any, stream: Any, busy_addresses: Iterable[int]
    ) -> None:
        import torch

        self.fn, self.device, self.shapes = fn, device, list_shapes(sources)
        self.inputs = {n: torch.empty(t.shape, dtype=t.dtype, device=device) for n, t in sources.items()}
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                result = check_result(index, fn(dict(self.inputs)), device)
                refuse_reuse(index, result, set(busy_addresses))
                self.result = {name: tensor.contiguous() for name, tensor in result.items()}
        except Exception as error:
            cause = error if isinstance(error, BatchError) else error.__context__  # the end of a capture hides it
            if isinstance(cause, BatchError):
                raise cause from None
            reason = f"{type(error).__name__}: {error}"
            message = f"fn cannot be recorded as a CUDA graph ({reason}); stream without graph=True"
            raise BatchError(index, message) from error
        self.addresses = [get_storage_address(tensor) for tensor in self.result.values()]
        self.replay = graph.replay


class GraphRecorder:
    """Chooses the recording for a batch."""

    def __init__(self, fn: Fn, device: Any, stream: Any) -> None:
        self._fn, self._device, self._stream = fn, device, stream
        self._last_shapes: Shapes | None = None

    def get(self, index: int, sources: Tensors, slot: Any, pending: Iterable[Any]) -> GraphRecording | None:
        """The recording of the slot, made now if the batch before had the same shapes; None: call fn."""
        shapes, last = list_shapes(sources), self._last_shapes
        self._last_shapes = shapes
        recording: GraphRecording | None = slot.recording
        if (
            recording is not None
            and recording.fn is self._fn
            and recording.device == self._device
            and recording.shapes == shapes
        ):
            return recording
        if shapes != last:
            return None
        slot.recording = recording = None  # frees its memory before the new one allocates
        busy_addresses = (address for batch in pending for address in batch.addresses)
        recording = GraphRecording(index, self._fn, sources, self._device, self._stream, busy_addresses)
        slot.recording = recording
        return recording


def list_shapes(batch: Tensors) -> Shapes:
    return [(name, tensor.shape, tensor.dtype) for name, tensor in batch.items()]
