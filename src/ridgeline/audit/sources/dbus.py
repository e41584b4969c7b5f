"""The D-Bus source: a monitor that receives every call and signal that its match rules select, in bus order.

A bus does not wait. Messages that arrive faster than the log writes them are buffered up to a limit; further messages
are dropped and counted. On the system bus a monitor needs root, or a policy that allows BecomeMonitor.

A second connection asks the bus for the uid and the pid of each sender, once, as soon as it connects or sends; /proc
tells the executable and the systemd unit. A sender that has left before the answer stays unknown: its events have the
name of its connection. One whose process has ended has its uid only.

A change of properties is a change of state: its event has the properties after it, and before it where an earlier
message or a snapshot held them. A snapshot asks a service for all its objects (ObjectManager) when the watcher
connects, and again when the service gets another owner; there is an event for each object that is new, different or
gone.
"""

from __future__ import annotations

import asyncio
import math
import os
import pwd
import re
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ridgeline.audit.sources.source import Batch, Event, Position, shorten
from ridgeline.errors import InputError, MissingExtra, RidgelineError

if TYPE_CHECKING:
    from dbus_fast.aio import MessageBus

CAPACITY = 50_000  # most events buffered between the bus and the log
AT_ONCE = 4_000  # events in one batch
_BUS = "org.freedesktop.DBus"  # messages to and from it are housekeeping: names, match rules, pings
_SYSTEM = "unix:path=/run/dbus/system_bus_socket"
_WORD = re.compile(r"[^A-Za-z0-9_.-]+")
_UNIT = re.compile(r"/([^/\n]+\.(?:service|scope))(?=[/\n]|$)")  # of a path in /proc/PID/cgroup, the innermost last
_SERVICE = re.compile(r"[A-Za-z_-][\w-]*(?:\.[A-Za-z_-][\w-]*)+", re.ASCII)
_KIND = {1: "call", 4: "signal"}
_EXACT = 1 << 53
_SENDERS = 10_000  # most senders remembered
_OBJECTS = 50_000  # most interfaces of objects whose properties are remembered
_ANSWER_S = 5.0  # how long the bus may take to describe a sender
_DEEPEST = 60  # the log refuses more than 64 levels; a bus does not


class DBus:
    """Receives the messages of one bus.

    where         system, session, or an address
    matches       match rules of D-Bus; all messages without one
    capacity      most events buffered
    housekeeping  include the messages to and from the bus itself
    objects       services whose objects are read as they are: SERVICE, or SERVICE/PATH of their object manager
    """

    def __init__(
        self,
        where: str,
        matches: Sequence[str] = (),
        *,
        capacity: int = CAPACITY,
        housekeeping: bool = False,
        objects: Sequence[str] = (),
    ) -> None:
        try:
            import dbus_fast.aio  # noqa: F401
        except ImportError:
            raise MissingExtra("watching D-Bus", "audit") from None
        self.name = f"dbus:{where}" + "".join(f":{m}" for m in matches)
        self._where, self._address, self._matches = where, _address(where), list(matches)
        self._capacity, self._housekeeping = capacity, housekeeping
        self._queue: deque[Event] = deque()
        self._dropped = 0
        self._waiting = asyncio.Event()
        self._stopped = self._lost = False
        self._asking: MessageBus | None = None  # a monitor cannot call
        self._senders: dict[str, asyncio.Task[dict[str, Any]]] = {}  # their users and processes, by connection
        self._properties = _Properties()
        self._managers = [_parse_manager(words) for words in objects]
        self._snapshots: dict[tuple[str, str], dict[str, Any]] = {}  # of each manager: path → interface → properties
        self._reading: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        self._stopped = True
        self._waiting.set()

    async def batches(self, position: Position | None) -> AsyncGenerator[Batch, None]:
        async for batch in self._read_connection(await self._connect()):
            yield batch
        if not self._stopped:
            raise RidgelineError(f"the bus {self._where} closed the connection; its messages since then are lost.")

    async def _read_connection(self, bus: MessageBus) -> AsyncIterator[Batch]:
        """Yield the batches of one connection, until it is lost or `stop`."""
        self._lost = False
        self._senders.clear()
        watching = asyncio.create_task(self._until_lost(bus))
        try:
            yield Batch([])  # the monitor is ready
            for service, _ in self._managers:
                self._read_objects(service)
            while True:
                if not self._queue and not self._stopped and not self._lost:
                    self._waiting.clear()
                    await self._waiting.wait()
                    await asyncio.sleep(0)  # let further messages arrive
                events = [self._queue.popleft() for _ in range(min(len(self._queue), AT_ONCE))]
                dropped, self._dropped = self._dropped, 0
                await self._name_senders(events)
                if events or dropped:
                    yield Batch(events, dropped=dropped)
                elif self._stopped or self._lost:
                    return
        finally:
            watching.cancel()
            for task in (*self._senders.values(), *self._reading):
                task.cancel()
            bus.disconnect()
            if self._asking is not None:
                self._asking.disconnect()

    async def _connect(self) -> MessageBus:
        from dbus_fast import DBusError, Message, MessageType
        from dbus_fast.aio import MessageBus
        from dbus_fast.errors import AuthError

        try:
            bus = await MessageBus(bus_address=self._address).connect()
            self._asking = await MessageBus(bus_address=self._address).connect()
        except (OSError, EOFError, AuthError, DBusError, ValueError) as error:
            raise InputError(f"the bus {self._where} ({self._address}) cannot be reached: {error}.") from None
        bus.add_message_handler(self._take)
        reply = await bus.call(
            Message(
                destination=_BUS,
                path="/org/freedesktop/DBus",
                interface="org.freedesktop.DBus.Monitoring",
                member="BecomeMonitor",
                signature="asu",
                body=[self._rules(), 0],
            )
        )
        if reply is None or reply.message_type == MessageType.ERROR:
            why = reply.body[0] if reply is not None and reply.body else "no answer"
            bus.disconnect()
            self._asking.disconnect()
            raise InputError(f"the bus {self._where} does not allow monitoring: {why}.")
        return bus

    def _rules(self) -> list[str]:
        if not self._matches:
            return ["type='signal'", "type='method_call'"]
        started = [
            f"type='signal',sender='{_BUS}',member='NameOwnerChanged',arg0='{name}'" for name, _ in self._managers
        ]
        return [*self._matches, *started]

    async def _until_lost(self, bus: MessageBus) -> None:
        with suppress(OSError, EOFError):
            await bus.wait_for_disconnect()
        self._lost = True
        self._waiting.set()

    def _take(self, message: Any) -> bool:
        """Handle one message; True keeps the library from answering it, because a monitor must not answer."""
        kind = _KIND.get(message.message_type.value)
        if kind is None:
            return False  # the library handles the answer to BecomeMonitor
        if self._asking is not None and self._asking.unique_name in (message.sender, message.destination):
            return True
        if message.sender == _BUS and message.member == "NameOwnerChanged" and message.body[2].startswith(":"):
            self._ask_sender(message.body[2])  # now, because it may leave soon
        if message.sender == _BUS and message.member == "NameOwnerChanged" and message.body[2]:
            self._read_objects(message.body[0])  # if it is a service whose objects are read: it was started again
        if not self._housekeeping and _BUS in (message.destination, message.sender):
            return True
        change = self._properties.update(message) if kind == "signal" else {}  # also of a message that is dropped
        if len(self._queue) >= self._capacity:
            self._dropped += 1
        else:
            event = make_event(message, kind)
            event["attributes"] |= change
            self._queue.append(event)
            if message.sender:
                self._ask_sender(message.sender)
        self._waiting.set()
        return True

    def _read_objects(self, service: str) -> None:
        for manager in self._managers:
            if manager[0] == service:
                task = asyncio.create_task(self._take_snapshot(*manager))
                self._reading.add(task)
                task.add_done_callback(self._reading.discard)

    async def _take_snapshot(self, service: str, path: str) -> None:
        """Queue an event for each object of a service that differs from its last snapshot."""
        owner = await self._call(_BUS, "/org/freedesktop/DBus", _BUS, "GetNameOwner", service)
        manager = f"{_BUS}.ObjectManager"
        answer = await self._call(service, path, manager, "GetManagedObjects") if owner is not None else None
        if answer is None:
            return  # it is not running, or has no such objects: it is read when it gets an owner
        before = self._snapshots.get((service, path), {})
        after = {name: _plain(interfaces) for name, interfaces in answer.items()}
        self._snapshots[service, path] = after
        for name in sorted({*before, *after}):
            old, new = before.get(name, {}), after.get(name, {})
            self._properties.remember(owner, name, new)
            if old == new:
                continue
            if len(self._queue) >= self._capacity:
                self._dropped += 1
                continue
            attributes = {"_kind": "snapshot", "service": service, "before": old, "after": new}
            words = {"source": "dbus", "actor": owner, "action": "dbus.snapshot", "subject": shorten(name)}
            self._queue.append({"time": time.time_ns(), **words, "attributes": attributes})
            self._ask_sender(owner)
        self._waiting.set()

    async def _call(self, destination: str, path: str, interface: str, member: str, *texts: str) -> Any:
        """Call a method on the second connection; return its first result, or None if it failed."""
        from dbus_fast import Message, MessageType

        assert self._asking is not None  # noqa: S101
        words = {"destination": destination, "path": path, "interface": interface, "member": member}
        call = Message(**words, signature="s" * len(texts), body=list(texts))
        try:
            reply = await asyncio.wait_for(self._asking.call(call), _ANSWER_S)
        except (OSError, EOFError, TimeoutError):
            return None
        return reply.body[0] if reply is not None and reply.message_type != MessageType.ERROR and reply.body else None

    def _ask_sender(self, sender: str) -> None:
        """Ask the bus about a sender, unless that was done before: a bus never uses a connection's name again."""
        if sender.startswith(":") and sender not in self._senders:
            if len(self._senders) >= _SENDERS:
                self._senders.pop(next(iter(self._senders))).cancel()
            self._senders[sender] = asyncio.create_task(self._describe_sender(sender))

    async def _describe_sender(self, sender: str) -> dict[str, Any]:
        """Return uid, pid, executable and unit of a sender, as far as the bus and /proc know them."""
        from dbus_fast import Message, MessageType

        assert self._asking is not None  # noqa: S101
        words = {"destination": _BUS, "path": "/org/freedesktop/DBus", "interface": _BUS}
        call = Message(**words, member="GetConnectionCredentials", signature="s", body=[sender])
        try:
            reply = await asyncio.wait_for(self._asking.call(call), _ANSWER_S)
        except (OSError, EOFError, TimeoutError):
            return {}
        if reply is None or reply.message_type == MessageType.ERROR:
            return {}  # it has left
        known = {name: _plain(value) for name, value in reply.body[0].items()}
        uid, pid = known.get("UnixUserID"), known.get("ProcessID")
        process = _find_process(pid, uid) if pid is not None and uid is not None else {}
        return {"uid": uid, **process} if uid is not None else {}

    async def _name_senders(self, events: list[Event]) -> None:
        """Add the sender of each event; the actor is its user."""
        for event in events:
            task = self._senders.get(event["actor"] or "")
            if task is None:
                continue
            if not task.done():
                await asyncio.wait([task])
            sender = {} if task.cancelled() else task.result()
            if "uid" in sender:
                event["attributes"] = {**event["attributes"], "_sender": event["actor"], **sender}
                event["actor"] = _find_user(sender["uid"])


def make_event(message: Any, kind: str) -> Event:
    """Make an event of a message: action `interface.member`, subject its path, `attributes.args` its arguments."""
    name = f"{message.interface}.{message.member}" if message.interface else str(message.member)
    attributes: dict[str, Any] = {"_kind": kind, "args": [_plain(value) for value in message.body]}
    if message.destination:
        attributes["_to"] = message.destination
    action = _WORD.sub("_", name).strip(".")
    return {
        "time": time.time_ns(),
        "source": "dbus",
        "actor": message.sender or None,
        "action": f"dbus.{action}" if action.startswith("ridgeline.") else action or "dbus.unknown",
        "subject": shorten(message.path) if message.path else None,
        "attributes": attributes,
    }


class _Properties:
    """The properties of objects, as earlier signals had them, so that a change has its values before and after."""

    def __init__(self, most: int = _OBJECTS) -> None:
        self._known: OrderedDict[tuple[str, str, str], dict[str, Any]] = OrderedDict()  # (sender, path, interface)
        self._most = most

    def update(self, message: Any) -> dict[str, Any]:
        """Take a signal; return the attributes of the change that it tells, if it tells one."""
        name, body = f"{message.interface}.{message.member}", message.body
        if name == "org.freedesktop.DBus.Properties.PropertiesChanged" and message.signature == "sa{sv}as":
            interface, changed, unknown = body
            known = self._get(message, interface)
            after = {key: _plain(value) for key, value in changed.items()}
            before = {key: known[key] for key in (*after, *unknown) if key in known}
            known.update(after)
            for key in unknown:  # changed to a value that the signal does not have
                known.pop(key, None)
            return {"before": before, "after": after, **({"_unknown": list(unknown)} if unknown else {})}
        if name == "org.freedesktop.DBus.ObjectManager.InterfacesAdded" and message.signature == "oa{sa{sv}}":
            path, added = body
            after = {interface: _plain(properties) for interface, properties in added.items()}
            for interface, properties in after.items():
                self._get(message, interface, path).update(properties)
            return {"before": {}, "after": after}
        if name == "org.freedesktop.DBus.ObjectManager.InterfacesRemoved" and message.signature == "oas":
            path, removed = body
            keys = {interface: (message.sender or "", path, interface) for interface in removed}
            return {"before": {name: self._known.pop(key, {}) for name, key in keys.items()}, "after": {}}
        return {}

    def remember(self, owner: str, path: str, interfaces: dict[str, dict[str, Any]]) -> None:
        """Store the properties of an object from a snapshot; the connection that owns the service signals changes."""
        for interface, properties in interfaces.items():
            self._known[owner, path, interface] = dict(properties)
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def _get(self, message: Any, interface: str, path: str | None = None) -> dict[str, Any]:
        key = message.sender or "", path or message.path or "", interface
        known = self._known.setdefault(key, {})
        self._known.move_to_end(key)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return known


def _parse_manager(words: str) -> tuple[str, str]:
    """Return service and path of an object manager."""
    service, slash, path = words.partition("/")
    if not _SERVICE.fullmatch(service):
        raise InputError(f"'{words[:80]}' is no service of D-Bus; write it like org.bluez or org.bluez/org/bluez.")
    return service, slash + path or "/"


def _find_user(uid: int) -> str:
    """Return the name of a user of this machine, else `uid N`."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _find_process(pid: int, uid: int) -> dict[str, Any]:
    """Return pid, executable (else name), program and systemd unit of a process; nothing if it has ended."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != uid:
            return {}  # another process has the number now
        program = _read_text(f"/proc/{pid}/comm").strip()
        try:
            exe = shorten(os.readlink(f"/proc/{pid}/exe"))
        except OSError:
            exe = program
        units = _UNIT.findall(_read_text(f"/proc/{pid}/cgroup"))
    except OSError:
        return {}
    return {"pid": pid, "exe": exe, "program": program} | ({"unit": shorten(units[-1])} if units else {})


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _plain(value: Any, depth: int = 0) -> Any:
    """Convert a D-Bus value to JSON: variants are unpacked, bytes are hexadecimal, integers beyond 2^53 and values
    nested too deep are texts.
    """
    from dbus_fast import Variant

    if isinstance(value, Variant):
        return _plain(value.value, depth + 1)
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < _EXACT else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth >= _DEEPEST:
        return str(value)
    if isinstance(value, dict):
        return {str(_plain(k, depth + 1)): _plain(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, depth + 1) for v in value]
    return str(value)


def _address(where: str) -> str:
    if where == "system":
        return os.environ.get("DBUS_SYSTEM_BUS_ADDRESS", _SYSTEM)
    if where == "session":
        address = os.environ.get("DBUS_SESSION_BUS_ADDRESS")
        if not address:
            raise InputError("there is no session bus (DBUS_SESSION_BUS_ADDRESS is not set); give its address.")
        return address
    if ":" not in where or "=" not in where:
        raise InputError(f"'{where}' is no bus; give system, session, or an address like unix:path=/run/dbus/my_bus.")
    return where
