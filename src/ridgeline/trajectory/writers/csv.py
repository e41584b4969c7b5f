"""CSV: a time column, then one column per channel; unknown values are empty cells.

A CSV file has no place for the key of its inputs, so a second run writes it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ridgeline.errors import MissingExtra
from ridgeline.store import publish
from ridgeline.trajectory.stream import Aligned
from ridgeline.trajectory.writers import table


def write(path: Path, episodes: Sequence[Aligned], meta: dict[str, Any]) -> None:
    try:
        from pyarrow import csv
    except ImportError:
        raise MissingExtra("writing CSV", "parquet") from None
    rows = table.build_arrow(episodes)
    with publish(path) as tmp:
        csv.write_csv(rows, tmp)


def read_meta(path: Path) -> dict[str, Any] | None:
    return None
