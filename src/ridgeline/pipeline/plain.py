"""The same stream where there is no device to go to: one batch after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ridgeline.machine.clock import now_ns
from ridgeline.pipeline.batch import Out, Take, Tensors, answered, blamed, memory, numbered, refuse_reuse, targets
from ridgeline.pipeline.timeline import Log


def plain(
    batches: Iterable[Mapping[str, Any]],
    fn: Callable[[Tensors], Mapping[str, Any]],
    out: Out | None,
    take: Take | None,
    log: Log,
) -> Iterator[Any]:
    import torch

    device, start = torch.device("cpu"), now_ns()
    last: Tensors = {}  # held so that its memory cannot honestly come again
    for index, given in numbered(batches):
        began = (now_ns() - start) / 1e9
        with blamed(index, "fn"):
            answer = answered(index, fn(dict(given)), device)
        computed = (now_ns() - start) / 1e9
        of_batch = {memory(tensor) for tensor in given.values()}
        own = {name: tensor for name, tensor in answer.items() if memory(tensor) not in of_batch}
        refuse_reuse(index, own, {memory(tensor) for tensor in last.values()})
        result: Any
        if take is not None:
            with blamed(index, "take"):
                result = take(index, answer)
        else:
            room = targets(index, out, answer)
            with blamed(index, "its copy into out"):
                # A result is the caller's own: what lies in the batch's memory is copied, the rest is handed over.
                result = {
                    name: room[name].copy_(tensor) if name in room else tensor if name in own else tensor.clone()
                    for name, tensor in answer.items()
                }
        log.add(index, (began, began, began, computed, computed, (now_ns() - start) / 1e9))
        last = own
        del given, answer
        yield result
