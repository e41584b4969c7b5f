"""Proof files, checked without the log."""

from __future__ import annotations

import base64
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.audit import naive
from tests.audit.conftest import cli, cli_json, event, events

from ridgeline.audit import Ledger, new_signer
from ridgeline.audit.ledger.proof import check_proof, parse_proof, prove
from ridgeline.errors import InputError, RidgelineError, Unverified


def test_a_proof_is_written_as_the_specification_has_it(log):
    ledger = Ledger.open(log)
    text = str(prove(ledger, 123))
    first, extra, index, *rest = text.split("\n")
    blank = rest.index("")
    assert (first, index) == ("c2sp.org/tlog-proof@v1", "index 123")
    entry = base64.b64decode(extra.removeprefix("extra "))
    path = [base64.b64decode(line) for line in rest[:blank]]
    assert "\n".join(rest[blank + 1 :]) == (log / "checkpoint").read_text()
    root = base64.b64decode(rest[blank + 3])
    assert naive.root_by_path(123, 700, naive.leaf(entry), path) == root


def test_a_proof_holds_without_the_log(log, tmp_path):
    key = str(Ledger.open(log).verifier)
    proof = tmp_path / "x.tlog-proof"
    assert cli("audit", "prove", log, 123, "-o", proof).returncode == 0
    shutil.rmtree(log)
    shutil.rmtree(log.with_name("log.private"))
    answer = cli_json("audit", "check-proof", proof, "--key", key)
    assert answer["ok"]
    assert answer["event"] == event(123)
    assert "br123" in cli("audit", "check-proof", proof, "--key", key).stdout
    other = str(new_signer("example.test/log").verifier)
    assert cli("audit", "check-proof", proof, "--key", other).returncode == 1
    proof.write_text(proof.read_text().replace("index 123", "index 124"))
    assert cli("audit", "check-proof", proof, "--key", key).returncode == 1
    assert cli("audit", "check-proof", tmp_path / "none", "--key", key).returncode == 2


def test_a_proof_of_a_single_entry_has_no_hashes(tmp_path):
    with Ledger.create(tmp_path / "log", origin="a") as ledger:
        ledger.append([event(0)])
        text = str(prove(ledger, 0))
    assert check_proof(text.encode(), ledger.verifier, "it").event == event(0)


def test_the_entry_or_its_hash_can_be_given(log):
    ledger = Ledger.open(log)
    proof = prove(ledger, 5)
    bare = str(type(proof)(proof.index, proof.path, proof.checkpoint)).encode()
    with pytest.raises(InputError, match="--entry"):
        check_proof(bare, ledger.verifier, "it")
    assert check_proof(bare, ledger.verifier, "it", entry=ledger.raw(5)).event == event(5)
    assert check_proof(bare, ledger.verifier, "it", leaf=ledger.leaf(5)).event is None
    for words in ({"entry": ledger.raw(6)}, {"leaf": ledger.leaf(6)}):
        with pytest.raises(Unverified):
            check_proof(bare, ledger.verifier, "it", **words)
        with pytest.raises(Unverified, match="another entry"):
            check_proof(str(proof).encode(), ledger.verifier, "it", **words)


@pytest.fixture(scope="module")
def carried(tmp_path_factory):
    with Ledger.create(tmp_path_factory.mktemp("p") / "log", origin="example.test/log") as ledger:
        ledger.append(events(0, 300))
        return str(prove(ledger, 77)).encode(), ledger.verifier


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_proof_with_any_byte_changed_proves_nothing(carried, data):
    proof_bytes, verifier = carried
    at = data.draw(st.integers(0, len(proof_bytes) - 1))
    end = data.draw(st.integers(at, min(len(proof_bytes), at + 3)))
    other = proof_bytes[:at] + data.draw(st.binary(max_size=3)) + proof_bytes[end:]
    if other == proof_bytes:
        return
    with pytest.raises(RidgelineError):
        check_proof(other, verifier, "it")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_bytes_that_are_no_proof_are_refused(data):
    for head in (b"", b"c2sp.org/tlog-proof@v1\n", b"c2sp.org/tlog-proof@v1\nindex 0\n"):
        with pytest.raises(Unverified):
            parse_proof(head + data, "it")
