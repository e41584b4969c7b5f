"""Messages between the engine and its workers, processes of one server: pickled tuples over a Unix socket.

The socket lies in a folder that only this user can enter, so a pickle comes from our own processes. An answer with the
vectors of 32 texts is 48 KiB: copying it costs less than shared memory would.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any, cast

_LENGTH = 8  # bytes before each message


class Connection(asyncio.Protocol):
    """One end of a connection.

    receive  called with each message
    lose     called when the other process is gone
    """

    def __init__(self, receive: Callable[[Connection, Any], object], lose: Callable[[Connection], object]) -> None:
        self._receive, self._lose = receive, lose
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, *message: Any) -> None:
        """Send a message; nothing happens if the other process is gone."""
        if self._transport is not None and self.is_open:
            content = pickle.dumps(message, protocol=5)
            self._transport.writelines([len(content).to_bytes(_LENGTH, "little"), content])

    def close(self) -> None:
        """Send what is written, then close."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        begin = 0
        while len(self._buffer) - begin >= _LENGTH:
            end = begin + _LENGTH + int.from_bytes(self._buffer[begin : begin + _LENGTH], "little")
            if len(self._buffer) < end:
                break
            with memoryview(self._buffer) as view:
                message = pickle.loads(view[begin + _LENGTH : end])  # noqa: S301  from our own process
            begin = end
            self._receive(self, message)
        del self._buffer[:begin]

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(self)
