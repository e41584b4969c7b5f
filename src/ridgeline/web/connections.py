"""Limits for clients of the server: how many connections, how long the head of a request may take, how many log lines.

A client that opens connections and sends nothing would otherwise use up the descriptors of the process, and everything
else in it (a log, a file that is followed) would fail on "too many open files". So connections get at most a quarter of
the descriptors. A new connection beyond the limit replaces the oldest one that has no request in progress; a client
that sends its request at once is served even while others only connect.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 512
HEAD_S = 10.0  # until the head of a request is complete
READ_BYTES = 64 << 10  # of an answer, at least, that a client reads in HEAD_S seconds
SHARE = 4  # connections use at most 1/SHARE of the descriptors that the process may open
_REPEATS, _PERIOD_S = 5, 60.0  # a message is logged this often in a period
_LOGGERS = ("asyncio", "uvicorn.error", "ridgeline.web.middleware")  # a client can make them write


def get_connection_limit(most: int | None = None) -> int:
    """Return the most connections that the server keeps open; `most` is at most that number (default: 512)."""
    most = MOST_CONNECTIONS if most is None else most
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(most, max(4, descriptors // SHARE)) if descriptors > 0 else most


def make_protocol(limit: int, head_s: float) -> type[H11Protocol]:
    """Return uvicorn's HTTP protocol with at most `limit` connections and `head_s` seconds for the head."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    idle: dict[Any, asyncio.TimerHandle] = {}  # connections without a request in progress, the oldest first

    class LimitedProtocol(H11Protocol):
        unread_bytes = 0  # of the last answer, when it was last looked at
        is_kept_alive = (
            False  # between an answer and the next request; uvicorn closes such a connection after timeout_keep_alive
        )

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._set_idle()
            if len(self.connections) > limit:
                (next(iter(idle)) if idle else self)._drop()

        def data_received(self, data: bytes) -> None:
            if self.is_kept_alive:
                self.is_kept_alive = False
                self._set_idle()  # the head of the next request begins
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._set_busy()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
                self.is_kept_alive = True
                self._set_idle()

        def connection_lost(self, exc: Exception | None) -> None:
            self._set_busy()
            super().connection_lost(exc)

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
            unread = self.transport.get_write_buffer_size()
            is_read = unread > 0 and self.unread_bytes - unread >= min(READ_BYTES, self.unread_bytes)
            if is_read or (self.is_kept_alive and not unread):
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
