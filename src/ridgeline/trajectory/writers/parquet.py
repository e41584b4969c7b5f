"""Parquet: a time column, then one column per channel; unknown values are null.

A channel with a reserved name is stored as `data/NAME`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ridgeline.errors import MissingExtra
from ridgeline.store import publish
from ridgeline.trajectory.stream import Aligned
from ridgeline.trajectory.writers import table

_KEY = b"ridgeline"


def write(path: Path, episodes: Sequence[Aligned], meta: dict[str, Any]) -> None:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtra("writing Parquet", "parquet") from None
    metadata = {"kinds": dict(episodes[0].kinds), "hz": episodes[0].hz, "meta": meta}
    table_with_metadata = table.build_arrow(episodes).replace_schema_metadata({_KEY: json.dumps(metadata).encode()})
    with publish(path) as tmp:
        parquet.write_table(table_with_metadata, tmp, compression="zstd", compression_level=1, use_dictionary=False)


def read_meta(path: Path) -> dict[str, Any] | None:
    from pyarrow.parquet import read_schema

    text = (read_schema(path).metadata or {}).get(_KEY)
    key: dict[str, Any] | None = json.loads(text)["meta"] if text else None
    return key
