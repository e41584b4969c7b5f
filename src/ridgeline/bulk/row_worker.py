"""What the workers of `bulk embed` and `bulk recommend` have in common: rows in, the same rows with more columns out.

A worker reads the rows of a chunk, computes columns for them, takes the columns of unchanged rows from the finished
target, sets bad rows apart, and writes the part.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.bulk.parts import Outcome, Reuse, Task, find_place, write_part
from ridgeline.bulk.rows import Reject, RowBatch, RowReader
from ridgeline.bulk.sources import Table
from ridgeline.bulk.storage import open_storage
from ridgeline.errors import RidgelineError

SHOWN_REJECTS = 3


@dataclass(frozen=True)
class Computed:
    """The columns that a worker computed for the good ones of some rows, and (row, reason) of the others."""

    columns: Any  # pyarrow.Table, a row for each good one
    bad: list[tuple[int, str]]
    truncated: int = 0  # texts that reach the limit of tokens


class RowFactory(Protocol):
    """Makes the worker of a device; it is sent to each worker once."""

    @property
    def table(self) -> Table: ...
    @property
    def target(self) -> str: ...
    @property
    def folder(self) -> str: ...
    def __call__(self, device: str) -> Any: ...


class RowWorker(ABC):
    """Computes columns for the rows of chunks."""

    added: tuple[str, ...]  # the names of the columns

    def __init__(self, factory: RowFactory, device: str) -> None:
        self._table, self._folder = factory.table, factory.folder
        self._storage = open_storage(factory.target)
        self._reader = RowReader(factory.table)
        self._place = find_place(device)

    @abstractmethod
    def compute(self, values: Any) -> Computed:
        """Return the columns of some values of the job's column."""

    def describe(self) -> dict[str, str]:
        """Return the metadata of a part."""
        return {}

    def close(self) -> None:
        """Close the files that are open."""
        self._reader.close()

    def __call__(self, task: Task) -> Outcome:
        try:
            return replace(self._run(task), place=self._place)
        except RidgelineError as error:
            return Outcome(error=str(error))

    def _run(self, task: Task) -> Outcome:
        started = time.perf_counter()
        batch = skip_rows(self._table, self._reader.read(task.spans), task.skip)
        if task.probe is not None:
            batch = replace(batch, rows=batch.rows.slice(task.probe[0], task.probe[1] - task.probe[0]))
        read = time.perf_counter()
        values = batch.rows[self._table.column].combine_chunks()
        missing = np.arange(len(values)) if task.reuse is None else np.flatnonzero(np.asarray(task.reuse.parts) < 0)
        new = self.compute(values if len(missing) == len(values) else values.take(_to_arrow(missing)))
        computed = time.perf_counter()
        if task.probe is not None:
            return Outcome()
        keep, columns = self._merge(new, missing, len(values), task.reuse)
        rows = batch.rows if keep.all() else batch.rows.filter(_to_arrow(keep))
        for name in self.added:
            rows = rows.append_column(name, columns[name])
        rejects = [*batch.rejects]
        for index, reason in new.bad:
            row = int(missing[index])
            rejects.append(Reject(self._table.files[batch.files[row]].label, int(batch.numbers[row]), reason))
        rows = rows.replace_schema_metadata(self.describe())
        part = write_part(self._storage, task, self._folder, rows, rejects, len(new.columns))
        ended = time.perf_counter()
        seconds = {"read": read - started, "compute": computed - read, "write": ended - computed}
        return Outcome(part, None, seconds, tuple(rejects[:SHOWN_REJECTS]), truncated=new.truncated)

    def _merge(
        self, new: Computed, missing: NDArray[np.int64], count: int, reuse: Reuse | None
    ) -> tuple[NDArray[np.bool_], Any]:
        """Return which rows stay, and their new columns: those just computed and those of the finished target."""
        import pyarrow as arrow

        keep = np.ones(count, bool)
        if reuse is not None and reuse.drop_reused:
            keep[:] = False
            keep[missing] = True
        keep[[int(missing[index]) for index, _ in new.bad]] = False
        if reuse is None or reuse.drop_reused:
            return keep, new.columns
        parts, rows = np.asarray(reuse.parts), np.asarray(reuse.rows)
        good = np.delete(missing, [index for index, _ in new.bad])
        place = np.full(count, -1, np.int64)  # of each row in the tables that are joined
        place[good] = np.arange(len(good))
        tables, first = [new.columns], len(good)
        for number in np.unique(parts[parts >= 0]):
            from_part = parts == number
            tables.append(self._read_old(reuse.names[int(number)], rows[from_part]).cast(new.columns.schema))
            place[from_part] = first + np.arange(int(from_part.sum()))
            first += int(from_part.sum())
        joined = arrow.concat_tables(tables).combine_chunks()
        return keep, joined.take(_to_arrow(place[keep]))

    def _read_old(self, name: str, rows: NDArray[np.int64]) -> Any:
        """Return the added columns of some rows of a part."""
        import pyarrow.parquet as parquet

        with self._storage.open(name) as stream:
            table = parquet.read_table(stream, columns=list(self.added)).select(list(self.added))
        return table.combine_chunks().take(_to_arrow(rows)).replace_schema_metadata(None)


def skip_rows(table: Table, batch: RowBatch, skip: tuple[Reject, ...]) -> RowBatch:
    """Turn rows that ended workers into rejects."""
    if not skip:
        return batch
    bad = {(reject.source, reject.row) for reject in skip}
    keep = np.array(
        [(table.files[f].label, int(n)) not in bad for f, n in zip(batch.files, batch.numbers, strict=True)], bool
    )
    rows = batch.rows.filter(_to_arrow(keep))
    return RowBatch(rows, batch.files[keep], batch.numbers[keep], (*batch.rejects, *skip))


def _to_arrow(array: NDArray[Any]) -> Any:
    import pyarrow as arrow

    return arrow.array(array)
