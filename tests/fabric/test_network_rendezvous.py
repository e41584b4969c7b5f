"""How ranks meet: strangers are dropped, wrong settings are named, mutated bytes are never accepted."""

from __future__ import annotations

import os
import random
import re
import socket
import struct
import threading
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ridgeline.errors import FabricError, InputError, RidgelineError
from ridgeline.fabric import FabricConfig, handshake, hosts
from ridgeline.fabric.network_rendezvous import Listener, connect, meet
from ridgeline.native import NetworkCollective

SECRET, LONG_S = b"a secret of the tests", 60.0
NONCES = bytes(range(32)), bytes(range(32, 64))
REQUEST = handshake.make_request(SECRET, *NONCES, {"purpose": "meet", "rank": 1})


def find_port() -> int:
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        return link.getsockname()[1]


def meet_all(ranks: list[dict], timeout: float = LONG_S) -> list:
    """Let ranks meet in threads; returns the membership or the error of each."""
    rendezvous = hosts.Address(f"@ridgeline-test-{os.getpid()}-{random.random()}", 0)
    outcomes: list = [None] * len(ranks)

    def run(number: int, options: dict) -> None:
        arguments = {"rank": number, "size": len(ranks), "secret": SECRET, "config": FabricConfig(), **options}
        try:
            outcomes[number] = meet(rendezvous=rendezvous, timeout=timeout, **arguments)
        except RidgelineError as error:
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=(k, options)) for k, options in enumerate(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for outcome in outcomes:
        if not isinstance(outcome, Exception):
            outcome.listener.close()
    return outcomes


def test_ranks_that_meet_have_the_same_table():
    memberships = meet_all([{}, {}, {}])
    assert [m.rank for m in memberships] == [0, 1, 2]
    assert len({m.session for m in memberships}) == 1
    assert memberships[0].members == memberships[1].members == memberships[2].members
    assert all(member.address.startswith("127.0.0.1:") for member in memberships[0].members)


def test_other_settings_are_refused_on_both_ranks_with_both_values():
    for error in meet_all([{"config": FabricConfig(transport="tcp")}, {}]):
        assert re.search("rank 0 has transport=tcp, rank 1 on .* has transport=auto", str(error)), error


def test_another_secret_is_named_on_both_ranks():
    first, second = meet_all([{}, {"secret": b"another"}], timeout=2)
    assert "missing: 1" in str(first)
    assert "another secret" in str(first)
    assert "secret of this rank differs" in str(second)


def test_another_number_of_ranks_and_a_number_that_comes_twice_are_refused():
    for error in meet_all([{}, {"size": 3}]):
        assert "rank 0 waits for 2 ranks, rank 1 is one of 3" in str(error)
    first, *_ = meet_all([{}, {"rank": 1}, {"rank": 1}])
    assert "rank 1 came twice" in str(first)


def test_a_rank_that_never_comes_is_named():
    (error,) = meet_all([{"size": 2}], timeout=0.3)
    assert "within 0.3 s; missing: 1" in str(error)


def test_a_rendezvous_that_cannot_be_reached_or_used_is_named():
    port = find_port()
    at = hosts.Address("127.0.0.1", port)
    with pytest.raises(FabricError, match=rf"rank 1: the rendezvous 127.0.0.1:{port} cannot be reached within"):
        meet(1, 2, at, SECRET, FabricConfig(), 0.3)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} of 127.0.0.1 is in use"):
            meet(0, 2, hosts.Address("127.0.0.1", port), SECRET, FabricConfig(), 0.3)
        with pytest.raises(InputError, match=f"port {port} of 127.0.0.1 is in use"):
            meet(1, 2, at, SECRET, FabricConfig(ports=str(port)), 0.3)
    with pytest.raises(InputError, match=r"192\.0\.2\.1 is no address of this host"):
        meet(0, 2, hosts.Address("192.0.2.1", 4000), SECRET, FabricConfig(interface="lo"), 0.3)


def test_interfaces_are_chosen_by_name_or_subnet_and_wrong_ones_are_named():
    at = hosts.Address("127.0.0.1", 4000)
    assert hosts.choose_host("lo", at) == "127.0.0.1"
    assert hosts.choose_host("127.0.0.0/8", at) == "127.0.0.1"
    assert hosts.choose_host("", at) == "127.0.0.1"
    with pytest.raises(InputError, match="there is no interface 'eth77' on this host"):
        hosts.choose_host("eth77", at)
    with pytest.raises(InputError, match=r"has an address in '203\.0\.113\.0/24'"):
        hosts.choose_host("203.0.113.0/24", at)
    with pytest.raises(InputError, match="no subnet"):
        hosts.choose_host("10.0.0/zero", at)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10.0.0.1", "give host:port"),
        ("10.0.0.1:0", "give host:port"),
        ("fd07::1:4000", "in brackets"),
        ("[fe80::1]:4000", "needs a scope"),
    ],
)
def test_a_wrong_address_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        hosts.parse_address(text, "rendezvous")


def test_a_secret_comes_from_the_environment_or_a_private_file(tmp_path):
    path = tmp_path / "secret"
    path.write_text("of a file\n")
    path.chmod(0o600)
    variables = {"RIDGELINE_FABRIC_SECRET_FILE": str(path)}
    assert handshake.read_secret(variables) == b"of a file"
    assert handshake.read_secret({**variables, "RIDGELINE_FABRIC_SECRET": "direct"}) == b"direct"
    path.chmod(0o640)
    with pytest.raises(InputError, match=f"{re.escape(str(path))} can be read by others"):
        handshake.read_secret(variables)
    path.chmod(0o600)
    path.write_text("")
    with pytest.raises(InputError, match="is empty"):
        handshake.read_secret(variables)
    with pytest.raises(InputError, match="cannot be read"):
        handshake.read_secret({"RIDGELINE_FABRIC_SECRET_FILE": str(tmp_path / "none")})
    with pytest.raises(InputError, match="need a common secret"):
        handshake.read_secret({})


def test_strangers_are_dropped_counted_and_named_while_ranks_are_let_in():
    listener = Listener(SECRET, [hosts.Address("127.0.0.1", 0)])
    try:
        (at,) = listener.addresses
        noise = [b"GET / HTTP/1.1\r\n\r\n", os.urandom(3000), b"RLFABRIC" + os.urandom(500), REQUEST, b""]
        for data in noise:
            with socket.create_connection((at.host, at.port)) as link:
                link.sendall(data)
        silent = socket.create_connection((at.host, at.port))
        deadline = time.monotonic() + LONG_S
        connection = connect(at, SECRET, {"purpose": "test"}, deadline)
        arrival = listener.take(lambda request: request.get("purpose") == "test", deadline)
        arrival.answer({"welcome": 1})
        assert connection.read_answer(deadline) == {"welcome": 1}
        connection.socket.close()
        arrival.socket.close()
        while sum(listener.strangers.values()) < len(noise) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sum(listener.strangers.values()) == len(noise)
        assert listener.strangers["127.0.0.1: another secret"] == 1  # a request that was recorded, with old nonces
        silent.close()
    finally:
        listener.close()


def test_a_rank_notices_a_server_with_another_secret_or_no_rank_at_all():
    deadline = time.monotonic() + LONG_S
    listener = Listener(b"another", [hosts.Address("127.0.0.1", 0)])
    connection = connect(listener.addresses[0], SECRET, {}, deadline)
    with connection.socket, pytest.raises(handshake.HandshakeError, match="secret of this rank differs"):
        connection.read_answer(deadline)
    listener.close()
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = hosts.Address("127.0.0.1", server.getsockname()[1])

        def greet() -> None:
            with server.accept()[0] as link:
                link.sendall(b"220 mail ready" + bytes(60))

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(handshake.HandshakeError, match="does not speak the protocol of fabric"):
            connect(at, SECRET, {}, deadline)
        thread.join()


def mutate(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        kind, at = rng.randrange(4), rng.randrange(len(changed) + 1)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at:at] = rng.randbytes(rng.randint(1, 9))
        elif kind == 2:
            del changed[at : at + rng.randint(1, 9)]
        elif at < len(changed):
            changed[at] = rng.randrange(256)
    return bytes(changed)


def check_request(data: bytes) -> None:
    result = handshake.parse_request(data, SECRET, NONCES[0])
    if isinstance(result, tuple):
        assert data[: len(REQUEST)] == REQUEST


@given(st.integers(0, 1 << 32))
@settings(max_examples=300, deadline=None)
@example(0)
def test_a_mutated_request_is_never_accepted(seed):
    assert isinstance(handshake.parse_request(REQUEST, SECRET, NONCES[0]), tuple)
    check_request(mutate(REQUEST, random.Random(seed)))


@given(st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_no_request(data):
    check_request(data)
    check_request(b"RLFABRIC" + data)


def test_a_request_of_any_nesting_is_refused_without_an_exception():
    data = b"[" * 100_000
    request = handshake.make_greeting(NONCES[1]) + struct.pack("<I", len(data)) + data
    request += handshake.prove(SECRET, b"client", *NONCES, data)
    assert isinstance(handshake.parse_request(request, SECRET, NONCES[0]), handshake.Stranger)


# The frames of links.cpp, written here a second time from the page.
FRAME = struct.Struct("<HBBIIIQQ")
CALL = struct.Struct("<BBBBIQ48s")
MAGIC, KIND_CALL, KIND_DATA, KIND_FAILURE = 0x5246, 1, 2, 4
SMALL, LARGE = 100, 20_000  # float32


def make_call_frame(count: int, data: bytes) -> bytes:
    call = CALL.pack(0, 2, 0, 0, 0, count, b"")  # all_reduce, float32, sum
    return FRAME.pack(MAGIC, KIND_CALL, 1, 0, 0, 0, len(call) + len(data), len(call) + len(data)) + call + data


def make_large_call(values: np.ndarray) -> bytes:
    """What rank 1 sends in an all-reduce of much data: its call, the part of rank 0, the sum of its own part."""
    half = (LARGE // 16 // 2) * 16
    parts = ((1, values[:half]), (2, 2 * values[half:]))
    frames = [
        FRAME.pack(MAGIC, KIND_DATA, 1, 0, index, 0, part.nbytes, part.nbytes) + part.tobytes() for index, part in parts
    ]
    return make_call_frame(LARGE, b"") + b"".join(frames)


def run_against(data: bytes, control: bytes, count: int) -> tuple[int, np.ndarray]:
    """One all-reduce of rank 0 beside a rank that sends these bytes and ends."""
    pairs = [socket.socketpair() for _ in range(3)]
    for end in (end for pair in pairs for end in pair):  # nothing is read at the other ends
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    lanes = [p[0].detach() for p in pairs[1:]]
    rows = [(0, -1, [], [], [], b""), (1, pairs[0][0].detach(), lanes, [-1, -1], [], b"")]
    engine = NetworkCollective(0, rows, 8192, True)
    x = np.arange(count, dtype="f4")
    pairs[0][1].sendall(control)
    pairs[1][1].sendall(data)
    for _, other in pairs:
        other.shutdown(socket.SHUT_WR)
    code = engine.run(0, x.ctypes.data, x.ctypes.data, count, 2, 0, 0, 5.0)
    for _, other in pairs:
        other.close()
    engine.end()
    return code, x


def test_frames_of_the_page_make_the_right_sum():
    for count in (SMALL, LARGE):
        values = np.arange(count, dtype="f4")
        data = make_call_frame(count, values.tobytes()) if count == SMALL else make_large_call(values)
        code, x = run_against(data, b"", count)
        assert code == 0
        assert (x == 2 * values).all()


def fuzz_frames(seed: int) -> int:
    """Mutate the frames, but not the data, of a call: the sum is right or the call fails. Returns the code."""
    rng = random.Random(seed)
    large = rng.random() < 0.2
    count = LARGE if large else SMALL
    values = np.arange(count, dtype="f4")
    data = make_large_call(values) if large else make_call_frame(count, values.tobytes())
    head = FRAME.size + CALL.size
    mutated = mutate(data[:head], rng) + data[head:] if rng.random() < 0.8 else mutate(data, rng)[: rng.randrange(400)]
    failure = FRAME.pack(MAGIC, KIND_FAILURE, 1, 0, 0, 0, 32, 32) + struct.pack("<iiiIIiq", 2, 1, 1, 0, 0, 0, 10**9)
    control = rng.choice([b"", b"", b"", failure, mutate(failure, rng), rng.randbytes(rng.randrange(200))])
    code, x = run_against(mutated, control, count)
    if code == 0 and not large and mutated != data:  # what follows the call may have moved by whole frames only
        assert len(mutated) >= len(data)
    if code == 0 and mutated[head:] == data[head:]:
        assert (x == 2 * values).all(), seed
    return code


def test_mutated_frames_raise_an_error_and_never_crash_or_hang():
    codes = {fuzz_frames(seed) for seed in range(300)}
    assert codes - {0}, "no mutation was noticed"


@pytest.mark.slow
def test_a_million_mutated_messages_are_refused():
    rng = random.Random(1)
    for _ in range(int(os.environ.get("RIDGELINE_FUZZ", "950_000"))):
        check_request(mutate(REQUEST, rng))
    for seed in range(50_000):
        fuzz_frames(seed)
