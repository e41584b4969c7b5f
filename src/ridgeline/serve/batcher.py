"""Dynamic batching: one thread packs the texts of all requests into batches for one model.

An idle model starts at once with what is there; while a batch runs, the next one collects. A batch takes requests in
order of arrival, but from a long one only a share: the rest of that request waits behind the others for the next batch.
So a short request waits for one share of each long request before it, not for all their texts. A cancelled request
leaves the queue; what it has in a running batch is computed and thrown away.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from ridgeline.embed import Tokens
from ridgeline.errors import RidgelineError

SENT_AT_ONCE = 2  # requests of a batch; of more, the event loop sends the results together
SHARES = 16  # a request with more than this part of a batch is long

# Runs one batch: (output, tokens) → one result per text, in order.
RunBatch = Callable[[str, Tokens], Sequence[Any]]


class Queue(Protocol):
    """What a model does with the texts of requests: batches here (`Batcher`), or those of another process."""

    waiting_tokens: int
    tokens_per_second: float

    async def compute(self, tokens: Tokens, output: str) -> Sequence[Any]:
        """Return one result per text."""

    def close(self) -> None:
        """Finish the work that was accepted."""


@dataclass(frozen=True)
class BatchSizes:
    """What one batch held, for the metrics."""

    texts: int
    tokens: int
    requests: int
    seconds: float


class Stopped(RidgelineError):
    """The batcher takes no more work."""


# Takes the results of a request, or its error.
Deliver = Callable[[Sequence[Any] | None, BaseException | None], object]


@dataclass(eq=False)
class Request:
    """The texts of one request.

    output   what to compute; a batch has one output
    deliver  called once, in the event loop
    send     called before it with the results, in the thread of the batches, if the batch has few requests: it may send
             them at once, and returns whether it did
    """

    tokens: Tokens
    output: str
    loop: asyncio.AbstractEventLoop
    deliver: Deliver
    end: int  # the number of texts
    end_token: int  # the number of tokens
    results: list[Sequence[Any]] = field(default_factory=list)  # of the texts before `begin`, by batch
    begin: int = 0  # the first text that is in no batch yet
    begin_token: int = 0  # of that text
    missing: int = 0  # texts without a result
    cancelled: bool = False
    send: Callable[[Sequence[Any]], bool] | None = None
    was_sent: bool = False


_Part = tuple[Request, int, int]  # texts `first` to `end` of a request


class Batcher:
    """Batches for one model.

    run         computes one batch; called in one thread only
    max_tokens  tokens of a batch; a longer text is a batch of its own
    observe     called after each batch
    on_failure  called, once, when `run` raises something that is not a RidgelineError: the model has to be loaded again
    """

    def __init__(
        self,
        name: str,
        run: RunBatch,
        max_tokens: int,
        *,
        observe: Callable[[BatchSizes], object] = lambda sizes: None,
        on_failure: Callable[[BaseException], object] = lambda error: None,
    ) -> None:
        self._run, self._max_tokens, self._observe, self._on_failure = run, max_tokens, observe, on_failure
        self._queue: deque[Request] = deque()
        self._changed = threading.Condition()
        self._in_batch: list[Request] = []
        self._closing = False
        self.waiting_tokens = 0  # in no batch yet
        self.tokens_per_second = 0.0  # of the last batches
        self._thread = threading.Thread(target=self._work, name=f"serve-{name}", daemon=True)
        self._thread.start()

    async def compute(self, tokens: Tokens, output: str) -> Sequence[Any]:
        """Return one result per text, as an array if `run` returns arrays.

        If the caller is cancelled, its texts leave the queue.
        """
        answer: asyncio.Future[Sequence[Any]] = asyncio.get_running_loop().create_future()

        def deliver(results: Sequence[Any] | None, error: BaseException | None) -> None:
            if not answer.done():  # else the caller was cancelled
                if error is None:
                    answer.set_result(results if results is not None else [])
                else:
                    answer.set_exception(error)

        request = self.submit(tokens, output, deliver)
        try:
            return await answer
        finally:
            if request.missing:
                self.cancel(request)

    def submit(
        self, tokens: Tokens, output: str, deliver: Deliver, send: Callable[[Sequence[Any]], bool] | None = None
    ) -> Request:
        """Queue a request of the running event loop; `deliver` gets its results, unless it is cancelled before."""
        loop, texts = asyncio.get_running_loop(), len(tokens)
        request = Request(tokens, output, loop, deliver, texts, len(tokens.ids), missing=texts, send=send)
        if not texts:
            loop.call_soon(deliver, [], None)
            return request
        with self._changed:
            if self._closing:
                raise Stopped("the model is being replaced; try again.")
            self._queue.append(request)
            self.waiting_tokens += request.end_token
            self._changed.notify()
        return request

    def cancel(self, request: Request) -> None:
        """Take a request out of the queue; what it has in the running batch is thrown away."""
        with self._changed:
            if not request.cancelled:
                request.cancelled = True  # if it has texts in the running batch, it is not put back
                self.waiting_tokens -= request.end_token - request.begin_token
                with suppress(ValueError):
                    self._queue.remove(request)

    def close(self) -> None:
        """Finish the work that was accepted, then end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if not self._queue:
                    return
                parts = self._take_batch()
                self._in_batch = [request for request, _, _ in parts]
            self._run_batch(parts)
            with self._changed:
                for request, _, _ in parts:
                    if request.begin < request.end and not request.cancelled:
                        self._queue.append(request)

    def _take_batch(self) -> list[_Part]:
        """Take texts from the queue, those of one output; call with the lock held."""
        output = self._queue[0].output
        fitting = [request for request in self._queue if request.output == output]
        places: dict[Request, tuple[int, int]] = {}  # the text and the token at which the batch ends
        capacity = self._max_tokens
        for limit in (max(1, self._max_tokens // SHARES), self._max_tokens):  # shares first, then what is left
            for request in fitting:
                if capacity <= 0:
                    break
                start, start_token = places.get(request, (request.begin, request.begin_token))
                end, end_token = _find_end(request, start, start_token, min(limit, capacity), capacity, not places)
                if end > start:
                    places[request] = end, end_token
                    capacity -= end_token - start_token
        parts = [(request, request.begin, end) for request, (end, _) in places.items()]
        for request, (end, end_token) in places.items():
            self.waiting_tokens -= end_token - request.begin_token
            request.begin, request.begin_token = end, end_token
            self._queue.remove(request)
        return parts

    def _run_batch(self, parts: list[_Part]) -> None:
        start_s = time.perf_counter()
        try:
            tokens = _join_parts(parts)
            results = self._run(parts[0][0].output, tokens)
            if len(results) != len(tokens):
                raise RuntimeError(f"the model gave {len(results)} results for {len(tokens)} texts")
        except RidgelineError as error:
            self._refuse(parts, error)
            return
        except BaseException as error:
            self._break(error)
            return
        row, finished = 0, []
        for request, first, end in parts:
            request.results.append(_take_rows(results, row, row + end - first))
            row += end - first
            request.missing -= end - first
            if not request.missing:
                finished.append(request)
        sizes = BatchSizes(len(tokens), len(tokens.ids), len(parts), time.perf_counter() - start_s)
        rate = sizes.tokens / max(sizes.seconds, 1e-9)
        self.tokens_per_second += (rate - self.tokens_per_second) * (0.2 if self.tokens_per_second else 1.0)
        observe = partial(self._observe, sizes)
        if not _answer(finished, observe):
            observe()

    def _refuse(self, parts: list[_Part], error: RidgelineError) -> None:
        """Give the error to its request only: the parts of several requests run again, one request at a time."""
        if len(parts) == 1:
            request = parts[0][0]
            self.cancel(request)
            _set_error(request, error)
            return
        for part in parts:
            if not part[0].cancelled:  # a failure of the model has cancelled them all
                self._run_batch([part])

    def _break(self, error: BaseException) -> None:
        """The model is broken: nothing that waits for it can be answered."""
        with self._changed:
            self._closing = True
            failed = [*self._in_batch, *self._queue]
            self._queue.clear()
            self.waiting_tokens = 0
            for request in failed:
                request.cancelled = True
        self._on_failure(error)
        for request in failed:
            _set_error(request, Stopped("the model failed and is loaded again; try again in a moment."))


def _find_end(
    request: Request, start: int, start_token: int, limit: int, capacity: int, first: bool
) -> tuple[int, int]:
    """Return where the texts end that a batch takes: up to `limit` tokens, but one text at least if it fits."""
    if request.end_token - start_token <= limit:
        return request.end, request.end_token
    if start == request.end:
        return start, start_token
    offsets = request.tokens.offsets
    end = int(np.searchsorted(offsets, start_token + limit, "right")) - 1
    if end == start and (first or int(offsets[start + 1]) - start_token <= capacity):
        end = start + 1
    return end, int(offsets[end])


def _join_parts(parts: list[_Part]) -> Tokens:
    if len(parts) == 1 and parts[0][1:] == (0, parts[0][0].end):
        return parts[0][0].tokens
    ids, offsets, count = [], [np.zeros(1, np.int64)], 0
    for request, first, end in parts:
        given = request.tokens.offsets
        begin_token, end_token = int(given[first]), int(given[end])
        ids.append(request.tokens.ids[begin_token:end_token])
        offsets.append(given[first + 1 : end + 1] + (count - begin_token))
        count += end_token - begin_token
    return Tokens(np.concatenate(ids), np.concatenate(offsets))


def _take_rows(results: Any, begin: int, end: int) -> Any:
    """Return some results of a batch; a copy, for a view would keep the array of the whole batch."""
    if begin == 0 and end == len(results):
        return results
    rows = results[begin:end]
    return rows.copy() if isinstance(rows, np.ndarray) else rows


def _join_results(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return [result for part in parts for result in part]


def _answer(requests: list[Request], observe: Callable[[], object]) -> bool:
    """Wake finished requests, with one call per event loop; one loop also calls `observe`. False if no loop does."""
    if len(requests) <= SENT_AT_ONCE:
        for request in requests:
            if request.send is not None and not request.cancelled:
                request.was_sent = request.send(_join_results(request.results))
    observed = False
    for loop in {request.loop for request in requests}:
        mine = [request for request in requests if request.loop is loop]
        with suppress(RuntimeError):  # the loop is closed: its requests have gone
            loop.call_soon_threadsafe(_set_results, mine, None if observed else observe)
            observed = True
    return observed


def _set_results(requests: list[Request], observe: Callable[[], object] | None) -> None:
    for request in requests:
        request.deliver(_join_results(request.results), None)
    if observe is not None:
        # After the answers, which it would delay, and before the loop reads a next request: /metrics has what was
        # answered.
        asyncio.get_running_loop().call_soon(observe)


def _set_error(request: Request, error: BaseException) -> None:
    with suppress(RuntimeError):
        request.loop.call_soon_threadsafe(request.deliver, None, error)
