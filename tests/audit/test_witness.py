"""Witnesses remember a log and find faults that the log alone cannot show."""

from __future__ import annotations

import shutil
import time

import pytest
from tests.audit import naive
from tests.audit.conftest import cli, cli_json, events, note_checkpoint
from tests.audit.test_verify import rewrite

from ridgeline.audit import Ledger, new_signer
from ridgeline.audit.ledger.checkpoint import COSIGNATURE
from ridgeline.audit.ledger.proof import check_proof, prove
from ridgeline.audit.ledger.verify import examine
from ridgeline.audit.ledger.witness import Witness
from ridgeline.errors import InputError, Unverified


@pytest.fixture
def witness(tmp_path):
    return Witness(tmp_path / "w", "witness.example/w1")


def see(witness: Witness, log):
    cosigned = witness.cosign(log)
    witness.deliver(log, cosigned)
    return cosigned


def look(log, witness, require=1):
    return examine(log, Ledger.open(log).verifier, witnesses=[witness.verifier], require=require)


def test_a_witnessed_log_verifies_and_says_up_to_where(log, witness):
    assert [f.kind for f in look(log, witness).findings] == ["unwitnessed"]
    see(witness, log)
    report = look(log, witness)
    assert report.ok
    assert [(w.name, w.size) for w in report.witnesses] == [("witness.example/w1", 700)]
    with Ledger.open(log) as ledger:
        ledger.append(events(700, 900))
    assert look(log, witness).ok, "a log that went on is still the one that was seen"
    see(witness, log)
    assert look(log, witness).witnesses[0].size == 900


def test_an_old_cosignature_does_not_count_and_is_noted(log, witness, monkeypatch):
    now = int(time.time())
    monkeypatch.setattr("ridgeline.audit.ledger.witness.time.time", lambda: now - 3 * 86_400)
    see(witness, log)
    monkeypatch.undo()
    key = str(witness.verifier)
    assert cli("audit", "verify", log, "--witness", key, "--fresh", "4d").returncode == 0
    stale = cli("audit", "verify", log, "--witness", key, "--fresh", "2d")
    assert stale.returncode == 1
    assert "unwitnessed" in stale.stdout
    assert "too long ago" in stale.stderr
    see(witness, log)
    assert cli("audit", "verify", log, "--witness", key, "--fresh", "2d").returncode == 0
    assert cli("audit", "verify", log, "--fresh", "2d").returncode == 2, "whose?"
    assert cli("audit", "verify", log, "--witness", key, "--fresh", "soon").returncode == 2


def test_a_cosignature_stands_on_the_checkpoint_for_any_client(log, witness):
    see(witness, log)
    assert "— witness.example/w1 " in (log / "checkpoint").read_text()
    with Ledger.open(log) as ledger:
        ledger.append(events(700, 701))
        see(witness, log)  # while a writer holds the log, its checkpoint is left alone
    assert (log / f"witness/{witness.verifier.key_id.hex()}").exists()


@pytest.mark.parametrize(("ahead_s", "counts"), [(0, True), (60, True), (86_400, False), (10 * 365 * 86_400, False)])
def test_a_co_signature_from_the_future_is_not_fresh(log, witness, monkeypatch, ahead_s, counts):
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now + ahead_s)
        see(witness, log)
    since = int(now - 3600) * 10**9
    report = examine(log, Ledger.open(log).verifier, witnesses=[witness.verifier], require=1, since=since)
    assert report.ok == counts
    if not counts:
        assert "that is in the future" in report.notes[0]
        see(witness, log)  # again, with the right time
        assert examine(log, Ledger.open(log).verifier, witnesses=[witness.verifier], require=1, since=since).ok


def test_a_truncated_log_is_caught(log, witness):
    see(witness, log)
    entries = naive.read_log(log)[3]
    rewrite(log, entries[:600])
    note_checkpoint(log)
    report = look(log, witness)
    assert [f.kind for f in report.findings] == ["truncated"]
    assert "has 700" in report.findings[0].sentence
    with pytest.raises(Unverified, match="this witness saw has 700") as caught:
        witness.cosign(log)
    assert caught.value.kind == "truncated"


def test_a_forked_log_is_caught(log, witness):
    see(witness, log)
    entries = naive.read_log(log)[3]
    rewrite(log, [*entries[:5], b"{}", *entries[6:], b"more"])
    note_checkpoint(log)
    assert [f.kind for f in look(log, witness).findings] == ["fork"]
    with pytest.raises(Unverified, match="not co-signed") as caught:
        witness.cosign(log)
    assert caught.value.kind == "fork"
    shutil.rmtree(log / "witness")
    assert [f.kind for f in look(log, witness).findings] == ["unwitnessed"]


def test_a_witness_does_not_sign_tiles_that_do_not_fit(log, witness):
    path = log / "tile/0/002.p/188"
    path.write_bytes(bytes(len(path.read_bytes())))
    with pytest.raises(Unverified, match="do not give the root"):
        witness.cosign(log)


def test_a_witness_keeps_to_the_key_it_knows(log, witness):
    see(witness, log)
    with pytest.raises(Unverified, match=r"knows example\.test/log by the key"):
        witness.cosign(log, new_signer("example.test/log").verifier)


def test_a_forged_cosignature_does_not_count(log, witness):
    see(witness, log)
    name = f"witness/{witness.verifier.key_id.hex()}"
    text = (log / name).read_text()
    at = text.rindex(" ") + 20
    forged = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
    (log / name).write_text(forged)
    (log / "checkpoint").write_text(text.split("— witness")[0])
    report = look(log, witness)
    assert {f.kind for f in report.findings} == {"bad signature", "unwitnessed"}


def test_the_key_of_a_log_is_no_witness(log, tmp_path):
    with pytest.raises(InputError, match="not of a witness"):
        examine(log, Ledger.open(log).verifier, witnesses=[Ledger.open(log).verifier], require=1)
    with pytest.raises(InputError, match="--name"):
        Witness(tmp_path / "none")
    Witness(tmp_path / "w", "a")
    with pytest.raises(InputError, match="is named a"):
        Witness(tmp_path / "w", "b")


def test_a_proof_carries_the_cosignatures(log, witness):
    see(witness, log)
    ledger = Ledger.open(log)
    data = str(prove(ledger, 5)).encode()
    cosigned = check_proof(data, ledger.verifier, "it", witnesses=[witness.verifier], require=1)
    assert cosigned.witnesses[0].name == "witness.example/w1"
    stranger = new_signer("witness.example/w1", COSIGNATURE).verifier
    with pytest.raises(Unverified, match="co-signed by 0"):
        check_proof(data, ledger.verifier, "it", witnesses=[stranger], require=1)


def test_the_command_witnesses_and_refuses_a_fork_with_exit_1(log, tmp_path):
    words = ("audit", "witness", log, "--state", tmp_path / "w")
    assert cli(*words).returncode == 2
    key = cli_json(*words, "--name", "witness.example/w1")["key"]
    assert cli("audit", "verify", log, "--witness", key, "--require", 1).returncode == 0
    rewrite(log, naive.read_log(log)[3][:600])
    note_checkpoint(log)
    done = cli("audit", "verify", log, "--witness", key, "--require", 1)
    assert done.returncode == 1
    assert "truncated" in done.stdout
    assert cli(*words).returncode == 1
    saved = tmp_path / "kept"
    assert cli(*words, "--out", saved).returncode == 1
    assert not saved.exists()
