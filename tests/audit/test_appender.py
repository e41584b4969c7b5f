"""The writer of a log may change at any time: every event is appended once.

python -m pytest tests/audit/test_appender.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from tests.audit.conftest import event

from ridgeline.audit import Ledger
from ridgeline.audit.ledger import writer_socket
from ridgeline.audit.ledger.appender import Appender
from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.errors import Locked, StoreError
from ridgeline.store import lock

ONE = {"source": "x", "action": "a.b"}


def subjects(log) -> Counter[str]:
    ledger = Ledger.open(log)
    ledger.verify()
    return Counter(e["subject"] for e in ledger.entries(700))


def test_changing_writers_append_every_event_once(log):
    failed: list[Exception] = []

    def writer(writer_number: int) -> None:
        try:
            for k in range(6):
                with Appender(log, timeout_s=60) as into:
                    into.append([{**ONE, "subject": f"{writer_number}.{k}.{n}"} for n in range(3)])
                    assert into.finish() > 700
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=writer, args=(writer_number,)) for writer_number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert subjects(log) == Counter(
        f"{writer_number}.{k}.{n}" for writer_number in range(6) for k in range(6) for n in range(3)
    )


@pytest.mark.parametrize("count", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_commands_at_the_same_time_all_succeed(log, count):
    words = [sys.executable, "-m", "ridgeline", "audit", "append", str(log), "-q"]
    running = [subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(count)]
    for number, process in enumerate(running):
        process.stdin.write(json.dumps({**ONE, "subject": str(number)}) + "\n")
    messages = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0] * count, messages
    assert subjects(log) == Counter(map(str, range(count)))


def test_an_appender_outlives_the_writer_it_went_through(log):
    with Ledger.open(log) as ledger:
        ledger.append([event(0)])
        into = Appender(log)
        assert into.append([ONE])[0] == 701
    assert into.append([ONE]) == (702, 703), "it is the writer now"
    assert into.finish() == 703
    with pytest.raises(StoreError, match="locked by process"):
        Ledger.open(log).append([ONE])
    into.close()
    into.close()
    assert Ledger.open(log).size == 703


def test_a_writer_without_a_socket_is_waited_for_and_then_named(log):
    with lock(LedgerPaths(log).lock):
        start_s = time.monotonic()
        with pytest.raises(StoreError, match="does not answer"):
            Appender(log, timeout_s=0.3)
        assert time.monotonic() - start_s >= 0.3
    with Appender(log, timeout_s=0.3) as into:
        assert into.append([ONE])[0] == 700


def test_a_lock_that_is_taken_has_an_error_of_its_own(tmp_path):
    with lock(tmp_path / "lock"), pytest.raises(Locked), lock(tmp_path / "lock"):
        pass


def test_a_writer_that_closes_while_a_client_connects_frees_the_log(log, monkeypatch):
    start, connected, threads = threading.Thread.start, threading.Event(), list[threading.Thread]()

    class NewestFirst(set):
        """The order in which `close` joins the threads: first the one that is being started."""

        def __sub__(self, others):
            return sorted(super().__sub__(others), key=threads.index, reverse=True)

    def start_late(thread):
        if thread.name == "ledger-socket":
            threads.append(thread)
            if len(threads) == 2:
                connected.set()
                time.sleep(0.2)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_late)
    monkeypatch.setattr(writer_socket, "set", NewestFirst, raising=False)
    with Ledger.open(log) as ledger:
        ledger.append([event(0)])
        client = threading.Thread(target=lambda: Appender(log, timeout_s=60).close())
        client.start()
        assert connected.wait(60)
    client.join()
    with Ledger.open(log) as ledger:
        ledger.append([event(1)])
