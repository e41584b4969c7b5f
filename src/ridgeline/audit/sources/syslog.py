"""The syslog source: messages of RFC 5424 (and RFC 3164) by UDP, TCP or a unix datagram socket.

    udp:127.0.0.1:5514    tcp://127.0.0.1:5514    tls://0.0.0.0:6514    unix:/run/ridgeline.sock

Over TCP and TLS (RFC 5425) a message is a line, or has its length before it (RFC 6587); both wait for the log. With a
file of authorities, TLS takes only senders that have a certificate of one of them. UDP and unix sockets do
not: messages beyond a limit are dropped and counted. TCP connections use at most a quarter of the process's descriptors
(those of all listeners together: half): a new one replaces the oldest that has sent no message, else the one that has
been silent for longest. Connections in their TLS handshake are a fourth more at most.
Without such a file senders are not authenticated, so listen on trusted networks only.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import stat
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline import web
from ridgeline.audit.sources.lines import LONGEST, make_log_reader, parse_stamp
from ridgeline.audit.sources.source import Batch, Event, Position, shorten
from ridgeline.errors import InputError

CAPACITY = 50_000  # most messages buffered between the socket and the log …
MOST_BYTES = 64 << 20  # … and most bytes of them
AT_ONCE = 4_000  # messages in one batch
_GOODBYE_S = 5.0  # for connections to close
_ADDRESS = re.compile(r"(udp|tcp|tls):(?://)?(\[[0-9a-fA-F:.]+\]|[^:/]+):(\d{1,5})")
_HANDSHAKE_S = 20.0
_SEVERITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
_HEADER = re.compile(
    r"<(\d{1,3})>1 (\S+) (\S+) (\S+) (\S+) (\S+) (-|(?:\[(?:[^\]\"]|\"(?:[^\"\\]|\\.)*\")*\])+)(?: |$)"
)
_PRIORITY = re.compile(r"<(\d{1,3})>")
_OLD_HOST = re.compile(r"(?:<\d{1,3}>)?[A-Z][a-z]{2} [ \d]\d [\d:]{8} (\S+) ")


@dataclass(frozen=True)
class Certificate:
    """PEM files for TLS: the server's chain and key, and the authorities whose certificates senders must have."""

    chain: Path
    key: Path
    authorities: Path | None = None

    def load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        for path in (self.chain, self.key, *([self.authorities] if self.authorities else ())):
            if not path.is_file():
                raise InputError(f"there is no file '{path}'; give a PEM file.")
        try:
            context.load_cert_chain(self.chain, self.key)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise InputError(
                f"'{self.chain}' and '{self.key}' are no certificate and its key in PEM form ({_explain(error)})."
            ) from None
        if self.authorities is not None:
            try:
                context.load_verify_locations(self.authorities)
            except (OSError, ValueError) as error:
                raise InputError(f"'{self.authorities}' has no certificates in PEM form ({_explain(error)}).") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _explain(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error).lower().replace("_", " ")


class Syslog:
    """Receives messages at one address.

    address      udp:HOST:PORT, tcp:HOST:PORT, tls:HOST:PORT or unix:PATH; :// instead of : is allowed
    capacity     most messages that are buffered
    certificate  of the server, for TLS: PEM files of the chain and of its key, and of the authorities for senders
    """

    def __init__(self, address: str, *, capacity: int = CAPACITY, certificate: Certificate | None = None) -> None:
        match = _ADDRESS.fullmatch(address)
        if match is None and not (address.startswith("unix:") and len(address) > 5):
            raise InputError(
                f"--syslog '{address}' is no address; write udp://HOST:PORT, tcp://HOST:PORT, tls://HOST:PORT or "
                "unix:PATH."
            )
        if match is not None and match[1] == "tls" and certificate is None:
            raise InputError(f"--syslog '{address}' needs a certificate; give --tls-cert and --tls-key.")
        if match is not None and int(match[3]) > 65_535:
            raise InputError(f"--syslog '{address}' has port {match[3]}; give 65535 at most.")
        self.name, self._address, self._capacity = f"syslog:{address.replace('://', ':')}", address, capacity
        self._kind = match[1] if match else "unix"
        self._tls = certificate.load() if certificate is not None and self._kind == "tls" else None
        self._host, self._port = (match[2].strip("[]"), int(match[3])) if match else ("", 0)
        self._path = Path(address.removeprefix("unix:").removeprefix("//"))
        self._queue: deque[bytes] = deque()
        self._bytes = self._dropped = 0
        # TCP connections without and with a message, those first that have been silent for longest
        self._new: dict[asyncio.StreamWriter, None] = {}
        self._known: dict[asyncio.StreamWriter, None] = {}
        self._readers: set[asyncio.Task[None]] = set()
        self._more, self._space = asyncio.Event(), asyncio.Event()
        self._stopped = False
        self.port = self._port  # the port in use, once it listens

    def stop(self) -> None:
        self._stopped = True
        self._more.set()

    async def batches(self, position: Position | None) -> AsyncGenerator[Batch, None]:
        counted = ExitStack()
        if self._kind in ("tcp", "tls"):
            counted.enter_context(web.count_listener())
        try:
            listener = await self._listen()
        except (OSError, OverflowError) as error:
            counted.close()
            raise InputError(f"--syslog '{self._address}' cannot be listened on: {_explain_address(error)}.") from None
        try:
            yield Batch([])  # it listens
            while True:
                if not self._queue and not self._stopped:
                    self._more.clear()
                    await self._more.wait()
                    await asyncio.sleep(0)  # let further messages arrive
                messages = [self._queue.popleft() for _ in range(min(len(self._queue), AT_ONCE))]
                self._bytes -= sum(map(len, messages))
                self._space.set()
                dropped, self._dropped = self._dropped, 0
                if messages or dropped:
                    yield Batch([make_event(message) for message in messages], dropped=dropped)
                elif self._stopped:
                    return
        finally:
            listener.close()
            counted.close()
            await self._close_connections()
            if self._kind == "unix":
                self._path.unlink(missing_ok=True)

    async def _listen(self) -> asyncio.BaseTransport | asyncio.Server:
        loop = asyncio.get_running_loop()
        if self._kind in ("tcp", "tls"):
            self._listener = await asyncio.to_thread(self._bind)
            # asyncio accepts that many connections before any is counted
            server = await asyncio.start_server(
                self._read_stream,
                sock=self._listener,
                limit=LONGEST,
                backlog=web.ACCEPT_AT_ONCE,
                ssl=self._tls,
                ssl_handshake_timeout=_HANDSHAKE_S if self._tls is not None else None,
            )
            self.port = server.sockets[0].getsockname()[1]
            return server
        if self._kind == "udp":
            transport, _ = await loop.create_datagram_endpoint(
                lambda: _Receiver(self), local_addr=(self._host, self._port)
            )
            self.port = transport.get_extra_info("sockname")[1]
            return transport
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(self._path).st_mode):
                raise OSError("there is a file of this name")
            self._path.unlink()  # of an earlier watcher
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            receiver.setblocking(False)
            receiver.bind(str(self._path))
        except OSError:
            receiver.close()
            raise
        transport, _ = await loop.create_datagram_endpoint(lambda: _Receiver(self), sock=receiver)
        return transport

    def _bind(self) -> web.Listener:
        places = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        family, _, _, _, address = min(places, key=lambda place: place[0] != socket.AF_INET)  # a name may have both
        listener = socket.create_server(address[:2], family=family, backlog=128)
        listener.setblocking(False)
        return web.Listener(listener, _count_handshakes if self._tls is not None else None)

    def take(self, message: bytes) -> None:
        """Buffer a message of a socket that does not wait, or count it as dropped."""
        if self._is_full():
            self._dropped += 1
        elif message.strip():
            self._queue.append(message)
            self._bytes += len(message)
        self._more.set()

    def _is_full(self) -> bool:
        return len(self._queue) >= self._capacity or self._bytes >= MOST_BYTES

    def _add_connection(self, writer: asyncio.StreamWriter) -> None:
        """Keep a connection; close another one if there are too many."""
        while len(self._new) + len(self._known) >= web.get_connection_limit():
            idle = self._new or self._known
            silent = next(iter(idle))
            del idle[silent]
            silent.transport.abort()
        self._new[writer] = None

    async def _read_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Buffer the messages of one TCP connection; wait while the buffer is full."""
        self._listener.accept_handshake(writer.transport)
        self._add_connection(writer)
        reading = asyncio.current_task()
        assert reading is not None  # noqa: S101
        self._readers.add(reading)
        is_inside = False  # a message
        try:
            while first := await reader.read(1):
                is_inside = True
                if first.isdigit():
                    length = int(first + (await reader.readuntil(b" ")))
                    if length > LONGEST:
                        raise ValueError(length)
                    message = await reader.readexactly(length)
                else:
                    message = first + await reader.readline()
                    if writer.is_closing() and not message.endswith(b"\n"):  # closed for another connection
                        raise EOFError
                while self._is_full() and not self._stopped and not writer.is_closing():
                    self._space.clear()
                    await self._space.wait()
                self.take(message)
                is_inside = False
                self._forget_connection(writer)
                self._known[writer] = None  # the last to be closed
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):  # cut off, or longer than any message
            if is_inside:  # a connection that ends between two messages, even by a reset, takes none with it
                self._dropped += 1
                self._more.set()
        finally:
            self._readers.discard(reading)
            self._forget_connection(writer)
            writer.close()

    async def _close_connections(self) -> None:
        """Close all connections and wait for their readers: asyncio would print an error for each that it cancels."""
        for writer in [*self._new, *self._known]:
            writer.transport.abort()
        self._space.set()
        if self._readers:
            await asyncio.wait(self._readers, timeout=_GOODBYE_S)

    def _forget_connection(self, writer: asyncio.StreamWriter) -> None:
        self._new.pop(writer, None)
        self._known.pop(writer, None)


def _explain_address(error: Exception) -> str:
    number = getattr(error, "errno", None) or 0
    return os.strerror(number).lower() if number > 0 else str(getattr(error, "strerror", None) or error).lower()


def _count_handshakes() -> int:
    return max(4, web.get_connection_limit() // 4)


class _Receiver(asyncio.DatagramProtocol):
    def __init__(self, source: Syslog) -> None:
        self._source = source

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._source.take(data)


def make_event(message: bytes) -> Event:
    """Make an event of a message: action `syslog.message`, subject the program, the time of the message."""
    message = message.rstrip(b"\r\n\0")
    text = message[:LONGEST].decode("utf-8", errors="backslashreplace")
    header = _HEADER.match(text)
    priority = _PRIORITY.match(text)
    if header is None:  # RFC 3164 is the format of lines in log files
        event = make_log_reader("syslog")(message, "", 0)
        del event["attributes"]["_file"]
        host = _OLD_HOST.match(text)
        attributes = {"host": host[1]} if host else {}
    else:
        _, stamp, name, program, pid, kind, data = header.groups()
        event = {"time": parse_stamp(stamp), "subject": shorten(program) if program != "-" else None}
        named = {"host": name, "_pid": pid, "_id": kind, "data": data}
        attributes = {key: value for key, value in named.items() if value != "-"}
        event["attributes"] = {"message": text[header.end() :].removeprefix("\ufeff")}
    if priority is not None and int(priority[1]) < 192:
        attributes["severity"] = _SEVERITIES[int(priority[1]) % 8]
        attributes["_facility"] = int(priority[1]) // 8
    event["attributes"] |= attributes
    return {**event, "source": "syslog", "action": "syslog.message", "time": event.get("time") or time.time_ns()}
