"""`stream`: batches through a function on a device, with copies and computation overlapped and results in order.

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
from ridgeline.machine import resolve_device
from ridgeline.pipeline.batch import Out, Take, Tensors
from ridgeline.pipeline.pinned_memory import Staging
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
) -> BatchStream:
    """Send each batch to `device`, apply `fn` there, and bring the result back.

    batches  dicts of tensors or numpy arrays in host memory, of any shape; pulled one by one, at most depth + 1
             ahead of the result that the caller has. Contiguous pinned tensors are copied from where they are: do not
             change them before their result arrives. All others are copied to pinned memory first.
    fn       a dict of tensors on the device → a dict of tensors on the device. It does not change its batch and
             returns fresh tensors, or parts of its batch. On a GPU it runs on a separate CUDA stream, which waits for
             the work on the caller's current stream.
    depth    batches in progress while the caller has a result (default: 2)
    out      index → {name: host tensor} for the results, or None. The GPU writes to pinned tensors directly.
    take     index, {name: host tensor} → the result, instead of `out`. The next batches use the same host memory, so
             `take` copies what it needs.
    staging  pinned memory of an earlier stream; one stream uses it at a time, a second stream allocates its own
    graph    on a GPU: record fn as a CUDA graph and replay it for later batches of the same shape, which needs one
             call of the host instead of one per kernel. fn is called for the first batches only, so it must do the
             same work each time and not depend on the host: no `.item()`, no copy to the host, no branch on values

    Returns a BatchStream over the results: host tensors that no later batch changes. An error has its batch number
    (`BatchError.index`) and comes after all earlier results. Memory is pinned at the first batch, on the node where
    the calling thread then runs. Raises InputError for a wrong depth or device, MissingExtra without torch.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtra("streaming batches", "torch") from None
    if depth < 1:
        raise InputError(f"depth is {depth}; give 1 or more.")
    if out is not None and take is not None:
        raise InputError("a stream has either out (tensors for the results) or take (a function that copies them).")
    target, log = torch.device(resolve_device(device)), Log()
    if target.type == "cpu":
        from ridgeline.pipeline.cpu_stream import stream_on_cpu

        return BatchStream(stream_on_cpu(batches, fn, out, take, log), log)
    from ridgeline.pipeline.gpu_stream import stream_on_gpu

    target = torch.device("cuda", torch.cuda.current_device() if target.index is None else target.index)
    return BatchStream(stream_on_gpu(batches, fn, target, depth, out, take, staging, log, graph), log)


class BatchStream:
    """The results of a stream, in order: tensors by name, or the values that `take` returns.

    To leave early, call `close` or leave the `with`: both wait for the batches in progress.
    """

    def __init__(self, results: Iterator[Any], log: Log) -> None:
        self._results, self._log = results, log

    def __iter__(self) -> BatchStream:
        return self

    def __next__(self) -> Any:
        return next(self._results)

    def timeline(self) -> list[Intervals]:
        """The intervals of finished batches: from CUDA events on a GPU, from the clock on the CPU."""
        return self._log.all()

    def close(self) -> None:
        """Wait for the batches in progress and release the memory; safe to call twice."""
        self._results.close()  # type: ignore[attr-defined]  # both implementations are generators

    def __enter__(self) -> BatchStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
