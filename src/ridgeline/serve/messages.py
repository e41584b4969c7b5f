"""Messages between the engine and its workers, processes of one server: pickled tuples over a Unix socket.

The socket lies in a folder that only this user can enter, so a pickle comes from our own processes. What is sent while
the event loop does other work leaves in one packet: under load, one packet has the answers of a worker's part of a
batch. A packet:

    length of the rest and number of its buffers, 8 bytes each
    length of the pickle and of every buffer, 8 bytes each
    the pickle: a list of messages
    the buffers: the memory of its arrays, each padded to a multiple of 16 bytes

Arrays are not copied into the pickle, and those of a received message lie in the memory that the packet was read into.
An answer with the vectors of 32 texts is 48 KiB: copying it costs less than shared memory would.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np

_ALIGN = 16  # bytes; of arrays in a packet, as malloc has it
_HEAD = 16
_STAGE = 1 << 16  # packets up to this size are read many at a time


class Connection(asyncio.BufferedProtocol):
    """One end of a connection.

    receive  called with each message
    lose     called when the other process is gone
    """

    def __init__(self, receive: Callable[[Connection, Any], object], lose: Callable[[Connection], object]) -> None:
        self._receive, self._lose = receive, lose
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[tuple[Any, ...]] = []
        self._unsent: list[Any] = []  # the rest of a packet of `send_from_thread`
        self._file = -1  # of the socket, for `send_from_thread`: closed only while no thread uses it
        self._sending = threading.Lock()
        self._stage = bytearray(_STAGE)
        self._filled = 0  # bytes of the stage, or of the packet if there is one
        self._packet: bytearray | None = None  # one that is longer than what the stage has of it
        self._buffers = 0  # of that packet

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, *message: Any) -> None:
        """Send a message; nothing happens if the other process is gone.

        Its arrays must not change afterwards.
        """
        if self._transport is not None and self.is_open:
            with self._sending:
                self._outgoing.append(message)
                is_first = len(self._outgoing) == 1
            if is_first:
                asyncio.get_running_loop().call_soon(self._flush)

    def send_from_thread(self, loop: asyncio.AbstractEventLoop, *message: Any) -> bool:
        """Send a message at once from another thread than that of the loop; False if others wait to be sent.

        It saves the time in which the loop wakes up.
        """
        with self._sending:
            transport = self._transport
            if self._file < 0 or transport is None or transport.is_closing():
                return False
            if self._outgoing or self._unsent or transport.get_write_buffer_size():
                return False
            content = b"".join(_pack([message]))
            try:
                sent = os.write(self._file, content)
            except BlockingIOError:
                sent = 0
            except OSError:  # the other process is gone
                return False
            if sent < len(content):
                self._unsent.append(memoryview(content)[sent:])
                loop.call_soon_threadsafe(self._flush)
            return True

    def close(self) -> None:
        """Send what is written, then close."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def _flush(self) -> None:
        with self._sending:
            messages, self._outgoing = self._outgoing, []
            parts, self._unsent = self._unsent, []
            if messages:
                parts += _pack(messages)
            if parts and self._transport is not None and self.is_open:
                self._transport.writelines(parts)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._file = os.dup(transport.get_extra_info("socket").fileno())

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next bytes: the rest of a long packet, or of the stage."""
        return memoryview(self._packet if self._packet is not None else self._stage)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._packet is not None:
            if self._filled < len(self._packet):
                return
            packet, self._packet, self._filled = self._packet, None, 0
            self._take(packet, self._buffers)
            return
        begin, end = 0, self._filled
        while end - begin >= _HEAD:
            size, buffers = (int.from_bytes(self._stage[begin + i : begin + i + 8], "little") for i in (0, 8))
            begin += _HEAD
            if end - begin < size:
                packet = bytearray(size)
                packet[: end - begin] = self._stage[begin:end]
                self._packet, self._buffers, self._filled = packet, buffers, end - begin
                return
            self._take(self._stage[begin : begin + size], buffers)  # a copy, which the arrays keep
            begin += size
        self._stage[: end - begin] = self._stage[begin:end]
        self._filled = end - begin

    def _take(self, packet: bytearray, buffers: int) -> None:
        for message in _unpack(packet, buffers):
            self._receive(self, message)

    def connection_lost(self, error: Exception | None) -> None:
        with self._sending:
            os.close(self._file)
            self._file = -1
        self._lose(self)


def _pack(messages: list[tuple[Any, ...]]) -> list[Any]:
    """Return the parts of a packet."""
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(messages, protocol=5, buffer_callback=buffers.append)
    parts: list[Any] = [content]
    sizes = [len(content)]
    for buffer in buffers:
        parts += [bytes(-sizes[-1] % _ALIGN), buffer.raw()]
        sizes.append(parts[-1].nbytes)
    lengths = np.array([0, len(buffers), *sizes], np.int64)
    # The lengths are padded, too: the pickle, and so each buffer, begins at a multiple of 16 bytes.
    pad = bytes(-8 * len(sizes) % _ALIGN)
    lengths[0] = (
        8 * len(sizes) + len(pad) + sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts)
    )
    return [lengths.tobytes(), pad, *parts]


def _unpack(packet: bytearray, buffers: int) -> list[Any]:
    view = memoryview(packet)
    sizes = np.frombuffer(packet, np.int64, buffers + 1).tolist()
    begin = 8 * len(sizes)
    parts = []
    for size in sizes:
        begin += -begin % _ALIGN
        parts.append(view[begin : begin + size])
        begin += size
    messages: list[Any] = pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301  from our own process
    return messages
