"""`MultiIndex`: documents of many vectors (late interaction, ColBERT), searched exactly by MaxSim.

The score of a document is the sum, over the vectors of the query, of the largest inner product with a vector of the
document. The answer is the true top k over the stored values, as in `Index`: scores are computed in float32 (on a GPU
from float16), whose error has a bound, and every document that may be among the best k is scored again in float64.

>>> import numpy as np
>>> index = MultiIndex(device="cpu")
>>> index.add([np.eye(3)[:2], np.eye(3)[2:]], ids=[7, 8])
>>> scores, ids = index.search(np.array([[0.0, 1.0, 0.2], [0.0, 0.0, 0.5]]), 2)
>>> ids.tolist(), scores.tolist()
([7, 8], [1.0, 0.699999988079071])
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ridgeline import store
from ridgeline.errors import InputError, StoreError, unknown
from ridgeline.machine import resolve_device
from ridgeline.search.arrays import Array, Doubles, Flags, Floats, Integers, wrap_rows
from ridgeline.search.fde import Sketch, make_sketch
from ridgeline.search.inputs import as_ids, as_matrix, check_finite, is_tensor
from ridgeline.search.recall import compute_interval, count_hits
from ridgeline.search.rows import Rows, make_empty_rows, make_row_mask

CODES = ("Flat", "SQ8", "RaBitQ")
DTYPES = ("auto", "float32", "float16")
KIND, FORMAT = "ridgeline multi index", 1
MAX_REMOVED_SHARE = 0.25  # a larger share of removed documents is dropped from the engine
CANDIDATES = 16  # with a sketch: documents per result that are scored exactly, unless a search says otherwise
MIN_CANDIDATES = 200
ENGINES = {"cpu": "ridgeline.search.multi_cpu", "cuda": "ridgeline.search.multi_cuda"}


@dataclass(frozen=True)
class Ragged:
    """Vectors of several documents or queries, one after the other: number i has `offsets[i]` to `offsets[i + 1]`."""

    vectors: Floats
    offsets: Integers

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Integers:
        return self.offsets[1:] - self.offsets[:-1]

    def slice(self, first: int, last: int) -> Ragged:
        low, high = self.offsets[first], self.offsets[last]
        return Ragged(self.vectors[low:high], self.offsets[first : last + 1] - low)


class MultiEngine(Protocol):
    """The vectors of all documents on one device; never changes, as in `Engine`."""

    @property
    def count(self) -> int:
        """The number of documents."""

    @property
    def nbytes(self) -> int: ...
    def append(self, documents: Ragged) -> MultiEngine: ...
    def select_documents(self, numbers: Integers) -> MultiEngine: ...
    def search(self, queries: Ragged, k: int, allowed: Flags | None, ids: Integers | None) -> tuple[Doubles, Integers]:
        """(scores [q, k], documents [q, k]), best first, equal scores by id; missing results are −∞ and −1."""

    def rescore(self, queries: Ragged, numbers: Sequence[Integers]) -> list[Doubles]:
        """Return the exact scores of some documents for each query."""

    def decode(self, numbers: Integers) -> Ragged:
        """Return the stored values of some documents."""

    def arrays(self) -> Mapping[str, Array]: ...


@dataclass(frozen=True)
class MultiSnapshot:
    """The state that a search reads; a change makes a new one."""

    rows: Rows
    engine: MultiEngine | None = None
    sketch: Sketch | None = None


class MultiIndex:
    """Documents of many vectors with ids, searched by MaxSim.

    codes   Flat (the values), SQ8 (a byte per dimension, over the range of the first documents: add many at first) or
            RaBitQ (four bits per dimension, on a CPU)
    device  auto, cpu, cuda, cuda:N
    dtype   of Flat values: float32 or float16; auto is float32 on a CPU, float16 on a GPU
    dim     components of a vector; by default those of the first vectors
    sketch  keep one long vector per document besides (fde.py): a search ranks all of these, and scores only the best
            `candidates` documents exactly. For more documents than can be read for every query; `measure_recall` says
            what it finds.

    Safe to use from several threads: a search sees all documents of an `add` or none of them.
    """

    def __init__(
        self,
        codes: str = "Flat",
        *,
        device: str = "auto",
        dtype: str = "auto",
        dim: int | None = None,
        sketch: bool = False,
        model: str | None = None,
    ) -> None:
        if codes not in CODES:
            raise unknown("codes", codes, CODES)
        if dtype not in DTYPES:
            raise unknown("dtype", dtype, DTYPES)
        self.codes, self.model = codes, model
        self.device = resolve_device(device)
        on_gpu = self.device.partition(":")[0] == "cuda"
        if on_gpu and codes == "RaBitQ":
            raise InputError(f"codes 'RaBitQ' are searched on a CPU; use device='cpu', or SQ8 on {self.device}.")
        self.dtype = dtype if dtype != "auto" else "float16" if on_gpu else "float32"
        self._dim, self._has_sketch = dim, bool(sketch)
        self._engines: Any = import_module(ENGINES[self.device.partition(":")[0]])
        self._lock = threading.Lock()
        self._snapshot = MultiSnapshot(make_empty_rows())

    def __len__(self) -> int:
        return self._snapshot.rows.live

    @property
    def dim(self) -> int | None:
        return self._dim

    @property
    def ids(self) -> Integers:
        """The ids of all documents, in the order they were added."""
        rows = self._snapshot.rows
        return rows.ids.rows[rows.live_rows].copy()

    @property
    def meta(self) -> Any:
        """The columns of the documents as a pyarrow Table in the order of `ids`; None if there are none."""
        rows = self._snapshot.rows
        return None if rows.meta is None else rows.meta if rows.alive is None else rows.meta.take(rows.live_rows)

    def add(self, vectors: Any, offsets: Any = None, ids: Any = None, meta: Any = None) -> None:
        """Add documents: vectors [T, dim] and offsets [N + 1], a list of N matrices [t, dim], or what
        `encode(texts, output="multi")` returns.

        ids   [N], by default the next numbers
        meta  columns to filter by

        Raises InputError if a document has no vector, a value is not finite, or an id is not new.
        """
        with self._lock:
            snapshot = self._snapshot
            documents = _as_ragged(vectors, offsets, self._dim, "document")
            check_finite(documents.vectors, "vectors")
            rows = snapshot.rows.append(len(documents), ids, meta)
            engine = snapshot.engine
            if not len(documents):
                return
            if engine is None:
                engine = self._engines.make_engine(self.codes, self.dtype, documents.vectors, self.device)
            engine = engine.append(documents)
            sketch = snapshot.sketch
            if self._has_sketch:
                sketch = (sketch or make_sketch(documents.vectors.shape[1])).append(documents)
            self._dim = int(documents.vectors.shape[1])
            self._snapshot = MultiSnapshot(rows, engine, sketch)

    def remove(self, ids: Any) -> int:
        """Remove documents and return their number. An unknown id is an InputError, and then nothing is removed."""
        with self._lock:
            snapshot = self._snapshot
            removed = np.unique(snapshot.rows.find_existing(as_ids(ids), "remove only"))
            if not len(removed):
                return 0
            rows = snapshot.rows.mark_removed(removed)
            self._snapshot = replace(snapshot, rows=rows)
            if rows.count - rows.live > MAX_REMOVED_SHARE * rows.count:
                self._snapshot = _drop_removed(self._snapshot)
            return len(removed)

    def search(self, queries: Any, k: int, *, candidates: int | None = None, where: Any = None) -> tuple[Any, Any]:
        """Return (scores float32 [q, k], ids int64 [q, k]), best first; missing results have id −1.

        queries     a list of matrices [t, dim], (vectors, offsets), or what `encode(texts, output="multi")` returns;
                    one matrix is one query, whose results are [k]
        candidates  with a sketch: documents that are scored exactly; by default 16 · k, 200 or more
        where       "year >= 90", a mask [len(index)], or ids
        """
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise InputError(f"k is {k!r}; ask for 1 document or more.")
        snapshot = self._snapshot
        given, one = _as_queries(queries, self._dim)
        check_finite(given.vectors, "queries")
        allowed = make_row_mask(snapshot.rows, where)
        count = int(k)
        scores, numbers = np.full((len(given), count), -np.inf), np.full((len(given), count), -1, np.int64)
        if snapshot.engine is not None and snapshot.rows.live and len(given):
            ids = None if snapshot.rows.rising else snapshot.rows.id_array
            if snapshot.sketch is not None:
                candidate_count = (
                    max(CANDIDATES * count, MIN_CANDIDATES) if candidates is None else _check_candidates(candidates)
                )
                scores, numbers = _search_by_sketch(snapshot, given, count, max(count, candidate_count), allowed, ids)
            else:
                scores, numbers = snapshot.engine.search(given, count, allowed, ids)
        result_ids = np.where(numbers >= 0, snapshot.rows.ids.rows[np.maximum(numbers, 0)] if len(self) else -1, -1)
        with np.errstate(over="ignore"):
            values = scores.astype(np.float32)
        if one:
            values, result_ids = values[0], result_ids[0]
        return _convert_like(values, queries), _convert_like(result_ids, queries)

    def measure_recall(self, queries: Any, k: int = 10) -> list[tuple[int, float, float, float]]:
        """Return (candidates, recall, low, high) for some numbers of candidates; low to high is the 95 % interval.

        The truth is an exact search. Without a sketch every search is exact, and the list is empty.
        """
        snapshot = self._snapshot
        if snapshot.sketch is None or snapshot.engine is None:
            return []
        given, _ = _as_queries(queries, self._dim)
        allowed = snapshot.rows.alive
        truth = snapshot.engine.search(given, k, allowed, None)[1]
        points = []
        candidate_count = max(k, 10)
        while True:
            result_ids = _search_by_sketch(snapshot, given, k, candidate_count, allowed, None)[1]
            shares = count_hits(result_ids, truth)
            points.append((candidate_count, *compute_interval(shares)))
            if candidate_count >= snapshot.rows.live or points[-1][1] >= 1:
                return points
            candidate_count = min(4 * candidate_count, snapshot.rows.live)

    def reconstruct(self, ids: Any) -> list[Floats]:
        """Return the stored vectors of these documents, a matrix [t, dim] each."""
        snapshot = self._snapshot
        numbers = snapshot.rows.find_existing(as_ids(ids), "reconstruct only")
        if snapshot.engine is None:
            return []
        values = snapshot.engine.decode(numbers)
        return np.split(values.vectors, values.offsets[1:-1])

    def stats(self) -> dict[str, Any]:
        """Return the settings, the numbers of documents and vectors, and the size in bytes."""
        snapshot = self._snapshot
        engine = snapshot.engine
        return {
            "codes": self.codes,
            "dim": self._dim,
            "dtype": self.dtype,
            "device": self.device,
            "count": len(self),
            "vectors": 0 if engine is None else int(engine.arrays()["offsets"][-1]),
            "removed": snapshot.rows.count - snapshot.rows.live,
            "bytes": 0 if engine is None else engine.nbytes,
            "sketch_bytes": 0 if snapshot.sketch is None else snapshot.sketch.codes.rows.nbytes,
            "model": self.model,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a folder, in one step: it is complete or absent, and an older one is replaced."""
        snapshot = _drop_removed(self._snapshot)
        if snapshot.engine is None:
            raise InputError("the index holds nothing yet; add documents first.")
        rows = snapshot.rows
        meta = {
            "kind": KIND,
            "format": FORMAT,
            "codes": self.codes,
            "dim": self._dim,
            "dtype": self.dtype,
            "count": rows.count,
            "next_id": rows.next_id,
            "rising": rows.rising,
            "model": self.model,
            "sketch": None if snapshot.sketch is None else snapshot.sketch.settings(),
        }
        with store.publish_dir(path, meta) as folder:
            for name, array in snapshot.engine.arrays().items():
                np.save(folder / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)
            np.save(folder / "ids.npy", rows.ids.rows, allow_pickle=False)
            if snapshot.sketch is not None:
                np.save(folder / "sketch.npy", snapshot.sketch.codes.rows, allow_pickle=False)
            if rows.meta is not None:
                import pyarrow.parquet as pq

                pq.write_table(rows.meta, folder / "meta.parquet")

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], verify: bool = False, *, device: str = "cpu", mmap: bool = True
    ) -> MultiIndex:
        """Load a saved index; `verify` compares every file with its checksum, `mmap` maps the arrays."""
        folder = Path(path)
        manifest = store.verify(folder, quick=not verify)
        meta = manifest.meta
        if meta.get("kind") != KIND:
            raise StoreError(f"{folder} is no index of documents; give a folder that MultiIndex.save wrote.")
        if meta["format"] > FORMAT:
            raise StoreError(f"{folder} has format {meta['format']}, newer than {FORMAT}; update ridgeline to read it.")
        arrays = {
            Path(name).stem: np.load(folder / name, mmap_mode="r" if mmap else None, allow_pickle=False)
            for name in manifest.files
            if name.endswith(".npy")
        }
        index = cls(meta["codes"], device=device, dtype=meta["dtype"], dim=meta["dim"], model=meta["model"])
        table = None
        if "meta.parquet" in manifest.files:
            import pyarrow.parquet as pq

            table = pq.read_table(folder / "meta.parquet", memory_map=mmap)
        rows = Rows(wrap_rows(np.asarray(arrays.pop("ids"))), None, table, meta["next_id"], meta["rising"])
        sketch = None
        if meta["sketch"] is not None:
            sketch = replace(make_sketch(**meta["sketch"]), codes=wrap_rows(np.asarray(arrays.pop("sketch"))))
            index._has_sketch = True
        engine = index._engines.restore_engine(index.codes, index.dtype, arrays, index.device)
        if engine.count != rows.count or engine.count != meta["count"]:
            raise StoreError(f"{folder} holds {engine.count} documents for {meta['count']}; build the index again.")
        index._snapshot = MultiSnapshot(rows, engine, sketch)
        return index

    def __repr__(self) -> str:
        return f"MultiIndex('{self.codes}', dim={self._dim}, device='{self.device}', documents={len(self)})"


def _drop_removed(snapshot: MultiSnapshot) -> MultiSnapshot:
    if snapshot.rows.alive is None or snapshot.engine is None:
        return snapshot
    live = snapshot.rows.live_rows
    sketch = None if snapshot.sketch is None else snapshot.sketch.select_documents(live)
    return MultiSnapshot(snapshot.rows.select_rows(live), snapshot.engine.select_documents(live), sketch)


def _search_by_sketch(
    snapshot: MultiSnapshot, queries: Ragged, k: int, candidates: int, allowed: Flags | None, ids: Integers | None
) -> tuple[Doubles, Integers]:
    """Rank the documents by their sketches, then the best of them exactly."""
    engine, sketch = snapshot.engine, snapshot.sketch
    if engine is None or sketch is None:
        raise InputError("the index has no sketch; make it with sketch=True.")
    if candidates >= snapshot.rows.live:
        return engine.search(queries, k, allowed, ids)
    chosen = sketch.find_candidates(queries, candidates, allowed)
    scores, numbers = np.full((len(queries), k), -np.inf), np.full((len(queries), k), -1, np.int64)
    for query, (row, exact) in enumerate(zip(chosen, engine.rescore(queries, chosen), strict=True)):
        best = np.lexsort((row if ids is None else ids[row], -exact))[:k]
        scores[query, : len(best)], numbers[query, : len(best)] = exact[best], row[best]
    return scores, numbers


def _check_candidates(candidates: Any) -> int:
    if isinstance(candidates, bool) or not isinstance(candidates, int | np.integer) or candidates < 1:
        raise InputError(f"candidates is {candidates!r}; give a whole number, 1 or more.")
    return int(candidates)


def _as_ragged(vectors: Any, offsets: Any, dim: int | None, what: str) -> Ragged:
    """Return vectors with offsets; from a list of matrices, or an object that has both, if there are no offsets."""
    if offsets is None and hasattr(vectors, "vectors") and hasattr(vectors, "offsets"):
        vectors, offsets = vectors.vectors, vectors.offsets
    if offsets is None:
        parts = [as_matrix(part, None, f"vectors of {what} {number}") for number, part in enumerate(vectors)]
        widths = {part.shape[1] for part in parts} | ({dim} if dim is not None else set())
        if len(widths) > 1:
            number = next(n for n, p in enumerate(parts) if p.shape[1] != (dim or parts[0].shape[1]))
            raise InputError(
                f"{what} {number} has vectors of {parts[number].shape[1]} dimensions, others have "
                f"{dim or parts[0].shape[1]}; use the same model for all."
            )
        width = widths.pop() if widths else 0
        values = np.concatenate(parts) if parts else np.zeros((0, width), np.float32)
        ends = np.cumsum([0, *(len(part) for part in parts)]).astype(np.int64)
    else:
        values = as_matrix(vectors, dim, "vectors")
        ends = np.asarray(offsets.detach().cpu().numpy() if is_tensor(offsets) else offsets)
        if ends.ndim != 1 or not len(ends) or ends.dtype.kind not in "iu":
            raise InputError(
                f"the offsets are {ends.dtype} of shape {ends.shape}; give whole numbers, one more than {what}s."
            )
        ends = ends.astype(np.int64)
        if ends[0] != 0 or ends[-1] != len(values):
            raise InputError(
                f"the offsets go from {ends[0]} to {ends[-1]} for {len(values)} vectors; they begin with 0 and end "
                "with the number of vectors."
            )
    lengths = np.diff(ends)
    if len(lengths) and lengths.min() < 1:
        number = int(np.flatnonzero(lengths < 1)[0])
        reason = "no vector" if lengths[number] == 0 else "offsets that decrease"
        raise InputError(f"{what} {number} has {reason}; give every {what} one vector or more.")
    return Ragged(values, ends)


def _as_queries(queries: Any, dim: int | None) -> tuple[Ragged, bool]:
    """Return (queries, whether it is one)."""
    if hasattr(queries, "vectors") and hasattr(queries, "offsets"):
        return _as_ragged(queries, None, dim, "query"), False
    if isinstance(queries, tuple) and len(queries) == 2 and np.ndim(queries[1]) == 1:
        return _as_ragged(queries[0], queries[1], dim, "query"), False
    if getattr(queries, "ndim", None) == 2:
        values = as_matrix(queries, dim, "queries")
        if not len(values):
            raise InputError("query 0 has no vector; give every query one vector or more.")
        return Ragged(values, np.array([0, len(values)])), True
    is_list = isinstance(queries, Sequence | np.ndarray) or is_tensor(queries)
    if not is_list or isinstance(queries, str) or getattr(queries, "ndim", 3) != 3:
        raise InputError("queries are a list of matrices [t, dim], one matrix, or (vectors, offsets).")
    return _as_ragged(queries, None, dim, "query"), False


def _convert_like(values: Array, like: Any) -> Any:
    first = like[0] if isinstance(like, list | tuple) and len(like) else getattr(like, "vectors", like)
    if not is_tensor(first):
        return values
    import torch

    return torch.from_numpy(np.ascontiguousarray(values)).to(first.device)
