"""Properties of the ledger's parsers for any bytes: they do not crash, parsing and formatting agree, and only signed
data verifies.

Each harness takes bytes and asserts. `make fuzz` runs them under atheris, which looks for new paths through the code;
`test_fuzz.py` runs them on the seeds and mutations of the seeds. Code that signs or hashes here plays an attacker with
everything but the key.
"""

from __future__ import annotations

import atexit
import base64
import json
import shutil
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

from tests.audit import naive

from ridgeline.audit import Ledger, Signer, parse_verifier
from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.checkpoint import (
    COSIGNATURE,
    Checkpoint,
    Note,
    Signature,
    Verifier,
    merge_signatures,
    parse_checkpoint,
    parse_note,
    parse_signer,
    read_checkpoint,
)
from ridgeline.audit.ledger.event import compile_filter, decode, encode, parse_line
from ridgeline.audit.ledger.journal import Journal
from ridgeline.audit.ledger.moment import parse_moment, show_moment
from ridgeline.audit.ledger.proof import check_proof, parse_proof, prove
from ridgeline.audit.ledger.tiles import Tiles, read_bundle, split_bundle
from ridgeline.audit.ledger.verify import examine
from ridgeline.errors import InputError, StoreError, Unverified
from ridgeline.native import bundle_hashes, canonical_json, entry_ends

NAME = "example.test/log"
SIGNER = Signer(NAME, bytes(range(32)))
WITNESS = Signer("witness.example/w1", bytes(32), COSIGNATURE)
SIZE, PROVED = 300, 77
FILES = ("tile/entries/000", "tile/entries/001.p/44", "tile/0/000", "tile/0/001.p/44", "tile/1/000.p/1")
SALT = bytes(16)


class World:
    """A log of 300 entries whose bytes are the same in every run, and what a verifier may know of it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ridgeline-fuzz-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        with Ledger.create(self.folder / "log", NAME, SIGNER) as ledger:
            words = {"source": "fuzz", "action": "bridge.create", "attributes": {"é": [1.5, None, True, "\n"]}}
            ledger.append([{**words, "time": k, "subject": f"br{k}"} for k in range(SIZE)])
            self.checkpoint = ledger.checkpoint()
            self.proof = str(prove(ledger, PROVED)).encode()
            self.inclusion = ledger.prove_inclusion(PROVED)
            self.consistency = ledger.prove_consistency(PROVED, SIZE)
            self.old_root = ledger.root(PROVED)
        self.log = self.folder / "log"
        self.files = {name: (self.log / name).read_bytes() for name in (*FILES, "checkpoint")}
        self.entries = [naive.bundle(self.files[name]) for name in FILES[:2]]
        note = merge_signatures(self.checkpoint.note, [WITNESS.cosign(self.checkpoint.text(), 1_700_000_000)])
        self.cosigned = str(note).encode()

    @property
    def entry(self) -> bytes:
        return self.entries[0][PROVED]


@cache
def world() -> World:
    return World()


def fuzz_checkpoint(data: bytes) -> None:
    with suppress(Unverified):
        assert str(parse_note(data, "it")).encode() == data
    with suppress(Unverified):
        assert str(parse_checkpoint(data, "it")).encode() == data
    with suppress(Unverified):
        checkpoint = read_checkpoint(data, SIGNER.verifier, "it")
        assert checkpoint.text() == world().checkpoint.text(), "the key did not sign this"
        for signature in WITNESS.verifier.find_signatures(checkpoint.note):
            assert WITNESS.cosign(checkpoint.text(), int.from_bytes(signature.body[:8], "big")) == signature
    # The same bytes as the text of a note that the key did sign: then only the grammar of checkpoints can reject it.
    with suppress(UnicodeDecodeError, Unverified):
        text = data.decode()
        checkpoint = read_checkpoint(str(Note(text, (SIGNER.sign(text),))).encode(), SIGNER.verifier, "it")
        origin, size, root, *more = text.removesuffix("\n").split("\n")
        assert (origin, size) == (NAME, str(int(size)))
        assert len(base64.b64decode(root, validate=True)) == 32
        assert all(more)
        assert checkpoint.text() == text


def fuzz_key(data: bytes) -> None:
    text = data.decode(errors="replace")
    with suppress(InputError):
        verifier = parse_verifier(text)
        assert str(verifier) == text.strip()
    with suppress(InputError):
        assert parse_signer(text, "it").secret() == text.strip()
    for kind in (
        (1, COSIGNATURE) if len(data) >= 32 else ()
    ):  # any bytes as a public key: no point of the curve, perhaps
        public = Verifier("a", kind, data[:32])
        with suppress(Unverified):
            public.find_signatures(Note("text\n", (Signature("a", public.key_id, data[32:]),)))


def fuzz_tile(data: bytes) -> None:
    """The last byte chooses which file of the log is replaced by the others."""
    log_world, which, data = world(), data[-1:] or b"\0", data[:-1]
    try:
        ends = entry_ends(data).tolist()
    except ValueError:
        ends = None
    if ends is None:
        with suppress(Unverified):
            assert not split_bundle(data, "it"), "entries without ends"
    else:
        entries = naive.bundle(data)
        assert split_bundle(data, "it") == entries
        assert len(ends) == len(entries)
        assert bundle_hashes(data) == b"".join(map(naive.leaf, entries))
    name = FILES[which[0] % len(FILES)]
    (log_world.log / name).write_bytes(data)
    try:
        for number, right in enumerate(log_world.entries):
            with suppress(Unverified):
                assert read_bundle(Tiles(log_world.log), log_world.checkpoint, number) == right
        assert examine(log_world.log, SIGNER.verifier).ok == (data == log_world.files[name])
    finally:
        (log_world.log / name).write_bytes(log_world.files[name])


def fuzz_proof(data: bytes) -> None:
    log_world = world()
    with suppress(Unverified):
        assert str(parse_proof(data, "it")).encode() == data
    with suppress(Unverified, InputError):
        proved = check_proof(data, SIGNER.verifier, "it")
        right = log_world.entries[proved.index // 256][proved.index % 256]
        assert proved.leaf_hash == naive.leaf(right)
    # And as bare numbers and hashes, past every grammar.
    index, rest = int.from_bytes(data[:2], "big"), data[2:]
    path = [rest[k : k + 32] for k in range(0, len(rest), 32)]
    with suppress(Unverified):
        root = merkle.root_from_inclusion(index, SIZE, naive.leaf(log_world.entry), path)
        assert root != log_world.checkpoint.root or (index, path) == (PROVED, log_world.inclusion)
    with suppress(Unverified):
        merkle.check_consistency(index, SIZE, log_world.old_root, log_world.checkpoint.root, path)
        assert (index, path) == (PROVED, log_world.consistency)


def fuzz_event(data: bytes) -> None:
    with suppress(Unverified):
        decoded = decode(data, "it")
        if "stored" not in decoded:
            again = encode([decoded], internal=True)
            assert (again.large[0][2] if again.large else again.entries[2:]) == data
    with suppress(InputError):
        given = parse_line(data, "it")
        taken = encode([given])
        decoded = decode(taken.entries[2:])
        assert decoded["source"] == given["source"]
        stored = decode(taken.large[0][2]) if taken.large else decoded
        assert canonical_json(stored["attributes"]) == canonical_json(given.get("attributes") or {})
    with suppress(ValueError, RecursionError):
        written = canonical_json(json.loads(data))
        assert naive.canonical(json.loads(written)).encode() == written


def fuzz_journal(data: bytes) -> None:
    """`data` behind a whole header: what is read must be what was written, from its beginning on."""
    log_world = world()
    path = log_world.folder / "journal"
    path.write_bytes(journal_header() + data)
    journal = Journal(path)
    try:
        with suppress(StoreError):
            records = journal.read()
            at = 0
            for record, (first, entries) in zip(records, written_records(), strict=False):
                assert (record.first, record.entries, record.hashes) == (first, entries, bundle_hashes(entries))
                at += 48 + len(entries)
            assert len(records) <= len(written_records())
            assert data[:at] == journal_records()[:at]
            assert journal.end == 4096 + at
    finally:
        journal.close()
    path.write_bytes(data)  # and as a file that has no header of ours
    journal = Journal(path)
    try:
        with suppress(StoreError):
            records = journal.read()
            assert not data.strip(b"\0") or data.startswith(journal_header()[:64])
            assert [record.entries for record in records] == [entries for _, entries in written_records()][
                : len(records)
            ]
    finally:
        journal.close()


def fuzz_words(data: bytes) -> None:
    """What people type: a condition, a time."""
    text = data.decode(errors="replace")
    with suppress(InputError):
        event = {"source": "a", "attributes": {"n": 1, "s": ["x"]}, "time": 5, "index": 0}
        assert compile_filter(text)(event) in (True, False)
    with suppress(InputError):
        moment = parse_moment(text, now=0)
        assert isinstance(show_moment(moment), str)


HARNESSES: dict[str, Callable[[bytes], None]] = {
    "checkpoint": fuzz_checkpoint,
    "key": fuzz_key,
    "tile": fuzz_tile,
    "proof": fuzz_proof,
    "event": fuzz_event,
    "journal": fuzz_journal,
    "words": fuzz_words,
}


def seeds(name: str) -> list[bytes]:
    """Inputs that reach deep, made by the code itself."""
    log_world = world()
    match name:
        case "checkpoint":
            text = Checkpoint(NAME, 5, bytes(32), ("more",)).text().encode()
            return [log_world.files["checkpoint"], log_world.cosigned, log_world.checkpoint.text().encode(), text]
        case "key":
            keys = [str(SIGNER.verifier), SIGNER.secret(), str(WITNESS.verifier)]
            signature = SIGNER.sign("text\n").body
            return [*(k.encode() for k in keys), WITNESS.verifier.public + signature]
        case "tile":
            return [log_world.files[file] + bytes([k]) for k, file in enumerate(FILES)]
        case "proof":
            bare = [PROVED.to_bytes(2, "big") + b"".join(p) for p in (log_world.inclusion, log_world.consistency)]
            return [log_world.proof, *bare]
        case "event":
            large = encode([{"source": "a", "action": "b", "time": 1, "attributes": {"x": "y" * 70_000}}])
            line = b'{"source":"a","action":"b.c","attributes":{"n":[1,-0.5,1e300,"\\ud83d\\ude00"]}}'
            return [log_world.entry, large.entries[2:], line, b"[9007199254740992,1e21,1e-7,{}]"]
        case "journal":
            return [journal_records(), journal_header() + journal_records()]
        case _:
            times = [b"90d", b"1700000000000000000", b"2026-11-15T08:30:00.5Z"]
            return [b"source == 'a' and not attributes.n > 2", b"'x' in attributes['s']", *times]


@cache
def written_records() -> list[tuple[int, bytes]]:
    bundles = [b"\0\1a", b"\0\0" * 3, b"\0\2bc\0\1d"]
    return list(zip((0, 1, 4), bundles, strict=True))


@cache
def journal_header() -> bytes:
    plain = struct.pack("<8s16sQQ", b"RLEDGER1", SALT, 1, 0)
    return (plain + sha256(plain).digest()[:24]).ljust(4096, b"\0")


@cache
def journal_records() -> bytes:
    data = b""
    for first, entries in written_records():
        hashes = bundle_hashes(entries)
        count = len(hashes) // 32
        digest = sha256(SALT + struct.pack("<QIQ", first, count, len(entries)) + hashes).digest()[:24]
        data += struct.pack("<4sIQQ24s", b"\x9dRL\xe1", count, first, len(entries), digest) + entries
    return data
