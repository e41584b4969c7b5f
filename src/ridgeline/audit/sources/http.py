"""Events by HTTP: POST /events with a bearer token, answered when they are on the disk.

    curl -H "authorization: Bearer $TOKEN" --data-binary @events.jsonl http://127.0.0.1:8080/events
    {"first": 1200, "count": 3, "size": 1203}

The body is one event per line, or a JSON list of events; all of it is taken or none. Who sends faster than the disk
takes it gets 503, faster than allowed 429, both with retry-after; a body that is too large 413, one that is wrong 400
with the reason. Nothing in a request names a file.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ridgeline import web
from ridgeline.audit.event import encode
from ridgeline.audit.sources import Batch, Event, Position
from ridgeline.audit.sources.text import json_line
from ridgeline.errors import InputError, RidgelineError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from ridgeline.audit.receipts import Receipts

BODY = 8 << 20  # bytes of a request
HELD = 50_000  # events that wait for the disk, over all requests
AT_ONCE = 8_000  # events of one batch
RATE = 50_000.0  # events per second, over all clients
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:]*):(?P<port>\d{1,5})")


@dataclass(frozen=True)
class _Asked:
    events: list[Event]
    answer: Future[tuple[int, int]]  # index of its first event, size of the log


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
        running = web.running(self._app, host=self._host, port=self._port)
        url = await asyncio.to_thread(running.__enter__)
        try:
            made = f"; token {self._app.rules.token}" if self._app.token_is_new else ""
            self._announce(f"taking events at {url}/events{made}")
            while True:
                asked = self._some()
                if asked:
                    yield _batch(asked)
                    continue
                if self._stopped:
                    return
                self._more.clear()
                if not self._waiting:
                    await self._more.wait()
        finally:
            self._stopped = True
            for late in self._some():
                late.answer.set_exception(RidgelineError("the watcher is stopping."))
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

    def _routes(self, token: str | None) -> web.App:
        from starlette.responses import JSONResponse, PlainTextResponse
        from starlette.routing import Route

        async def take(request: Request) -> Response:
            asked = _Asked(_read(await request.body()), Future())
            if not asked.events:
                return JSONResponse({"first": None, "count": 0})
            if status := self._offer(asked):
                told = "too many events at once; send them again in a moment."
                return JSONResponse({"error": told}, status, {"retry-after": "1"})
            first, size = await asyncio.wrap_future(asked.answer)
            return JSONResponse({"first": first, "count": len(asked.events), "size": size})

        async def metrics(request: Request) -> Response:
            return PlainTextResponse(self.metrics(), media_type="text/plain; version=0.0.4")

        routes = [Route("/events", take, methods=["POST"]), Route("/metrics", metrics)]
        return web.app(routes, token=token, body_limit=BODY, concurrency=256)


def _batch(asked: list[_Asked]) -> Batch:
    def taken(receipts: Receipts | None) -> None:
        at = receipts.first if receipts is not None else 0
        for one in asked:
            one.answer.set_result((at, receipts.checkpoint_size if receipts is not None else 0))
            at += len(one.events)

    def failed(error: BaseException) -> None:
        told = error if isinstance(error, RidgelineError) else RidgelineError("the log could not take the events.")
        for one in asked:
            one.answer.set_exception(told)

    return Batch([event for one in asked for event in one.events], taken=taken, failed=failed)


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
