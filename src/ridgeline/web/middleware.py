"""Middleware that checks every request before its handler: host, origin, token, body size, concurrency, deadline.

It is plain ASGI on the standard library. The dangerous client of a loopback server is a browser, because any web page
can make it send requests there. So the middleware refuses names that DNS rebinding could use (Host) and writes from
other sites (Origin), and no other site can frame, sniff, cache or read an answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from ridgeline.web.plain_requests import PlainHandler, Reply

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
FormatError = Callable[[str, int, str], Any]

HEALTH = "/healthz"
_FAILED = "the server failed on this request; its log says why."
_BUSY = "the server is busy; try again in a moment."
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Read after a refusal, so that a client that still sends reads the answer.
_MAX_DRAIN = 8 * 2**20  # bytes
_MAX_DRAIN_S = 2.0
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::\d+)?", re.IGNORECASE)
_HEADERS = {
    b"content-security-policy": b"default-src 'none'; base-uri 'none'; form-action 'none'",
    b"cache-control": b"no-store",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-embedder-policy": b"require-corp",
    b"permissions-policy": b"camera=(), geolocation=(), microphone=()",
}
# Of an answer to a program. frame-ancestors only works in a header, not in the policy inside a page.
SECURITY_HEADERS = [
    (key, value + b"; frame-ancestors 'none'" if key == b"content-security-policy" else value)
    for key, value in _HEADERS.items()
]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rules:
    """What the middleware lets through."""

    token: str | None
    body_limit: int  # bytes
    deadline_s: float  # until the answer starts; a stream may take longer
    concurrency: int  # requests in progress at the same time
    queue: int  # requests that wait for their turn; more are refused
    queue_s: float  # how long a request waits for its turn
    hosts: frozenset[str]  # accepted names, besides localhost and plain addresses
    format_error: FormatError | None = None  # (path, status, sentence) → the body of a refusal, as JSON
    open_paths: frozenset[str] = frozenset({HEALTH})  # need no token
    bodies_limit: int | None = None  # bytes of the bodies of all requests in progress
    public: bool = False  # any client, under any name of the server


@dataclass
class _Bodies:
    """The bytes of the bodies of all requests in progress."""

    size: int = 0


@dataclass(frozen=True)
class App:
    """An ASGI application behind the middleware."""

    inner: Asgi
    rules: Rules
    token_is_new: bool = False  # generated, so `serve` must print it
    running: set[asyncio.Task[None]] = field(default_factory=set, repr=False)
    bodies: _Bodies = field(default_factory=_Bodies, repr=False)
    plain: Mapping[str, PlainHandler] = field(default_factory=dict, repr=False)  # by path, answered without ASGI
    turns: deque[asyncio.Future[None]] = field(default_factory=deque, repr=False)  # of the requests that wait

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.inner(scope, receive, send)
        elif scope["type"] == "http":
            await _handle_http(self, scope, receive, _add_security_headers(send))
        else:
            await send({"type": "websocket.close", "code": 1008})

    def allows_plain(self, scope: Scope, size: int) -> bool:
        """Whether a plain request with a body of `size` bytes passes all checks and may run at once."""
        rules = self.rules
        return (
            _check_origin(scope, rules) is None
            and (rules.token is None or scope["path"] in rules.open_paths or _is_authorised(scope, rules.token))
            and not self.turns
            and len(self.running) < rules.concurrency
            and size <= rules.body_limit
            and (rules.bodies_limit is None or self.bodies.size + size <= rules.bodies_limit)
        )

    def run_plain(self, task: asyncio.Task[None]) -> None:
        """Count the task of a plain request among the requests in progress."""
        self.running.add(task)
        task.add_done_callback(lambda done: _finish(self, done))

    async def answer_plain(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Return the answer of the handler of plain requests; raise nothing but CancelledError."""
        try:
            return await self.plain[path](body, headers)
        except Exception as error:
            _log.error("a request failed", exc_info=error)
            return self.refuse_plain(path, 500, _FAILED)

    def refuse_plain(self, path: str, status: int, sentence: str) -> Reply:
        """Return the answer of a refusal or an error."""
        return Reply(status, _format_refusal(self.rules, path, status, sentence))


@dataclass(frozen=True)
class _Answer:
    status: int
    sentence: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


async def _handle_http(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    refusal = _check_length(scope) or _check_origin(scope, app.rules)
    if refusal is None and scope["path"] not in app.rules.open_paths and app.rules.token is not None:
        if (cookie := _exchange_token(scope, app.rules.token)) is not None:
            await _send_answer(app, scope, send, cookie)
            return
        if not _is_authorised(scope, app.rules.token):
            refusal = _Answer(401, "a valid token is needed.", ((b"www-authenticate", b"Bearer"),))
    if refusal is None and not await _wait_for_turn(app):
        refusal = _Answer(503, _BUSY, ((b"retry-after", b"1"),))
    if refusal is not None:
        await _send_answer(app, scope, send, refusal)
        return
    await _run_with_deadline(app, scope, receive, send)


async def _wait_for_turn(app: App) -> bool:
    """Wait until fewer requests than the limit are in progress, first come first served; False if it takes too long."""
    if len(app.running) < app.rules.concurrency and not app.turns:
        return True
    if len(app.turns) >= app.rules.queue:
        return False
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    app.turns.append(turn)
    try:
        await asyncio.wait({turn}, timeout=app.rules.queue_s)
    except asyncio.CancelledError:
        app.turns.remove(turn)
        _give_turns(app)  # the next one may have this turn
        raise
    app.turns.remove(turn)
    return turn.done()


def _give_turns(app: App) -> None:
    """Wake as many waiting requests as may run now. A woken one stays in the queue until it runs."""
    free = app.rules.concurrency - len(app.running) - sum(turn.done() for turn in app.turns)
    for turn in app.turns:
        if free > 0 and not turn.done():
            turn.set_result(None)
            free -= 1


async def _run_with_deadline(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Run the request in a task: a handler that blocks a thread cannot be stopped, only abandoned."""
    started = asyncio.Event()
    abandoned = False

    async def forward(message: Message) -> None:
        if not abandoned:
            started.set()
            await send(message)

    task = asyncio.create_task(_read_body_and_run(app, scope, receive, forward))
    app.running.add(task)
    task.add_done_callback(lambda done: _finish(app, done))
    waiting = asyncio.create_task(started.wait())
    try:
        await asyncio.wait({task, waiting}, timeout=app.rules.deadline_s, return_when=asyncio.FIRST_COMPLETED)
        if not started.is_set() and not task.done():
            abandoned = True
            task.cancel()
            await _send_answer(app, scope, send, _Answer(504, f"no answer within {app.rules.deadline_s:g} s."))
            return
        await asyncio.wait({task})
        failed = not task.cancelled() and task.exception() is not None
        if failed and not started.is_set():
            await _send_answer(app, scope, send, _Answer(500, _FAILED))
    except asyncio.CancelledError:
        # The server is stopping. Re-raising would only print a traceback.
        if not started.is_set():
            abandoned = True
            await _send_answer(app, scope, send, _Answer(503, "the server is stopping.", ((b"connection", b"close"),)))
    finally:
        waiting.cancel()
        task.cancel()


def _finish(app: App, task: asyncio.Task[None]) -> None:
    app.running.discard(task)
    _give_turns(app)
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a request failed", exc_info=error)


async def _read_body_and_run(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body up to the limits, then call the handler; a handler never sees half a body."""
    declared = _get_header(scope, b"content-length")
    body = bytearray()
    if declared.isdigit() and int(declared[:18]) > app.rules.body_limit:
        await _refuse_body(app, scope, receive, send, _refuse_size(app.rules))
        return
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            app.bodies.size += len(message.get("body", b""))
            if len(body) > app.rules.body_limit:
                await _refuse_body(app, scope, receive, send, _refuse_size(app.rules))
                return
            if app.rules.bodies_limit is not None and app.bodies.size > app.rules.bodies_limit:
                busy = _Answer(503, _BUSY, ((b"retry-after", b"1"), (b"connection", b"close")))
                await _refuse_body(app, scope, receive, send, busy)
                return
            if not message.get("more_body"):
                break
        first: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def receive_body() -> Message:
            return first.pop() if first else await receive()

        await app.inner(scope, receive_body, send)
    finally:
        app.bodies.size -= len(body)


def _refuse_size(rules: Rules) -> _Answer:
    return _Answer(413, f"the body is larger than {rules.body_limit} bytes.", ((b"connection", b"close"),))


async def _refuse_body(app: App, scope: Scope, receive: Receive, send: Send, answer: _Answer) -> None:
    """Answer at once, then read on for a moment: closing a connection that has unread bytes can destroy the answer."""
    await _send_answer(app, scope, send, answer, more_body=True)
    drained, more = 0, True
    with suppress(TimeoutError):
        async with asyncio.timeout(_MAX_DRAIN_S):
            while more and drained < _MAX_DRAIN:
                message = await receive()
                drained += len(message.get("body", b""))
                more = message["type"] != "http.disconnect" and message.get("more_body", False)
    await send({"type": "http.response.body", "body": b""})


def _check_length(scope: Scope) -> _Answer | None:
    """Refuse a body with two lengths: a proxy that takes the other one sees other requests than this server."""
    if _get_header(scope, b"transfer-encoding") and _get_header(scope, b"content-length"):
        sentence = "the request has both a Content-Length and a Transfer-Encoding."
        return _Answer(400, sentence, ((b"connection", b"close"),))
    return None


def _check_origin(scope: Scope, rules: Rules) -> _Answer | None:
    """Refuse unknown hosts (DNS rebinding) and writes that another site started."""
    if rules.public:
        return None
    host = _get_header(scope, b"host")
    if not _is_known_host(host, rules.hosts):
        return _Answer(421, "this server does not answer to that Host; use localhost or its address.")
    if scope["method"] in _SAFE_METHODS:
        return None
    origin = _get_header(scope, b"origin")
    site = _get_header(scope, b"sec-fetch-site")
    if (origin and _parse_netloc(origin) != host.lower()) or site not in ("", "same-origin", "none"):
        return _Answer(403, "the request comes from another site.")
    return None


def _is_known_host(host: str, hosts: frozenset[str]) -> bool:
    """Accept localhost, the given names and plain addresses: rebinding needs a name that an attacker owns."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match[1].lower()
    if name == "localhost" or name in hosts:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _parse_netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_authorised(scope: Scope, token: str) -> bool:
    kind, _, given = _get_header(scope, b"authorization").partition(" ")
    if kind.lower() == "bearer" and _is_equal(given.strip(), token):
        return True
    try:
        cookie = SimpleCookie(_get_header(scope, b"cookie")).get(_get_cookie_name(scope))
    except CookieError:
        return False
    return cookie is not None and _is_equal(cookie.value, _derive_cookie(token))


def _exchange_token(scope: Scope, token: str) -> _Answer | None:
    """Answer `GET /x?token=…` with a cookie and a redirect, so that the token leaves the address bar."""
    query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    given = [value for key, value in query if key == "token"]
    if scope["method"] != "GET" or not given or not _is_equal(given[0], token):
        return None
    rest = urlencode([(key, value) for key, value in query if key != "token"])
    # Exactly one leading slash: `//other.host` would redirect to another site.
    path = "/" + quote(scope["path"].lstrip("/\\"))
    cookie = f"{_get_cookie_name(scope)}={_derive_cookie(token)}; HttpOnly; SameSite=Strict; Path=/"
    location = f"{path}?{rest}" if rest else path
    return _Answer(
        303,
        "the token is stored as a cookie.",
        ((b"location", location.encode()), (b"set-cookie", cookie.encode())),
    )


def _get_cookie_name(scope: Scope) -> str:
    """Include the port: browsers share cookies between the ports of a host."""
    return f"ridgeline-{(scope.get('server') or ('', 0))[1]}"


def _derive_cookie(token: str) -> str:
    """Derive the cookie, so that the browser never stores the token itself."""
    return hmac.new(token.encode(), b"ridgeline cookie", hashlib.sha256).hexdigest()


def _is_equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def _get_header(scope: Scope, name: bytes) -> str:
    return next((bytes(value).decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _add_security_headers(send: Send) -> Send:
    """Add the security headers to every answer; a handler may set its own policy and caching."""

    async def send_secured(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(bytes(key).lower(), bytes(value)) for key, value in message.get("headers", ())]
            present = {key for key, _ in headers}
            headers += [(key, value) for key, value in _HEADERS.items() if key not in present]
            # frame-ancestors only works in a header, not in the policy inside a page.
            headers = [
                (key, value + b"; frame-ancestors 'none'" if key == b"content-security-policy" else value)
                for key, value in headers
            ]
            message = {**message, "headers": headers}
        await send(message)

    return send_secured


def _format_refusal(rules: Rules, path: str, status: int, sentence: str) -> bytes:
    content: Any = {"error" if status >= 400 else "status": sentence}
    if status >= 400 and rules.format_error is not None:
        content = rules.format_error(path, status, sentence)
    return json.dumps(content).encode()


async def _send_answer(app: App, scope: Scope, send: Send, answer: _Answer, *, more_body: bool = False) -> None:
    body = _format_refusal(app.rules, scope["path"], answer.status, answer.sentence)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": answer.status, "headers": [*headers, *answer.headers]})
    await send({"type": "http.response.body", "body": body, "more_body": more_body})
