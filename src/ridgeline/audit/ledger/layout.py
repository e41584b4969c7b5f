"""The files of a ledger: the folder that may be served, and the private folder of its writer.

log/                     any web server may serve it
  checkpoint             the newest signed size and root
  tile/…                 hashes and entries
  blob/<sha256>          events too large for an entry
  witness/<keyid>        the newest checkpoint that each witness co-signed
  .tmp/                  unfinished files, only while a writer runs
log.private/             mode 0700
  key                    the signing key, mode 0600 (unless the user has another key file)
  ledger.json            the public key, and the path of another key file
  lock                   the writer locks it
  journal.0, journal.1   acknowledged entries that are not yet in tiles
  published              the checkpoint of the last full sync: a log that is shorter was cut
  positions.json         how far each source of the watcher was read; the journals may hold newer positions
  personal.json          which fields of events are personal (personal.py)
  tiers.json             the folders to which old payloads were moved (tiers.py)
  subjects/              the keys of the persons whose fields are encrypted (persons.py)
  socket                 the writer's socket
"""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from ridgeline.audit.ledger.checkpoint import LARGEST_NOTE, Signer, Verifier, parse_signer, parse_verifier
from ridgeline.errors import InputError, StoreError
from ridgeline.store import StrPath, explain_errors, publish

LARGEST_BUNDLE = 256 * (2 + 65_535)


@dataclass(frozen=True)
class LedgerPaths:
    """The paths of one ledger; `log` is its folder."""

    log: Path

    @property
    def private(self) -> Path:
        return self.log.with_name(self.log.name + ".private")

    @property
    def checkpoint(self) -> Path:
        return self.log / "checkpoint"

    @property
    def temporary(self) -> Path:
        return self.log / ".tmp"

    @property
    def witnesses(self) -> Path:
        return self.log / "witness"

    @property
    def lock(self) -> Path:
        return self.private / "lock"

    @property
    def key(self) -> Path:
        return self.private / "key"

    @property
    def settings(self) -> Path:
        return self.private / "ledger.json"

    @property
    def published(self) -> Path:
        return self.private / "published"

    @property
    def positions(self) -> Path:
        return self.private / "positions.json"

    @property
    def personal(self) -> Path:
        return self.private / "personal.json"

    @property
    def tiers(self) -> Path:
        return self.private / "tiers.json"

    @property
    def persons(self) -> Path:
        return self.private / "subjects"

    @property
    def socket(self) -> Path:
        return self.private / "socket"

    def journal(self, number: int) -> Path:
        return self.private / f"journal.{number}"

    def blob(self, sha256: str) -> Path:
        return self.log / "blob" / sha256


def find_ledger(path: StrPath) -> LedgerPaths:
    """Find the ledger at `path`; raise `InputError` if there is no checkpoint, no tile and no private folder."""
    paths = LedgerPaths(Path(os.path.abspath(path)))
    if not paths.log.is_dir():
        raise InputError(f"there is no ledger at {path}; make one with: ridgeline audit init {path} --origin NAME")
    if not paths.checkpoint.exists() and not paths.settings.exists() and not (paths.log / "tile").exists():
        raise InputError(f"{path} holds no ledger (no checkpoint, no tiles); make one with audit init in a new folder.")
    return paths


def list_tiers(paths: LedgerPaths) -> list[Path]:
    """Return the folders to which payloads of this log were moved (tiers.py)."""
    try:
        return [Path(words) for words in json.loads(paths.tiers.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError):
        raise StoreError(
            f"{paths.tiers} is damaged; restore it, or list the folders of moved payloads in it."
        ) from None


def check_private(paths: LedgerPaths) -> None:
    """Raise `StoreError` if other users can write into the private folder: they could replace what is in it."""
    with explain_errors(paths.private):
        mode = stat.S_IMODE(paths.private.stat().st_mode)
    if mode & 0o022:
        raise StoreError(f"{paths.private} can be written by others (mode {mode:04o}); chmod 700 it first.")


def write_key(path: Path, signer: Signer) -> None:
    """Write a key file that only its owner can read, from the first byte on."""
    with publish(path, mode=0o600) as tmp:
        fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(signer.secret() + "\n")


def read_key(path: Path) -> Signer:
    """Read a key file; raise `StoreError` if other users can read it."""
    with explain_errors(path):
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8", errors="replace")
    if not stat.S_ISREG(mode) or stat.S_IMODE(mode) & 0o077:
        raise StoreError(f"the key {path} can be read by others (mode {stat.S_IMODE(mode):04o}); chmod 600 it first.")
    return parse_signer(text, str(path))


def write_settings(paths: LedgerPaths, verifier: Verifier, key_file: Path | None) -> None:
    words = {"key": str(verifier), **({"key_file": str(key_file)} if key_file is not None else {})}
    with publish(paths.settings) as tmp:
        tmp.write_text(json.dumps(words, indent=1) + "\n", encoding="utf-8")


def read_settings(paths: LedgerPaths) -> tuple[Verifier, Path | None]:
    """Return the log's public key as its machine knows it, and the path of its key file if that lies elsewhere."""
    try:
        words = json.loads(paths.settings.read_text(encoding="utf-8"))
        verifier = parse_verifier(str(words["key"]))
        key_file = words.get("key_file")
    except FileNotFoundError:
        raise InputError(
            f"{paths.private} does not exist, so the log's key is unknown; give the published key with --key."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, UnicodeDecodeError):
        raise StoreError(f"{paths.settings} is damaged; restore it from a copy, or give the key with --key.") from None
    return verifier, Path(key_file) if key_file else None


def read_note(path: Path) -> bytes | None:
    """Read a checkpoint file, unverified; None if it does not exist."""
    try:
        return read_regular(path, LARGEST_NOTE)
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_regular(path: Path, most: int = LARGEST_BUNDLE) -> bytes:
    """Read a regular file, at most `most` + 1 bytes; raise FileNotFoundError if it is no regular file.

    Files of a served log may be anything until they are hashed: a pipe must not block the reader, and an endless file
    must not fill its memory.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # do not wait for the writer of a pipe
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "no plain file", str(path))
        parts, left = list[bytes](), min(status.st_size, most) + 1
        while left and (part := os.read(fd, left)):  # some network filesystems return fewer bytes than requested
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)
