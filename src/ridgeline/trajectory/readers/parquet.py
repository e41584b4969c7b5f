"""Parquet with a time column; list columns become [S, D], null cells are no samples.

ridgeline streams flight.parquet
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ridgeline.errors import InputError, MissingExtra
from ridgeline.trajectory.readers.streams import ReadOptions, build_table_streams, read_head
from ridgeline.trajectory.stream import Stream

MAGIC = b"PAR1"


def sniff(path: Path) -> bool:
    return read_head(path, len(MAGIC)) == MAGIC


def read(path: Path, topics: Sequence[str] | None = None, options: ReadOptions | None = None) -> list[Stream]:
    try:
        from pyarrow.parquet import read_table
    except ImportError:
        raise MissingExtra("reading Parquet files", "robot") from None
    table = read_table(path, partitioning=None)
    if not table.num_rows:
        raise InputError(f"'{path}' is a table without rows; write it again.")
    return build_table_streams(table, topics, options or ReadOptions(), path)
