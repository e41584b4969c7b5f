"""Signed notes (c2sp.org/signed-note) and checkpoints (c2sp.org/tlog-checkpoint): signatures of the states of a log.

A note is a text, a blank line, and one line for each signature. There are two kinds of key: the key of a log signs the
text (type 0x01); the key of a witness signs the text and the time (type 0x04, c2sp.org/tlog-cosignature). `Verifier` is
the public half of either, written as `name+keyid+base64(type, key)`. A private key is written as Go's note package
writes it: `PRIVATE+KEY+name+keyid+base64(type, seed)`.

A checkpoint is a note whose text is the origin, the size and the root hash of a log:

>>> print(Checkpoint("example.test/log", 0, EMPTY).text(), end="")
example.test/log
0
47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=

Parsing is strict: it accepts only the exact bytes that formatting would write. So no bit of a note can change
unnoticed, not even the unused bits at the end of a base64 text.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from ridgeline.audit.ledger.merkle import EMPTY, HASH
from ridgeline.errors import InputError, MissingExtra, Unverified

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ED25519, COSIGNATURE = 0x01, 0x04
_DASH = "— "
MOST_SIGNATURES = 100
LARGEST_NOTE = 1 << 20  # bytes
_PRIVATE = "PRIVATE+KEY+"
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")
_NOT_IN_NAMES = re.compile(r"[\s+\x00-\x1f\x7f]")
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")
__all__ = ["EMPTY", "HASH", "Checkpoint", "parse_checkpoint", "read_checkpoint", "sign_checkpoint"]


@dataclass(frozen=True)
class Signature:
    """One signature line of a note: the name it claims, the key id, and the bytes after the key id."""

    name: str
    key_id: bytes
    body: bytes

    def line(self) -> str:
        return f"{_DASH}{self.name} {base64.b64encode(self.key_id + self.body).decode()}\n"


@dataclass(frozen=True)
class Note:
    """A parsed note. Do not trust its text before a signature is verified."""

    text: str
    signatures: tuple[Signature, ...]

    def __str__(self) -> str:
        return self.text + "\n" + "".join(s.line() for s in self.signatures)


@dataclass(frozen=True)
class Verifier:
    """A public key with its name: the key of a log (kind ED25519) or of a witness (kind COSIGNATURE)."""

    name: str
    kind: int
    public: bytes

    @cached_property
    def key_id(self) -> bytes:
        return hashlib.sha256(self.name.encode() + b"\n" + bytes([self.kind]) + self.public).digest()[:4]

    def __str__(self) -> str:
        encoded = base64.b64encode(bytes([self.kind]) + self.public).decode()
        return f"{self.name}+{self.key_id.hex()}+{encoded}"

    def find_signatures(self, note: Note) -> list[Signature]:
        """Return the signatures of this key on `note`; raise `Unverified` if one claims to be and is not."""
        mine = [s for s in note.signatures if s.name == self.name and s.key_id == self.key_id]
        for signature in mine:
            if not self._holds(note.text, signature.body):
                raise Unverified(
                    "bad signature", f"a signature of {self.name} does not fit the note: one of them was altered."
                )
        return mine

    def _holds(self, text: str, body: bytes) -> bool:
        message = text.encode()
        if self.kind == COSIGNATURE:
            if len(body) != 8 + 64 or body[0] & 0x80:
                return False
            message = cosignature_message(text, read_cosignature_time(body))
            body = body[8:]
        if len(body) != 64:
            return False
        try:
            from cryptography.exceptions import InvalidSignature
        except ImportError:
            raise MissingExtra("Ed25519", "ledger") from None
        try:
            _load_public_key(self.public).verify(body, message)
        except InvalidSignature:
            return False
        return True


class Signer:
    """A private key with its name. Only `secret()`, which writes key files, gives the secret out."""

    def __init__(self, name: str, seed: bytes, kind: int = ED25519) -> None:
        check_name(name)
        self._key, self._seed = _load_private_key(seed), seed
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        public = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.verifier = Verifier(name, kind, public)

    @property
    def name(self) -> str:
        return self.verifier.name

    def sign(self, text: str) -> Signature:
        """Sign the text of a note with the key of a log."""
        if self.verifier.kind != ED25519:
            raise InputError(f"{self.name} is the key of a witness, which co-signs only; give the key of a log.")
        return Signature(self.name, self.verifier.key_id, self._key.sign(text.encode()))

    def cosign(self, text: str, seconds: int) -> Signature:
        """Co-sign the text of a note with the key of a witness, at a time in seconds since 1970."""
        if self.verifier.kind != COSIGNATURE:
            raise InputError(f"{self.name} is the key of a log, which does not co-sign; give the key of a witness.")
        body = seconds.to_bytes(8, "big") + self._key.sign(cosignature_message(text, seconds))
        return Signature(self.name, self.verifier.key_id, body)

    def secret(self) -> str:
        encoded = base64.b64encode(bytes([self.verifier.kind]) + self._seed).decode()
        return f"{_PRIVATE}{self.name}+{self.verifier.key_id.hex()}+{encoded}"

    def __repr__(self) -> str:
        return f"Signer({self.verifier})"


def new_signer(name: str, kind: int = ED25519) -> Signer:
    import secrets

    return Signer(name, secrets.token_bytes(32), kind)


def parse_signer(text: str, what: str) -> Signer:
    """Parse a key as `Signer.secret` writes it. `what` names its file in errors; errors never quote the key."""
    words = text.strip().removeprefix(_PRIVATE).split("+", 2)
    wrong = InputError(f"{what} holds no Ed25519 key of the form PRIVATE+KEY+name+id+base64; make one with audit init.")
    if not text.startswith(_PRIVATE) or len(words) != 3:
        raise wrong
    raw = decode_base64(words[2])
    if raw is None or len(raw) != 33 or raw[0] not in (ED25519, COSIGNATURE):
        raise wrong
    signer = Signer(words[0], raw[1:], raw[0])
    if signer.verifier.key_id.hex() != words[1]:
        raise InputError(f"{what} is damaged: its key id does not fit its key; restore it from a copy.")
    return signer


def parse_verifier(text: str) -> Verifier:
    """Parse a public key as `str(Verifier)` writes it; raise `InputError` if it is malformed or mistyped."""
    key = text.strip()
    if key.startswith(_PRIVATE):
        raise InputError("that is a private key; give the public one, which `ridgeline audit info` shows.")
    words = key.split("+", 2)
    raw = decode_base64(words[2]) if len(words) == 3 else None
    if raw is None or len(raw) != 33 or raw[0] not in (ED25519, COSIGNATURE):
        raise InputError(f"'{key[:100]}' is no key of the form name+id+base64 with an Ed25519 key in it.")
    verifier = Verifier(words[0], raw[0], raw[1:])
    check_name(verifier.name)
    if verifier.key_id.hex() != words[1]:
        raise InputError(f"'{key[:100]}' is mistyped: its id should be {verifier.key_id.hex()} for this name and key.")
    return verifier


def parse_note(data: bytes, what: str) -> Note:
    """Split a note into text and signatures; raise `Unverified` with the fault. `what` names the note in errors."""

    def wrong(why: str) -> Unverified:
        return Unverified("malformed", f"{what} is no signed note: {why}.")

    if len(data) > LARGEST_NOTE:
        raise wrong(f"it has {len(data)} bytes")
    try:
        content = data.decode()
    except UnicodeDecodeError:
        raise wrong("it is not UTF-8") from None
    if _CONTROL.search(content):
        raise wrong("it holds control characters")
    if not content.endswith("\n"):
        raise wrong("it does not end with a newline")
    before, blank, after = content.rpartition("\n\n")
    if not blank:
        raise wrong("it has no blank line before its signatures")
    if not after:
        raise Unverified("unsigned", f"{what} is not signed: it has no signature under its text.")
    lines = after[:-1].split("\n")
    if len(lines) > MOST_SIGNATURES:
        raise wrong(f"it has {len(lines)} signatures")
    signatures = []
    for number, line in enumerate(lines, start=1):
        words = line.removeprefix(_DASH).split(" ")
        raw = decode_base64(words[1]) if line.startswith(_DASH) and len(words) == 2 and _is_name(words[0]) else None
        if raw is None or len(raw) < 5:
            raise wrong(f"line {number} under its text is no signature")
        signatures.append(Signature(words[0], raw[:4], raw[4:]))
    return Note(before + "\n", tuple(signatures))


def require_signature(note: Note, verifier: Verifier, what: str) -> None:
    """Raise `Unverified` unless `verifier` signed `note`."""
    if verifier.find_signatures(note):
        return
    names = ", ".join(f"{s.name} ({s.key_id.hex()})" for s in note.signatures)
    raise Unverified(
        "wrong key", f"{what} is not signed by {verifier.name} ({verifier.key_id.hex()}); it is signed by {names}."
    )


def merge_signatures(note: Note, more: Sequence[Signature]) -> Note:
    """Add signatures to a note; a new signature replaces an older one of the same key."""
    fresh = {(s.name, s.key_id) for s in more}
    remaining = [s for s in note.signatures if (s.name, s.key_id) not in fresh]
    return Note(note.text, (*remaining, *more))


def cosignature_message(text: str, seconds: int) -> bytes:
    return f"cosignature/v1\ntime {seconds}\n{text}".encode()


def read_cosignature_time(body: bytes) -> int:
    """Read the time of a co-signature, in seconds since 1970."""
    return int.from_bytes(body[:8], "big")


def check_name(name: str) -> None:
    if not _is_name(name):
        raise InputError(f"the name '{name}' must not be empty nor hold spaces, '+' or control characters.")


def decode_hash(text: str) -> bytes | None:
    """Decode a hash of 32 bytes in base64; None if the text is anything else."""
    raw = decode_base64(text)
    return raw if raw is not None and len(raw) == 32 else None


def _is_name(name: str) -> bool:
    return bool(name) and _NOT_IN_NAMES.search(name) is None


def decode_base64(text: str) -> bytes | None:
    """Decode base64 that is exactly as an encoder writes it, else None."""
    try:
        raw = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if base64.b64encode(raw).decode() == text else None  # unused bits must be zero


@lru_cache(4096)
def _load_public_key(public: bytes) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(public)


def _load_private_key(seed: bytes) -> Ed25519PrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise MissingExtra("Ed25519", "ledger") from None
    return Ed25519PrivateKey.from_private_bytes(seed)


@dataclass(frozen=True)
class Checkpoint:
    """The state of a log at one size: `origin` (its name), `size` (entries), `root` (hash); signatures in `note`."""

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


def sign_checkpoint(origin: str, size: int, root: bytes, signer: Signer) -> Checkpoint:
    plain = Checkpoint(origin, size, root)
    note = merge_signatures(Note(plain.text(), ()), [signer.sign(plain.text())])
    return Checkpoint(origin, size, root, note=note)


def parse_checkpoint(data: bytes, what: str) -> Checkpoint:
    """Parse a checkpoint without checking its signatures. `what` names it in errors."""
    note = parse_note(data, what)
    lines = note.text[:-1].split("\n")
    if len(lines) < 3 or not all(lines):
        raise Unverified("malformed", f"{what} is no checkpoint: it needs three lines or more, none of them empty.")
    root = decode_hash(lines[2])
    if not _SIZE.fullmatch(lines[1]) or int(lines[1]) >= 1 << 63:
        raise Unverified("malformed", f"{what} is no checkpoint: its size '{lines[1][:30]}' is no decimal number.")
    if root is None:
        raise Unverified("malformed", f"{what} is no checkpoint: its third line is no hash in base64.")
    checkpoint = Checkpoint(lines[0], int(lines[1]), root, tuple(lines[3:]), note)
    if checkpoint.size == 0 and checkpoint.root != EMPTY:
        raise Unverified("malformed", f"{what} is no checkpoint: an empty log has another root.")
    return checkpoint


def read_checkpoint(data: bytes, verifier: Verifier, what: str) -> Checkpoint:
    """Parse a checkpoint and require the signature of `verifier`, whose name is the log's origin."""
    checkpoint = parse_checkpoint(data, what)
    if checkpoint.note is None:  # cannot happen: `parse_checkpoint` sets it
        raise Unverified("unsigned", f"{what} is not signed.")
    require_signature(checkpoint.note, verifier, what)
    if checkpoint.origin != verifier.name:
        raise Unverified(
            "wrong key", f"{what} is of the log '{checkpoint.origin}', but the key is of '{verifier.name}'."
        )
    return checkpoint
