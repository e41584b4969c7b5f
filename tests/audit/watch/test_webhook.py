"""Webhooks: alerts are retried until accepted, signed, and sent to the configured URL only."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from tests.audit.threads import run_in_thread
from tests.audit.watch.watching import entries, jsonl, make, write_events

from ridgeline.audit import Ledger
from ridgeline.audit.watch import internal_events
from ridgeline.audit.watch.scorer import Settings
from ridgeline.audit.watch.watcher import Watcher
from ridgeline.audit.watch.webhook import SECRET, Webhook
from ridgeline.errors import InputError

ALERT = {"entry": 3, "score": 0.9, "reason": "new", "event": {"time": 10**18, "action": "a.b"}}


@contextmanager
def receiver(*statuses):
    """Answers with these, then always with the last; what came is in `got`."""
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((self.path, dict(self.headers), body))
            status = statuses[min(len(got), len(statuses)) - 1]
            self.send_response(status)
            if status == 302:
                self.send_header("location", f"http://127.0.0.1:{server.server_port}/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_alert_is_retried_until_accepted_and_signed_each_time(monkeypatch):
    monkeypatch.setenv(SECRET, "between us")
    failed = []
    with receiver(500, 429, 200) as (url, got):
        hook = Webhook(url, lambda *words: failed.append(words), first_s=0.01, drain_s=30)
        hook(ALERT)
        hook.close()
    assert (len(got), failed) == (3, [])
    _, headers, body = got[-1]
    assert json.loads(body)["event"]["time"] == str(10**18)
    fields = {k.lower(): v for k, v in headers.items()}["x-ridgeline-signature"]
    assert fields == "sha256=" + hmac.new(b"between us", body, hashlib.sha256).hexdigest()


@pytest.mark.parametrize(("statuses", "tries", "why"), [((404,), 1, "404"), ((302,), 1, "302")])
def test_what_will_never_be_taken_is_given_up_at_once_and_no_redirect_is_followed(statuses, tries, why):
    failed = []
    with receiver(*statuses) as (url, got):
        hook = Webhook(url, lambda alert, reason: failed.append(reason), first_s=0.01)
        hook(ALERT)
        hook.close()
    assert [path for path, _, _ in got] == ["/hook"] * tries
    assert why in failed[0]


def test_a_receiver_that_is_not_there_is_given_up_at_the_end(tmp_path):
    failed, said = [], []
    hook = Webhook(
        "http://127.0.0.1:9/secret",
        lambda alert, reason: failed.append((alert["entry"], alert["receiver"], reason)),
        report=said.append,
        first_s=0.01,
        drain_s=0.05,
    )
    hook(ALERT)
    until = time.monotonic() + 30
    while not hook.delivery.problem:  # said while it is still retried
        assert time.monotonic() < until
        time.sleep(0.01)
    hook.close()
    assert failed == [(3, "webhook 127.0.0.1", "it could not be reached (connection refused)")]
    assert said == ["webhook 127.0.0.1 gets no alerts: it could not be reached (connection refused); it is retried."]


def test_a_watcher_sends_alerts_and_records_undelivered_ones(tmp_path):
    from tests.audit.watch.watching import ODD_RULE, encode

    write_events(tmp_path / "in", 0, 1_200)
    for status in (200, 400):
        log = make(tmp_path / f"log{status}")
        with receiver(status) as (url, got), Ledger.open(log) as ledger:
            source = jsonl(tmp_path / "in")
            settings = Settings(wait_ms=1)
            done = run_in_thread(
                Watcher(ledger, [source], settings, webhooks=[url], encode=encode, rules=[ODD_RULE]).run
            )
        assert len(got) == done.alerts > 0
        undelivered = [e for e in entries(log) if e["action"] == internal_events.UNDELIVERED]
        assert len(undelivered) == done.undelivered == (0 if status == 200 else done.alerts)
        assert {e["attributes"]["receiver"] for e in undelivered} <= {"webhook 127.0.0.1"}


@pytest.mark.parametrize(
    "url", ["ftp://x/", "nonsense", "http://", "http://u:p@x/", "file:///etc/passwd", "http://x:0/"]
)
def test_an_address_that_must_not_be_is_refused(url):
    with pytest.raises(InputError, match="--webhook"):
        Webhook(url, lambda *_: None)
