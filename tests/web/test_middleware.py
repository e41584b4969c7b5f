"""Requests that the middleware passes and refuses, over a real loopback socket."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import httpx
import pytest

from ridgeline.errors import InputError
from ridgeline.web import build_page, create_app, create_page_response, get_policy, run_in_background

pytest.importorskip("starlette")
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

TOKEN = "correct-horse-battery-staple"
PAGE = build_page("t", "hello", live=True)
CLIENT = {"timeout": 60, "trust_env": False}


async def index(request):
    return create_page_response(PAGE)


async def echo(request):
    return JSONResponse({"bytes": len(await request.body())})


async def bad(request):
    raise InputError("row 3 of ratings.csv has no user; add one.")


async def fail(request):
    raise RuntimeError("secret path /home/someone/.ssh")


async def slow(request):
    await asyncio.sleep(300)


RELEASE = threading.Event()


def blocking(request):
    RELEASE.wait(300)
    return JSONResponse({})


async def stream(request):
    async def parts():
        for n in range(4):
            await asyncio.sleep(0.15)
            yield f"{n}\n"

    return StreamingResponse(parts())


ROUTES = [
    Route("/", index),
    Route("/deep/er", index),
    Route("/echo", echo, methods=["POST"]),
    Route("/bad", bad),
    Route("/broken", fail),
    Route("/slow", slow),
    Route("/blocking", blocking),
    Route("/stream", stream),
]


@pytest.fixture(scope="module")
def url():
    with run_in_background(create_app(ROUTES, body_limit=1000, concurrency=2)) as url:
        yield url


@pytest.fixture(scope="module")
def brief():
    """A server with a short deadline, for handlers that would miss any."""
    with run_in_background(create_app(ROUTES, deadline_s=0.5)) as url:
        yield url


@pytest.fixture(scope="module")
def locked():
    with run_in_background(create_app(ROUTES, token=TOKEN)) as url:
        yield url


@pytest.fixture
def client():
    with httpx.Client(**CLIENT) as client:
        yield client


def test_a_page_is_served_with_its_own_policy_as_a_header(url, client):
    answer = client.get(url)
    assert answer.text == PAGE
    assert answer.headers["content-security-policy"] == get_policy(PAGE) + "; frame-ancestors 'none'"


@pytest.mark.parametrize("path", ["/", "/healthz", "/bad", "/broken", "/nowhere", "/echo", "/slow"])
def test_every_answer_carries_the_security_headers(url, brief, client, path):
    headers = client.get((brief if path == "/slow" else url) + path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert headers["cross-origin-resource-policy"] == headers["cross-origin-opener-policy"] == "same-origin"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "server" not in headers


def test_refusals_carry_the_security_headers_too(url, locked, client):
    for answer in (
        client.get(url, headers={"host": "evil.example"}),
        client.post(url + "/echo", content=b"x" * 5000),
        client.post(url + "/echo", headers={"origin": "https://evil.example"}),
        client.get(locked),
    ):
        assert answer.status_code in (421, 413, 403, 401)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert list(answer.json()) == ["error"]


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/bad", 400, "row 3 of ratings.csv has no user; add one."),
        ("/broken", 500, "the server failed on this request; its log says why."),
        ("/nowhere", 404, "there is nothing at this address."),
        ("/echo", 405, "this method is not allowed here."),
        ("/slow", 504, "no answer within 0.5 s."),
    ],
)
def test_an_error_is_one_sentence_without_a_traceback(url, brief, client, path, status, sentence):
    answer = client.get((brief if path == "/slow" else url) + path)
    assert (answer.status_code, answer.json()) == (status, {"error": sentence})


def test_refusals_and_errors_take_the_shape_that_the_application_gives_them(client):
    def format_error(path, status, sentence):
        return {"problem": {"path": path, "status": status, "sentence": sentence}}

    limits = {"body_limit": 1000, "deadline_s": 0.5, "token": TOKEN, "format_error": format_error}
    with run_in_background(create_app(ROUTES, **limits)) as url:
        answers = [client.get(url)]
        client.headers["authorization"] = f"Bearer {TOKEN}"
        answers.append(client.post(url + "/echo", content=b"x" * 1001))
        answers += [client.get(url + path) for path in ("/bad", "/broken", "/nowhere", "/echo", "/slow")]
        assert client.get(url + "/healthz").json() == {"status": "ok"}
    problems = [answer.json()["problem"] for answer in answers]
    assert [p["status"] for p in problems] == [a.status_code for a in answers] == [401, 413, 400, 500, 404, 405, 504]
    assert problems[2] == {"path": "/bad", "status": 400, "sentence": "row 3 of ratings.csv has no user; add one."}


def test_an_unexpected_error_goes_to_the_log(url, client, caplog):
    client.get(url + "/broken")
    end = time.monotonic() + 30
    while not caplog.records and time.monotonic() < end:
        time.sleep(0.01)
    assert "secret path" in caplog.text


def test_the_users_own_errors_are_not_logged(url, client, caplog):
    client.get(url + "/bad")
    time.sleep(0.05)
    assert caplog.records == []


def test_a_body_within_the_limit_arrives_whole(url, client):
    assert client.post(url + "/echo", content=b"x" * 1000).json() == {"bytes": 1000}
    assert client.post(url + "/echo", content=iter([b"x" * 400, b"y" * 600])).json() == {"bytes": 1000}


@pytest.mark.parametrize("size", [1001, 300_000, 3_000_000])
def test_a_body_over_the_limit_is_refused_declared_or_chunked(url, client, size):
    declared = client.post(url + "/echo", content=b"x" * size)
    chunked = client.post(url + "/echo", content=(b"x" * 1000 for _ in range(-(-size // 1000))))
    for answer in (declared, chunked):
        assert (answer.status_code, answer.json()) == (413, {"error": "the body is larger than 1000 bytes."})


def test_a_body_over_the_limit_is_refused_before_it_is_sent(url):
    address = ("127.0.0.1", httpx.URL(url).port)
    with socket.create_connection(address, timeout=60) as wire:
        wire.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6000000\r\n\r\n")
        assert wire.recv(1000).startswith(b"HTTP/1.1 413")


def test_the_bodies_of_all_requests_have_a_limit_together(client):
    with run_in_background(create_app(ROUTES, body_limit=6000, bodies_limit=10_000)) as url, socket.socket() as wire:
        wire.connect(("127.0.0.1", httpx.URL(url).port))
        wire.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6000\r\n\r\n" + b"x" * 5999)
        end = time.monotonic() + 60
        while (answer := client.post(url + "/echo", content=b"x" * 5000)).status_code == 200:
            assert time.monotonic() < end
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert client.post(url + "/echo", content=b"x" * 1000).json() == {"bytes": 1000}
        wire.sendall(b"x")
        assert wire.recv(1000).startswith(b"HTTP/1.1 200")
        assert client.post(url + "/echo", content=b"x" * 5000).status_code == 200


def test_an_open_path_needs_no_token(client):
    with run_in_background(create_app(ROUTES, token=TOKEN, open_paths=["/bad"])) as url:
        assert [client.get(url + path).status_code for path in ("/", "/bad", "/bad/", "/healthz")] == [
            401,
            400,
            401,
            200,
        ]


def test_a_client_that_sends_before_it_listens_still_reads_the_refusal(url):
    address = ("127.0.0.1", httpx.URL(url).port)
    with socket.create_connection(address, timeout=60) as wire:
        wire.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6000000\r\n\r\n")
        wire.sendall(b"x" * 6_000_000)
        assert wire.recv(1000).startswith(b"HTTP/1.1 413")


def test_a_body_that_never_ends_meets_the_deadline(brief):
    address = ("127.0.0.1", httpx.URL(brief).port)
    with socket.create_connection(address, timeout=60) as wire:
        wire.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nonly this")
        assert wire.recv(1000).startswith(b"HTTP/1.1 504")


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "a b", "[", ""]
)
def test_a_foreign_host_is_refused(url, client, host):
    assert client.get(url, headers={"host": host}).status_code in (400, 421)
    assert client.get(url + "/healthz", headers={"host": host}).status_code in (400, 421)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:80"])
def test_the_servers_own_names_are_accepted(url, client, host):
    assert client.get(url, headers={"host": host}).status_code == 200


def test_further_names_can_be_given():
    with run_in_background(create_app(ROUTES, hosts=["Box.lan"])) as url, httpx.Client(**CLIENT) as client:
        assert client.get(url, headers={"host": "box.lan:80"}).status_code == 200
        assert client.get(url, headers={"host": "fox.lan:80"}).status_code == 421


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://[", "x"])
def test_a_write_from_another_origin_is_refused_and_reads_are_not(url, client, origin):
    assert client.post(url + "/echo", headers={"origin": origin}).status_code == 403
    assert client.get(url, headers={"origin": origin}).status_code == 200


def test_a_write_from_the_same_origin_or_no_browser_is_accepted(url, client):
    assert client.post(url + "/echo", headers={"origin": url}).status_code == 200
    assert client.post(url + "/echo").status_code == 200
    assert client.post(url + "/echo", headers={"sec-fetch-site": "cross-site"}).status_code == 403


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer wrong", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \xff\xfe"]
)
def test_a_wrong_token_is_refused(locked, client, given):
    answer = client.get(locked, headers={"authorization": given.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


def test_the_token_opens_as_a_bearer_header(locked, client):
    assert client.get(locked, headers={"authorization": f"Bearer {TOKEN}"}).text == PAGE
    assert client.post(locked + "/echo", headers={"authorization": f"bearer {TOKEN}"}).status_code == 200


def test_the_token_in_the_address_becomes_a_strict_cookie_and_leaves_the_address(locked, client):
    first = client.get(f"{locked}/deep/er?a=1&token={TOKEN}&b=%26")
    assert (first.status_code, first.headers["location"]) == (303, "/deep/er?a=1&b=%26")
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    assert client.get(locked + "/deep/er").text == PAGE  # the client kept the cookie
    client.cookies.clear()
    assert client.get(locked + "/deep/er").status_code == 401


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "///evil.example//x"])
def test_the_redirect_never_leads_to_another_host(locked, path):
    address = ("127.0.0.1", httpx.URL(locked).port)
    with socket.create_connection(address, timeout=60) as wire:
        wire.sendall(f"GET {path}?token={TOKEN} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = wire.recv(4000).decode().lower()
    assert "\r\nlocation: /evil.example" in answer


def test_a_wrong_token_in_the_address_or_a_forged_cookie_is_refused(locked, client):
    port = httpx.URL(locked).port
    assert client.get(f"{locked}/?token=wrong").status_code == 401
    assert client.get(locked, headers={"cookie": f"ridgeline-{port}={TOKEN}"}).status_code == 401
    assert client.get(locked, headers={"cookie": "=;;\x01"}).status_code == 401


def test_health_needs_no_token(locked, client):
    assert client.get(locked + "/healthz").json() == {"status": "ok"}


def ask_until_refused(requests: int, refused: int, **limits) -> tuple[list[int], int]:
    """Send requests at once; no handler returns before `refused` of them are refused. Return their status codes, and
    the most handlers that ran at the same time."""
    release, seen, running = threading.Event(), [], [0, 0]  # running now, and the most at once

    async def hold(request):
        running[0] += 1
        running[1] = max(running)
        while not release.is_set():
            await asyncio.sleep(0.005)
        running[0] -= 1
        return JSONResponse({})

    def ask():
        with httpx.Client(**CLIENT) as client:
            seen.append(client.get(url + "/").status_code)

    with run_in_background(create_app([Route("/", hold)], **limits)) as url:
        threads = [threading.Thread(target=ask) for _ in range(requests)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 20
        while seen.count(503) < refused and time.monotonic() < end:
            time.sleep(0.005)
        release.set()
        for thread in threads:
            thread.join()
    return sorted(seen), running[1]


def test_more_requests_than_the_limit_wait_for_their_turn():
    """With two in progress and three in the queue, the sixth is refused."""
    assert ask_until_refused(6, 1, concurrency=2, queue=3) == ([200] * 5 + [503], 2)


def test_a_request_that_waits_too_long_gets_503():
    assert ask_until_refused(3, 2, concurrency=1, queue_s=0.02) == ([200, 503, 503], 1)


def test_a_stream_may_outlast_the_deadline(brief, client):
    answer = client.get(brief + "/stream")
    for _ in range(20):  # a busy machine may not start the stream in time
        if answer.status_code == 504:
            answer = client.get(brief + "/stream")
    assert answer.text == "0\n1\n2\n3\n"


def test_a_handler_that_blocks_its_thread_does_not_hold_up_the_answer(brief, client):
    try:
        assert client.get(brief + "/blocking").status_code == 504  # while the handler still waits
    finally:
        RELEASE.set()


def test_a_body_with_two_lengths_is_refused_and_the_connection_closed(url):
    head = b"POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", httpx.URL(url).port), 30) as connection:
        connection.sendall(head + b"0\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(10_000), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"both a Content-Length and a Transfer-Encoding" in answer
