"""The syslog source: messages of RFC 5424 (and RFC 3164) by UDP, TCP or a unix datagram socket.

    udp:127.0.0.1:5514    tcp://127.0.0.1:5514    tls://0.0.0.0:6514    unix:/run/ridgeline.sock

Over TCP and TLS (RFC 5425) a message ends with a newline or NUL, or has its length before it (RFC 6587); both wait for
the log. With a
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
from ridgeline.audit.sources.lines import LONGEST, parse_old_stamp, parse_stamp
from ridgeline.audit.sources.source import Batch, Event, Position, shorten
from ridgeline.errors import InputError

CAPACITY = 50_000  # most messages buffered between the socket and the log …
MOST_BYTES = 64 << 20  # … and most bytes of them
AT_ONCE = 4_000  # messages in one batch
_GOODBYE_S = 5.0  # for connections to close
_ADDRESS = re.compile(r"(udp|tcp|tls):(?://)?(\[[0-9a-fA-F:.]+\]|[^:/]+):(\d{1,5})")
_HANDSHAKE_S = 20.0
_READ = 1 << 16  # bytes
_SEVERITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
_HEADER = re.compile(
    r"<(\d{1,3})>1 (\S+) (\S+) (\S+) (\S+) (\S+) (-|(?:\[(?:[^\]\"]|\"(?:[^\"\\]|\\.)*\")*\])+)(?: |$)"
)
# The same without structured data, or with data that break its rules: all after the header is the message.
_HEADER_ONLY = re.compile(r"<(\d{1,3})>1 (\d{4}-\S+) (\S+) (\S+) (\S+) (\S+)(?: |$)()")
_PRIORITY = re.compile(r"<(\d{1,3})>")
# RFC 3164, and how devices write it: a sequence number, a year, a fraction, a zone, one blank before a day, no host.
_OLD_STAMP = re.compile(
    r"(?:<\d{1,3}>)?(?:\d{1,10}: )?[*.]?"
    r"(?:(?:(\d{4}) )?([A-Z][a-z]{2}) {1,2}(\d{1,2}) (?:(\d{4}) )?(\d\d:\d\d):(\d\d)(?:[.,](\d{1,9}))?( UTC| GMT| Z|Z)?"
    r"|(\d{4}-\d\d-\d\dT[^\s:]+:[^\s:]+:[^\s:]+(?::\d\d)?)):?(?: +|$)"
)
_OLD_HOST = re.compile(r"(?![^\s]*[:\[\]](?: |$))([\w.:%-]+) +")
_OLD_PROGRAM = re.compile(r"([\w./-]+)(?:\([^)]*\))?(?:\[[^\]\s]*\])?: ?")
_LENGTH = re.compile(rb"([1-9]\d{0,9}) ")
_LENGTH_BEGUN = re.compile(rb"[1-9]\d{0,9} ?\Z")
# A NUL ends a message (Python's SysLogHandler) if another one or nothing follows it; else it belongs to the message.
_MESSAGE_END = re.compile(rb"\n|\0(?=<|\Z)")


Peer = tuple[tuple[str, str], ...]  # attributes that name the sender of a message


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
        self._queue: deque[tuple[bytes, Peer]] = deque()
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
                self._bytes -= sum(len(message) for message, _ in messages)
                self._space.set()
                dropped, self._dropped = self._dropped, 0
                if messages or dropped:
                    yield Batch([make_event(*message) for message in messages], dropped=dropped)
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

    def take(self, message: bytes, peer: Peer = ()) -> None:
        """Buffer a message of a socket that does not wait, or count it as dropped."""
        if self._is_full():
            self._dropped += 1
        elif message.strip():
            self._queue.append((message, peer))
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
        splitter, peer = MessageSplitter(), _describe_connection(writer)
        try:
            while not splitter.too_long and (data := await reader.read(_READ)):
                for message in splitter.split(data):
                    await self._wait_for_space(writer)
                    self.take(message, peer)
                    self._forget_connection(writer)
                    self._known[writer] = None  # the last to be closed
            # A connection that was closed for another one leaves no whole message.
            if not (splitter.too_long or writer.is_closing()) and (message := splitter.finish()):
                await self._wait_for_space(writer)
                self.take(message, peer)
        except OSError:  # cut off
            pass
        finally:
            if splitter.unfinished:  # a connection that ends between two messages, even by a reset, takes none with it
                self._dropped += 1
                self._more.set()
            self._readers.discard(reading)
            self._forget_connection(writer)
            writer.close()

    async def _wait_for_space(self, writer: asyncio.StreamWriter) -> None:
        while self._is_full() and not self._stopped and not writer.is_closing():
            self._space.clear()
            await self._space.wait()

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


class MessageSplitter:
    """Splits the bytes of a connection into messages.

    Digits and a blank before a `<` are a length. In a connection whose first message has a length, all messages that
    begin with digits have one; in another one, a line may begin with digits.

    >>> splitter = MessageSplitter()
    >>> splitter.split(b"<1>one\\n5 <1>ab2026 no length\\n<1>cut")
    [b'<1>one', b'<1>ab', b'2026 no length']
    >>> splitter.finish()
    b'<1>cut'
    """

    def __init__(self) -> None:
        self._rest = b""
        self._counts = False  # all messages that begin with digits have a length
        self._first = True
        self.too_long = False

    @property
    def unfinished(self) -> bool:
        return bool(self._rest)

    def split(self, data: bytes) -> list[bytes]:
        """Return the messages that are complete with `data`; `too_long` says that another one will never be."""
        messages, data, at = list[bytes](), self._rest + data, 0
        while True:
            while data[at : at + 1] in (b"\n", b"\r", b"\0"):  # senders that count may end a message by a newline, too
                at += 1
            length = _LENGTH.match(data, at)
            if length is None and _LENGTH_BEGUN.match(data, at):
                break
            if length is not None and not self._counts and length.end() == len(data):
                break
            if length is not None and (self._counts or data[length.end() : length.end() + 1] == b"<"):
                self._counts = self._counts or self._first
                begin, end = length.end(), length.end() + int(length[1])
                after = end
            else:
                ending = _MESSAGE_END.search(data, at)
                begin, end, after = at, *(ending.span() if ending else (len(data), len(data) + 1))
            if after > len(data):
                self.too_long = end - begin > LONGEST
                break
            messages.append(data[begin:end])
            at, self._first = after, False
        self._rest = data[at:]
        return messages

    def finish(self) -> bytes:
        """Return the last message, which no newline ends; empty if it has a length and is cut off."""
        length = _LENGTH.match(self._rest)
        if length is not None and (self._counts or self._rest[length.end() : length.end() + 1] == b"<"):
            return b""
        message, self._rest = self._rest, b""
        return message


class _Receiver(asyncio.DatagramProtocol):
    def __init__(self, source: Syslog) -> None:
        self._source = source

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._source.take(data, _describe_address(addr))


def _describe_connection(writer: asyncio.StreamWriter) -> Peer:
    """Return the address of a sender, and the name in its certificate if `--tls-ca` asked for one."""
    address = _describe_address(writer.get_extra_info("peername"))
    certificate = writer.get_extra_info("peercert") or {}
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return (*address, ("_peer_name", shorten(names[-1]))) if names else address


def _describe_address(address: Any) -> Peer:
    """Return the address of a sender; unix sockets have none."""
    return (("_peer", address[0].removeprefix("::ffff:")),) if isinstance(address, tuple) else ()


def make_event(message: bytes, peer: Peer = ()) -> Event:
    """Make an event of a message: action `syslog.message`, subject the program, the time of the message.

    `host` is what the message says; the attributes of `peer` are what the connection shows.
    """
    message = message.rstrip(b"\r\n\0")
    text = message[:LONGEST].decode("utf-8", errors="backslashreplace")
    header = _HEADER.match(text) or _HEADER_ONLY.match(text)
    priority = _PRIORITY.match(text)
    if header is None:
        event, attributes = _make_old_event(text), {}
    else:
        _, stamp, name, program, pid, kind, data = header.groups()
        event = {"time": parse_stamp(stamp), "subject": shorten(program) if program != "-" else None}
        named = {"host": name, "_pid": pid, "_id": kind, "data": data}
        attributes = {key: value for key, value in named.items() if value not in ("-", "")}
        event["attributes"] = {"message": text[header.end() :].removeprefix("\ufeff")}
    if priority is not None and int(priority[1]) < 192:
        attributes["severity"] = _SEVERITIES[int(priority[1]) % 8]
        attributes["_facility"] = int(priority[1]) // 8
    event["attributes"] |= attributes
    event["attributes"] |= dict(peer)
    if len(message) > LONGEST:
        event["attributes"]["_cut_bytes"] = len(message) - LONGEST
    return {**event, "source": "syslog", "action": "syslog.message", "time": event.get("time") or time.time_ns()}


def _make_old_event(text: str) -> Event:
    """Make an event of a message of RFC 3164, or of a text without a header: `_prefix` and `message` together."""
    stamp = _OLD_STAMP.match(text)
    at, program, attributes = 0, None, dict[str, Any]()
    if stamp is not None:
        at = stamp.end()
        if host := _OLD_HOST.match(text, at):
            attributes["host"], at = host[1], host.end()
        if program := _OLD_PROGRAM.match(text, at):
            at = program.end()
    elif priority := _PRIORITY.match(text):
        at = priority.end()
    words = {"_prefix": text[:at], "message": text[at:]} if at else {"message": text}
    return {
        "time": _read_old_stamp(stamp) if stamp is not None else 0,
        "subject": shorten(program[1]) if program is not None else None,
        "attributes": {**words, **attributes},
    }


def _read_old_stamp(stamp: re.Match[str]) -> int:
    first, month, day, second, minute, seconds, fraction, zone, full = stamp.groups()
    if full:
        return parse_stamp(full)
    return parse_old_stamp(
        f"{month} {int(day):2} {minute}",
        int(seconds) * 10**9 + int((fraction or "0").ljust(9, "0")),
        int(first or second or 0),
        utc=zone is not None,
    )
