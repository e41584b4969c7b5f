"""`Index`: vectors → nearest vectors, exact or as good as was measured.

>>> import numpy as np
>>> index = Index("Flat", metric="l2", device="cpu")
>>> index.add(np.eye(3, dtype=np.float32), meta={"colour": ["red", "green", "blue"]})
>>> distances, ids = index.search(np.array([[0.9, 0.1, 0.0]]), 2)
>>> ids.tolist()
[[0, 1]]
>>> index.search(np.array([[0.9, 0.1, 0.0]]), 1, where="colour != 'red'")[1].tolist()
[[1]]
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ridgeline.errors import InputError, StoreError, unknown
from ridgeline.machine import parse_devices
from ridgeline.search.arrays import Flags, Integers
from ridgeline.search.engine import Backend, Engine, EngineConfig, SearchOptions, find_backend
from ridgeline.search.index_files import (
    SHARDS,
    SHARDS_KIND,
    format_shard_list,
    is_sharded,
    list_shards,
    open_index,
    read_snapshot,
    write_index,
)
from ridgeline.search.inputs import as_batch, as_ids, as_matrix, check_shape, is_one_vector, is_tensor
from ridgeline.search.journal import (
    Change,
    IndexJournal,
    Version,
    discard_journal,
    find_version,
    hold_journal,
    join_changes,
    read_changes,
)
from ridgeline.search.metric import check_metric
from ridgeline.search.recall import Curve, RecallWarning, choose_effort, choose_settings, is_outdated, measure_curve
from ridgeline.search.rows import Rows, make_empty_rows, make_row_mask, make_table
from ridgeline.search.snapshot import Snapshot, add_fast_path, drop_removed_rows, map_ids
from ridgeline.search.spec import GRAPH_ROWS, Spec, check_dimension, choose_spec, parse_spec
from ridgeline.search.truth import hold_out_truth_sample, needs_truth_sample
from ridgeline.store import publish_dir

if TYPE_CHECKING:
    from ridgeline.search.foreign_files import ForeignRows

DTYPES = ("auto", "float32", "float16")
DEPTHS = {"Flat": 1, "SQ8": 2, "PQ": 8, "RaBitQ": 4}  # the default depth of each codec
DEFAULT_EF = 64  # of HNSW
AUTO_RECALL, AUTO_SAMPLE = 0.95, 100  # Auto chooses ef by a curve of this many rows
MAX_RESULTS = 2**32  # in one search: 48 GiB
LOAD_TRIES = 5  # another process may replace the folder while it is read
MAX_REMOVED_SHARE = 0.25  # a larger share of removed rows is dropped from the engine


class Index:
    """Vectors with ids, searched by similarity.

    spec    Flat, SQ8, RaBitQb, IVFn,Flat, IVFn,SQ8, IVFn,PQm, OPQm,IVFn,PQm or IVFn,RaBitQb, each with optional
            ,Refine(Flat) or ,Refine(SQ8); HNSWm, a graph with m links per row; or Auto. RaBitQ (b bits per dimension,
            1 to 4), OPQ (a learnt rotation before PQ) and HNSW are for CPUs
    dim     components of a vector; by default those of the first vectors
    metric  cosine (vectors are scaled to length 1) or ip: high is near; l2: squared distance, low is near
    device  auto, cpu, cuda, cuda:N
    dtype   of Flat values: float32 or float16; auto is float32 on a CPU, float16 on a GPU
    model   the name of the model that made the vectors, saved with them

    Safe to use from several threads: a search sees all vectors of an `add` or none of them.
    """

    def __init__(
        self,
        spec: str = "Flat",
        *,
        dim: int | None = None,
        metric: str = "cosine",
        device: str = "auto",
        dtype: str = "auto",
        model: str | None = None,
    ) -> None:
        self._requested_spec = parse_spec(spec)
        self.metric = check_metric(metric)
        if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1):
            raise InputError(f"dim is {dim!r}; give the number of a vector's components, 1 or more.")
        if dtype not in DTYPES:
            raise unknown("dtype", dtype, DTYPES)
        if dim is not None and self._requested_spec is not None:
            check_dimension(self._requested_spec, dim)
        self.model = model
        self._dim = None if dim is None else int(dim)
        graph = self._requested_spec is not None and self._requested_spec.links
        for_cpu = self._requested_spec is not None and (
            graph or self._requested_spec.bits or self._requested_spec.rotated
        )
        self._backend: Backend = find_backend("cpu" if for_cpu and device == "auto" else device)
        if for_cpu and self._backend.device != "cpu":
            raise InputError(f"'{spec}' is for CPUs; use device='cpu', or Flat or IVFn,Flat on {device}.")
        if graph and dtype == "float16":
            raise InputError(f"'{spec}' keeps float32 values; use dtype='float32'.")
        device_type = self._backend.device.partition(":")[0]
        self.dtype = dtype if dtype != "auto" else "float16" if device_type == "cuda" else "float32"
        self._lock = threading.Lock()
        self._snapshot = Snapshot(make_empty_rows())
        self._warned: set[str] = set()
        self._nprobe: int | None = None
        self._depth: int | None = None
        self._ef: int | None = None
        self._journal: IndexJournal | None = None
        self._version: Version | None = None
        self._compaction: threading.Thread | None = None
        self._compaction_lock = threading.Lock()  # one at a time: each drops a part of the journal

    @classmethod
    def shard(cls, devices: Sequence[str], spec: str = "Flat", **settings: Any) -> ShardedIndex:
        """Return one index over several devices, each with a share of the rows; results are merged exactly."""
        return ShardedIndex(devices, spec, **settings)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], verify: bool = False, *, device: str = "cpu", mmap: bool = True
    ) -> Index:
        """Load a saved index, with the changes of its journal (`open`). `verify` compares every file with its checksum
        and names the one that differs; `mmap` maps the arrays instead of reading them. Raises StoreError if the folder
        is not a complete index.
        """
        return cls._load(path, verify, device, mmap)[0]

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, device: str = "cpu", mmap: bool = True) -> Index:
        """Open a saved index for updates that last: `add` and `remove` return once the change would survive `kill -9`.

        Changes go to a journal beside the folder (`path.journal`), and a thread brings the folder up to date when the
        journal has grown. One process at a time may change an index; others raise Locked until it is closed or ends.
        """
        index, last, identity, version = cls._load(path, False, device, mmap)
        index._journal, index._version = IndexJournal(Path(path), last, identity), version
        return index

    @classmethod
    def build(
        cls,
        path: str | os.PathLike[str],
        vectors: Any,
        spec: str,
        *,
        metric: str = "cosine",
        ids: Any = None,
        model: str | None = None,
        seed: int = 0,
    ) -> Index:
        """Train, fill and save an index over vectors that need not fit into memory, and return it, mapped.

        vectors  [n, dim], for example a NumPy array that is mapped, or the path of an .npy file
        spec     codes that are kept in memory, and Refine(Flat): IVFn,RaBitQb, IVFn,SQ8, IVFn,PQm or RaBitQb

        The vectors stay on the disk: a search reads the rows that it ranks again. The folder is complete or absent.
        """
        from ridgeline.search.disk_build import build_on_disk

        parsed = parse_spec(spec)
        if parsed is None:
            raise InputError("the spec is 'Auto'; name one to build on disk, like IVF4096,RaBitQ2,Refine(Flat).")
        build_on_disk(path, vectors, parsed, check_metric(metric), ids, model, seed)
        return cls.load(path)

    @classmethod
    def _load(
        cls, path: str | os.PathLike[str], verify: bool, device: str, mmap: bool
    ) -> tuple[Index, int, str | None, Version]:
        """Return (index, number of its last change, identity of its journal, what was read)."""
        for _ in range(LOAD_TRIES):
            version = find_version(Path(path))
            try:
                folder = open_index(path, verify)
                meta = folder.meta
                index = cls(
                    meta["spec"], metric=meta["metric"], device=device, dtype=meta["dtype"], model=meta["model"]
                )
                index._nprobe, index._depth, index._ef = meta.get("nprobe"), meta.get("depth"), meta.get("ef")
                index._snapshot = read_snapshot(folder, index._backend, mmap)
                changes = read_changes(Path(path), meta)
            except (StoreError, OSError):
                if version.manifest == find_version(Path(path)).manifest:
                    raise
                continue  # the folder was replaced while it was read
            if changes is None or version.manifest != find_version(Path(path)).manifest:
                continue
            for change in join_changes(changes):
                if change.vectors is None:
                    index.remove(change.ids)
                else:
                    index.add(change.vectors, ids=change.ids, meta=change.meta)
            last = changes[-1].number if changes else int(meta.get("applied", 0))
            return index, last, meta.get("journal"), version
        raise StoreError(f"{path} was replaced {LOAD_TRIES} times while it was read; try again.")

    @classmethod
    def from_faiss(cls, source: Any, *, device: str = "cpu", model: str | None = None) -> Index:
        """Return an index with the codes, lists, ids, nprobe, k_factor and efSearch of a FAISS index: a file, or an
        object of the library. An index over normalized vectors with inner products becomes cosine. A graph (HNSW) is
        built anew.

        Raises InputError if there is no such type here, or two rows have the same id.
        """
        from ridgeline.search.faiss_import import import_faiss

        imported = import_faiss(source)
        config = imported.config
        index = cls(str(config.spec), metric=config.metric, device=device, dtype=config.dtype, model=model)
        if config.spec.links:
            index.add(imported.arrays["codes"], ids=imported.ids)
            index._ef = imported.ef
            return index
        rows = make_empty_rows().append(len(imported.ids), imported.ids, None)
        index._snapshot = Snapshot(rows, index._backend.restore_engine(config, imported.arrays))
        index._nprobe, index._depth = imported.nprobe, imported.depth
        return index

    @classmethod
    def from_hnswlib(
        cls, path: str | os.PathLike[str], *, dim: int, metric: str = "cosine", spec: str = "Flat", device: str = "cpu"
    ) -> Index:
        """Return an index with the vectors and labels of a file of hnswlib, which holds neither `dim` nor `metric`;
        its graph is not taken. Elements that are marked as deleted are left out.
        """
        from ridgeline.search.foreign_files import read_hnswlib

        return cls._from_rows(read_hnswlib(path, dim, metric), spec, device)

    @classmethod
    def from_usearch(cls, path: str | os.PathLike[str], *, spec: str = "Flat", device: str = "cpu") -> Index:
        """Return an index with the vectors and keys of a file of usearch; its graph is not taken."""
        from ridgeline.search.foreign_files import read_usearch

        return cls._from_rows(read_usearch(path), spec, device)

    @classmethod
    def _from_rows(cls, rows: ForeignRows, spec: str, device: str) -> Index:
        index = cls(spec, dim=int(rows.vectors.shape[1]), metric=rows.metric, device=device)
        if not index.trained:
            index.train(rows.vectors)
        index.add(rows.vectors, ids=rows.ids)
        return index

    @property
    def nprobe(self) -> int:
        """The lists that a search reads unless it names another number: what was set, or the square root of all."""
        spec = self._get_spec()
        lists = spec.lists or 1
        return min(lists, self._nprobe) if self._nprobe is not None else max(1, round(lists**0.5))

    @nprobe.setter
    def nprobe(self, value: int | None) -> None:
        self._set_default("nprobe", value)

    @property
    def depth(self) -> int:
        """The candidates per result that a refiner ranks again unless a search names another number."""
        spec = self._get_spec()
        if not spec.refine:
            return 1
        return self._depth if self._depth is not None else DEPTHS[spec.codec]

    @depth.setter
    def depth(self, value: int | None) -> None:
        self._set_default("depth", value)

    @property
    def ef(self) -> int:
        """The rows that a walk keeps (HNSW) unless a search names another number: what was set, what Auto measured to
        find 95 % of the neighbours, or 64.
        """
        if self._ef is not None:
            return self._ef
        curve = self._snapshot.curve if self._requested_spec is None else None
        return DEFAULT_EF if curve is None else choose_effort(curve, AUTO_RECALL).nprobe

    @ef.setter
    def ef(self, value: int | None) -> None:
        self._set_default("ef", value)

    @property
    def spec(self) -> str:
        engine = self._snapshot.engine
        spec = engine.config.spec if engine is not None else self._requested_spec
        return str(spec) if spec is not None else "Auto"

    @property
    def dim(self) -> int | None:
        engine = self._snapshot.engine
        return self._dim if engine is None else engine.config.dim

    @property
    def device(self) -> str:
        return self._backend.device

    @property
    def trained(self) -> bool:
        return self._snapshot.engine is not None or (
            self._requested_spec is not None and not self._requested_spec.trains
        )

    @property
    def ids(self) -> Integers:
        """The ids of all rows, int64 [n], in the order they were added."""
        rows = self._snapshot.rows
        return rows.ids.rows[rows.live_rows].copy()

    @property
    def meta(self) -> Any:
        """The columns of the rows as a pyarrow Table in the order of `ids`; None if there are none."""
        rows = self._snapshot.rows
        return None if rows.meta is None else rows.meta if rows.alive is None else rows.meta.take(rows.live_rows)

    @property
    def exact(self) -> bool:
        """Whether every search compares every vector at full precision."""
        engine = self._snapshot.engine
        spec = engine.config.spec if engine is not None else self._requested_spec
        return spec is not None and spec.exact

    def find_rows(self, ids: Any) -> Integers:
        """Return the positions of these ids in `ids` and `meta`; raises InputError for an unknown id."""
        rows = self._snapshot.rows
        matches = rows.find_existing(as_ids(ids), "ask only for")
        return matches if rows.alive is None else np.searchsorted(rows.live_rows, matches)

    @property
    def curve(self) -> Curve | None:
        """The result of `measure_recall`, or None."""
        return self._snapshot.curve

    def __len__(self) -> int:
        return self._snapshot.rows.live

    def train(self, vectors: Any, *, seed: int = 0) -> None:
        """Train lists and codes on vectors [n, dim] like those to be added; needed once, before `add`, if the spec has
        any.
        """
        with self._lock:
            if len(self._snapshot.rows.ids.rows):
                raise InputError(f"the index holds {len(self)} rows and is trained; make a new index to train again.")
            if self._journal is not None:
                raise InputError("an index that was opened for updates is trained; make a new index to train again.")
            prepared = self._backend.prepare_vectors(vectors, self.dim, self.metric, "training vectors")
            spec = self._choose_spec(len(prepared))
            truth = None
            if needs_truth_sample(spec) and len(prepared):
                prepared, truth = hold_out_truth_sample(prepared, seed, spec.lists or 0)
            engine = self._train_engine(prepared, seed)
            self._snapshot = replace(self._snapshot, engine=engine, truth=truth)

    def add(self, vectors: Any, ids: Any = None, meta: Any = None) -> None:
        """Add vectors [n, dim], with `ids` [n] (by default the next numbers) and `meta`, columns to filter by.

        Raises InputError if a vector is not finite, an id is not new, or the columns differ from those of earlier rows.
        """
        with self._lock:
            self._begin_change()
            snapshot = self._snapshot
            prepared = self._backend.prepare_vectors(vectors, self.dim, self.metric, "vectors")
            if snapshot.engine is None and self._requested_spec is not None and self._requested_spec.trains:
                raise InputError(f"'{self.spec}' must be trained before add; call train with vectors like these.")
            rows = snapshot.rows.append(len(prepared), ids, meta)
            engine = snapshot.engine or self._train_engine(prepared, 0)
            if self._outgrows_flat(engine.config.spec, engine.count + len(prepared)):
                config = replace(engine.config, spec=self._choose_spec(GRAPH_ROWS))
                values = engine.vectors(np.arange(engine.count))
                engine = self._backend.train_engine(config, values[:0], 0).append(values)
            truth = snapshot.truth
            if truth is not None and len(prepared):
                truth = truth.append(self._backend, self.metric, prepared, rows.ids.rows[snapshot.rows.count :])
            changed = replace(snapshot, rows=rows, engine=engine.append(prepared), truth=truth)
            if self._requested_spec is None and engine.config.spec.links and is_outdated(changed.curve, rows.count):
                changed = replace(changed, curve=self._measure_walks(changed))
            if self._journal is not None and len(prepared):
                first = snapshot.rows.count
                table = None if rows.meta is None else rows.meta.slice(first)
                values = as_matrix(vectors, self.dim, "vectors")
                self._journal.append(Change(self._journal.last + 1, rows.ids.rows[first:], values, table))
            self._snapshot = changed
        self._compact_if_large()

    def remove(self, ids: Any) -> int:
        """Remove rows and return their number. An id that is not in the index is an InputError, and then nothing is
        removed.
        """
        with self._lock:
            self._begin_change()
            snapshot = self._snapshot
            removed_rows = np.unique(snapshot.rows.find_existing(as_ids(ids), "remove only"))
            if not len(removed_rows):
                return 0
            if snapshot.truth is not None:
                snapshot = replace(snapshot, truth=snapshot.truth.remove(snapshot.rows.ids.rows[removed_rows]))
            rows = snapshot.rows.mark_removed(removed_rows)
            if self._journal is not None:
                gone = snapshot.rows.ids.rows[removed_rows]
                self._journal.append(Change(self._journal.last + 1, gone, None, None))
            if rows.count - rows.live > MAX_REMOVED_SHARE * rows.count:
                self._snapshot = drop_removed_rows(replace(snapshot, rows=rows))
            else:
                self._snapshot = replace(snapshot, rows=rows)
        self._compact_if_large()
        return len(removed_rows)

    def search(
        self,
        queries: Any,
        k: int,
        *,
        nprobe: int | None = None,
        depth: int | None = None,
        ef: int | None = None,
        recall: float | None = None,
        where: Any = None,
    ) -> tuple[Any, Any]:
        """Return (scores float32 [q, k], ids int64 [q, k]), best first; missing results have id −1.

        queries [q, dim], or one query [dim]: then scores and ids are [k]
        nprobe  lists to read; by default `index.nprobe`, the square root of their number
        depth   with Refine: rank depth · k candidates again; by default `index.depth`, 2 for SQ8, 8 for PQ
        ef      with HNSW: rows that the walk keeps (efSearch), at least k; by default `index.ef`, 64
        recall  instead of these: use the fastest setting that `measure_recall` found to reach it; a RecallWarning says
                if none did, with the highest measured one
        where   "year >= 90", a mask [len(index)], or ids

        Queries on a GPU are not checked, so that nothing waits: one that is not finite has no results (nan and −1).
        """
        snapshot, key = self._snapshot, None
        if where is None and (type(queries) is np.ndarray or is_tensor(queries)):
            key = (queries.shape, queries.dtype, getattr(queries, "device", None), k, nprobe, depth, ef, recall)
            fast_path = snapshot.fast_paths.get(key)
            if fast_path is not None:
                return fast_path(queries)  # type: ignore[no-any-return]
        if is_one_vector(queries):
            settings = {"nprobe": nprobe, "depth": depth, "ef": ef, "recall": recall, "where": where}
            scores, ids = self.search(as_batch(queries), k, **settings)
            return scores[0], ids[0]
        scores, ids = self._search(snapshot, queries, k, nprobe, depth, ef, recall, where, key)
        with np.errstate(over="ignore"):
            scores = scores.astype(np.float32) if isinstance(scores, np.ndarray) else scores.float()
        return self._backend.convert_like(scores, queries), self._backend.convert_like(ids, queries)

    def range_search(
        self, queries: Any, radius: float, *, nprobe: int | None = None, where: Any = None
    ) -> tuple[Any, Any, Any]:
        """Return (limits [q + 1], scores, ids): all rows above `radius` (cosine, ip) or below it (l2), best first.

        The results of query i are at limits[i]:limits[i + 1]. One query [dim] counts as [1, dim].
        """
        queries = as_batch(queries)
        convert = self._backend.convert_like
        limits, scores, ids = self._search_radius(self._snapshot, queries, radius, nprobe, where)
        return convert(limits, queries), convert(scores, queries), convert(ids, queries)

    def reconstruct(self, ids: Any) -> Any:
        """Return float32 [n, dim]: the stored values of these ids (cosine: at length 1)."""
        snapshot = self._snapshot
        rows = snapshot.rows.find_existing(as_ids(ids), "reconstruct only")
        if snapshot.engine is None:
            return np.zeros((0, self.dim or 0), np.float32)
        return self._backend.convert_like(snapshot.engine.vectors(rows), ids)

    def measure_recall(self, sample: int = 1000, k: int = 10, *, originals: Any = None, seed: int = 0) -> Curve:
        """Measure how many of the true k nearest each setting finds, on `sample` rows, and keep the curve (recall.py).

        originals  the vectors as they were added, in the order of `ids`: the truth for codes that lost precision

        Without originals, such codes are measured on up to 128 training vectors, whose true nearest rows the index
        keeps while vectors are added.
        """
        if k < 1 or sample < 1:
            raise InputError(f"sample is {sample} and k is {k}; both must be 1 or more.")
        with self._lock:
            snapshot = drop_removed_rows(self._snapshot)
            self._snapshot = snapshot
        engine = snapshot.engine
        if engine is None or not len(self):
            raise InputError("the index is empty, so there is nothing to measure; add vectors first.")
        curve = measure_curve(
            self._backend, engine, snapshot.rows, snapshot.truth, min(sample, engine.count), k, originals, seed
        )
        with self._lock:
            self._snapshot = replace(self._snapshot, curve=curve)
            self._warned.clear()
        return curve

    def stats(self) -> dict[str, Any]:
        """Return the settings, the number of rows, and the size in bytes."""
        snapshot = self._snapshot
        size = snapshot.engine.nbytes if snapshot.engine is not None else 0
        return {
            "spec": self.spec,
            "metric": self.metric,
            "dim": self.dim,
            "dtype": self.dtype,
            "device": self.device,
            "count": snapshot.rows.live,
            "removed": snapshot.rows.count - snapshot.rows.live,
            "trained": self.trained,
            "bytes": size,
            "columns": [] if snapshot.rows.meta is None else list(snapshot.rows.meta.column_names),
            "model": self.model,
            "recall": None if snapshot.curve is None else snapshot.curve.to_json(),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a folder, in one step: it is complete or absent, and an older one is replaced, with its journal."""
        target = Path(os.path.abspath(path))
        if self._journal is not None and self._journal.folder == target:
            with self._lock:
                self._begin_change()
            self._wait_for_compaction()
            self._compact()
            return
        with hold_journal(target):
            self._write(path, {})
            discard_journal(target)

    def close(self) -> None:
        """Let other processes change an index that was opened for updates; safe to call twice."""
        self._wait_for_compaction()
        with self._lock:
            if self._journal is not None:
                self._journal.close()
                self._version = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def export_faiss(self, path: str | os.PathLike[str]) -> None:
        """Write a file for `faiss.read_index`."""
        from ridgeline.search.faiss_export import export_faiss

        export_faiss(self._drop_removed(), path, self.nprobe, self.depth, self.ef)

    def __repr__(self) -> str:
        return f"Index('{self.spec}', dim={self.dim}, metric='{self.metric}', device='{self.device}', rows={len(self)})"

    def _write(self, path: str | os.PathLike[str], settings: dict[str, Any]) -> None:
        defaults = {"nprobe": self._nprobe, "depth": self._depth, "ef": self._get_saved_ef()}
        write_index(self._drop_removed(), self.model, path, {**defaults, **settings})

    def _begin_change(self) -> None:
        """Before the first change of an opened index: take its lock, and read what other processes changed."""
        journal = self._journal
        if journal is None or journal.locked:
            return
        journal.acquire()
        try:
            if self._version != find_version(journal.folder):
                fresh, journal.last, identity, self._version = Index._load(journal.folder, False, self.device, True)
                journal.identity = identity or ""
                self._snapshot = fresh._snapshot
            journal.start()
        except BaseException:
            journal.close()
            raise

    def _compact_if_large(self) -> None:
        journal, running = self._journal, self._compaction
        if journal is None or (running is not None and running.is_alive()) or not journal.needs_compaction():
            return
        self._compaction = threading.Thread(target=self._compact_in_background, name="ridgeline-compaction")
        self._compaction.start()

    def _compact_in_background(self) -> None:
        try:
            self._compact()
        except (StoreError, OSError) as error:  # the journal has everything
            warnings.warn(f"the folder of the index could not be brought up to date: {error}", stacklevel=2)

    def _compact(self) -> None:
        """Write the folder with all changes so far, and drop these from the journal."""
        journal = self._journal
        if journal is None:
            return
        with self._compaction_lock:
            with self._lock:
                snapshot, offset, last = self._snapshot, journal.size, journal.last
            defaults = {"nprobe": self._nprobe, "depth": self._depth, "ef": self._get_saved_ef()}
            settings = {**defaults, "journal": journal.identity, "applied": last}
            write_index(drop_removed_rows(snapshot), self.model, journal.folder, settings)
            with self._lock:
                journal.shorten(offset)

    def _wait_for_compaction(self) -> None:
        if self._compaction is not None:
            self._compaction.join()

    def _get_spec(self) -> Spec:
        engine = self._snapshot.engine
        return (engine.config.spec if engine is not None else self._requested_spec) or Spec("Flat")

    def _set_default(self, name: str, value: int | None) -> None:
        _check_count(name, value)
        with self._lock:
            setattr(self, f"_{name}", None if value is None else int(value))
            self._snapshot = replace(self._snapshot)  # recorded searches have the old default

    def _drop_removed(self) -> Snapshot:
        snapshot = drop_removed_rows(self._snapshot)
        if snapshot.engine is None:
            raise InputError("the index holds nothing yet; train it or add vectors first.")
        return snapshot

    def _train_engine(self, vectors: Any, seed: int) -> Engine:
        dim = self._dim or int(vectors.shape[1])
        spec = self._choose_spec(len(vectors))
        check_dimension(spec, dim)
        return self._backend.train_engine(EngineConfig(spec, self.metric, dim, self.dtype), vectors, seed)

    def _choose_spec(self, count: int) -> Spec:
        """The spec that was requested, or that of Auto for this many vectors."""
        return self._requested_spec or choose_spec(count, graph=self._allows_graph)

    @property
    def _allows_graph(self) -> bool:
        return self._backend.device == "cpu" and self.dtype == "float32"

    def _outgrows_flat(self, spec: Spec, count: int) -> bool:
        """Whether Auto, which began with few rows, now makes a graph."""
        return self._requested_spec is None and self._allows_graph and spec == Spec("Flat") and count >= GRAPH_ROWS

    def _measure_walks(self, snapshot: Snapshot) -> Curve:
        """The recall curve of Auto, from which it takes ef; a RecallWarning says if it finds too little."""
        engine = snapshot.engine
        assert engine is not None  # noqa: S101  # for the type checker
        sample = min(AUTO_SAMPLE, engine.count)
        curve = measure_curve(self._backend, engine, snapshot.rows, None, sample, 10, None, 0)
        point = choose_effort(curve, AUTO_RECALL)
        if point.recall < AUTO_RECALL:
            warnings.warn(
                f"'Auto' aims at a recall of {AUTO_RECALL}, and the highest measured one is {point}, which is used; "
                "use 'Flat' for all neighbours.",
                RecallWarning,
                stacklevel=3,
            )
        return curve

    def _get_saved_ef(self) -> int | None:
        is_chosen = self._requested_spec is None and self._snapshot.curve is not None and self._get_spec().links
        return self.ef if is_chosen else self._ef

    def _prepare_queries(self, snapshot: Snapshot, queries: Any) -> Any:
        if snapshot.engine is None and self._requested_spec is not None and self._requested_spec.trains:
            raise InputError(f"'{self.spec}' must be trained before search; call train, then add.")
        if hasattr(queries, "shape"):
            check_shape(tuple(queries.shape), self.dim, "queries")
        return self._backend.prepare_vectors(queries, self.dim, self.metric, "queries")

    def _search(
        self,
        snapshot: Snapshot,
        queries: Any,
        k: int,
        nprobe: int | None,
        depth: int | None,
        ef: int | None,
        recall: float | None,
        where: Any,
        key: Any = None,
    ) -> tuple[Any, Any]:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise InputError(f"k is {k!r}; ask for 1 neighbour or more.")
        prepared = self._prepare_queries(snapshot, queries)
        if len(prepared) * int(k) > MAX_RESULTS:
            raise InputError(
                f"{len(prepared)} × {k} neighbours are too many; there are {snapshot.rows.live} rows, lower k."
            )
        spec = snapshot.engine.config.spec if snapshot.engine is not None else self._requested_spec or Spec("Flat")
        if ef is not None and not spec.links:
            raise InputError(f"ef= is for HNSW and the spec is '{spec}'; use nprobe= for lists.")
        if nprobe is not None and spec.links:
            raise InputError(f"'{spec}' has no lists, so nprobe= has no effect; use ef=.")
        if recall is not None:
            if nprobe is not None or depth is not None or ef is not None:
                raise InputError("recall= chooses nprobe, depth and ef; give it or them, not both.")
            nprobe, depth = choose_settings(recall, spec, snapshot.curve, snapshot.rows.live, self._warned, int(k))
        allowed = make_row_mask(snapshot.rows, where)
        if snapshot.engine is None:
            no_score = np.inf if self.metric == "l2" else -np.inf
            return np.full((len(prepared), k), no_score), np.full((len(prepared), k), -1, np.int64)
        options = self._make_options(snapshot, int(k), nprobe if ef is None else ef, depth, allowed, where is not None)
        scores, rows = snapshot.engine.search(prepared, options)
        if key is not None and (type(queries) is np.ndarray or str(queries.device) == self._backend.device):
            add_fast_path(snapshot, key, prepared, options)
        return scores, map_ids(snapshot.rows, rows)

    def _search_radius(
        self, snapshot: Snapshot, queries: Any, radius: float, nprobe: int | None, where: Any
    ) -> tuple[Any, Any, Any]:
        if not isinstance(radius, int | float | np.number) or np.isnan(radius):
            raise InputError(f"radius is {radius!r}; give a number.")
        prepared = self._prepare_queries(snapshot, queries)
        if snapshot.engine is None:
            return np.zeros(len(prepared) + 1, np.int64), np.zeros(0, np.float32), np.zeros(0, np.int64)
        options = self._make_options(snapshot, 1, nprobe, None, make_row_mask(snapshot.rows, where))
        limits, scores, rows = snapshot.engine.search_radius(prepared, float(radius), options)
        with np.errstate(over="ignore"):
            scores = scores.astype(np.float32) if isinstance(scores, np.ndarray) else scores.float()
        return limits, scores, map_ids(snapshot.rows, rows)

    def _make_options(
        self,
        snapshot: Snapshot,
        k: int,
        nprobe: int | None,
        depth: int | None,
        allowed: Flags | None,
        filtered: bool = False,
    ) -> SearchOptions:
        spec = snapshot.engine.config.spec if snapshot.engine is not None else Spec("Flat")
        if spec.links:
            _check_count("ef", nprobe)
            ids = None if snapshot.rows.rising else snapshot.rows.id_array
            return SearchOptions(k, self.ef if nprobe is None else int(nprobe), 1, allowed, ids)
        _check_count("nprobe", nprobe)
        _check_count("depth", depth)
        nprobe = int(nprobe) if nprobe is not None else self.nprobe
        if filtered and allowed is not None:  # the neighbours that pass lie further away: read as many more lists
            nprobe = round(nprobe * len(allowed) / max(1, int(np.count_nonzero(allowed))))
        nprobe = min(spec.lists or 1, nprobe)
        depth = (int(depth) if depth is not None else self.depth) if spec.refine else 1
        ids = None if snapshot.rows.rising else snapshot.rows.id_array
        return SearchOptions(k, nprobe, depth, allowed, ids, filtered=filtered)


class ShardedIndex:
    """One index over several devices, with the methods of `Index`: `Index.shard(["cuda:0", "cuda:1"], "Flat")`.

    Each shard stores a share of the rows and searches it; the results are merged. The merge is exact: shards return
    float64 scores (on a GPU float32), and the best k of all are among the best k of each. Specs with training are
    trained on the same vectors with the same seed, so every shard has the same lists.
    """

    def __init__(self, devices: Sequence[str], spec: str = "Flat", **settings: Any) -> None:
        if isinstance(devices, str) or not len(devices):
            raise InputError(f"devices is {devices!r}; give a list of them, like ['cuda:0', 'cuda:1'].")
        if "device" in settings:
            raise InputError("an index over several devices takes devices=, not device=.")
        self._start([Index(spec, device=device, **settings) for device in devices], make_empty_rows())

    def _start(self, shards: list[Index], all_rows: Rows) -> None:
        self.shards = shards
        self.metric = shards[0].metric
        self._lock = threading.Lock()
        self._snapshot = tuple(shard._snapshot for shard in shards)
        self._all_rows = all_rows  # all ids in the order they were added, for masks and duplicates
        threads = len({shard.device for shard in shards if shard.device != "cpu"}) + (os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(min(len(shards), threads), "ridgeline-shard")

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        verify: bool = False,
        *,
        devices: Sequence[str] = ("cpu",),
        mmap: bool = True,
    ) -> ShardedIndex:
        """Load the shards that `ridgeline bulk index` or `save` wrote; the devices take them in turn.

        `verify` and `mmap` are those of `Index.load`. Raises StoreError if a shard is not complete, if shards differ in
        dimension or metric, or if an id is in two of them.
        """
        if isinstance(devices, str) or not len(devices):
            raise InputError(f"devices is {devices!r}; give a list of them, like ['cuda:0', 'cuda:1'].")
        folders = list_shards(path)
        shards = [
            Index.load(folder, verify, device=devices[number % len(devices)], mmap=mmap)
            for number, folder in enumerate(folders)
        ]
        first = shards[0]
        for folder, shard in zip(folders, shards, strict=True):
            if (shard.dim, shard.metric) != (first.dim, first.metric):
                raise StoreError(
                    f"{folder} has {shard.dim} dimensions and {shard.metric}, {folders[0]} has {first.dim} and "
                    f"{first.metric}; build the shards with the same settings."
                )
        ids = np.concatenate([shard.ids for shard in shards])
        try:
            all_rows = make_empty_rows().append(len(ids), ids, None)
        except InputError as error:
            raise StoreError(f"the shards of {path} cannot be joined: {error}") from None
        index = cls.__new__(cls)
        index._start(shards, all_rows)
        return index

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a folder with one index per shard and their list, in one step."""
        with publish_dir(path, {"kind": SHARDS_KIND}) as folder:
            names = [f"shard-{number:06}" for number in range(len(self.shards))]
            for name, shard in zip(names, self.shards, strict=True):
                shard.save(folder / name)
            (folder / SHARDS).write_text(format_shard_list(names), encoding="utf-8")

    def __len__(self) -> int:
        return sum(snapshot.rows.live for snapshot in self._snapshot)

    @property
    def spec(self) -> str:
        return self.shards[0].spec

    @property
    def model(self) -> str | None:
        """The name of the model that made the vectors."""
        return self.shards[0].model

    @property
    def exact(self) -> bool:
        """Whether every search compares every vector at full precision."""
        return all(shard.exact for shard in self.shards)

    @property
    def meta(self) -> Any:
        """The columns of the rows as a pyarrow Table in the order of `ids`; None if there are none."""
        tables = [shard.meta for shard in self.shards if len(shard)]
        if not tables or tables[0] is None:
            return None
        import pyarrow as pa

        table = pa.concat_tables(tables)
        of_shards, ids = np.concatenate([shard.ids for shard in self.shards if len(shard)]), self.ids
        if np.array_equal(of_shards, ids):
            return table
        order = np.argsort(of_shards)
        return table.take(order[np.searchsorted(of_shards, ids, sorter=order)])

    def find_rows(self, ids: Any) -> Integers:
        """Return the positions of these ids in `ids` and `meta`; raises InputError for an unknown id."""
        rows = self._all_rows
        matches = rows.find_existing(as_ids(ids), "ask only for")
        return matches if rows.alive is None else np.searchsorted(rows.live_rows, matches)

    @property
    def dim(self) -> int | None:
        return next((shard.dim for shard in self.shards if shard.dim is not None), None)

    @property
    def ids(self) -> Integers:
        return self._all_rows.ids.rows[self._all_rows.live_rows].copy()

    def train(self, vectors: Any, *, seed: int = 0) -> None:
        with self._change_shards():
            for shard in self.shards:
                shard.train(vectors, seed=seed)

    def add(self, vectors: Any, ids: Any = None, meta: Any = None) -> None:
        """Add rows in equal runs to the shards; a search sees all of them or none."""
        with self._change_shards():
            values = vectors if is_tensor(vectors) else as_matrix(vectors, self.dim, "vectors")
            self.shards[0]._backend.prepare_vectors(
                values, self.dim, self.metric, "vectors"
            )  # raises while row numbers are those of the caller
            table = None if meta is None else make_table(meta, len(values))
            all_rows = self._all_rows.append(len(values), ids, None)
            new_ids = all_rows.ids.rows[self._all_rows.count :]
            bounds = np.linspace(0, len(values), len(self.shards) + 1).astype(int)
            for shard, low, high in zip(self.shards, bounds[:-1], bounds[1:], strict=True):
                part = None if table is None else table.slice(low, high - low)
                try:
                    shard.add(values[low:high], new_ids[low:high], part)
                except InputError as error:
                    raise InputError(f"of rows {low} to {high - 1}, counted from {low}: {error}") from None
            self._all_rows = all_rows

    def remove(self, ids: Any) -> int:
        with self._change_shards():
            removed_ids = np.unique(as_ids(ids))
            rows = self._all_rows.find_existing(removed_ids, "remove only")
            for shard in self.shards:
                shard.remove(removed_ids[shard._snapshot.rows.find(removed_ids) >= 0])
            self._all_rows = self._all_rows.mark_removed(rows)
            return len(rows)

    def search(
        self,
        queries: Any,
        k: int,
        *,
        nprobe: int | None = None,
        depth: int | None = None,
        ef: int | None = None,
        recall: float | None = None,
        where: Any = None,
    ) -> tuple[Any, Any]:
        """Like `Index.search`; equal scores go by id across all shards."""
        if is_one_vector(queries):
            settings = {"nprobe": nprobe, "depth": depth, "ef": ef, "recall": recall, "where": where}
            scores, ids = self.search(as_batch(queries), k, **settings)
            return scores[0], ids[0]
        where = self._mask_to_ids(where)
        snapshots = self._snapshot

        def search_shard(number: int) -> tuple[Any, Any]:
            result = self.shards[number]._search(snapshots[number], queries, k, nprobe, depth, ef, recall, where)
            return _to_host(result[0]), _to_host(result[1])

        parts = list(self._pool.map(search_shard, range(len(self.shards))))
        scores = np.concatenate([s for s, _ in parts], 1).astype(np.float64)
        ids = np.concatenate([i for _, i in parts], 1)
        keys = scores if self.metric == "l2" else -scores
        # Missing results come last.
        order = np.lexsort((np.where(ids < 0, np.iinfo(np.int64).max, ids), keys), axis=1)[:, :k]
        backend = self.shards[0]._backend
        with np.errstate(over="ignore"):
            best = np.take_along_axis(scores, order, 1).astype(np.float32)
        return backend.convert_like(best, queries), backend.convert_like(np.take_along_axis(ids, order, 1), queries)

    def range_search(
        self, queries: Any, radius: float, *, nprobe: int | None = None, where: Any = None
    ) -> tuple[Any, Any, Any]:
        """Like `Index.range_search`, over all shards."""
        queries = as_batch(queries)
        where = self._mask_to_ids(where)
        pairs = zip(self.shards, self._snapshot, strict=True)
        parts = [shard._search_radius(snapshot, queries, radius, nprobe, where) for shard, snapshot in pairs]
        limits, scores, ids = ([_to_host(part[n]) for part in parts] for n in range(3))
        query_ids = np.concatenate([np.repeat(np.arange(len(ends) - 1), np.diff(ends)) for ends in limits])
        score, all_ids = np.concatenate(scores), np.concatenate(ids)
        order = np.lexsort((all_ids, score if self.metric == "l2" else -score, query_ids))
        ends = np.searchsorted(query_ids[order], np.arange(len(limits[0]))).astype(np.int64)
        convert = self.shards[0]._backend.convert_like
        return convert(ends, queries), convert(score[order], queries), convert(all_ids[order], queries)

    def reconstruct(self, ids: Any) -> Any:
        """Return float32 [n, dim]: the stored values of these ids."""
        requested_ids = as_ids(ids)
        self._all_rows.find_existing(requested_ids, "reconstruct only")
        out = np.zeros((len(requested_ids), self.dim or 0), np.float32)
        for shard in self.shards:
            in_shard = shard._snapshot.rows.find(requested_ids) >= 0
            if in_shard.any():
                out[in_shard] = _to_host(shard.reconstruct(requested_ids[in_shard]))
        return self.shards[0]._backend.convert_like(out, ids)

    def measure_recall(self, sample: int = 1000, k: int = 10, *, seed: int = 0) -> list[Any]:
        """Measure each shard on its own rows; return the curves in the order of the shards."""
        with self._change_shards():
            return [shard.measure_recall(sample, k, seed=seed) for shard in self.shards]

    def stats(self) -> dict[str, Any]:
        return {"count": len(self), "shards": [shard.stats() for shard in self.shards]}

    def close(self) -> None:
        """Stop the threads; safe to call twice."""
        self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _change_shards(self) -> Iterator[None]:
        """Change all shards: searches see the complete change, or nothing of it if it fails."""
        with self._lock:
            try:
                yield
            except BaseException:
                for shard, snapshot in zip(self.shards, self._snapshot, strict=True):
                    shard._snapshot = snapshot
                raise
            self._snapshot = tuple(shard._snapshot for shard in self.shards)

    def _mask_to_ids(self, where: Any) -> Any:
        """Turn a mask over all rows into ids, which a shard understands."""
        if where is None or isinstance(where, str):
            return where
        values = where.detach().cpu().numpy() if is_tensor(where) else np.asarray(where)
        if values.dtype != np.bool_:
            return values
        ids = self.ids
        if values.shape != ids.shape:
            raise InputError(f"where is a mask of shape {values.shape} for {len(ids)} rows; give one per row.")
        return ids[values]


def load_index(
    path: str | os.PathLike[str], verify: bool = False, *, device: str = "cpu", mmap: bool = True
) -> Index | ShardedIndex:
    """Load a saved index, in one folder or in shards; `device` may name several for shards, like "cuda:0,cuda:1"."""
    if not is_sharded(path):
        return Index.load(path, verify, device=device, mmap=mmap)
    return ShardedIndex.load(path, verify, devices=parse_devices(device), mmap=mmap)


def _check_count(name: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1):
        raise InputError(f"{name} is {value!r}; give a whole number, 1 or more.")


def _to_host(values: Any) -> Any:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()
