"""A real bus: the source receives every message in order and counts those it drops."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from dbus_fast import Variant
from tests.audit.sources.bus import private_bus, send_signals
from tests.audit.threads import run_in_thread

from ridgeline.audit.ledger.event import encode
from ridgeline.audit.sources import dbus
from ridgeline.audit.sources.dbus import DBus, _find_process, _find_user, _Properties, make_event
from ridgeline.errors import InputError, RidgelineError


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with private_bus(tmp_path_factory.mktemp("bus")) as bus_address:
        yield bus_address


async def watch_bus(source, act, enough):
    """Events and drops of a source while `act` runs, until `enough(events, dropped)`."""
    events, dropped, ready = [], 0, asyncio.Event()

    async def pull():
        nonlocal dropped
        async for batch in source.batches(None):
            ready.set()
            events.extend(batch.events)
            dropped += batch.dropped
            if enough(events, dropped):
                source.stop()

    task = asyncio.create_task(pull())
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({task, waiting}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task  # why it could not listen
    assert ready.is_set()
    await asyncio.to_thread(act)
    await asyncio.wait_for(task, 60)
    return events, dropped


def watch_signals(address, count):
    """The events of `count` signals; their sender stays on the bus until the source has asked about it."""
    seen = threading.Event()

    def enough(events, _):
        if len(events) >= count:
            seen.set()
        return seen.is_set()

    return run_in_thread(watch_bus(DBus(address), lambda: send_signals(address, count, leave=seen), enough))


def names(events):
    return [e["attributes"]["args"][0] for e in events]


def test_signals_come_as_events_in_the_order_they_were_sent(address):
    events, dropped = watch_signals(address, 500)
    assert names(events) == [f"br{i}" for i in range(500)]
    assert dropped == 0
    first = events[0]
    assert (first["source"], first["action"], first["subject"]) == ("dbus", "net.ovs.Bridge.Created", "/net/ovs")
    assert first["attributes"]["_kind"] == "signal"
    assert first["attributes"]["_sender"].startswith(":")


def test_an_event_says_which_user_and_program_sent_it(address):
    events, _ = watch_signals(address, 3)
    sender = {name: events[2]["attributes"][name] for name in ("uid", "pid", "exe", "program")}
    program = Path("/proc/self/comm").read_text().strip()
    executable = os.readlink("/proc/self/exe")
    assert sender == {"uid": os.getuid(), "pid": os.getpid(), "exe": executable, "program": program}
    assert {event["actor"] for event in events} == {pwd.getpwuid(os.getuid()).pw_name}


def test_a_process_that_ended_has_no_executable():
    process = subprocess.Popen(["true"])
    process.wait(60)
    assert _find_process(process.pid, os.getuid()) == {}
    assert _find_process(os.getpid(), os.getuid() + 1) == {}  # its number belongs to another user now


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/ssh.service\n", "ssh.service"),
        ("1:name=systemd:/user.slice/user-1000.slice/session-3.scope\n0::/\n", "session-3.scope"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/shell.service\n", "shell.service"),
        ("0::/init.slice\n", None),
    ],
)
def test_the_unit_is_the_innermost_of_the_control_group(monkeypatch, cgroup, unit):
    monkeypatch.setattr(dbus, "_read_text", lambda path: cgroup)
    assert _find_process(os.getpid(), os.getuid()).get("unit") == unit


def test_a_user_without_a_name_has_a_number():
    assert _find_user(os.getuid()) == pwd.getpwuid(os.getuid()).pw_name
    assert _find_user(4_000_000_000) == "uid 4000000000"


def change(member, signature, *body, path="/o", sender=":1.7"):
    interface = "org.freedesktop.DBus.Properties" if member == "PropertiesChanged" else ""
    return SimpleNamespace(
        interface=interface or "org.freedesktop.DBus.ObjectManager", member=member, signature=signature,
        body=list(body), path=path, sender=sender,
    )  # fmt: skip


def test_a_change_of_properties_has_them_before_and_after():
    known = _Properties(most=2)
    changed = lambda values, unknown=(), **more: known.update(  # noqa: E731
        change("PropertiesChanged", "sa{sv}as", "net.Link", values, list(unknown), **more)
    )
    assert changed({"Mtu": Variant("i", 1500)}) == {"before": {}, "after": {"Mtu": 1500}}
    assert changed({"Mtu": Variant("i", 9000), "Up": Variant("b", True)}) == {
        "before": {"Mtu": 1500}, "after": {"Mtu": 9000, "Up": True},
    }  # fmt: skip
    assert changed({"Mtu": Variant("i", 1)}, sender=":1.8") == {"before": {}, "after": {"Mtu": 1}}  # another object
    assert changed({}, ["Up"]) == {"before": {"Up": True}, "after": {}, "_unknown": ["Up"]}
    assert changed({"Up": Variant("b", False)}) == {"before": {}, "after": {"Up": False}}
    changed({}, path="/a"), changed({}, path="/b")  # and the first is forgotten
    assert changed({"Mtu": Variant("i", 2)}) == {"before": {}, "after": {"Mtu": 2}}


def test_an_object_that_comes_and_goes_has_its_properties():
    known = _Properties()
    added = change("InterfacesAdded", "oa{sa{sv}}", "/new", {"net.Link": {"Mtu": Variant("i", 1500)}})
    assert known.update(added) == {"before": {}, "after": {"net.Link": {"Mtu": 1500}}}
    gone = change("InterfacesRemoved", "oas", "/new", ["net.Link", "net.Other"])
    assert known.update(gone) == {"before": {"net.Link": {"Mtu": 1500}, "net.Other": {}}, "after": {}}


def test_a_signal_of_that_name_with_other_arguments_is_no_change():
    assert _Properties().update(change("PropertiesChanged", "s", "x")) == {}


async def serve_objects(address: str, mtus: dict[str, int], leave: asyncio.Event, change: int | None = None) -> None:
    """A service net.test.Ports with an object for each of these; `change`: then /br0 gets this MTU."""
    from dbus_fast import Message, MessageType
    from dbus_fast.aio import MessageBus

    bus = await MessageBus(bus_address=address).connect()

    def answer(message: Message) -> Message | None:
        if message.message_type != MessageType.METHOD_CALL or message.member != "GetManagedObjects":
            return None
        objects = {path: {"net.test.Port": {"Mtu": Variant("i", mtu)}} for path, mtu in mtus.items()}
        return Message.new_method_return(message, "a{oa{sa{sv}}}", [objects])

    bus.add_message_handler(answer)
    await bus.request_name("net.test.Ports")
    if change is not None:
        await asyncio.sleep(0.3)
        body = ["net.test.Port", {"Mtu": Variant("i", change)}, []]
        words = {"path": "/br0", "interface": "org.freedesktop.DBus.Properties", "member": "PropertiesChanged"}
        await bus.send(Message(message_type=MessageType.SIGNAL, **words, signature="sa{sv}as", body=body))
    await leave.wait()
    bus.disconnect()


def test_objects_are_read_as_they_are_and_again_when_their_service_was_started_again(address):
    async def run() -> list[dict]:
        source, events = DBus(address, objects=["net.test.Ports"]), []
        first, second = asyncio.Event(), asyncio.Event()
        one = asyncio.create_task(serve_objects(address, {"/br0": 1500, "/br1": 1500}, first, change=9000))
        two: asyncio.Task | None = None
        async for batch in source.batches(None):
            events += [event for event in batch.events if "after" in event["attributes"]]
            if len(events) == 3 and two is None:
                first.set()
                await one
                two = asyncio.create_task(serve_objects(address, {"/br0": 9000, "/br2": 1400}, second))
            if len(events) >= 6:
                source.stop()
        second.set()
        await two
        return events

    events = run_in_thread(asyncio.wait_for(run(), 60))
    rows = [(e["action"], e["subject"], e["attributes"]["before"], e["attributes"]["after"]) for e in events]
    port = lambda mtu: {"net.test.Port": {"Mtu": mtu}}  # noqa: E731
    assert rows[:2] == [("dbus.snapshot", "/br0", {}, port(1500)), ("dbus.snapshot", "/br1", {}, port(1500))]
    assert rows[2][1:] == ("/br0", {"Mtu": 1500}, {"Mtu": 9000}), "a change has the value of the snapshot before it"
    assert rows[3:] == [
        ("dbus.snapshot", "/br0", port(1500), port(9000)),
        ("dbus.snapshot", "/br1", port(1500), {}),
        ("dbus.snapshot", "/br2", {}, port(1400)),
    ]
    assert events[0]["attributes"]["uid"] == os.getuid()
    assert events[0]["actor"] == pwd.getpwuid(os.getuid()).pw_name
    with pytest.raises(InputError, match="is no service"):
        DBus(address, objects=["bluez"])


def test_a_flood_beyond_what_is_held_is_counted_to_the_last(address):
    source = DBus(address, capacity=100)

    act, all_seen = lambda: send_signals(address, 3_000), lambda events, dropped: len(events) + dropped >= 3_000
    events, dropped = run_in_thread(watch_bus(source, act, all_seen))
    assert len(events) + dropped == 3_000
    assert names(events) == sorted(names(events), key=lambda name: int(name[2:]))


def test_a_match_lets_only_its_own_through(address):
    source = DBus(address, ["type='signal',interface='net.ovs.Bridge',arg0='br7'"])
    events, _ = run_in_thread(watch_bus(source, lambda: send_signals(address, 20), lambda events, _: len(events) >= 1))
    assert names(events) == ["br7"]


def test_a_call_is_an_event_too_and_the_bus_s_housekeeping_is_none(address):
    def call():
        command = ["dbus-send", f"--bus={address}", "--type=method_call", "--dest=org.example.Nobody"]
        subprocess.run([*command, "/org/example", "org.example.Disk.Wipe", "string:sda"], check=True, timeout=60)

    events, _ = run_in_thread(watch_bus(DBus(address), call, lambda events, _: len(events) >= 1))
    assert [(e["action"], e["attributes"]["_kind"]) for e in events] == [("org.example.Disk.Wipe", "call")]
    assert events[0]["attributes"]["_to"] == "org.example.Nobody"
    source = DBus(address, housekeeping=True)
    events, _ = run_in_thread(watch_bus(source, call, lambda events, _: any("Disk" in e["action"] for e in events)))
    assert "org.freedesktop.DBus.Hello" in {e["action"] for e in events}


def test_every_kind_of_value_becomes_json():
    from dbus_fast import Message, Variant

    body = [{"a": Variant("t", 2**60), "b": Variant("ay", b"\x01\xff")}, [1.5, float("inf")], True, ("x", {1: "y"})]
    message = Message.new_signal("/p", "a.b", "C", "a{sv}adb(sa{is})", body)
    attributes = make_event(message, "signal")["attributes"]
    assert attributes["args"] == [{"a": str(2**60), "b": "01ff"}, [1.5, "inf"], True, ["x", {"1": "y"}]]


def test_no_message_is_too_long_or_too_deep_for_the_log():
    from dbus_fast import Message, Variant

    value = Variant("s", "root")
    for _ in range(66):
        value = Variant("av", [value])
    event = make_event(Message.new_signal("/p" * 4_000, "a.b", "C", "v", [value]), "signal")
    assert event["subject"].endswith("…")
    assert event["attributes"]["args"] != ["root"]
    encode([event])


def test_an_interface_that_claims_our_name_is_not_ours():
    from dbus_fast import Message

    message = Message.new_signal("/p", "ridgeline.watch", "alert", "", [])
    assert make_event(message, "signal")["action"] == "dbus.ridgeline.watch.alert"


def test_a_bus_that_went_away_is_an_error_and_can_be_read_again(tmp_path):
    async def run():
        source, events, listening = DBus(f"unix:path={tmp_path}/b/bus"), [], asyncio.Event()

        async def pull():
            async for batch in source.batches(None):
                events.extend(batch.events)
                if not batch.events:
                    listening.set()

        for number in range(2):
            with private_bus(tmp_path / "b") as again:
                task = asyncio.create_task(pull())
                await asyncio.wait_for(listening.wait(), 60)
                listening.clear()
                await asyncio.to_thread(send_signals, again, 3)
                for _ in range(600):
                    if len(events) == 3 * (number + 1):
                        break
                    await asyncio.sleep(0.05)
            with pytest.raises(RidgelineError, match=r"closed the connection; its messages since then are lost"):
                await asyncio.wait_for(task, 60)
        return names(events)

    assert run_in_thread(run()) == ["br0", "br1", "br2"] * 2


def test_a_bus_that_is_not_there_is_a_sentence(tmp_path, monkeypatch):
    async def first(source):
        async for _ in source.batches(None):
            return

    with pytest.raises(InputError, match="cannot be reached"):
        run_in_thread(first(DBus(f"unix:path={tmp_path}/none")))
    with pytest.raises(InputError, match="is no bus"):
        DBus("nonsense")
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    with pytest.raises(InputError, match="no session bus"):
        DBus("session")
