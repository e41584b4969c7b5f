"""Checkpoints (c2sp.org/tlog-checkpoint): origin, size and root of a log, signed.

>>> print(Checkpoint("example.test/log", 0, EMPTY).text(), end="")
example.test/log
0
47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field

from ridgeline.audit.ledger.merkle import EMPTY, HASH
from ridgeline.audit.ledger.note import Note, Signer, Verifier, merged, parse_note, require, unbase64_hash
from ridgeline.errors import Unverified

_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")
__all__ = ["EMPTY", "HASH", "Checkpoint", "parse_checkpoint", "read_checkpoint", "signed_checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """What a log says of itself at one size; `note` carries the signatures it was read or made with."""

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()
    note: Note | None = field(default=None, compare=False, repr=False)

    def text(self) -> str:
        lines = [self.origin, str(self.size), base64.b64encode(self.root).decode(), *self.extensions]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return str(self.note) if self.note is not None else self.text()


def signed_checkpoint(origin: str, size: int, root: bytes, signer: Signer) -> Checkpoint:
    plain = Checkpoint(origin, size, root)
    note = merged(Note(plain.text(), ()), [signer.sign(plain.text())])
    return Checkpoint(origin, size, root, note=note)


def parse_checkpoint(data: bytes, what: str) -> Checkpoint:
    """A checkpoint whose signatures nobody has looked at yet."""
    note = parse_note(data, what)
    lines = note.text[:-1].split("\n")
    if len(lines) < 3 or not all(lines):
        raise Unverified("malformed", f"{what} is no checkpoint: it needs three lines or more, none of them empty.")
    root = unbase64_hash(lines[2])
    if not _SIZE.fullmatch(lines[1]) or int(lines[1]) >= 1 << 63:
        raise Unverified("malformed", f"{what} is no checkpoint: its size '{lines[1][:30]}' is no decimal number.")
    if root is None:
        raise Unverified("malformed", f"{what} is no checkpoint: its third line is no hash in base64.")
    found = Checkpoint(lines[0], int(lines[1]), root, tuple(lines[3:]), note)
    if found.size == 0 and found.root != EMPTY:
        raise Unverified("malformed", f"{what} is no checkpoint: an empty log has another root.")
    return found


def read_checkpoint(data: bytes, verifier: Verifier, what: str) -> Checkpoint:
    """A checkpoint that `verifier` signed, of the log that bears its name."""
    found = parse_checkpoint(data, what)
    if found.note is None:  # never: it was parsed from one
        raise Unverified("unsigned", f"{what} is not signed.")
    require(found.note, verifier, what)
    if found.origin != verifier.name:
        raise Unverified("wrong key", f"{what} is of the log '{found.origin}', but the key is of '{verifier.name}'.")
    return found
