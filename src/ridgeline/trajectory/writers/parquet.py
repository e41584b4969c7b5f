"""Parquet: a time column, then one column per channel; unknown values are null.

A channel with a reserved name is stored as `data/NAME`. A camera is a column of the paths of its image files, which lie
in a folder beside the table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ridgeline.errors import MissingExtra
from ridgeline.store import publish
from ridgeline.trajectory.media import EpisodeMedia
from ridgeline.trajectory.stream import Aligned
from ridgeline.trajectory.writers import table

_KEY = b"ridgeline"


def write(
    path: Path, episodes: Sequence[Aligned], meta: dict[str, Any], *, media: Sequence[EpisodeMedia] | None = None
) -> None:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtra("writing Parquet", "parquet") from None
    metadata = {"kinds": dict(episodes[0].kinds), "hz": episodes[0].hz, "meta": meta}
    rows = table.build_arrow(episodes)
    for name, paths in _list_images(media or []).items():
        rows = rows.append_column(name, [paths])
    table_with_metadata = rows.replace_schema_metadata({_KEY: json.dumps(metadata).encode()})
    with publish(path) as tmp:
        parquet.write_table(table_with_metadata, tmp, compression="zstd", compression_level=1, use_dictionary=False)


def _list_images(media: Sequence[EpisodeMedia]) -> dict[str, list[str]]:
    """Return the image file of each row by camera, relative to the table."""
    out: dict[str, list[str]] = {}
    for episode in media:
        for m in episode.media:
            out.setdefault(m.feature, []).extend(f"{episode.folder.name}/{m.file}/{name}" for name in m.names)
    return out


def read_meta(path: Path) -> dict[str, Any] | None:
    from pyarrow.parquet import read_schema

    text = (read_schema(path).metadata or {}).get(_KEY)
    key: dict[str, Any] | None = json.loads(text)["meta"] if text else None
    return key
