"""`ridgeline compare`: two runs, case by case, with a verdict and an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli import tables
from ridgeline.cli.output import Json, print_json, print_line, print_note, stdout
from ridgeline.errors import Exit, InputError
from ridgeline.lab.judge import MARGIN, choose_exit_code, compare_records, count_unmatched
from ridgeline.lab.record import read_records


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Records before: a .jsonl file or a folder.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Records after.")],
    margin: Annotated[float, typer.Option(help="Relative differences below this are SAME.")] = MARGIN,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Write a table for a comment on a merge request.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare two runs case by case: is B FASTER, SLOWER or the SAME as A?

    [dim]Examples:[/]

      ridgeline compare before/ after/

      ridgeline compare main.jsonl mine.jsonl --margin 0.05 --json

    Exit 0: same or faster; 3: something is slower; 4: unclear; 5: not comparable (a case lost its valid time).
    """
    if not 0 < margin < 1:
        raise InputError(f"--margin {margin:g} is not between 0 and 1; 0.03 is three percent.")
    before, after = read_records(a), read_records(b)
    print_note(before.warning)
    print_note(after.warning)
    changes = compare_records(before.records, after.records, margin)
    code = choose_exit_code(changes)
    if as_json:
        print_json({"changes": [c.to_json() for c in changes], "exit": int(code)})
    elif markdown:
        print_line(tables.format_change_markdown(changes, code))
    else:
        stdout().print(tables.build_change_table(changes))
    for side, count in zip((a, b), count_unmatched(before.records, after.records), strict=True):
        if count:
            print_note(f"{count} case{'s' * (count > 1)} only in '{side}', with nothing to compare.")
    if code is not Exit.OK:
        raise typer.Exit(code)
