"""A source that fails is started again and loses nothing; every outage is an alert; a full disk is waited for."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from tests.audit.watch.watching import BASE, encode, entries, event, jsonl, make, outside_events, watch, write_events

from ridgeline.audit import Ledger
from ridgeline.audit.ledger.event import encode as encode_events
from ridgeline.audit.ledger.journal import Journal
from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.ledger.writer_socket import WriterClient
from ridgeline.audit.sources import Batch, Http
from ridgeline.audit.watch import format_metrics, internal_events
from ridgeline.audit.watch import watcher as watcher_module
from ridgeline.audit.watch.internal_events import read_alerts
from ridgeline.audit.watch.scorer import Settings
from ridgeline.audit.watch.watcher import Watcher
from ridgeline.errors import InputError, RidgelineError, StoreError


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.setattr(watcher_module, "_RETRY_S", 0.01)
    monkeypatch.setattr(watcher_module, "_UP_S", 0.05)
    return make(tmp_path / "log")


class Shaky:
    """A source of numbered events that fails `failures` times after two events, and continues at its position."""

    def __init__(self, failures=3, name="shaky", error=None, total=12):
        self.name, self.failures, self.total = name, failures, total
        self.error = error or RidgelineError("it broke.")

    def stop(self):
        self.total = 0

    async def batches(self, position):
        at = position["next"] if position else 0
        while at < self.total:
            if self.failures and at % 2:
                self.failures -= 1
                raise self.error
            at += 1
            yield Batch([event(at - 1)], {"next": at})


class Quiet(Shaky):
    """Runs until it is stopped."""

    async def batches(self, position):
        while self.total:
            await asyncio.sleep(0.01)
        return
        yield


def actions(log):
    return [e["action"] for e in entries(log)]


@pytest.mark.parametrize("error", [RidgelineError("it broke."), OSError(errno.EMFILE, "Too many open files")])
def test_a_failed_source_is_started_again_from_its_position(log, error):
    sentences, sent = [], []
    with Ledger.open(log) as ledger:
        source = Shaky(error=error)
        settings = Settings(score=False)
        watcher = Watcher(ledger, [source], settings, encode=encode, outlets=[sent.append], notify=sentences.append)
        thread = threading.Thread(target=watcher.run)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    assert [e["time"] for e in outside_events(log)] == [event(i)["time"] for i in range(12)]
    assert sentences[0] == f"shaky is down: {str(error).rstrip('.')}; the watcher tries again."
    assert "works again after" in sentences[-1]
    with Ledger.open(log) as ledger:
        recorded = read_alerts(ledger)
    assert (
        len(recorded) == len(sent) == actions(log).count(internal_events.DOWN) == actions(log).count(internal_events.UP)
    )
    assert recorded[0]["fired"] == ["outage"]
    assert recorded[0]["severity"] == "high"
    assert recorded[0]["event"]["subject"] == "shaky"
    assert (sent[0]["entry"], sent[0]["reason"]) == (recorded[0]["entry"], f"shaky is down: {error}")


def test_an_outage_is_reported_once_however_often_the_source_is_tried(log):
    sentences = []
    with Ledger.open(log) as ledger:
        down, quiet = Shaky(failures=10**6, name="down"), Quiet(name="quiet")
        watcher = Watcher(ledger, [down, quiet], Settings(score=False), notify=sentences.append)
        thread = threading.Thread(target=watcher.run)
        thread.start()
        until = time.monotonic() + 30
        while down.failures > 10**6 - 4 and time.monotonic() < until:
            time.sleep(0.01)
        assert watcher.status()["down"] == {"down": 1, "quiet": 0}
        assert 'ridgeline_audit_source_down{source="down"} 1' in format_metrics(watcher.status())
        watcher.stop()
        thread.join(60)
        assert not thread.is_alive()
    assert actions(log).count(internal_events.DOWN) == 1
    assert len(sentences) == 1


def test_a_note_that_cannot_be_printed_ends_no_watcher(log):
    def fail(sentence):
        raise OSError(errno.EMFILE, "Too many open files")  # loading a module of the printer

    with Ledger.open(log) as ledger:
        watcher = Watcher(ledger, [Shaky(failures=1)], Settings(score=False), notify=fail)
        thread = threading.Thread(target=watcher.run)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    assert len(outside_events(log)) == 12
    assert actions(log).count(internal_events.ALERT) == 1


def test_an_outage_whose_watcher_was_killed_before_its_alert_is_alerted_by_the_next(log):
    with Ledger.open(log) as ledger:
        down = [internal_events.make_event(internal_events.DOWN, name, {"what": "it broke."}) for name in "ab"]
        ledger.append(encode_events([event(0), *down], internal=True))
        alert = {"entry": 1, "leaf": ledger.leaf(1).hex(), "reason": "a is down", "kind": "outage", "score": None}
        ledger.append(
            encode_events([internal_events.make_event(internal_events.ALERT, "entry 1", alert)], internal=True)
        )
    for expected in ([2], []):
        sent = []
        watch(log, Shaky(failures=0, total=4), outlets=[sent.append], score=False)
        assert [(a["entry"], a["kind"], a["event"]["subject"]) for a in sent] == [(n, "outage", "b") for n in expected]
    with Ledger.open(log) as ledger:
        assert sorted(a["entry"] for a in read_alerts(ledger)) == [1, 2]


def test_the_only_source_that_cannot_start_is_an_error_at_once(log):
    with pytest.raises(RidgelineError, match="it broke"):
        watch(log, Given(), retry=True, score=False)
    assert entries(log) == []


class Given(Shaky):
    async def batches(self, position):
        raise RidgelineError("it broke.")
        yield


class FullDisk:
    """Makes appends to the journal fail while it is full."""

    def __init__(self, monkeypatch):
        self.full, self.refused, real = False, 0, Journal.append

        def append(journal, *words):
            if self.full:
                self.refused += 1
                raise StoreError("the disk is full.") from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(journal, *words)

        monkeypatch.setattr(Journal, "append", append)


@pytest.mark.parametrize("score", [True, False])
def test_a_full_disk_is_waited_for_and_every_line_is_recorded_once(log, tmp_path, monkeypatch, score):
    disk, sent, file = FullDisk(monkeypatch), [], tmp_path / "in"
    write_events(file, 0, 50)
    with Ledger.open(log) as ledger:
        settings = Settings(score=score, batch=64, wait_ms=5)
        watcher = Watcher(ledger, [jsonl(file, follow=True)], settings, encode=encode, outlets=[sent.append])
        thread = threading.Thread(target=watcher.run)
        thread.start()
        until = time.monotonic() + 60
        while sum(watcher.intake.taken.values()) < 50 and time.monotonic() < until:
            time.sleep(0.01)
        disk.full = True
        write_events(file, 50, 80)
        while disk.refused < 3 and time.monotonic() < until:
            time.sleep(0.01)
        assert [a["reason"] for a in sent if a["kind"] == "outage"] == ["the log is down: the disk is full."]
        disk.full = False
        while sum(watcher.intake.taken.values()) < 80 and time.monotonic() < until:
            time.sleep(0.01)
        watcher.stop()
        thread.join(60)
        assert not thread.is_alive()
    assert [e["time"] - BASE for e in outside_events(log)] == [i * 10**9 for i in range(80)]
    with Ledger.open(log) as ledger:
        (outage,) = [a for a in read_alerts(ledger) if a["kind"] == "outage"]
    assert outage["event"]["attributes"]["seconds"] >= 0


def test_a_client_gets_503_while_the_disk_is_full_and_is_served_afterwards(log, monkeypatch):
    disk, lines, token = FullDisk(monkeypatch), [], "a-token-of-sixteen-or-more"
    http = Http(":0", token, announce=lines.append)
    with Ledger.open(log) as ledger:
        watcher = Watcher(ledger, [http], Settings(score=False))
        thread = threading.Thread(target=watcher.run)
        thread.start()
        until = time.monotonic() + 60
        while not (lines and watcher.scorer.ready.is_set()) and time.monotonic() < until:
            time.sleep(0.01)
        url = lines[0].partition(" at ")[2]
        send = {"headers": {"authorization": f"Bearer {token}"}, "timeout": 60, "trust_env": False}
        disk.full = True
        refused = httpx.post(url, content=json.dumps(event(1)), **send)
        assert (refused.status_code, refused.json()["error"]) == (503, "the disk is full.")
        assert refused.headers["retry-after"] == "5"
        disk.full = False
        assert httpx.post(url, content=json.dumps(event(1)), **send).json()["count"] == 1
        watcher.stop()
        thread.join(60)
        assert not thread.is_alive()
    assert len(outside_events(log)) == 1


def test_the_writers_socket_survives_a_lack_of_descriptors(log, monkeypatch):
    real, failures = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")] * 2

    def accept(listener):
        if failures:
            raise failures.pop()
        return real(listener)

    monkeypatch.setattr(socket.socket, "accept", accept)
    with Ledger.open(log) as ledger:
        ledger.append([event(0)])
        client = WriterClient(LedgerPaths(log))
        assert client.append([event(1)])[0] == 1
        client.close()


def test_a_source_given_twice_is_still_refused(log):
    with pytest.raises(InputError, match="given twice"):
        watch(log, Shaky(), Shaky())


@pytest.mark.slow  # a process, and 400 connections
def test_half_open_connections_do_not_silence_the_log(tmp_path):
    log, lines = make(tmp_path / "log"), tmp_path / "a.log"
    lines.write_text("before\n")
    command = [sys.executable, "-m", "ridgeline", "audit", "watch", log, "--lines", lines, "--http", ":0", "--no-score"]
    stderr = tmp_path / "stderr"
    with stderr.open("w") as out:
        process = subprocess.Popen(
            [*map(str, command), "-q"],
            stderr=out,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)),
        )
    try:
        until = time.monotonic() + 60
        address = re.compile(r":(\d+)/events; the token is in (\S+)")
        while not (match := address.search(stderr.read_text())) and time.monotonic() < until:
            time.sleep(0.05)
        port, token = int(match[1]), Path(match[2]).read_text().strip()
        strangers = []
        for _ in range(400):
            stranger = socket.socket()
            stranger.settimeout(0.5)
            try:
                stranger.connect(("127.0.0.1", port))
                stranger.sendall(b"POST /events HTTP/1.1\r\nhost: x")
            except OSError:
                pass
            strangers.append(stranger)
        lines.rename(tmp_path / "a.log.1")
        lines.write_text("during\n")  # a new file: the watcher needs a descriptor for it
        headers = {"authorization": f"Bearer {token}"}
        answer = httpx.post(
            f"http://127.0.0.1:{port}/events", content=json.dumps(event(1)), headers=headers, timeout=60
        )
        assert answer.status_code == 200
        assert len(os.listdir(f"/proc/{process.pid}/fd")) < 200
        for stranger in strangers:
            stranger.close()
        with lines.open("a") as file:
            file.write("after\n")
        until = time.monotonic() + 60
        while len(outside_events(log)) < 4 and time.monotonic() < until:
            time.sleep(0.2)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, stderr.read_text()
    assert {"before", "during", "after"} <= {e["attributes"].get("message") for e in outside_events(log)}
    assert stderr.stat().st_size < 10_000
