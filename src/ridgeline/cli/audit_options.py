"""Arguments and options that several `ridgeline audit` commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.output import print_note
from ridgeline.cli.tokens import create_token, read_token
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.audit import Verifier
    from ridgeline.audit.watch import Failed, Notifier

Log = Annotated[Path, typer.Argument(metavar="LOG", help="Folder of the ledger.")]
Key = Annotated[
    str | None, typer.Option("--key", metavar="VKEY", help="The log's public key, or a file that holds it.")
]


Notify = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TARGET",
        help="Send a notice per incident to https://…, slack:https://…, smtp://HOST/?to=…, syslog:udp://HOST:PORT, "
        "or to the targets in @FILE.",
    ),
]
QuietHoursOption = Annotated[
    str | None,
    typer.Option(metavar="HH:MM-HH:MM", help="Local hours in which only critical notices are sent; the others wait."),
]
Repeat = Annotated[
    float, typer.Option(metavar="S", help="Seconds between two notices of the same incident (default: 3600).")
]
TOKEN = "RIDGELINE_AUDIT_TOKEN"  # noqa: S105  (the name of the variable)


def find_token(log: Path, file: Path | None, name: str) -> tuple[str, str]:
    """Return a bearer token and where it comes from; never print it, and never take it from the command line.

    It is in `file`, else in the environment (RIDGELINE_AUDIT_TOKEN), else in LOG.private/NAME, which is created.
    """
    from ridgeline.audit.ledger import find_ledger

    if file is None and os.environ.get(TOKEN):
        return os.environ[TOKEN], TOKEN
    if file is None:
        file = find_ledger(log).private / name
        if not file.exists():
            create_token(file)
    return read_token(file), str(file)


def make_notifier(
    targets: list[str] | None, quiet_hours: str | None, repeat_after: float, waiting: Path
) -> Callable[[Failed], Notifier] | None:
    """Return what makes the notifier of --notify, --quiet-hours and --repeat-after; None without targets."""
    from ridgeline.audit.watch import Notifier, QuietHours, check_targets

    quiet = QuietHours.parse(quiet_hours) if quiet_hours is not None else None
    if not 0 < repeat_after < float("inf"):
        raise InputError(f"--repeat-after is {repeat_after}; give seconds above 0.")
    if not targets:
        if quiet is not None:
            raise InputError("--quiet-hours needs targets; give --notify too.")
        return None
    check_targets(targets)
    return lambda failed: Notifier(
        targets, failed, repeat_s=repeat_after, quiet=quiet, waiting=waiting, report=print_note
    )


def describe_event(event: dict[str, Any], longest: int = 160) -> str:
    """Describe an event in one line: action, subject, actor, message."""
    from ridgeline.audit.ledger import shorten_tokens

    message = event["attributes"].get("message") or ""
    parts = [event["action"], event["subject"], f"by {event['actor']}" if event["actor"] else "", message]
    return shorten_tokens(" ".join(str(part) for part in parts if part))[:longest]


def parse_key(words: str) -> Verifier:
    """Parse a public key, or read it from a file of that name."""
    from ridgeline.audit import parse_verifier

    if "+" not in words and Path(words).is_file():
        words = Path(words).read_text(encoding="utf-8", errors="replace")
    return parse_verifier(words)
