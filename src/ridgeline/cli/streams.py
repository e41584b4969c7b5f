"""`ridgeline streams`: what is in a recording, before anything is done to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from ridgeline.cli.speak import Json, print_json, stderr, stdout


def streams(
    file: Annotated[Path, typer.Argument(metavar="INPUT", help="A recording: ULog, MCAP, ROS bag, HDF5, CSV …")],
    topics: Annotated[
        list[str] | None, typer.Option("--topics", metavar="NAME,…", help="Only these; patterns like 'imu*' too.")
    ] = None,
    fps: Annotated[float | None, typer.Option(help="For recordings without stamps (robomimic HDF5).")] = None,
    time_column: Annotated[str | None, typer.Option(metavar="NAME", help="The time column of a table.")] = None,
    time_unit: Annotated[str | None, typer.Option(metavar="UNIT", help="Its unit: ns, us, ms or s.")] = None,
    as_json: Json = False,
) -> None:
    """List the streams of a recording: rate, jitter, gaps, duplicates, type, and the kind resample would use.

    [dim]Examples:[/]

      ridgeline streams flight.ulg

      ridgeline streams run.mcap --topics '/imu*' --json
    """
    from ridgeline.cli.resample import words
    from ridgeline.trajectory import readers
    from ridgeline.trajectory.readers import Ask
    from ridgeline.trajectory.survey import survey

    notes: list[str] = []
    found = readers.read(file, words(topics), Ask(fps, time_column, time_unit, notes.append))
    surveys = [survey(s) for s in found]
    if as_json:
        print_json({"file": str(file), "streams": [asdict(s) for s in surveys], "notes": notes})
        return
    for part in _tables(surveys):
        stdout().print(part)
    for note in dict.fromkeys(notes):
        stderr().print(f"[dim]{note}[/]", highlight=False)


def _tables(surveys: Sequence[object]) -> list[Table]:
    from ridgeline.trajectory.survey import Survey
    from ridgeline.web import si

    by_episode: dict[str, list[Survey]] = {}
    for s in surveys:
        if isinstance(s, Survey):
            by_episode.setdefault(s.episode, []).append(s)
    out = []
    for episode, members in by_episode.items():
        title = f"episode {episode}" if episode else None
        table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
        right = ("samples", "rate", "jitter", "gaps", "longest", "same", "back", "from", "to")
        for name in ("stream", "samples", "rate", "jitter", "gaps", "longest", "same", "back", "from", "to"):
            table.add_column(name, justify="right" if name in right else "left", no_wrap=name != "stream")
        table.add_column("type", no_wrap=True)
        table.add_column("kind", no_wrap=True)
        for s in members:
            table.add_row(
                s.name + (f"[dim]×{s.columns}[/]" if s.columns > 1 else ""),
                f"{s.samples}",
                si(s.rate_hz, "Hz") if s.rate_hz else "[yellow]one stamp[/]",
                si(s.jitter_s, "s", 2) if s.jitter_s is not None else "",
                f"{s.gaps or ''}",
                si(s.longest_gap_s, "s") if s.gaps else "",
                f"{s.duplicates or ''}",
                f"[red]{s.backward}[/]" if s.backward else "",
                f"{s.start_s:.2f}",
                f"{s.end_s:.2f} s",
                s.dtype,
                s.kind,
            )
        out.append(table)
    return out
