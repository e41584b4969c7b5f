"""The backlog yields every entry once, in order."""

from __future__ import annotations

import threading

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.audit.watch.watching import event

from ridgeline.audit import Ledger
from ridgeline.audit.ledger.merkle import leaf_hash
from ridgeline.audit.watch.backlog import Backlog


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["now", "late", "never"])), min_size=1, max_size=12),
    st.integers(1, 20),
    st.integers(0, 40),
)
def test_the_backlog_yields_every_entry_once_in_order(tmp_path_factory, appends, size, capacity):
    with Ledger.create(tmp_path_factory.mktemp("b") / "log", origin="a") as ledger:
        backlog = Backlog(ledger, 0, lambda: ledger.size, capacity=capacity)
        late, total, taken = [], 0, []
        for count, how in appends:
            events = [event(total + k) for k in range(count)]
            receipts = ledger.append(events)
            total += count
            if how == "now":
                backlog.add(receipts.first, events, receipts.hashes)
            elif how == "late":
                late.append((receipts.first, events, receipts.hashes))
            if len(late) == 2:
                taken.append(backlog.take(size, 0.0))
                backlog.add(*late.pop(0))
        backlog.close()
        while (piece := backlog.take(size, 0.0)) is not None:
            taken.append(piece)
        expected = [leaf_hash(raw) for _, raw in ledger.raw_entries()]
    assert all(len(piece.events) <= size for piece in taken)
    assert [piece.first for piece in taken] == [sum(len(p.events) for p in taken[:k]) for k in range(len(taken))]
    assert b"".join(piece.leaves for piece in taken) == b"".join(expected)
    assert [e["time"] for piece in taken for e in piece.events] == [event(i)["time"] for i in range(total)]


def test_what_is_there_already_goes_together_up_to_the_most(tmp_path):
    with Ledger.create(tmp_path / "log", origin="a") as ledger:
        backlog = Backlog(ledger, 0, lambda: ledger.size)
        events = [event(k) for k in range(50)]
        receipts = ledger.append(events)
        backlog.add(receipts.first, events, receipts.hashes)
        sizes = [len(backlog.take(*request).events) for request in ((4, 0.0), (4, 0.0, None, 20), (4, 0.0, 30, 20))]
        assert sizes == [4, 20, 6]  # the last one only up to entry 30
        assert len(backlog.take(4, 0.0, None, 99).events) == 20


def test_what_was_pruned_is_passed_over(tmp_path):
    with Ledger.create(tmp_path / "log", origin="a") as ledger:
        ledger.append([event(i) for i in range(600)])
        ledger.prune(event(520)["time"], by="ann")
        backlog = Backlog(ledger, 0, lambda: ledger.size)
        backlog.close()
        first = backlog.take(64, 0.0)
        assert (first.first, first.events[0]["time"]) == (512, event(512)["time"])


def test_a_waiting_taker_is_woken_by_an_append_and_by_the_end(tmp_path):
    with Ledger.create(tmp_path / "log", origin="a") as ledger:
        backlog, pieces = Backlog(ledger, 0, lambda: ledger.size), []
        thread = threading.Thread(target=lambda: pieces.extend([backlog.take(10, 0.01), backlog.take(10, 0.01)]))
        thread.start()
        receipts = ledger.append([event(0)])
        backlog.add(0, [event(0)], receipts.hashes)
        backlog.close()
        thread.join(30)
    assert [None if p is None else len(p.events) for p in pieces] == [1, None]
