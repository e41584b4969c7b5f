"""Retention: payloads are removed, hashes stay, and the log records the person and the time."""

from __future__ import annotations

import json

import pytest
from tests.audit import naive
from tests.audit.conftest import BASE, cli, cli_json, event, events

from ridgeline.audit import Ledger
from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.ledger.proof import check_proof, prove
from ridgeline.audit.ledger.retention import read_history
from ridgeline.audit.ledger.verify import examine
from ridgeline.errors import InputError, Unverified


def look(log):
    return examine(log, Ledger.open(log).verifier)


def test_old_payloads_go_in_whole_bundles_and_the_rest_verifies(log):
    with Ledger.open(log) as ledger:
        leaf, path = ledger.leaf(7), ledger.prove_inclusion(7, 700)
        assert ledger.prune(BASE + 600, by="alice", reason="90 days") == 512
    assert not (log / "tile/entries/001").exists()
    assert (log / "tile/0/001").exists()
    report = look(log)
    assert report.ok
    assert report.entries == 700 - 512 + 1
    (pruned,) = report.pruned
    assert (pruned.start, pruned.end, pruned.by, pruned.reason, pruned.index) == (0, 512, "alice", "90 days", 700)
    opened = Ledger.open(log)
    assert opened.leaf(7) == leaf
    assert opened.prove_inclusion(7, 700) == path
    assert opened.entry(512) == event(512)
    with pytest.raises(Unverified, match="pruned, or lost"):
        opened.entry(7)


def test_nothing_goes_before_its_time(log):
    with Ledger.open(log) as ledger:
        assert ledger.prune(BASE + 255, by="alice") == 0, "entry 255 is not older"
        assert ledger.size == 700, "and nothing is said of it"
        assert ledger.prune(BASE + 256, by="alice") == 256
        with pytest.raises(InputError, match="who"):
            ledger.prune(BASE + 600, by="")


def test_a_young_entry_keeps_all_that_come_after_it(tmp_path):
    with Ledger.create(tmp_path / "log", origin="a") as ledger:
        late = events(0, 1024)
        late[300]["time"] = BASE + 10**9
        ledger.append(late)
        assert ledger.prune(BASE + 10**6, by="alice") == 256


def test_earlier_prunings_are_known_after_their_event_is_pruned(tmp_path):
    with Ledger.create(tmp_path / "log", origin="a") as ledger:
        ledger.append(events(0, 512))
        ledger.prune(BASE + 256, by="alice")
        ledger.append(events(512, 1500))
        ledger.prune(2**63 - 1, by="bob")
    report = look(tmp_path / "log")
    assert report.ok, report.findings
    assert [(p.by, p.start, p.end) for p in report.pruned] == [("alice", 0, 256), ("bob", 256, 1280)]


def test_a_bundle_that_is_gone_without_a_word_is_missing(log):
    with Ledger.open(log) as ledger:
        ledger.prune(BASE + 256, by="alice")
    (log / "tile/entries/001").unlink()
    assert [f.kind for f in look(log).findings] == ["missing"]


def test_a_user_cannot_append_an_event_that_excuses_a_gap(log):
    forged = event(1) | {"action": "ridgeline.ledger.prune", "attributes": {"from": 0, "to": 512}}
    with Ledger.open(log) as ledger, pytest.raises(InputError, match="the ledger's own"):
        ledger.append([forged])


def test_an_interrupted_pruning_is_finished_at_the_next_opening(log):
    paths = LedgerPaths(log)
    with Ledger.open(log) as ledger:
        saved = {p: p.read_bytes() for p in (log / "tile/entries").iterdir() if p.is_file()}
        ledger.prune(BASE + 600, by="alice")
    for path, data in saved.items():
        path.write_bytes(data)
    words = json.loads((paths.private / "pruned.json").read_text())
    (paths.private / "pruned.json").write_text(json.dumps({**words, "pending": True}))
    assert look(log).ok, "too much is no alarm"
    with Ledger.open(log) as ledger:
        ledger.append([event(0)])
    assert not (log / "tile/entries/000").exists()
    assert look(log).ok


def test_large_events_go_with_their_entries_unless_one_that_stays_needs_them(tmp_path):
    big = [event(i) | {"attributes": {"x": "y" * 70_000}} for i in (0, 1)]
    with Ledger.create(tmp_path / "log", origin="a") as ledger:
        ledger.append([*big, *events(2, 300), big[1]])
        blobs = {p.name for p in (tmp_path / "log/blob").iterdir()}
        assert len(blobs) == 2
        assert ledger.prune(BASE + 256, by="alice") == 256
        assert len(list((tmp_path / "log/blob").iterdir())) == 1
        assert ledger.entry(300) == big[1]
    assert look(tmp_path / "log").ok


def test_a_pruned_entry_can_still_be_proved_with_a_copy_of_it(log):
    with Ledger.open(log) as ledger:
        entry = ledger.raw(7)
        ledger.prune(BASE + 600, by="alice")
        proof = prove(ledger, 7)
    assert proof.extra is None
    assert check_proof(str(proof).encode(), ledger.verifier, "it", entry=entry).event == event(7)


def test_the_command_prunes_and_info_tells(log):
    assert cli_json("audit", "prune", log, "--older-than", "1d", "--by", "alice", "--reason", "policy")["pruned"] == 512
    assert cli_json("audit", "info", log)["pruned"][0]["by"] == "alice"
    assert read_history(LedgerPaths(log))[0]["reason"] == "policy"
    done = cli("audit", "verify", log)
    assert done.returncode == 0
    assert "pruned: entries 0 to 511 by alice" in done.stdout
    assert "alice" in cli("audit", "info", log).stdout
    _, size, _, _ = (*(log / "checkpoint").read_text().split("\n")[:3], None)
    assert int(size) == 701
    assert naive.bundle((log / "tile/entries/002.p/189").read_bytes())[-1].startswith(
        b'{"action":"ridgeline.ledger.prune"'
    )
    assert cli("audit", "prune", log, "--older-than", "soon").returncode == 2
