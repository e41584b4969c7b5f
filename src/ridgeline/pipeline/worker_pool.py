"""`pool`: one placed process per GPU; chunks handed out, results in order, a dead worker's chunk redone.

with pool(factory, ["cuda:0", "cuda:1"]) as workers:  # factory(device) -> fn, called in each worker, once
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
from ridgeline.pipeline import worker
from ridgeline.pipeline.shared import Parcel, pack
from ridgeline.pipeline.worker_placement import is_whole, stands
from ridgeline.pipeline.worker_process import QUEUE, Post, Task, WorkerStats

LOOK_EVERY_S = 1.0  # a worker can die while a process it forked holds its line open
LEAVE_S = 2.0  # for idle workers to leave by themselves

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
    """Workers that compute fn(chunk), one process for each device.

    factory  called with its device in each worker, once, when it stands in its place; gives fn. It travels by
             pickle: a function or class of a module, a functools.partial, an object.
    devices  names ("cuda:0" or "cpu", one worker each, also twice); a count; "auto": every GPU this process sees,
             else one CPU worker per NUMA node
    place    "auto": CPUs and memory near the worker's GPU, or an even share of the CPUs, none given twice; a
             Placement for each worker; None: wherever the system puts them
    depth    chunks per worker that have been pulled and whose results the caller does not have
    tries    a chunk that has ended this many workers is given up
    timeout  seconds after which a worker that computes one chunk counts as hung; None: it may take for ever

    fn may be called again for a chunk whose worker died. Arrays that come back are the caller's own.
    """
    if worker.importing_main:
        raise InputError(
            "a worker imports this script for what it defines: put the rest under if __name__ == '__main__'."
        )
    for name, value in (("depth", depth), ("tries", tries)):
        if not is_whole(value) or value < 1:
            raise InputError(f"{name} is {value!r}; give 1 or more.")
    if timeout is not None and not _seconds(timeout):
        raise InputError(f"timeout is {timeout!r}; give seconds, or None.")
    if not _seconds(start_timeout):
        raise InputError(f"start_timeout is {start_timeout!r}; give seconds.")
    try:
        packed = pickle.dumps(factory, protocol=5)
    except Exception as error:
        raise InputError(
            f"the factory cannot be sent to workers ({error}); define it at the top of a module."
        ) from error
    posts = [Post(n, device, where, packed) for n, (device, where) in enumerate(stands(devices, place))]
    return Pool(posts, depth, tries, timeout, start_timeout)


class Pool(Generic[Chunk, Result]):
    """Workers that stay warm from one `map` to the next; they start and end with the `with`."""

    def __init__(self, posts: list[Post], depth: int, tries: int, timeout: float | None, start_timeout: float) -> None:
        self._posts = posts
        self._window = depth * len(posts)
        self._tries, self._timeout, self._start_timeout = tries, timeout, start_timeout
        self._waiting: list[Task] = []  # a heap: the first chunk first
        self._done: dict[int, Parcel | ChunkError] = {}
        self._open = self._mapping = False

    def __enter__(self) -> Pool[Chunk, Result]:
        if self._open:
            raise InputError("this pool is open already.")
        self._selector = selectors.DefaultSelector()
        self._open = True
        sys.modules.setdefault("__mp_main__", sys.modules["__main__"])  # so workers call what they import as main
        try:
            for post in self._posts:
                self._start(post)
            while not all(post.ready for post in self._posts):
                self._listen(wait=True)
        except BaseException:
            self._end(at_once=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(at_once=kind is not None)

    def stats(self) -> list[WorkerStats]:
        return [post.stats() for post in self._posts]

    def map(self, chunks: Iterable[Chunk]) -> Iterator[Result]:
        """fn of each chunk, in order.

        Chunks are pulled as workers can take them and copied then: a source may fill one buffer again and again.
        An error names its chunk (`ChunkError.index`) and comes after all results before it; the pool can go on
        with another map. Leaving early is fine: chunks that no worker has begun are taken back.
        """
        if not self._open:
            raise InputError("the workers are not there: use the pool in a with statement.")
        if self._mapping:
            raise InputError("this pool is at work on another map; finish or close that one first.")
        self._mapping = True
        try:
            source = _Source(chunks)
            given = 0
            while True:
                if not self._open:
                    raise InputError("the pool was closed before this map was at its end.")
                self._listen(wait=False)
                self._hand_out(source, given)
                if given in self._done:
                    outcome = self._done.pop(given)
                    if isinstance(outcome, ChunkError):
                        raise outcome
                    result = self._unpacked(given, outcome)
                    given += 1
                    yield result
                    del result, outcome  # the caller's own now
                elif source.ended and given == source.pulled:
                    return
                else:
                    self._listen(wait=True)
        finally:
            self._mapping = False
            self._forget()

    def _hand_out(self, source: _Source, given: int) -> None:
        """Give chunks to whoever has least; pull one only when someone can take it."""
        if any(isinstance(outcome, ChunkError) for outcome in self._done.values()):
            source.ended = True  # the caller will get no further than that
        while True:
            free = [p for p in self._posts if p.ready and not p.full and len(p.turns) < QUEUE]
            if not free:
                return
            post = min(free, key=lambda p: len(p.turns))
            if self._waiting:
                task = heapq.heappop(self._waiting)
                if task.over:
                    continue
            elif source.ended:
                self._even_out(post)
                return
            elif source.pulled - given >= self._window or (post.turns and given in self._done):
                return  # a result that is there goes out before a second chunk is pulled for anyone
            else:
                try:
                    pulled = source.pull()
                except ChunkError as error:
                    self._done[error.index] = error
                    return
                if pulled is None:
                    continue
                task = pulled
            if not post.give(task):
                heapq.heappush(self._waiting, task)
                post.full = True  # until it speaks again

    def _even_out(self, idle: Post) -> None:
        """At the end, what waits behind a slow chunk goes to a worker that has nothing left."""
        if idle.turns:
            return
        for post in self._posts:
            last = post.turns[-1] if len(post.turns) > 1 else None
            if last and not last.recalled and not last.task.over and last.task.holders == 1:
                post.recall(last)
                idle.give(last.task)
                return

    def _listen(self, wait: bool) -> None:
        """Take what workers say; notice who died or hangs."""
        now = time.monotonic()
        ends = [limit for post in self._posts if (limit := self._deadline(post)) is not None]
        patience = max(0.0, min([LOOK_EVERY_S, *(end - now for end in ends)])) if wait else 0.0
        spoke = {key.data.number for key, _ in self._selector.select(patience)}
        now = time.monotonic()
        for post in self._posts:
            try:
                if post.number in spoke or post.died():
                    while (message := post.read()) is not None:
                        self._heard(post, *message)
                    if post.died():  # and said all it had to say
                        raise EOFError
                limit = self._deadline(post)
                if limit is not None and now >= limit:
                    self._bury(post, f"gave no answer within {self._patience(post):.3g} s")
            except EOFError:
                self._bury(post, None)

    def _patience(self, post: Post) -> float:
        return (self._timeout or 0.0) if post.ready else self._start_timeout

    def _deadline(self, post: Post) -> float | None:
        since = post.busy_since()
        if since is None or (post.ready and self._timeout is None):
            return None
        return since + self._patience(post)

    def _heard(self, post: Post, words: tuple[Any, ...], parcel: Parcel) -> None:
        what, *rest = words
        if what == "ready":
            post.ready, post.stillborn, post.where = True, 0, rest[0]
        elif what == "refused":
            kind, message, trace = rest
            error = WorkerError(f"{post.name} could not start: {kind}: {message}")
            error.add_note(f"In the worker:\n{trace}")
            raise error
        elif what == "dropped":
            task = post.take(rest[0])
            if not task.over and not task.holders:
                heapq.heappush(self._waiting, task)
        else:
            ticket, began, ended, *failure = rest
            task = post.take(ticket)
            post.since = ended
            post.busy_s += ended - began
            post.chunks += 1
            if task.over:
                parcel.close()
                return
            task.finish()
            if failure:
                kind, message, trace = failure
                self._done[task.index] = ChunkError(task.index, f"fn raised {kind}: {message}", kind, trace)
            else:
                self._done[task.index] = parcel

    def _bury(self, post: Post, how: str | None) -> None:
        """A worker is dead or must be: its chunks go to others, the one it had begun is counted."""
        with suppress(KeyError):
            self._selector.unregister(post.line)
        was_ready = post.ready
        if how is None:
            how = post.lost()
        else:
            post.kill()
        if not was_ready:
            post.stillborn += 1
            if post.stillborn >= self._tries:
                raise WorkerError(f"{post.name} {how} while it started, {_times(post.stillborn)}.")
        for turn in post.turns:
            task = turn.task
            task.holders -= 1
            if task.over:
                continue
            if turn is post.turns[0]:
                task.deaths += 1
            if task.deaths >= self._tries:
                task.finish()
                what = f"its worker {how}; that was worker {task.deaths} it has ended, and it is given up"
                self._done[task.index] = ChunkError(task.index, what)
            elif not task.holders:
                heapq.heappush(self._waiting, task)
        post.turns.clear()
        post.restarts += 1
        self._start(post)

    def _start(self, post: Post) -> None:
        post.start()
        self._selector.register(post.line, selectors.EVENT_READ, post)

    def _unpacked(self, index: int, parcel: Parcel) -> Any:
        try:
            return parcel.open(own=True)
        except Exception as error:
            kind = type(error).__name__
            raise ChunkError(index, f"its result could not be read: {kind}: {error}", kind) from error
        finally:
            parcel.close()

    def _forget(self) -> None:
        """Nobody wants the rest of this map: take back what has not begun, ignore what comes."""
        for post in self._posts:
            for k, turn in enumerate(post.turns):
                turn.task.finish()
                if k and not turn.recalled:
                    post.recall(turn)
        for task in self._waiting:
            task.finish()
        for outcome in self._done.values():
            if isinstance(outcome, Parcel):
                outcome.close()
        self._waiting.clear()
        self._done.clear()

    def _end(self, at_once: bool) -> None:
        """End all workers: those with nothing to do may leave by themselves, for a moment."""
        if not self._open:
            return
        self._open = False
        self._forget()
        started = [post for post in self._posts if hasattr(post, "process")]
        try:
            idle = [post for post in started if post.ready and not post.turns and not at_once]
            for post in idle:
                post.leave()
            until = time.monotonic() + LEAVE_S
            while time.monotonic() < until and not all(post.died() for post in idle):
                time.sleep(0.002)
        finally:
            for post in started:
                post.kill()
                post.turns.clear()
            self._selector.close()


class _Source:
    """The chunks, numbered and packed as they are pulled."""

    def __init__(self, chunks: Iterable[Any]) -> None:
        self.pulled, self.ended = 0, False
        self._chunks = iter(chunks)

    def pull(self) -> Task | None:
        """The next one; None at the end."""
        index = self.pulled
        what = "the source raised"
        try:
            try:
                chunk = next(self._chunks)
            except StopIteration:
                self.ended = True
                return None
            self.pulled += 1
            what = "it cannot be sent to a worker:"
            return Task(index, pack(chunk))
        except Exception as error:
            self.pulled, self.ended = index + 1, True
            kind = type(error).__name__
            failure = ChunkError(index, f"{what} {kind}: {error}", kind)
            failure.__cause__ = error
            raise failure from error


def _seconds(value: Any) -> bool:
    return isinstance(value, Real) and float(value) > 0


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
