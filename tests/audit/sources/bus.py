"""A private D-Bus daemon for tests, and a sender that waits for the bus instead of flooding it."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.browser import missing

CONFIG = """<busconfig><type>session</type><listen>{address}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/>
</policy>
<limit name="max_outgoing_bytes">500000000</limit><limit name="max_incoming_bytes">500000000</limit></busconfig>"""


@contextmanager
def private_bus(folder: Path) -> Iterator[str]:
    """Its address, for as long as the block lasts."""
    program = shutil.which("dbus-daemon")
    if program is None:
        missing("dbus", "no dbus-daemon was found on the PATH")
    folder.mkdir(exist_ok=True)
    address = f"unix:path={folder}/bus"
    (folder / "bus.conf").write_text(CONFIG.format(address=address))
    daemon = subprocess.Popen([program, f"--config-file={folder}/bus.conf", "--nofork"])
    try:
        for _ in range(600):
            with socket.socket(socket.AF_UNIX) as line:  # the file is there before the bus listens
                if line.connect_ex(str(folder / "bus")) == 0:
                    break
            time.sleep(0.02)
        yield address
    finally:
        daemon.terminate()
        daemon.wait(30)


def send_signals(address: str, count: int, start: int = 0, leave: threading.Event | None = None) -> None:
    """net.ovs.Bridge.Created with br0, br1, …, over a blocking socket: the bus sets the pace.

    leave  stay on the bus until this is set, so that a slow watcher can ask the bus about the sender
    """
    from dbus_fast import Message

    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address.removeprefix("unix:path="))
        line.sendall(b"\0AUTH EXTERNAL " + str(os.getuid()).encode().hex().encode() + b"\r\n")
        assert line.recv(200).startswith(b"OK")
        line.sendall(b"BEGIN\r\n")
        bus = {"destination": "org.freedesktop.DBus", "path": "/org/freedesktop/DBus"}
        line.sendall(Message(**bus, interface="org.freedesktop.DBus", member="Hello", serial=1)._marshall(False))
        for i in range(start, start + count):
            message = Message.new_signal("/net/ovs", "net.ovs.Bridge", "Created", "s", [f"br{i}"])
            message.serial = 2 + i - start
            line.sendall(message._marshall(False))
        # An answer comes after all that was sent before it.
        ping = Message(**bus, interface="org.freedesktop.DBus.Peer", member="Ping", serial=count + 2)
        line.sendall(ping._marshall(False))
        line.settimeout(60)
        answers = b""
        while struct.pack("<I", count + 2) not in answers:
            answers += line.recv(4096)
        assert leave is None or leave.wait(60)
