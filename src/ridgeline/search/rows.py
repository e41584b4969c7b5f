"""Who the rows are: their ids, which were removed, and what is known about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra
from ridgeline.search.arrays import Array, Flags, Grown, Whole, grown
from ridgeline.search.inputs import is_tensor, numbers

LARGEST_ID = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Rows:
    """Every row that was added and not yet swept away; never changes."""

    ids: Grown
    alive: Flags | None  # uint8 [rows]; None while nothing was removed
    meta: Any  # a pyarrow Table of as many rows, or None
    next_id: int
    rising: bool  # each id above the one before: then they are their own order

    @property
    def count(self) -> int:
        return self.ids.count

    @property
    def live(self) -> int:
        return self.count if self.alive is None else int(np.count_nonzero(self.alive))

    @property
    def live_rows(self) -> Whole:
        return np.arange(self.count) if self.alive is None else np.flatnonzero(self.alive)

    @cached_property
    def _by_id(self) -> Whole:
        """Living rows in the order of their ids; an id that was removed may be there again, in a later row."""
        rows = self.live_rows
        return rows if self.rising else rows[np.argsort(self.ids.rows[rows])]

    @cached_property
    def names(self) -> Whole:
        """The ids, as one and the same array: an engine remembers what it made of it."""
        return self.ids.rows

    def named(self, found: Any) -> Any:
        """A tensor of rows as ids, −1 staying; the ids stay on its device."""
        import torch

        table = self._tables.get(found.device)
        if table is None:
            table = self._tables[found.device] = torch.from_numpy(np.array(self.names)).to(found.device)
        return torch.where(found >= 0, table[found.clamp(min=0)], found)

    @cached_property
    def _tables(self) -> dict[Any, Any]:
        return {}

    def find(self, ids: Whole) -> Whole:
        """The living row of each id, or −1."""
        rows = self._by_id
        if not len(rows):
            return np.full(len(ids), -1, np.int64)
        known = self.ids.rows if self.alive is None and self.rising else self.ids.rows[rows]
        at = rows[np.minimum(np.searchsorted(known, ids), len(rows) - 1)]
        return np.where(self.ids.rows[at] == ids, at, -1)

    def found(self, ids: Whole, doing: str) -> Whole:
        rows = self.find(ids)
        if len(rows) and rows.min() < 0:
            missing = ids[rows < 0]
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise InputError(f"id {missing[0]}{more} is not in the index; {doing} ids that were added.")
        return rows

    def added(self, count: int, ids: Any, meta: Any) -> Rows:
        fresh = self._fresh_ids(count, ids)
        table = self._fresh_meta(count, meta)
        above = not len(fresh) or not self.count or bool(fresh[0] > self.ids.rows[-1])
        rising = self.rising and above and _rises(fresh)
        alive = None if self.alive is None else np.concatenate([self.alive, np.ones(count, np.uint8)])
        next_id = max(self.next_id, int(fresh.max(initial=-1)) + 1)
        return Rows(self.ids.appended(fresh), alive, table, next_id, rising)

    def removed(self, rows: Whole) -> Rows:
        alive = np.ones(self.count, np.uint8) if self.alive is None else self.alive.copy()
        alive[rows] = 0
        return replace(self, alive=alive)

    def taken(self, rows: Whole) -> Rows:
        meta = None if self.meta is None else self.meta.take(rows)
        return Rows(grown(self.ids.rows[rows]), None, meta, self.next_id, self.rising)

    def _fresh_ids(self, count: int, ids: Any) -> Whole:
        if ids is None:
            if count and self.next_id + count - 1 > LARGEST_ID:
                raise InputError(f"the ids after {self.next_id - 1} are beyond 64 bits; give ids= of your own.")
            return np.arange(count) + (self.next_id if count else 0)
        fresh = numbers(ids)
        if len(fresh) != count:
            raise InputError(f"{len(fresh)} ids for {count} vectors; give one for each.")
        if count and fresh.min() < 0:
            raise InputError(f"id {fresh.min()} is negative, and -1 means 'none'; give ids of 0 or more.")
        ordered = fresh if _rises(fresh) else np.sort(fresh)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            raise InputError(f"id {twice[0]} is given twice; every id must be its own.")
        known = self.find(fresh)
        if count and known.max() >= 0:
            raise InputError(f"id {fresh[known >= 0][0]} is in the index already; remove it first or give another.")
        return fresh

    def _fresh_meta(self, count: int, meta: Any) -> Any:
        if meta is None and self.meta is None:
            return None
        if meta is None:
            raise InputError(f"the rows so far have {_names(self.meta)}; give meta= with them.")
        fresh = table_of(meta, count)
        if self.meta is None:
            if self.count:
                raise InputError(f"the {self.count} rows so far have no meta; give it from the first add on.")
            return fresh
        if set(fresh.column_names) != set(self.meta.column_names):
            raise InputError(f"meta has {_names(fresh)}, the rows so far have {_names(self.meta)}; give the same.")
        import pyarrow as pa

        try:
            fresh = fresh.select(self.meta.column_names).cast(self.meta.schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InputError(f"meta does not fit the rows so far: {error}.") from None
        return pa.concat_tables([self.meta, fresh])


def no_rows() -> Rows:
    return Rows(grown(np.empty(0, np.int64)), None, None, 0, True)


def table_of(meta: Any, count: int) -> Any:
    """A pyarrow Table from one, from a pandas frame, or from columns by name."""
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtra("meta and where", "parquet") from None
    try:
        if isinstance(meta, pa.Table):
            table = meta
        elif isinstance(meta, Mapping):
            table = pa.table({str(name): _column(values) for name, values in meta.items()})
        elif hasattr(meta, "columns") and hasattr(meta, "dtypes"):
            table = pa.Table.from_pandas(meta, preserve_index=False)
        else:
            raise InputError(f"meta is {type(meta).__name__}; give columns by name, or a pyarrow Table.")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        raise InputError(f"meta cannot be made a table: {error}.") from None
    if table.num_rows != count:
        raise InputError(f"meta has {table.num_rows} rows for {count} vectors; give one for each.")
    return table


def _column(values: Any) -> Any:
    return values.detach().cpu().numpy() if is_tensor(values) else values


def _rises(ids: Array) -> bool:
    return bool((ids[1:] > ids[:-1]).all())


def _names(table: Any) -> str:
    return ", ".join(table.column_names) or "no columns"
