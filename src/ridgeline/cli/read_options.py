"""The options of `ridgeline resample` and `ridgeline streams` that tell how to read a recording."""

from __future__ import annotations

from typing import Annotated

import typer

Topics = Annotated[
    list[str] | None,
    typer.Option("--topics", "--include", metavar="NAME,…", help="Read only these topics; patterns like 'imu*' work."),
]
Fps = Annotated[float | None, typer.Option(help="Rate of recordings without stamps (robomimic HDF5), in Hz.")]
TimeColumn = Annotated[
    str | None, typer.Option(metavar="NAME", help="Name of the time column of a table or HDF5 file.")
]
TimeUnit = Annotated[str | None, typer.Option(metavar="UNIT", help="Unit of the time column: ns, us, ms or s.")]
Stamps = Annotated[
    str,
    typer.Option(
        metavar="CHOICE",
        help="Stamps of messages: header, log, or auto (header if all topics share its clock; default).",
    ),
]
Encoding = Annotated[
    str | None, typer.Option(metavar="NAME", help="Encoding of a text table, like cp1252 (default: UTF-8 or UTF-16).")
]
Delimiter = Annotated[
    str | None, typer.Option(metavar="CHAR", help="Delimiter of a text table (default: guessed from , ; | and tab).")
]
Comment = Annotated[
    str | None, typer.Option(metavar="PREFIX", help="Skip the lines of a text table that begin with PREFIX.")
]
