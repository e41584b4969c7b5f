"""Compare the rows of a source with those of a finished target: which are the same, new, changed or removed.

Rows are matched by their key column. A row is the same if all its columns are. Both sides become two 64-bit hashes per
row, so a hundred million rows take 1.6 GB for each side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError

DIGEST = 8  # bytes
Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class OldRows:
    """The rows of a target, sorted by the hash of their key."""

    keys: Hashes
    contents: Hashes
    parts: NDArray[np.int32]
    rows: NDArray[np.int64]

    def find(self, keys: Hashes, contents: Hashes) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return part and row of each row that is unchanged, −1 for the others."""
        if not len(self.keys):
            return np.full(len(keys), -1, np.int32), np.full(len(keys), -1, np.int64)
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        same = (self.keys[place] == keys) & (self.contents[place] == contents)
        return np.where(same, self.parts[place], -1).astype(np.int32), np.where(same, self.rows[place], -1)


def hash_rows(rows: Any, key: str) -> tuple[Hashes, Hashes]:
    """Return a hash of the key and one of all columns, for each row."""
    columns = [rows[name].to_pylist() for name in sorted(rows.column_names)]
    contents = b"".join(_digest(repr(values)) for values in zip(*columns, strict=True))
    keys = b"".join(_digest(repr(value)) for value in rows[key].to_pylist())
    return np.frombuffer(keys, np.uint64), np.frombuffer(contents, np.uint64)


def index_rows(tables: Iterable[tuple[int, Any]], key: str) -> OldRows:
    """Return the rows of (part, table) pairs; a part may come in several tables."""
    keys, contents, parts, rows = [], [], [], []
    position: dict[int, int] = {}
    for part, table in tables:
        key_hashes, content_hashes = hash_rows(table, key)
        first = position.get(part, 0)
        position[part] = first + len(table)
        keys.append(key_hashes)
        contents.append(content_hashes)
        parts.append(np.full(len(table), part, np.int32))
        rows.append(np.arange(first, first + len(table)))
    if not keys:
        empty: Hashes = np.empty(0, np.uint64)
        return OldRows(empty, empty, np.empty(0, np.int32), np.empty(0, np.int64))
    all_keys = np.concatenate(keys)
    order = np.argsort(all_keys, kind="stable")
    return OldRows(
        all_keys[order], np.concatenate(contents)[order], np.concatenate(parts)[order], np.concatenate(rows)[order]
    )


def check_unique(keys: Hashes, key: str) -> None:
    """Raise InputError if a key occurs twice: its row could not be found again."""
    if len(np.unique(keys)) != len(keys):
        raise InputError(f"values of the key column '{key}' occur twice in the source; an increment needs unique keys.")


def find_removed(old: OldRows, new_keys: Hashes) -> Hashes:
    """Return the hashes of keys that the source no longer has."""
    return np.setdiff1d(old.keys, new_keys)


def pick_keys(tables: Iterable[Any], key: str, hashes_to_pick: Hashes) -> Iterator[Any]:
    """Yield the values of the key column whose hash is wanted."""
    for table in tables:
        values = table[key].to_pylist()
        hashes = np.frombuffer(b"".join(_digest(repr(value)) for value in values), np.uint64)
        for index in np.flatnonzero(np.isin(hashes, hashes_to_pick)).tolist():
            yield values[index]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST).digest()
