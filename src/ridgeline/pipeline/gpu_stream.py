"""The stream on a GPU: one batch is copied to the device while another is computed and a third is copied back.

It uses three CUDA streams and a ring of pinned slots. The slot of a batch, its inputs and its results on the device
stay allocated until the host knows that the copy back has ended, so neither the ring nor torch's allocator can reuse
them too early. For small batches the host is the bottleneck: events are reused, CUDA streams are set by number instead
of entered, errors are caught by `try`, and constant properties are read once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from ridgeline.errors import BatchError
from ridgeline.pipeline.batch import (
    Out,
    Take,
    Tensors,
    check_result,
    enumerate_batches,
    get_out_tensors,
    get_storage_address,
    make_batch_error,
    refuse_reuse,
)
from ridgeline.pipeline.cuda_graph import Fn, GraphRecorder, GraphRecording
from ridgeline.pipeline.nvtx_ranges import is_profiled, wrap_stage
from ridgeline.pipeline.pinned_memory import Slot, Staging, borrow_slots, is_pinned
from ridgeline.pipeline.timeline import Log


@dataclass(slots=True)
class BatchInFlight:
    """A batch in progress, with all the memory it uses."""

    index: int
    sources: Tensors  # pinned: in the ring, or the caller's
    inputs: Tensors  # on the device
    result: Tensors  # on the device
    addresses: list[int]  # storage addresses of the result
    landing: Tensors  # pinned: the copy engine writes here
    targets: Tensors  # the caller's tensors for the result, by name
    events: list[Any]  # six: start and end of H2D, compute, D2H


def stream_on_gpu(
    batches: Iterable[Mapping[str, Any]],
    fn: Fn,
    device: Any,
    depth: int,
    out: Out | None,
    take: Take | None,
    staging: Staging | None,
    log: Log,
    graph: bool = False,
) -> Iterator[Any]:
    """`depth` batches are in progress while the caller has a result; one more slot is being filled."""
    with borrow_slots(staging, depth + 1) as ring:
        pipeline = _GpuPipeline(device, ring, fn if graph else None)
        yield from _run_batches(pipeline, batches, fn, depth, out, take, log)


def _run_batches(
    pipeline: _GpuPipeline,
    batches: Iterable[Mapping[str, Any]],
    fn: Fn,
    depth: int,
    out: Out | None,
    take: Take | None,
    log: Log,
) -> Iterator[Any]:
    pending: deque[BatchInFlight] = deque()
    source = enumerate_batches(batches)
    failure: BatchError | None = None
    try:
        while True:
            try:
                index, batch = next(source)
                pending.append(pipeline.submit(index, batch, fn, out, pending))
                del batch
            except StopIteration:
                break
            except BatchError as error:  # earlier results are valid: yield them first, as a plain loop would
                failure = error
                break
            if len(pending) > depth:
                yield pipeline.finish(pending.popleft(), take, log)
        while pending:
            yield pipeline.finish(pending.popleft(), take, log)
        if failure is not None:
            raise failure
    finally:
        pipeline.drain()


class _GpuPipeline:
    """The three CUDA streams, the ring of slots with their events, and the event at the start of the stream."""

    def __init__(self, device: Any, ring: list[Slot], graph_fn: Fn | None = None) -> None:
        import torch

        self._empty, self._device = torch.empty, device
        self._up, self._compute, self._down = self._streams = _get_cuda_streams(device)
        self._select_up, self._select_compute, self._select_down = map(make_stream_setter, self._streams)
        self._caller = CallerStream(device)
        self._ring = ring
        # One set of events per slot for the whole stream: a batch reads its events before its slot is used again.
        self._events = [[torch.cuda.Event(enable_timing=True) for _ in range(6)] for _ in ring]
        self._caller_event = torch.cuda.Event()
        self._origin = torch.cuda.Event(enable_timing=True)
        self._origin.record(self._up)
        self._profiled = is_profiled()
        self._recorder = GraphRecorder(graph_fn, device, self._compute) if graph_fn is not None else None

    def submit(
        self, index: int, batch: Tensors, fn: Fn, out: Out | None, pending: Iterable[BatchInFlight]
    ) -> BatchInFlight:
        """Queue the copy to the device, the computation and the copy back; nothing here waits for the GPU."""
        place = index % len(self._ring)
        slot, events = self._ring[place], self._events[place]
        caller = self._caller.get()
        copy_up, compute, copy_down = self._copy_up, self._run_fn, self._copy_down
        if self._profiled:
            copy_up, compute = wrap_stage("h2d", copy_up), wrap_stage("compute", compute)
            copy_down = wrap_stage("d2h", copy_down)
        stage = "its copy to the device"
        try:
            self._caller_event.record(caller)
            sources = _pin_batch(batch, slot)
            recording = self._recorder.get(index, sources, slot, pending) if self._recorder is not None else None
            inputs = copy_up(index, sources, recording, events)
            stage = "fn"
            result, addresses = compute(index, inputs, fn, recording, pending, events)
            targets = get_out_tensors(index, out, result)
            stage = "its copy back"
            landing = copy_down(index, result, targets, slot, events)
        except BatchError:
            raise
        except Exception as error:
            raise make_batch_error(index, stage, error) from error
        finally:
            self._caller.restore()
        return BatchInFlight(index, sources, inputs, result, addresses, landing, targets, events)

    def _copy_up(self, index: int, sources: Tensors, recording: GraphRecording | None, events: list[Any]) -> Tensors:
        self._select_up()
        if recording is not None:
            inputs = recording.inputs
        else:
            inputs = {n: self._empty(t.shape, dtype=t.dtype, device=self._device) for n, t in sources.items()}
        events[0].record(self._up)
        for name, tensor in sources.items():
            inputs[name].copy_(tensor, non_blocking=True)
        events[1].record(self._up)
        return inputs

    def _run_fn(
        self,
        index: int,
        inputs: Tensors,
        fn: Fn,
        recording: GraphRecording | None,
        pending: Iterable[BatchInFlight],
        events: list[Any],
    ) -> tuple[Tensors, list[int]]:
        self._select_compute()
        self._compute.wait_event(self._caller_event)  # the caller's stream may still compute what fn uses
        self._compute.wait_event(events[1])
        events[2].record(self._compute)
        if recording is not None:
            recording.replay()
            result, addresses = recording.result, recording.addresses
        else:
            result = check_result(index, fn(dict(inputs)), self._device)
            refuse_reuse(index, result, {address for other in pending for address in other.addresses})
            result = {name: tensor.contiguous() for name, tensor in result.items()}
            addresses = [get_storage_address(tensor) for tensor in result.values()]
        events[3].record(self._compute)
        return result, addresses

    def _copy_down(self, index: int, result: Tensors, targets: Tensors, slot: Slot, events: list[Any]) -> Tensors:
        landing = {
            name: targets[name]
            if name in targets and is_pinned(targets[name])
            else slot.get_buffer("out", name, tensor.shape, tensor.dtype)
            for name, tensor in result.items()
        }
        self._select_down()
        self._down.wait_event(events[3])
        events[4].record(self._down)
        for name, tensor in result.items():
            landing[name].copy_(tensor, non_blocking=True)
        events[5].record(self._down)
        return landing

    def finish(self, batch: BatchInFlight, take: Take | None, log: Log) -> Any:
        """Wait for a batch; return its results in memory that the ring does not use, or the value of `take`."""
        stage = "its way through the device"
        try:
            batch.events[5].synchronize()
            since = self._origin.elapsed_time
            log.add(batch.index, [since(event) / 1e3 for event in batch.events])
            if take is not None:
                stage = "take"
                return take(batch.index, batch.landing)
            stage = "its way back"
            result = {}
            for name, landed in batch.landing.items():
                target = batch.targets.get(name)
                result[name] = (
                    landed.clone() if target is None else landed if target is landed else target.copy_(landed)
                )
            return result
        except BatchError:
            raise
        except Exception as error:
            raise make_batch_error(batch.index, stage, error) from error

    def drain(self) -> None:
        """Wait for all queued work; an error of the device was raised before."""
        for cuda_stream in self._streams:
            with suppress(RuntimeError):
                cuda_stream.synchronize()


def _pin_batch(batch: Tensors, slot: Slot) -> Tensors:
    """The caller's tensor if the copy engine can read it, else a copy in the slot."""
    return {
        name: tensor if is_pinned(tensor) else slot.get_buffer("in", name, tensor.shape, tensor.dtype).copy_(tensor)
        for name, tensor in batch.items()
    }


@cache
def _get_cuda_streams(device: Any) -> tuple[Any, ...]:
    """The same three for every stream of a device: torch's allocator keeps memory for each CUDA stream it has seen."""
    import torch

    return tuple(torch.cuda.Stream(device) for _ in range(3))


# The current CUDA stream is read and set by number, with one call each. torch.cuda.current_stream makes an object each
# time and torch.cuda.set_stream reads three properties of one: for a small batch that is a large part of the host's
# time. A torch without these private calls gets the public ones.

SetStream = Callable[[], object]  # makes its CUDA stream current, and the device of the stream with it


def make_stream_setter(cuda_stream: Any) -> SetStream:
    import torch

    set_by_number = getattr(torch._C, "_cuda_setStream", None)
    if set_by_number is None:
        return partial(torch.cuda.set_stream, cuda_stream)
    names = ("stream_id", "device_index", "device_type")
    return partial(set_by_number, **{name: getattr(cuda_stream, name) for name in names})


class CallerStream:
    """The CUDA stream and device that are current when the caller submits a batch; restored afterwards."""

    def __init__(self, device: Any) -> None:
        import torch

        self._cuda, self._device = torch.cuda, device
        self._get_numbers = getattr(torch._C, "_cuda_getCurrentStream", None)
        self._numbers: Any = None
        self._stream: Any = None
        self._set_stream: SetStream | None = None
        self._caller_device: Any = None

    def get(self) -> Any:
        """The caller's current CUDA stream; read for every batch, since it may change."""
        self._caller_device = self._cuda.current_device()
        numbers = self._get_numbers(self._device.index) if self._get_numbers is not None else None
        if numbers is None or numbers != self._numbers:
            self._stream = self._cuda.current_stream(self._device)
            self._numbers, self._set_stream = numbers, make_stream_setter(self._stream)
        return self._stream

    def restore(self) -> None:
        """Make the stream and device current that `get` has read."""
        if self._set_stream is not None:
            self._set_stream()
        if self._caller_device != self._device.index:  # setting a stream also sets its device
            self._cuda.set_device(self._caller_device)
