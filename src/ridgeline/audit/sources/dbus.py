"""D-Bus, watched as a monitor: every call and signal that a match lets through, in the order the bus sent them.

A bus does not wait. What comes faster than the log takes it is held up to a bound and then dropped, counted, and said.
On the system bus a monitor needs root, or a policy that allows BecomeMonitor.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ridgeline.audit.sources.source import Batch, Event, Position, fitting
from ridgeline.errors import InputError, MissingExtra

if TYPE_CHECKING:
    from dbus_fast.aio import MessageBus

HELD = 50_000  # events at most between the bus and the log
AT_ONCE = 4_000  # events of one batch
_BUS = "org.freedesktop.DBus"  # what goes to it and comes from it is housekeeping: names, matches, pings
_SYSTEM = "unix:path=/run/dbus/system_bus_socket"
_WORD = re.compile(r"[^A-Za-z0-9_.-]+")
_KIND = {1: "call", 4: "signal"}
_EXACT = 1 << 53
_DEEPEST = 60  # the log refuses what is nested more than 64 deep; a bus does not
_AGAIN_S, _AGAIN_MOST_S = 0.5, 30.0  # between two tries to reach a bus that went away


class DBus:
    """`where`: system, session, or an address; `matches`: the bus's match rules, all messages without one.

    `housekeeping`: also what the bus itself is asked and says (names that come and go).
    """

    def __init__(
        self, where: str, matches: Sequence[str] = (), *, held: int = HELD, housekeeping: bool = False
    ) -> None:
        try:
            import dbus_fast.aio  # noqa: F401
        except ImportError:
            raise MissingExtra("watching D-Bus", "audit") from None
        self.name = f"dbus:{where}" + "".join(f":{m}" for m in matches)
        self._where, self._address, self._matches = where, _address(where), list(matches)
        self._held, self._housekeeping = held, housekeeping
        self._queue: deque[Event] = deque()
        self._dropped = 0
        self._waiting = asyncio.Event()
        self._stopped = self._lost = False

    def stop(self) -> None:
        self._stopped = True
        self._waiting.set()

    async def batches(self, position: Position | None) -> AsyncIterator[Batch]:
        bus: MessageBus | None = await self._connect()
        while bus is not None:
            async for batch in self._heard(bus):
                yield batch
            if self._stopped:
                return
            yield Batch([], gaps=(f"the bus {self._where} closed the connection; what it sent then is not here",))
            bus = await self._again()

    async def _heard(self, bus: MessageBus) -> AsyncIterator[Batch]:
        """What one connection brings, until it is lost or we are told to stop."""
        self._lost = False
        watching = asyncio.create_task(self._until_lost(bus))
        try:
            yield Batch([])  # listening from here on
            while True:
                if not self._queue and not self._stopped and not self._lost:
                    self._waiting.clear()
                    await self._waiting.wait()
                    await asyncio.sleep(0)  # more that is here already comes along
                events = [self._queue.popleft() for _ in range(min(len(self._queue), AT_ONCE))]
                dropped, self._dropped = self._dropped, 0
                if events or dropped:
                    yield Batch(events, dropped=dropped)
                elif self._stopped or self._lost:
                    return
        finally:
            watching.cancel()
            bus.disconnect()

    async def _again(self) -> MessageBus | None:
        """The bus, once it is there again; None when told to stop before that."""
        pause = _AGAIN_S
        while not self._stopped:
            try:
                return await self._connect()
            except InputError:
                self._waiting.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._waiting.wait(), pause)
                pause = min(2 * pause, _AGAIN_MOST_S)
        return None

    async def _connect(self) -> MessageBus:
        from dbus_fast import DBusError, Message, MessageType
        from dbus_fast.aio import MessageBus
        from dbus_fast.errors import AuthError

        try:
            bus = await MessageBus(bus_address=self._address).connect()
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
            raise InputError(f"the bus {self._where} does not let us watch it: {why}.")
        return bus

    def _rules(self) -> list[str]:
        return self._matches or ["type='signal'", "type='method_call'"]

    async def _until_lost(self, bus: MessageBus) -> None:
        with suppress(OSError, EOFError):
            await bus.wait_for_disconnect()
        self._lost = True
        self._waiting.set()

    def _take(self, message: Any) -> bool:
        """One message; True keeps the library from answering, which a monitor may not."""
        kind = _KIND.get(message.message_type.value)
        if kind is None:
            return False  # the answer to BecomeMonitor is the library's own
        if not self._housekeeping and _BUS in (message.destination, message.sender):
            return True
        if len(self._queue) >= self._held:
            self._dropped += 1
        else:
            self._queue.append(event_of(message, kind))
        self._waiting.set()
        return True


def event_of(message: Any, kind: str) -> Event:
    """`interface.member` on an object path; the arguments as they are, in `attributes.args`."""
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
        "subject": fitting(message.path) if message.path else None,
        "attributes": attributes,
    }


def _plain(value: Any, depth: int = 0) -> Any:
    """A D-Bus value as JSON: variants unpacked, bytes in hexadecimal, integers beyond 2^53 as digits, and as words
    what is nested too deep."""
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
        found = os.environ.get("DBUS_SESSION_BUS_ADDRESS")
        if not found:
            raise InputError("there is no session bus here (DBUS_SESSION_BUS_ADDRESS is not set); give its address.")
        return found
    if ":" not in where or "=" not in where:
        raise InputError(f"'{where}' is no bus; say system, session, or an address like unix:path=/run/dbus/my_bus.")
    return where
