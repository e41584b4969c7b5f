"""`ridgeline view`: a page that shows a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.output import Quiet, print_line, print_note, status
from ridgeline.cli.read_options import Comment, Delimiter, Encoding, Fps, Stamps, TimeColumn, TimeUnit, Topics
from ridgeline.errors import InputError


def view(
    file: Annotated[Path, typer.Argument(metavar="INPUT", help="A recording, or a LeRobot folder.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="PAGE", help="The HTML file to write.")] = None,
    rrd: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every image and value for rerun (needs rerun-sdk).")
    ] = None,
    topics: Topics = None,
    episode: Annotated[
        str | None, typer.Option(metavar="NAME", help="The episode to show (default: the first one).")
    ] = None,
    pictures: Annotated[int, typer.Option(metavar="N", help="Images of each camera.")] = 60,
    width: Annotated[int, typer.Option(metavar="PIXELS", help="Width of an image.")] = 240,
    fps: Fps = None,
    time_column: TimeColumn = None,
    time_unit: TimeUnit = None,
    stamps: Stamps = "auto",
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    comment: Comment = None,
    quiet: Quiet = False,
) -> None:
    """Write a page that shows the cameras and curves of a recording on one time axis.

    [dim]Examples:[/]

      ridgeline view run.mcap -o run.html

      ridgeline view run.mcap --rrd run.rrd

      ridgeline view dataset -o episode.html --episode 3 --pictures 120

    The page is one file that opens without a network. Parts without samples, and frames that are not valid, are grey.
    """
    from ridgeline.cli.resample import split_names
    from ridgeline.store import publish
    from ridgeline.trajectory import build_view, write_rrd
    from ridgeline.trajectory.readers import ReadOptions

    if pictures < 1 or not 16 <= width <= 4096:
        raise InputError(f"--pictures {pictures} --width {width}: give 1 or more pictures, 16 to 4096 pixels wide.")
    if out is None and rrd is None:
        raise InputError("there is nothing to write; give -o PAGE.html, --rrd FILE.rrd, or both.")
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out '{out}' is no HTML file; give a name that ends in .html.")
    notes: list[str] = []
    options = ReadOptions(
        fps, time_column, time_unit, notes.append, stamps, encoding=encoding, delimiter=delimiter, comment=comment
    )
    chosen = split_names(topics)
    if rrd is not None:
        with status(f"reading {file}"), publish(rrd) as tmp:
            images = write_rrd(file, tmp, topics=chosen, options=options, episode=episode)
        if not quiet:
            print_line(f"{rrd}: {rrd.stat().st_size / 1e6:.1f} MB, {images} images")
    if out is None:
        return
    with status(f"reading {file}"):
        page = build_view(file, topics=chosen, options=options, episode=episode, pictures=pictures, width=width)
    with publish(out) as tmp:
        tmp.write_text(page, encoding="utf-8")
    if not quiet:
        for note in dict.fromkeys(notes):
            print_note(note)
        print_line(f"{out}: {len(page) / 1e6:.1f} MB")
