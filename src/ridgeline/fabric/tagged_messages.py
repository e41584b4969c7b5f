"""Messages with tags between ranks, in any order and of any size: send, recv and "from any source".

The sender announces a message: tag, type, length. Its data follows when the receiver has asked for it, so a receiver
stores nothing that it does not want, and another length or type is refused before data moves. Each ordered pair of
ranks has one connection: a Unix socket that is opened for the first message, or one between hosts. One thread of each
rank moves all messages, so no order of calls can block it.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from ridgeline.errors import FabricError

ANNOUNCE, DATA, ACCEPT, REFUSE = 1, 2, 3, 4
_GREETING = struct.Struct("<i")  # rank
_FRAME = struct.Struct("<iQqQ24s")  # kind, number, tag, bytes, type; the data of the message follows a DATA frame


@dataclass(eq=False)
class _Message:
    """A send or a receive in progress."""

    op: str
    peer: int | None  # None: any source
    tag: int
    type: str
    data: memoryview
    deadline: float
    future: Future[int] = field(default_factory=Future)  # of the other rank

    def describe(self) -> str:
        return f"{len(self.data)} bytes of {self.type}"


@dataclass(eq=False)
class _Connection:
    """One socket: frames to write, and the frame or data that is being read."""

    socket: socket.socket
    rank: int  # -1: the greeting has not been read
    incoming: bool  # the other rank announces messages here; this rank answers
    outbox: deque[tuple[memoryview, _Message | None]] = field(default_factory=deque)
    messages: dict[int, _Message] = field(default_factory=dict)  # announced sends, or accepted receives, by number
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(_GREETING.size)))
    at: int = 0
    reading: _Message | None = None  # whose data is read; None: a frame is read
    sent: int = 0  # messages so far


class Messenger:
    """The messages of one rank. Make it on every rank before the ranks meet, and set `pids` when they have met.

    A message that misses its deadline ends the messenger and calls `on_failure`. Close it before the interpreter ends.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        timeout: float,
        on_failure: Callable[[FabricError], None],
        links: tuple[Mapping[int, socket.socket], Mapping[int, socket.socket]] | None = None,
    ) -> None:
        """links: connections to and from all other ranks, which this object closes; without, ranks of one host."""
        self._name, self._rank, self._size = name, rank, size
        self._timeout, self._on_failure = timeout, on_failure
        self.pids: Sequence[int] = ()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._links = links
        if links is None:
            self._listener.bind(_get_address(name, rank))
            self._listener.listen(size)
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # of the next two
        self._posted: SimpleQueue[_Message] = SimpleQueue()
        self._error: FabricError | None = None  # of a messenger that has ended
        # All that follows belongs to the thread.
        self._selector = selectors.DefaultSelector()
        self._pending: dict[_Message, None] = {}  # in the order of their deadlines, as all have one timeout
        self._outgoing: dict[int, _Connection] = {}
        self._incoming: dict[int, _Connection] = {}
        self._announced: list[tuple[int, int, int, int, str]] = []  # rank, number, tag, bytes, type
        self._receives: list[_Message] = []  # those that no announcement has matched
        self._unreachable: dict[int, str] = {}  # ranks that messages cannot be sent to → what happened
        self._gone: dict[int, str] = {}  # ranks that messages cannot come from any more → what happened

    def send(self, data: memoryview, type_name: str, to: int, tag: int) -> Future[int]:
        """Send bytes; the future ends when the other rank has asked for them and they are on their way."""
        return self._post(_Message("send", to, tag, type_name, data, time.monotonic() + self._timeout))

    def recv(self, data: memoryview, type_name: str, source: int | None, tag: int) -> Future[int]:
        """Receive bytes from one rank, or from any; the future has the rank of the sender."""
        return self._post(_Message("recv", source, tag, type_name, data, time.monotonic() + self._timeout))

    def end(self, error: FabricError) -> None:
        """Fail all messages in progress and all later ones with this error."""
        with self._lock:
            self._error = self._error or error
        self._wake_thread()

    def close(self) -> None:
        """End the thread; messages in progress fail."""
        if os.getpid() != self._process:
            return  # a forked child must not end the connections of its parent
        self.end(FabricError(f"rank {self._rank} has closed it."))
        if self._thread is not None:
            if self._thread is not threading.current_thread():
                self._thread.join()
        else:
            self._selector.close()
            for links in self._links or ():
                for link in links.values():
                    _close(link)
        for link in (self._listener, self._wake, self._woken):
            _close(link)

    def _post(self, message: _Message) -> Future[int]:
        if os.getpid() != self._process:
            raise FabricError(f"{message.op}: a forked process cannot use the group of its parent.")
        with self._lock:
            if self._error is not None:
                message.future.set_exception(self._describe_end(message, self._error))
                return message.future
            self._posted.put(message)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="fabric-messages")
                self._thread.start()
        self._wake_thread()
        return message.future

    def _wake_thread(self) -> None:
        with suppress(OSError):  # full: the thread wakes in any case
            self._wake.send(b"\0")

    # All that follows runs in the thread.

    def _run(self) -> None:
        pidfds = [self._watch_process(rank) for rank in range(self._size) if rank != self._rank and self.pids]
        self._listener.setblocking(False)
        if self._links is None:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        else:
            self._add_links(*self._links)
        self._selector.register(self._woken, selectors.EVENT_READ, lambda: self._woken.recv(4096))
        try:
            while self._error is None:
                self._take_posted()
                first = next(iter(self._pending), None)
                wait = None if first is None else max(0.0, first.deadline - time.monotonic())
                for key, _ in self._selector.select(wait):
                    key.data()
                self._check_deadline()
        except Exception as error:  # a mistake in this file must not leave callers waiting
            self.end(FabricError(f"the thread of messages of rank {self._rank} failed: {error!r}."))
        finally:
            self._finish_all()
            for connection in (*self._incoming.values(), *self._outgoing.values()):
                self._drop(connection)
            self._selector.close()
            _close(self._listener)
            for fd in pidfds:
                if fd is not None:
                    os.close(fd)

    def _finish_all(self) -> None:
        """The messenger has ended: fail all messages."""
        assert self._error is not None  # noqa: S101
        with self._lock, suppress(Empty):
            while True:
                self._pending[self._posted.get_nowait()] = None
        for message in list(self._pending):
            self._finish(message, self._describe_end(message, self._error))

    def _watch_process(self, rank: int) -> int | None:
        try:
            fd = os.pidfd_open(self.pids[rank])
        except ProcessLookupError:
            self._lose_sender(rank, "died")
            self._lose_receiver(rank, "died")
            return None
        except OSError:
            return None  # an old kernel: then only the timeout detects a rank that dies without a connection

        def end_rank() -> None:
            self._selector.unregister(fd)
            self._accept()
            if rank in self._incoming:  # what it sent before it ended
                self._read(self._incoming[rank])
            self._lose_sender(rank, "died")
            self._lose_receiver(rank, "died")

        self._selector.register(fd, selectors.EVENT_READ, end_rank)
        return fd

    def _add_links(self, outgoing: Mapping[int, socket.socket], incoming: Mapping[int, socket.socket]) -> None:
        for rank, link in outgoing.items():
            self._outgoing[rank] = self._open(link, rank, incoming=False)
        for rank, link in incoming.items():
            self._incoming[rank] = connection = self._open(link, rank, incoming=True)
            connection.buffer = memoryview(bytearray(_FRAME.size))

    def _take_posted(self) -> None:
        with suppress(Empty):
            while True:
                message = self._posted.get_nowait()
                self._pending[message] = None
                (self._begin_send if message.op == "send" else self._begin_recv)(message)

    def _begin_send(self, message: _Message) -> None:
        assert message.peer is not None  # noqa: S101
        connection = self._connect(message.peer)
        if connection is None:
            self._finish(message, self._describe_loss(message, self._unreachable[message.peer]))
            return
        connection.sent += 1
        connection.messages[connection.sent] = message
        self._write(connection, ANNOUNCE, connection.sent, message.tag, len(message.data), message.type)

    def _begin_recv(self, message: _Message) -> None:
        for announced in self._announced:
            if message.tag == announced[2] and message.peer in (None, announced[0]):
                self._announced.remove(announced)
                self._answer(message, *announced)
                return
        self._receives.append(message)
        self._check_sources()

    def _connect(self, rank: int) -> _Connection | None:
        if rank not in self._outgoing and rank not in self._unreachable:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                link.connect(_get_address(self._name, rank))
            except OSError:
                link.close()
                self._lose_receiver(rank, "left the group")
                return None
            connection = self._open(link, rank, incoming=False)
            connection.outbox.append((memoryview(_GREETING.pack(self._rank)), None))
            self._outgoing[rank] = connection
        return self._outgoing.get(rank)

    def _accept(self) -> None:
        if self._links is not None:
            return
        with suppress(BlockingIOError):
            while True:
                link, _ = self._listener.accept()
                _, uid, _ = struct.unpack("iII", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                if uid != os.getuid():
                    link.close()
                else:
                    # The greeting was sent with the connection or follows at once; read it now if it is there.
                    self._read(self._open(link, -1, incoming=True))

    def _open(self, link: socket.socket, rank: int, *, incoming: bool) -> _Connection:
        link.setblocking(False)
        connection = _Connection(link, rank, incoming)
        if not incoming:
            connection.buffer = memoryview(bytearray(_FRAME.size))
        self._selector.register(link, selectors.EVENT_READ, lambda: self._move(connection))
        return connection

    def _move(self, connection: _Connection) -> None:
        self._flush(connection)
        self._read(connection)

    def _write(self, connection: _Connection, kind: int, number: int, tag: int, nbytes: int, type_name: str) -> None:
        frame = _FRAME.pack(kind, number, tag, nbytes, type_name.encode())
        connection.outbox.append((memoryview(frame), None))
        self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        """Write what the socket takes; a message that is written completely has ended."""
        try:
            while connection.outbox:
                data, message = connection.outbox[0]
                count = connection.socket.send(data) if data else 0
                if count < len(data):
                    connection.outbox[0] = (data[count:], message)
                    continue
                connection.outbox.popleft()
                if message is not None:
                    self._finish(message, connection.rank)
        except BlockingIOError:
            pass
        except OSError:
            self._lose_connection(connection)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outbox else 0)
        if connection.socket.fileno() >= 0 and self._selector.get_key(connection.socket).events != events:
            self._selector.modify(connection.socket, events, lambda: self._move(connection))

    def _read(self, connection: _Connection) -> None:
        try:
            while connection.socket.fileno() >= 0:
                if connection.at < len(connection.buffer):
                    count = connection.socket.recv_into(connection.buffer[connection.at :])
                    if count == 0:
                        self._lose_connection(connection)
                        return
                    connection.at += count
                if connection.at == len(connection.buffer):
                    self._take(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._lose_connection(connection)

    def _take(self, connection: _Connection) -> None:
        """The buffer of the connection is full: a greeting, a frame, or the data of a message."""
        buffer, message = connection.buffer, connection.reading
        connection.buffer, connection.at, connection.reading = memoryview(bytearray(_FRAME.size)), 0, None
        if message is not None:
            self._finish(message, connection.rank)
        elif connection.rank < 0:
            (rank,) = _GREETING.unpack(buffer)
            if not 0 <= rank < self._size or rank in self._incoming:
                self._drop(connection)  # no rank of this group
                return
            connection.rank = rank
            self._incoming[rank] = connection
        else:
            kind, number, tag, nbytes, name = _FRAME.unpack(buffer)
            self._take_frame(connection, kind, number, tag, nbytes, name.rstrip(b"\0").decode())

    def _take_frame(
        self, connection: _Connection, kind: int, number: int, tag: int, nbytes: int, type_name: str
    ) -> None:
        rank = connection.rank
        if kind == ANNOUNCE:
            for receive in self._receives:
                if receive.tag == tag and receive.peer in (None, rank):
                    self._receives.remove(receive)
                    self._answer(receive, rank, number, tag, nbytes, type_name)
                    return
            self._announced.append((rank, number, tag, nbytes, type_name))
            return
        message = connection.messages.pop(number)
        if kind == DATA:
            connection.buffer, connection.reading = message.data, message
        elif kind == ACCEPT:
            frame = _FRAME.pack(DATA, number, message.tag, len(message.data), message.type.encode())
            connection.outbox += [(memoryview(frame), None), (message.data, message)]
            self._flush(connection)
        else:
            self._finish(message, _describe_mismatch(message, self._rank, rank, f"{nbytes} bytes of {type_name}"))

    def _answer(self, receive: _Message, rank: int, number: int, tag: int, nbytes: int, type_name: str) -> None:
        """An announced message and a receive have met."""
        connection = self._incoming[rank]
        if nbytes == len(receive.data) and type_name == receive.type:
            connection.messages[number] = receive
            self._write(connection, ACCEPT, number, tag, nbytes, type_name)
        else:
            self._finish(receive, _describe_mismatch(receive, self._rank, rank, f"{nbytes} bytes of {type_name}"))
            self._write(connection, REFUSE, number, tag, len(receive.data), receive.type)

    def _finish(self, message: _Message, outcome: int | FabricError) -> None:
        if message in self._pending:
            del self._pending[message]
            if isinstance(outcome, FabricError):
                message.future.set_exception(outcome)
            else:
                message.future.set_result(outcome)

    def _lose_connection(self, connection: _Connection) -> None:
        if connection.rank < 0:
            self._drop(connection)
        elif connection.incoming:
            self._lose_sender(connection.rank, "left the group or died")
        else:
            self._lose_receiver(connection.rank, "left the group or died")

    def _lose_receiver(self, rank: int, event: str) -> None:
        """Fail the messages to a rank."""
        self._unreachable.setdefault(rank, event)
        connection = self._outgoing.pop(rank, None)
        if connection is not None:
            self._drop(connection)
            written = [message for _, message in connection.outbox if message is not None]
            for message in [*connection.messages.values(), *written]:
                self._finish(message, self._describe_loss(message, event))
            self._accept()
            if rank not in self._incoming:
                self._lose_sender(rank, event)

    def _lose_sender(self, rank: int, event: str) -> None:
        """Fail the messages from a rank."""
        self._gone.setdefault(rank, event)
        self._announced = [announced for announced in self._announced if announced[0] != rank]
        connection = self._incoming.pop(rank, None)
        if connection is not None:
            self._drop(connection)
            begun = [connection.reading] if connection.reading is not None else []
            for message in [*connection.messages.values(), *begun]:
                self._finish(message, self._describe_loss(message, event))
        self._check_sources()

    def _check_sources(self) -> None:
        """Fail receives that no rank can serve any more."""
        for message in list(self._receives):
            if message.peer in self._gone or (message.peer is None and len(self._gone) == self._size - 1):
                self._receives.remove(message)
                event = "left the group or died" if message.peer is None else self._gone[message.peer]
                self._finish(message, self._describe_loss(message, event))

    def _check_deadline(self) -> None:
        first = next(iter(self._pending), None)
        if first is None or time.monotonic() < first.deadline:
            return
        other = "no rank came" if first.peer is None else f"rank {first.peer} did not come"
        call = f"{first.op} (tag {first.tag}) of rank {self._rank}"
        error = FabricError(f"{other} to {call} within the timeout of {self._timeout:g} s, which ends this group.")
        self.end(error)
        self._on_failure(error)
        self._finish(first, error)

    def _drop(self, connection: _Connection) -> None:
        if connection.socket.fileno() >= 0:
            self._selector.unregister(connection.socket)
            _close(connection.socket)

    def _describe_loss(self, message: _Message, event: str) -> FabricError:
        others = "every other rank" if message.peer is None else f"rank {message.peer}"
        return FabricError(f"{others} {event}: rank {self._rank} waited for it in {message.op} (tag {message.tag}).")

    def _describe_end(self, message: _Message, error: FabricError) -> FabricError:
        return FabricError(f"{message.op} of rank {self._rank}: this group has ended: {error}")


def _describe_mismatch(message: _Message, me: int, other: int, other_message: str) -> FabricError:
    verb, other_verb = ("sends", "receives") if message.op == "send" else ("receives", "sends")
    return FabricError(
        f"{message.op} (tag {message.tag}): rank {me} {verb} {message.describe()}, "
        f"rank {other} {other_verb} {other_message}; make both the same."
    )


def _close(link: socket.socket) -> None:
    with suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)  # a forked child may have the socket, too: close() alone would not end it
    link.close()


def _get_address(name: str, rank: int) -> str:
    return f"\0{name}-messages-{rank}"
