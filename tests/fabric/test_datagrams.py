"""Streams over UDP, through a relay that loses, doubles, delays, cuts out and changes packets."""

from __future__ import annotations

import random
import socket
import time
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.native import DatagramStream

HEADER = 40


class Relay:
    """Two streams and what is between them."""

    def __init__(self, seed=0, *, loss=0.0, twice=0.0, late=0.0, longest=1 << 16, changed=0.0, **options) -> None:
        self.random = random.Random(seed)
        self.loss, self.twice, self.late, self.longest, self.changed = loss, twice, late, longest, changed
        sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(4)]
        for link in sockets:
            link.bind(("127.0.0.1", 0))
            link.setblocking(False)
        self.links = sockets[2:]
        for end, link in zip(sockets[:2], self.links, strict=True):
            end.connect(link.getsockname())
            link.connect(end.getsockname())
        self.ends = [
            DatagramStream.open(end.detach(), *keys, **options)
            for end, keys in zip(sockets[:2], ((11, 22), (22, 11)), strict=True)
        ]
        self.held: list = []
        self.injected = self.forwarded = 0

    def pump(self) -> None:
        for k, link in enumerate(self.links):
            with suppress(BlockingIOError, ConnectionRefusedError):
                while True:
                    self.forward(link.recv(1 << 16), self.links[1 - k])
        for packet, to in self.held:
            self.send(packet, to)
        self.held.clear()

    def forward(self, packet, to) -> None:
        draw = self.random.random
        self.forwarded += 1
        if draw() < self.changed:
            self.send(self.change(packet), to)
            self.injected += 1
        if draw() < self.loss or len(packet) > self.longest:
            return
        if draw() < self.late:
            self.held.append((packet, to))
            return
        self.send(packet, to)
        if draw() < self.twice:
            self.send(packet, to)

    @staticmethod
    def send(packet, to) -> None:
        with suppress(BlockingIOError, ConnectionRefusedError):
            to.send(packet)

    def change(self, packet) -> bytes:
        """What no checksum of UDP would let through, but a stranger could send."""
        data, rng = bytearray(packet), self.random
        kind = rng.randrange(4)
        if kind == 0:
            return rng.randbytes(rng.randrange(1, 200))
        if kind == 1 and len(data) > HEADER:
            return bytes(data[: rng.randrange(HEADER)])
        end = len(data) if data[36] == 2 else HEADER
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(end)] ^= 1 << rng.randrange(8)
        return bytes(data) if data != packet else b"x"

    def move(self, *messages: bytes, limit=60.0) -> list[bytes]:
        """Send a message from each end at once; returns what the other ends read."""
        written, got, end = [0, 0], [bytearray(), bytearray()], time.monotonic() + limit
        while any(len(got[1 - k]) < len(m) for k, m in enumerate(messages)):
            assert time.monotonic() < end, ([len(g) for g in got], written)
            for k, stream in enumerate(self.ends):
                if k < len(messages) and written[k] < len(messages[k]):
                    written[k] += stream.write(messages[k][written[k] : written[k] + (64 << 10)])
                self.pump()
                some = stream.read(1 << 16)
                assert some is not None
                got[k] += some
        return [bytes(g) for g in got[::-1]]

    def close(self) -> None:
        for link in self.links:
            link.close()


def make_message(seed, count) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8).tobytes()


@settings(max_examples=8)
@given(
    seed=st.integers(0, 1 << 30),
    sizes=st.tuples(st.integers(1, 150_000), st.integers(1, 40_000)),
    loss=st.sampled_from([0.0, 0.1, 0.3]),
    twice=st.sampled_from([0.0, 0.3]),
    late=st.sampled_from([0.0, 0.3]),
)
def test_what_is_written_arrives_in_order_over_a_path_that_loses_doubles_and_reorders(seed, sizes, loss, twice, late):
    relay = Relay(seed, loss=loss, twice=twice, late=late, buffer_bytes=64 << 10)
    messages = [make_message(seed + k, size) for k, size in enumerate(sizes)]
    assert relay.move(*messages)[: len(messages)] == messages
    relay.close()


def test_a_path_that_drops_long_packets_without_a_word_carries_short_ones():
    relay = Relay(longest=1400)
    message = make_message(1, 800_000)  # more than a window
    assert relay.move(message)[0] == message
    assert relay.ends[0].state[1] > 0  # what was repeated
    relay.close()


def test_changed_packets_are_dropped_and_counted():
    relay = Relay(3, changed=0.5, buffer_bytes=32 << 10)
    message = make_message(2, 400_000)
    assert relay.move(message, message[:100_000]) == [message, message[:100_000]]
    assert relay.injected > 5
    assert sum(end.state[2] for end in relay.ends) >= relay.injected - 5  # of the last ones, some may not be read yet
    relay.close()


@pytest.mark.slow
def test_a_million_changed_packets_change_nothing():
    relay, message = (
        Relay(4, changed=1.0, loss=0.02, late=0.02, buffer_bytes=64 << 10, silence=600),
        make_message(3, 1 << 20),
    )
    while relay.injected < 1_000_000:
        assert relay.move(message, message) == [message, message]
        for _ in range(3_000):  # the same ones, and new changes of them
            packet = b"".join(x.to_bytes(8, "little") for x in (relay.random.getrandbits(64), 0, 0, 0, 0x0001 << 32))
            for _ in range(10):
                relay.send(relay.change(packet + message[: relay.random.randrange(1000)]), relay.links[0])
                relay.injected += 1
            relay.ends[0].read(0)
    relay.close()


def test_a_reader_that_does_not_read_stops_the_writer():
    relay = Relay(buffer_bytes=64 << 10)
    message, written = make_message(5, 1 << 20), 0
    for _ in range(300):
        written += relay.ends[0].write(message[written:])
        relay.pump()
    assert written <= 3 * (64 << 10)
    got = bytearray()
    end = time.monotonic() + 30
    while len(got) < len(message) and time.monotonic() < end:
        written += relay.ends[0].write(message[written:])
        relay.pump()
        got += relay.ends[1].read(1 << 16) or b""
        relay.pump()
    assert got == message
    relay.close()


def test_an_end_that_closes_or_falls_silent_is_noticed():
    relay = Relay(silence=0.3)
    assert relay.move(b"all", b"of it") == [b"all", b"of it"]
    relay.ends[0].end()
    relay.pump()
    assert relay.ends[1].read(1) is None
    assert relay.ends[1].write(b"x") == -1
    silent = Relay(silence=0.3)
    end = time.monotonic() + 30  # nothing is relayed
    while silent.ends[0].read(1) is not None and time.monotonic() < end:
        time.sleep(0.02)
    assert silent.ends[0].read(1) is None
    for one in (relay, silent):
        one.close()
