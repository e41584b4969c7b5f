"""`ridgeline.bulk.recommend`: users of any number → the best items of each, exactly once."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.bulk.job import Execution, Report, add_code_version, make_chunks
from ridgeline.bulk.parts import Outcome, Task
from ridgeline.bulk.row_job import RowJob, check_row_options
from ridgeline.bulk.row_worker import Computed, RowWorker
from ridgeline.bulk.sources import HIDDEN, Table, find_files, open_table, plan_spans
from ridgeline.bulk.storage import list_sources, make_absolute
from ridgeline.bulk.tables import open_output
from ridgeline.bulk.target import Target, refuse_second_driver
from ridgeline.errors import InputError

CHUNK_USERS = 16_384
BLOCK_USERS = 512  # whose scores are in memory at once, [users, items] float32
ADDED = ("items", "scores", "basis")

Source = str | os.PathLike[str]


@dataclass(frozen=True)
class RecommendFactory:
    """Makes the worker of a device; it is sent to each worker once."""

    table: Table
    target: str
    folder: str
    model: str
    model_hash: str
    k: int
    check_model: bool = False  # on other machines: compare the files of the model

    def __call__(self, device: str) -> Callable[[Task], Outcome]:
        return RecommendWorker(self, device)


class RecommendWorker(RowWorker):
    """Ranks the items for the users of a chunk."""

    added = ADDED

    def __init__(self, factory: RecommendFactory, device: str) -> None:
        from ridgeline.recommend import Recommender

        super().__init__(factory, device)
        if factory.check_model and hash_recommender(factory.model) != factory.model_hash:
            raise InputError(f"model '{factory.model}' has other files here than where the job started; copy them.")
        self._k, self._name = factory.k, factory.model
        self._model = Recommender.load(factory.model, device="cpu")

    def compute(self, values: Any) -> Computed:
        import pyarrow as arrow

        users = values.to_pylist()
        rows = self._model.find_users(users)
        bad = [
            (index, f"the model has no user {users[index]!r}; fit it again, or add the ratings of the user")
            for index in np.flatnonzero(rows < 0).tolist()
        ]
        rows = rows[rows >= 0]
        ids = self._model.catalogue.ids
        kind, convert = (arrow.int64(), int) if ids.dtype.kind in "iu" else (arrow.string(), str)
        items: list[Any] = []
        scores: list[Any] = []
        bases: list[str] = []
        for first in range(0, len(rows), BLOCK_USERS):
            best, values_of_best, reasons = self._model.rank_users(rows[first : first + BLOCK_USERS], self._k)
            for line, line_scores in zip(best, values_of_best, strict=True):
                ranked = line >= 0
                items.append([convert(item) for item in ids[line[ranked]].tolist()])
                scores.append(line_scores[ranked].tolist())
            bases += reasons
        columns = {
            "items": arrow.array(items, arrow.list_(kind)),
            "scores": arrow.array(scores, arrow.list_(arrow.float32())),
            "basis": arrow.array(bases, arrow.string()),
        }
        return Computed(arrow.table(columns), bad)

    def close(self) -> None:
        super().close()
        self._model.close()


def recommend(
    sources: Source | Sequence[Source],
    out: Source,
    *,
    model: Source,
    column: str | None = None,
    k: int = 10,
    format: str = "parquet",
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    chunk_rows: int = CHUNK_USERS,
    chunk_timeout: float | None = None,
    incremental: bool = False,
    max_rejects: int | None = None,
    device: str = "cpu",
    price: str | None = None,
    report: Report = lambda _: None,
) -> dict[str, Any]:
    """Rank items for each user of a source; the target has its columns and `items`, `scores` and `basis`.

    sources      files, folders, globs or URLs of tables with a column of users
    model        the folder that `ridgeline recommend fit` wrote; on a Ray cluster, the same path on every node
    column       the column of user ids (default: "user", or the only one); an increment matches rows by it
    k            items per user, best first, without those that the user rated
    the other options are those of `ridgeline.bulk.embed`

    A user whom the model does not know is a reject. Returns job, rows, computed, reused, removed, rejects, chunks.
    """
    call = {**locals()}
    del call["report"]
    call["sources"], call["out"] = list_sources(sources), make_absolute(out)
    call["model"] = folder = make_absolute(model)
    started = time.monotonic()
    if k < 1:
        raise InputError(f"-k is {k}; give 1 or more.")
    check_row_options(format, chunk_rows, incremental, column or "user")
    execution = Execution(engine, address, workers, chunk_timeout, max_rejects, device, price, report).check()
    model_hash = hash_recommender(folder)
    refuse_second_driver(call["out"])
    table = open_table(find_files(call["sources"], call["out"]), column, None, "ids")
    table = Table(table.files, table.column, table.column, table.schema, table.headers)  # users identify rows
    output, table = open_output(format, call["out"], table)
    if taken := [name for name in ADDED if name in table.schema.names]:
        raise InputError(f"the source has a column '{taken[0]}', which the job writes; rename it first.")
    settings = add_code_version(
        {
            "kind": "recommend",
            "column": table.column,
            "columns": [f"{field.name}: {field.type}" for field in table.schema],
            "format": format,
            "chunk_rows": chunk_rows,
            "model_hash": model_hash,
            "k": k,
        }
    )
    chunks = make_chunks(table.files, plan_spans(table, chunk_rows), settings)
    with Target(call["out"]) as target:
        parts = "" if output is None else f"{HIDDEN}/parts/"
        factory = RecommendFactory(table, target.url, parts, folder, model_hash, k, engine == "ray")
        return RowJob(target, table, chunks, settings, call, output, factory, execution).run(incremental, started)


def hash_recommender(folder: str) -> str:
    """Return a hash of a model: its manifest, which has the checksums of its files, later versions, and the journal."""
    manifest = Path(folder, "manifest.json")
    if not manifest.is_file():
        raise InputError(f"'{folder}' is no model; give the folder that `ridgeline recommend fit` wrote.")
    digest = hashlib.sha256(manifest.read_bytes())
    for file in sorted(Path(f"{folder}.live").rglob("*.json*")):
        digest.update(str(file.name).encode() + file.read_bytes())
    return digest.hexdigest()[:16]
