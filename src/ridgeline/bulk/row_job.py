"""The driver of a job that adds columns to rows: `bulk embed`, `bulk recommend`.

It compares the source with a finished target (increments), hands out chunks, and publishes a Parquet folder, a Delta
table or a Lance dataset.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeline.bulk.increment import RowHasher, check_unique, find_removed, index_rows, pick_keys
from ridgeline.bulk.job import (
    Chunk,
    Execution,
    Totals,
    begin_job,
    check_job,
    fingerprint,
    finish_job,
    run_chunks,
)
from ridgeline.bulk.parts import Reuse, Task
from ridgeline.bulk.row_worker import RowFactory
from ridgeline.bulk.rows import RowReader
from ridgeline.bulk.sources import Table
from ridgeline.bulk.storage import Storage
from ridgeline.bulk.tables import TableTarget
from ridgeline.bulk.target import Part, Target, read_manifest_parts
from ridgeline.errors import InputError, RidgelineError, StoreError, unknown

FORMATS = ("parquet", "delta", "lance")


@dataclass(frozen=True)
class Changes:
    """What an increment has to do."""

    reuse: dict[int, Reuse]  # by chunk
    same: dict[int, Part]  # chunks whose part stays as it is
    rejecting: frozenset[int]  # chunks with rejects
    reused: int
    changed: int
    removed: tuple[Any, ...]  # values of the key column
    removed_count: int


class RowJob:
    """One run of the driver inside its target."""

    def __init__(
        self,
        target: Target,
        table: Table,
        chunks: list[Chunk],
        settings: Mapping[str, Any],
        call: Mapping[str, Any],
        output: TableTarget | None,
        factory: RowFactory,
        execution: Execution,
    ) -> None:
        self.target, self.table, self.chunks, self.settings, self.call = target, table, chunks, settings, call
        self.output, self.factory, self.execution = output, factory, execution

    def run(self, incremental: bool, started: float) -> dict[str, Any]:
        """Do what is left of the job; return the answer."""
        state = check_job(self.target, self.settings, self.chunks, self.call, incremental)
        same_plan = state is not None and state.job["plan"] == fingerprint(self.chunks)
        changes = None
        if state is None or (not state.complete and state.job["generation"] == 1):
            job = state.job if state is not None and same_plan else self._begin(1)
            done = state.parts if state is not None and same_plan else {}
            if same_plan:
                self.target.restore()
        elif state.complete and same_plan:
            self.target.remove_unlisted(state.parts, keep_parts=self.output is None)
            return self._answer(state.job, state.parts, Totals(), None, started, state.summary["rows"])
        else:
            changes = self._find_changes(state.job)
            nothing = not changes.changed and not changes.removed_count and not changes.rejecting
            if state.complete and nothing and self.output is not None:
                job = {**state.job, "plan": fingerprint(self.chunks), "chunks": len(self.chunks)}
                self.target.remove_unlisted(state.parts, keep_parts=False)
                self.target.write_json("job.json", job)
                return self._answer(job, state.parts, Totals(), changes, started, state.summary["rows"])
            if state.complete or not same_plan:
                job = self._begin(state.job["generation"] + state.complete)
                done = {}
            else:
                job, done = state.job, state.parts
                self.target.restore()
        totals = self._compute(done, changes)
        if changes is not None and self.output is None:
            done = {**changes.same, **done}
        rows = self._publish(job, done, changes, totals)
        answer = self._answer(job, done, totals, changes, started, rows)
        finish_job(self.target, job, answer, totals)
        return answer

    def _begin(self, generation: int) -> dict[str, Any]:
        base = self.output.describe()[0] if self.output is not None and self.output.exists() else 0
        if generation == 1 and self.output is not None and self.output.exists():
            raise InputError(f"'{self.target.url}' has a table that no job wrote; choose another target.")
        kind = self.settings["kind"]
        return begin_job(self.target, kind, self.settings, self.chunks, self.call, generation, base)

    def _compute(self, done: dict[int, Part], changes: Changes | None) -> Totals:
        tasks = []
        for chunk in self.chunks:
            if chunk.number in done:
                continue
            reuse = None
            if changes is not None:
                reuse = changes.reuse[chunk.number]
                has_work = bool((np.asarray(reuse.parts) < 0).any()) or chunk.number in changes.rejecting
                if chunk.number in changes.same or (self.output is not None and not has_work):
                    continue
            tasks.append(Task(chunk.number, chunk.spans, chunk.key, reuse=reuse))
        rows = {chunk.number: chunk.rows for chunk in self.chunks}
        total = sum(rows[task.chunk] for task in tasks) + sum(rows[number] for number in done)
        return run_chunks(self.target, self.factory, self.execution, tasks, done, total, rows, self._locate)

    def _publish(self, job: Mapping[str, Any], done: dict[int, Part], changes: Changes | None, totals: Totals) -> int:
        """Make the target complete; return its rows."""
        names = [done[number].name for number in sorted(done)]
        parts = [name for name in names if name is not None]
        rows = sum(part.rows for part in done.values())
        if changes is None and not rows:
            raise InputError(
                f"no row of the source is good; '{self.target.url}/rejects' has the {totals.rejects} reasons."
            )
        if self.output is not None:
            schema = _read_schema(self.target.storage, parts[0]) if parts else self.output.describe()[1]
            with _explain_failure(self.target.url):
                if changes is None:
                    self.output.create(parts, schema, job["id"])
                elif changes.changed or changes.removed_count:
                    key = self.table.key or ""
                    self.output.update(parts, schema, key, changes.removed, job["id"], int(job["base"]))
        rows = changes.reused + totals.computed if changes is not None else rows
        summary = {"rows": rows, "rejects": totals.rejects, "seconds": totals.seconds, "busy": totals.busy}
        self.target.finish(done, summary, keep_parts=self.output is None)
        return rows

    def _find_changes(self, job: Mapping[str, Any]) -> Changes:
        """Compare the source with the finished target, chunk by chunk."""
        key = self.table.key
        if key is None:
            raise InputError("--incremental needs --key, the column that identifies a row.")
        parts = read_manifest_parts(self.target.storage) if self.output is None else {}
        hasher = RowHasher()
        if self.output is not None:
            self.output.check_key(self.table.schema.field(key))
        old = index_rows(self._read_old(parts), key, hasher)
        if self.output is not None:  # its rows are updated by key; parts are written anew
            check_unique(old.keys, key, "target")
        names = {number: part.name for number, part in parts.items() if part.name is not None}
        reader = RowReader(self.table)
        reuse, same, rejecting, all_keys = {}, {}, set(), []
        changed = 0
        for chunk in self.chunks:
            batch = reader.read(chunk.spans)
            if batch.rejects:
                rejecting.add(chunk.number)
            keys, contents = hasher.hash_rows(batch.rows, key)
            all_keys.append(keys)
            sources, rows = old.find(keys, contents)
            changed += int((sources < 0).sum())
            used = {int(number): names[int(number)] for number in np.unique(sources[sources >= 0])} if parts else {}
            reuse[chunk.number] = Reuse(sources, rows, used, drop_reused=self.output is not None)
            part = parts.get(chunk.number)
            if part is None or part.rows != len(sources) or batch.rejects or part.rejects:
                continue
            if (sources == chunk.number).all() and (rows == np.arange(len(rows))).all():
                same[chunk.number] = replace(part, computed=0, key=chunk.key)
        reader.close()
        new_keys = np.concatenate(all_keys)
        check_unique(new_keys, key)
        gone = find_removed(old, new_keys)
        removed = ()
        if len(gone) and self.output is not None:
            removed = tuple(pick_keys((rows for _, rows in self._read_old({}, [key])), key, gone, hasher))
        return Changes(reuse, same, frozenset(rejecting), len(new_keys) - changed, changed, removed, len(gone))

    def _read_old(self, parts: Mapping[int, Part], columns: Sequence[str] = ()) -> Iterator[tuple[int, Any]]:
        """Yield (part, rows) of the finished target, without vectors."""
        names = list(columns) or self.table.schema.names
        schema = self.table.schema if not columns else None
        if self.output is not None:
            for rows in self.output.read(names):
                yield 0, rows.select(names).cast(schema) if schema else rows
            return
        import pyarrow.parquet as parquet

        for number, part in parts.items():
            if part.name is not None:
                with self.target.storage.open(part.name) as stream:
                    yield number, parquet.read_table(stream, columns=names).select(names)

    def _locate(self, task: Task, rows: list[int]) -> list[tuple[str, int]]:
        reader = RowReader(self.table)
        batch = reader.read(task.spans)
        reader.close()
        return [(self.table.files[batch.files[row]].label, int(batch.numbers[row])) for row in rows]

    def _answer(
        self,
        job: Mapping[str, Any],
        done: Mapping[int, Part],
        totals: Totals,
        changes: Changes | None,
        started: float,
        rows: int,
    ) -> dict[str, Any]:
        return {
            "job": job["id"],
            "target": self.target.url,
            "rows": rows,
            "computed": totals.computed,
            "reused": rows - totals.computed,
            "removed": changes.removed_count if changes else 0,
            "rejects": sum(part.rejects for part in done.values()),
            "chunks": len(self.chunks),
            **({"truncated": totals.truncated} if self.settings["kind"] == "embed" else {}),
            "seconds": time.monotonic() - started,
            "stage_seconds": totals.seconds,
            "busy_seconds": totals.busy,
        }


@contextmanager
def _explain_failure(url: str) -> Iterator[None]:
    """Turn an error of a library for tables, which may have any type, into one sentence."""
    try:
        yield
    except RidgelineError:
        raise
    except Exception as error:
        reason = re.sub(r",? ?/\S+\.rs:\d+(:\d+)?", "", " ".join(str(error).split()))[:300]
        raise StoreError(
            f"the table '{url}' was not written: {reason}; what is computed is kept, so run the command again "
            "when that is mended."
        ) from error


def _read_schema(storage: Storage, name: str) -> Any:
    import pyarrow.parquet as parquet

    with storage.open(name) as stream:
        return parquet.read_schema(stream).remove_metadata()


def check_row_options(form: str, chunk_rows: int, incremental: bool, key: str | None) -> None:
    """Raise InputError for options that no job takes."""
    if form not in FORMATS:
        raise unknown("format of a target", form, FORMATS)
    if chunk_rows < 1:
        raise InputError(f"--chunk-rows is {chunk_rows}; give 1 or more.")
    if incremental and key is None:
        raise InputError("--incremental needs --key, the column that identifies a row.")
