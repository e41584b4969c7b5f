"""Every way to tamper with a log has its own finding, and none passes."""

from __future__ import annotations

import random
import shutil
import threading
import time

import pytest
from tests.audit import naive
from tests.audit.conftest import cli, cli_json, event, events, note_checkpoint

from ridgeline.audit import Ledger, new_signer
from ridgeline.audit.ledger.checkpoint import sign_checkpoint
from ridgeline.audit.ledger.layout import LedgerPaths, read_key
from ridgeline.audit.ledger.tiles import Edge, extend_edge
from ridgeline.audit.ledger.verify import examine
from ridgeline.audit.ledger.witness import Witness
from ridgeline.errors import StoreError, Unverified
from ridgeline.native import bundle_hashes


def look(log, **words):
    return examine(log, Ledger.open(log).verifier, **words)


def kinds(report) -> list[str]:
    return [f.kind for f in report.findings]


def rewrite(log, entries: list[bytes]) -> None:
    """Replace a log by another, signed with its own key: what only a witness can see."""
    body = naive.make_bundle(entries)
    growth = extend_edge(Edge(), body, bundle_hashes(body))
    shutil.rmtree(log / "tile")
    for name, data in {**growth.full, **growth.edge.partials()}.items():
        (log / name).parent.mkdir(parents=True, exist_ok=True)
        (log / name).write_bytes(data)
    signer = read_key(LedgerPaths(log).key)
    checkpoint = sign_checkpoint(signer.name, growth.edge.size, growth.edge.root(), signer)
    (log / "checkpoint").write_text(str(checkpoint))


def test_a_whole_log_verifies_and_says_what_was_read(log):
    report = look(log)
    assert report.ok
    assert report.entries == 700
    assert look(log, full=False).ok


def test_every_file_of_a_log_is_looked_at_bit_by_bit(log):
    rng = random.Random(0)
    files = [p for p in log.rglob("*") if p.is_file()]
    assert len(files) >= 8
    for path in files:
        data = path.read_bytes()
        for at in {0, len(data) - 1, *(rng.randrange(len(data)) for _ in range(4))}:
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
            assert not look(log).ok, f"{path} at byte {at}"
        path.write_bytes(data)
    assert look(log).ok


def test_an_altered_entry_is_named(log):
    path = log / "tile/entries/001"
    path.write_bytes(path.read_bytes().replace(b'"br300"', b'"br999"'))
    report = look(log)
    assert kinds(report) == ["altered"]
    assert "entry 300 was altered" in report.findings[0].sentence
    with pytest.raises(Unverified, match="entry 300"):
        Ledger.open(log).verify()


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda e: e[:10] + e[11:], "dropped", "entry 266 was dropped"),
        (lambda e: [*e[:10], e[11], e[10], *e[12:]], "reordered", "entries 266, 267"),
        (lambda e: [*e[:10], b"{}", *e[10:]], "inserted", "the first at 266"),
        (lambda e: [*e[:10], *e[11:], e[10]], "reordered", "266, 267"),
        (lambda e: e[:-1], "dropped", "entry 511 was dropped"),
    ],
)
def test_dropped_moved_and_added_entries_are_different_faults(log, change, kind, words):
    path = log / "tile/entries/001"
    path.write_bytes(naive.make_bundle(change(naive.bundle(path.read_bytes()))))
    report = look(log)
    assert kinds(report) == [kind]
    assert words in report.findings[0].sentence
    assert "tile/entries/001" in report.findings[0].sentence


@pytest.mark.parametrize("name", ["tile/0/000", "tile/0/002.p/188", "tile/1/000.p/2"])
def test_an_altered_tile_is_named_and_nothing_else(log, name):
    data = bytearray((log / name).read_bytes())
    data[40] ^= 4
    (log / name).write_bytes(data)
    report = look(log)
    assert kinds(report) == ["altered"]
    assert name in report.findings[0].sentence


def test_a_cut_tile_is_named(log):
    path = log / "tile/0/001"
    path.write_bytes(path.read_bytes()[:-32])
    assert "tile/0/001 has 8160 bytes instead of 8192" in look(log).findings[0].sentence


@pytest.mark.parametrize("name", ["tile/0/000", "tile/0/002.p/188", "tile/1/000.p/2", "tile/entries/001", "checkpoint"])
def test_a_missing_file_is_named(log, name):
    (log / name).unlink()
    report = look(log)
    assert "missing" in kinds(report)
    assert name in report.findings[0].sentence


def test_an_empty_or_garbled_bundle_is_damage_not_a_crash(log):
    for data in (b"", b"\xff", b"\xff\xff" + bytes(100)):
        (log / "tile/entries/000").write_bytes(data)
        assert not look(log).ok


def test_a_truncated_log_with_its_old_checkpoint_put_back_is_seen(log, tmp_path):
    shutil.copytree(log, tmp_path / "old")
    with Ledger.open(log) as ledger:
        ledger.append(events(700, 900))
    (log / "checkpoint").write_bytes((tmp_path / "old/checkpoint").read_bytes())
    assert "truncated" in kinds(look(log))
    shutil.rmtree(log)
    shutil.copytree(tmp_path / "old", log)  # the whole tree put back: only what is kept outside of it knows
    report = look(log)
    assert kinds(report) == ["truncated"]
    assert "has 900" in report.findings[0].sentence
    note_checkpoint(log)
    assert look(log).ok, "no other party remembers: that is what a witness is for"


def test_a_log_without_the_note_of_its_machine_is_no_new_log(log, tmp_path):
    shutil.copytree(log, tmp_path / "old")
    with Ledger.open(log) as ledger:
        ledger.append(events(700, 900))
    shutil.rmtree(log)
    shutil.copytree(tmp_path / "old", log)  # put back to 700 entries, and the note removed
    LedgerPaths(log).published.unlink()
    report = look(log)
    assert [(f.kind, "log.private/published is missing" in f.sentence) for f in report.findings] == [("missing", True)]
    with Ledger.open(log) as ledger, pytest.raises(StoreError, match=r"published is missing.*: cp "):
        ledger.append([event(1)])
    verifier = Ledger.open(log).verifier
    shutil.rmtree(LedgerPaths(log).private)
    assert examine(log, verifier).ok, "a copy has no private folder"


def test_a_new_log_has_the_note_before_anything_is_appended(tmp_path):
    ledger = Ledger.create(tmp_path / "log", origin="a", checkpoint_s=3600)
    verifier = ledger.verifier
    assert LedgerPaths(tmp_path / "log").published.exists()
    assert examine(tmp_path / "log", verifier).ok
    ledger.close()
    LedgerPaths(tmp_path / "log").checkpoint.unlink()  # killed between the two files
    with Ledger.open(tmp_path / "log") as again:
        again.append([event(0)])
    assert examine(tmp_path / "log", verifier).ok


@pytest.mark.parametrize("kept", [False, True])
def test_the_altered_entry_is_named_and_nothing_else(tmp_path, kept):
    """Partial bundles of earlier sizes may lie beside the newest; they are intact and must not be accused."""
    ledger = Ledger.create(tmp_path / "log", origin="a", checkpoint_s=3600)
    log, older = tmp_path / "log", {}
    for end in (10, 20, 30):
        ledger.append(events(ledger.size, end))
        ledger.checkpoint()
        older |= {p: p.read_bytes() for p in (log / "tile").rglob("*") if p.is_file()}
    ledger.close()
    for path, data in older.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert look(log).ok
    path = log / ("tile/entries/000.p/20" if kept else "tile/entries/000.p/30")
    path.write_bytes(path.read_bytes().replace(b"br7", b"BR7"))
    report = look(log)
    name = path.relative_to(log).as_posix()
    assert [(f.kind, f.sentence) for f in report.findings] == [
        ("altered", f"{name}: entry 7 was altered after it was signed.")
    ]


def test_an_altered_tile_says_nothing_about_witnesses(log, tmp_path):
    witness = Witness(tmp_path / "w", "witness.example/w1")
    witness.deliver(log, witness.cosign(log))
    path = log / "tile/0/001"
    path.write_bytes(bytes(32) + path.read_bytes()[32:])
    report = look(log, witnesses=[witness.verifier], require=1)
    assert kinds(report) == ["altered"]
    assert any("co-signatures were not checked" in note for note in report.notes)


def test_a_private_folder_that_others_can_write_is_refused(log):
    LedgerPaths(log).private.chmod(0o777)
    with (
        Ledger.open(log) as ledger,
        pytest.raises(StoreError, match=r"can be written by others \(mode 0777\); chmod 700"),
    ):
        ledger.append([event(1)])
    report = look(log)
    assert kinds(report) == ["exposed"]
    assert "can be written by others" in report.findings[0].sentence
    LedgerPaths(log).private.chmod(0o700)
    assert look(log).ok
    with Ledger.open(log) as ledger:
        ledger.append([event(1)])


def test_a_checkpoint_saved_elsewhere_shows_a_fork_and_a_cut_tail(log, tmp_path):
    saved = tmp_path / "kept"
    shutil.copy(log / "checkpoint", saved)
    with Ledger.open(log) as ledger:
        ledger.append(events(700, 710))
    assert look(log, checkpoints=[saved]).ok
    entries = naive.read_log(log)[3]
    rewrite(log, [*entries[:5], b"{}", *entries[6:]])
    note_checkpoint(log)
    assert look(log).ok, "it is signed, after all"
    assert kinds(look(log, checkpoints=[saved])) == ["fork"]
    rewrite(log, entries[:600])
    note_checkpoint(log)
    assert kinds(look(log, checkpoints=[saved])) == ["truncated"]


def test_entries_and_tiles_rewritten_without_the_key_do_not_fit_the_signature(log):
    signed = (log / "checkpoint").read_bytes()
    entries = naive.read_log(log)[3]
    rewrite(log, [*entries[:5], b"{}", *entries[6:]])
    (log / "checkpoint").write_bytes(signed)
    assert "rewritten" in kinds(look(log))


@pytest.mark.parametrize("size", [2**40, 2**63 - 1])
def test_verification_stops_early_if_the_signed_size_has_no_log(log, size):
    signer = read_key(LedgerPaths(log).key)
    (log / "checkpoint").write_text(str(sign_checkpoint(signer.name, size, b"\7" * 32, signer)))
    examined = examine(log, signer.verifier)
    assert sum("nothing is there" in f.sentence for f in examined.findings) == 1
    assert not examine(log, signer.verifier, full=False).ok


def test_a_wrong_key_never_passes(log):
    report = examine(log, new_signer("example.test/log").verifier)
    assert kinds(report) == ["wrong key"]


def test_an_unsigned_checkpoint_is_a_fault(log):
    text = (log / "checkpoint").read_text()
    (log / "checkpoint").write_text(text[: text.index("— ")])
    assert kinds(look(log)) == ["unsigned"]


def test_a_partial_tile_of_an_earlier_size_is_checked_too(log):
    with Ledger.open(log) as ledger:
        ledger.append([event(700)])
    early = log / "tile/0/002.p/188"
    assert early.exists()
    data = bytearray(early.read_bytes())
    data[0] ^= 1
    early.write_bytes(data)
    assert "tile/0/002.p/188 was altered" in look(log).findings[0].sentence


def test_a_large_event_beside_the_log_is_checked(tmp_path):
    with Ledger.create(tmp_path / "log", origin="a") as ledger:
        ledger.append([event(0) | {"attributes": {"x": "y" * 70_000}}])
    (blob,) = (tmp_path / "log/blob").iterdir()
    data = blob.read_bytes()
    blob.write_bytes(data[:-5] + b"#####")
    assert kinds(look(tmp_path / "log")) == ["altered"]
    with pytest.raises(Unverified, match="altered"):
        Ledger.open(tmp_path / "log").entry(0)
    blob.unlink()
    assert kinds(look(tmp_path / "log")) == ["missing"]


def test_an_unknown_file_is_a_note_and_no_fault(log):
    (log / "tile/0/README").touch()
    report = look(log)
    assert report.ok
    assert "tile/0/README" in report.notes[0]


@pytest.mark.slow
def test_verifying_while_it_is_written_gives_no_false_alarm(tmp_path):
    stop = threading.Event()
    with Ledger.create(tmp_path / "log", origin="a", checkpoint_s=0.005) as ledger:

        def write() -> None:
            count = 0
            while not stop.is_set():
                ledger.append(events(count, count + 70))
                count += 70

        thread = threading.Thread(target=write)
        thread.start()
        try:
            sizes, until = [], time.monotonic() + 60
            while len(sizes) < 40 or (sizes[-1] == sizes[0] and time.monotonic() < until):  # a busy machine signs late
                report = examine(tmp_path / "log", ledger.verifier)
                assert report.ok, report.findings
                sizes.append(report.checkpoint.size)
        finally:
            stop.set()
            thread.join()
        assert sizes[-1] > sizes[0]


def test_the_command_exits_with_1_and_lists_faults_in_json(log):
    assert cli("audit", "verify", log).returncode == 0
    path = log / "tile/entries/000"
    path.write_bytes(path.read_bytes().replace(b'"br5"', b'"br6"'))
    done = cli("audit", "verify", log)
    assert done.returncode == 1
    assert "altered: tile/entries/000: entry 5 was altered" in done.stdout
    examined = cli_json("audit", "verify", log)
    assert not examined["ok"]
    assert examined["findings"][0]["kind"] == "altered"


def test_the_command_refuses_what_is_no_key_or_no_log_with_exit_2(log, tmp_path):
    assert cli("audit", "verify", tmp_path / "nothing").returncode == 2
    assert cli("audit", "verify", log, "--key", "abc").returncode == 2
    assert cli("audit", "verify", log, "--checkpoint", tmp_path / "nothing").returncode == 2
    assert cli("audit", "verify", log, "--key", str(new_signer("example.test/log").verifier)).returncode == 1


def test_an_entry_is_given_out_only_if_it_is_the_signed_one(log):
    path, tile = log / "tile/entries/001", log / "tile/0/001"
    path.write_bytes(path.read_bytes().replace(b'"br300"', b'"br999"'))
    with pytest.raises(Unverified, match="entry 300 was altered"):
        Ledger.open(log).entry(300)
    assert Ledger.open(log).entry(5) == event(5)
    tile.write_bytes(bundle_hashes(path.read_bytes()))  # the tile made to fit: the root still does not
    with pytest.raises(Unverified, match="does not lead to the signed root"):
        Ledger.open(log).entry(301)
    assert Ledger.open(log).entry(600) == event(600), "another tile is still proved by the one above"
