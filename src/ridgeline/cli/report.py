"""`ridgeline report`: the page, made again from records, with Markdown and JSON beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.speak import Json, note, print_json, tell
from ridgeline.errors import Exit, InputError


def report(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="RECORDS…", help=".jsonl files, or folders of them, searched through."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where report.html, .md and .json go.")] = Path("."),
    as_json: Json = False,
) -> None:
    """Write report.html, report.md and report.json from recorded runs; nothing is measured.

    [dim]Examples:[/]

      ridgeline report ridgeline-report

      ridgeline report benchmarks/records --out /tmp

    Machines are chapters of their own. Exit 0, or 1 where files of a folder were left out (each is named); a file that
    is named itself must hold records.
    """
    from ridgeline.lab.race import make_folder
    from ridgeline.lab.record import gather_all
    from ridgeline.lab.report import report as making
    from ridgeline.workloads import pictures

    found = gather_all(files)
    if not found.records:
        raise InputError(f"'{files[0]}' holds no record yet; run ridgeline bench first.")
    for sentence in (*found.warnings, *(f"left out: {refusal}" for refusal in found.refused)):
        note(sentence)
    make_folder(out)
    page = making.write(found.records, out, refused=found.refused, pictures=pictures)
    if as_json:
        from ridgeline.lab.judge import analyse

        cases = [analyse.to_json(r) for r in found.records]
        print_json({"cases": cases, "report": str(page), "machines": found.machines, "refused": list(found.refused)})
    else:
        if found.machines > 1:
            tell(f"{found.machines} kinds of machine; each is a chapter of its own, and none is compared with another.")
        tell(f"Report: {page}")
    if found.refused:
        raise typer.Exit(Exit.FINDINGS)
