"""`ridgeline compare`: two runs, case by case, with a verdict and an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli import tables
from ridgeline.cli.speak import Json, note, print_json, stdout
from ridgeline.errors import Exit, InputError
from ridgeline.lab.judge import compare as comparing
from ridgeline.lab.judge import verdict
from ridgeline.lab.record import record


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Records before: a .jsonl file or a folder.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Records after.")],
    margin: Annotated[float, typer.Option(help="Differences within this are SAME.")] = verdict.MARGIN,
    as_json: Json = False,
) -> None:
    """Say of each case whether B is FASTER, SLOWER or the SAME as A.

    [dim]Examples:[/]

      ridgeline compare before/ after/

      ridgeline compare main.jsonl mine.jsonl --margin 0.05 --json

    Exit 0: same or faster; 3: something is slower; 4: unclear; 5: not comparable (a case lost its valid time).
    """
    if not 0 < margin < 1:
        raise InputError(f"--margin {margin:g} is no share between 0 and 1; 0.03 is three percent.")
    before, after = record.read(a), record.read(b)
    note(before.warning)
    note(after.warning)
    found = comparing.changes(before.records, after.records, margin)
    code = comparing.exit_code(found)
    if as_json:
        print_json({"changes": [c.to_json() for c in found], "exit": int(code)})
    else:
        stdout().print(tables.changes(found))
    for side, alone in zip((a, b), comparing.unmatched(before.records, after.records), strict=True):
        if alone:
            note(f"{alone} case{'s' * (alone > 1)} only in '{side}', with nothing to compare.")
    if code is not Exit.OK:
        raise typer.Exit(code)
