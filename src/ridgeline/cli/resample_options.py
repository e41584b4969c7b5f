"""The options that `ridgeline resample` and `ridgeline bulk resample` share."""

from __future__ import annotations

from typing import Annotated

import typer

MaxGap = Annotated[float | None, typer.Option(metavar="S", help="Leave targets in a gap longer than S seconds empty.")]
Tolerance = Annotated[
    float | None, typer.Option(metavar="S", help="Leave targets farther than S seconds from a sample empty.")
]
Shift = Annotated[
    list[str] | None, typer.Option("--shift", metavar="STREAM=S", help="Shift the stamps of STREAM by S seconds.")
]
Camera = Annotated[
    list[str] | None,
    typer.Option(
        "--camera", metavar="NAME=TOPIC", help="Write the images of TOPIC as the video observation.images.NAME."
    ),
]
State = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STREAM,…", help="Streams that form observation.state, side by side."),
]
Action = Annotated[
    list[str] | None, typer.Option("--action", metavar="STREAM,…", help="Streams that form action, side by side.")
]
TaskText = Annotated[str | None, typer.Option(metavar="TEXT", help="The task of all episodes, in words.")]
Fill = Annotated[
    str | None,
    typer.Option(
        metavar="VALUE", help="Replace unknown numbers: nan (default), hold (the last known one), or a number."
    ),
]
Codec = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Encode frames as h264 or av1 (default: h264; copy video that fits). copy: JPEG images stay as they are.",
    ),
]
Crf = Annotated[
    int | None, typer.Option(metavar="N", help="Quality of videos, lower is better (default: h264 23, av1 30).")
]
Gop = Annotated[int, typer.Option(metavar="N", help="Frames from key frame to key frame of videos.")]
