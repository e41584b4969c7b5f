"""Storage tiers: old payloads lie elsewhere, and everything that reads or removes them still does."""

from __future__ import annotations

import pytest
from tests.audit.conftest import BASE, events
from tests.audit.watch.watching import run_command

from ridgeline.audit import Ledger
from ridgeline.audit.ledger import back_up, move_payloads, prove, restore
from ridgeline.audit.ledger.verify import examine
from ridgeline.errors import InputError, Unverified


def test_moved_payloads_are_read_verified_proved_and_backed_up(log, tmp_path, capsys):
    assert move_payloads(log, tmp_path / "archive", BASE + 600) == 512
    assert move_payloads(log, tmp_path / "archive", BASE + 600) == 0, "moved before"
    moved = sorted(path for path in (tmp_path / "archive").rglob("*") if path.is_file())
    assert [path.parts[-3:] for path in moved] == [("tile", "entries", "000"), ("tile", "entries", "001")]
    with Ledger.open(log) as ledger:
        assert ledger.entry(5)["attributes"]["n"] == 5
        ledger.append(events(700, 800))
        assert ledger.verify().ok
        assert str(prove(ledger, 3))
        assert [e["attributes"]["n"] for e in ledger.entries()] == list(range(800))
    back_up(log, tmp_path / "b.tar.gz")
    assert restore(tmp_path / "b.tar.gz", tmp_path / "back").ok
    code, out, _ = run_command(capsys, "audit", "tier", log, "--older-than", BASE + 800, "--to", tmp_path / "archive")
    assert (code, "256 payloads moved" in out) == (0, True)


def test_pruning_removes_moved_payloads_too_and_follows_no_link(log, tmp_path):
    move_payloads(log, tmp_path / "archive", BASE + 300)
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    second = log / "tile/entries/001"
    payloads = second.read_bytes()
    second.unlink()
    second.symlink_to(precious)  # what somebody who can write the served folder might do
    with Ledger.open(log) as ledger, pytest.raises(Unverified, match="entries/001 is damaged"):
        ledger.prune(BASE + 600, by="me")
    assert precious.exists()
    second.unlink()
    second.write_bytes(payloads)
    with Ledger.open(log) as ledger:
        assert ledger.prune(BASE + 256, by="me") == 256
    assert not [path for path in (tmp_path / "archive").rglob("*") if path.is_file()]
    assert not (log / "tile/entries/000").is_symlink()


def test_a_place_that_is_gone_is_a_finding_and_a_place_in_the_log_is_refused(log, tmp_path):
    with pytest.raises(InputError, match="in the log itself"):
        move_payloads(log, log / "archive", BASE + 600)
    move_payloads(log, tmp_path / "archive", BASE + 300)
    (tmp_path / "archive").rename(tmp_path / "unmounted")
    with Ledger.open(log) as ledger:
        verifier = ledger.verifier
    report = examine(log, verifier)
    assert not report.ok
    assert report.findings[0].kind == "missing"
    (tmp_path / "unmounted").rename(tmp_path / "archive")
    assert examine(log, verifier).ok
