"""HTTP clients that send again after a lost answer, to watchers that are killed: every event is in the log once.

make test-chaos kills 50 watchers; here it is a few.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx
import pytest
from tests.audit.threads import run_in_thread
from tests.audit.watch.watching import make, outside_events

from ridgeline.audit import Ledger
from ridgeline.audit.ledger.verify import examine
from ridgeline.audit.sources import Batch, KeyedEvents
from ridgeline.audit.sources.http import RecordedRequest
from ridgeline.audit.watch import internal_events
from ridgeline.audit.watch.scorer import Settings
from ridgeline.audit.watch.watcher import Watcher

ROUNDS = 50 if "RIDGELINE_CHAOS" in os.environ else 3
TOKEN = "t" * 20


@contextmanager
def watching(log):
    """A watcher that only records; yields its process and where it listens."""
    words = [sys.executable, "-m", "ridgeline", "audit", "watch", log, "--http", ":0", "--no-score", "--quiet"]
    env = {**os.environ, "RIDGELINE_AUDIT_TOKEN": TOKEN}
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env)
    try:
        line = process.stderr.readline()
        assert "taking events at " in line, line
        yield process, line.split("taking events at ")[1].split()[0].rstrip(";")
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)
        process.stderr.close()


def line(number):
    return json.dumps({"action": "test.request", "subject": f"n{number}", "time": 10**18 + number})


def send(url, number, parts=3):
    """One request with a key; None where no answer came."""
    body = "\n".join(line(number * parts + k) for k in range(parts))
    headers = {"authorization": f"Bearer {TOKEN}", "idempotency-key": f"request-{number}"}
    try:
        return httpx.post(url, content=body, headers=headers, timeout=30)
    except httpx.TransportError:
        return None


@pytest.mark.slow
def test_requests_sent_again_to_watchers_that_were_killed_are_recorded_once(tmp_path):
    log, draw, lost, total = make(tmp_path / "log"), random.Random(4), list[int](), 0
    for _ in range(ROUNDS):
        with watching(log) as (process, url):
            for number in lost:
                assert send(url, number).status_code == 200
            lost.clear()
            killer = threading.Timer(draw.uniform(0.02, 0.3), lambda p=process: p.send_signal(signal.SIGKILL))
            killer.start()
            while (answer := send(url, total)) is not None:
                assert answer.status_code == 200
                if draw.random() < 0.3:  # the client did not see it, and sends it again at once
                    assert (again := send(url, total)) is None or again.json()["first"] == answer.json()["first"]
                total += 1
            killer.join()
            lost = [*draw.sample(range(total), min(total, 5)), total]  # keys it never received, and some that it did
            total += 1
    with watching(log) as (_, url):
        answers = [send(url, number) for number in lost]
    assert all(a.json().get("repeated") for a in answers[:-1])
    assert [e["subject"] for e in outside_events(log)] == [f"n{k}" for k in range(3 * total)]
    with Ledger.open(log) as ledger:
        assert examine(log, ledger.verifier).ok


class Given:
    """Two batches, as an HTTP source would give them."""

    name = "given"

    def __init__(self, events):
        self._events = events

    async def batches(self, position):
        keyed = tuple(KeyedEvents(f"k{i}", f"d{i}", i, 1) for i in range(1, len(self._events)))
        yield Batch(self._events, keyed=keyed)
        yield Batch(self._events[:2], keyed=(KeyedEvents("both", "d", 0, 2),), dropped=3)

    def stop(self):
        pass


@pytest.mark.parametrize("count", [2, 3, 700])
def test_the_log_records_the_entries_of_each_key(tmp_path, count):
    log = make(tmp_path / "log")
    events = [json.loads(line(i)) | {"source": "t"} for i in range(count)]
    with Ledger.open(log) as ledger:
        run_in_thread(Watcher(ledger, [Given(events)], Settings(score=False)).run)
        known = list(internal_events.read_request_keys(ledger))
        everything = list(ledger.entries())
    assert [(k.key, k.digest) for k in known] == [*((f"k{i}", f"d{i}") for i in range(1, count)), ("both", "d")]
    for one in known[:-1]:
        assert everything[one.first]["subject"] == f"n{one.key[1:]}"
    assert [e["subject"] for e in everything[known[-1].first :][:2]] == ["n0", "n1"]


def test_an_event_from_outside_cannot_claim_a_key(tmp_path):
    log = make(tmp_path / "log")
    forged = internal_events.make_event(
        internal_events.KEYS, "given", {"keys": [{"key": "k", "sha256": "d", "back": 1, "count": 1}]}
    )
    with Ledger.open(log) as ledger:
        run_in_thread(Watcher(ledger, [Given([forged, forged])], Settings(score=False)).run)
        assert "k" not in {one.key for one in internal_events.read_request_keys(ledger)}
        assert isinstance(next(internal_events.read_request_keys(ledger)), RecordedRequest)


def test_keys_beyond_the_end_that_is_remembered_are_forgotten(tmp_path, monkeypatch):
    log = make(tmp_path / "log")
    events = [json.loads(line(i)) | {"source": "t"} for i in range(50)]
    with Ledger.open(log) as ledger:
        run_in_thread(Watcher(ledger, [Given(events)], Settings(score=False)).run)
        monkeypatch.setattr(internal_events, "REMEMBERED", 6)
        assert [k.key for k in internal_events.read_request_keys(ledger)] == ["both"]
