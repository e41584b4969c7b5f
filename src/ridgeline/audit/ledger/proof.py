"""Proof files (c2sp.org/tlog-proof): they prove, without the log, that an event is in the log.

    c2sp.org/tlog-proof@v1
    extra …                 the entry, in base64 (absent if its payload was pruned)
    index 73894
    …                       the hashes from leaf to root
                            a blank line, then the checkpoint with its signatures

The extra line needs no signature: its hash must lead to the signed root.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.checkpoint import (
    COSIGNATURE,
    MOST_SIGNATURES,
    Checkpoint,
    Verifier,
    decode_base64,
    decode_hash,
    merge_signatures,
    parse_checkpoint,
    read_checkpoint,
    read_cosignature_time,
)
from ridgeline.audit.ledger.event import decode
from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.tiles import LARGEST_ENTRY
from ridgeline.audit.ledger.witness import WitnessStatement, read_cosigned_files
from ridgeline.errors import InputError, Unverified

_FIRST = "c2sp.org/tlog-proof@v1"
_INDEX = re.compile(r"index (0|[1-9][0-9]{0,18})")
_LONGEST_PATH = 63
_LARGEST = 2 << 20


@dataclass(frozen=True)
class Proof:
    """The content of a proof file."""

    index: int
    path: tuple[bytes, ...]
    checkpoint: Checkpoint
    extra: bytes | None = None

    def __str__(self) -> str:
        extra = [f"extra {base64.b64encode(self.extra).decode()}"] if self.extra is not None else []
        lines = [_FIRST, *extra, f"index {self.index}", *(base64.b64encode(h).decode() for h in self.path)]
        return "\n".join(lines) + "\n\n" + str(self.checkpoint)


@dataclass(frozen=True)
class ProofResult:
    """A verified proof: which entry it proves, under which checkpoint, co-signed by which witnesses."""

    index: int
    leaf_hash: bytes
    event: dict[str, Any] | None  # None if only the hash is known, or the entry is no event
    checkpoint: Checkpoint
    witnesses: tuple[WitnessStatement, ...]


def prove(ledger: Ledger, index: int) -> Proof:
    """Prove one entry under the newest checkpoint, with all co-signatures of that checkpoint."""
    checkpoint = _add_cosignatures(ledger, ledger.checkpoint())
    if not 0 <= index < checkpoint.size:
        raise InputError(f"there is no entry {index} in {ledger.path}: it has {checkpoint.size}.")
    try:
        extra: bytes | None = ledger.raw(index)
    except Unverified as error:
        if error.kind != "missing":
            raise
        extra = None
    path = ledger.prove_inclusion(index, checkpoint.size)
    leaf = merkle.leaf_hash(extra) if extra is not None else ledger.leaf(index)
    if merkle.root_from_inclusion(index, checkpoint.size, leaf, path) != checkpoint.root:
        raise Unverified("altered", f"entry {index} does not lead to the signed root; see: ridgeline audit verify.")
    return Proof(index, tuple(path), checkpoint, extra)


def parse_proof(data: bytes, what: str) -> Proof:
    """Parse a proof file without verifying it. `what` names it in errors."""

    def wrong(why: str) -> Unverified:
        return Unverified("malformed", f"{what} is no tlog-proof: {why}.")

    if len(data) > _LARGEST:
        raise wrong(f"it has {len(data)} bytes")
    head, blank, note = data.partition(b"\n\n")
    if not blank:
        raise wrong("no checkpoint follows")
    try:
        lines = head.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise wrong("its head is not ASCII") from None
    if lines[0] != _FIRST:
        raise wrong(f"its first line is not {_FIRST}")
    rest, extra = lines[1:], None
    if rest and rest[0].startswith("extra "):
        extra = decode_base64(rest[0].removeprefix("extra "))
        if extra is None:
            raise wrong("its extra line is not base64")
        rest = rest[1:]
    match = _INDEX.fullmatch(rest[0]) if rest else None
    if match is None:
        raise wrong("it has no line 'index N'")
    hashes = [decode_hash(line) for line in rest[1:]]
    if len(hashes) > _LONGEST_PATH or None in hashes:
        raise wrong("its hashes are not lines of base64, 63 at most")
    return Proof(int(match[1]), tuple(h for h in hashes if h is not None), parse_checkpoint(note, what), extra)


def check_proof(
    data: bytes,
    verifier: Verifier,
    what: str,
    *,
    entry: bytes | None = None,
    leaf: bytes | None = None,
    witnesses: Sequence[Verifier] = (),
    require: int = 0,
) -> ProofResult:
    """Verify a proof file; raise `Unverified` if it proves nothing.

    data       the bytes of the proof file; `what` names it in errors
    verifier   the public key of the log
    entry      the bytes of the entry, if the proof does not carry them or must be about exactly this entry
    leaf       the leaf hash of the entry, in place of `entry`
    witnesses  public keys of witnesses; `require` of them must have co-signed
    """
    proof = parse_proof(data, what)
    note = proof.checkpoint.note
    read_checkpoint(str(note).encode(), verifier, what)
    carried = proof.extra
    if entry is not None:
        if carried is not None and carried != entry:
            raise Unverified("proof", f"{what} is about another entry than the one that was given.")
        carried = entry
    if carried is not None and len(carried) > LARGEST_ENTRY:
        raise Unverified("malformed", f"{what} carries {len(carried)} bytes, more than an entry can have.")
    leaf_hash = merkle.leaf_hash(carried) if carried is not None else leaf
    if leaf_hash is None:
        raise InputError(f"{what} carries no entry (its payload was pruned); give it with --entry, or --leaf HASH.")
    if leaf is not None and leaf != leaf_hash:
        raise Unverified("proof", f"{what} is about another entry than the leaf hash that was given.")
    size = proof.checkpoint.size
    if merkle.root_from_inclusion(proof.index, size, leaf_hash, proof.path) != proof.checkpoint.root:
        raise Unverified("proof", f"{what} does not lead to the root that the checkpoint signs.")
    seen: dict[bytes, WitnessStatement] = {}  # by key: the same key under two names is one witness
    for witness in witnesses:
        if witness.kind != COSIGNATURE:
            raise InputError(f"{witness} is the key of a log, not of a witness; give the one `audit witness` printed.")
        signatures = witness.find_signatures(note) if note is not None else []
        if signatures:
            seen[witness.public] = WitnessStatement(
                witness.name, size, max(read_cosignature_time(s.body) for s in signatures)
            )
    if len(seen) < require:
        raise Unverified(
            "unwitnessed", f"{what} is co-signed by {len(seen)} of the given witnesses, {require} required."
        )
    return ProofResult(proof.index, leaf_hash, _event(carried), proof.checkpoint, tuple(seen.values()))


def _add_cosignatures(ledger: Ledger, newest: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the co-signatures of the same checkpoint in the witness folder."""
    if newest.note is None:
        return newest
    note = newest.note
    for name, data in read_cosigned_files(LedgerPaths(ledger.path)):
        try:
            other = parse_checkpoint(data, name)
        except Unverified:
            continue
        if other.text() == newest.text() and other.note is not None:
            more = merge_signatures(note, [s for s in other.note.signatures if s.name != newest.origin])
            note = more if len(more.signatures) <= MOST_SIGNATURES else note
    return Checkpoint(newest.origin, newest.size, newest.root, newest.extensions, note)


def _event(entry: bytes | None) -> dict[str, Any] | None:
    try:
        return decode(entry) if entry is not None else None
    except Unverified:
        return None


def parse_leaf_hash(text: str) -> bytes:
    """Parse a leaf hash in hexadecimal."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != sha256().digest_size:
        raise InputError(f"--leaf '{text[:80]}' is no SHA-256 in hexadecimal.")
    return raw
