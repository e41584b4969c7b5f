"""A small HTTP server: loopback by default, behind the checks of middleware.py and the limits of connections.py.

    from ridgeline.web import create_app, serve
    serve(create_app([Route("/", index)]), port=8000)

It needs Starlette and uvicorn: the extra `serve`.
"""

from __future__ import annotations

import errno
import ipaddress
import math
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ridgeline.errors import InputError, MissingExtra, RidgelineError
from ridgeline.web import connections
from ridgeline.web.middleware import HEALTH, App, FormatError, Rules
from ridgeline.web.pages import get_policy
from ridgeline.web.plain_requests import PlainHandler

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

_TOKEN = re.compile(r"[!-~]{16,}")  # fits a header and a URL, and is long enough not to be guessed
_START_S = 15.0


def create_app(
    routes: Sequence[BaseRoute],
    *,
    token: str | None = None,
    hosts: Sequence[str] = (),
    open_paths: Sequence[str] = (),
    body_limit: int = 2**20,
    bodies_limit: int | None = None,
    deadline_s: float = 30.0,
    concurrency: int = 32,
    queue: int = 512,
    queue_s: float = 20.0,
    lifespan: Callable[[Any], Any] | None = None,
    format_error: FormatError | None = None,
    public: bool = False,
    plain: Mapping[str, PlainHandler] | None = None,
) -> App:
    """Put routes and `/healthz` behind the middleware.

    `token="auto"` generates a token; `open_paths` need none. `hosts` are further names of the server. `body_limit` is
    in bytes, `bodies_limit` for all requests together. `concurrency` is the number of requests in progress. Up to
    `queue` more wait for at most `queue_s` seconds, the rest gets 503. `format_error` makes the body of a refusal of
    (path, status, sentence); by default {"error": sentence}. `public` lets any client in, under any name of the server
    and without a token: for handlers that check what they get by itself, such as its signature. `plain` are handlers by
    path for short POSTs (plain_requests.py): they answer most requests without ASGI, and a route of the same path
    answers the rest. If a handler raises a RidgelineError, the answer is its sentence (400 for an InputError, else
    500). For any other error the answer is a 500 without details, and the error goes to the log.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.responses import JSONResponse
        from starlette.routing import Route
    except ImportError:
        raise MissingExtra("the web server", "serve") from None

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def handle_error(request: Request, error: Exception) -> Response:
        headers = None
        if isinstance(error, HTTPException):
            status, sentence, headers = (
                error.status_code,
                _format_sentence(error.status_code, error.detail),
                error.headers,
            )
        elif isinstance(error, RidgelineError):
            status, sentence = 400 if isinstance(error, InputError) else 500, str(error)
        else:
            status, sentence = 500, "the server failed on this request; its log says why."
        body = {"error": sentence} if format_error is None else format_error(request.url.path, status, sentence)
        return JSONResponse(body, status, headers)

    if token not in (None, "auto") and not _TOKEN.fullmatch(token or ""):
        raise InputError("a token has at least 16 visible ASCII characters; token='auto' makes one.")
    rules = Rules(
        token=secrets.token_urlsafe(32) if token == "auto" else token,  # noqa: S105
        body_limit=body_limit,
        deadline_s=deadline_s,
        concurrency=concurrency,
        queue=queue,
        queue_s=queue_s,
        hosts=frozenset(name.lower() for name in hosts),
        format_error=format_error,
        open_paths=frozenset({HEALTH, *open_paths}),
        bodies_limit=bodies_limit,
        public=public,
    )
    inner = Starlette(
        routes=[Route(HEALTH, health), *routes],
        exception_handlers={HTTPException: handle_error, RidgelineError: handle_error, Exception: handle_error},
        lifespan=lifespan,
    )
    return App(inner, rules, token_is_new=token == "auto", plain=plain or {})  # noqa: S105


def create_page_response(document: str, status: int = 200) -> Response:
    """Return a response with a page of `build_page` and its policy as a header."""
    from starlette.responses import HTMLResponse

    return HTMLResponse(document, status, {"content-security-policy": get_policy(document)})


def serve(
    app: App,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    announce: Callable[[str], object] = print,
    drain_s: float = 3.0,
    max_connections: int | None = None,
    keep_alive_s: float = 5.0,
    listener: socket.socket | None = None,
) -> None:
    """Serve until Ctrl-C or SIGTERM, then answer the requests in progress for at most `drain_s` seconds.

    Port 0 picks a free one; `announce` gets a line with the address and a generated token. At most `max_connections`
    (default: 512) are open at a time, and at most a quarter of the files that the process may open (of all listeners
    together: half). A connection stays open for another request for `keep_alive_s` seconds.

    `listener` is a socket of `open_listener` that other processes accept connections from, too; `port` is not used.
    """
    server, listener, url = _prepare_server(app, host, port, drain_s, max_connections, keep_alive_s, listener)
    query = f"?token={app.rules.token}" if app.token_is_new else ""
    # uvicorn shuts down in order before it raises KeyboardInterrupt, or SIGTERM again; for a server both are the normal
    # end.
    with listener, connections.count_listener(), _handle_sigterm(server), suppress(KeyboardInterrupt):
        announce(f"Serving on {url}/{query} (Ctrl-C stops it)")
        server.run(sockets=[listener])


def check_address(host: str, port: int, token: str | None, *, public: bool = False) -> None:
    """Refuse an address that other machines can reach, unless there is a token; refuse an impossible port."""
    if not token and not public and not _is_loopback(host):
        raise InputError(
            f"{host or 'an empty host'} can be reached from other machines; give a token (--token-file FILE), "
            "or stay on 127.0.0.1."
        )
    if not 0 <= port <= 65535:  # the C library would take the port modulo 65536
        raise InputError(f"there is no port {port}; choose one up to 65535, or 0 for a free one.")


def open_listener(host: str, port: int) -> tuple[socket.socket, str]:
    """Return a socket that listens on an address, and its URL; port 0 takes a free one."""
    listener = _bind_socket(host, port)
    url_host = f"[{host}]" if ":" in host else host
    return listener, f"http://{url_host}:{listener.getsockname()[1]}"


@contextmanager
def run_in_background(app: App, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Run the server in a thread while the block runs; yield its address."""
    server, listener, url = _prepare_server(app, host, port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    with connections.count_listener():
        thread.start()
        try:
            deadline = time.monotonic() + _START_S
            while not server.started:
                if not thread.is_alive() or time.monotonic() > deadline:
                    raise RidgelineError("the web server did not start; its log says why.")
                time.sleep(0.005)
            yield url
        finally:
            server.should_exit = True
            thread.join(_START_S)
            listener.close()


@contextmanager
def _handle_sigterm(server: uvicorn.Server) -> Iterator[None]:
    """Handle a SIGTERM before uvicorn does, and the one that it raises again after it has shut down."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: setattr(server, "should_exit", True))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _prepare_server(
    app: App,
    host: str,
    port: int,
    drain_s: float = 3.0,
    max_connections: int | None = None,
    keep_alive_s: float = 5.0,
    shared: socket.socket | None = None,
) -> tuple[uvicorn.Server, socket.socket, str]:
    try:
        import uvicorn
    except ImportError:
        raise MissingExtra("the web server", "serve") from None
    check_address(host, port, app.rules.token, public=app.rules.public)
    listener, url = (shared, "") if shared is not None else open_listener(host, port)
    reachable = replace(app, rules=replace(app.rules, hosts=app.rules.hosts | {host.lower()}))
    config = uvicorn.Config(
        reachable,
        http=connections.make_protocol(max_connections, connections.HEAD_S, reachable),
        loop="asyncio",  # uvloop accepts by itself, not by `Listener`
        # Of a shared socket asyncio accepts one connection at a time, so that each goes to a process that is idle.
        backlog=1 if shared is not None else connections.ACCEPT_AT_ONCE,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=math.ceil(keep_alive_s),
        timeout_graceful_shutdown=math.ceil(drain_s),
    )
    return uvicorn.Server(config), connections.Listener(listener), url


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name can resolve to any address


def _bind_socket(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        raise InputError(f"there is no address {host}:{port} to serve on; check the host's name.") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        reason = {
            errno.EADDRINUSE: f"port {port} on {host} is already in use; choose another, or 0 for a free one",
            errno.EACCES: f"port {port} needs more rights than this user has; choose one above 1023",
            errno.EADDRNOTAVAIL: f"this machine has no address {host}; choose one that it has",
        }.get(error.errno or 0, f"cannot serve on {host}:{port} ({error})")
        raise InputError(f"{reason}.") from None
    return listener


def _format_sentence(status: int, detail: str | None) -> str:
    text = detail or HTTPStatus(status).phrase
    return {
        "Not Found": "there is nothing at this address.",
        "Method Not Allowed": "this method is not allowed here.",
    }.get(text, text if text.endswith(".") else f"{text}.")
