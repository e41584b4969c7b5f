"""What the parsers of the ledger must hold for any bytes: they do not crash, what they read comes back as it was, and
nothing verifies but what was signed.

Each harness takes bytes and asserts. `make fuzz` gives them to atheris, which looks for new paths through the code;
`test_fuzz.py` gives them the seeds and mutations of those, so that they stay true. Whoever signs or hashes here plays
the attacker who has everything but the key.
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
from ridgeline.audit.ledger.checkpoint import Checkpoint, parse_checkpoint, read_checkpoint
from ridgeline.audit.ledger.event import decode, encode, parse_line
from ridgeline.audit.ledger.journal import Journal
from ridgeline.audit.ledger.moment import parse_moment, show_moment
from ridgeline.audit.ledger.note import COSIGNATURE, Note, Signature, Verifier, merged, parse_note, parse_signer
from ridgeline.audit.ledger.proof import check_proof, parse_proof, prove
from ridgeline.audit.ledger.reading import read_bundle
from ridgeline.audit.ledger.tiles import Tiles, entries_of
from ridgeline.audit.ledger.verify import examine
from ridgeline.audit.ledger.where import parse_where
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
        note = merged(self.checkpoint.note, [WITNESS.cosign(self.checkpoint.text(), 1_700_000_000)])
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
        found = read_checkpoint(data, SIGNER.verifier, "it")
        assert found.text() == world().checkpoint.text(), "nobody signed this"
        for signature in WITNESS.verifier.signed(found.note):
            assert WITNESS.cosign(found.text(), int.from_bytes(signature.body[:8], "big")) == signature
    # The same bytes as the text of a note that the key did sign: then only the grammar of checkpoints stands guard.
    with suppress(UnicodeDecodeError, Unverified):
        text = data.decode()
        found = read_checkpoint(str(Note(text, (SIGNER.sign(text),))).encode(), SIGNER.verifier, "it")
        origin, size, root, *more = text.removesuffix("\n").split("\n")
        assert (origin, size) == (NAME, str(int(size)))
        assert len(base64.b64decode(root, validate=True)) == 32
        assert all(more)
        assert found.text() == text


def fuzz_key(data: bytes) -> None:
    text = data.decode(errors="replace")
    with suppress(InputError):
        found = parse_verifier(text)
        assert str(found) == text.strip()
    with suppress(InputError):
        assert parse_signer(text, "it").secret() == text.strip()
    for kind in (
        (1, COSIGNATURE) if len(data) >= 32 else ()
    ):  # any bytes as a public key: no point of the curve, perhaps
        public = Verifier("a", kind, data[:32])
        with suppress(Unverified):
            public.signed(Note("text\n", (Signature("a", public.key_id, data[32:]),)))


def fuzz_tile(data: bytes) -> None:
    """The last byte chooses which file of the log is replaced by the others."""
    here, which, data = world(), data[-1:] or b"\0", data[:-1]
    try:
        ends = entry_ends(data).tolist()
    except ValueError:
        ends = None
    if ends is None:
        with suppress(Unverified):
            assert not entries_of(data, "it"), "entries without ends"
    else:
        entries = naive.bundle(data)
        assert entries_of(data, "it") == entries
        assert len(ends) == len(entries)
        assert bundle_hashes(data) == b"".join(map(naive.leaf, entries))
    name = FILES[which[0] % len(FILES)]
    (here.log / name).write_bytes(data)
    try:
        for number, right in enumerate(here.entries):
            with suppress(Unverified):
                assert read_bundle(Tiles(here.log), here.checkpoint, number) == right
        assert examine(here.log, SIGNER.verifier).ok == (data == here.files[name])
    finally:
        (here.log / name).write_bytes(here.files[name])


def fuzz_proof(data: bytes) -> None:
    here = world()
    with suppress(Unverified):
        assert str(parse_proof(data, "it")).encode() == data
    with suppress(Unverified, InputError):
        found = check_proof(data, SIGNER.verifier, "it")
        right = here.entries[found.index // 256][found.index % 256]
        assert found.leaf_hash == naive.leaf(right)
    # And as bare numbers and hashes, past every grammar.
    index, rest = int.from_bytes(data[:2], "big"), data[2:]
    path = [rest[k : k + 32] for k in range(0, len(rest), 32)]
    with suppress(Unverified):
        root = merkle.root_from_inclusion(index, SIZE, naive.leaf(here.entry), path)
        assert root != here.checkpoint.root or (index, path) == (PROVED, here.inclusion)
    with suppress(Unverified):
        merkle.check_consistency(index, SIZE, here.old_root, here.checkpoint.root, path)
        assert (index, path) == (PROVED, here.consistency)


def fuzz_event(data: bytes) -> None:
    with suppress(Unverified):
        found = decode(data, "it")
        if "stored" not in found:
            again = encode([found], own=True)
            assert (again.large[0][2] if again.large else again.entries[2:]) == data
    with suppress(InputError):
        given = parse_line(data, "it")
        taken = encode([given])
        found = decode(taken.entries[2:])
        assert found["source"] == given["source"]
        whole = decode(taken.large[0][2]) if taken.large else found
        assert canonical_json(whole["attributes"]) == canonical_json(given.get("attributes") or {})
    with suppress(ValueError, RecursionError):
        written = canonical_json(json.loads(data))
        assert naive.canonical(json.loads(written)).encode() == written


def fuzz_journal(data: bytes) -> None:
    """`data` behind a whole header: what is read must be what was written, from its beginning on."""
    here = world()
    path = here.folder / "journal"
    path.write_bytes(journal_header() + data)
    journal = Journal(path)
    try:
        with suppress(StoreError):
            found = journal.read()
            at = 0
            for held, (first, entries) in zip(found, written_records(), strict=False):
                assert (held.first, held.entries, held.hashes) == (first, entries, bundle_hashes(entries))
                at += 48 + len(entries)
            assert len(found) <= len(written_records())
            assert data[:at] == journal_records()[:at]
            assert journal.end == 4096 + at
    finally:
        journal.close()
    path.write_bytes(data)  # and as a file that has no header of ours
    journal = Journal(path)
    try:
        with suppress(StoreError):
            found = journal.read()
            assert not data.strip(b"\0") or data.startswith(journal_header()[:64])
            assert [held.entries for held in found] == [entries for _, entries in written_records()][: len(found)]
    finally:
        journal.close()


def fuzz_words(data: bytes) -> None:
    """What people type: a condition, a time."""
    text = data.decode(errors="replace")
    with suppress(InputError):
        event = {"source": "a", "attributes": {"n": 1, "s": ["x"]}, "time": 5, "index": 0}
        assert parse_where(text)(event) in (True, False)
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
    here = world()
    match name:
        case "checkpoint":
            text = Checkpoint(NAME, 5, bytes(32), ("more",)).text().encode()
            return [here.files["checkpoint"], here.cosigned, here.checkpoint.text().encode(), text]
        case "key":
            keys = [str(SIGNER.verifier), SIGNER.secret(), str(WITNESS.verifier)]
            signature = SIGNER.sign("text\n").body
            return [*(k.encode() for k in keys), WITNESS.verifier.public + signature]
        case "tile":
            return [here.files[file] + bytes([k]) for k, file in enumerate(FILES)]
        case "proof":
            bare = [PROVED.to_bytes(2, "big") + b"".join(p) for p in (here.inclusion, here.consistency)]
            return [here.proof, *bare]
        case "event":
            large = encode([{"source": "a", "action": "b", "time": 1, "attributes": {"x": "y" * 70_000}}])
            line = b'{"source":"a","action":"b.c","attributes":{"n":[1,-0.5,1e300,"\\ud83d\\ude00"]}}'
            return [here.entry, large.entries[2:], line, b"[9007199254740992,1e21,1e-7,{}]"]
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
    found = b""
    for first, entries in written_records():
        hashes = bundle_hashes(entries)
        count = len(hashes) // 32
        digest = sha256(SALT + struct.pack("<QIQ", first, count, len(entries)) + hashes).digest()[:24]
        found += struct.pack("<4sIQQ24s", b"\x9dRL\xe1", count, first, len(entries), digest) + entries
    return found
