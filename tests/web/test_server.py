"""The server: allowed addresses, messages, required libraries, and shutdown."""

from __future__ import annotations

import builtins
import signal
import socket
import subprocess
import sys
import textwrap
from contextlib import ExitStack

import httpx
import pytest

from ridgeline.errors import InputError, MissingExtra
from ridgeline.web import create_app, run_in_background, serve

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

ROUTES = []
TOKEN = "correct-horse-battery-staple"
CLIENT = {"timeout": 60, "trust_env": False}


def never(line):
    pytest.fail(f"it should not have come to: {line}")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "example.org"])
def test_a_host_that_others_can_reach_needs_a_token(host):
    with pytest.raises(InputError, match="can be reached from other machines"):
        serve(create_app(ROUTES), host=host, port=0, announce=never)


def test_with_a_token_every_address_may_be_served():
    with run_in_background(create_app(ROUTES, token="auto"), host="0.0.0.0") as url:
        port = httpx.URL(url).port
        assert httpx.get(f"http://127.0.0.1:{port}/", **CLIENT).status_code == 401


@pytest.mark.parametrize("token", ["", "short", "has blanks in the middle", "ümlaut-ümlaut-ümlaut", "x\r\ny" * 10])
def test_a_token_that_is_weak_or_cannot_be_sent_is_refused(token):
    with pytest.raises(InputError, match="at least 16 visible"):
        create_app(ROUTES, token=token)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} on 127.0.0.1 is already in use"):
            serve(create_app(ROUTES), port=port, announce=never)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("127.0.0.1", -1), ("no.such.host.invalid", 0)])
def test_an_address_that_cannot_be_is_a_sentence(host, port):
    with pytest.raises(InputError, match=r"\.$"):
        serve(create_app(ROUTES, token=TOKEN), host=host, port=port, announce=never)


@pytest.mark.parametrize("module", ["starlette", "uvicorn"])
def test_without_its_libraries_the_server_names_the_extra(monkeypatch, module):
    imported = builtins.__import__

    def without(name, *rest, **named):
        if name.startswith(module):
            raise ImportError(name)
        return imported(name, *rest, **named)

    ready = create_app(ROUTES)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"\[serve\]"):
        serve(ready, port=0) if module == "uvicorn" else create_app(ROUTES)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order_even_with_requests_under_way(stop):
    script = textwrap.dedent("""
        import asyncio
        from contextlib import asynccontextmanager
        from starlette.responses import StreamingResponse
        from starlette.routing import Route
        from ridgeline.web import create_app, serve

        @asynccontextmanager
        async def lifespan(_):
            yield
            print("closed", flush=True)

        async def forever(request):
            async def parts():
                while True:
                    yield "tick"
                    await asyncio.sleep(0.05)
            return StreamingResponse(parts())

        async def stuck(request):
            print("reached", flush=True)
            await asyncio.sleep(60)

        guarded = create_app([Route("/", forever), Route("/stuck", stuck)], token="auto", lifespan=lifespan)
        serve(guarded, port=0, announce=lambda line: print(line, flush=True))
        print("after", flush=True)
    """)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            address = child.stdout.readline().split()[2]
            with (
                httpx.Client(**CLIENT, follow_redirects=True) as client,
                client.stream("GET", address) as answer,
                ExitStack() as ends,
            ):
                assert answer.status_code == 200
                assert next(answer.iter_text()) == "tick"
                if stop == signal.SIGINT:
                    wire = ends.enter_context(socket.create_connection(("127.0.0.1", answer.url.port)))
                    cookie = answer.request.headers["cookie"]
                    wire.sendall(f"GET /stuck HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
                    assert child.stdout.readline() == "reached\n"
                child.send_signal(stop)
                out, err = child.communicate(timeout=60)  # while the stream is still open
                if stop == signal.SIGINT:
                    assert wire.recv(1000).startswith(b"HTTP/1.1 503")
        finally:
            child.kill()
    assert "closed" in out
    assert "Traceback" not in err
    assert (child.returncode, out.split()[-1]) == (0, "after")


@pytest.mark.parametrize("moment", ["before it serves", "with a request in progress"])
def test_sigterm_answers_what_was_accepted_and_ends_in_order(moment):
    script = textwrap.dedent("""
        import asyncio, os, signal, sys
        from starlette.responses import JSONResponse
        from starlette.routing import Route
        from ridgeline.web import create_app, serve

        async def slow(request):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.5)
            return JSONResponse({"answered": True})

        def announce(line):
            print(line, flush=True)
            if sys.argv[1] == "before it serves":
                os.kill(os.getpid(), signal.SIGTERM)

        serve(create_app([Route("/slow", slow)]), port=0, announce=announce, drain_s=30)
        print("after", flush=True)
    """)
    with subprocess.Popen([sys.executable, "-c", script, moment], stdout=subprocess.PIPE, text=True) as child:
        try:
            address = child.stdout.readline().split()[2]
            if moment == "with a request in progress":
                assert httpx.get(address + "slow", **CLIENT).json() == {"answered": True}
            out, _ = child.communicate(timeout=60)
        finally:
            child.kill()
    assert (child.returncode, out) == (0, "after\n")


def test_a_generated_token_is_printed_once_and_a_given_one_never():
    for token, expected in (("auto", 1), (TOKEN, 0)):
        announcements = []

        def stop(line, announcements=announcements):
            announcements.append(line)
            raise EOFError

        with pytest.raises(EOFError):
            serve(create_app(ROUTES, token=token), port=0, announce=stop)
        assert sum("?token=" in line for line in announcements) == expected
        assert TOKEN not in announcements[0]
