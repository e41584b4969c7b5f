"""Read robot recordings: `read("flight.ulg")` gives streams, whatever the format.

The content decides which reader is asked, then the suffix: a ULog that is called `.csv` is still a ULog. One small
module per format with `sniff(path)` and `read(path, topics, ask)`; the libraries they need load when they are used.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, RidgelineError
from ridgeline.trajectory.guess import matching
from ridgeline.trajectory.readers.fields import Ask, meant, opening, reason
from ridgeline.trajectory.stream import Stream

__all__ = ["FORMATS", "Ask", "episodes", "format_of", "read"]

# module -> (what people call it, suffixes); asked in this order, those that know their first bytes before text
FORMATS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ulog": ("ULog file", (".ulg", ".ulog")),
    "mcap": ("MCAP file", (".mcap",)),
    "rosbag": ("ROS bag", (".bag", ".db3")),
    "hdf5": ("HDF5 file", (".hdf5", ".h5")),
    "lerobot": ("LeRobot folder", ()),
    "parquet": ("Parquet file", (".parquet", ".pq")),
    "tum": ("TUM or EuRoC trajectory", (".tum",)),
    "csv": ("CSV table", (".csv", ".tsv", ".txt")),
}


def read(path: str | Path, topics: Sequence[str] | None = None, ask: Ask | None = None) -> list[Stream]:
    """The streams of a recording; `topics` chooses by name, by topic (`imu` is `imu/gyro`) or by pattern (`imu*`).

    The name of a column chooses its whole stream (`pos_x` of a table is `pos`, with y and z): values do not depend on
    what was chosen beside them, and a quaternion's w cannot be interpolated without the rest.
    """
    path = Path(path)
    name = format_of(path)
    what = FORMATS[name][0]
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # some libraries print their warnings among our answers
            found: list[Stream] = _module(name).read(path, topics or None, ask or Ask())
    except RidgelineError:
        raise
    except MemoryError:
        raise InputError(f"'{path}' does not fit into memory; choose fewer topics.") from None
    except PermissionError:
        raise InputError(f"'{path}' may not be read; check its mode.") from None
    except Exception as error:  # each library has its own errors for damage
        raise InputError(
            f"'{path}' is a {what} that cannot be read to its end ({reason(error)}); "
            "it is truncated or damaged, copy it again."
        ) from error
    if topics:
        wanted = {n for word in topics for n in _named(found, word, path)}
        found = [s for s in found if s.name in wanted]
    if not found:
        raise InputError(f"'{path}' is a {what} without one numeric value; there is nothing to resample.")
    return found


def format_of(path: str | Path) -> str:
    """The reader's name for a path, or one sentence about what is wrong with it."""
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
        raise InputError(f"'{path}' is a folder, but no LeRobot dataset and no ROS 2 bag; name the files in it.")
    begins = opening(path, 12)
    for what, suffixes in FORMATS.values():
        if path.suffix.lower() in suffixes:
            raise InputError(
                f"'{path}' is called a {what} but is none (it begins with {begins!r}); give the real file."
            )
    known = ", ".join(what for what, _ in FORMATS.values())
    raise InputError(f"'{path}' is no recording this can read (it begins with {begins!r}); known are: {known}.")


def episodes(streams: Sequence[Stream]) -> dict[str, list[Stream]]:
    """Streams by episode, in order; a plain log is one episode called ''."""
    found: dict[str, list[Stream]] = {}
    for stream in streams:
        found.setdefault(stream.episode, []).append(stream)
    return found


def _named(streams: Sequence[Stream], word: str, path: Path) -> set[str]:
    """The names of the streams that `word` means, or an error that lists them all."""
    return meant(streams, word) or set(matching([s.name for s in streams], word, f"topic in '{path}'"))


def _module(name: str) -> Any:
    return import_module(f"ridgeline.trajectory.readers.{name}")
