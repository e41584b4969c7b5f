"""Plain requests are answered as any other: the same checks, the same answer, whatever the client does meanwhile."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ridgeline.web import Reply, connections, create_app, run_in_background
from ridgeline.web.plain_requests import BODY_LIMIT, read_head

h11 = pytest.importorskip("h11")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
from starlette.responses import Response  # noqa: E402
from starlette.routing import Route  # noqa: E402

PATHS = {"/echo": None, "/slow": None}
HEAD = b"POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n%b\r\n"
TOKEN = "a-token-of-20-letters"


def make(body=b"{}", more=b""):
    return HEAD % (len(body), more) + body


def read_with_library(data):
    """Return method, target, headers and the length of the body as h11 has them, or None if it refuses the bytes."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    try:
        request = connection.next_event()
        if not isinstance(request, h11.Request):
            return None
    except h11.RemoteProtocolError:
        return None
    length = next((int(value) for name, value in request.headers if name == b"content-length"), None)
    return request.method, request.target, request.http_version, list(request.headers), length


SMALL = (
    b"",
    b" ",
    b"\t",
    b"\r",
    b"\n",
    b"\0",
    b"\x7f",
    b"\xff",
    b":",
    b"a",
    b"7",
    b"+7",
    b"7, 7",
    b"\r\n ",
    b"chunked",
)
LARGE = (
    b"content-length: 3\r\n",
    b"transfer-encoding: chunked\r\n",
    b"host: b\r\n",
    b"connection: close\r\n",
    b"x:\r\n",
)
MORE = (b"expect: 100-continue\r\n", b"Connection: keep-alive\r\n", b"x: y\r\n", b"HTTP/1.0", b"http://x/")
texts = st.sampled_from((*SMALL, *LARGE, *MORE))


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 3), texts), max_size=4))
@example([])
def test_a_head_is_read_as_the_http_library_reads_it_or_left_to_it(changes):
    data = make(b"{}", b"x-request-timeout: 3\r\nContent-Type:application/json \r\n")
    for place, removed, text in changes:
        data = data[:place] + text + data[place + removed :]
    found = read_head(data, PATHS)
    if not changes:
        assert found is not None
    if found is None:
        return
    method, target, version, headers, length = read_with_library(data)
    assert (method, version, length) == (b"POST", b"1.1", found.end - found.begin)
    assert target.decode() == found.scope["path"]
    assert headers == found.scope["headers"]
    names = [name for name, _ in headers]
    assert names.count(b"host") == names.count(b"content-length") == 1
    assert b"transfer-encoding" not in names


@pytest.mark.parametrize(
    "data",
    [
        b"GET /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
        b"POST /other HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
        b"POST /echo?x=1 HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n",
        make(more=b"connection: close\r\n"),
        make(more=b"content-length: 2\r\n"),
        HEAD % (BODY_LIMIT + 1, b""),
        b"",
    ],
)
def test_anything_unusual_is_left_to_the_http_library(data):
    assert read_head(data, PATHS) is None


@contextmanager
def run_echo(**rules):
    """Run a server whose paths answer their body; yield (its address, what its plain handlers saw)."""
    seen = {"plain": 0, "cancelled": threading.Event(), "started": threading.Event()}

    async def echo(body, headers):
        seen["plain"] += 1
        return Reply(200, body or b"{}", {"x-kind": headers.get("x-kind", "")})

    async def sleep(body, headers):
        seen["started"].set()
        try:
            await asyncio.sleep(float(body))
        except asyncio.CancelledError:
            seen["cancelled"].set()
            raise
        return Reply(200, body)

    async def route(request):
        kind = {"x-kind": request.headers.get("x-kind", "")}
        return Response(await request.body() or b"{}", 200, kind, "application/json")

    routes = [Route(path, route, methods=["POST"]) for path in PATHS]
    with run_in_background(create_app(routes, plain={"/echo": echo, "/slow": sleep}, **rules)) as url:
        yield ("127.0.0.1", httpx.URL(url).port), seen


def receive(wire, count=1):
    """Return whole answers: (head, body)."""
    data, answers = b"", []
    while len(answers) < count:
        head, end, rest = data.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")), 0)
        if end and len(rest) >= length:
            answers.append((head, rest[:length]))
            data = rest[length:]
            continue
        part = wire.recv(1 << 16)
        assert part, f"the connection was closed after {data!r}"
        data += part
    return answers


def get_headers(head):
    lines = head.decode().lower().split("\r\n")
    return lines[0], sorted(line for line in lines[1:] if not line.startswith(("date", "connection")))


@pytest.fixture(scope="module")
def echo():
    with run_echo() as running:
        yield running


def test_both_ways_give_the_same_answer(echo):
    address, seen = echo
    for body in (b"{}", b'{"x": 1}' * 9000):
        answers = []
        for more in (b"x-kind: y\r\n", b"x-kind: y\r\nte: trailers\r\n"):
            before = seen["plain"]
            with socket.create_connection(address, 30) as wire:
                wire.sendall(make(body, more))
                answers += receive(wire)
            assert seen["plain"] - before == (b"te:" not in more)
        (plain, plain_body), (other, other_body) = answers
        assert get_headers(plain) == get_headers(other)
        assert plain_body == other_body == body


def test_a_request_may_come_in_pieces_and_several_at_once(echo):
    address, _ = echo
    bodies = [b"{%d}" % n * (n * n + 1) for n in range(12)]
    data = b"".join(
        make(body, b"te: x\r\n" if n % 4 == 3 else b"") for n, body in enumerate(bodies)
    )  # the HTTP library reads some of them
    for size in (1, 7, 50, 3000, len(data)):
        with socket.create_connection(address, 30) as wire:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for begin in range(0, len(data), size):
                wire.sendall(data[begin : begin + size])
            assert [body for _, body in receive(wire, len(bodies))] == bodies


def test_a_plain_request_passes_the_same_checks():
    with run_echo(token=TOKEN, body_limit=1000) as (address, seen):
        cases = [
            (make(), 401),
            (make(more=b"authorization: Bearer wrong\r\n"), 401),
            (make(b"x" * 1001, b"authorization: Bearer %b\r\n" % TOKEN.encode()), 413),
            (make(more=b"authorization: Bearer %b\r\norigin: http://evil.example\r\n" % TOKEN.encode()), 403),
            (make().replace(b"localhost", b"evil.example"), 421),
        ]
        for data, status in cases:
            with socket.create_connection(address, 30) as wire:
                wire.sendall(data)
                assert receive(wire)[0][0].startswith(b"HTTP/1.1 %d" % status), data
        assert seen["plain"] == 0
        with socket.create_connection(address, 30) as wire:
            wire.sendall(make(more=b"Authorization: Bearer %b\r\n" % TOKEN.encode()))
            assert receive(wire)[0][0].startswith(b"HTTP/1.1 200")
        assert seen["plain"] == 1


def test_a_client_that_leaves_ends_its_request(echo):
    address, seen = echo
    with socket.create_connection(address, 30) as wire:
        wire.sendall(make(b"60").replace(b"/echo", b"/slow"))
        assert seen["started"].wait(30)
    assert seen["cancelled"].wait(30)


def test_requests_beyond_the_limits_wait_or_are_refused():
    with (
        run_echo(concurrency=1, queue=1, queue_s=30.0, bodies_limit=100) as (address, seen),
        socket.create_connection(address, 30) as first,
        socket.create_connection(address, 30) as second,
        socket.create_connection(address, 30) as third,
    ):
        first.sendall(make(b"0.3").replace(b"/echo", b"/slow"))
        assert seen["started"].wait(30)
        second.sendall(make(b"{2}"))
        assert receive(first)[0][1] == b"0.3"
        assert receive(second)[0][1] == b"{2}"
        third.sendall(make(b"x" * 101))
        assert receive(third)[0][0].startswith(b"HTTP/1.1 503")


def test_a_body_that_does_not_come_is_left_to_the_http_library(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.1)
    with run_echo() as (address, seen), socket.create_connection(address, 30) as wire:
        for _ in range(2):
            data, before = make(b"{12345}"), seen["plain"]
            wire.sendall(data[:-3])
            time.sleep(0.4)
            wire.sendall(data[-3:])
            assert receive(wire)[0][1] == b"{12345}"
            assert seen["plain"] == before


def test_the_end_of_the_server_answers_what_it_has_and_closes():
    answers = []
    with run_echo() as (address, seen):
        wires = [socket.create_connection(address, 30) for _ in range(3)]
        wires[0].sendall(make(b"0.5").replace(b"/echo", b"/slow"))
        wires[1].sendall(make(b"{}"))
        receive(wires[1])
        assert seen["started"].wait(30)
    for wire in wires:
        with wire:
            data = b""
            while part := wire.recv(1 << 16):
                data += part
            answers.append(data)
    assert answers[0].startswith(b"HTTP/1.1 200")
    assert b"\r\nconnection: close\r\n" in answers[0]
    assert answers[0].endswith(b"0.5")
    assert answers[1:] == [b"", b""]


def test_a_handler_that_fails_is_a_500_without_its_cause(caplog):
    async def fail(body, headers):
        raise ValueError("a secret")

    async def route(request):
        return Response()

    app = create_app([Route("/echo", route, methods=["POST"])], plain={"/echo": fail})
    with run_in_background(app) as url, socket.create_connection(("127.0.0.1", httpx.URL(url).port), 30) as wire:
        wire.sendall(make())
        head, body = receive(wire)[0]
    assert head.startswith(b"HTTP/1.1 500")
    assert b"secret" not in body
