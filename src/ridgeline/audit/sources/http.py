"""The HTTP source: POST /events with a bearer token; the answer comes when the events are on the disk.

    curl -H "authorization: Bearer $TOKEN" --data-binary @events.jsonl http://127.0.0.1:8080/events
    {"first": 1200, "count": 3, "size": 1203}

The body is one event per line, or a JSON list of events; all of them are recorded, or none. The server answers 503 if
the disk is too slow and 429 above the allowed rate, both with retry-after; 413 if the body is too large, and 400 with
the reason if it is malformed. The body may be compressed (content-encoding: gzip or deflate). A request cannot
name a file.

    curl -H "idempotency-key: $(uuidgen)" …

A client may send a request with an idempotency key again after a lost answer, also to a restarted watcher: it is
recorded once, and the answer gives its place in the log. The same key with other events is refused with 422. The log
remembers the keys: in the same append, an internal event with the keys follows the events. A restart reads them back.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
import zlib
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ridgeline import web
from ridgeline.audit.ledger.event import encode
from ridgeline.audit.sources.lines import parse_json_line
from ridgeline.audit.sources.source import Batch, Event, KeyedEvents, Position
from ridgeline.errors import InputError, RidgelineError, StoreError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from ridgeline.audit.ledger.ledger import Receipts

BODY = 8 << 20  # most bytes of a request
MOST_WAITING = 50_000  # most events that wait for the disk, over all requests
AT_ONCE = 8_000  # events in one batch
RATE = 50_000.0  # allowed events per second, over all clients
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:]*):(?P<port>\d{1,5})")
MOST = 100_000  # requests in memory; the oldest are forgotten first
LONGEST = 200  # characters of a key

Answer = Future[tuple[int, int]]  # index of the first event, size of the log


@dataclass(frozen=True)
class PendingRequest:
    """Events that wait for the disk, and the answer for their client."""

    events: list[Event]
    answer: Answer
    key: str | None = None
    digest: str = ""


class Refusal(Exception):
    """A request that is answered with an error; `retry_s`: the client may send it again after this many seconds."""

    def __init__(self, status: int, sentence: str, retry_s: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.retry_s = status, retry_s

    @property
    def headers(self) -> dict[str, str]:
        return {"retry-after": str(self.retry_s)} if self.retry_s is not None else {}


class Http:
    """Receives events by HTTP.

    address   :8080 listens on loopback, 0.0.0.0:8080 on every interface
    token     the bearer token; "auto" creates one, which `token` returns
    announce  called with a line that tells the URL, never the token
    metrics   returns the text of /metrics
    rate      allowed events per second, over all clients
    """

    option, path = "--http", "/events"

    def __init__(
        self,
        address: str,
        token: str | None = "auto",  # noqa: S107
        *,
        announce: Callable[[str], object] = lambda line: None,
        metrics: Callable[[], str] = lambda: "",
        rate: float = RATE,
    ) -> None:
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise InputError(f"{self.option} '{address}' is no address; write :8080 or 127.0.0.1:8080.")
        self._host, self._port = match["host"].strip("[]") or "127.0.0.1", int(match["port"])
        self.name = f"{self.option.strip('-')}:{address}"
        self._announce, self.metrics = announce, metrics
        self.digest: Callable[[bytes], str] = lambda body: sha256(body).hexdigest()[:32]
        self.load_requests: Callable[[], Iterable[RecordedRequest]] = tuple  # reads earlier requests from the log
        self._requests = RequestMemory()
        self._waiting: deque[PendingRequest] = deque()
        self._waiting_events = 0
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._more = asyncio.Event()
        self._stopped = self._serving = False
        self._rate, self._allowed, self._last = rate, rate, time.monotonic()
        self._app = self._routes(token)

    @property
    def token(self) -> str | None:
        return self._app.rules.token

    @property
    def most_events(self) -> int:
        """The most events of one request; more would never be allowed."""
        return int(min(MOST_WAITING, self._rate))

    def stop(self) -> None:
        self._stopped = True
        self._more.set()

    async def batches(self, position: Position | None) -> AsyncGenerator[Batch, None]:
        self._loop, self._serving = asyncio.get_running_loop(), True
        await asyncio.to_thread(lambda: self._requests.load(self.load_requests()))
        running = web.run_in_background(self._app, host=self._host, port=self._port)
        url = await asyncio.to_thread(running.__enter__)
        try:
            self._announce(f"taking events at {url}{self.path}")
            while True:
                requests = self._take_requests()
                if requests:
                    yield self._batch(requests)
                    continue
                if self._stopped:
                    return
                self._more.clear()
                if not self._waiting:
                    await self._more.wait()
        finally:
            self._serving = False
            self._fail(self._take_requests(), RidgelineError("the watcher is stopping."))
            await asyncio.to_thread(running.__exit__, None, None, None)

    def _take_requests(self) -> list[PendingRequest]:
        with self._mutex:
            requests, count = list[PendingRequest](), 0
            while self._waiting and (not requests or count + len(self._waiting[0].events) <= AT_ONCE):
                requests.append(self._waiting.popleft())
                count += len(requests[-1].events)
            self._waiting_events -= count
        return requests

    def _offer(self, request: PendingRequest) -> int:
        """Queue a request; return 0, or the HTTP status of a refusal."""
        count = len(request.events)
        with self._mutex:
            now = time.monotonic()
            self._allowed = min(self._rate, self._allowed + (now - self._last) * self._rate)
            self._last = now
            if self._stopped or not self._serving or self._waiting_events + count > MOST_WAITING:
                return 503
            if count > self._allowed:
                return 429
            self._allowed -= count
            self._waiting.append(request)
            self._waiting_events += count
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._more.set)
        return 0

    def _batch(self, requests: list[PendingRequest]) -> Batch:
        starts, at = list[int](), 0
        for request in requests:
            starts.append(at)
            at += len(request.events)

        def confirm(receipts: Receipts | None) -> None:
            first, size = (receipts.first, receipts.checkpoint_size) if receipts is not None else (0, 0)
            for request, start in zip(requests, starts, strict=True):
                if request.key is not None:
                    self._requests.add(RecordedRequest(request.key, request.digest, first + start, len(request.events)))
                request.answer.set_result((first + start, size))

        def refuse(error: BaseException) -> None:
            plain = error if isinstance(error, RidgelineError) else RidgelineError("the log could not take the events.")
            self._fail(requests, plain)

        keyed = tuple(
            KeyedEvents(request.key, request.digest, start, len(request.events))
            for request, start in zip(requests, starts, strict=True)
            if request.key is not None
        )
        return Batch(
            [event for request in requests for event in request.events], keyed=keyed, taken=confirm, failed=refuse
        )

    def _fail(self, requests: list[PendingRequest], error: RidgelineError) -> None:
        for request in requests:
            if request.key is not None:
                self._requests.forget(request.key)
            request.answer.set_exception(error)

    def _routes(self, token: str | None) -> web.App:
        from starlette.responses import JSONResponse, PlainTextResponse
        from starlette.routing import Route

        async def take(request: Request) -> Response:
            try:
                return JSONResponse(await self._take(request))
            except Refusal as refusal:
                return JSONResponse({"error": str(refusal)}, refusal.status, refusal.headers)

        async def metrics(request: Request) -> Response:
            return PlainTextResponse(self.metrics(), media_type="text/plain; version=0.0.4")

        routes = [Route(self.path, take, methods=["POST"]), Route("/metrics", metrics)]
        return web.create_app(routes, token=token, body_limit=BODY, concurrency=256)

    async def _take(self, request: Request) -> dict[str, Any]:
        """Record the events of a request; return the answer."""
        key, body = request.headers.get("idempotency-key"), await read_body(request)
        digest = self.digest(body) if key is not None else ""
        received = PendingRequest(_parse_body(body), Future(), check_key(key) if key is not None else None, digest)
        if not received.events:
            return {"first": None, "count": 0}
        if key is not None:
            try:
                earlier = self._requests.begin(key, digest, received.answer)
            except KeyReused as error:
                raise Refusal(422, str(error)) from None
            if earlier is not None:
                return await _repeat_answer(earlier, len(received.events))
        first, size = await self.record(received)
        return {"first": first, "count": len(received.events), "size": size}

    async def record(self, received: PendingRequest) -> tuple[int, int]:
        """Wait until the events are on the disk; return the index of the first and the size of the log."""
        if len(received.events) > self.most_events:
            self._fail([received], RidgelineError("too many events at once."))
            why = f"the request has {len(received.events):,} events; send at most {self.most_events:,} at once."
            raise Refusal(413, why)
        if status := self._offer(received):
            self._fail([received], RidgelineError("too many events at once."))
            raise Refusal(status, "too many events at once; send them again in a moment.", retry_s=1)
        try:
            return await _wait_for_answer(received.answer)
        except StoreError as error:  # a full disk, for example: the client may send it again
            raise Refusal(503, str(error), retry_s=5) from None


async def read_body(request: Request) -> bytes:
    """Return the body of a request, decompressed."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    body = await request.body()
    if encoding == "identity":
        return body
    if encoding not in _DECOMPRESS:
        raise Refusal(415, f"the body is encoded as {encoding[:40]!r}; send {', '.join(_DECOMPRESS)} or identity.")
    plain = _DECOMPRESS[encoding](body)
    if plain is None:
        raise Refusal(413, f"the body has more than {BODY} bytes when decompressed.")
    return plain


async def _wait_for_answer(answer: Answer) -> tuple[int, int]:
    """Wait for the answer; a client that disconnects does not cancel it, so its events still go to the disk."""
    return await asyncio.shield(asyncio.wrap_future(answer))


async def _repeat_answer(earlier: RecordedRequest | Answer, count: int) -> dict[str, Any]:
    """Answer a request that was recorded before, or is being recorded."""
    if isinstance(earlier, RecordedRequest):
        first, size = earlier.first, earlier.first + earlier.count
    else:
        first, size = await _wait_for_answer(earlier)
    return {"first": first, "count": count, "size": size, "repeated": True}


def _decompress(body: bytes, name: str = "gzip", wbits: int = 31) -> bytes | None:
    """Decompress a gzip or zlib body; None if it has more than BODY bytes. Raise `InputError` if it is none."""
    parts, left = list[bytes](), BODY
    try:
        while body:  # a gzip file may have several members
            stream = zlib.decompressobj(wbits=wbits)
            parts.append(stream.decompress(body, left + 1))
            left -= len(parts[-1])
            if left < 0:
                return None
            if not stream.eof:
                raise InputError(f"the {name} body is not complete.")
            body = stream.unused_data
    except zlib.error:
        raise InputError(f"the body is no {name}, though content-encoding says so.") from None
    return b"".join(parts)


def _decompress_deflate(body: bytes) -> bytes | None:
    """Decompress "deflate", which is zlib; some clients send it without zlib's header."""
    try:
        return _decompress(body, "deflate", 15)
    except InputError:
        return _decompress(body, "deflate", -15)


_DECOMPRESS: dict[str, Callable[[bytes], bytes | None]] = {
    "gzip": _decompress,
    "x-gzip": _decompress,
    "deflate": _decompress_deflate,
}


def _parse_body(body: bytes) -> list[Event]:
    """Parse a list of events, or one event per line; raise `InputError` with the number of a bad one."""
    if body.lstrip()[:1] == b"[":
        try:
            listed: Any = json.loads(body)
        except (ValueError, RecursionError):
            raise InputError("the body is neither a JSON list of events nor one event per line.") from None
        lines = [json.dumps(event).encode() for event in listed]
    else:
        lines = [line for line in body.split(b"\n") if line.strip()]
    events = [parse_json_line(line, f"event {number}") for number, line in enumerate(lines)]
    for event in events:
        if event["source"] == "jsonl":
            event["source"] = "http"
    encode(events)
    return events


@dataclass(frozen=True)
class RecordedRequest:
    """A request in the log: its events are `count` entries from `first` on. `digest` is that of its body."""

    key: str
    digest: str
    first: int
    count: int


@dataclass(frozen=True)
class _Pending:
    digest: str
    answer: Answer


class KeyReused(InputError):
    """A key that was used with other events."""


def check_key(key: str) -> str:
    """Return `key` if it is visible ASCII and short enough; else raise `InputError`."""
    if not 1 <= len(key) <= LONGEST or not all("!" <= letter <= "~" for letter in key):
        raise InputError(f"the idempotency-key must be 1 to {LONGEST} visible ASCII characters, such as a UUID.")
    return key


class RequestMemory:
    """Remembers keyed requests; several threads may use it."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._seen: OrderedDict[str, RecordedRequest | _Pending] = OrderedDict()  # the oldest first
        self._mutex = threading.Lock()

    def load(self, known: Iterable[RecordedRequest]) -> None:
        """Add earlier requests, in log order."""
        for one in known:
            self.add(one)

    def begin(self, key: str, digest: str, answer: Answer) -> RecordedRequest | Answer | None:
        """Return None for a new request, which `answer` will answer; else the recorded request, or its answer."""
        with self._mutex:
            listed = self._seen.get(key)
            if listed is None:
                self._seen[key] = _Pending(digest, answer)
                return None
        if listed.digest != digest:
            raise KeyReused(f"the idempotency-key '{key}' was used with other events; give these events another key.")
        return listed if isinstance(listed, RecordedRequest) else listed.answer

    def add(self, known: RecordedRequest) -> None:
        """Note that a request is on the disk."""
        with self._mutex:
            self._seen.pop(known.key, None)
            self._seen[known.key] = known
            while len(self._seen) > self._most:
                self._seen.popitem(last=False)

    def forget(self, key: str) -> None:
        """Forget a request that did not reach the disk, so that it can be sent again."""
        with self._mutex:
            if isinstance(self._seen.get(key), _Pending):
                del self._seen[key]
