"""Events by HTTP: POST /events with a bearer token, answered when they are on the disk.

    curl -H "authorization: Bearer $TOKEN" --data-binary @events.jsonl http://127.0.0.1:8080/events
    {"first": 1200, "count": 3, "size": 1203}

The body is one event per line, or a JSON list of events; all of it is taken or none. Who sends faster than the disk
takes it gets 503, faster than allowed 429, both with retry-after; a body that is too large 413, one that is wrong 400
with the reason. Nothing in a request names a file.

    curl -H "idempotency-key: $(uuidgen)" …

A request with a key of its own can be sent again after a lost answer, also to a watcher that was started anew: it is
recorded once, and answered with the place it has. The same key before other events is refused with 422.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ridgeline import web
from ridgeline.audit.ledger.event import encode
from ridgeline.audit.sources.requests import Answer, Known, Requests, Reused, checked_key
from ridgeline.audit.sources.source import Batch, Event, Keyed, Position
from ridgeline.audit.sources.text import json_line
from ridgeline.errors import InputError, RidgelineError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from ridgeline.audit.ledger.receipts import Receipts

BODY = 8 << 20  # bytes of a request
HELD = 50_000  # events that wait for the disk, over all requests
AT_ONCE = 8_000  # events of one batch
RATE = 50_000.0  # events per second, over all clients
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:]*):(?P<port>\d{1,5})")


@dataclass(frozen=True)
class _Asked:
    events: list[Event]
    answer: Answer
    key: str | None = None
    digest: str = ""


class Http:
    """`address`: :8080 is loopback; `token`: "auto" makes one. `announce` is told where it listens."""

    def __init__(
        self,
        address: str,
        token: str | None = "auto",  # noqa: S107
        *,
        announce: Callable[[str], object] = lambda line: None,
        metrics: Callable[[], str] = lambda: "",
        rate: float = RATE,
    ) -> None:
        found = _ADDRESS.fullmatch(address)
        if found is None:
            raise InputError(f"--http '{address}' is no address; write :8080 or 127.0.0.1:8080.")
        self._host, self._port = found["host"].strip("[]") or "127.0.0.1", int(found["port"])
        self.name = f"http:{address}"
        self._announce, self.metrics = announce, metrics
        self.recall: Callable[[], Iterable[Known]] = tuple  # what the log says of earlier requests
        self._requests = Requests()
        self._waiting: deque[_Asked] = deque()
        self._held = 0
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._more = asyncio.Event()
        self._stopped = False
        self._rate, self._allowed, self._last = rate, rate, time.monotonic()
        self._app = self._routes(token)

    def stop(self) -> None:
        self._stopped = True
        self._more.set()

    async def batches(self, position: Position | None) -> AsyncIterator[Batch]:
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(lambda: self._requests.recall(self.recall()))
        running = web.running(self._app, host=self._host, port=self._port)
        url = await asyncio.to_thread(running.__enter__)
        try:
            made = f"; token {self._app.rules.token}" if self._app.token_is_new else ""
            self._announce(f"taking events at {url}/events{made}")
            while True:
                asked = self._some()
                if asked:
                    yield self._batch(asked)
                    continue
                if self._stopped:
                    return
                self._more.clear()
                if not self._waiting:
                    await self._more.wait()
        finally:
            self._stopped = True
            self._fail(self._some(), RidgelineError("the watcher is stopping."))
            await asyncio.to_thread(running.__exit__, None, None, None)

    def _some(self) -> list[_Asked]:
        with self._mutex:
            taken, count = list[_Asked](), 0
            while self._waiting and (not taken or count + len(self._waiting[0].events) <= AT_ONCE):
                taken.append(self._waiting.popleft())
                count += len(taken[-1].events)
            self._held -= count
        return taken

    def _offer(self, asked: _Asked) -> int:
        """0 where it was taken, else the status to answer with."""
        count = len(asked.events)
        with self._mutex:
            now = time.monotonic()
            self._allowed = min(self._rate, self._allowed + (now - self._last) * self._rate)
            self._last = now
            if self._stopped or self._held + count > HELD:
                return 503
            if count > self._allowed:
                return 429
            self._allowed -= count
            self._waiting.append(asked)
            self._held += count
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._more.set)
        return 0

    def _batch(self, asked: list[_Asked]) -> Batch:
        starts, at = list[int](), 0
        for one in asked:
            starts.append(at)
            at += len(one.events)

        def taken(receipts: Receipts | None) -> None:
            first, size = (receipts.first, receipts.checkpoint_size) if receipts is not None else (0, 0)
            for one, start in zip(asked, starts, strict=True):
                if one.key is not None:
                    self._requests.done(Known(one.key, one.digest, first + start, len(one.events)))
                one.answer.set_result((first + start, size))

        def failed(error: BaseException) -> None:
            plain = error if isinstance(error, RidgelineError) else RidgelineError("the log could not take the events.")
            self._fail(asked, plain)

        keyed = tuple(
            Keyed(one.key, one.digest, start, len(one.events))
            for one, start in zip(asked, starts, strict=True)
            if one.key is not None
        )
        return Batch([event for one in asked for event in one.events], keyed=keyed, taken=taken, failed=failed)

    def _fail(self, asked: list[_Asked], error: RidgelineError) -> None:
        for one in asked:
            if one.key is not None:
                self._requests.forget(one.key)
            one.answer.set_exception(error)

    def _routes(self, token: str | None) -> web.App:
        from starlette.responses import JSONResponse, PlainTextResponse
        from starlette.routing import Route

        async def take(request: Request) -> Response:
            body, key = await request.body(), request.headers.get("idempotency-key")
            digest = sha256(body).hexdigest()[:32] if key is not None else ""
            asked = _Asked(_read(body), Future(), checked_key(key) if key is not None else None, digest)
            if not asked.events:
                return JSONResponse({"first": None, "count": 0})
            if key is not None:
                try:
                    found = self._requests.begin(key, digest, asked.answer)
                except Reused as error:
                    return JSONResponse({"error": str(error)}, 422)
                if found is not None:
                    return JSONResponse(await _again(found, len(asked.events)))
            if status := self._offer(asked):
                self._fail([asked], RidgelineError("too many events at once."))
                told = "too many events at once; send them again in a moment."
                return JSONResponse({"error": told}, status, {"retry-after": "1"})
            first, size = await _answered(asked.answer)
            return JSONResponse({"first": first, "count": len(asked.events), "size": size})

        async def metrics(request: Request) -> Response:
            return PlainTextResponse(self.metrics(), media_type="text/plain; version=0.0.4")

        routes = [Route("/events", take, methods=["POST"]), Route("/metrics", metrics)]
        return web.app(routes, token=token, body_limit=BODY, concurrency=256)


async def _answered(answer: Answer) -> tuple[int, int]:
    """A client that leaves takes its waiting with it, and not the answer: the events go to the disk all the same."""
    return await asyncio.shield(asyncio.wrap_future(answer))


async def _again(found: Known | Answer, count: int) -> dict[str, Any]:
    """The answer to a request that was here before, or still is."""
    if isinstance(found, Known):
        first, size = found.first, found.first + found.count
    else:
        first, size = await _answered(found)
    return {"first": first, "count": count, "size": size, "repeated": True}


def _read(body: bytes) -> list[Event]:
    """A list of events, or one per line; a wrong one is named, and none is taken."""
    if body.lstrip()[:1] == b"[":
        try:
            found: Any = json.loads(body)
        except (ValueError, RecursionError):
            raise InputError("the body is neither a JSON list of events nor one event per line.") from None
        lines = [json.dumps(event).encode() for event in found]
    else:
        lines = [line for line in body.split(b"\n") if line.strip()]
    events = [json_line(line, f"event {number}") for number, line in enumerate(lines)]
    for event in events:
        if event["source"] == "jsonl":
            event["source"] = "http"
    encode(events)
    return events
