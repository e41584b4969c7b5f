"""The writer's door: a local socket through which other processes append to a log that one process holds.

    frame     4 bytes of length (big-endian), then JSON
    request   {"append": [event, …]}  or  {"checkpoint": true}
    reply     {"first": …, "size": …, "leaves": base64 of 32 bytes each}  or  {"checkpoint": …}  or  {"error": …}
    goodbye   {"closed": true}: the writer leaves, and nothing was taken since the last reply

The socket lies in the private folder (0700) and serves the owner of this process and root only. A reply means what a
return of `append` means: on the disk.
"""

from __future__ import annotations

import base64
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
from ridgeline.audit.ledger.layout import Home
from ridgeline.errors import InputError, RidgelineError, StoreError

if TYPE_CHECKING:
    from ridgeline.audit.ledger.writer import Writer

_LARGEST = 64 << 20
_SECONDS = 60
_GOODBYE_S = 5.0


class Door:
    """Open as long as the writer is."""

    def __init__(self, home: Home, writer: Writer) -> None:
        self._home, self._writer = home, writer
        self._closing = False
        self._mutex = threading.RLock()  # a forgotten ledger may be closed from anywhere, also from within
        self._guests: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(FileNotFoundError):
            home.door.unlink()
        try:
            with _short(home) as name:
                self._listener.bind(name)
            os.chmod(home.door, 0o600)
            self._listener.listen(64)
        except OSError:  # no sockets on this filesystem: the log itself works without
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
            self._home.door.unlink()
        # A socket in use holds on to the filesystem its name lies on, so its thread is waited for. What was asked is
        # answered and nothing more is read; a guest who does not take the answer is cut off.
        for how in (socket.SHUT_RD, socket.SHUT_RDWR):
            with self._mutex:
                for guest in self._guests:
                    with suppress(OSError):
                        guest.shutdown(how)
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

        thread = threading.Thread(target=run, name="ledger-door", daemon=True)
        with self._mutex:
            self._threads.add(thread)
        thread.start()

    def _run(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with self._mutex:
                if self._closing:
                    peer.close()
                    return
                self._guests.add(peer)
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
                self._guests.discard(peer)

    def _answer(self, request: bytes) -> dict[str, Any]:
        try:
            asked = json.loads(request)
            if not isinstance(asked, dict):
                raise InputError("a request must be an object.")
            if "append" in asked:
                encoded = encode(asked["append"])
                if encoded.count == 0:
                    return {"first": self._writer.size, "size": self._writer.size, "leaves": ""}
                first, size = self._writer.append(encoded)
                return {"first": first, "size": size, "leaves": base64.b64encode(encoded.hashes).decode()}
            if "checkpoint" in asked:
                return {"checkpoint": str(self._writer.publish())}
            raise InputError("a request must append events or ask for a checkpoint.")
        except RidgelineError as error:
            return {"error": str(error)}
        except (ValueError, TypeError, RecursionError) as error:
            return {"error": f"the request cannot be read: {error}."}


class Lost(StoreError):
    """The process that writes a log does not answer, or not any more."""


class NotTaken(Lost):
    """It left, and what it was asked last was surely not done."""


class Guest:
    """A connection to the process that writes a log."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_SECONDS)
        try:
            with _short(home) as name:
                self._socket.connect(name)
            self.append([])  # an answer says that we are let in: from now on a goodbye will be said
        except (OSError, Lost) as error:
            self._socket.close()
            why = getattr(error, "strerror", None) or "it is closing"
            raise Lost(f"the writer of {home.log} does not answer at its socket ({why}).") from None
        except BaseException:
            self._socket.close()
            raise

    def append(self, events: Iterable[Mapping[str, Any]]) -> tuple[int, bytes, int]:
        """Index of the first, leaf hashes, size after the commit; on the disk when this returns."""
        items = list(events)
        encode(items)  # a wrong event is refused here, with its number, before anything travels
        found = self._ask({"append": items})
        return int(found["first"]), base64.b64decode(found["leaves"]), int(found["size"])

    def checkpoint(self) -> str:
        """Have the writer sign its present size."""
        return str(self._ask({"checkpoint": True})["checkpoint"])

    def close(self) -> None:
        self._socket.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            _send(self._socket, request)
        except OSError as error:  # a request that did not leave whole is not read
            raise NotTaken(f"the writer of {self._home.log} was lost: {error}.") from None
        try:
            reply = _receive(self._socket)
        except OSError as error:
            raise Lost(f"the writer of {self._home.log} was lost: {error}; look whether it took the events.") from None
        if reply is None:
            raise Lost(f"the writer of {self._home.log} ended; look whether it took the events.")
        found: dict[str, Any] = json.loads(reply)
        if found.get("closed"):
            raise NotTaken(f"the writer of {self._home.log} is closing.")
        if "error" in found:
            raise StoreError(str(found["error"]))
        return found


def _send(to: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    if len(data) > _LARGEST:
        raise InputError(f"{len(data)} bytes are too much at once; send fewer events at a time.")
    to.sendall(struct.pack(">I", len(data)) + data)


def _receive(peer: socket.socket) -> bytes | None:
    head = _exactly(peer, 4)
    if head is None:
        return None
    (size,) = struct.unpack(">I", head)
    if size > _LARGEST:
        raise StoreError("a message is too long.")
    return _exactly(peer, size)


def _exactly(peer: socket.socket, size: int) -> bytes | None:
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
def _short(home: Home) -> Iterator[str]:
    """A name of the socket that fits: a socket's path has 107 bytes at most, a folder's may have more."""
    fd = os.open(home.private, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{home.door.name}"
    finally:
        os.close(fd)
