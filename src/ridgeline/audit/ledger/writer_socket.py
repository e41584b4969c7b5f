"""The writer's socket: a local socket through which other processes append to a log that one process writes.

    frame     4 bytes of length (big-endian), then JSON
    request   {"append": [event, …]}  or  {"checkpoint": true}
    reply     {"first": …, "size": …, "leaves": base64 of 32 bytes each}  or  {"checkpoint": …}  or  {"error": …}
    close     {"closed": true}: the writer closes, and took nothing since the last reply

The socket lies in the private folder (0700) and serves only the user of this process and root. A reply to an append
means that the events are on the disk.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ridgeline.audit.ledger.event import encode
from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.errors import InputError, RidgelineError, StoreError

if TYPE_CHECKING:
    from ridgeline.audit.ledger.writer import Writer

_LARGEST = 64 << 20
_SECONDS = 60
_GOODBYE_S = 5.0
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)  # of `accept`
_AGAIN_S = 0.1


class WriterSocket:
    """The server side; open as long as the writer is."""

    def __init__(self, paths: LedgerPaths, writer: Writer) -> None:
        self._paths, self._writer = paths, writer
        self._closing = False
        self._mutex = threading.RLock()  # garbage collection may close a ledger in any thread, also in this one
        self._clients: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(FileNotFoundError):
            paths.socket.unlink()
        try:
            with _short_path(paths) as name:
                self._listener.bind(name)
            os.chmod(paths.socket, 0o600)
            self._listener.listen(64)
        except OSError:  # this filesystem has no sockets: the log works without one
            self._listener.close()
            return
        self._start(self._run)

    def close(self) -> None:
        with self._mutex:
            self._closing = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with suppress(OSError):
            self._paths.socket.unlink()
        # An open socket keeps its filesystem busy, so wait for the threads. They answer the requests they have read and
        # read no more; a client that does not read its answer is disconnected.
        for how in (socket.SHUT_RD, socket.SHUT_RDWR):
            with self._mutex:
                for client in self._clients:
                    with suppress(OSError):
                        client.shutdown(how)
                threads = self._threads - {threading.current_thread()}
            until = time.monotonic() + _GOODBYE_S
            for thread in threads:
                thread.join(max(0.0, until - time.monotonic()))

    def _start(self, target: Callable[..., None], *words: object) -> None:
        def run() -> None:
            try:
                target(*words)
            finally:
                with self._mutex:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name="ledger-socket", daemon=True)
        with self._mutex:  # `close` sees only started threads, because others cannot be joined
            thread.start()
            self._threads.add(thread)

    def _run(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError as error:
                if self._closing or error.errno not in _PASSING:
                    return
                time.sleep(_AGAIN_S)
                continue
            with self._mutex:
                if self._closing:
                    peer.close()
                    return
                self._clients.add(peer)
                self._start(self._serve, peer)

    def _serve(self, peer: socket.socket) -> None:
        try:
            with peer, suppress(OSError, RidgelineError):
                peer.settimeout(None)
                if _uid(peer) not in (0, os.geteuid()):
                    return
                while (request := _receive(peer)) is not None:
                    _send(peer, self._answer(request))
                if self._closing:
                    _send(peer, {"closed": True})
        finally:
            with self._mutex:
                self._clients.discard(peer)

    def _answer(self, request: bytes) -> dict[str, Any]:
        try:
            message = json.loads(request)
            if not isinstance(message, dict):
                raise InputError("a request must be an object.")
            if "append" in message:
                encoded = encode(message["append"])
                if encoded.count == 0:
                    return {"first": self._writer.size, "size": self._writer.size, "leaves": ""}
                first, size = self._writer.append(encoded)
                return {"first": first, "size": size, "leaves": base64.b64encode(encoded.hashes).decode()}
            if "checkpoint" in message:
                return {"checkpoint": str(self._writer.publish())}
            raise InputError("a request must append events or request a checkpoint.")
        except RidgelineError as error:
            return {"error": str(error)}
        except (ValueError, TypeError, RecursionError) as error:
            return {"error": f"the request cannot be read: {error}."}


class WriterLost(StoreError):
    """The writer of a log does not answer."""


class NotAppended(WriterLost):
    """The writer closed, and certainly did not take the last request."""


class WriterClient:
    """A connection to the writer of a log."""

    def __init__(self, paths: LedgerPaths) -> None:
        self._paths = paths
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_SECONDS)
        try:
            with _short_path(paths) as name:
                self._socket.connect(name)
            self.append([])  # after a first answer the writer always announces its closing
        except (OSError, WriterLost) as error:
            self._socket.close()
            why = getattr(error, "strerror", None) or "it is closing"
            raise WriterLost(f"the writer of {paths.log} does not answer at its socket ({why}).") from None
        except BaseException:
            self._socket.close()
            raise

    def append(self, events: Iterable[Mapping[str, Any]]) -> tuple[int, bytes, int]:
        """Append events; return index of the first, leaf hashes, size of the log. They are on the disk then."""
        items = list(events)
        encode(items)  # refuse a bad event, with its number, before sending
        reply = self._request({"append": items})
        return int(reply["first"]), base64.b64decode(reply["leaves"]), int(reply["size"])

    def checkpoint(self) -> str:
        """Let the writer sign its current size; return the checkpoint."""
        return str(self._request({"checkpoint": True})["checkpoint"])

    def close(self) -> None:
        self._socket.close()

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            _send(self._socket, request)
        except OSError as error:  # the writer ignores an incomplete request
            raise NotAppended(f"the writer of {self._paths.log} was lost: {error}.") from None
        try:
            reply = _receive(self._socket)
        except OSError as error:
            raise WriterLost(
                f"the writer of {self._paths.log} was lost: {error}; check whether it took the events."
            ) from None
        if reply is None:
            raise WriterLost(f"the writer of {self._paths.log} ended; check whether it took the events.")
        answer: dict[str, Any] = json.loads(reply)
        if answer.get("closed"):
            raise NotAppended(f"the writer of {self._paths.log} is closing.")
        if "error" in answer:
            raise StoreError(str(answer["error"]))
        return answer


def _send(to: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    if len(data) > _LARGEST:
        raise InputError(f"{len(data)} bytes are too much at once; send fewer events at a time.")
    to.sendall(struct.pack(">I", len(data)) + data)


def _receive(peer: socket.socket) -> bytes | None:
    head = _receive_exactly(peer, 4)
    if head is None:
        return None
    (size,) = struct.unpack(">I", head)
    if size > _LARGEST:
        raise StoreError("a message is too long.")
    return _receive_exactly(peer, size)


def _receive_exactly(peer: socket.socket, size: int) -> bytes | None:
    parts, left = [], size
    while left:
        part = peer.recv(min(left, 1 << 20))
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _uid(peer: socket.socket) -> int:
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


@contextmanager
def _short_path(paths: LedgerPaths) -> Iterator[str]:
    """A short path of the socket: a socket's path has at most 107 bytes, a folder's path may have more."""
    fd = os.open(paths.private, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{paths.socket.name}"
    finally:
        os.close(fd)
