"""Compare the rows of a source with those of a finished target: which are the same, new, changed or removed.

Rows are matched by their key column. A row is the same if all its columns are. Both sides become two 64-bit hashes per
row, so a hundred million rows take 1.6 GB for each side. The hashes start from random numbers that live only as long as
the comparison, so two texts that collide cannot be prepared. NumPy computes them over whole columns: one Python call
for each row would take longer than the rest of an increment on a GPU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError

WORD = 8  # bytes
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


class RowHasher:
    """Hashes rows; hashes of two hashers cannot be compared."""

    def __init__(self) -> None:
        self._random = np.random.default_rng()
        self._seed, self._null, self._length = self._random.integers(0, 2**64, 3, np.uint64)
        self._keys = self._random.integers(0, 2**64, 64, np.uint64)  # one for each word of a text

    def hash_rows(self, rows: Any, key: str) -> tuple[Hashes, Hashes]:
        """Return a hash of the key and one of all columns, for each row."""
        contents = np.zeros(len(rows), np.uint64)
        for number, name in enumerate(sorted(rows.column_names)):
            column = self.hash_column(rows[name])
            contents = _mix(contents + column + np.uint64(number))
            if name == key:
                keys = column
        return keys, contents

    def hash_column(self, column: Any) -> Hashes:
        """Return a hash of each value; values of two types may have the same hash."""
        from pyarrow import types

        values = column.combine_chunks() if hasattr(column, "combine_chunks") else column
        kind = values.type
        if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
            hashes = self._hash_texts(values)
        elif types.is_integer(kind) or types.is_floating(kind) or types.is_timestamp(kind):
            filled = values.fill_null(0) if values.null_count else values
            numbers = filled.to_numpy(zero_copy_only=False)
            bits = np.ascontiguousarray(numbers).view(f"u{numbers.dtype.itemsize}").astype(np.uint64)
            hashes = _mix(bits ^ self._seed)
        else:  # lists, structures, decimals, truth values: rare as columns beside a text
            return np.array([self._hash_object(value) for value in values.to_pylist()], np.uint64)
        if values.null_count:
            hashes[np.asarray(values.is_null())] = self._null
        return hashes

    def _hash_texts(self, values: Any) -> Hashes:
        """Hash texts as sums over their 8-byte words, each mixed with the number of its place."""
        from pyarrow import types

        large = types.is_large_string(values.type) or types.is_large_binary(values.type)
        _, offset_buffer, data = values.buffers()
        offsets = np.frombuffer(offset_buffer, np.int64 if large else np.int32)
        offsets = offsets[values.offset : values.offset + len(values) + 1].astype(np.int64)
        lengths = np.diff(offsets)
        words = -(-lengths // WORD)
        starts = np.concatenate([[0], np.cumsum(words)])
        padded = np.zeros(int(starts[-1]) * WORD, np.uint8)
        if data is not None and len(padded):
            source = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
            padded[np.arange(len(source)) + np.repeat(starts[:-1] * WORD - (offsets[:-1] - offsets[0]), lengths)] = (
                source
            )
        places = np.arange(int(starts[-1])) - np.repeat(starts[:-1], words)
        longest = int(words.max(initial=0))
        if longest > len(self._keys):
            more = self._random.integers(0, 2**64, 2 * longest - len(self._keys), np.uint64)
            self._keys = np.concatenate([self._keys, more])
        mixed = _mix(padded.view(np.uint64) ^ self._keys[places])
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed)])  # modulo 2 ** 64
        return _mix(sums[starts[1:]] - sums[starts[:-1]] + lengths.astype(np.uint64) * self._length)

    def _hash_object(self, value: Any) -> int:
        text = repr(value).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(text, digest_size=WORD, key=self._seed.tobytes()).digest()
        return int.from_bytes(digest, "little")


def index_rows(tables: Iterable[tuple[int, Any]], key: str, hasher: RowHasher) -> OldRows:
    """Return the rows of (part, table) pairs; a part may come in several tables."""
    keys, contents, parts, rows = [], [], [], []
    position: dict[int, int] = {}
    for part, table in tables:
        key_hashes, content_hashes = hasher.hash_rows(table, key)
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


def check_unique(keys: Hashes, key: str, place: str = "source") -> None:
    """Raise InputError if a key occurs twice: its row could not be found again."""
    if len(np.unique(keys)) != len(keys):
        raise InputError(
            f"values of the key column '{key}' occur twice in the {place}; an increment needs unique keys."
        )


def find_removed(old: OldRows, new_keys: Hashes) -> Hashes:
    """Return the hashes of keys that the source no longer has."""
    return np.setdiff1d(old.keys, new_keys)


def pick_keys(tables: Iterable[Any], key: str, hashes_to_pick: Hashes, hasher: RowHasher) -> Iterator[Any]:
    """Yield the values of the key column whose hash is one of those."""
    for table in tables:
        column = table[key].combine_chunks()
        for index in np.flatnonzero(np.isin(hasher.hash_column(column), hashes_to_pick)).tolist():
            yield column[index].as_py()


def _mix(values: Hashes) -> Hashes:
    """Mix the bits of each number so that every bit depends on all of them (the last step of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
