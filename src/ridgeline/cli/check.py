"""`ridgeline check`: do published numbers hold? Against themselves, and ours against their records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline import claims
from ridgeline.cli.speak import Json, note, print_json, tell
from ridgeline.errors import Exit


def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Markdown, text, HTML or CSV.")],
    as_json: Json = False,
) -> None:
    """Test the numbers of a report: tables and statements must not contradict each other or their records.

    [dim]Examples:[/]

      ridgeline check report.md

      ridgeline check README.md docs/*.md --json

    Exit 0: nothing contradicts; 1: something does. Rounding is no contradiction; mixed units (MB, MiB) are notes.
    """
    checked = [claims.check_file(file) for file in files]
    findings = sorted((f for c in checked for f in c.findings), key=lambda f: (-f.confidence, f.file, f.line))
    notes = [f for c in checked for f in c.notes]
    if as_json:
        files_told = [{"file": c.file, "numbers": c.numbers, "bound": c.bound} for c in checked]
        print_json(
            {
                "findings": [f.to_json() for f in findings],
                "notes": [f.to_json() for f in notes],
                "files": files_told,
            }
        )
    else:
        for finding in findings:
            tell(f"{finding.file}:{finding.line}  {finding.kind}, confidence {finding.confidence:.2f}")
            tell(f"    says        {finding.says}")
            tell(f"    arithmetic  {finding.arithmetic}")
        for mixed in notes:
            tell(f"{mixed.file}:{mixed.line}  only units: {mixed.arithmetic}")
        for c in checked:
            tell(c.sentence)
    for c in checked:
        if not c.numbers:
            note(f"'{c.file}' has no numbers to check.")
    if findings:
        raise typer.Exit(Exit.FINDINGS)
