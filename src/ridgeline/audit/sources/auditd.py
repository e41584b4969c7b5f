"""The auditd source: records of the Linux audit system, from its log file or the socket of its af_unix plugin.

    type=SYSCALL msg=audit(1700000000.123:42): … success=no … auid=1000 uid=33 … exe="/usr/bin/cat" key="shadow"
    type=PATH msg=audit(1700000000.123:42): item=0 name="/etc/shadow" …
    type=PROCTITLE msg=audit(1700000000.123:42): proctitle=636174002F6574632F736861646F77

Records with the same time and serial number are one event; records of several events may be interleaved. An event ends
with its record EOE or PROCTITLE, with a record that a program wrote (it has its own msg='…'), or when no record of it
arrived for two seconds. The position after a batch holds the records of unfinished events, so a restart neither loses
nor doubles one. The socket cannot resume.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
import socket
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

from ridgeline.audit.sources.files import LineFile
from ridgeline.audit.sources.lines import LONGEST, parse_lines
from ridgeline.audit.sources.source import LATEST, Batch, Event, Position, shorten
from ridgeline.errors import InputError, RidgelineError

WAIT_S = 2.0  # seconds without a record after which an event has ended
MOST_BYTES = 1 << 20  # most bytes of unfinished events; beyond that, the oldest ends
_RECORD = re.compile(r"(?:node=(\S+) )?type=(\S+) msg=audit\(([0-9]{1,10})\.([0-9]{3}):([0-9]{1,20})\):\s?")
_FIELD = re.compile(r"([\w\[\]-]+)=(\"[^\"]*\"|'[^']*'|\{[^}]*\}|[^\s]*)")
_PROGRAM, _NAMES = " msg='", "\x1d"  # before the fields that a program wrote, and before the names that auditd adds
_HEX = re.compile(r"(?:[0-9A-Fa-f]{2})+")
# fields that the kernel writes in hexadecimal if their text is not plain
_ENCODED = re.compile("acct|cmd|comm|cwd|data|device|dir|exe|file|grp|key|name|ocomm|path|proctitle|vm|watch")
_NUMBER = re.compile(r"[0-9]{1,10}")
_ARGUMENT = re.compile(r"a([0-9]{1,8})(?:\[[0-9]+\])?")
_NONE = ("(null)", "(none)", "?", "")
_UNSET = ("4294967295", "-1", "unset")
_LAST = ("EOE", "PROCTITLE")
_DETAILS = ("SYSCALL", "CWD", "PATH", "PROCTITLE", "EOE", "SOCKADDR")  # records that tell more about another record
_NUMBERS = ("uid", "auid", "pid")
_COMMANDS = ("proctitle", "cmd", "data")  # the last two: what sudo ran, what was typed into a terminal
_SUBJECTS = ("saddr", "acct", "unit", "exe")  # if no file is named
_TEXTS = ("exe", "comm", "syscall", "key", "cwd", "op", "acct", "unit", "addr", "terminal", "tty")
_MOST_ARGUMENTS = 10_000


@dataclass(frozen=True)
class Record:
    """One line of the audit log."""

    id: tuple[str, int, int]  # host, time in ns, serial number
    type: str
    fields: dict[str, str]
    from_program: bool  # a program wrote it, so it is a whole event
    text: str


@dataclass
class _Unfinished:
    records: list[Record] = field(default_factory=list)
    place: str = ""
    last_s: float = 0.0  # when its last record arrived


class Auditd:
    """Reads `path`, an audit.log or the socket of auditd's af_unix plugin; `follow` waits for more records."""

    def __init__(self, path: Path, *, follow: bool = True, wait_s: float = WAIT_S) -> None:
        self.name = f"auditd:{path.absolute()}"
        self._path, self._follow, self._wait_s = path, follow, wait_s
        self._socket, self._file = False, self._open_file()
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()
        if self._file is not None:
            self._file.stop()

    def _open_file(self) -> LineFile | None:
        """Return a reader of the file; None if the path is a socket, which auditd makes when it starts."""
        self._socket = self._path.is_socket()
        if self._path.exists() and not self._socket and not self._path.is_file():
            raise InputError(f"'{self._path}' is neither an audit.log nor the socket of auditd's af_unix plugin.")
        return None if self._socket else LineFile(self._path, "auditd", _read_line, follow=self._follow)

    async def batches(self, position: Position | None) -> AsyncGenerator[Batch, None]:
        self._file = self._open_file()
        saved: Position = position or {"file": None, "unfinished": []}
        joiner = Joiner(self._wait_s)
        joiner.load(saved["unfinished"])
        lines = self._read_socket() if self._file is None else self._file.batches(saved["file"])
        at = saved["file"]
        async with aclosing(lines):
            waiting = asyncio.ensure_future(anext(lines, None))
            try:
                while True:
                    done, _ = await asyncio.wait({waiting}, timeout=self._wait_s if joiner.unfinished else None)
                    if not done:
                        if events := joiner.end_old(time.monotonic()):
                            yield self._batch(Batch([]), at, joiner, events)
                        continue
                    batch = waiting.result()
                    if batch is None:
                        break
                    events = joiner.join(zip((event["record"] for event in batch.events), batch.places, strict=True))
                    at = batch.position
                    yield self._batch(batch, at, joiner, events)
                    waiting = asyncio.ensure_future(anext(lines, None))
            finally:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
        if self._socket or not self._follow:  # no reader will see the rest of these events
            yield self._batch(Batch([]), at, joiner, joiner.end_all())
        if self._socket and self._follow and not self._stop.is_set():
            raise RidgelineError(f"auditd closed the socket '{self._path}'.")

    def _batch(self, batch: Batch, at: Position | None, joiner: Joiner, events: list[tuple[Event, str]]) -> Batch:
        position = None if self._socket else {"file": at, "unfinished": joiner.texts()}
        return Batch(
            [event for event, _ in events],
            position,
            refused=batch.refused,
            gaps=batch.gaps,
            places=[place for _, place in events],
        )

    async def _read_socket(self) -> AsyncGenerator[Batch, None]:
        """Yield the lines of the socket, as many as have arrived; auditd waits while the log is busy."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._path, limit=LONGEST)
        except OSError as error:
            raise InputError(f"'{self._path}' is no socket that auditd listens on ({error.strerror}).") from None
        stopping = asyncio.ensure_future(self._stop.wait())
        rest, number = b"", 0
        try:
            yield Batch([])  # it is connected
            while True:
                reading = asyncio.ensure_future(reader.read(LONGEST))
                await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    reading.cancel()
                    return
                data = reading.result()
                lines, _, rest = (rest + data).rpartition(b"\n")
                if not data or len(rest) > LONGEST:  # the end, or a line that is longer than any record
                    lines, rest = lines + b"\n" + rest if lines else rest, b""
                if lines:
                    events, places, refused = parse_lines(lines, _read_line, f"of {self._path}", number, 0)
                    number += lines.count(b"\n") + 1
                    yield Batch(events, refused=tuple(refused), places=places)
                if not data:
                    return
        finally:
            stopping.cancel()
            writer.close()


class Joiner:
    """Joins records to events by their time and serial number."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self._wait_s = wait_s
        self._open: OrderedDict[tuple[str, int, int], _Unfinished] = OrderedDict()
        self._bytes = 0

    @property
    def unfinished(self) -> int:
        return len(self._open)

    def load(self, lines: list[str]) -> None:
        """Add the records of unfinished events that an earlier reader saved."""
        for line in lines:
            self._add(parse_record(line, "a saved record"), "a saved record")

    def texts(self) -> list[str]:
        """Return the records of unfinished events, for `load`."""
        return [record.text for event in self._open.values() for record in event.records]

    def join(self, records: Iterable[tuple[Record, str]]) -> list[tuple[Event, str]]:
        """Add (record, its place); return the events that have ended, each with the place of its first record."""
        events = list[tuple[Event, str]]()
        for record, place in records:
            if record.from_program:
                events.append((make_event([record]), place))
                continue
            if record.type == "EOE" and record.id not in self._open:
                continue  # its event ended with PROCTITLE
            self._add(record, place)
            if record.type in _LAST:
                events.append(self._end(record.id))
            # The kernel writes the records of an event at once, so a much later one shows that an event has ended.
            # The clocks of other hosts may be behind.
            host, before = record.id[0], record.id[1] - int(self._wait_s * 1e9)
            events += [self._end(id) for id in list(self._open) if id[0] == host and id[1] < before]
            while self._bytes > MOST_BYTES:
                events.append(self._end(next(iter(self._open))))
        return events

    def end_old(self, now_s: float) -> list[tuple[Event, str]]:
        """End the events of which no record has arrived for some seconds."""
        old = [id for id, event in self._open.items() if now_s - event.last_s >= self._wait_s]
        return [self._end(id) for id in old]

    def end_all(self) -> list[tuple[Event, str]]:
        return [self._end(id) for id in list(self._open)]

    def _add(self, record: Record, place: str) -> None:
        event = self._open.setdefault(record.id, _Unfinished(place=place))
        event.records.append(record)
        event.last_s = time.monotonic()
        self._bytes += len(record.text)

    def _end(self, id: tuple[str, int, int]) -> tuple[Event, str]:
        event = self._open.pop(id)
        self._bytes -= sum(len(record.text) for record in event.records)
        return make_event(event.records), event.place


def _read_line(line: bytes, where: str, more: int = 0) -> Event:
    """A `LineReader`: the record of a line, in place of an event."""
    if more or len(line) > LONGEST:
        raise InputError(f"{where} has {len(line) + more} bytes, more than {LONGEST}")
    return {"record": parse_record(line.decode("utf-8", errors="backslashreplace"), where)}


def parse_record(text: str, where: str) -> Record:
    """Parse one line of the audit log; raise `InputError` if it is none."""
    header = _RECORD.match(text)
    if header is None:
        raise InputError(f"{where} is no audit record; give a file like /var/log/audit/audit.log")
    host, kind, seconds, milliseconds, serial = header.groups()
    moment = int(seconds) * 10**9 + int(milliseconds) * 10**6
    rest, _, names = text[header.end() :].partition(_NAMES)
    kernel_part, from_program, message = f" {rest}".partition(_PROGRAM)
    # A program's fields end at the last quote, and replace none of the kernel's: an account may be called x'uid=0.
    message = message.rstrip().removesuffix("'")
    added = {name: value for name, value in _parse_fields(names, kind).items() if name.isupper()}
    fields = _parse_fields(message, kind) | _parse_fields(kernel_part, kind) | added
    return Record((host or "", min(moment, LATEST), int(serial)), kind, fields, bool(from_program), text)


def _parse_fields(text: str, kind: str) -> dict[str, str]:
    """Return the fields of a record, and as `words` the text before the first ("avc:  denied  { read } for")."""
    first = _FIELD.search(text)
    words = " ".join(text[: first.start() if first else None].split())
    return ({"words": words} if words else {}) | {n: _decode(n, value, kind) for n, value in _FIELD.findall(text)}


def _decode(name: str, value: str, kind: str) -> str:
    """Return the text of a value: without quotes, and decoded where the kernel writes unsafe texts as hexadecimal."""
    if value[:1] in ("'", '"'):
        return value[1:-1]
    argument = kind == "EXECVE" and _ARGUMENT.fullmatch(name) is not None
    if (argument or _ENCODED.fullmatch(name)) and _HEX.fullmatch(value):
        text = bytes.fromhex(value).decode("utf-8", errors="backslashreplace")
        return text if argument else re.sub(r"[\0\x01]+", " ", text).strip()  # between arguments, and between keys
    if name == "saddr" and _HEX.fullmatch(value):
        return _decode_address(bytes.fromhex(value)) or value
    return "" if value in _NONE else value


def _decode_address(data: bytes) -> str:
    """Return the address of a struct sockaddr, like "10.0.0.1:443" or "/run/x"; "" for other families."""
    family = data[0] or (data[1] if len(data) > 1 else 0)  # of a machine with either order of bytes
    if family == socket.AF_UNIX:
        at = "@" if data[2:3] == b"\0" else ""  # an abstract name, as ss writes it
        return at + data[2 + len(at) :].partition(b"\0")[0].decode("utf-8", "backslashreplace")
    port = int.from_bytes(data[2:4])
    if family == socket.AF_INET and len(data) >= 8:
        return f"{IPv4Address(data[4:8])}:{port}"
    if family == socket.AF_INET6 and len(data) >= 24:
        return f"[{IPv6Address(data[8:24])}]:{port}"
    return ""


def make_event(records: list[Record]) -> Event:
    """Make an event of its records: action `auditd.TYPE`, subject the file, account, unit or program.

    The actor is the login user (`auid`), which su and sudo do not change, else the user of the process.
    """
    host, moment, serial = records[0].id
    main = next((record for record in records if record.type not in _DETAILS), records[0])
    fields = {name: value for record in reversed(records) for name, value in record.fields.items() if value}
    attributes: dict[str, Any] = {"host": host} if host else {}
    for name in _NUMBERS:
        if _NUMBER.fullmatch(fields.get(name, "")) and fields[name] not in _UNSET:
            attributes[name] = int(fields[name])
    fields["syscall"] = fields.get("SYSCALL", fields.get("syscall", ""))  # an enriched log has its name
    attributes |= {name: fields[name] for name in _TEXTS if fields.get(name)}
    outcome = fields.get("success", fields.get("res", ""))
    if outcome:
        attributes["success"] = outcome in ("yes", "success", "1")
    named = [r.fields for r in records if r.type == "PATH" and r.fields.get("name")]
    paths = [posixpath.normpath(posixpath.join(fields.get("cwd", ""), path["name"])) for path in named]
    targets = [path for path, words in zip(paths, named, strict=True) if words.get("nametype") != "PARENT"]
    if paths:
        attributes["paths"] = paths
    if fields.get("saddr"):
        attributes["address"] = fields["saddr"]
    command = _join_arguments(records) or next((fields[name] for name in _COMMANDS if fields.get(name)), "")
    message = " ".join(part for part in (main.fields.get("words", ""), command) if part)
    if message:
        attributes["message"] = message
    attributes["_serial"] = serial
    attributes["_records"] = [
        {"type": record.type, **{name: value for name, value in record.fields.items() if value}}
        for record in records
        if record.type not in ("EXECVE", "PROCTITLE", "EOE")  # `message` has their words, where secrets are hidden
    ]
    login = next((fields[name] for name in ("AUID", "UID") if fields.get(name, "unset") != "unset"), None)
    user = attributes.get("auid", attributes.get("uid"))
    subject = next(iter(targets or paths), "") or next((fields[name] for name in _SUBJECTS if fields.get(name)), "")
    return {
        "time": moment,
        "source": "auditd",
        "actor": shorten(login) if login else f"uid {user}" if user is not None else None,
        "action": f"auditd.{_plain(main.type)}",
        "subject": shorten(subject) or None,
        "attributes": attributes,
    }


def _join_arguments(records: list[Record]) -> str:
    """Return the command line of the records EXECVE; a long argument comes in several pieces."""
    pieces = dict[int, str]()
    for record in records:
        if record.type == "EXECVE":
            for name, value in record.fields.items():
                match = _ARGUMENT.fullmatch(name)
                if match is not None and int(match[1]) < _MOST_ARGUMENTS:
                    pieces[int(match[1])] = pieces.get(int(match[1]), "") + value
    return " ".join(pieces[number] for number in sorted(pieces))


def _plain(kind: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", kind.lower()).strip("_")[:64] or "unknown"
