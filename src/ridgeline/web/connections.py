"""Limits for clients of the server: how many connections, how long the head of a request may take, how many log lines.
And the short way for plain requests (plain_requests.py), beside that of the HTTP library.

A client that opens connections and sends nothing would otherwise use up the descriptors of the process, and everything
else in it (a log, a file that is followed) would fail on "too many open files". So the connections of a listener get at
most a quarter of the descriptors, and those of all listeners of the process together at most half. A new connection
beyond the limit replaces the oldest one that has no request in progress; a client that sends its request at once is
served even while others only connect.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ridgeline.web.middleware import SECURITY_HEADERS
from ridgeline.web.plain_requests import PlainRequest, format_reply, read_head

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from ridgeline.web.middleware import App

MOST_CONNECTIONS = 512
HEAD_S = 10.0  # until the head of a request is complete
REST_BYTES = 64 << 10  # that a client may send before it has the answer to what it sent before
READ_BYTES = 64 << 10  # of an answer, at least, that a client reads in HEAD_S seconds
SHARE = 4  # connections to a listener use at most 1/SHARE of the descriptors that the process may open
SHARE_OF_ALL = 2  # and those to all listeners together 1/SHARE_OF_ALL
ACCEPT_AT_ONCE = 16  # connections that asyncio accepts before it looks at any of them: no limit counts these
_REPEATS, _PERIOD_S = 5, 60.0  # a message is logged this often in a period
_listeners: list[object] = []  # those of this process
_mutex = threading.Lock()
_LOGGERS = ("asyncio", "uvicorn.error", "ridgeline.web.middleware")  # a client can make them write


def get_connection_limit(most: int | None = None) -> int:
    """Return the most connections that a listener keeps open now; `most` is at most that number (default: 512)."""
    most = MOST_CONNECTIONS if most is None else most
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    shares = max(SHARE, SHARE_OF_ALL * len(_listeners))
    return min(most, max(4, descriptors // shares)) if descriptors > 0 else most


class Listener(socket.socket):
    """A listening socket that counts connections before their TLS handshake.

    asyncio shows a TLS connection only after its handshake. Beyond `get_most_handshakes()` the oldest connection that
    has not been passed to `accept_handshake` is shut down.
    """

    def __init__(self, sock: socket.socket, get_most_handshakes: Callable[[], int] | None = None) -> None:
        super().__init__(fileno=sock.detach())
        self._get_most = get_most_handshakes
        self._handshakes: dict[int, socket.socket] = {}  # by descriptor, the oldest first

    def listen(self, backlog: int = 0) -> None:
        """Leave the queue of the kernel as it is; asyncio would make it as long as what it accepts at once."""

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        if self._get_most is not None:
            self._handshakes.pop(connection.fileno(), None)  # it was closed, and its descriptor is used again
            while len(self._handshakes) >= self._get_most():
                with suppress(OSError):  # it is closed already
                    self._handshakes.pop(next(iter(self._handshakes))).shutdown(socket.SHUT_RDWR)
            self._handshakes[connection.fileno()] = connection
        return connection, address

    def accept_handshake(self, connection: asyncio.BaseTransport) -> None:
        """Count a connection no longer: its handshake is complete."""
        self._handshakes.pop(connection.get_extra_info("socket").fileno(), None)


@contextmanager
def count_listener() -> Iterator[None]:
    """Count one more listener while the block runs: listeners share the descriptors for connections.

    Messages that clients of any listener can cause are limited from then on.
    """
    limit_log_lines()
    listener = object()
    with _mutex:
        _listeners.append(listener)
    try:
        yield
    finally:
        with _mutex:
            _listeners.remove(listener)


def make_protocol(most: int | None, head_s: float, app: App) -> type[H11Protocol]:
    """Return uvicorn's HTTP protocol with at most `most` connections and `head_s` seconds for the head."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    idle: dict[Any, asyncio.TimerHandle] = {}  # connections without a request in progress, the oldest first

    class LimitedProtocol(H11Protocol):
        unread_bytes = 0  # of the last answer, when it was last looked at
        # between an answer and the next request; uvicorn closes such a connection after timeout_keep_alive
        is_waiting = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._set_idle()
            # Several, if another listener has opened and the limit is lower now.
            for _ in range(len(self.connections) - get_connection_limit(most)):
                (next(iter(idle)) if idle else self)._drop()

        plain: PlainRequest | None = None  # that is not answered yet; its body may be missing
        answering: asyncio.Task[None] | None = None  # its answer
        rest = b""  # what the client has sent after it
        counted = 0  # bytes of its body, in app.bodies
        is_last = False  # the server ends

        def data_received(self, data: bytes) -> None:
            if self.answering is not None:
                self.rest += data
                if len(self.rest) > REST_BYTES:
                    self.flow.pause_reading()
            elif self.plain is not None:
                self.plain.data += data
                self._count_body()
            else:
                if app.plain and self._is_between_requests():
                    self._start_plain(data)
                if self.plain is None:
                    self._ask_library(data)
            if self.plain is not None and self.answering is None and self.plain.is_complete:
                self._answer_plain(self.plain)

        def _ask_library(self, data: bytes) -> None:
            """Let the HTTP library read bytes, of any request."""
            if self.is_waiting:
                self.is_waiting = False
                self._set_idle()  # the head of the next request begins
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._set_busy()

        def _is_between_requests(self) -> bool:
            """Whether the HTTP library has no bytes of a request."""
            states = self.conn.our_state, self.conn.their_state
            return states == (h11.IDLE, h11.IDLE) and not self.conn.trailing_data[0]

        def _start_plain(self, data: bytes) -> None:
            request = read_head(data, app.plain)
            if request is None:
                return
            request.scope["server"] = self.server
            if not app.allows_plain(request.scope, request.end - request.begin):
                return
            self.plain = request
            self._unset_keepalive_if_required()
            if self.is_waiting and not request.is_complete:
                self._set_idle()  # the body has `head_s` seconds, too; then the HTTP library waits for it
            self.is_waiting = False
            self._count_body()

        def _count_body(self) -> None:
            if self.plain is None:
                return
            limit, size = app.rules.bodies_limit, min(len(self.plain.data), self.plain.end) - self.plain.begin
            app.bodies.size += size - self.counted
            self.counted = size
            if limit is not None and app.bodies.size > limit:
                self._hand_over()

        def _hand_over(self) -> None:
            """Let the HTTP library read a request whose body is not complete."""
            if self.plain is not None:
                data, self.plain = bytes(self.plain.data), None
                self._ask_library(data)
                self._uncount_body()

        def _uncount_body(self) -> None:
            app.bodies.size -= self.counted
            self.counted = 0

        def _answer_plain(self, request: PlainRequest) -> None:
            self._set_busy()
            self.rest = bytes(request.data[request.end :])
            self.answering = self.loop.create_task(self._run_plain(request))
            self.tasks.add(self.answering)
            app.run_plain(self.answering)
            self.answering.add_done_callback(self._finish_plain)

        async def _run_plain(self, request: PlainRequest) -> None:
            path = request.scope["path"]
            try:
                reply = await app.answer_plain(path, request.body, request.headers)
                if self.flow.write_paused:  # the client has not read the answers before
                    await self.flow.drain()
            except asyncio.CancelledError:  # the client has left, or the server stops
                self.is_last = True
                reply = app.refuse_plain(path, 503, "the server is stopping.")
            if not self.transport.is_closing():
                headers = [*self.server_state.default_headers, *SECURITY_HEADERS]
                self.transport.writelines(format_reply(reply, headers, close=self.is_last))

        def _finish_plain(self, task: asyncio.Task[None]) -> None:
            self.tasks.discard(task)
            self.plain = self.answering = None
            self._uncount_body()
            if self.is_last or task.cancelled():
                self.transport.close()
            self.on_response_complete()
            if self.rest and not self.transport.is_closing():
                data, self.rest = self.rest, b""
                self.data_received(data)

        def send_400_response(self, msg: str) -> None:
            """Refuse what the HTTP library cannot read, in the shape that the application gives its refusals."""
            status = getattr(sys.exception(), "error_status_hint", 400)
            sentence = "the head of the request is too long." if status == 431 else "this is not valid HTTP."
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else an answer has begun
                path = self.scope["path"] if self.cycle is not None and not self.cycle.response_complete else ""
                reply = app.refuse_plain(path, status, sentence)
                headers = [*self.server_state.default_headers, *SECURITY_HEADERS]
                self.transport.writelines(format_reply(reply, headers, close=True))
            self.transport.close()

        def shutdown(self) -> None:
            if self.answering is not None:
                self.is_last = True
            else:
                self._hand_over()
                super().shutdown()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
                self.is_waiting = True
                self._set_idle()

        def connection_lost(self, exc: Exception | None) -> None:
            self._set_busy()
            super().connection_lost(exc)
            if self.answering is not None:
                self.answering.cancel()
            else:
                self.plain = None
                self._uncount_body()

        def _set_idle(self) -> None:
            self._set_busy()
            self.unread_bytes = self.transport.get_write_buffer_size()
            idle[self] = self.loop.call_later(head_s, self._drop_unless_read)

        def _set_busy(self) -> None:
            timer = idle.pop(self, None)
            if timer is not None:
                timer.cancel()

        def _drop_unless_read(self) -> None:
            """Keep the connection while its client reads the answer, and for a next request."""
            if self.plain is not None:
                self._hand_over()
                return
            unread = self.transport.get_write_buffer_size()
            is_read = unread > 0 and self.unread_bytes - unread >= min(READ_BYTES, self.unread_bytes)
            if is_read or (self.is_waiting and not unread):
                self._set_idle()
            else:
                self._drop()

        def _drop(self) -> None:
            self._set_busy()
            self.connections.discard(self)  # at once, so that the next connection is counted correctly
            self.transport.abort()

    return LimitedProtocol


class RepeatFilter(logging.Filter):
    """Lets each message through a few times a minute; the first one after a pause says how many were left out."""

    def __init__(self, repeats: int = _REPEATS, period_s: float = _PERIOD_S) -> None:
        super().__init__()
        self._repeats, self._period_s = repeats, period_s
        self._seen: dict[tuple[str, int, str], list[float]] = {}  # message → start of the period, number in it

    def filter(self, record: logging.LogRecord) -> bool:
        key = (record.name, record.levelno, record.getMessage().partition("\n")[0][:80])
        now = time.monotonic()
        if len(self._seen) > 1_000:
            self._seen.clear()
        start, count = self._seen.get(key, (now, 0))
        left_out = 0
        if now - start >= self._period_s:
            left_out, start, count = int(max(0, count - self._repeats)), now, 0
        self._seen[key] = [start, count + 1]
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out:,} more like this were not shown)", ()
        return count < self._repeats


def limit_log_lines() -> None:
    """Limit the messages that clients can cause; calling it again changes nothing."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(known, RepeatFilter) for known in logger.filters):
            logger.addFilter(RepeatFilter())
