"""Read robot recordings: `read("flight.ulg")` returns streams for every supported format.

The content of a file decides its format, then the suffix: a ULog file named `.csv` is still a ULog file. Each format
is a module with `sniff(path)` and `read(path, topics, options)`; its library loads on first use.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, RidgelineError
from ridgeline.trajectory.cameras import Camera
from ridgeline.trajectory.columns import match_names
from ridgeline.trajectory.readers.portions import Portion, read_rlds_episode, split_rlds
from ridgeline.trajectory.readers.streams import (
    STAMPS,
    LeftOut,
    ReadOptions,
    describe_error,
    match_any,
    match_streams,
    read_head,
)
from ridgeline.trajectory.stream import Array, Stream

__all__ = [
    "FORMATS",
    "STAMPS",
    "LeftOut",
    "Portion",
    "ReadOptions",
    "detect_format",
    "group_episodes",
    "match_streams",
    "read",
    "read_recording",
    "read_rlds_episode",
    "split_rlds",
]

# module -> (name of the format, suffixes); tried in this order, formats with magic bytes before text formats
FORMATS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ulog": ("ULog file", (".ulg", ".ulog")),
    "mcap": ("MCAP file", (".mcap",)),
    "rosbag": ("ROS bag", (".bag", ".db3")),
    "hdf5": ("HDF5 file", (".hdf5", ".h5")),
    "rlds": ("RLDS folder", ()),
    "lerobot": ("LeRobot folder", ()),
    "image_folder": ("folder of images", ()),
    "parquet": ("Parquet file", (".parquet", ".pq")),
    "tum": ("TUM or EuRoC trajectory", (".tum",)),
    "csv": ("CSV table", (".csv", ".tsv", ".txt")),
}


def read(path: str | Path, topics: Sequence[str] | None = None, options: ReadOptions | None = None) -> list[Stream]:
    """Return the streams of numbers of a recording; see `read_recording`."""
    return read_recording(path, topics, options, with_cameras=False)[0]


def read_recording(
    path: str | Path,
    topics: Sequence[str] | None = None,
    options: ReadOptions | None = None,
    *,
    with_cameras: bool = True,
) -> tuple[list[Stream], list[Camera]]:
    """Return the streams and the cameras of a recording.

    `topics` chooses streams by name, by topic (`imu` matches `imu/gyro`) or by pattern (`imu*`). The name of a column
    chooses its complete stream (`pos_x` of a table chooses `pos` with x, y and z): a quaternion's w cannot be
    interpolated without the rest. Raises InputError for a file that cannot be read, MissingExtra without its library.
    """
    path = Path(path)
    name = detect_format(path)
    what = FORMATS[name][0]
    left_out: list[LeftOut] = []
    cameras: list[Camera] = []
    forward = (options or ReadOptions()).leave_out

    def leave_out(item: LeftOut) -> None:
        left_out.append(item)
        forward(item)

    options = options or ReadOptions()
    marked: set[str] = set()
    add_marks = options.add_marks

    def mark(topic: str, times: Array) -> None:
        marked.add(topic)
        add_marks(topic, times)

    options = replace(options, leave_out=leave_out, add_camera=cameras.append if with_cameras else None, add_marks=mark)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # some libraries print warnings to stdout
            streams: list[Stream] = _module(name).read(path, topics or None, options)
    except RidgelineError:
        raise
    except MemoryError:
        raise InputError(f"'{path}' does not fit into memory; choose fewer topics.") from None
    except PermissionError:
        raise InputError(f"'{path}' may not be read; check its mode.") from None
    except Exception as error:  # each library raises other errors for damaged files
        raise InputError(
            f"'{path}' is a {what} that cannot be read to its end ({describe_error(error)}); "
            "it is truncated or damaged, copy it again."
        ) from error
    if not streams and not cameras:
        reasons = "; ".join(f"{item.name} is left out ({item.reason})" for item in left_out[:3])
        raise InputError(
            f"'{path}' is a {what} without one numeric value; there is nothing to resample"
            f"{': ' + reasons if reasons else ''}."
        )
    if topics:
        words = [word for word in topics if word not in marked]
        names = {n for word in words for n in _match_topic(streams, cameras, word, path)}
        streams, cameras = [s for s in streams if s.name in names], [c for c in cameras if c.name in names]
    return streams, cameras


def detect_format(path: str | Path) -> str:
    """Return the format of a path (a key of FORMATS); raise InputError if no reader accepts it."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"there is no file '{path}'; check the path.")
    if path.is_file() and path.stat().st_size == 0:
        raise InputError(f"'{path}' is empty; record or copy it again.")
    try:
        for name in FORMATS:
            if _module(name).sniff(path):
                return name
    except PermissionError:
        raise InputError(f"'{path}' may not be read; check its mode.") from None
    if path.is_dir():
        raise InputError(
            f"'{path}' is a folder, but no LeRobot dataset, RLDS dataset, ROS 2 bag or folder of images; "
            "name the files in it."
        )
    begins = read_head(path, 12)
    for what, suffixes in FORMATS.values():
        if path.suffix.lower() in suffixes:
            raise InputError(
                f"'{path}' has the suffix of a {what} but is none (it begins with {begins!r}); give the real file."
            )
    known = ", ".join(what for what, _ in FORMATS.values())
    raise InputError(f"'{path}' is no known recording (it begins with {begins!r}); known formats: {known}.")


def group_episodes(streams: Sequence[Stream]) -> dict[str, list[Stream]]:
    """Group streams by episode, in order; a plain log is one episode named ''."""
    by_episode: dict[str, list[Stream]] = {}
    for stream in streams:
        by_episode.setdefault(stream.episode, []).append(stream)
    return by_episode


def _match_topic(streams: Sequence[Stream], cameras: Sequence[Camera], word: str, path: Path) -> set[str]:
    """Return the names of the streams and cameras that `word` matches; the error lists all."""
    names = [*(s.name for s in streams), *(c.name for c in cameras)]
    columns = match_streams(streams, word)
    matches = columns | {c.name for c in cameras if match_any(word, c.name)}
    return matches or set(match_names(names, word, f"topic in '{path}'"))


def _module(name: str) -> Any:
    return import_module(f"ridgeline.trajectory.readers.{name}")
