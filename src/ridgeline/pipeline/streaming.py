"""`stream`: batches through a function on a device, copies and computation overlapped, results in order.

with stream(batches, fn, device="cuda") as results:
    for result in results:
        ...
    print(results.timeline())
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from ridgeline.errors import InputError, MissingExtra
from ridgeline.machine import device_named
from ridgeline.pipeline.batch import Out, Take, Tensors
from ridgeline.pipeline.staging import Staging
from ridgeline.pipeline.timeline import Intervals, Log


def stream(
    batches: Iterable[Mapping[str, Any]],
    fn: Callable[[Tensors], Mapping[str, Any]],
    *,
    device: Any,
    depth: int = 2,
    out: Out | None = None,
    take: Take | None = None,
    staging: Staging | None = None,
    graph: bool = False,
) -> Stream:
    """Send each batch to `device`, apply `fn` there, bring the answer back.

    batches  dicts of tensors or numpy arrays in host memory, of any shape; pulled one by one, at most depth + 1
             ahead of the result the caller has. Contiguous pinned tensors are copied straight from where they lie:
             leave them alone until their result has come. Anything else is staged through the ring.
    fn       a dict of tensors on the device → a dict of tensors on the device. It leaves its batch as it is and
             gives fresh tensors, or parts of its batch. On a GPU it runs on a stream of its own, which waits for
             what the caller's current stream holds.
    depth    batches under way while the caller has a result
    out      index → {name: host tensor} to write into, or None. Pinned ones are written by the GPU itself.
    take     index, {name: host tensor} → the result, in place of `out`: what it is given lies in memory that the next
             batches will use, so it copies what it wants to keep, once and to where that belongs
    staging  pinned memory kept from an earlier stream; one stream has it at a time, another makes its own
    graph    on a GPU, record what fn does as a CUDA graph and play that for the batches of one shape that follow: one
             call of the host instead of one for each kernel. fn is called for the first batches only, so it must do
             the same work every time and leave nothing to the host: no `.item()`, no copy to it, no choice by values

    The results are host tensors and the caller's own: nothing here touches them again. An error names its batch
    (`BatchError.index`) and comes after all results before it. Memory is pinned when the first batch is there, so
    it lies where the calling thread then stands.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtra("streaming batches", "torch") from None
    if depth < 1:
        raise InputError(f"depth is {depth}; give 1 or more.")
    if out is not None and take is not None:
        raise InputError("a stream has either out or take: room for the results, or a function that brings them away.")
    where, log = torch.device(device_named(device)), Log()
    if where.type == "cpu":
        from ridgeline.pipeline.plain import plain

        return Stream(plain(batches, fn, out, take, log), log)
    from ridgeline.pipeline.overlapped import overlapped

    where = torch.device("cuda", torch.cuda.current_device() if where.index is None else where.index)
    return Stream(overlapped(batches, fn, where, depth, out, take, staging, log, graph), log)


class Stream:
    """The results of a stream, in order, as tensors by name or as `take` made them.

    Leaving it early (`break` and `close`, or the end of a `with`) drains it.
    """

    def __init__(self, results: Iterator[Any], log: Log) -> None:
        self._results, self._log = results, log

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        return next(self._results)

    def timeline(self) -> list[Intervals]:
        """The intervals of the batches that have come back: by CUDA events on a GPU, by the clock on the CPU."""
        return self._log.all()

    def close(self) -> None:
        """Wait for what is under way and let go of the memory; safe to call twice."""
        self._results.close()  # type: ignore[attr-defined]  # both ways are generators

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
