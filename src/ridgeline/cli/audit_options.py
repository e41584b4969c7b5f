"""Arguments and options that several `ridgeline audit` commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ridgeline.audit import Verifier

Log = Annotated[Path, typer.Argument(metavar="LOG", help="Folder of the ledger.")]
Key = Annotated[
    str | None, typer.Option("--key", metavar="VKEY", help="The log's public key, or a file that holds it.")
]


def describe_event(event: dict[str, Any], longest: int = 160) -> str:
    """Describe an event in one line: action, subject, actor, message."""
    message = event["attributes"].get("message") or ""
    parts = [event["action"], event["subject"], f"by {event['actor']}" if event["actor"] else "", message]
    return " ".join(str(part) for part in parts if part)[:longest]


def parse_key(words: str) -> Verifier:
    """Parse a public key, or read it from a file of that name."""
    from ridgeline.audit import parse_verifier

    if "+" not in words and Path(words).is_file():
        words = Path(words).read_text(encoding="utf-8", errors="replace")
    return parse_verifier(words)
