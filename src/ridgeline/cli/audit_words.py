"""Arguments and options that several `ridgeline audit` commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ridgeline.audit import Verifier

Log = Annotated[Path, typer.Argument(metavar="LOG", help="The folder of the ledger.")]
Key = Annotated[
    str | None, typer.Option("--key", metavar="VKEY", help="The log's public key, or a file that holds it.")
]


def in_words(event: dict[str, Any], longest: int = 160) -> str:
    """An event in a line: what was done to what, by whom, and what it says of itself."""
    message = event["attributes"].get("message") or ""
    parts = [event["action"], event["subject"], f"by {event['actor']}" if event["actor"] else "", message]
    return " ".join(str(part) for part in parts if part)[:longest]


def verifier_of(words: str) -> Verifier:
    """A public key as it is given: itself, or a file that holds it."""
    from ridgeline.audit import parse_verifier

    if "+" not in words and Path(words).is_file():
        words = Path(words).read_text(encoding="utf-8", errors="replace")
    return parse_verifier(words)
