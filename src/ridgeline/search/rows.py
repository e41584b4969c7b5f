"""The rows of an index: ids, removals, columns (meta), and filters over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra
from ridgeline.search.arrays import Array, Flags, GrowableArray, Integers, wrap_rows
from ridgeline.search.inputs import as_ids, is_tensor
from ridgeline.search.where import rows_where

LARGEST_ID = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Rows:
    """All rows that were added, without those whose removal is complete; never changes."""

    ids: GrowableArray
    alive: Flags | None  # uint8 [rows]; None while nothing was removed
    meta: Any  # a pyarrow Table of as many rows, or None
    next_id: int
    rising: bool  # each id is above the one before

    @property
    def count(self) -> int:
        return self.ids.count

    @property
    def live(self) -> int:
        return self.count if self.alive is None else int(np.count_nonzero(self.alive))

    @property
    def live_rows(self) -> Integers:
        return np.arange(self.count) if self.alive is None else np.flatnonzero(self.alive)

    @cached_property
    def _by_id(self) -> Integers:
        """Live rows in the order of their ids; a removed id can exist again in a later row."""
        rows = self.live_rows
        return rows if self.rising else rows[np.argsort(self.ids.rows[rows])]

    @cached_property
    def id_array(self) -> Integers:
        """The ids, always as the same array object: an engine caches what it derives from it."""
        return self.ids.rows

    def map_tensor_ids(self, rows: Any) -> Any:
        """Map a tensor of rows to ids, −1 stays; the table of ids stays on its device."""
        import torch

        table = self._tables.get(rows.device)
        if table is None:
            table = self._tables[rows.device] = torch.from_numpy(np.array(self.id_array)).to(rows.device)
        return torch.where(rows >= 0, table[rows.clamp(min=0)], rows)

    @cached_property
    def _tables(self) -> dict[Any, Any]:
        return {}

    def find(self, ids: Integers) -> Integers:
        """Return the live row of each id, or −1."""
        rows = self._by_id
        if not len(rows):
            return np.full(len(ids), -1, np.int64)
        ids_sorted = self.ids.rows if self.alive is None and self.rising else self.ids.rows[rows]
        positions = rows[np.minimum(np.searchsorted(ids_sorted, ids), len(rows) - 1)]
        return np.where(self.ids.rows[positions] == ids, positions, -1)

    def find_existing(self, ids: Integers, doing: str) -> Integers:
        """Return the live row of each id; an id that is not in the index is an InputError. `doing` says what the caller
        does.
        """
        rows = self.find(ids)
        if len(rows) and rows.min() < 0:
            missing = ids[rows < 0]
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise InputError(f"id {missing[0]}{more} is not in the index; {doing} ids that were added.")
        return rows

    def append(self, count: int, ids: Any, meta: Any) -> Rows:
        new_ids = self._check_new_ids(count, ids)
        table = self._check_new_meta(count, meta)
        starts_above = not len(new_ids) or not self.count or bool(new_ids[0] > self.ids.rows[-1])
        rising = self.rising and starts_above and _is_rising(new_ids)
        alive = None if self.alive is None else np.concatenate([self.alive, np.ones(count, np.uint8)])
        next_id = max(self.next_id, int(new_ids.max(initial=-1)) + 1)
        return Rows(self.ids.append(new_ids), alive, table, next_id, rising)

    def mark_removed(self, rows: Integers) -> Rows:
        alive = np.ones(self.count, np.uint8) if self.alive is None else self.alive.copy()
        alive[rows] = 0
        return replace(self, alive=alive)

    def select_rows(self, rows: Integers) -> Rows:
        meta = None if self.meta is None else self.meta.take(rows)
        return Rows(wrap_rows(self.ids.rows[rows]), None, meta, self.next_id, self.rising)

    def _check_new_ids(self, count: int, ids: Any) -> Integers:
        if ids is None:
            if count and self.next_id + count - 1 > LARGEST_ID:
                raise InputError(f"the ids after {self.next_id - 1} are beyond 64 bits; give ids= of your own.")
            return np.arange(count) + (self.next_id if count else 0)
        new_ids = as_ids(ids)
        if len(new_ids) != count:
            raise InputError(f"{len(new_ids)} ids for {count} vectors; give one for each.")
        if count and new_ids.min() < 0:
            raise InputError(f"id {new_ids.min()} is negative, and -1 means 'none'; give ids of 0 or more.")
        ordered = new_ids if _is_rising(new_ids) else np.sort(new_ids)
        duplicates = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(duplicates):
            raise InputError(f"id {duplicates[0]} is given twice; every id must be its own.")
        existing = self.find(new_ids)
        if count and existing.max() >= 0:
            raise InputError(
                f"id {new_ids[existing >= 0][0]} is in the index already; remove it first or give another."
            )
        return new_ids

    def _check_new_meta(self, count: int, meta: Any) -> Any:
        if meta is None and self.meta is None:
            return None
        if meta is None:
            raise InputError(f"the rows so far have {_join_names(self.meta)}; give meta= with them.")
        new_meta = make_table(meta, count)
        if self.meta is None:
            if self.count:
                raise InputError(f"the {self.count} rows so far have no meta; give it from the first add on.")
            return new_meta
        if set(new_meta.column_names) != set(self.meta.column_names):
            raise InputError(
                f"meta has {_join_names(new_meta)}, the rows so far have {_join_names(self.meta)}; give the same."
            )
        import pyarrow as pa

        try:
            new_meta = new_meta.select(self.meta.column_names).cast(self.meta.schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InputError(f"meta does not fit the rows so far: {error}.") from None
        return pa.concat_tables([self.meta, new_meta])


def make_empty_rows() -> Rows:
    return Rows(wrap_rows(np.empty(0, np.int64)), None, None, 0, True)


def make_table(meta: Any, count: int) -> Any:
    """A pyarrow Table from one, from a pandas frame, or from columns by name."""
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtra("meta and where", "parquet") from None
    try:
        if isinstance(meta, pa.Table):
            table = meta
        elif isinstance(meta, Mapping):
            table = pa.table({str(name): _convert_column(values) for name, values in meta.items()})
        elif hasattr(meta, "columns") and hasattr(meta, "dtypes"):
            table = pa.Table.from_pandas(meta, preserve_index=False)
        else:
            raise InputError(f"meta is {type(meta).__name__}; give columns by name, or a pyarrow Table.")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        raise InputError(f"meta cannot be made a table: {error}.") from None
    if table.num_rows != count:
        raise InputError(f"meta has {table.num_rows} rows for {count} vectors; give one for each.")
    return table


def _convert_column(values: Any) -> Any:
    return values.detach().cpu().numpy() if is_tensor(values) else values


def _is_rising(ids: Array) -> bool:
    return bool((ids[1:] > ids[:-1]).all())


def _join_names(table: Any) -> str:
    return ", ".join(table.column_names) or "no columns"


def make_row_mask(rows: Rows, where: Any) -> Flags | None:
    """Return uint8 [rows], 1 where a row may be returned, or None if all rows may.

    where  a condition (where.py); truth values [len(index)], in the order of `index.ids`; or whole numbers: ids to
           search among; ids that are not in the index are ignored
    """
    if where is None:
        return rows.alive
    mask = np.zeros(rows.count, np.uint8)
    if isinstance(where, str):
        if rows.meta is None:
            raise InputError(f"where='{where}': the rows have no meta; add them with meta={{'column': values}}.")
        mask[rows_where(where, rows.meta)] = 1
    else:
        values = where.detach().cpu().numpy() if is_tensor(where) else np.asarray(where)
        if values.dtype == np.bool_:
            if values.shape != (rows.live,):
                raise InputError(f"where is a mask of shape {values.shape} for {rows.live} rows; give one per row.")
            mask[rows.live_rows[values]] = 1
        else:
            matches = rows.find(as_ids(values, "ids of where"))
            mask[matches[matches >= 0]] = 1
    if rows.alive is not None:
        mask &= rows.alive
    return mask
