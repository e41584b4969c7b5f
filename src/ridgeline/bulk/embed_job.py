"""`ridgeline.bulk.embed`: a source of any size → its columns and vectors, exactly once."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ridgeline.bulk.embedding import EmbedFactory, EmbedSettings, hash_model
from ridgeline.bulk.job import Execution, Report, add_code_version, make_chunks
from ridgeline.bulk.row_job import RowJob, check_row_options
from ridgeline.bulk.sources import HIDDEN, find_files, open_table, plan_spans, require_arrow
from ridgeline.bulk.storage import list_sources, make_absolute
from ridgeline.bulk.tables import open_output
from ridgeline.bulk.target import Target, refuse_second_driver
from ridgeline.errors import InputError, unknown

VECTOR_TYPES = ("float32", "float16")
CHUNK_ROWS = 16_384
DEFAULT_MODEL = "all-MiniLM-L6-v2"

Source = str | os.PathLike[str]


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
    price: str | None = None,
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
    workers        processes or actors (default: two to six for each GPU, one for each NUMA node of a CPU)
    chunk_rows     rows of a chunk, the most that a stopped worker loses; a part has as many rows
    chunk_timeout  seconds for one chunk, then its worker ends and its rows are tried separately (default: no limit)
    incremental    update a finished target: only new and changed rows are computed, removed rows disappear
    max_rejects    stop if more rows are rejected (default: no limit)
    vectors        the type that vectors are stored in: "float32" or "float16"
    price          the entry of the price book that gives the cost (default: that of this machine, if it has one)
    report         called with a `Progress` after each chunk
    device, dtype, model, max_tokens, prompt, truncate_dim and normalize are those of `ridgeline embed`

    The same call again resumes a job that was stopped. Returns job, rows, computed, reused, removed, rejects, chunks.
    """
    call = {**locals()}
    del call["report"]
    call["sources"], call["out"] = list_sources(sources), make_absolute(out)
    started = time.monotonic()
    check_row_options(format, chunk_rows, incremental, key)
    if vectors not in VECTOR_TYPES:
        raise unknown("type of vectors", vectors, VECTOR_TYPES)
    if format == "delta" and vectors != "float32":
        raise InputError("a Delta table has no float16; leave --vectors out, or choose parquet or lance.")
    execution = Execution(engine, address, workers, chunk_timeout, max_rejects, device, price, report).check()
    require_arrow()
    refuse_second_driver(call["out"])
    table = open_table(find_files(call["sources"], call["out"]), column, key)
    output, table = open_output(format, call["out"], table)
    model_settings = EmbedSettings(
        model,
        hash_model(model),
        _name_dtype(dtype, execution.devices[0]),
        max_tokens,
        prompt,
        truncate_dim,
        normalize,
        vectors,
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
        factory = EmbedFactory(
            table, target.url, "" if output is None else f"{HIDDEN}/parts/", model_settings, engine == "ray"
        )
        return RowJob(target, table, chunks, settings, call, output, factory, execution).run(incremental, started)


def _name_dtype(dtype: str, device: str) -> str:
    """Return the type to compute in: an automatic choice differs between CPUs and GPUs, and so do its vectors."""
    if dtype != "auto":
        return dtype
    from ridgeline.embed import choose_cpu_dtype

    return choose_cpu_dtype() if device == "cpu" else "auto on GPU"
