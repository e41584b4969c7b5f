"""Parquet: a time column, then one column per channel; unknown values are null.

A channel with a reserved name is stored as `data/NAME`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import MissingExtra
from ridgeline.store import publish
from ridgeline.trajectory.stream import Aligned, find_valid
from ridgeline.trajectory.writers import table

_KEY = b"ridgeline"


def write(path: Path, episodes: Sequence[Aligned], meta: dict[str, Any]) -> None:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtra("writing Parquet", "parquet") from None
    name, times = table.time_column(episodes)
    columns: dict[str, Any] = {name: arrow.array(times)}
    if len(episodes) > 1:
        columns[table.EPISODE] = arrow.array(table.episode_index(episodes))
    names = table.merge_labels(episodes)
    column_names = table.choose_names([label for labels in names.values() for label in labels])
    for stream, (values, mask) in table.stack_episodes(episodes).items():
        gaps = None if mask.all() else ~find_valid(values, mask)
        for i, label in enumerate(names[stream]):
            channel = values if values.ndim == 1 else np.ascontiguousarray(values[:, i])
            unknown = gaps if gaps is None or gaps.ndim == 1 else np.ascontiguousarray(gaps[:, i])
            columns[column_names[label]] = arrow.array(channel, mask=unknown)
    metadata = {"kinds": dict(episodes[0].kinds), "hz": episodes[0].hz, "meta": meta}
    table_with_metadata = arrow.table(columns).replace_schema_metadata({_KEY: json.dumps(metadata).encode()})
    with publish(path) as tmp:
        parquet.write_table(table_with_metadata, tmp, compression="zstd", compression_level=1, use_dictionary=False)


def read_meta(path: Path) -> dict[str, Any] | None:
    from pyarrow.parquet import read_schema

    text = (read_schema(path).metadata or {}).get(_KEY)
    key: dict[str, Any] | None = json.loads(text)["meta"] if text else None
    return key
