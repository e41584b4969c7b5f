"""What every request passes before a handler sees it: host, origin, token, size, number, time.

Plain ASGI on the standard library. A browser is the dangerous client of a server on loopback: any web page
can make it send requests there. So names that could be rebound are refused (Host), writes from other sites
are refused (Origin), and nothing answered can be framed, sniffed, cached or read across origins.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

HEALTH = "/healthz"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_DRAINED = 8 * 2**20  # read on after a refusal, so that the client is done sending and reads our answer
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
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rules:
    """What the guard lets through."""

    token: str | None
    body_limit: int  # bytes
    deadline_s: float  # until the answer begins; a stream may then go on
    concurrency: int  # requests being answered at once
    hosts: frozenset[str]  # names the server answers to, besides localhost and plain addresses


@dataclass(frozen=True)
class App:
    """An ASGI application behind its guard."""

    inner: Asgi
    rules: Rules
    token_is_new: bool = False  # made here, so that the user must be told
    running: set[asyncio.Task[None]] = field(default_factory=set, repr=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.inner(scope, receive, send)
        elif scope["type"] == "http":
            await _guarded(self, scope, receive, _secured(send))
        else:
            await send({"type": "websocket.close", "code": 1008})


@dataclass(frozen=True)
class _Answer:
    status: int
    sentence: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


async def _guarded(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    refusal = _foreign(scope, app.rules)
    if refusal is None and scope["path"] != HEALTH and app.rules.token is not None:
        if (cookie := _exchanged(scope, app.rules.token)) is not None:
            await _answer(send, cookie)
            return
        if not _authorised(scope, app.rules.token):
            refusal = _Answer(401, "a valid token is needed.", ((b"www-authenticate", b"Bearer"),))
    if refusal is None and len(app.running) >= app.rules.concurrency:
        refusal = _Answer(503, "the server is busy; try again in a moment.", ((b"retry-after", b"1"),))
    if refusal is not None:
        await _answer(send, refusal)
        return
    await _in_time(app, scope, receive, send)


async def _in_time(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Runs the request as a task of its own: a handler that blocks a thread cannot be stopped, only left."""
    begun = asyncio.Event()
    left = False

    async def sending(message: Message) -> None:
        if not left:
            begun.set()
            await send(message)

    task = asyncio.create_task(_whole(app, scope, receive, sending))
    app.running.add(task)
    task.add_done_callback(lambda done: _finished(app, done))
    waiting = asyncio.create_task(begun.wait())
    try:
        await asyncio.wait({task, waiting}, timeout=app.rules.deadline_s, return_when=asyncio.FIRST_COMPLETED)
        if not begun.is_set() and not task.done():
            left = True
            task.cancel()
            await _answer(send, _Answer(504, f"no answer within {app.rules.deadline_s:g} s."))
            return
        await asyncio.wait({task})
        failed = not task.cancelled() and task.exception() is not None
        if failed and not begun.is_set():
            await _answer(send, _Answer(500, "the server failed on this request; its log says why."))
    except asyncio.CancelledError:
        # The server stops and this is the request's last moment; going on raising would only print a traceback.
        if not begun.is_set():
            left = True
            await _answer(send, _Answer(503, "the server is stopping.", ((b"connection", b"close"),)))
    finally:
        waiting.cancel()
        task.cancel()


def _finished(app: App, task: asyncio.Task[None]) -> None:
    app.running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a request failed", exc_info=error)


async def _whole(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the body up to the limit, then calls the handler; none ever sees half a body."""
    limit = app.rules.body_limit
    declared = _header(scope, b"content-length")
    expected = int(declared) if declared.isdigit() else 0
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        if max(expected, len(body)) > limit:
            await _answer(send, await _too_large(receive, message, limit))
            return
        if not message.get("more_body"):
            break
    first: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def replayed() -> Message:
        return first.pop() if first else await receive()

    await app.inner(scope, replayed, send)


async def _too_large(receive: Receive, message: Message, limit: int) -> _Answer:
    drained = 0
    while message.get("more_body") and drained < _DRAINED:
        message = await receive()
        drained += len(message.get("body", b""))
    return _Answer(413, f"the body is larger than {limit} bytes.", ((b"connection", b"close"),))


def _foreign(scope: Scope, rules: Rules) -> _Answer | None:
    """Refuses a Host that DNS could have been bent to, and writes that another site started."""
    host = _header(scope, b"host")
    if not _known(host, rules.hosts):
        return _Answer(421, "this server does not answer to that Host; use localhost or its address.")
    if scope["method"] in _SAFE:
        return None
    origin = _header(scope, b"origin")
    site = _header(scope, b"sec-fetch-site")
    if (origin and _netloc(origin) != host.lower()) or site not in ("", "same-origin", "none"):
        return _Answer(403, "the request comes from another site.")
    return None


def _known(host: str, hosts: frozenset[str]) -> bool:
    """localhost, the names given, or a plain address: rebinding needs a name that an attacker owns."""
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


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _authorised(scope: Scope, token: str) -> bool:
    kind, _, given = _header(scope, b"authorization").partition(" ")
    if kind.lower() == "bearer" and _same(given.strip(), token):
        return True
    try:
        cookie = SimpleCookie(_header(scope, b"cookie")).get(_cookie_name(scope))
    except CookieError:
        return False
    return cookie is not None and _same(cookie.value, _cookie_value(token))


def _exchanged(scope: Scope, token: str) -> _Answer | None:
    """`GET /x?token=…` becomes a cookie and a redirect, so that the token leaves the address bar."""
    query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    given = [value for key, value in query if key == "token"]
    if scope["method"] != "GET" or not given or not _same(given[0], token):
        return None
    rest = urlencode([(key, value) for key, value in query if key != "token"])
    # One slash at the front, whatever came: `//other.host` would lead away.
    path = "/" + quote(scope["path"].lstrip("/\\"))
    cookie = f"{_cookie_name(scope)}={_cookie_value(token)}; HttpOnly; SameSite=Strict; Path=/"
    location = f"{path}?{rest}" if rest else path
    return _Answer(
        303,
        "the token is kept as a cookie.",
        ((b"location", location.encode()), (b"set-cookie", cookie.encode())),
    )


def _cookie_name(scope: Scope) -> str:
    """With the port: cookies do not tell the ports of one host apart."""
    return f"ridgeline-{(scope.get('server') or ('', 0))[1]}"


def _cookie_value(token: str) -> str:
    """Derived, so that the token itself never lies in the browser."""
    return hmac.new(token.encode(), b"ridgeline cookie", hashlib.sha256).hexdigest()


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def _header(scope: Scope, name: bytes) -> str:
    return next((bytes(value).decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _secured(send: Send) -> Send:
    """Adds the security headers to every answer; a handler may set its own policy and caching."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(bytes(key).lower(), bytes(value)) for key, value in message.get("headers", ())]
            present = {key for key, _ in headers}
            headers += [(key, value) for key, value in _HEADERS.items() if key not in present]
            # frame-ancestors only works in a header, so a page's own policy cannot carry it.
            headers = [
                (key, value + b"; frame-ancestors 'none'" if key == b"content-security-policy" else value)
                for key, value in headers
            ]
            message = {**message, "headers": headers}
        await send(message)

    return sending


async def _answer(send: Send, answer: _Answer) -> None:
    body = json.dumps({"error" if answer.status >= 400 else "status": answer.sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": answer.status, "headers": [*headers, *answer.headers]})
    await send({"type": "http.response.body", "body": body})
