"""The stream on a GPU: one batch goes up while another is computed and a third comes back.

Three CUDA streams and a ring of pinned slots. A batch's slot, its inputs and its answers on the device are held
until its copy back has ended on the host's own word, so nothing can be reused too early: neither by the ring nor
by torch's allocator. Of a small batch the host is the bottleneck: on its way events are reused, streams set by number
and not entered, errors caught by `try`, and what does not change is asked once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from ridgeline.errors import BatchError
from ridgeline.pipeline.batch import Out, Take, Tensors, answered, blaming, memory, numbered, refuse_reuse, targets
from ridgeline.pipeline.current import Caller, turn
from ridgeline.pipeline.ranges import named, profiled
from ridgeline.pipeline.recording import Fn, Recorder, Recording
from ridgeline.pipeline.staging import Slot, Staging, borrowed, is_ready
from ridgeline.pipeline.timeline import Log


@dataclass(slots=True)
class Flight:
    """A batch under way, with all the memory it uses."""

    index: int
    sources: Tensors  # pinned: the ring's, or the caller's
    inputs: Tensors  # on the device
    answer: Tensors  # on the device
    held: list[int]  # where the answer's memory begins
    landing: Tensors  # pinned: where the copy engine writes
    room: Tensors  # where the caller wants it, by name
    marks: list[Any]  # six events: begin and end of H2D, compute, D2H


def overlapped(
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
    """`depth` batches are under way while the caller has a result; one more slot is being filled."""
    with borrowed(staging, depth + 1) as ring:
        yield from _through(_Lanes(device, ring, fn if graph else None), batches, fn, depth, out, take, log)


def _through(
    lanes: _Lanes,
    batches: Iterable[Mapping[str, Any]],
    fn: Fn,
    depth: int,
    out: Out | None,
    take: Take | None,
    log: Log,
) -> Iterator[Any]:
    pending: deque[Flight] = deque()
    source = numbered(batches)
    failure: BatchError | None = None
    try:
        while True:
            try:
                index, given = next(source)
                pending.append(lanes.submit(index, given, fn, out, pending))
                del given
            except StopIteration:
                break
            except BatchError as error:  # what came before it is still good: hand it out first, as a plain loop does
                failure = error
                break
            if len(pending) > depth:
                yield lanes.retire(pending.popleft(), take, log)
        while pending:
            yield lanes.retire(pending.popleft(), take, log)
        if failure is not None:
            raise failure
    finally:
        lanes.drain()


class _Lanes:
    """The three streams, the ring with the marks of its slots, and the moment they began."""

    def __init__(self, device: Any, ring: list[Slot], recorded: Fn | None = None) -> None:
        import torch

        self._empty, self._device = torch.empty, device
        self._up, self._compute, self._down = self._streams = _streams(device)
        self._turn_up, self._turn_compute, self._turn_down = map(turn, self._streams)
        self._caller = Caller(device)
        self._ring = ring
        # Kept for the whole stream: a batch reads its marks before its slot is used again.
        self._marks = [[torch.cuda.Event(enable_timing=True) for _ in range(6)] for _ in ring]
        self._called = torch.cuda.Event()
        self._origin = torch.cuda.Event(enable_timing=True)
        self._origin.record(self._up)
        self._profiled = profiled()
        self._recorder = Recorder(recorded, device, self._compute) if recorded is not None else None

    def submit(self, index: int, given: Tensors, fn: Fn, out: Out | None, pending: Iterable[Flight]) -> Flight:
        """Queue a batch's way up, its computation and its way back; nothing here waits for the GPU."""
        place = index % len(self._ring)
        slot, marks = self._ring[place], self._marks[place]
        caller = self._caller.stream()
        go_up, go_through, go_down = self._go_up, self._go_through, self._go_down
        if self._profiled:
            go_up, go_through, go_down = named("h2d", go_up), named("compute", go_through), named("d2h", go_down)
        who = "its copy to the device"
        try:
            self._called.record(caller)
            sources = _sources(given, slot)
            recording = self._recorder.of(index, sources, slot, pending) if self._recorder is not None else None
            inputs = go_up(index, sources, recording, marks)
            who = "fn"
            answer, held = go_through(index, inputs, fn, recording, pending, marks)
            room = targets(index, out, answer)
            who = "its copy back"
            landing = go_down(index, answer, room, slot, marks)
        except BatchError:
            raise
        except Exception as error:
            raise blaming(index, who, error) from error
        finally:
            self._caller.back()
        return Flight(index, sources, inputs, answer, held, landing, room, marks)

    def _go_up(self, index: int, sources: Tensors, recording: Recording | None, marks: list[Any]) -> Tensors:
        self._turn_up()
        if recording is not None:
            inputs = recording.inputs
        else:
            inputs = {n: self._empty(t.shape, dtype=t.dtype, device=self._device) for n, t in sources.items()}
        marks[0].record(self._up)
        for name, tensor in sources.items():
            inputs[name].copy_(tensor, non_blocking=True)
        marks[1].record(self._up)
        return inputs

    def _go_through(
        self,
        index: int,
        inputs: Tensors,
        fn: Fn,
        recording: Recording | None,
        pending: Iterable[Flight],
        marks: list[Any],
    ) -> tuple[Tensors, list[int]]:
        self._turn_compute()
        self._compute.wait_event(self._called)  # what fn closes over may still be in the making there
        self._compute.wait_event(marks[1])
        marks[2].record(self._compute)
        if recording is not None:
            recording.play()
            answer, held = recording.answer, recording.held
        else:
            answer = answered(index, fn(dict(inputs)), self._device)
            refuse_reuse(index, answer, {place for flight in pending for place in flight.held})
            answer = {name: tensor.contiguous() for name, tensor in answer.items()}
            held = [memory(tensor) for tensor in answer.values()]
        marks[3].record(self._compute)
        return answer, held

    def _go_down(self, index: int, answer: Tensors, room: Tensors, slot: Slot, marks: list[Any]) -> Tensors:
        landing = {
            name: room[name]
            if name in room and is_ready(room[name])
            else slot.room("out", name, tensor.shape, tensor.dtype)
            for name, tensor in answer.items()
        }
        self._turn_down()
        self._down.wait_event(marks[3])
        marks[4].record(self._down)
        for name, tensor in answer.items():
            landing[name].copy_(tensor, non_blocking=True)
        marks[5].record(self._down)
        return landing

    def retire(self, flight: Flight, take: Take | None, log: Log) -> Any:
        """Wait until a batch is back; its results, in memory the ring will not touch again, or as `take` has them."""
        who = "its way through the device"
        try:
            flight.marks[5].synchronize()
            since = self._origin.elapsed_time
            log.add(flight.index, [since(mark) / 1e3 for mark in flight.marks])
            if take is not None:
                who = "take"
                return take(flight.index, flight.landing)
            who = "its way back"
            result = {}
            for name, landed in flight.landing.items():
                wanted = flight.room.get(name)
                result[name] = (
                    landed.clone() if wanted is None else landed if wanted is landed else wanted.copy_(landed)
                )
            return result
        except BatchError:
            raise
        except Exception as error:
            raise blaming(flight.index, who, error) from error

    def drain(self) -> None:
        """Let what is queued end; an error of the device has been told already."""
        for lane in self._streams:
            with suppress(RuntimeError):
                lane.synchronize()


def _sources(given: Tensors, slot: Slot) -> Tensors:
    """The caller's own memory if the copy engine can reach it, else a copy in the ring."""
    return {
        name: tensor if is_ready(tensor) else slot.room("in", name, tensor.shape, tensor.dtype).copy_(tensor)
        for name, tensor in given.items()
    }


@cache
def _streams(device: Any) -> tuple[Any, ...]:
    """The same three for every stream of a device: torch's allocator keeps memory for each CUDA stream it has seen."""
    import torch

    return tuple(torch.cuda.Stream(device) for _ in range(3))
