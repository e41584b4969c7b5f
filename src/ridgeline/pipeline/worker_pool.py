"""`pool`: one placed process per GPU; it distributes chunks, returns results in order, and repeats lost chunks.

with pool(factory, ["cuda:0", "cuda:1"]) as workers:  # factory(device) -> fn, called once in each worker
    for result in workers.map(chunks):  # fn(chunk), in the order of the chunks
        ...
    print(workers.stats())
"""

from __future__ import annotations

import heapq
import pickle
import selectors
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from numbers import Real
from types import TracebackType
from typing import Any, Generic, TypeVar

from ridgeline.errors import ChunkError, InputError, WorkerError
from ridgeline.machine import Placement
from ridgeline.pipeline.shared_memory import Payload, pack
from ridgeline.pipeline.worker import is_importing_main
from ridgeline.pipeline.worker_placement import is_integer, place_workers
from ridgeline.pipeline.worker_process import QUEUE, Task, WorkerProcess, WorkerStats

CHECK_EVERY_S = 1.0  # a worker can die while a process that it forked keeps its connection open
EXIT_S = 2.0  # for idle workers to exit by themselves

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")


def pool(
    factory: Callable[[str], Callable[[Chunk], Result]],
    devices: str | int | Sequence[str] = "auto",
    *,
    place: str | Sequence[Placement] | None = "auto",
    depth: int = 3,
    tries: int = 2,
    timeout: float | None = None,
    start_timeout: float = 600.0,
) -> Pool[Chunk, Result]:
    """Return workers that compute fn(chunk), one process for each device; they start with the `with`.

    factory        called once in each worker with its device, after the worker is placed; returns fn. It is pickled:
                   a function or class of a module, a functools.partial, an object.
    devices        names ("cuda:0" or "cpu", one worker each, repeats allowed); a count; "auto": every GPU that this
                   process sees, else one CPU worker per NUMA node
    place          "auto": CPUs and memory near the worker's GPU, or an even share of the CPUs, no CPU twice; a
                   Placement for each worker; None: the system decides
    depth          chunks per worker that are pulled before the caller has their results (default: 3)
    tries          give up a chunk after it has ended this many workers (default: 2)
    timeout        seconds for one chunk, after which its worker is killed; None: no limit
    start_timeout  seconds for the start of a worker (default: 600)

    fn may be called again for a chunk of a dead worker. Arrays in results are writable. Raises InputError for wrong
    arguments, WorkerError if a worker cannot start.
    """
    if is_importing_main():
        raise InputError(
            "a worker imports this script for what it defines: put the rest under if __name__ == '__main__'."
        )
    for name, value in (("depth", depth), ("tries", tries)):
        if not is_integer(value) or value < 1:
            raise InputError(f"{name} is {value!r}; give 1 or more.")
    if timeout is not None and not _is_duration(timeout):
        raise InputError(f"timeout is {timeout!r}; give seconds, or None.")
    if not _is_duration(start_timeout):
        raise InputError(f"start_timeout is {start_timeout!r}; give seconds.")
    try:
        packed = pickle.dumps(factory, protocol=5)
    except Exception as error:
        raise InputError(
            f"the factory cannot be sent to workers ({error}); define it at the top of a module."
        ) from error
    workers = [
        WorkerProcess(number, device, placement, packed)
        for number, (device, placement) in enumerate(place_workers(devices, place))
    ]
    return Pool(workers, depth, tries, timeout, start_timeout)


class Pool(Generic[Chunk, Result]):
    """Workers that stay alive from one `map` to the next; they start and end with the `with`."""

    def __init__(
        self, workers: list[WorkerProcess], depth: int, tries: int, timeout: float | None, start_timeout: float
    ) -> None:
        self._workers = workers
        self._window = depth * len(workers)
        self._tries, self._timeout, self._start_timeout = tries, timeout, start_timeout
        self._waiting: list[Task] = []  # a heap: the first chunk first
        self._done: dict[int, Payload | ChunkError] = {}
        self._open = self._mapping = False

    def __enter__(self) -> Pool[Chunk, Result]:
        if self._open:
            raise InputError("this pool is open already.")
        self._selector = selectors.DefaultSelector()
        self._open = True
        sys.modules.setdefault("__mp_main__", sys.modules["__main__"])  # the name of the script in workers
        try:
            for worker in self._workers:
                self._start(worker)
            while not all(worker.ready for worker in self._workers):
                self._read_messages(wait=True)
        except BaseException:
            self._end(at_once=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(at_once=kind is not None)

    def stats(self) -> list[WorkerStats]:
        """Return the work of each worker since the pool started."""
        return [worker.stats() for worker in self._workers]

    def map(self, chunks: Iterable[Chunk]) -> Iterator[Result]:
        """Yield fn(chunk) for each chunk, in order.

        Chunks are pulled when workers can take them and copied at once: a source may reuse one buffer. An error has
        its chunk number (`ChunkError.index`) and comes after all earlier results; the pool can then run another map.
        The caller may leave early: chunks that no worker has started are taken back. Raises InputError if the pool is
        closed or runs another map.
        """
        if not self._open:
            raise InputError("the workers are not running: use the pool in a with statement.")
        if self._mapping:
            raise InputError("this pool runs another map; finish or close that one first.")
        self._mapping = True
        try:
            source = _Source(chunks)
            index = 0  # of the next result
            while True:
                if not self._open:
                    raise InputError("the pool was closed before this map was finished.")
                self._read_messages(wait=False)
                self._distribute(source, index)
                if index in self._done:
                    outcome = self._done.pop(index)
                    if isinstance(outcome, ChunkError):
                        raise outcome
                    result = self._unpack(index, outcome)
                    index += 1
                    yield result
                    del result, outcome  # only the caller keeps them
                elif source.ended and index == source.pulled:
                    return
                else:
                    self._read_messages(wait=True)
        finally:
            self._mapping = False
            self._cancel()

    def _distribute(self, source: _Source, index: int) -> None:
        """Give chunks to the workers with the fewest; pull a chunk only when a worker can take it."""
        if any(isinstance(outcome, ChunkError) for outcome in self._done.values()):
            source.ended = True  # the caller gets no result after the error
        while True:
            free = [w for w in self._workers if w.ready and not w.full and len(w.assignments) < QUEUE]
            if not free:
                return
            worker = min(free, key=lambda w: len(w.assignments))
            if self._waiting:
                task = heapq.heappop(self._waiting)
                if task.over:
                    continue
            elif source.ended:
                self._rebalance(worker)
                return
            elif source.pulled - index >= self._window or (worker.assignments and index in self._done):
                return  # yield a finished result before a second chunk is pulled for a worker
            else:
                try:
                    pulled = source.pull()
                except ChunkError as error:
                    self._done[error.index] = error
                    return
                if pulled is None:
                    continue
                task = pulled
            if not worker.assign(task):
                heapq.heappush(self._waiting, task)
                worker.full = True  # until its next message

    def _rebalance(self, idle: WorkerProcess) -> None:
        """At the end of the source, give an idle worker the chunk that waits behind a slow one."""
        if idle.assignments:
            return
        for worker in self._workers:
            last = worker.assignments[-1] if len(worker.assignments) > 1 else None
            if last and not last.recalled and not last.task.over and last.task.holders == 1:
                worker.recall(last)
                idle.assign(last.task)
                return

    def _read_messages(self, wait: bool) -> None:
        """Handle the messages of workers; detect dead and hung workers."""
        now = time.monotonic()
        deadlines = [limit for worker in self._workers if (limit := self._get_deadline(worker)) is not None]
        timeout = max(0.0, min([CHECK_EVERY_S, *(limit - now for limit in deadlines)])) if wait else 0.0
        readable = {key.data.number for key, _ in self._selector.select(timeout)}
        now = time.monotonic()
        for worker in self._workers:
            try:
                if worker.number in readable or worker.died():
                    while (message := worker.read()) is not None:
                        self._handle_message(worker, *message)
                    if worker.died():  # and all its messages are read
                        raise EOFError
                limit = self._get_deadline(worker)
                if limit is not None and now >= limit:
                    self._replace(worker, f"gave no answer within {self._get_timeout(worker):.3g} s")
            except EOFError:
                self._replace(worker, None)

    def _get_timeout(self, worker: WorkerProcess) -> float:
        return (self._timeout or 0.0) if worker.ready else self._start_timeout

    def _get_deadline(self, worker: WorkerProcess) -> float | None:
        since = worker.busy_since()
        if since is None or (worker.ready and self._timeout is None):
            return None
        return since + self._get_timeout(worker)

    def _handle_message(self, worker: WorkerProcess, header: tuple[Any, ...], payload: Payload) -> None:
        kind, *rest = header
        if kind == "ready":
            worker.ready, worker.failed_starts, worker.where = True, 0, rest[0]
        elif kind == "refused":
            error_type, message, trace = rest
            error = WorkerError(f"{worker.name} could not start: {error_type}: {message}")
            error.add_note(f"In the worker:\n{trace}")
            raise error
        elif kind == "dropped":
            task = worker.take(rest[0])
            if not task.over and not task.holders:
                heapq.heappush(self._waiting, task)
        else:
            ticket, start, end, *failure = rest
            task = worker.take(ticket)
            worker.since = end
            worker.busy_s += end - start
            worker.chunks += 1
            if task.over:
                payload.close()
                return
            task.finish()
            if failure:
                error_type, message, trace = failure
                self._done[task.index] = ChunkError(task.index, f"fn raised {error_type}: {message}", error_type, trace)
            else:
                self._done[task.index] = payload

    def _replace(self, worker: WorkerProcess, reason: str | None) -> None:
        """Restart a dead or hung worker: its chunks go to others, a death counts against the one it had started."""
        with suppress(KeyError):
            self._selector.unregister(worker.connection)
        was_ready = worker.ready
        if reason is None:
            reason = worker.clean_up()
        else:
            worker.kill()
        if not was_ready:
            worker.failed_starts += 1
            if worker.failed_starts >= self._tries:
                raise WorkerError(f"{worker.name} {reason} while it started, {_count_times(worker.failed_starts)}.")
        for assignment in worker.assignments:
            task = assignment.task
            task.holders -= 1
            if task.over:
                continue
            if assignment is worker.assignments[0]:
                task.deaths += 1
            if task.deaths >= self._tries:
                task.finish()
                message = f"its worker {reason}; that was worker {task.deaths} it has ended, and it is given up"
                self._done[task.index] = ChunkError(task.index, message)
            elif not task.holders:
                heapq.heappush(self._waiting, task)
        worker.assignments.clear()
        worker.restarts += 1
        self._start(worker)

    def _start(self, worker: WorkerProcess) -> None:
        worker.start()
        self._selector.register(worker.connection, selectors.EVENT_READ, worker)

    def _unpack(self, index: int, payload: Payload) -> Any:
        try:
            return payload.unpack(exclusive=True)
        except Exception as error:
            kind = type(error).__name__
            raise ChunkError(index, f"its result could not be read: {kind}: {error}", kind) from error
        finally:
            payload.close()

    def _cancel(self) -> None:
        """Drop the rest of a map: recall chunks that have not started, ignore results that still come."""
        for worker in self._workers:
            for k, assignment in enumerate(worker.assignments):
                assignment.task.finish()
                if k and not assignment.recalled:
                    worker.recall(assignment)
        for task in self._waiting:
            task.finish()
        for outcome in self._done.values():
            if isinstance(outcome, Payload):
                outcome.close()
        self._waiting.clear()
        self._done.clear()

    def _end(self, at_once: bool) -> None:
        """End all workers; idle workers have a moment to exit by themselves."""
        if not self._open:
            return
        self._open = False
        self._cancel()
        started = [worker for worker in self._workers if hasattr(worker, "process")]
        try:
            idle = [worker for worker in started if worker.ready and not worker.assignments and not at_once]
            for worker in idle:
                worker.close()
            deadline = time.monotonic() + EXIT_S
            while time.monotonic() < deadline and not all(worker.died() for worker in idle):
                time.sleep(0.002)
        finally:
            for worker in started:
                worker.kill()
                worker.assignments.clear()
            self._selector.close()


class _Source:
    """The chunks, numbered and packed when they are pulled."""

    def __init__(self, chunks: Iterable[Any]) -> None:
        self.pulled, self.ended = 0, False
        self._chunks = iter(chunks)

    def pull(self) -> Task | None:
        """Return the next chunk, or None at the end; raises ChunkError."""
        index = self.pulled
        problem = "the source raised"
        try:
            try:
                chunk = next(self._chunks)
            except StopIteration:
                self.ended = True
                return None
            self.pulled += 1
            problem = "it cannot be sent to a worker:"
            return Task(index, pack(chunk))
        except Exception as error:
            self.pulled, self.ended = index + 1, True
            kind = type(error).__name__
            failure = ChunkError(index, f"{problem} {kind}: {error}", kind)
            failure.__cause__ = error
            raise failure from error


def _is_duration(value: Any) -> bool:
    return isinstance(value, Real) and float(value) > 0


def _count_times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
