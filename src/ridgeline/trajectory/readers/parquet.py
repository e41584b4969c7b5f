"""Parquet with a time column; list columns become [S, D], what is null is no sample.

ridgeline streams flight.parquet
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ridgeline.errors import InputError, MissingExtra
from ridgeline.trajectory.readers.fields import Ask, opening
from ridgeline.trajectory.readers.tabular import streams_of_table
from ridgeline.trajectory.stream import Stream

MAGIC = b"PAR1"


def sniff(path: Path) -> bool:
    return opening(path, len(MAGIC)) == MAGIC


def read(path: Path, topics: Sequence[str] | None = None, ask: Ask | None = None) -> list[Stream]:
    try:
        from pyarrow.parquet import read_table
    except ImportError:
        raise MissingExtra("reading Parquet files", "robot") from None
    table = read_table(path, partitioning=None)
    if not table.num_rows:
        raise InputError(f"'{path}' is a table without rows; make it again.")
    return streams_of_table(table, topics, ask or Ask(), path)
