"""Witnesses over HTTP: c2sp.org/tlog-witness, both sides, with requests of other implementations."""

from __future__ import annotations

import http.client
import re
import threading
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.audit.conftest import events
from typer.testing import CliRunner, Result

from ridgeline import web
from ridgeline.audit import Ledger, new_signer, parse_verifier
from ridgeline.audit.fleet import ask_witness, make_witness_app, read_trusted
from ridgeline.audit.ledger.checkpoint import COSIGNATURE, Verifier, parse_note, sign_checkpoint
from ridgeline.audit.ledger.verify import examine
from ridgeline.audit.ledger.witness import NotCosigned, Witness
from ridgeline.cli.audit import audit
from ridgeline.errors import InputError, StoreError, Unverified

# A log of sigsum and three requests for it, from the tests of litewitness (FiloSottile/litetlog).
SIGSUM = "sigsum.org/v1/tree/4d6d8825a6bb689d459628312889dfbb0bcd41b5211d9e1ce768b0ff0309e562"
SIGSUM_KEY = Verifier(SIGSUM, 1, bytes.fromhex("ffdc2d4d98e4124d3feaf788c0c2f9abfd796083d1f0495437f302ec79cf100f"))
ONE = f"""old 0

{SIGSUM}
1
KgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=

— {SIGSUM} UgIom7fPZTqpxWWhyjWduBvTvGVqsokMbqTArsQilegKoFBJQjUFAmQ0+YeSPM3wfUQMFSzVnnNuWRTYrajXpNUbIQY=
""".encode()
THREE = f"""old 1
KgEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=
KgIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=

{SIGSUM}
3
RcCI1Nk56ZcSmIEfIn0SleqtV7uvrlXNccFx595Iwl0=

— {SIGSUM} UgIom2VbtIcdFbwFAy1n7s6IkAxIY6J/GQOTuZF2ORV39d75cbAj2aQYwyJre36kezNobZs4SUUdrcawfAB8WVrx6go=
""".encode()
FIVE = f"""old 1
KgEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=
+fUDV+k970B4I3uKrqJM4aP1lloPZP8mvr2Z4wRw2LI=
KgQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=

{SIGSUM}
5
QrtXrQZCCvpIgsSmOsah7HdICzMLLyDfxToMql9WTjY=

— {SIGSUM} UgIomw/EOJmWi0i1FQsOj+etB7F8IccFam/jgd6wzRns4QPVmyEZtdvl1U2KEmLOZ/ASRcWJi0tW90dJWAShei7sDww=
""".encode()
GO = """old 0

go.sum database tree
35225469
vt5T6GaLCXvyHFl9VUvvItR43XZxfLgftEcTyO3eJCQ=

— sum.golang.org Az3grpukl5AXaVfYkLiDGORx/DN2nlcS5kZHR5uYOBV2KA2HgXpD+gu9HHONebHLAyaKbbTM75QTtPydhKCExixSfwQ=
""".encode()
GO_KEY = "go.sum database tree=sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"
KNOWN = {SIGSUM: [SIGSUM_KEY]}


@pytest.fixture
def witness(tmp_path) -> Witness:
    return Witness(tmp_path / "w", "witness.example/w1")


def run(*words: object) -> Result:
    return CliRunner().invoke(audit, list(map(str, words)))


def post(url: str, body: bytes, path: str = "/add-checkpoint", **headers: str) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    result = answer.status, answer.headers.get_content_type(), answer.read()
    connection.close()
    return result


def refuse(witness: Witness, request: bytes, trusted=KNOWN) -> NotCosigned:
    with pytest.raises(NotCosigned) as caught:
        witness.add(request, trusted)
    return caught.value


def test_requests_of_another_implementation_get_its_answers(witness):
    with web.run_in_background(make_witness_app(witness, {**KNOWN, **read_trusted([GO_KEY])})) as url:
        for request in (ONE, GO):
            status, _, body = post(url, request, host="witness.example")
            assert status == 200
            note = parse_note(request.partition(b"\n\n")[2].partition(b"\n\n")[0] + b"\n\n" + body, "the answer")
            assert len(witness.verifier.find_signatures(note)) == 1
        assert post(url, THREE.replace(b"KgIA", b"KgIB"))[0] == 422
        assert post(url, re.sub(rb"KgIA.*\n", b"", THREE))[0] == 422, "a hash is missing"
        assert post(url, THREE.replace(b"VbtIcdFbw", b"VbtIcdFbx"))[0] == 403, "another signature"
        assert post(url, THREE.replace(SIGSUM.encode(), b"stranger.test/x"))[0] == 404
        assert post(url, THREE)[0] == 200
        assert post(url, FIVE) == (409, "text/x.tlog.size", b"3\n")
        assert post(url, THREE)[0] == 409
        assert post(url, THREE.replace(b"old 1", b"old 4"))[0] == 400, "more than the checkpoint has"
        assert post(url, b"old 3\n\n" + THREE.partition(b"\n\n")[2])[0] == 200, "the same checkpoint again"
        assert post(url, ONE, "/elsewhere")[0] == 404


def test_the_memory_survives_a_restart_and_serves_both_kinds_of_witnessing(log, tmp_path, witness):
    witness.add(ONE, KNOWN)
    again = Witness(tmp_path / "w")
    assert again.verifier == witness.verifier
    assert refuse(again, FIVE.replace(b"old 1", b"old 0")).size == 1
    cosigned = again.cosign(log)
    request = b"old 700\n\n" + (log / "checkpoint").read_bytes()
    trusted = {cosigned.origin: [Ledger.open(log).verifier]}
    assert again.add(request, trusted).startswith("— witness.example/w1 ")
    assert again.cosign(log).size == 700, "what a request saved, the command reads"


def test_two_requests_at_once_never_roll_the_memory_back(witness):
    witness.add(ONE, KNOWN)
    start, outcomes = threading.Barrier(2), []

    def send(request: bytes) -> None:
        start.wait()
        try:
            witness.add(request, KNOWN)
            outcomes.append(200)
        except NotCosigned as refusal:
            outcomes.append(refusal.status)

    threads = [threading.Thread(target=send, args=(request,)) for request in (THREE, FIVE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [200, 409]
    assert refuse(witness, ONE).size in (3, 5)


def test_a_memory_that_another_program_wrote_is_refused(tmp_path, witness):
    witness.add(ONE, KNOWN)
    (memory,) = (tmp_path / "w").glob("*.checkpoint")
    memory.write_bytes(THREE.partition(b"\n\n")[2])
    with pytest.raises(StoreError, match="does not have the signature of this witness"):
        witness.add(THREE, KNOWN)


def test_two_roots_at_one_size_are_a_conflict(witness):
    signer = new_signer("example.test/two")
    one, other = (str(sign_checkpoint(signer.name, 4, bytes([n]) * 32, signer)) for n in (1, 2))
    trusted = {signer.name: [signer.verifier]}
    witness.add(f"old 0\n\n{one}".encode(), trusted)
    refusal = refuse(witness, f"old 4\n\n{other}".encode(), trusted)
    assert (refusal.status, refusal.kind) == (409, "fork")


def test_any_of_several_trusted_keys_counts_and_foreign_signatures_do_not_matter(witness):
    old, new = new_signer("example.test/log"), new_signer("example.test/log")
    note = str(sign_checkpoint(new.name, 1, bytes(32), new))
    foreign = str(sign_checkpoint(new.name, 1, bytes(32), new_signer("example.test/log"))).splitlines()[-1]
    request = f"old 0\n\n{note}{foreign}\n".encode()
    assert refuse(witness, request, {old.name: [old.verifier]}).status == 403
    assert witness.add(request, {old.name: [old.verifier, new.verifier]})


@given(st.binary(max_size=200), st.integers(0, len(THREE)))
def test_no_malformed_request_is_more_than_a_refusal(tmp_path_factory, junk, at):
    witness = Witness(tmp_path_factory.getbasetemp() / "fuzzed", "witness.example/w1")
    for request in (junk, THREE[:at] + junk):
        assert request == THREE or refuse(witness, request).status in (400, 403, 404, 409)


@pytest.fixture
def service(log, witness):
    with web.run_in_background(make_witness_app(witness, {"example.test/log": [Ledger.open(log).verifier]})) as url:
        yield url


def test_a_log_asks_a_witness_and_keeps_its_co_signature(log, witness, service):
    with Ledger.open(log) as ledger:
        assert ask_witness(ledger, service, [witness.verifier]).size == 700
        ledger.append(events(700, 900))
        assert ask_witness(ledger, service + "/", [witness.verifier]).size == 900
        (log / "witness" / witness.verifier.key_id.hex()).unlink()
        ledger.append(events(900, 950))
        assert ask_witness(ledger, service, [witness.verifier]).size == 950, "the witness told what it knows"
    report = examine(log, Ledger.open(log).verifier, witnesses=[witness.verifier], require=1)
    assert report.ok
    assert report.witnesses[0].size == 950


def test_a_log_that_was_cut_or_forked_gets_no_co_signature(log, tmp_path, witness, service):
    key = tmp_path / "log.private/key"
    with Ledger.open(log) as ledger:
        ask_witness(ledger, service, [witness.verifier])
    for size, kind, word in ((600, "truncated", "cut off"), (700, "fork", "another root"), (800, "refused", "422")):
        with Ledger.create(tmp_path / f"other{size}", "example.test/log", key) as other:
            other.append(events(100, 100 + size))
            with pytest.raises(Unverified, match=word) as caught:
                ask_witness(other, service, [witness.verifier])
            assert caught.value.kind == kind


def test_an_answer_without_a_trusted_key_is_refused(log, service):
    with Ledger.open(log) as ledger:
        with pytest.raises(Unverified, match="none of them by a trusted key"):
            ask_witness(ledger, service, [new_signer("witness.example/w1", COSIGNATURE).verifier])
        with pytest.raises(InputError, match="--trust"):
            ask_witness(ledger, service, [ledger.verifier])
        with pytest.raises(InputError, match="no address of a witness"):
            ask_witness(ledger, "witness.example", [new_signer("a", COSIGNATURE).verifier])
        with pytest.raises(StoreError, match="cannot be reached"):
            ask_witness(ledger, "http://127.0.0.1:1", [new_signer("a", COSIGNATURE).verifier])
    assert not (log / "witness").exists()


def test_the_command_asks_a_witness(log, witness, service):
    done = run("witness", log, "--ask", service, "--trust", witness.verifier)
    assert (done.exit_code, "at 700 entries" in done.stdout) == (0, True)
    assert run("verify", log, "--witness", witness.verifier).exit_code == 0


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("--serve", "nowhere", "--state", "w", "--trust", "x"), "is no address"),
        (("--serve", ":0", "--state", "w"), "--trust is missing"),
        (("--serve", ":0", "--trust", "x+y+z"), "--state is missing"),
        (("log", "--serve", ":0"), "takes no ledger"),
        ((), "name the ledger"),
        (("log",), "--state is missing"),
    ],
)
def test_a_wrong_use_of_the_command_is_one_sentence(words, cure):
    error = run("witness", *words).exception
    assert isinstance(error, InputError)
    assert cure in str(error)


def test_keys_of_logs_are_read_by_origin():
    assert read_trusted([GO_KEY])["go.sum database tree"] == [parse_verifier(GO_KEY.partition("=")[2])]
    with pytest.raises(InputError, match="key of a witness"):
        read_trusted([str(new_signer("a", COSIGNATURE).verifier)])
