"""`audit append` says what is recorded, also if signing fails; under a key the same input is recorded once."""

from __future__ import annotations

import errno
import json
import os
import threading
from contextlib import suppress

import pytest
from tests.audit.conftest import event, events
from tests.audit.watch.watching import run_command

from ridgeline.audit import Ledger
from ridgeline.audit.ledger.tile_store import TileStore
from ridgeline.audit.watch import KeyedAppend
from ridgeline.cli.audit_ledger import read_lines
from ridgeline.errors import InputError, StoreError


@pytest.fixture
def append(log, tmp_path, monkeypatch, capsys):
    """Run `audit append` with these events as its stdin: exit code, answer, stderr."""

    def run(items, *words):
        path = tmp_path / "stdin"
        path.write_text("".join((i if isinstance(i, str) else json.dumps(i)) + "\n" for i in items))
        with path.open("rb") as file:
            monkeypatch.setattr("sys.stdin", file)
            code, out, err = run_command(capsys, "audit", "append", log, "--json", *words)
        return code, json.loads(out) if out else None, err

    return run


@pytest.fixture
def full_tiles(monkeypatch):
    """Tiles cannot be written: a full disk, or a read-only folder."""

    def refuse(self, files):
        raise StoreError("the disk is full, so … was not written; free some space and run it again.") from OSError(
            errno.ENOSPC, os.strerror(errno.ENOSPC), "/log/tile"
        )

    def switch(on):
        if on:
            monkeypatch.setattr(TileStore, "put", refuse)
        else:
            monkeypatch.undo()

    return switch


def test_events_that_are_recorded_are_not_reported_as_not_written(log, append, full_tiles):
    full_tiles(True)
    code, answer, err = append(events(700, 720))
    assert (code, answer["appended"], answer["first"], answer["signed"]) == (1, 20, 700, False)
    assert "20 events are recorded from entry 700 on" in err
    assert "No space left on device: /log/tile" in err
    assert "Do not append them again" in err
    assert "run it again" not in err
    full_tiles(False)
    with Ledger.open(log) as ledger:
        assert list(ledger.entries(700)) == events(700, 720)


def test_a_bad_line_is_the_error_even_if_closing_fails_too(append, full_tiles):
    full_tiles(True)
    code, _, err = append([event(1), "oops"])
    assert (code, "line 2 of stdin" in err, "run it again" in err) == (2, True, False)


def test_the_same_input_under_a_key_is_recorded_once(log, append, monkeypatch):
    monkeypatch.setattr(KeyedAppend, "PART", 8)
    items = events(0, 20)
    assert append(items, "--key", "k1")[1] | {"log": 0} == {
        "log": 0, "appended": 20, "first": 700, "size": 723, "repeated": 0, "signed": True,
    }  # fmt: skip
    code, answer, _ = append(items, "--key", "k1")
    assert (code, answer["appended"], answer["repeated"], answer["first"]) == (0, 0, 20, 700)
    assert append(items, "--key", "k2")[1]["appended"] == 20
    code, _, err = append([event(5)], "--key", "k1")
    assert (code, "the key 'k1' was used with other events" in err) == (2, True)
    code, _, err = append(items, "--key", "two words")
    assert (code, "visible ASCII" in err) == (2, True)
    with Ledger.open(log) as ledger:
        assert sum(e["source"] == "test" for e in ledger.entries(700)) == 40


def test_a_run_that_ended_half_way_is_finished_under_its_key(log, append, monkeypatch):
    monkeypatch.setattr(KeyedAppend, "PART", 10)
    items = events(0, 30)
    code, _, err = append([*items[:20], "oops"], "--key", "k")
    assert (code, "20 events before it are recorded; run it again with --key k." in err) == (2, True)
    code, answer, _ = append(items, "--key", "k")
    assert (code, answer["repeated"], answer["appended"]) == (0, 20, 10)
    with Ledger.open(log) as ledger:
        assert [e for e in ledger.entries(700) if e["source"] == "test"] == items


def test_without_a_key_it_says_what_a_second_run_must_leave_out(log, append, monkeypatch):
    monkeypatch.setattr("ridgeline.cli.audit_ledger._CHUNK", 1 << 7)
    code, _, err = append([*events(0, 20), "oops"])
    with Ledger.open(log) as ledger:
        recorded = ledger.size - 700
    assert code == 2
    assert 0 < recorded <= 20
    assert f"{recorded} events before it are recorded; leave them out when you run it again." in err


def test_a_log_that_cannot_be_signed_takes_no_keyed_events(log, append, full_tiles):
    full_tiles(True)
    ledger = Ledger.open(log, checkpoint_s=3600)
    ledger.append([event(1)])
    code, _, err = append(events(0, 5), "--key", "k")
    assert (code, "the disk is full" in err, ledger.size) == (2, True, 701)
    full_tiles(False)
    ledger.close()


def test_a_line_of_30_mb_is_read_in_linear_time_and_a_longer_one_is_refused():
    read_end, write_end = os.pipe()

    def write(size):
        with os.fdopen(write_end, "wb") as file, suppress(BrokenPipeError):
            for _ in range(size >> 16):
                file.write(b"x" * (1 << 16))
            file.write(b"\nlast")

    thread = threading.Thread(target=write, args=(30 << 20,))
    thread.start()
    first, second = [line for lines in read_lines(fd=read_end) for line in lines]
    thread.join()
    os.close(read_end)
    assert (len(first), second) == (30 << 20, b"last")


def test_a_line_without_end_is_refused(monkeypatch):
    monkeypatch.setattr("ridgeline.cli.audit_ledger._LONGEST", 1000)
    with open("/dev/zero", "rb") as zero, pytest.raises(InputError, match="line 1 of stdin has more than 1,000 bytes"):
        next(read_lines(fd=zero.fileno()))


@pytest.mark.parametrize("part", [None, 1, 3, 100])
def test_lines_are_the_same_however_they_arrive(tmp_path, monkeypatch, part):
    lines = [b"a", b"", b"bcd", b"e" * 50, b"f", b"g"]
    (tmp_path / "in").write_bytes(b"\n".join(lines))
    for chunk in (1, 2, 7, 1000):
        monkeypatch.setattr("ridgeline.cli.audit_ledger._CHUNK", chunk)
        with (tmp_path / "in").open("rb") as file:
            parts = list(read_lines(part, fd=file.fileno()))
        assert [line for some in parts for line in some] == lines
        assert part is None or all(len(some) == part for some in parts[:-1])
