"""`ridgeline streams`: list the streams of a recording and the quality of their stamps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from ridgeline.cli.output import Json, print_json, stderr, stdout
from ridgeline.cli.read_options import Comment, Delimiter, Encoding, Fps, Stamps, TimeColumn, TimeUnit, Topics

if TYPE_CHECKING:
    from ridgeline.trajectory import StreamStats


COLUMNS = ("samples", "rate", "jitter", "gaps", "longest", "drops", "faulty", "same", "back", "span", "type", "kind")
FIELD_COLUMNS = ("type", "kind")  # of one field; all others are the same for the fields of a topic
# A narrow screen hides these, in this order; name and kind always stay.
LEAST_FIRST = ("jitter", "span", "longest", "same", "drops", "type", "gaps", "samples", "faulty", "back", "rate")


def streams(
    file: Annotated[Path, typer.Argument(metavar="INPUT", help="A recording: ULog, MCAP, ROS bag, HDF5, CSV …")],
    topics: Topics = None,
    fps: Fps = None,
    time_column: TimeColumn = None,
    time_unit: TimeUnit = None,
    stamps: Stamps = "auto",
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    comment: Comment = None,
    as_json: Json = False,
) -> None:
    """List the streams of a recording: rate, jitter, gaps, duplicates, type, and the kind that resample uses.

    A camera has the number of images that are missing at its rate (drops), and of those that cannot be decoded.

    [dim]Examples:[/]

      ridgeline streams flight.ulg

      ridgeline streams run.mcap --topics '/imu*' --json
    """
    from ridgeline.cli.resample import split_names
    from ridgeline.trajectory import describe_camera, describe_stream, readers
    from ridgeline.trajectory.readers import LeftOut, ReadOptions

    notes: list[str] = []
    left_out: list[LeftOut] = []
    options = ReadOptions(
        fps, time_column, time_unit, notes.append, stamps, left_out.append, encoding, delimiter, comment
    )
    numbers, cameras = readers.read_recording(file, split_names(topics), options)
    stats = [*map(describe_stream, numbers), *map(describe_camera, cameras)]
    if as_json:
        lists = {"streams": [asdict(s) for s in stats], "left_out": [asdict(x) for x in left_out]}
        print_json({"file": str(file), **lists, "notes": notes})
        return
    console = stdout()
    for part in _build_tables(stats, console):
        console.print(part)
    notice = stderr()
    for note in dict.fromkeys(notes):
        notice.print(f"[dim]{escape(note)}[/]", highlight=False, soft_wrap=not notice.is_terminal)


def _build_tables(stats: Sequence[StreamStats], console: Console) -> list[RenderableType]:
    """Return one table per episode, with a line below it about the columns that do not fit the screen."""
    unlimited = console.options.update(width=10_000)
    out: list[RenderableType] = []
    for episode in dict.fromkeys(s.episode for s in stats):
        members = [s for s in stats if s.episode == episode]
        columns = [name for name in COLUMNS if any(_format_cells(s)[name] for s in members)]
        hidden: list[str] = []
        table = _build_table(episode, members, columns)
        for name in LEAST_FIRST:
            if name in columns and Measurement.get(console, unlimited, table).maximum > console.width:
                columns.remove(name)
                hidden.append(name)
                table = _build_table(episode, members, columns)
        out.append(table)
        if hidden:
            out.append(
                f"[dim]Not shown at this width: {', '.join(sorted(hidden, key=COLUMNS.index))} (--json has all).[/]"
            )
    return out


def _build_table(episode: str, members: Sequence[StreamStats], columns: Sequence[str]) -> Table:
    """Return a table with these columns; fields of a topic that share their stamps have one line for the topic."""
    title = f"episode {escape(episode)}" if episode else None
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left")
    table.add_column("topic / stream", overflow="fold")
    for name in columns:
        table.add_column(name, justify="left" if name in FIELD_COLUMNS else "right", no_wrap=True)
    stamp_columns = [name for name in columns if name not in FIELD_COLUMNS]
    before: tuple[str, list[str]] | None = None
    for s in members:
        # A camera is a topic: its name is what --camera wants.
        topic, slash, name = ("", "", s.name) if s.type == "image" else s.name.rpartition("/")
        cells = _format_cells(s)
        stamps = [cells[n] for n in stamp_columns]
        if slash and (topic, stamps) != before:
            table.add_row(f"[bold]{escape(topic)}[/]", *("" if n in FIELD_COLUMNS else cells[n] for n in columns))
        before = (topic, stamps)
        wide = f" [dim]×{s.columns}[/]" if s.columns > 1 else ""
        line = f"  {escape(name)}{wide}" if slash else f"{escape(s.name)}{wide}"
        table.add_row(line, *("" if slash and n not in FIELD_COLUMNS else cells[n] for n in columns))
    return table


def _format_cells(s: StreamStats) -> dict[str, str]:
    """Return the cells of a stream by column; the table omits a column without text."""
    from ridgeline.web import format_si

    return {
        "samples": f"{s.samples}",
        "rate": f"{s.rate_hz:.4g} Hz" if s.rate_hz else "[yellow]one stamp[/]",
        "jitter": format_si(s.jitter_s, "s", 2) if s.jitter_s is not None else "",
        "gaps": f"{s.gaps or ''}",
        "longest": format_si(s.longest_gap_s, "s") if s.gaps else "",
        "same": f"{s.duplicates or ''}",
        "back": f"[red]{s.backward}[/]" if s.backward else "",
        "span": f"{s.start_s:.2f}–{s.end_s:.2f} s",
        "drops": f"{s.drops or ''}",
        "faulty": f"[red]{s.faults}[/]" if s.faults else "",
        "type": f"{s.codec} {s.width or '?'}×{s.height or '?'}" if s.type == "image" else s.dtype,
        "kind": s.kind,
    }
