"""Where a ledger keeps what: the served tree, and beside it what only its writer may see.

log/                     may be served by any web server
  checkpoint             the newest signed size and root
  tile/…                 hashes and entries
  blob/<sha256>          events too large for an entry
  witness/<keyid>        the newest checkpoint each witness co-signed
  .tmp/                  files on their way, only while someone writes
log.private/             mode 0700
  key                    the signing key, 0600 (unless one's own is used)
  ledger.json            the public key; where one's own key lies
  lock                   held by the one writer
  journal.0, journal.1   what was acknowledged and is not yet in tiles
  published              the checkpoint at the last quiet moment: a log that falls behind it was cut
  door                   the writer's socket
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from ridgeline.audit.ledger.note import Signer, Verifier, parse_signer, parse_verifier
from ridgeline.errors import InputError, StoreError
from ridgeline.store import StrPath, explained, publish


@dataclass(frozen=True)
class Home:
    """The places of one ledger."""

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
    def door(self) -> Path:
        return self.private / "door"

    def journal(self, number: int) -> Path:
        return self.private / f"journal.{number}"

    def blob(self, sha256: str) -> Path:
        return self.log / "blob" / sha256


def find(path: StrPath) -> Home:
    """The ledger at `path`, which must have a checkpoint, or at least its private part."""
    home = Home(Path(os.path.abspath(path)))
    if not home.log.is_dir():
        raise InputError(f"there is no ledger at {path}; make one with: ridgeline audit init {path} --origin NAME")
    if not home.checkpoint.exists() and not home.settings.exists() and not (home.log / "tile").exists():
        raise InputError(f"{path} holds no ledger (no checkpoint, no tiles); make one with audit init in a new folder.")
    return home


def write_key(path: Path, signer: Signer) -> None:
    """A key file that only its owner can read, from its first byte."""
    with publish(path, mode=0o600) as tmp:
        fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(signer.secret() + "\n")


def read_key(path: Path) -> Signer:
    """The key in a file that nobody else may read."""
    with explained(path):
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8", errors="replace")
    if not stat.S_ISREG(mode) or stat.S_IMODE(mode) & 0o077:
        raise StoreError(f"the key {path} can be read by others (mode {stat.S_IMODE(mode):04o}); chmod 600 it first.")
    return parse_signer(text, str(path))


def write_settings(home: Home, verifier: Verifier, own_key: Path | None) -> None:
    words = {"key": str(verifier), **({"key_file": str(own_key)} if own_key is not None else {})}
    with publish(home.settings) as tmp:
        tmp.write_text(json.dumps(words, indent=1) + "\n", encoding="utf-8")


def read_settings(home: Home) -> tuple[Verifier, Path | None]:
    """The log's public key as its own machine knows it, and where its private key lies."""
    try:
        words = json.loads(home.settings.read_text(encoding="utf-8"))
        verifier = parse_verifier(str(words["key"]))
        own = words.get("key_file")
    except FileNotFoundError:
        raise InputError(
            f"{home.private} is not here, so the log's key is not known; give the one its owner published with --key."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, UnicodeDecodeError):
        raise StoreError(f"{home.settings} is damaged; restore it from a copy, or give the key with --key.") from None
    return verifier, Path(own) if own else None
