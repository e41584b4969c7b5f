"""The stream on a GPU: one batch goes up while another is computed and a third comes back.

Three CUDA streams and a ring of pinned slots. A batch's slot, its inputs and its answers on the device are held
until its copy back has ended on the host's own word, so nothing can be reused too early: neither by the ring nor
by torch's allocator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from ridgeline.errors import BatchError
from ridgeline.pipeline.batch import Out, Take, Tensors, answered, blamed, memory, numbered, refuse_reuse, targets
from ridgeline.pipeline.staging import Slot, Staging, borrowed
from ridgeline.pipeline.timeline import Intervals, Log

Fn = Callable[[Tensors], Mapping[str, Any]]


@dataclass
class Flight:
    """A batch under way, with all the memory it uses."""

    index: int
    sources: Tensors  # pinned: the ring's, or the caller's
    inputs: Tensors  # on the device
    answer: Tensors  # on the device
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
) -> Iterator[Any]:
    """`depth` batches are under way while the caller has a result; one more slot is being filled."""
    with borrowed(staging, depth + 1) as ring:
        yield from _through(_Lanes(device, ring), batches, fn, depth, out, take, log)


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
    """The three streams, the ring, and the moment they began."""

    def __init__(self, device: Any, ring: list[Slot]) -> None:
        import torch

        self._torch, self._device = torch, device
        self._up, self._compute, self._down = _streams(device)
        self._ring = ring
        self._origin = self._mark(self._up)

    def submit(self, index: int, given: Tensors, fn: Fn, out: Out | None, pending: Iterable[Flight]) -> Flight:
        """Queue a batch's way up, its computation and its way back; nothing here waits for the GPU."""
        torch, slot = self._torch, self._ring[index % len(self._ring)]
        caller = torch.cuda.current_stream(self._device)
        with blamed(index, "its copy to the device"):
            sources = {name: self._reachable(slot, name, tensor) for name, tensor in given.items()}
            with torch.cuda.stream(self._up):
                inputs = {n: torch.empty(t.shape, dtype=t.dtype, device=self._device) for n, t in sources.items()}
                marks = [self._mark(self._up)]
                for name, tensor in sources.items():
                    inputs[name].copy_(tensor, non_blocking=True)
                marks.append(self._mark(self._up))
        with blamed(index, "fn"), torch.cuda.stream(self._compute):
            self._compute.wait_stream(caller)  # what fn closes over may still be in the making there
            self._compute.wait_event(marks[1])
            marks.append(self._mark(self._compute))
            answer = answered(index, fn(dict(inputs)), self._device)
            refuse_reuse(index, answer, {memory(t) for flight in pending for t in flight.answer.values()})
            answer = {name: tensor.contiguous() for name, tensor in answer.items()}
            marks.append(self._mark(self._compute))
        room = targets(index, out, answer)
        with blamed(index, "its copy back"):
            landing = {
                name: room[name]
                if name in room and _ready(room[name])
                else slot.room("out", name, tensor.shape, tensor.dtype)
                for name, tensor in answer.items()
            }
            with torch.cuda.stream(self._down):
                self._down.wait_event(marks[3])
                marks.append(self._mark(self._down))
                for name, tensor in answer.items():
                    landing[name].copy_(tensor, non_blocking=True)
                marks.append(self._mark(self._down))
        return Flight(index, sources, inputs, answer, landing, room, marks)

    def retire(self, flight: Flight, take: Take | None, log: Log) -> Any:
        """Wait until a batch is back; its results, in memory the ring will not touch again, or as `take` has them."""
        with blamed(flight.index, "its way through the device"):
            flight.marks[5].synchronize()
            log.add(self._intervals(flight))
        if take is not None:
            with blamed(flight.index, "take"):
                return take(flight.index, flight.landing)
        with blamed(flight.index, "its way back"):
            result = {}
            for name, landed in flight.landing.items():
                wanted = flight.room.get(name)
                result[name] = (
                    landed.clone() if wanted is None else landed if wanted is landed else wanted.copy_(landed)
                )
        return result

    def drain(self) -> None:
        """Let what is queued end; an error of the device has been told already."""
        for lane in (self._up, self._compute, self._down):
            with suppress(RuntimeError):
                lane.synchronize()

    def _reachable(self, slot: Slot, name: str, tensor: Any) -> Any:
        """The caller's own memory if the copy engine can reach it, else a copy in the ring."""
        return tensor if _ready(tensor) else slot.room("in", name, tensor.shape, tensor.dtype).copy_(tensor)

    def _mark(self, lane: Any) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record(lane)
        return event

    def _intervals(self, flight: Flight) -> Intervals:
        at = [self._origin.elapsed_time(mark) / 1e3 for mark in flight.marks]
        return Intervals(flight.index, (at[0], at[1]), (at[2], at[3]), (at[4], at[5]))


def _ready(tensor: Any) -> bool:
    return bool(tensor.is_contiguous() and tensor.is_pinned())


@cache
def _streams(device: Any) -> tuple[Any, ...]:
    """The same three for every stream of a device: torch's allocator keeps memory for each CUDA stream it has seen."""
    import torch

    return tuple(torch.cuda.Stream(device) for _ in range(3))
