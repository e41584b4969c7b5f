"""`bulk embed`: the columns of a source and a vector for each text."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.bulk.parts import Outcome, Task, write_part
from ridgeline.bulk.rows import Reject, RowBatch, RowReader
from ridgeline.bulk.sources import VECTOR, Table
from ridgeline.bulk.storage import Storage, open_storage
from ridgeline.errors import InputError, RidgelineError
from ridgeline.store import hash_file

METADATA = "ridgeline"  # the key of the model's description in a Parquet file, as `ridgeline embed` writes it
SHOWN_REJECTS = 3
VECTOR_TYPES = ("float32", "float16")


@dataclass(frozen=True)
class EmbedSettings:
    """What determines the vectors."""

    model: str
    model_hash: str
    dtype: str
    max_tokens: int | None
    prompt: str | None
    truncate_dim: int | None
    normalize: bool
    vectors: str  # the type they are stored in


@dataclass(frozen=True)
class EmbedFactory:
    """Makes the worker of a device; it is sent to each worker once."""

    table: Table
    target: str
    folder: str  # of the parts in the target
    settings: EmbedSettings
    check_model: bool = False  # on other machines: compare the files of the model

    def __call__(self, device: str) -> Callable[[Task], Outcome]:
        return EmbedWorker(self, device)


class EmbedWorker:
    """Reads the rows of a chunk, encodes their texts, writes the part."""

    def __init__(self, factory: EmbedFactory, device: str) -> None:
        from ridgeline.embed import Embedder

        settings = factory.settings
        if factory.check_model and hash_model(settings.model) != settings.model_hash:
            raise InputError(f"model '{settings.model}' has other files here than where the job started; copy them.")
        self._factory, self._storage = factory, open_storage(factory.target)
        self._reader = RowReader(factory.table)
        self._embedder = Embedder(
            settings.model,
            device=device,
            dtype=settings.dtype.partition(" ")[0],
            max_tokens=settings.max_tokens,
            prompt=settings.prompt,
            truncate_dim=settings.truncate_dim,
            normalize=settings.normalize,
        )

    def __call__(self, task: Task) -> Outcome:
        try:
            return self._run(task)
        except RidgelineError as error:
            return Outcome(error=str(error))

    def close(self) -> None:
        """Close the files that are open."""
        self._reader.close()
        self._embedder.close()

    def _run(self, task: Task) -> Outcome:
        started = time.perf_counter()
        batch = _skip(self._factory.table, self._reader.read(task.spans), task.skip)
        if task.probe is not None:
            batch = replace(batch, rows=batch.rows.slice(task.probe[0], task.probe[1] - task.probe[0]))
        read = time.perf_counter()
        texts = batch.rows[self._factory.table.column]
        vectors, bad, computed, keep = self._get_vectors(texts, task)
        encoded = time.perf_counter()
        if task.probe is not None:
            return Outcome()
        rejects = [*batch.rejects]
        for index, reason in bad:
            label = self._factory.table.files[batch.files[index]].label
            rejects.append(Reject(label, int(batch.numbers[index]), reason))
        rows = self._add_vectors(batch.rows, vectors, keep)
        part = write_part(self._storage, task, self._factory.folder, rows, rejects, computed)
        ended = time.perf_counter()
        seconds = {"read": read - started, "compute": encoded - read, "write": ended - encoded}
        return Outcome(part, None, seconds, tuple(rejects[:SHOWN_REJECTS]))

    def _get_vectors(
        self, texts: Any, task: Task
    ) -> tuple[NDArray[np.float32], list[tuple[int, str]], int, NDArray[np.bool_]]:
        """Return the vectors of the rows to keep, (row, reason) of bad rows, the count computed, and what to keep."""
        keep = np.ones(len(texts), bool)
        if task.reuse is None:
            missing = np.arange(len(texts))
        else:
            missing = np.flatnonzero(np.asarray(task.reuse.parts) < 0)
            if task.reuse.drop_reused:
                keep[:] = False
                keep[missing] = True
        chosen = texts if len(missing) == len(texts) else texts.take(_to_arrow(missing))
        vectors, bad = _encode_good(self._embedder.encode, chosen.to_pylist(), self._embedder.dim)
        finite = np.isfinite(vectors).all(axis=1)
        good = np.delete(missing, [index for index, _ in bad])
        reasons = [(int(missing[index]), reason) for index, reason in bad]
        reasons += [(int(row), "its vector is not finite") for row in good[~finite]]
        keep[[row for row, _ in reasons]] = False
        if task.reuse is None or task.reuse.drop_reused:
            return vectors[finite], sorted(reasons), int(finite.sum()), keep
        merged = np.empty((len(texts), self._embedder.dim), np.float32)
        merged[good] = vectors
        parts, rows = np.asarray(task.reuse.parts), np.asarray(task.reuse.rows)
        for number in np.unique(parts[parts >= 0]):
            from_part = parts == number
            merged[from_part] = read_vectors(self._storage, task.reuse.names[int(number)], self._embedder.dim)[
                rows[from_part]
            ]
        return merged[keep], sorted(reasons), int(finite.sum()), keep

    def _add_vectors(self, rows: Any, vectors: NDArray[np.float32], keep: NDArray[np.bool_]) -> Any:
        import pyarrow as arrow

        settings, embedder = self._factory.settings, self._embedder
        if not keep.all():
            rows = rows.filter(arrow.array(keep))
        flat = arrow.array(np.ascontiguousarray(vectors, settings.vectors).reshape(-1))
        column = arrow.FixedSizeListArray.from_arrays(flat, embedder.dim)
        model = str(Path(settings.model).resolve()) if Path(settings.model).is_dir() else settings.model
        description = {
            "model": model,
            "dim": embedder.dim,
            "dtype": embedder.dtype,
            "max_tokens": embedder.max_tokens,
            "prompt": embedder.prompt,
            "normalize": settings.normalize,
        }
        return rows.append_column(VECTOR, column).replace_schema_metadata({METADATA: json.dumps(description)})


def read_vectors(storage: Storage, name: str, dim: int) -> NDArray[np.float32]:
    """Return the vectors of a part, [N, dim]."""
    import pyarrow.parquet as parquet

    with storage.open(name) as stream:
        column = parquet.read_table(stream, columns=[VECTOR]).column(0).combine_chunks()
    flat: NDArray[np.float32] = column.flatten().to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    return flat.reshape(-1, dim)


def hash_model(name: str) -> str:
    """Return a hash of the files of a model, the same on every machine that has these files."""
    from ridgeline.embed import find_model

    folder = find_model(name, verify=False).folder
    files = sorted(file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    state = [(str(file.relative_to(folder)), hash_file(file)) for file in files]
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


def _encode_good(
    encode: Callable[[list[str]], NDArray[np.float32]], texts: list[str], dim: int
) -> tuple[NDArray[np.float32], list[tuple[int, str]]]:
    """Encode all texts that can be encoded; return their vectors, and (number, reason) of the others."""
    if not texts:
        return np.empty((0, dim), np.float32), []
    try:
        return encode(texts), []
    except InputError:
        bad = _find_bad(encode, texts, 0)
    numbers = {number for number, _ in bad}
    good = [text for number, text in enumerate(texts) if number not in numbers]
    return (encode(good) if good else np.empty((0, dim), np.float32)), bad


def _find_bad(
    encode: Callable[[list[str]], NDArray[np.float32]], texts: list[str], first: int
) -> list[tuple[int, str]]:
    """Return (number, reason) of each text that cannot be encoded, by halving."""
    try:
        encode(texts)
    except InputError as error:
        if len(texts) == 1:
            return [(first, str(error))]
        half = len(texts) // 2
        return [*_find_bad(encode, texts[:half], first), *_find_bad(encode, texts[half:], first + half)]
    return []


def _skip(table: Table, batch: RowBatch, skip: tuple[Reject, ...]) -> RowBatch:
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
