"""`ridgeline report`: the page, made again from records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.speak import Json, note, print_json, tell
from ridgeline.errors import InputError
from ridgeline.lab import analyse, record
from ridgeline.lab import report as making
from ridgeline.lab.bench import make_folder


def report(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="RECORDS…", help=".jsonl files, or folders that hold records.jsonl."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where report.html goes.")] = Path("."),
    as_json: Json = False,
) -> None:
    """Write report.html from recorded runs; nothing is measured.

    [dim]Example:[/]  ridgeline report benchmarks/records/*.jsonl --out /tmp
    """
    records: list[record.Record] = []
    for file in files:
        found = record.read(file)
        note(found.warning)
        records += found.records
    if not records:
        raise InputError(f"'{files[0]}' holds no record yet; run ridgeline bench first.")
    make_folder(out)
    page = making.write(records, out)
    if as_json:
        print_json({"cases": [analyse.to_json(r) for r in records], "report": str(page)})
    else:
        tell(f"Report: {page}")
