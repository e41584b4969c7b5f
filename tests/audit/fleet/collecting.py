"""Collectors for the tests: in a thread, in a process that can be killed, and a network between that can be cut."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.audit.conftest import events

from ridgeline.audit import Ledger, Verifier, parse_verifier
from ridgeline.audit.fleet import Collector, Forwarder, channel, read_alerts_of_fleet

TIMEOUT_S = 60  # only guards against hanging


def make_log(path: Path, origin: str, count: int, start: int = 0, key: Path | None = None) -> Verifier:
    with Ledger.create(path, origin, key) as ledger:
        ledger.append(events(start, start + count))
        return ledger.verifier


def read_entries(path: Path, verifier: Verifier) -> list[bytes]:
    if not (path / "checkpoint").exists():
        return []
    with Ledger.open(path, verifier=verifier) as ledger:
        return [entry for _, entry in ledger.raw_entries()]


@contextmanager
def collecting(
    fleet: Path, *trusted: Verifier, silent_after: float = 0.0, host: str = "127.0.0.1"
) -> Iterator[Collector]:
    """A collector in a thread of this process."""
    collector = Collector(fleet, trusted, "collector.test/fleet", silent_after=silent_after)
    listening, stop, loops = threading.Event(), asyncio.Event(), list[asyncio.AbstractEventLoop]()

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        await collector.run(host, 0, lambda _: listening.set(), stop)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert listening.wait(TIMEOUT_S)
        yield collector
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def forward(log: Path, collector: Collector, key: Verifier | None = None) -> int:
    """Send a log once; return how many entries were sent."""
    forwarder = Forwarder(log, "127.0.0.1", collector.port, key or collector.key)
    try:
        forwarder.run(once=True)
        return forwarder.sent
    finally:
        forwarder.close()


def list_alerts(fleet: Path) -> list[tuple[str, str]]:
    return [(alert["fired"][0], alert["origin"]) for alert in read_alerts_of_fleet(fleet)]


class CollectorProcess:
    """A collector in a process of its own, always at the same port."""

    def __init__(self, fleet: Path, *trusted: Verifier) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        words = ["audit", "collect", fleet, "--listen", f"127.0.0.1:{self.port}", "--silent-after", "0"]
        self._command = [sys.executable, "-m", "ridgeline", *map(str, words), "--trust", ",".join(map(str, trusted))]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert "collecting" in self._process.stdout.readline()
        line = self._process.stdout.readline()
        self.key = parse_verifier(re.findall(r"\S+\+[0-9a-f]{8}\+\S+", line)[0])

    def stop(self, how: int = signal.SIGKILL) -> int:
        os.kill(self._process.pid, how)
        code = self._process.wait(TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


class CutNetwork:
    """A network between a forwarder and a collector; each connection ends after some bytes in either direction."""

    def __init__(self, port: int, cuts: list[int]) -> None:
        self._target, self._cuts, self.connections = port, cuts, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(TIMEOUT_S)

    def _run(self) -> None:
        pumps = list[threading.Thread]()
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                left = [self._cuts[self.connections] if self.connections < len(self._cuts) else 1 << 60]
                self.connections += 1
                far = socket.create_connection(("127.0.0.1", self._target))
                for one, other in ((near, far), (far, near)):
                    pumps.append(threading.Thread(target=self._pump, args=(one, other, left)))
                    pumps[-1].start()
        for pump in pumps:
            pump.join(TIMEOUT_S)

    def _pump(self, one: socket.socket, other: socket.socket, left: list[int]) -> None:
        with suppress(OSError):
            while data := one.recv(4096):
                left[0] -= len(data)
                if left[0] < 0:
                    other.sendall(data[: left[0]])
                    break
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class BareClient:
    """A forwarder that says what a test tells it to say."""

    def __init__(self, collector: Collector, log: Path) -> None:
        import base64

        from ridgeline.audit.ledger.layout import read_key

        signer = read_key(log.with_name(log.name + ".private") / "key")
        plain = socket.create_connection(("127.0.0.1", collector.port), TIMEOUT_S)
        self._connection: ssl.SSLSocket = channel.make_client_context().wrap_socket(plain)
        nonce = channel.receive_frame(self._connection)[0]["nonce"]
        text = channel.format_proof_of_key(nonce, collector.key, signer.verifier)
        proof = base64.b64encode(signer.sign(text).body).decode()
        self.greeting = self.say(ridgeline=1, key=str(signer.verifier), signature=proof)

    def say(self, payload: bytes = b"", **header: Any) -> dict[str, Any]:
        self._connection.sendall(channel.pack_frame(header, payload))
        return channel.receive_frame(self._connection)[0]

    def close(self) -> None:
        self._connection.close()
