"""A source's position and the entries before it are one commit: after a crash both are there, or neither."""

from __future__ import annotations

import json
import os
import threading

import pytest
from tests.audit.conftest import event, events

from ridgeline.audit import Ledger
from ridgeline.audit.ledger import writer
from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.errors import StoreError


def killed(log, work):
    """Run `work(ledger)` in a child that ends without closing the log."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ledger = Ledger.open(log, checkpoint_s=3600)
            work(ledger)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def position(log, source="s"):
    with Ledger.open(log) as ledger:
        return ledger.get_position(source)


def test_a_position_survives_a_killed_writer_and_a_clean_close(log):
    assert position(log) is None
    killed(log, lambda ledger: [ledger.append(events(700 + k, 701 + k), {"s": {"at": k}}) for k in range(3)])
    with Ledger.open(log) as ledger:
        assert (ledger.size, ledger.get_position("s")) == (703, {"at": 2})
        ledger.append([event(1)], {"other": {"at": 9}})
    assert (position(log), position(log, "other")) == ({"at": 2}, {"at": 9})


def test_a_position_without_events_is_kept_too(log):
    killed(log, lambda ledger: ledger.append([], {"s": {"at": 5}}))
    assert position(log) == {"at": 5}
    with Ledger.open(log) as ledger:
        assert ledger.size == 700
        ledger.append([], {"s": {"at": 6}})
    assert position(log) == {"at": 6}


@pytest.mark.parametrize("where", ["positions", "entries"])
def test_a_record_that_is_cut_short_has_neither_its_entries_nor_its_position(log, where):
    def work(ledger):
        ledger.append(events(700, 710), {"s": {"at": 1}})
        ledger.append(events(710, 720), {"s": {"at": 2, "mark": "second"}})

    killed(log, work)
    path = next(p for p in (LedgerPaths(log).journal(k) for k in range(2)) if b"second" in p.read_bytes())
    data = path.read_bytes()
    at = data.index(b"second" if where == "positions" else b'"br719"')
    path.write_bytes(data[:at] + b"\0" * 6 + data[at + 6 :])
    with Ledger.open(log) as ledger:
        assert (ledger.size, ledger.get_position("s")) == (710, {"at": 1})


def test_positions_survive_the_turns_of_the_journals_and_many_threads(log, monkeypatch):
    monkeypatch.setattr(writer, "_TURN", 4096)

    def append(ledger, source):
        for k in range(30):
            ledger.append(events(0, 7), {source: {"at": k}})

    def work(ledger):
        threads = [threading.Thread(target=append, args=(ledger, f"s{k}")) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ledger.checkpoint()

    killed(log, work)
    assert json.loads(LedgerPaths(log).positions.read_text()), "the journals took turns"
    assert [position(log, f"s{k}") for k in range(4)] == [{"at": 29}] * 4


def test_a_damaged_file_of_positions_is_an_error_not_a_new_beginning(log):
    with Ledger.open(log) as ledger:
        ledger.append([event(1)], {"s": {"at": 1}})
    LedgerPaths(log).positions.write_text("{")
    with pytest.raises(StoreError, match=r"positions\.json is damaged; restore it, or remove it"):
        position(log)


def test_positions_of_earlier_versions_are_read(log):
    folder = LedgerPaths(log).private / "positions"
    folder.mkdir()
    for name, count in (("done", 0), ("open", 3)):
        words = {"source": name, "before": {"at": 1}, "after": {"at": 2}, "count": count}
        (folder / f"{name}.json").write_text(json.dumps(words))
    assert (position(log, "done"), position(log, "open")) == ({"at": 2}, {"at": 1})
