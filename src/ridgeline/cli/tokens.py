"""Bearer tokens of servers: from a file or the environment, never on the command line, which every user can read."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.store import explain_errors, publish


def read_token(file: Path) -> str:
    """Read the token in `file`, which only its owner may read."""
    with explain_errors(file):
        mode, text = stat.S_IMODE(file.stat().st_mode), file.read_text(encoding="utf-8", errors="replace")
    if mode & 0o077:
        raise InputError(f"the token in {file} can be read by others (mode {mode:04o}); chmod 600 it first.")
    return text.strip()


def create_token(file: Path) -> None:
    """Write a new token to `file`, readable by its owner only."""
    with publish(file, mode=0o600) as tmp:
        fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as out:
            out.write(secrets.token_urlsafe(32) + "\n")


def find_token(file: Path | None, variable: str) -> tuple[str | None, str]:
    """Return the token of a file, which is created if it is missing, or of the environment, and where it is."""
    if file is None:
        return os.environ.get(variable) or None, variable
    if not file.exists():
        create_token(file)
    return read_token(file), str(file)


def refuse_token(variable: str) -> InputError:
    """Make the error for a token on the command line; it does not repeat the token."""
    return InputError(
        "a token on the command line is seen by every user of this machine; "
        f"put it into {variable} or a file (--token-file)."
    )
