"""`ridgeline.bulk.index`: vectors of any number → shards of one index, exactly once.

    TARGET/shards.json                       the list that `ShardedIndex.load` and `ridgeline search` read
    TARGET/shards/shard-000000-3f…/          one index for each chunk of the source; the name has the hash of its files
    TARGET/_ridgeline/trained/               lists and codes, trained once on a sample; every shard has the same

A shard is built on the disk of its worker, then renamed or uploaded. The list appears when all shards are there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.bulk.job import (
    Chunk,
    Execution,
    Report,
    Totals,
    add_code_version,
    begin_job,
    check_job,
    fingerprint,
    finish_job,
    make_chunks,
    run_chunks,
)
from ridgeline.bulk.parts import HASH_DIGITS, Outcome, Task, find_place, write_rejects
from ridgeline.bulk.row_worker import SHOWN_REJECTS, skip_rows
from ridgeline.bulk.rows import Reject, RowReader
from ridgeline.bulk.sources import HIDDEN, VECTOR, Span, Table, find_files, open_file, open_table, plan_spans
from ridgeline.bulk.storage import Storage, list_sources, make_absolute, open_storage
from ridgeline.bulk.target import SHARDS_FOLDER, Part, Target, read_manifest_parts, refuse_second_driver
from ridgeline.errors import InputError, RidgelineError
from ridgeline.store import verify

SHARD_ROWS = 1 << 19
RECALL_SAMPLE = 500
TRAIN_ROWS = 131_072
TRAIN_PLACES = 64  # from which the training vectors are read
TRAINED = f"{HIDDEN}/trained"
BUILDING = f"{HIDDEN}/building"

Source = str | os.PathLike[str]


@dataclass(frozen=True)
class IndexSettings:
    """What determines the shards."""

    spec: str
    metric: str
    dtype: str
    dim: int
    model: str | None
    sample: int  # rows of each shard to measure the recall with


@dataclass(frozen=True)
class IndexFactory:
    """Makes the worker of a device; it is sent to each worker once."""

    table: Table
    target: str
    settings: IndexSettings
    trained: bool
    starts: tuple[int, ...]  # of each chunk: the number of its first row in the source

    def __call__(self, device: str) -> IndexWorker:
        return IndexWorker(self, device)


class IndexWorker:
    """Reads the vectors of a chunk and writes them as one index."""

    def __init__(self, factory: IndexFactory, device: str) -> None:
        self._factory, self._device = factory, device
        self._storage, self._place = open_storage(factory.target), find_place(device)
        self._reader = RowReader(factory.table)
        self._trained = fetch_folder(self._storage, TRAINED) if factory.trained else None

    def __call__(self, task: Task) -> Outcome:
        try:
            return replace(self._run(task), place=self._place)
        except RidgelineError as error:
            return Outcome(error=str(error))

    def close(self) -> None:
        """Close the files that are open."""
        self._reader.close()
        if self._trained is not None and self._storage.local is None:
            shutil.rmtree(self._trained, ignore_errors=True)

    def _run(self, task: Task) -> Outcome:
        started = time.perf_counter()
        table, settings = self._factory.table, self._factory.settings
        batch = skip_rows(table, self._reader.read(task.spans), task.skip)
        rows, numbers = batch.rows, self._number_rows(task, batch.files, batch.numbers)
        if task.probe is not None:
            low, high = task.probe
            rows, numbers = rows.slice(low, high - low), numbers[low:high]
        vectors, bad = read_vectors(rows[table.column], settings.dim)
        rejects = [*batch.rejects]
        for index, reason in bad:
            rejects.append(Reject(table.files[batch.files[index]].label, int(batch.numbers[index]), reason))
        keep = np.ones(len(rows), bool)
        keep[[index for index, _ in bad]] = False
        if bad:
            import pyarrow as arrow

            rows, numbers = rows.filter(arrow.array(keep)), numbers[keep]
        ids = numbers if table.key is None else np.asarray(rows[table.key], np.int64)
        meta = rows.drop_columns([name for name in (table.column, table.key) if name is not None])
        read = time.perf_counter()
        index = self._open()
        index.add(vectors, ids, meta if meta.column_names else None)
        if settings.sample and len(index) and not index.exact and task.probe is None:
            index.measure_recall(min(settings.sample, len(index)))
        computed = time.perf_counter()
        if task.probe is not None:
            return Outcome()
        reject_file = write_rejects(self._storage, task, rejects)
        if len(index):
            name, size, digest = self._save(index, task)
            part = Part(task.chunk, name, len(index), size, digest, len(rejects), reject_file, len(index), task.key)
        else:
            part = Part(task.chunk, None, 0, 0, "", len(rejects), reject_file, 0, task.key)
        ended = time.perf_counter()
        seconds = {"read": read - started, "compute": computed - read, "write": ended - computed}
        return Outcome(part, None, seconds, tuple(rejects[:SHOWN_REJECTS]))

    def _number_rows(self, task: Task, files: NDArray[np.int32], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each row in the whole source."""
        global_numbers = np.empty(len(numbers), np.int64)
        first = self._factory.starts[task.chunk]
        for span in task.spans:
            in_span = (files == span.file) & (numbers >= span.first) & (numbers < span.first + span.rows)
            global_numbers[in_span] = numbers[in_span] - span.first + first
            first += span.rows
        return global_numbers

    def _open(self) -> Any:
        from ridgeline.search import Index

        settings = self._factory.settings
        if self._trained is not None:
            return Index.load(self._trained, device=self._device)
        return Index(
            settings.spec,
            dim=settings.dim,
            metric=settings.metric,
            device=self._device,
            dtype=settings.dtype,
            model=settings.model,
        )

    def _save(self, index: Any, task: Task) -> tuple[str, int, str]:
        """Write a shard; return its name, its bytes and the hash of its files."""
        local = self._storage.local
        base = tempfile.mkdtemp(prefix="ridgeline-") if local is None else local / BUILDING
        folder = Path(base, f"shard-{task.chunk:06}-{os.getpid()}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        index.save(folder)
        # The manifest also has the measured times of the recall curve, which differ from run to run.
        files = {name: entry.sha256 for name, entry in verify(folder, quick=True).files.items()}
        digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        name = f"{SHARDS_FOLDER}/shard-{task.chunk:06}-{digest[:HASH_DIGITS]}"
        if local is None:
            upload_folder(self._storage, folder, name)
            shutil.rmtree(base)
        else:
            final = local / name
            final.parent.mkdir(exist_ok=True)
            if (final / "manifest.json").exists():
                shutil.rmtree(folder)  # the same shard, by a worker that died before its commit
            else:
                shutil.rmtree(final, ignore_errors=True)
                folder.rename(final)
        return name, size, digest


def index(
    sources: Source | Sequence[Source],
    out: Source,
    *,
    column: str = VECTOR,
    key: str | None = None,
    keep: Sequence[str] | None = None,
    spec: str = "Auto",
    metric: str = "cosine",
    dtype: str = "auto",
    model: str | None = None,
    sample: int = RECALL_SAMPLE,
    shard_rows: int = SHARD_ROWS,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    chunk_timeout: float | None = None,
    incremental: bool = False,
    max_rejects: int | None = None,
    device: str = "auto",
    price: str | None = None,
    report: Report = lambda _: None,
) -> dict[str, Any]:
    """Build an index in shards, which `ShardedIndex.load(out)` opens.

    sources      Parquet files, Delta tables, Lance datasets, and folders, globs and URLs of these
    column       the column of vectors
    key          a column of whole numbers, the ids of the rows (default: rows are numbered from 0)
    keep         the other columns to store, for filters (default: all)
    spec, metric, dtype and model are those of `ridgeline.search.Index`; every shard has the same lists and codes
    sample       rows of each shard to measure its recall with; 0: do not measure
    shard_rows   rows of a shard; a worker holds one in memory, about three times
    incremental  update a finished target: shards whose part of the source did not change stay
    the other options are those of `ridgeline.bulk.embed`

    Returns job, rows, computed, reused, removed, rejects, chunks.
    """
    call = {**locals()}
    del call["report"]
    call["sources"], call["out"] = list_sources(sources), make_absolute(out)
    call["keep"] = None if keep is None else list(keep)
    started = time.monotonic()
    if shard_rows < 1:
        raise InputError(f"--shard-rows is {shard_rows}; give 1 or more.")
    if sample < 0:
        raise InputError(f"--sample is {sample}; give 0 or more.")
    if incremental and key is None:
        raise InputError("--incremental needs --key: without it, ids are the numbers of rows, which change.")
    execution = Execution(engine, address, workers, chunk_timeout, max_rejects, device, price, report).check()
    refuse_second_driver(call["out"])
    table = open_table(find_files(call["sources"], call["out"]), column, key, "vectors", keep)
    _check_key(table)
    spans = list(plan_spans(table, shard_rows))
    rows = sum(span.rows for group in spans for span in group)
    described = _read_description(table)
    index_settings = IndexSettings(
        _choose_spec(spec, min(rows, shard_rows)),
        metric,
        dtype if dtype != "auto" else "float32" if execution.devices[0] == "cpu" else "float16",
        _find_dim(table),
        model or described.get("model"),
        sample,
    )
    _check_settings(index_settings)
    settings = add_code_version(
        {
            "kind": "index",
            "column": column,
            "key": key,
            "columns": [f"{field.name}: {field.type}" for field in table.schema],
            "shard_rows": shard_rows,
            **asdict(index_settings),
        }
    )
    chunks = make_chunks(table.files, spans, settings)
    with Target(call["out"]) as target:
        return _IndexJob(target, table, chunks, settings, index_settings, call, execution).run(incremental, started)


@dataclass(frozen=True)
class _IndexJob:
    """One run of the driver inside its target."""

    target: Target
    table: Table
    chunks: list[Chunk]
    settings: Mapping[str, Any]
    index_settings: IndexSettings
    call: Mapping[str, Any]
    execution: Execution

    def run(self, incremental: bool, started: float) -> dict[str, Any]:
        state = check_job(self.target, self.settings, self.chunks, self.call, incremental)
        same_plan = state is not None and state.job["plan"] == fingerprint(self.chunks)
        if state is not None and state.complete and same_plan:
            self.target.remove_unlisted(state.parts)
            return self._answer(state.job, state.parts, Totals(), {}, started)
        reused = {}
        if state is not None and (state.complete or state.job["generation"] > 1):
            reused = self._find_reused(read_manifest_parts(self.target.storage))
        if state is not None and same_plan:
            job, done = state.job, state.parts
        else:
            generation = 1 if state is None else state.job["generation"] + state.complete
            job, done = begin_job(self.target, "index", self.settings, self.chunks, self.call, generation), {}
        done = {**reused, **done}
        totals = self._compute(done)
        self._publish(done, totals)
        answer = self._answer(job, done, totals, reused, started)
        finish_job(self.target, job, answer, totals)
        return answer

    def _find_reused(self, old: Mapping[int, Part]) -> dict[int, Part]:
        """Return the shards of a finished target whose part of the source did not change."""
        by_key = {part.key: part for part in old.values()}
        return {
            chunk.number: replace(by_key[chunk.key], chunk=chunk.number, computed=0)
            for chunk in self.chunks
            if chunk.key in by_key
        }

    def _compute(self, done: dict[int, Part]) -> Totals:
        from ridgeline.search import parse_spec

        counts = {chunk.number: chunk.rows for chunk in self.chunks}
        tasks = [Task(chunk.number, chunk.spans, chunk.key) for chunk in self.chunks if chunk.number not in done]
        spec = parse_spec(self.index_settings.spec)
        trains = spec is not None and spec.trains
        if trains and tasks:
            self._train()
        starts = np.cumsum([0, *(chunk.rows for chunk in self.chunks)])[:-1]
        first_rows = tuple(int(start) for start in starts)
        factory = IndexFactory(self.table, self.target.url, self.index_settings, trains, first_rows)
        return run_chunks(self.target, factory, self.execution, tasks, done, sum(counts.values()), counts, self._locate)

    def _train(self) -> None:
        """Train lists and codes on vectors from the whole source, once for all shards and all updates."""
        from ridgeline.search import Index

        storage = self.target.storage
        if storage.state(f"{TRAINED}/manifest.json") is not None:
            return
        vectors = self._sample_vectors()
        settings = self.index_settings
        trained = Index(
            settings.spec,
            dim=settings.dim,
            metric=settings.metric,
            device="cpu" if self.execution.engine == "ray" else self.execution.devices[0],
            dtype=settings.dtype,
            model=settings.model,
        )
        trained.train(vectors)
        if storage.local is not None:
            trained.save(storage.local / TRAINED)
            return
        with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
            trained.save(Path(folder, "trained"))
            upload_folder(storage, Path(folder, "trained"), TRAINED)

    def _sample_vectors(self) -> NDArray[np.float32]:
        """Return training vectors from places that are evenly spread over the source."""
        spans = [span for chunk in self.chunks for span in chunk.spans]
        ends = np.cumsum([span.rows for span in spans])
        total, places = int(ends[-1]), min(TRAIN_PLACES, int(ends[-1]))
        count = -(-min(total, TRAIN_ROWS) // places)  # rows from each place
        reader, samples = RowReader(self.table), []
        for first in np.linspace(0, max(0, total - count), places).astype(int).tolist():
            number = int(np.searchsorted(ends, first, "right"))
            span, offset = spans[number], first - int(ends[number] - spans[number].rows)
            part = Span(span.file, span.first + offset, min(count, span.rows - offset))
            vectors, _ = read_vectors(reader.read([part]).rows[self.table.column], self.index_settings.dim)
            samples.append(vectors)
        reader.close()
        return np.concatenate(samples)

    def _publish(self, done: Mapping[int, Part], totals: Totals) -> None:
        from ridgeline.search import SHARDS, format_shard_list

        names = [name for number in sorted(done) if (name := done[number].name) is not None]
        if not names:
            reasons = f"'{self.target.url}/rejects' has the {totals.rejects} reasons"
            raise InputError(f"no row of the source has a vector that can be used; {reasons}.")
        if self.table.key is not None:
            self._check_ids(names)
        self.target.storage.write(SHARDS, format_shard_list(names).encode())
        rows = sum(part.rows for part in done.values())
        summary = {"rows": rows, "rejects": totals.rejects, "seconds": totals.seconds, "busy": totals.busy}
        self.target.finish(done, summary)

    def _check_ids(self, names: Sequence[str]) -> None:
        """Raise InputError if an id is in two shards."""
        id_arrays = []
        for name in names:
            with self.target.storage.open(f"{name}/ids.npy") as stream:
                id_arrays.append(np.load(stream, allow_pickle=False))
        ids = np.sort(np.concatenate(id_arrays))
        twice = ids[1:][ids[1:] == ids[:-1]]
        if len(twice):
            raise InputError(
                f"the key '{self.table.key}' has the value {twice[0]} twice in the source; ids must be unique: "
                "correct the source, or leave --key out to number the rows."
            )

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
        reused: Mapping[int, Part],
        started: float,
    ) -> dict[str, Any]:
        rows = sum(part.rows for part in done.values())
        return {
            "job": job["id"],
            "target": self.target.url,
            "rows": rows,
            "computed": totals.computed,
            "reused": rows - totals.computed,
            "removed": 0,
            "rejects": sum(part.rejects for part in done.values()),
            "chunks": len(self.chunks),
            "shards": sum(part.name is not None for part in done.values()),
            "spec": self.index_settings.spec,
            "seconds": time.monotonic() - started,
            "stage_seconds": totals.seconds,
            "busy_seconds": totals.busy,
        }


def read_vectors(column: Any, dim: int) -> tuple[NDArray[np.float32], list[tuple[int, str]]]:
    """Return float32 [n, dim] of the good rows of a column, and (row, reason) of the others."""
    from pyarrow import types

    lists = column.combine_chunks()
    if types.is_fixed_size_list(lists.type):
        lengths = np.full(len(lists), lists.type.list_size)
    else:
        lengths = np.asarray(lists.value_lengths())
    fits = lengths == dim
    bad = [(int(row), f"its vector has {lengths[row]} components, others have {dim}") for row in np.flatnonzero(~fits)]
    if bad:
        import pyarrow as arrow

        lists = lists.filter(arrow.array(fits))
    flat = lists.flatten().to_numpy(zero_copy_only=False)
    vectors = np.ascontiguousarray(flat.reshape(-1, dim), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(np.einsum("ij,ij->i", vectors, vectors))
    rows = np.flatnonzero(fits)
    bad += [(int(row), "its vector is not finite, or too large") for row in rows[~finite]]
    return (vectors if finite.all() else vectors[finite]), sorted(bad)


def fetch_folder(storage: Storage, name: str) -> Path:
    """Return a folder of a target as a local one; a remote one is copied to a temporary folder."""
    if storage.local is not None:
        return storage.local / name
    folder = Path(tempfile.mkdtemp(prefix="ridgeline-"))
    for file in storage.list():
        if file.name.startswith(f"{name}/"):
            path = folder / file.name[len(name) + 1 :]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(storage.read(file.name) or b"")
    return folder


def upload_folder(storage: Storage, folder: Path, name: str) -> None:
    """Write the files of a local folder to a target, the manifest last."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    for file in sorted(files, key=lambda file: file.name == "manifest.json"):
        storage.write(f"{name}/{file.relative_to(folder)}", file.read_bytes())


def _check_key(table: Table) -> None:
    from pyarrow import types

    if table.key is not None and not types.is_integer(kind := table.schema.field(table.key).type):
        raise InputError(
            f"--key {table.key}: the column is {kind}, and the ids of an index are whole numbers; leave --key out, "
            "then rows are numbered from 0, and the column is stored."
        )


def _choose_spec(spec: str, rows: int) -> str:
    from ridgeline.search import choose_spec, parse_spec

    return str(parse_spec(spec) or choose_spec(rows))


def _check_settings(settings: IndexSettings) -> None:
    """Raise InputError for settings that no index takes, before anything is written."""
    from ridgeline.search import Index

    Index(
        settings.spec, dim=settings.dim, metric=settings.metric, device="cpu", dtype=settings.dtype
    )  # raises for a wrong name


def _find_dim(table: Table) -> int:
    """Return the number of components of the vectors: that of the type, else that of the first row with one."""
    from pyarrow import types

    kind = table.schema.field(table.column).type
    if types.is_fixed_size_list(kind):
        return int(kind.list_size)
    reader = RowReader(table)
    with _closing(reader):
        for group in plan_spans(table, 1024):
            lengths = np.asarray(reader.read(group).rows[table.column].combine_chunks().value_lengths())
            if len(lengths) and lengths.max() > 0:
                return int(lengths[lengths > 0][0])
    raise InputError(f"the column '{table.column}' of '{table.files[0].label}' has no vector; check the source.")


@contextmanager
def _closing(reader: RowReader) -> Iterator[None]:
    try:
        yield
    finally:
        reader.close()


def _read_description(table: Table) -> dict[str, Any]:
    """Return what `ridgeline embed` wrote about the vectors into a Parquet file: the model and more."""
    import pyarrow.parquet as parquet

    file = table.files[0]
    if file.kind != "parquet":
        return {}
    with open_file(file) as stream:
        metadata = parquet.read_schema(stream).metadata or {}
    try:
        described = json.loads(metadata.get(b"ridgeline", b"{}"))
    except ValueError:
        return {}
    return described if isinstance(described, dict) else {}
