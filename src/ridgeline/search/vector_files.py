"""Read vectors from files: `.npy` [n, dim], or `.parquet` with a column of lists and other columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra, unknown
from ridgeline.search.arrays import Array

FORMS = (".npy", ".parquet")
VECTOR = "vector"  # the column that `ridgeline embed` writes


def read_vectors(path: Path, column: str = VECTOR) -> tuple[Array, Any]:
    """Read (vectors [n, dim], the other columns as a pyarrow Table or None) from .npy or .parquet."""
    if not path.is_file():
        raise InputError(f"there is no file '{path}'; give vectors as .npy or .parquet.")
    if path.suffix not in FORMS:
        raise unknown(f"reader for '{path.name}': suffix", path.suffix, FORMS)
    return _read_npy(path) if path.suffix == ".npy" else _read_parquet(path, column)


def read_model_name(path: Path) -> str | None:
    """Return the name of the model that made the vectors of a Parquet file of `ridgeline embed`; None if unknown."""
    if path.suffix != ".parquet":
        return None
    import pyarrow.parquet as pq

    try:
        described = json.loads((pq.read_schema(path).metadata or {}).get(b"ridgeline", b"{}"))
    except ValueError:
        return None
    model = described.get("model") if isinstance(described, dict) else None
    return model if isinstance(model, str) else None


def _read_npy(path: Path) -> tuple[Array, None]:
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"'{path}' cannot be read as .npy: {error}.") from None
    if not isinstance(vectors, np.ndarray):
        vectors.close()
        raise InputError(f"'{path}' is an archive of arrays (.npz); save the one of the vectors with numpy.save.")
    if vectors.ndim != 2:
        raise InputError(f"'{path}' has shape {vectors.shape}; vectors are [n, dim].")
    return np.asarray(vectors), None


def _read_parquet(path: Path, column: str) -> tuple[Array, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtra("reading Parquet", "parquet") from None
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"'{path}' cannot be read as Parquet: {error}.") from None
    if column not in table.column_names:
        raise unknown(f"column in '{path.name}' named", column, table.column_names)
    lists = table[column].combine_chunks()
    if not (
        pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type) or pa.types.is_fixed_size_list(lists.type)
    ):
        raise InputError(f"column '{column}' of '{path}' holds {lists.type}; vectors are lists of numbers.")
    if lists.null_count:
        row = int(np.flatnonzero(np.asarray(lists.is_null()))[0])
        raise InputError(f"row {row} of '{path}' has no vector; remove it first.")
    flat = lists.flatten()
    if flat.null_count or not (pa.types.is_floating(flat.type) or pa.types.is_integer(flat.type)):
        raise InputError(f"column '{column}' of '{path}' holds {lists.type} with gaps or no numbers; correct it first.")
    rest = table.drop_columns([column])
    other_columns = rest if rest.column_names else None
    if pa.types.is_fixed_size_list(lists.type):
        return np.asarray(flat).reshape(len(lists), lists.type.list_size), other_columns
    if not len(lists):
        raise InputError(f"'{path}' has no rows, and its column '{column}' does not say how long a vector is.")
    widths = np.diff(np.asarray(lists.offsets))
    if len(np.unique(widths)) > 1:
        row = int(np.flatnonzero(widths != widths[0])[0])
        raise InputError(f"row {row} of '{path}' has {widths[row]} components, row 0 has {widths[0]}; give equal ones.")
    return np.asarray(flat).reshape(len(lists), -1), other_columns
