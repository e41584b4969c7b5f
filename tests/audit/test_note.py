"""Signed notes, keys and checkpoints: notes of other tools verify, and only the exact bytes do."""

from __future__ import annotations

import base64
import sys
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.audit.ledger.checkpoint import (
    COSIGNATURE,
    Note,
    Signer,
    Verifier,
    merge_signatures,
    new_signer,
    parse_checkpoint,
    parse_note,
    parse_signer,
    parse_verifier,
    read_checkpoint,
    read_cosignature_time,
    require_signature,
    sign_checkpoint,
)
from ridgeline.errors import InputError, MissingExtra, Unverified

# The example of Go's note package.
NEUMANN = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
NEUMANN_NOTE = (
    "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n\n"
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
SUMDB = "sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"  # Go's checksum database
SIGNER = Signer("example.test/log", bytes(range(32)))
ROOT = bytes(range(32))


def test_a_note_signed_elsewhere_verifies():
    note = parse_note(NEUMANN_NOTE.encode(), "it")
    require_signature(note, parse_verifier(NEUMANN), "it")
    assert str(note) == NEUMANN_NOTE


@pytest.mark.parametrize("vkey", [NEUMANN, SUMDB])
def test_a_key_made_elsewhere_is_read_and_written_the_same(vkey):
    assert str(parse_verifier(vkey)) == vkey


def test_a_checkpoint_comes_back_as_it_was_signed():
    signed = sign_checkpoint("example.test/log", 700, ROOT, SIGNER)
    parsed = read_checkpoint(str(signed).encode(), SIGNER.verifier, "checkpoint")
    assert (parsed.origin, parsed.size, parsed.root) == ("example.test/log", 700, ROOT)
    assert str(parsed) == str(signed)
    assert signed.text() == "example.test/log\n700\n" + base64.b64encode(ROOT).decode() + "\n"


def test_no_bit_of_a_checkpoint_can_change():
    data = str(sign_checkpoint("example.test/log", 700, ROOT, SIGNER)).encode()
    for at in range(len(data)):
        for bit in range(8):
            other = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            with pytest.raises(Unverified):
                read_checkpoint(other, SIGNER.verifier, "checkpoint")


def test_a_cosignature_binds_text_and_time():
    witness = Signer("witness.example/w1", bytes(32), COSIGNATURE)
    signed = sign_checkpoint("example.test/log", 7, ROOT, SIGNER)
    note = merge_signatures(signed.note, [witness.cosign(signed.text(), 1_679_315_147)])
    (signature,) = witness.verifier.find_signatures(note)
    assert read_cosignature_time(signature.body) == 1_679_315_147
    assert len(signature.body) == 8 + 64
    later = bytearray(signature.body)
    later[7] ^= 1
    forged = Note(note.text, (*note.signatures[:-1], type(signature)(signature.name, signature.key_id, bytes(later))))
    with pytest.raises(Unverified, match="does not fit"):
        witness.verifier.find_signatures(forged)


def test_the_key_of_a_log_and_of_a_witness_are_not_the_same_key():
    log, witness = Signer("a", bytes(32)), Signer("a", bytes(32), COSIGNATURE)
    assert log.verifier.key_id != witness.verifier.key_id
    with pytest.raises(InputError, match="witness"):
        witness.sign("text\n")
    with pytest.raises(InputError, match="log"):
        log.cosign("text\n", 1)


def test_a_wrong_key_never_passes_and_is_named():
    data = str(sign_checkpoint("example.test/log", 700, ROOT, SIGNER)).encode()
    other = new_signer("example.test/log").verifier
    with pytest.raises(Unverified, match=r"not signed by example\.test/log") as caught:
        read_checkpoint(data, other, "checkpoint")
    assert caught.value.kind == "wrong key"


def test_a_key_with_the_same_name_and_id_but_other_bytes_does_not_verify():
    data = str(sign_checkpoint("example.test/log", 700, ROOT, SIGNER)).encode()

    class Same(Verifier):
        @property
        def key_id(self) -> bytes:
            return SIGNER.verifier.key_id

    with pytest.raises(Unverified, match="does not fit"):
        read_checkpoint(data, Same("example.test/log", 1, new_signer("x").verifier.public), "checkpoint")


def test_a_checkpoint_without_signature_is_unsigned():
    with pytest.raises(Unverified) as caught:
        parse_checkpoint(b"a\n0\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n\n", "checkpoint")
    assert caught.value.kind == "unsigned"


def test_a_private_key_is_restored_and_never_shown():
    again = parse_signer(SIGNER.secret(), "key")
    assert again.verifier == SIGNER.verifier
    assert base64.b64encode(bytes(range(32))).decode()[:20] not in repr(SIGNER)
    with pytest.raises(InputError, match="private") as caught:
        parse_verifier(SIGNER.secret())
    assert SIGNER.secret()[-20:] not in str(caught.value)
    with pytest.raises(InputError) as caught:
        parse_signer(SIGNER.secret()[:-8], "key")
    assert SIGNER.secret()[-30:-10] not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\nb", "a\u2003b"])
def test_a_name_that_would_break_a_note_is_refused(name):
    with pytest.raises(InputError):
        Signer(name, bytes(32))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=200).map(lambda t: t.encode("utf-8", "surrogatepass")))
def test_bytes_that_are_no_note_are_refused_in_a_sentence(data):
    with pytest.raises(Unverified):
        read_checkpoint(data, SIGNER.verifier, "it")
    with suppress(Unverified):
        assert str(parse_note(data, "it")).encode() == data


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=120))
def test_text_that_is_no_key_is_refused_in_a_sentence(text):
    for read in (parse_verifier, lambda t: parse_signer(t, "key")):
        with pytest.raises(InputError):
            read(text)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_note_that_reads_is_the_note_that_was_written(data):
    complete_note = str(sign_checkpoint("example.test/log", 700, ROOT, SIGNER)).encode()
    at = data.draw(st.integers(0, len(complete_note)))
    end = data.draw(st.integers(at, min(len(complete_note), at + 5)))
    other = complete_note[:at] + data.draw(st.binary(max_size=4)) + complete_note[end:]
    try:
        note = parse_note(other, "it")
    except Unverified:
        return
    assert str(note).encode() == other


def test_the_spare_bits_at_the_end_of_a_signature_must_be_zero():
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    text = str(sign_checkpoint("example.test/log", 700, ROOT, SIGNER))
    last = text[-3]
    assert text.endswith(f"{last}=\n")
    assert letters.index(last) % 4 == 0
    for spare in (1, 2, 3):
        other = text[:-3] + letters[letters.index(last) + spare] + "=\n"
        with pytest.raises(Unverified, match="no signature"):
            read_checkpoint(other.encode(), SIGNER.verifier, "checkpoint")


def test_without_the_library_of_signatures_the_extra_is_named(monkeypatch):
    for name in ("cryptography.exceptions", "cryptography.hazmat.primitives.asymmetric.ed25519"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"\[ledger\]"):
        new_signer("a")
    with pytest.raises(MissingExtra, match=r"\[ledger\]"):
        require_signature(parse_note(NEUMANN_NOTE.encode(), "it"), parse_verifier(NEUMANN), "it")
