"""Write aligned streams: Parquet, NPZ, or a LeRobot v3 folder; whole or not at all.

One small module per format with `write(path, episodes, meta)`; `meta` is kept inside the file, and `meta(path)` reads
it back, so that a finished output can be known as such without a second file beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, unknown
from ridgeline.trajectory.stream import Aligned

__all__ = ["FORMATS", "format_for", "meta", "write"]

FORMATS = {"parquet": ".parquet", "npz": ".npz", "lerobot": ""}  # name -> suffix; a LeRobot dataset is a folder


def write(path: str | Path, episodes: Sequence[Aligned], form: str, meta: Mapping[str, Any] | None = None) -> None:
    """Publish `episodes` as `path`; several in one file are told apart by a column `episode_index`."""
    if not episodes or not any(e.columns for e in episodes):
        raise InputError(f"there is nothing to write to '{path}'.")
    _module(form).write(Path(path), list(episodes), dict(meta or {}))


def meta(path: str | Path, form: str) -> dict[str, Any] | None:
    """What `write` was given as meta; None if there is no such output or it was made by something else."""
    try:
        found: dict[str, Any] | None = _module(form).meta(Path(path))
    except Exception:  # whatever is wrong with it, it is no finished output of ours
        return None
    return found


def format_for(path: Path, asked: str | None = None) -> str | None:
    """The format by name or by the suffix of `path`; None where neither says."""
    if asked is not None and asked not in FORMATS:
        raise unknown("format", asked, FORMATS)
    by_suffix = {suffix: name for name, suffix in FORMATS.items() if suffix}.get(path.suffix.lower())
    if asked and by_suffix and asked != by_suffix:
        raise InputError(f"'{path}' is called {path.suffix} but --format is {asked}; let them agree.")
    return asked or by_suffix


def _module(form: str) -> Any:
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    return import_module(f"ridgeline.trajectory.writers.{form}")
