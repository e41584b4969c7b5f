"""`ridgeline check`: find numbers of a report that contradict each other or their records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline import __version__, claims
from ridgeline.cli.output import Json, print_json, print_line, print_note
from ridgeline.errors import Exit, InputError
from ridgeline.store import publish


def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Markdown, text, HTML or CSV.")],
    explain: Annotated[
        bool, typer.Option("--explain", help="Show for each finding the relation and the bare arithmetic.")
    ] = False,
    sarif: Annotated[
        Path | None, typer.Option("--sarif", metavar="FILE", help="Also write the findings as SARIF 2.1.0.")
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Write findings and notes as annotations of GitHub.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check the numbers of a report: tables and statements must not contradict each other or their records.

    [dim]Examples:[/]

      ridgeline check report.md

      ridgeline check README.md docs/*.md --json

      ridgeline check README.md docs/*.md --sarif check.sarif --github

    Exit 0: no contradiction; 1: at least one. Rounding is not a contradiction. A note may have another reason (mixed
    units, another base) and does not change the exit code.
    """
    results = [claims.check_file(file) for file in files]
    findings = sorted((f for r in results for f in r.findings), key=lambda f: (-f.confidence, f.file, f.line))
    notes = [f for r in results for f in r.notes]
    if github and (as_json or explain):
        raise InputError("--github writes annotations and nothing else; leave --json and --explain out.")
    if sarif is not None:
        with publish(sarif) as temporary:
            claims.write_sarif([*findings, *notes], __version__, temporary)
    if github:
        for finding in [*findings, *notes]:
            print_line(claims.format_github(finding))
    elif as_json:
        print_json(
            {
                "findings": [f.to_json() for f in findings],
                "notes": [f.to_json() for f in notes],
                "files": [{"file": r.file, "numbers": r.numbers, "bound": r.bound} for r in results],
            }
        )
    else:
        for finding in findings:
            print_line(f"{finding.file}:{finding.line}  {finding.kind}, confidence {finding.confidence:.2f}")
            print_line(f"    says        {finding.says}")
            print_line(f"    arithmetic  {finding.arithmetic}")
            for line in claims.explain_finding(finding) if explain else ():
                print_line(f"    {line}")
        for note in notes:
            print_line(f"{note.file}:{note.line}  note: {note.arithmetic}")
        for result in results:
            print_line(result.sentence)
    for result in results:
        if not result.numbers:
            print_note(f"'{result.file}' has no numbers to check.")
    if findings:
        raise typer.Exit(Exit.FINDINGS)
