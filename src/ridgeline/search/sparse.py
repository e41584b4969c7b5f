"""`SparseIndex`: sparse vectors (SPLADE, BM25) by exact inner product, from inverted lists of terms.

>>> import numpy as np
>>> from scipy.sparse import csr_array
>>> index = SparseIndex(device="cpu")
>>> index.add(csr_array(np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]])), ids=[5, 6])
>>> scores, ids = index.search(csr_array(np.array([[0.0, 0.5, 1.0]])), 2)
>>> ids.tolist(), scores.tolist()
([[6, 5]], [[3.0, 1.0]])
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline import store
from ridgeline.errors import InputError, StoreError
from ridgeline.machine import resolve_device
from ridgeline.search.arrays import Array, Doubles, Flags, Floats, GrowableArray, Integers, wrap_rows
from ridgeline.search.inputs import as_ids, is_tensor
from ridgeline.search.rows import Rows, make_empty_rows, make_row_mask

KIND, FORMAT = "ridgeline sparse index", 1
MAX_REMOVED_SHARE = 0.25  # a larger share of removed rows is dropped
MAX_TERM = 1 << 31


@dataclass(frozen=True)
class SparseRows:
    """Rows as the caller gave them: terms and weights of row i at `ends[i - 1]` to `ends[i]`."""

    terms: GrowableArray  # int64 [entries]
    weights: GrowableArray  # float32 [entries]
    ends: GrowableArray  # int64 [rows]

    @property
    def count(self) -> int:
        return self.ends.count

    @property
    def offsets(self) -> Integers:
        return np.concatenate([[0], self.ends.rows])

    @property
    def nbytes(self) -> int:
        return self.terms.rows.nbytes + self.weights.rows.nbytes + self.ends.rows.nbytes

    def append(self, terms: Integers, weights: Floats, offsets: Integers) -> SparseRows:
        ends = self.ends.append(offsets[1:] + self.terms.count)
        return SparseRows(self.terms.append(terms), self.weights.append(weights), ends)

    def select_rows(self, rows: Integers) -> SparseRows:
        places, offsets = _list_places(self.offsets, rows)
        return SparseRows(
            wrap_rows(self.terms.rows[places]), wrap_rows(self.weights.rows[places]), wrap_rows(offsets[1:])
        )

    @cached_property
    def lists(self) -> TermLists:
        """The inverted lists, made by the first search after a change."""
        order = np.argsort(self.terms.rows, kind="stable")
        names, starts = np.unique(self.terms.rows[order], return_index=True)
        owners = np.repeat(np.arange(self.count), np.diff(self.offsets))[order]
        return TermLists(names, np.append(starts, len(order)), owners, self.weights.rows[order].astype(np.float64))


@dataclass(frozen=True)
class TermLists:
    """For each term the rows that have it, ascending, with their weights."""

    names: Integers  # [terms], ascending
    offsets: Integers  # [terms + 1]
    rows: Integers
    weights: Doubles

    def score(self, terms: Integers, weights: Floats, count: int) -> tuple[Doubles, Array]:
        """(float64 scores [count], whether a row has a term of the query [count])."""
        place = np.searchsorted(self.names, terms)
        known = place < len(self.names)
        known[known] = self.names[place[known]] == terms[known]
        places, offsets = _list_places(self.offsets, place[known])
        rows = self.rows[places]
        products = self.weights[places] * np.repeat(weights[known].astype(np.float64), np.diff(offsets))
        matches = np.zeros(count, np.bool_)
        matches[rows] = True
        return np.bincount(rows, products, count).astype(np.float64), matches


@dataclass(frozen=True)
class SparseSnapshot:
    """The state that a search reads; a change makes a new one."""

    rows: Rows
    stored: SparseRows


class SparseIndex:
    """Sparse vectors with ids, searched by inner product: the answer is the exact top k, in float64.

    device  auto or cpu: lists of terms are searched on the CPU, also beside an index on a GPU
    dim     the number of terms; by default any

    A row without a term of the query has the score 0. Safe to use from several threads.
    """

    def __init__(self, *, device: str = "auto", dim: int | None = None, model: str | None = None) -> None:
        if device != "auto" and resolve_device(device) != "cpu":
            raise InputError(f"device is '{device}'; sparse vectors are searched on the CPU: device='cpu'.")
        self.device, self.model, self.dim = "cpu", model, dim
        self._lock = threading.Lock()
        empty = SparseRows(
            wrap_rows(np.zeros(0, np.int64)), wrap_rows(np.zeros(0, np.float32)), wrap_rows(np.zeros(0, np.int64))
        )
        self._snapshot = SparseSnapshot(make_empty_rows(), empty)

    def __len__(self) -> int:
        return self._snapshot.rows.live

    @property
    def ids(self) -> Integers:
        """The ids of all rows, in the order they were added."""
        rows = self._snapshot.rows
        return rows.ids.rows[rows.live_rows].copy()

    @property
    def meta(self) -> Any:
        """The columns of the rows as a pyarrow Table in the order of `ids`; None if there are none."""
        rows = self._snapshot.rows
        return None if rows.meta is None else rows.meta if rows.alive is None else rows.meta.take(rows.live_rows)

    def add(self, vectors: Any, ids: Any = None, meta: Any = None) -> None:
        """Add rows of a SciPy matrix or array [n, terms], or of (indptr, indices, weights); see `Index.add`."""
        with self._lock:
            snapshot = self._snapshot
            terms, weights, offsets = as_sparse_rows(vectors, self.dim, "vectors")
            rows = snapshot.rows.append(len(offsets) - 1, ids, meta)
            self._snapshot = SparseSnapshot(rows, snapshot.stored.append(terms, weights, offsets))

    def remove(self, ids: Any) -> int:
        """Remove rows and return their number. An unknown id is an InputError, and then nothing is removed."""
        with self._lock:
            snapshot = self._snapshot
            removed = np.unique(snapshot.rows.find_existing(as_ids(ids), "remove only"))
            if not len(removed):
                return 0
            self._snapshot = replace(snapshot, rows=snapshot.rows.mark_removed(removed))
            if self._snapshot.rows.count - self._snapshot.rows.live > MAX_REMOVED_SHARE * self._snapshot.rows.count:
                self._snapshot = _drop_removed(self._snapshot)
            return len(removed)

    def search(self, queries: Any, k: int, *, where: Any = None, matching: bool = False) -> tuple[Floats, Integers]:
        """Return (scores float32 [q, k], ids int64 [q, k]), best first, equal scores by id; missing ids are −1.

        queries   like the vectors of `add`
        where     "year >= 90", a mask [len(index)], or ids
        matching  return only rows that have a term of the query
        """
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise InputError(f"k is {k!r}; ask for 1 row or more.")
        snapshot = self._snapshot
        allowed = make_row_mask(snapshot.rows, where)
        given = as_sparse_rows(queries, self.dim, "queries")
        count = len(given[2]) - 1
        scores, ids = np.full((count, int(k)), -np.inf, np.float32), np.full((count, int(k)), -1, np.int64)
        for number, (values, matches) in enumerate(score_rows(snapshot, given)):
            best = find_best(values, select_rows(allowed, matches if matching else None), int(k), snapshot.rows)
            scores[number, : len(best)], ids[number, : len(best)] = values[best], snapshot.rows.ids.rows[best]
        return scores, ids

    def stats(self) -> dict[str, Any]:
        """Return the settings, the number of rows and entries, and the size in bytes."""
        snapshot = self._snapshot
        return {
            "count": len(self),
            "entries": snapshot.stored.terms.count,
            "removed": snapshot.rows.count - snapshot.rows.live,
            "bytes": snapshot.stored.nbytes,
            "device": self.device,
            "model": self.model,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a folder, in one step: it is complete or absent, and an older one is replaced."""
        snapshot = _drop_removed(self._snapshot)
        rows, stored = snapshot.rows, snapshot.stored
        meta = {
            "kind": KIND,
            "format": FORMAT,
            "dim": self.dim,
            "count": rows.count,
            "next_id": rows.next_id,
            "rising": rows.rising,
            "model": self.model,
        }
        arrays = {"ids": rows.ids.rows, "terms": stored.terms.rows, "weights": stored.weights.rows}
        with store.publish_dir(path, meta) as folder:
            for name, array in {**arrays, "ends": stored.ends.rows}.items():
                np.save(folder / f"{name}.npy", array, allow_pickle=False)
            if rows.meta is not None:
                import pyarrow.parquet as pq

                pq.write_table(rows.meta, folder / "meta.parquet")

    @classmethod
    def load(cls, path: str | os.PathLike[str], verify: bool = False) -> SparseIndex:
        """Load a saved index; `verify` compares every file with its checksum."""
        folder = Path(path)
        manifest = store.verify(folder, quick=not verify)
        meta = manifest.meta
        if meta.get("kind") != KIND:
            raise StoreError(f"{folder} is no index of sparse vectors; give a folder that SparseIndex.save wrote.")
        if meta["format"] > FORMAT:
            raise StoreError(f"{folder} has format {meta['format']}, newer than {FORMAT}; update ridgeline to read it.")

        def read(name: str) -> GrowableArray:
            return wrap_rows(np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)))

        table = None
        if "meta.parquet" in manifest.files:
            import pyarrow.parquet as pq

            table = pq.read_table(folder / "meta.parquet", memory_map=True)
        index = cls(device="cpu", dim=meta["dim"], model=meta["model"])
        rows = Rows(read("ids"), None, table, meta["next_id"], meta["rising"])
        index._snapshot = SparseSnapshot(rows, SparseRows(read("terms"), read("weights"), read("ends")))
        if rows.count != meta["count"] or index._snapshot.stored.count != rows.count:
            raise StoreError(f"{folder} holds {rows.count} rows for {meta['count']}; build the index again.")
        return index

    def __repr__(self) -> str:
        return f"SparseIndex(rows={len(self)})"


def score_rows(snapshot: SparseSnapshot, queries: tuple[Integers, Floats, Integers]) -> list[tuple[Doubles, Array]]:
    """Return (scores, whether a term is shared) over all rows, for each query."""
    terms, weights, offsets = queries
    lists, count = snapshot.stored.lists, snapshot.stored.count
    return [
        lists.score(terms[low:high], weights[low:high], count)
        for low, high in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    ]


def select_rows(allowed: Flags | None, matches: Array | None) -> Array | None:
    """Return the mask of both conditions; None: all rows."""
    if allowed is None:
        return matches
    mask = np.asarray(allowed != 0)
    return mask if matches is None else np.asarray(mask & matches)


def find_best(scores: Doubles, mask: Array | None, k: int, rows: Rows) -> Integers:
    """Return the rows with the k highest scores, best first, equal scores by id."""
    chosen = np.arange(len(scores)) if mask is None else np.flatnonzero(mask)
    if len(chosen) > k:
        values = scores[chosen]
        chosen = chosen[values >= np.partition(values, len(values) - k)[len(values) - k]]
    return chosen[np.lexsort((rows.ids.rows[chosen], -scores[chosen]))][:k]


def _drop_removed(snapshot: SparseSnapshot) -> SparseSnapshot:
    if snapshot.rows.alive is None:
        return snapshot
    live = snapshot.rows.live_rows
    return SparseSnapshot(snapshot.rows.select_rows(live), snapshot.stored.select_rows(live))


def _list_places(offsets: Integers, numbers: Integers) -> tuple[Integers, Integers]:
    """(places of all entries of some lists, one after the other; their offsets)."""
    lengths = np.diff(offsets)[numbers]
    ends = np.cumsum(lengths)
    places = np.repeat(offsets[:-1][numbers] - (ends - lengths), lengths) + np.arange(int(lengths.sum()))
    return places, np.concatenate([[0], ends]).astype(np.int64)


def as_sparse_rows(vectors: Any, dim: int | None, what: str) -> tuple[Integers, Floats, Integers]:
    """Return (terms, weights, offsets) of sparse rows; several entries of a term count together."""
    if isinstance(vectors, tuple) and len(vectors) == 3:
        parts = [np.asarray(v.detach().cpu().numpy() if is_tensor(v) else v) for v in vectors]
        offsets, terms, weights = parts
        width = None
    else:
        if is_tensor(vectors) and str(vectors.layout) == "torch.sparse_csr":
            parts = [vectors.crow_indices(), vectors.col_indices(), vectors.values()]
            return as_sparse_rows(tuple(parts), dim if dim is not None else int(vectors.shape[1]), what)
        if not hasattr(vectors, "tocsr"):
            raise InputError(
                f"the {what} are {type(vectors).__name__}; give a SciPy sparse matrix [n, terms], "
                "or (indptr, indices, weights)."
            )
        if vectors.ndim != 2:
            raise InputError(f"the {what} have shape {vectors.shape}; give [n, terms], one vector as [1, terms].")
        matrix = vectors.tocsr()
        offsets, terms, weights, width = matrix.indptr, matrix.indices, matrix.data, int(matrix.shape[1])
    if dim is not None and width is not None and width != dim:
        raise InputError(f"the {what} have {width} terms, the index has {dim}; use the same model for both.")
    if weights.dtype.kind not in "biuf" or terms.dtype.kind not in "iu" or offsets.dtype.kind not in "iu":
        raise InputError(f"the {what} have {terms.dtype} terms and {weights.dtype} weights; give numbers.")
    offsets, terms = offsets.astype(np.int64), terms.astype(np.int64)
    if (
        offsets.ndim != 1
        or not len(offsets)
        or offsets[0] != 0
        or offsets[-1] != len(terms)
        or len(terms) != len(weights)
    ):
        raise InputError(f"the offsets of the {what} do not fit {len(terms)} terms and {len(weights)} weights.")
    if (np.diff(offsets) < 0).any():
        raise InputError(f"the offsets of the {what} decrease; give where each row begins, and the end of the last.")
    if len(terms) and (terms.min() < 0 or terms.max() >= (MAX_TERM if dim is None else dim)):
        wrong = int(terms.min() if terms.min() < 0 else terms.max())
        raise InputError(f"the {what} have term {wrong}; terms go from 0 to {(MAX_TERM if dim is None else dim) - 1}.")
    with np.errstate(over="ignore"):
        values = weights.astype(np.float32)
    if not np.isfinite(values).all():
        place = int(np.flatnonzero(~np.isfinite(values))[0])
        row = int(np.searchsorted(offsets, place, "right")) - 1
        raise InputError(f"row {row} of the {what} holds {weights[place]} for term {terms[place]}; correct it first.")
    return terms, values, offsets
