"""Write aligned streams as Parquet, CSV, NPZ, MCAP or a LeRobot v3 folder. An output is complete or does not exist.

Each format is a module with `write(path, episodes, meta)` and `read_meta(path)`. The output stores `meta`, so that a
second run can recognise a finished output without a second file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline._lazy import attach
from ridgeline.errors import InputError, unknown
from ridgeline.trajectory.media import EpisodeMedia
from ridgeline.trajectory.stream import Aligned
from ridgeline.trajectory.writers.table import check_columns

if TYPE_CHECKING:
    from ridgeline.trajectory.writers.lerobot import Contents as Contents
    from ridgeline.trajectory.writers.lerobot import DatasetWriter as DatasetWriter
    from ridgeline.trajectory.writers.lerobot import Feature as Feature
    from ridgeline.trajectory.writers.lerobot import describe_contents as describe_contents
    from ridgeline.trajectory.writers.lerobot import frame_tasks as frame_tasks
    from ridgeline.trajectory.writers.lerobot import merge_contents as merge_contents
    from ridgeline.trajectory.writers.npz import load_episodes as load_episodes
    from ridgeline.trajectory.writers.npz import save_episodes as save_episodes

__getattr__, __dir__, _LAZY = attach(
    __name__,
    {
        "lerobot": ["Contents", "DatasetWriter", "Feature", "describe_contents", "frame_tasks", "merge_contents"],
        "npz": ["load_episodes", "save_episodes"],
    },
)
__all__ = ["FORMATS", "WITH_IMAGES", "check_columns", "choose_format", "read_meta", "write", *_LAZY]

WITH_IMAGES = ("parquet", "mcap")  # formats of one file that take image files, too
# name -> suffix; a LeRobot dataset is a folder
FORMATS = {"parquet": ".parquet", "csv": ".csv", "npz": ".npz", "mcap": ".mcap", "lerobot": ""}


def write(
    path: str | Path,
    episodes: Sequence[Aligned],
    form: str,
    meta: Mapping[str, Any] | None = None,
    media: Sequence[EpisodeMedia] | None = None,
) -> None:
    """Write `episodes` to `path`; several episodes in one file have a column `episode_index`.

    `media` has the image files of their cameras, for Parquet and MCAP.
    """
    if not episodes or not any(e.columns for e in episodes):
        raise InputError(f"there is nothing to write to '{path}'.")
    if media is not None and form not in WITH_IMAGES:
        raise InputError(f"{form} holds no images; choose {', '.join(WITH_IMAGES)} or lerobot.")
    more = {} if media is None else {"media": media}
    _module(form).write(Path(path), list(episodes), dict(meta or {}), **more)


def read_meta(path: str | Path, form: str) -> dict[str, Any] | None:
    """Return the meta that `write` stored; None without an output, or if another program wrote it."""
    try:
        key: dict[str, Any] | None = _module(form).read_meta(Path(path))
    except Exception:  # an output that cannot be read is not finished
        return None
    return key


def choose_format(path: Path, requested: str | None = None) -> str | None:
    """Return the format by name or by the suffix of `path`; None if neither decides."""
    if requested is not None and requested not in FORMATS:
        raise unknown("format", requested, FORMATS)
    by_suffix = {suffix: name for name, suffix in FORMATS.items() if suffix}.get(path.suffix.lower())
    if requested and by_suffix and requested != by_suffix:
        raise InputError(f"'{path}' has the suffix {path.suffix} but --format is {requested}; give matching ones.")
    return requested or by_suffix


def _module(form: str) -> Any:
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    return import_module(f"ridgeline.trajectory.writers.{form}")
