"""Signed notes (c2sp.org/signed-note): a text, a blank line, and one line for each signature.

Three kinds of key stand here: a log's, which signs the text (type 0x01); a witness's, which signs the text and the
time at which it saw it (type 0x04, c2sp.org/tlog-cosignature); and `Verifier`, the public half of either, written
as `name+keyid+base64(type, key)`. A private key is written as Go's note package writes it:
`PRIVATE+KEY+name+keyid+base64(type, seed)`.

Reading is strict. Whatever is not exactly as it would have been written is refused, so no bit of a note can change
unseen, not even the spare ones at the end of a base64 text.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ridgeline.audit.ledger.files import LARGEST_NOTE
from ridgeline.errors import InputError, MissingExtra, Unverified

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ED25519, COSIGNATURE = 0x01, 0x04
_DASH = "— "
MOST_SIGNATURES = 100
_PRIVATE = "PRIVATE+KEY+"


@dataclass(frozen=True)
class Signature:
    """One line under a note: who claims to have signed, and the bytes behind the key id."""

    name: str
    key_id: bytes
    body: bytes

    def line(self) -> str:
        return f"{_DASH}{self.name} {base64.b64encode(self.key_id + self.body).decode()}\n"


@dataclass(frozen=True)
class Note:
    """A note as it was read; its text means nothing before a signature was verified."""

    text: str
    signatures: tuple[Signature, ...]

    def __str__(self) -> str:
        return self.text + "\n" + "".join(s.line() for s in self.signatures)


@dataclass(frozen=True)
class Verifier:
    """A public key with its name: of a log (ED25519) or of a witness (COSIGNATURE)."""

    name: str
    kind: int
    public: bytes

    @property
    def key_id(self) -> bytes:
        return hashlib.sha256(self.name.encode() + b"\n" + bytes([self.kind]) + self.public).digest()[:4]

    def __str__(self) -> str:
        encoded = base64.b64encode(bytes([self.kind]) + self.public).decode()
        return f"{self.name}+{self.key_id.hex()}+{encoded}"

    def signed(self, note: Note) -> list[Signature]:
        """The signatures of this key on `note`; one that claims to be and is not makes the note worthless."""
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
            message = cosigned_message(text, time_of(body))
            body = body[8:]
        if len(body) != 64:
            return False
        try:
            from cryptography.exceptions import InvalidSignature
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        except ImportError:
            raise MissingExtra("Ed25519", "ledger") from None
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(body, message)
        except InvalidSignature:
            return False
        return True


class Signer:
    """A private key with its name; it never shows its secret but to `secret()`, which writes key files."""

    def __init__(self, name: str, seed: bytes, kind: int = ED25519) -> None:
        check_name(name)
        self._key, self._seed = _private(seed), seed
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        public = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.verifier = Verifier(name, kind, public)

    @property
    def name(self) -> str:
        return self.verifier.name

    def sign(self, text: str) -> Signature:
        """The signature of a log under a note's text."""
        if self.verifier.kind != ED25519:
            raise InputError(f"{self.name} is the key of a witness, which co-signs only; give the key of a log.")
        return Signature(self.name, self.verifier.key_id, self._key.sign(text.encode()))

    def cosign(self, text: str, seconds: int) -> Signature:
        """The co-signature of a witness, at a time in seconds since 1970."""
        if self.verifier.kind != COSIGNATURE:
            raise InputError(f"{self.name} is the key of a log, which does not co-sign; give the key of a witness.")
        body = seconds.to_bytes(8, "big") + self._key.sign(cosigned_message(text, seconds))
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
    """A key as `Signer.secret` writes it; `what` names its file in errors, which never quote it."""
    words = text.strip().removeprefix(_PRIVATE).split("+", 2)
    wrong = InputError(f"{what} holds no Ed25519 key of the form PRIVATE+KEY+name+id+base64; make one with audit init.")
    if not text.startswith(_PRIVATE) or len(words) != 3:
        raise wrong
    raw = unbase64(words[2])
    if raw is None or len(raw) != 33 or raw[0] not in (ED25519, COSIGNATURE):
        raise wrong
    signer = Signer(words[0], raw[1:], raw[0])
    if signer.verifier.key_id.hex() != words[1]:
        raise InputError(f"{what} is damaged: its key id does not fit its key; restore it from a copy.")
    return signer


def parse_verifier(text: str) -> Verifier:
    """A public key as `str(Verifier)` writes it."""
    shown = text.strip()
    if shown.startswith(_PRIVATE):
        raise InputError("that is a private key; give the public one, which `ridgeline audit info` shows.")
    words = shown.split("+", 2)
    raw = unbase64(words[2]) if len(words) == 3 else None
    if raw is None or len(raw) != 33 or raw[0] not in (ED25519, COSIGNATURE):
        raise InputError(f"'{shown[:100]}' is no key of the form name+id+base64 with an Ed25519 key in it.")
    found = Verifier(words[0], raw[0], raw[1:])
    check_name(found.name)
    if found.key_id.hex() != words[1]:
        raise InputError(f"'{shown[:100]}' is mistyped: its id should be {found.key_id.hex()} for this name and key.")
    return found


def parse_note(data: bytes, what: str) -> Note:
    """Split a note into text and signatures, or say what of `what` is not as it must be."""

    def wrong(why: str) -> Unverified:
        return Unverified("malformed", f"{what} is no signed note: {why}.")

    if len(data) > LARGEST_NOTE:
        raise wrong(f"it has {len(data)} bytes")
    try:
        whole = data.decode()
    except UnicodeDecodeError:
        raise wrong("it is not UTF-8") from None
    if any(c < " " and c != "\n" for c in whole):
        raise wrong("it holds control characters")
    if not whole.endswith("\n"):
        raise wrong("it does not end with a newline")
    before, blank, after = whole.rpartition("\n\n")
    if not blank:
        raise wrong("no blank line stands before its signatures")
    if not after:
        raise Unverified("unsigned", f"{what} is not signed: nothing stands under its text.")
    lines = after[:-1].split("\n")
    if len(lines) > MOST_SIGNATURES:
        raise wrong(f"it has {len(lines)} signatures")
    signatures = []
    for number, line in enumerate(lines, start=1):
        words = line.removeprefix(_DASH).split(" ")
        raw = unbase64(words[1]) if line.startswith(_DASH) and len(words) == 2 and _is_name(words[0]) else None
        if raw is None or len(raw) < 5:
            raise wrong(f"line {number} under its text is no signature")
        signatures.append(Signature(words[0], raw[:4], raw[4:]))
    return Note(before + "\n", tuple(signatures))


def require(note: Note, verifier: Verifier, what: str) -> None:
    """Raise unless `verifier` signed `note`."""
    if verifier.signed(note):
        return
    names = ", ".join(f"{s.name} ({s.key_id.hex()})" for s in note.signatures)
    raise Unverified(
        "wrong key", f"{what} is not signed by {verifier.name} ({verifier.key_id.hex()}); it is signed by {names}."
    )


def merged(note: Note, more: Sequence[Signature]) -> Note:
    """The note with further signatures; of one key the newest stays."""
    fresh = {(s.name, s.key_id) for s in more}
    kept = [s for s in note.signatures if (s.name, s.key_id) not in fresh]
    return Note(note.text, (*kept, *more))


def cosigned_message(text: str, seconds: int) -> bytes:
    return f"cosignature/v1\ntime {seconds}\n{text}".encode()


def time_of(body: bytes) -> int:
    """When a co-signature was made, in seconds since 1970."""
    return int.from_bytes(body[:8], "big")


def check_name(name: str) -> None:
    if not _is_name(name):
        raise InputError(f"the name '{name}' must not be empty nor hold spaces, '+' or control characters.")


def unbase64_hash(text: str) -> bytes | None:
    """A hash of 32 bytes in base64, if it is exactly that."""
    raw = unbase64(text)
    return raw if raw is not None and len(raw) == 32 else None


def _is_name(name: str) -> bool:
    return bool(name) and "+" not in name and not any(c.isspace() or c < " " or c == "\x7f" for c in name)


def unbase64(text: str) -> bytes | None:
    """Base64 exactly as it would have been written."""
    try:
        raw = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if base64.b64encode(raw).decode() == text else None  # spare bits must be zero


def _private(seed: bytes) -> Ed25519PrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise MissingExtra("Ed25519", "ledger") from None
    return Ed25519PrivateKey.from_private_bytes(seed)
