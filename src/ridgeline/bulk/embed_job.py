"""`ridgeline.bulk.embed`: a source of any size → its columns and vectors, exactly once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ridgeline.bulk.embedding import EmbedFactory, EmbedSettings, hash_model
from ridgeline.bulk.engines import LocalEngine, choose_devices, spread_workers
from ridgeline.bulk.increment import check_unique, find_removed, hash_rows, index_rows, pick_keys
from ridgeline.bulk.job import (
    Chunk,
    Progress,
    Report,
    Totals,
    add_code_version,
    begin_job,
    check_job,
    fingerprint,
    make_chunks,
    run_chunks,
)
from ridgeline.bulk.parts import Reuse, Task
from ridgeline.bulk.rows import RowReader
from ridgeline.bulk.sources import HIDDEN, Table, find_files, open_table, plan_spans, require_arrow
from ridgeline.bulk.storage import Storage, make_absolute
from ridgeline.bulk.tables import TableTarget, open_table_target
from ridgeline.bulk.target import Part, Target, find_driver, read_manifest_parts
from ridgeline.errors import InputError, Locked, unknown

FORMATS = ("parquet", "delta", "lance")
ENGINES = ("local", "ray")
VECTOR_TYPES = ("float32", "float16")
CHUNK_ROWS = 16_384
DEFAULT_MODEL = "all-MiniLM-L6-v2"

Source = str | os.PathLike[str]


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


def embed(
    sources: Source | Sequence[Source],
    out: Source,
    *,
    column: str | None = None,
    key: str | None = None,
    format: str = "parquet",
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    chunk_rows: int = CHUNK_ROWS,
    chunk_timeout: float | None = None,
    incremental: bool = False,
    max_rejects: int | None = None,
    device: str = "auto",
    dtype: str = "auto",
    model: str = DEFAULT_MODEL,
    max_tokens: int | None = None,
    prompt: str | None = None,
    truncate_dim: int | None = None,
    normalize: bool = True,
    vectors: str = "float32",
    report: Report = lambda _: None,
) -> dict[str, Any]:
    """Embed a column of texts; the target gets the columns of the source and `vector`.

    sources        files, folders, globs or URLs of Parquet, JSON lines, CSV, TSV and text; Delta tables, Lance datasets
    out            the target: a folder or a URL
    column         the column of texts (default: "text", or the only one)
    key            the column that identifies a row; an increment needs it
    format         "parquet", "delta" or "lance"
    engine         "local": processes of this machine; "ray": actors of a Ray cluster
    address        of the Ray cluster: "auto" or "host:port"; None starts one on this machine
    workers        processes or actors (default: two for each GPU, one for each NUMA node of a CPU)
    chunk_rows     rows of a chunk, the most that a stopped worker loses; a part has so many rows
    chunk_timeout  seconds for one chunk, after which its worker ends and its rows are tried apart (default: no limit)
    incremental    update a finished target: only new and changed rows are computed, removed rows disappear
    max_rejects    stop if more rows are rejected (default: no limit)
    vectors        the type that vectors are stored in: "float32" or "float16"
    report         called with a `Progress` after each chunk
    device, dtype, model, max_tokens, prompt, truncate_dim and normalize are those of `ridgeline embed`

    The same call again resumes a job that was stopped. Returns job, rows, computed, reused, removed, rejects, chunks.
    """
    call = {**locals()}
    del call["report"]
    call["sources"] = [make_absolute(source) for source in _make_list(sources)]
    call["out"] = make_absolute(out)
    started = time.monotonic()
    _check_options(format, engine, address, chunk_rows, incremental, key, max_rejects, vectors)
    devices = choose_devices(device) if engine == "local" else [device]
    if engine == "ray":
        from ridgeline.bulk.ray_engine import require_ray

        require_ray()
    require_arrow()
    if driver := find_driver(call["out"]):
        raise Locked(f"another job works on '{call['out']}': {driver}; wait for it to end, or stop it.")
    table = open_table(find_files(call["sources"]), column, key)
    model_settings = EmbedSettings(
        model, hash_model(model), _name_dtype(dtype, devices[0]), max_tokens, prompt, truncate_dim, normalize, vectors
    )
    settings = add_code_version(
        {
            "kind": "embed",
            "column": table.column,
            "key": key,
            "columns": [f"{field.name}: {field.type}" for field in table.schema],
            "format": format,
            "chunk_rows": chunk_rows,
            **asdict(model_settings),
        }
    )
    chunks = make_chunks(table.files, plan_spans(table, chunk_rows), settings)
    with Target(call["out"]) as target:
        output = None if format == "parquet" else open_table_target(format, target.url, target.storage)
        if output is not None:
            output.check()
        factory = EmbedFactory(
            table, target.url, "" if output is None else f"{HIDDEN}/parts/", model_settings, engine == "ray"
        )
        run = _Run(target, table, chunks, settings, call, output, factory, report, max_rejects)
        make_engine = partial(_make_engine, engine, factory, devices, workers, address, chunk_timeout)
        return run.finish(make_engine, incremental, started)


class _Run:
    """One run of the driver inside its target."""

    def __init__(
        self,
        target: Target,
        table: Table,
        chunks: list[Chunk],
        settings: Mapping[str, Any],
        call: Mapping[str, Any],
        output: TableTarget | None,
        factory: EmbedFactory,
        report: Report,
        max_rejects: int | None,
    ) -> None:
        self.target, self.table, self.chunks, self.settings, self.call = target, table, chunks, settings, call
        self.output, self.factory, self.report, self.max_rejects = output, factory, report, max_rejects

    def finish(self, make_engine: Any, incremental: bool, started: float) -> dict[str, Any]:
        """Do what is left of the job; return the answer."""
        state = check_job(self.target, self.settings, self.chunks, incremental)
        same_plan = state is not None and state.job["plan"] == fingerprint(self.chunks)
        changes = None
        if state is None or (not state.complete and state.job["generation"] == 1):
            job = state.job if state is not None and same_plan else self._begin(1)
            done = state.parts if state is not None and same_plan else {}
            if same_plan:
                self.target.restore()
        elif state.complete and same_plan:
            return self._answer(state.job, state.parts, Totals(), None, started, state.summary["rows"])
        else:
            changes = self._find_changes(state.job)
            nothing = not changes.changed and not changes.removed_count and not changes.rejecting
            if state.complete and nothing and self.output is not None:
                job = {**state.job, "plan": fingerprint(self.chunks), "chunks": len(self.chunks)}
                self.target.write_json("job.json", job)
                return self._answer(job, state.parts, Totals(), changes, started, state.summary["rows"])
            if state.complete or not same_plan:
                job = self._begin(state.job["generation"] + state.complete)
                done = {}
            else:
                job, done = state.job, state.parts
                self.target.restore()
        totals = self._compute(make_engine, done, changes)
        if changes is not None and self.output is None:
            done = {**changes.same, **done}
        rows = self._publish(job, done, changes, totals)
        return self._answer(job, done, totals, changes, started, rows)

    def _begin(self, generation: int) -> dict[str, Any]:
        base = self.output.describe()[0] if self.output is not None and self.output.exists() else 0
        if generation == 1 and self.output is not None and self.output.exists():
            raise InputError(f"'{self.target.url}' has a table that no job wrote; choose another target.")
        return begin_job(self.target, "embed", self.settings, self.chunks, self.call, generation, base)

    def _compute(self, make_engine: Any, done: dict[int, Part], changes: Changes | None) -> Totals:
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
        return run_chunks(
            self.target, make_engine, tasks, done, total, rows, self.max_rejects, self.report, self._locate
        )

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
        old = index_rows(self._read_old(parts), key)
        names = {number: part.name for number, part in parts.items() if part.name is not None}
        reader = RowReader(self.table)
        reuse, same, rejecting, all_keys = {}, {}, set(), []
        changed = 0
        for chunk in self.chunks:
            batch = reader.read(chunk.spans)
            if batch.rejects:
                rejecting.add(chunk.number)
            keys, contents = hash_rows(batch.rows, key)
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
            removed = tuple(pick_keys((rows for _, rows in self._read_old({}, [key])), key, gone))
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
            "seconds": time.monotonic() - started,
            "stage_seconds": totals.seconds,
            "busy_seconds": totals.busy,
        }


def _make_engine(
    engine: str,
    factory: EmbedFactory,
    devices: list[str],
    workers: int | None,
    address: str | None,
    chunk_timeout: float | None,
) -> Any:
    if engine == "ray":
        from ridgeline.bulk.ray_engine import RayEngine

        return RayEngine(factory, devices[0], workers, address, chunk_timeout)
    return LocalEngine(factory, spread_workers(devices, workers), chunk_timeout)


def _read_schema(storage: Storage, name: str) -> Any:
    import pyarrow.parquet as parquet

    with storage.open(name) as stream:
        return parquet.read_schema(stream).remove_metadata()


def _name_dtype(dtype: str, device: str) -> str:
    """Return the type to compute in: an automatic choice differs between CPUs and GPUs, and so do its vectors."""
    if dtype != "auto":
        return dtype
    from ridgeline.embed import choose_cpu_dtype

    return choose_cpu_dtype() if device == "cpu" else "auto on GPU"


def _check_options(
    form: str,
    engine: str,
    address: str | None,
    chunk_rows: int,
    incremental: bool,
    key: str | None,
    max_rejects: int | None,
    vectors: str,
) -> None:
    if form not in FORMATS:
        raise unknown("format of a target", form, FORMATS)
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if vectors not in VECTOR_TYPES:
        raise unknown("type of vectors", vectors, VECTOR_TYPES)
    if form == "delta" and vectors != "float32":
        raise InputError("a Delta table has no float16; leave --vectors out, or choose parquet or lance.")
    if address is not None and engine != "ray":
        raise InputError(f"--address '{address}' is that of a Ray cluster; add --engine ray.")
    if chunk_rows < 1:
        raise InputError(f"--chunk-rows is {chunk_rows}; give 1 or more.")
    if max_rejects is not None and max_rejects < 0:
        raise InputError(f"--max-rejects is {max_rejects}; give 0 or more.")
    if incremental and key is None:
        raise InputError("--incremental needs --key, the column that identifies a row.")


def _make_list(sources: Source | Sequence[Source]) -> list[Source]:
    return [sources] if isinstance(sources, str | os.PathLike) else list(sources)


def describe_progress(progress: Progress, unit: str = "rows") -> str:
    """Return progress as one line.

    >>> describe_progress(Progress(500, 100, 1000, 10.0, 1, {}))
    '600 of 1,000 rows, 50/s, 1 reject'
    """
    rate = progress.rows / progress.seconds if progress.seconds else 0.0
    rejects = f", {progress.rejects} reject{'s' * (progress.rejects != 1)}" if progress.rejects else ""
    return f"{progress.rows + progress.before:,} of {progress.total:,} {unit}, {rate:,.0f}/s{rejects}"
