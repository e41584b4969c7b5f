"""A client that only connects does not use up the process, and one that repeats itself does not fill the log."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
import time
from contextlib import ExitStack, suppress

import httpx
import pytest

from ridgeline.web import connections, create_app, run_in_background

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
from starlette.responses import Response
from starlette.routing import Route

CLIENT = {"timeout": 30, "trust_env": False}


def is_closed(client: socket.socket) -> bool:
    """Whether the server has closed the connection."""
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def wait_until(true, seconds=30.0) -> bool:
    until = time.monotonic() + seconds
    while not true() and time.monotonic() < until:
        time.sleep(0.01)
    return true()


def test_half_open_connections_beyond_the_limit_replace_each_other(monkeypatch):
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 20)
    with ExitStack() as stack, run_in_background(create_app([])) as url:
        address = ("127.0.0.1", httpx.URL(url).port)
        clients = []
        for k in range(90):
            client = stack.enter_context(socket.create_connection(address, 30))
            if k % 2:
                client.sendall(b"GET / HTTP/1.1\r\nhost: x")
            clients.append(client)
            if k % 30 == 0:
                assert httpx.get(f"{url}/healthz", **CLIENT).status_code == 200
        assert httpx.get(f"{url}/healthz", **CLIENT).status_code == 200
        assert wait_until(lambda: sum(map(is_closed, clients)) >= 70), "the server kept more than 20 connections"
        assert not is_closed(clients[-1]), "the newest stays"


def test_connections_use_a_part_of_the_descriptors(monkeypatch):
    limits = {64: 16, 1024: 256, 10**6: 512, 8: 4, resource.RLIM_INFINITY: 512}
    for descriptors, most in limits.items():
        monkeypatch.setattr(resource, "getrlimit", lambda _, d=descriptors: (d, d))
        assert connections.get_connection_limit() == most
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10_000, 10_000))
    assert [connections.get_connection_limit(most) for most in (4_096, 20)] == [2_500, 20]


def test_all_listeners_together_use_half_of_the_descriptors(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    most = []
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(connections.count_listener())
            most.append(connections.get_connection_limit())
    assert most == [256, 256, 170, 128, 102]
    assert connections.get_connection_limit() == 256


def test_a_listener_limits_the_messages_that_its_clients_cause(monkeypatch, caplog):
    logger = logging.getLogger("asyncio")
    monkeypatch.setattr(logger, "filters", [])
    with connections.count_listener():
        for _ in range(50):
            logger.error("socket.accept() out of system resource\nsocket: 7")
    assert len(caplog.records) == 5


def test_a_server_closes_connections_when_other_listeners_open(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (80, 80))
    with ExitStack() as stack, run_in_background(create_app([])) as url:
        address = ("127.0.0.1", httpx.URL(url).port)
        clients = [stack.enter_context(socket.create_connection(address, 30)) for _ in range(20)]
        assert httpx.get(f"{url}/healthz", **CLIENT).status_code == 200
        assert sum(map(is_closed, clients)) <= 1
        for _ in range(3):  # four listeners with ten connections each
            stack.enter_context(connections.count_listener())
        clients.append(stack.enter_context(socket.create_connection(address, 30)))
        assert wait_until(lambda: sum(map(is_closed, clients)) >= 11)
        assert not is_closed(clients[-1])


def test_a_head_that_does_not_end_is_cut_off_and_a_request_in_progress_is_not(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    reached = []

    async def slow(request):
        reached.append(request)
        await asyncio.sleep(0.6)
        return Response()

    with run_in_background(create_app([Route("/slow", slow)])) as url:
        with socket.create_connection(("127.0.0.1", httpx.URL(url).port), 30) as client:
            sent = 0
            for letter in b"GET / HTTP/1.1\r\nx: " + b"y" * 600:
                with suppress(OSError):
                    client.sendall(bytes([letter]))
                sent += 1
                if is_closed(client):
                    break
                client.setblocking(True)
                time.sleep(0.05)
            assert sent < 600, "bytes that trickle keep a connection for ever"
        with httpx.Client(**CLIENT) as client:
            answers = tries = 0
            while answers < 2 and tries < 20:
                before, tries = len(reached), tries + 1
                try:
                    answers += client.get(f"{url}/slow").status_code == 200
                except httpx.TransportError:
                    # On a busy machine the client may send its head too late. Then no handler has run.
                    assert len(reached) == before, "the server cut off a request in progress"
            assert answers == 2


def test_a_connection_is_kept_for_the_next_request_whose_head_may_not_take_long(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with run_in_background(create_app([])) as url, socket.create_connection(("127.0.0.1", httpx.URL(url).port)) as wire:
        wire.settimeout(30)
        for _ in range(2):
            wire.sendall(request)
            answer = b""
            while not answer.endswith(b'{"status":"ok"}'):
                answer += (data := wire.recv(4096))
                assert data, "the connection was closed between two requests"
            time.sleep(0.6)  # several times HEAD_S, and less than uvicorn keeps a connection
        wire.sendall(request[:10])
        with suppress(ConnectionResetError):
            assert wire.recv(4096) == b"", "a head that does not end kept the connection"


def test_a_client_that_does_not_read_its_answer_loses_the_connection_and_a_slow_reader_does_not(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.5)
    size = 16 << 20

    async def large(request):
        return Response(b"x" * size)

    with ExitStack() as stack, run_in_background(create_app([Route("/large", large)])) as url:
        clients = []
        for _ in range(2):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            client.settimeout(30)
            client.connect(("127.0.0.1", httpx.URL(url).port))
            client.sendall(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n")
            clients.append(client)
        slow, asleep = clients
        received, start = 0, time.monotonic()
        while received < size:
            received += len(slow.recv(1 << 18))
            time.sleep(max(0.0, start + 2.0 * received / size - time.monotonic()))  # several periods
        assert received >= size
        total = 0
        with suppress(ConnectionResetError):
            while data := asleep.recv(1 << 20):
                total += len(data)
        assert total < size, "the answer stayed in memory for a client that did not read it"


def test_a_repeated_message_is_logged_a_few_times_and_then_counted(monkeypatch, caplog):
    moment = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    logger = logging.getLogger("tests.repeated")
    logger.addFilter(connections.RepeatFilter())
    for k in range(1_000):
        logger.error("accept failed\nsocket %s", k)
        logger.error("something else")
    assert [r.getMessage().partition("\n")[0] for r in caplog.records] == ["accept failed", "something else"] * 5
    moment[0] += 61
    logger.error("accept failed\nagain")
    assert caplog.records[-1].getMessage() == "accept failed\nagain (995 more like this were not shown)"


def test_a_client_that_sends_nonsense_does_not_fill_the_log(caplog):
    with run_in_background(create_app([])) as url:
        for _ in range(30):
            with socket.create_connection(("127.0.0.1", httpx.URL(url).port), 30) as client:
                client.sendall(b"nonsense\r\n\r\n")
                while client.recv(1000):
                    pass
    assert sum("Invalid HTTP request" in r.getMessage() for r in caplog.records) <= 5


@pytest.mark.parametrize(
    ("data", "status", "sentence"),
    [
        (b"nonsense\r\n\r\n", 400, "this is not valid HTTP."),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 100_000, 431, "the head of the request is too long."),
        (b"POST /echo HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400, "not valid HTTP"),
    ],
)
def test_what_is_not_http_is_refused_in_the_shape_of_the_application(data, status, sentence):
    def format_error(path, status, sentence):
        return {"path": path, "status": status, "message": sentence}

    async def echo(request):
        return Response(await request.body())

    app = create_app([Route("/echo", echo, methods=["POST"])], format_error=format_error)
    with run_in_background(app) as url, socket.create_connection(("127.0.0.1", httpx.URL(url).port), 30) as client:
        client.sendall(data)
        answer = b"".join(iter(lambda: client.recv(10_000), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in head
    assert b"x-content-type-options: nosniff" in head
    content = json.loads(body)
    assert (content["path"], content["status"]) == ("/echo" if data.startswith(b"POST") else "", status)
    assert sentence in content["message"]
