"""What a worker does with the result of a chunk: write the part and the rejects, each whole, named by their bytes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ridgeline.bulk.rows import Reject
from ridgeline.bulk.sources import VECTOR, Span
from ridgeline.bulk.storage import Storage
from ridgeline.bulk.target import Part
from ridgeline.store import VectorParquetWriter

HASH_DIGITS = 16  # of the name of a part


@dataclass(frozen=True)
class Task:
    """One chunk for a worker."""

    chunk: int
    spans: tuple[Span, ...]
    key: str  # of the content: source, range, code, model
    skip: tuple[Reject, ...] = ()  # rows that ended workers
    probe: tuple[int, int] | None = None  # compute only these good rows and write nothing
    reuse: Reuse | None = None


@dataclass(frozen=True)
class Reuse:
    """Where the vectors of a chunk's good rows are already; -1: nowhere, compute it."""

    parts: Any  # int32 per row: a number in `names`
    rows: Any  # int64 per row: the row in that part
    names: dict[int, str] = field(default_factory=dict)
    drop_reused: bool = False  # write only the rows that are computed


@dataclass(frozen=True)
class Place:
    """Where a worker runs."""

    host: str
    device: str
    process: int


def find_place(device: str) -> Place:
    """Return where this process runs; an actor of Ray sees one GPU only, and the variable has its number."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    name = f"cuda:{visible}" if device == "cuda" and visible.isdecimal() else device
    return Place(socket.gethostname(), name, os.getpid())


@dataclass(frozen=True)
class Outcome:
    """The result of a task: a part, or an error that stops the job."""

    part: Part | None = None
    error: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)  # by stage
    rejects: tuple[Reject, ...] = ()  # the first ones
    place: Place | None = None  # where the worker runs
    truncated: int = 0  # texts that reach the limit of tokens


def encode_parquet(table: Any) -> bytes:
    """Return a table as a Parquet file; the same rows give the same bytes."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    sink = io.BytesIO()
    if table.schema.names[-1:] == [VECTOR] and arrow.types.is_fixed_size_list(table.schema[-1].type):
        writer = VectorParquetWriter(sink, table.schema)
        writer.write(table)
        writer.close()
    else:
        parquet.write_table(table, sink, compression="zstd", use_dictionary=False, row_group_size=len(table) or 1)
    return sink.getvalue()


def write_rejects(storage: Storage, task: Task, rejects: Sequence[Reject]) -> str | None:
    """Write the rejects of a chunk; return the name of their file, None if there are no rejects."""
    if not rejects:
        return None
    lines = "".join(json.dumps(asdict(reject)) + "\n" for reject in rejects).encode()
    name = f"rejects/part-{task.chunk:06}-{_hash(lines)[:HASH_DIGITS]}.jsonl"
    storage.write(name, lines)
    return name


def write_part(storage: Storage, task: Task, folder: str, table: Any, rejects: Sequence[Reject], computed: int) -> Part:
    """Write the rows and the rejects of a chunk."""
    reject_file = write_rejects(storage, task, rejects)
    if not len(table):
        return Part(task.chunk, None, 0, 0, "", len(rejects), reject_file, 0, task.key)
    data = encode_parquet(table)
    digest = _hash(data)
    name = f"{folder}part-{task.chunk:06}-{digest[:HASH_DIGITS]}.parquet"
    storage.write(name, data)
    return Part(task.chunk, name, len(table), len(data), digest, len(rejects), reject_file, computed, task.key)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
