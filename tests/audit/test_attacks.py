"""An attacker can write the served folder but does not have the key: what each part must refuse."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest
from tests.audit import naive
from tests.audit.conftest import BASE, cli, event, events, note_checkpoint
from tests.audit.test_verify import kinds, look, rewrite

from ridgeline.audit import Ledger, Signer
from ridgeline.audit.ledger import verify as verifying
from ridgeline.audit.ledger.checkpoint import COSIGNATURE, Note, merge_signatures, sign_checkpoint
from ridgeline.audit.ledger.event import decode, encode
from ridgeline.audit.ledger.export import Selection
from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.ledger.proof import check_proof, parse_proof, prove
from ridgeline.audit.ledger.verify import examine
from ridgeline.audit.ledger.witness import Witness
from ridgeline.audit.ledger.writer_socket import WriterClient
from ridgeline.errors import InputError, StoreError, Unverified
from ridgeline.native import bundle_hashes


def put_back(log: Path, old: Path) -> None:
    shutil.rmtree(log)
    shutil.copytree(old, log)


def test_an_old_tree_put_back_is_not_signed_on_top_of(log, tmp_path):
    shutil.copytree(log, tmp_path / "old")
    with Ledger.open(log) as ledger:
        ledger.append(events(700, 900))
    put_back(log, tmp_path / "old")
    with Ledger.open(log) as ledger, pytest.raises(StoreError, match=r"signs 700 entries, .* had signed 900"):
        ledger.append([event(1)])
    assert kinds(look(log)) == ["truncated"], "and what this machine noted still says so"


def test_tiles_are_not_signed_because_a_journal_stands_behind_them(log, tmp_path):
    """A killed writer's journal begins at 900; its checkpoint is put back to 700: nothing signed covers the tiles."""
    shutil.copytree(log, tmp_path / "old")
    with Ledger.open(log) as ledger:
        ledger.append(events(700, 900))
    ledger = Ledger.open(log)
    ledger.append([event(900)])
    journals = {k: LedgerPaths(log).journal(k).read_bytes() for k in range(2)}
    ledger.close()
    entries = naive.read_log(log)[3]
    rewrite(log, [*entries[:899], b"{}"])
    shutil.copy(tmp_path / "old/checkpoint", log / "checkpoint")
    note_checkpoint(log)
    for k, data in journals.items():
        LedgerPaths(log).journal(k).write_bytes(data)
    with pytest.raises(StoreError, match="an old one put back"):
        Ledger.open(log)


def test_a_log_that_forks_from_what_its_machine_noted_is_not_continued(log):
    """The signing key elsewhere wrote another history of the same size: this machine does not go on from there."""
    entries = naive.read_log(log)[3]
    rewrite(log, [*entries[:5], b"{}", *entries[6:]])
    with Ledger.open(log) as ledger, pytest.raises(StoreError, match="do not fit"):
        ledger.append([event(1)])
    rewrite(log, [*entries[:5], b"{}", *entries[6:], b"{}"])
    with (
        Ledger.open(log) as ledger,
        pytest.raises(StoreError, match="are not those of the log this machine has written"),
    ):
        ledger.append([event(1)])


@pytest.mark.parametrize("change", [lambda e: e[:-1], lambda e: [*e, b"{}"], lambda e: [b"{}", *e[1:]], lambda _: []])
def test_a_writer_does_not_continue_a_bundle_that_was_altered(log, change):
    path = log / "tile/entries/002.p/188"
    path.write_bytes(naive.make_bundle(change(naive.bundle(path.read_bytes()))))
    before = (log / "checkpoint").read_bytes()
    with Ledger.open(log) as ledger, pytest.raises(StoreError, match=r"tile/entries/002.p/188.*restore it"):
        ledger.append([event(1)])
    assert (log / "checkpoint").read_bytes() == before


def test_a_fork_does_not_pass_a_quick_look_with_old_tiles_left_in_place(log, tmp_path):
    witness = Witness(tmp_path / "w", "witness.example/w1")
    entries = naive.read_log(log)[3]
    rewrite(log, entries[:200])
    note_checkpoint(log)
    witness.deliver(log, witness.cosign(log))
    saved = tmp_path / "kept"
    shutil.copy(log / "checkpoint", saved)
    old, seen = (log / "tile/0/000.p/200").read_bytes(), (log / "witness").rename(tmp_path / "seen")
    rewrite(log, [*entries[:5], b"{}", *entries[6:]])
    note_checkpoint(log)
    (log / "tile/0/000").write_bytes(old + (log / "tile/0/000").read_bytes()[len(old) :])
    seen.rename(log / "witness")
    assert kinds(look(log, full=False, checkpoints=[saved])) == ["fork"]
    assert kinds(look(log, full=False, witnesses=[witness.verifier], require=1)) == ["fork"]


def test_a_quick_look_misses_the_newest_entries_if_they_are_gone(log):
    (log / "tile/entries/002.p/188").unlink()
    assert kinds(look(log, full=False)) == ["missing"]


def test_one_witness_is_one_witness_however_often_it_is_given(log, tmp_path):
    seed = bytes(range(32))
    names = [Signer(name, seed, COSIGNATURE) for name in ("w.example/1", "w.example/2")]
    ledger = Ledger.open(log)
    now = ledger.checkpoint()
    (log / "checkpoint").write_text(str(merge_signatures(now.note, [w.cosign(now.text(), 1) for w in names])))
    given = [w.verifier for w in (*names, names[0])]
    data = str(prove(ledger, 5)).encode()
    assert kinds(look(log, witnesses=given, require=2)) == ["unwitnessed"]
    with pytest.raises(Unverified, match="co-signed by 1"):
        check_proof(data, ledger.verifier, "it", witnesses=given, require=2)
    assert look(log, witnesses=given, require=1).ok
    with pytest.raises(InputError, match="not of a witness"):
        check_proof(data, ledger.verifier, "it", witnesses=[ledger.verifier], require=1)


def test_an_altered_time_does_not_let_payloads_go_early(log):
    path = log / "tile/entries/000"
    original = path.read_bytes()
    path.write_bytes(original.replace(b'"time":"17', b'"time":"01'))
    with Ledger.open(log) as ledger, pytest.raises(Unverified, match="altered"):
        ledger.prune(BASE - 1, by="alice")
    assert path.exists()


def test_an_export_does_not_call_pruned_what_was_only_deleted(log, tmp_path):
    (log / "tile/entries/001").unlink()
    with pytest.raises(Unverified, match="entries from 256 on are missing"):
        list(Selection(Ledger.open(log)))
    done = cli("audit", "export", log, "--json", "-o", tmp_path / "out")
    assert done.returncode == 1
    assert not (tmp_path / "out").exists()


def test_an_export_that_a_prune_overtakes_is_no_alarm(log):
    with Ledger.open(log) as ledger:
        rows = iter(Selection(Ledger.open(log)))
        next(rows)
        ledger.prune(BASE + 600, by="alice")
        assert [row["index"] for row in rows] == [*range(1, 256), *range(512, 700)]


def test_a_leaf_hash_and_a_root_are_those_that_were_signed(log):
    leaf = Ledger.open(log).leaf(300)
    assert leaf == bundle_hashes((log / "tile/entries/001").read_bytes())[44 * 32 : 45 * 32]
    path = log / "tile/0/001"
    data = bytearray(path.read_bytes())
    data[44 * 32] ^= 1
    path.write_bytes(data)
    with pytest.raises(Unverified, match="do not lead to the signed root"):
        Ledger.open(log).leaf(300)
    with pytest.raises(Unverified):
        Ledger.open(log).root(301)
    entries = naive.bundle((log / "tile/entries/000").read_bytes())
    assert Ledger.open(log).root(256) == naive.root([naive.leaf(e) for e in entries])


def test_a_cut_bundle_of_an_earlier_size_is_found(log):
    with Ledger.open(log) as ledger:
        ledger.append([event(700)])
    path = log / "tile/entries/002.p/188"
    path.write_bytes(path.read_bytes()[:-100])
    assert "tile/entries/002.p/188 was altered" in look(log).findings[0].sentence
    path.write_bytes(b"")
    assert kinds(look(log)) == ["altered"]


@pytest.mark.parametrize("name", ["tile/0/000", "tile/entries/001", "checkpoint", "witness/x"])
@pytest.mark.parametrize("put", [os.mkfifo, lambda p: p.symlink_to("/dev/zero"), Path.mkdir])
def test_what_is_no_plain_file_neither_hangs_nor_fills_memory(log, name, put):
    verifier = Ledger.open(log).verifier
    (log / "witness").mkdir()
    (log / name).unlink(missing_ok=True)
    put(log / name)
    report = examine(log, verifier)
    assert kinds(report)[:1] == ([] if name == "witness/x" else ["missing"])
    if name == "witness/x":
        assert prove(Ledger.open(log), 5).index == 5


def test_signatures_by_the_hundred_do_not_spoil_a_proof(log):
    ledger = Ledger.open(log)
    now = ledger.checkpoint()
    (log / "witness").mkdir()
    many = [type(now.note.signatures[0])(f"w{k}", bytes(4), bytes(72)) for k in range(99)]
    for k, part in enumerate((many[:50], many[50:])):
        (log / f"witness/{k}").write_text(str(Note(now.text(), (*part, *now.note.signatures))))
    (log / "witness/2").write_text(str(Note(now.text(), (type(many[0])("one.more", bytes(4), bytes(72)),))))
    parse_proof(str(prove(ledger, 5)).encode(), "it")


def test_a_log_that_moves_on_all_the_while_gives_no_false_alarm(log, tmp_path, monkeypatch):
    """Its own note and a witness's are newer at the end of each look than the checkpoint was at its beginning."""
    witness = Witness(tmp_path / "w", "witness.example/w1")
    witness.deliver(log, witness.cosign(log))
    walk = verifying.check_orphans

    def slow(*words) -> None:
        walk(*words)
        with Ledger.open(log) as ledger:
            ledger.append(events(0, 10))
        witness.deliver(log, witness.cosign(log))

    monkeypatch.setattr(verifying, "check_orphans", slow)
    report = look(log, witnesses=[witness.verifier], require=1)
    assert report.ok, report.findings


def test_a_copy_that_is_not_yet_signed_to_its_end_is_no_false_alarm(log, tmp_path):
    verifier = Ledger.open(log).verifier
    shutil.copytree(log, tmp_path / "copy")
    with Ledger.open(log) as ledger:
        ledger.append(events(700, 900))
    shutil.copytree(log / "tile", tmp_path / "copy/tile", dirs_exist_ok=True)
    report = examine(tmp_path / "copy", verifier)
    assert report.ok
    assert "beyond the 700 entries" in report.notes[0]


def test_what_is_taken_can_be_read_however_deep_it_is():
    deepest: dict = {}
    for _ in range(63):
        deepest = {"a": deepest}
    entry = encode([event(1) | {"attributes": deepest}]).entries[2:]
    assert decode(entry)["attributes"] == deepest
    with pytest.raises(InputError, match="nested"):
        encode([event(1) | {"attributes": {"a": deepest}}])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"time":"17', b'"time":"07'),
        (b'"time":"1700000000000000001"', b'"time":"9300000000000000000"'),
        (b'"action":"network.', b'"action":".'),
        (b'"source":"test"', b'"source":""'),
        (b'"source":"test"', b'"source":"test","stored":{"sha256":"' + b"a" * 64 + b'"}'),
        (b'"source":"test"', b'"source":"test","stored":{"bytes":true,"sha256":"' + b"a" * 64 + b'"}'),
        (b'"source":"test"', b'"source":"test","stored":{"bytes":70000,"sha256":"' + b"a" * 64 + b'"}'),
    ],
)
def test_an_entry_no_append_would_have_written_is_no_event(old, new):
    entry = encode([event(1)]).entries[2:]
    assert old in entry
    with pytest.raises(Unverified, match="no event"):
        decode(entry.replace(old, new))


def test_an_empty_key_or_leaf_is_not_taken_for_none(log, tmp_path):
    assert cli("audit", "verify", log, "--key", "").returncode == 2
    proof = tmp_path / "x"
    proof.write_text(str(prove(Ledger.open(log), 5)))
    key = Ledger.open(log).verifier
    assert cli("audit", "check-proof", proof, "--key", key).returncode == 0
    assert cli("audit", "check-proof", proof, "--key", key, "--leaf", "").returncode == 2


def test_what_an_event_says_cannot_steer_the_terminal(tmp_path):
    with Ledger.create(tmp_path / "log", origin="a") as ledger:
        ledger.append([event(0) | {"subject": "\x1b[2Jgone\u202e\x9b"}])
        (tmp_path / "x").write_text(str(prove(ledger, 0)))
    output = cli("audit", "check-proof", tmp_path / "x", "--key", ledger.verifier).stdout
    assert "\\x1b[2Jgone\\u202e\\x9b" in output
    assert "\x1b" not in output


def test_info_does_not_repeat_what_the_key_did_not_sign(log):
    other = Signer("example.test/log", bytes(32))
    (log / "checkpoint").write_text(str(sign_checkpoint("example.test/log", 7, bytes(32), other)))
    done = cli("audit", "info", log)
    assert done.returncode == 1
    assert "not signed by" in done.stderr
    (log / "checkpoint").unlink()
    assert "is not there" in cli("audit", "info", log).stderr


def test_a_copy_without_its_private_part_is_exported_with_the_key(log, tmp_path):
    shutil.copytree(log, tmp_path / "copy")
    assert cli("audit", "export", tmp_path / "copy", "--json").returncode == 2
    done = cli("audit", "export", tmp_path / "copy", "--jsonl", "--key", Ledger.open(log).verifier)
    assert done.stdout.count("\n") == 700


def test_a_key_that_reaches_the_log_by_another_name_is_refused(tmp_path):
    (tmp_path / "log").mkdir()
    (tmp_path / "way").symlink_to("log")
    done = cli("audit", "init", tmp_path / "log", "--origin", "a", "--key", tmp_path / "way/key")
    assert "choose another place" in done.stderr
    assert not any((tmp_path / "log").iterdir())


def test_nothing_stays_open_behind_a_ledger(log):
    def list_open_files() -> list[str]:
        links = [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        return [link for link in links if str(log) in link or "socket:" in link]

    before = list_open_files()
    reader = Ledger.open(log)
    reader.verify()
    list(reader.entries())
    prove(reader, 5)
    assert list_open_files() == before, "a reader holds nothing between two questions"
    ledger = Ledger.open(log)
    ledger.append([event(700)])
    guest = WriterClient(LedgerPaths(log))
    guest.append([event(701)])
    ledger.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("ledger-")]
    guest.close()
    assert list_open_files() == before
