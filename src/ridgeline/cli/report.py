"""`ridgeline report`: make the report from records, as HTML, Markdown and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.output import Json, print_json, print_line, print_note
from ridgeline.errors import Exit, InputError


def report(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="RECORDS…", help=".jsonl files, or folders that contain some at any depth."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for report.html, .md and .json.")] = Path(
        "."
    ),
    as_json: Json = False,
) -> None:
    """Write report.html, report.md and report.json from recorded runs, without measuring.

    [dim]Examples:[/]

      ridgeline report ridgeline-report

      ridgeline report benchmarks/records --out /tmp

    Each kind of machine has its own chapter. Exit 0, or 1 if files of a folder were left out (each is named); a file
    on the command line must hold records.
    """
    from ridgeline.lab.judge import analysis_to_json
    from ridgeline.lab.race import create_output_folder
    from ridgeline.lab.record import gather_all_records
    from ridgeline.lab.report import write_report
    from ridgeline.workloads import draw_pictures

    folder = gather_all_records(files)
    if not folder.records:
        raise InputError(f"'{files[0]}' holds no record yet; run ridgeline bench first.")
    for sentence in (*folder.warnings, *(f"left out: {refusal}" for refusal in folder.refused)):
        print_note(sentence)
    create_output_folder(out)
    page = write_report(folder.records, out, refused=folder.refused, draw_pictures=draw_pictures)
    if as_json:
        cases = [analysis_to_json(r) for r in folder.records]
        print_json({"cases": cases, "report": str(page), "machines": folder.machines, "refused": list(folder.refused)})
    else:
        if folder.machines > 1:
            print_line(f"{folder.machines} kinds of machine; each has its own chapter, and no chapter compares two.")
        print_line(f"Report: {page}")
    if folder.refused:
        raise typer.Exit(Exit.FINDINGS)
