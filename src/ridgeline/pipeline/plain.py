"""The same stream where there is no device to go to: one batch after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import ReferenceType, ref

from ridgeline.machine import now_ns
from ridgeline.pipeline.batch import Out, Take, Tensors, answered, blamed, memory, numbered, reused, targets
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
    last: dict[int, Any] = {}  # held so that its memory cannot honestly come again
    lent = _Lent()
    for index, given in numbered(batches):
        began = (now_ns() - start) / 1e9
        with blamed(index, "fn"):
            answer = answered(index, fn(dict(given)), device)
        computed = (now_ns() - start) / 1e9
        of_batch = {memory(tensor) for tensor in given.values()}
        own = {name: place for name, tensor in answer.items() if (place := memory(tensor)) not in of_batch}
        for name, place in own.items():
            if place in last or place in lent:
                raise reused(index, name)
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
            for name, place in own.items():
                if name not in room and place > 0:  # what is empty has no memory to come again
                    lent.add(place, answer[name])
        log.add(index, (began, began, began, computed, computed, (now_ns() - start) / 1e9))
        last = {place: answer[name] for name, place in own.items()}
        del given, answer
        yield result


class _Lent:
    """Memory of answers that were handed over as they are, for as long as anybody holds it.

    torch keeps one object for a storage while any tensor, view or array lies in it, so a weak reference to that object
    tells: memory that was freed and came again is not refused.
    """

    def __init__(self) -> None:
        self._at: dict[int, ReferenceType[Any]] = {}
        self._most = 256

    def add(self, place: int, tensor: Any) -> None:
        if len(self._at) >= self._most:  # let go of what is gone, seldom enough to cost nothing
            self._at = {place: held for place, held in self._at.items() if held() is not None}
            self._most = max(256, 2 * len(self._at))
        self._at[place] = ref(tensor.untyped_storage())

    def __contains__(self, place: int) -> bool:
        held = self._at.get(place)
        return held is not None and held() is not None
