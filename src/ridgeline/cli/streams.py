"""`ridgeline streams`: what is in a recording, before anything is done to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from ridgeline.cli.speak import Json, print_json, stderr, stdout

if TYPE_CHECKING:
    from ridgeline.trajectory import Survey


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
    from ridgeline.trajectory import readers, survey
    from ridgeline.trajectory.readers import Ask

    notes: list[str] = []
    found = readers.read(file, words(topics), Ask(fps, time_column, time_unit, notes.append))
    surveys = [survey(s) for s in found]
    if as_json:
        print_json({"file": str(file), "streams": [asdict(s) for s in surveys], "notes": notes})
        return
    for part in _tables(surveys):
        stdout().print(part)
    for note in dict.fromkeys(notes):
        stderr().print(f"[dim]{escape(note)}[/]", highlight=False, soft_wrap=True)


def _tables(surveys: Sequence[Survey]) -> list[Table]:
    """One table per episode; the fields of a topic that share their stamps stand under one line about them."""
    out = []
    for episode in dict.fromkeys(s.episode for s in surveys):
        members = [s for s in surveys if s.episode == episode]
        title = f"episode {escape(episode)}" if episode else None
        table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left")
        table.add_column("topic / stream", overflow="fold", min_width=26)
        shown = [name for name in _stamps(members[0]) if any(_stamps(s)[name] for s in members)]
        for name in shown:
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("type", no_wrap=True)
        table.add_column("kind", no_wrap=True)
        before: tuple[str, list[str]] | None = None
        for s in members:
            topic, slash, name = s.name.rpartition("/")
            stamps = [_stamps(s)[n] for n in shown]
            if slash and (topic, stamps) != before:
                table.add_row(f"[bold]{escape(topic)}[/]", *stamps, "", "")
            before = (topic, stamps)
            wide = f" [dim]×{s.columns}[/]" if s.columns > 1 else ""
            line = f"  {escape(name)}{wide}" if slash else f"{escape(s.name)}{wide}"
            table.add_row(line, *([""] * len(shown) if slash else stamps), s.dtype, s.kind)
        out.append(table)
    return out


def _stamps(s: Survey) -> dict[str, str]:
    """What there is to say about the stamps; a column in which nobody says anything is not shown."""
    from ridgeline.web import si

    return {
        "samples": f"{s.samples}",
        "rate": f"{s.rate_hz:.4g} Hz" if s.rate_hz else "[yellow]one stamp[/]",
        "jitter": si(s.jitter_s, "s", 2) if s.jitter_s is not None else "",
        "gaps": f"{s.gaps or ''}",
        "longest": si(s.longest_gap_s, "s") if s.gaps else "",
        "same": f"{s.duplicates or ''}",
        "back": f"[red]{s.backward}[/]" if s.backward else "",
        "span": f"{s.start_s:.2f}–{s.end_s:.2f} s",
    }
