"""FAISS's calls on Ridgeline's indexes: one changed import line moves a program here.

>>> import numpy as np
>>> from ridgeline.search.compat import faiss
>>> index = faiss.IndexFlatL2(2)
>>> index.add(np.array([[0.0, 0.0], [3.0, 4.0]]))
>>> distances, ids = index.search(np.array([[3.0, 3.0]]), 3)
>>> ids.tolist()
[[1, 0, -1]]

Defaults are those of FAISS: METRIC_L2, nprobe 1, ids counted from 0. Results are exact for what is stored.
Three things differ: an id is never given twice, so ids after a removal from lists continue above the largest; wrong
input raises InputError with a sentence; and `device="cuda"` at a constructor puts the index on a GPU. Files need the
library itself (faiss-cpu). What is not here is refused by its name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ridgeline.errors import InputError
from ridgeline.search.arrays import Array, Floats, Integers
from ridgeline.search.engine import EngineConfig
from ridgeline.search.index import Index as _Index
from ridgeline.search.inputs import as_ids, as_matrix
from ridgeline.search.snapshot import drop_all_rows, number_rows
from ridgeline.search.spec import Spec

__all__ = [
    "METRIC_INNER_PRODUCT",
    "METRIC_L2",
    "IDSelectorArray",
    "IDSelectorBatch",
    "IDSelectorNot",
    "IDSelectorRange",
    "Index",
    "IndexFlat",
    "IndexFlatIP",
    "IndexFlatL2",
    "IndexHNSWFlat",
    "IndexIDMap",
    "IndexIDMap2",
    "IndexIVF",
    "IndexIVFFlat",
    "IndexIVFPQ",
    "IndexRefine",
    "IndexRefineFlat",
    "SearchParameters",
    "SearchParametersHNSW",
    "SearchParametersIVF",
    "extract_index_ivf",
    "index_factory",
    "normalize_L2",
    "read_index",
    "write_index",
]

METRIC_INNER_PRODUCT, METRIC_L2 = 0, 1
_METRICS = {METRIC_INNER_PRODUCT: "ip", METRIC_L2: "l2"}
_NOTHING = float(np.finfo(np.float32).max)  # the distance of a missing result


class _Selector(Protocol):
    def is_member(self, ids: Integers) -> Array: ...


class IDSelectorBatch:
    """Rows with these ids."""

    def __init__(self, ids: Any) -> None:
        self.ids = as_ids(ids)

    def is_member(self, ids: Integers) -> Array:
        return np.isin(ids, self.ids)


IDSelectorArray = IDSelectorBatch


class IDSelectorRange:
    """Rows with ids from `imin` to `imax` - 1."""

    def __init__(self, imin: int, imax: int) -> None:
        self.imin, self.imax = imin, imax

    def is_member(self, ids: Integers) -> Array:
        return np.asarray((ids >= self.imin) & (ids < self.imax))


class IDSelectorNot:
    """The rows that another selector leaves out."""

    def __init__(self, sel: _Selector) -> None:
        self.sel = sel

    def is_member(self, ids: Integers) -> Array:
        return ~self.sel.is_member(ids)


@dataclass
class SearchParameters:
    """Parameters of one search."""

    sel: _Selector | None = None


@dataclass
class SearchParametersIVF(SearchParameters):
    """Parameters of one search in lists."""

    nprobe: int | None = None


@dataclass
class SearchParametersHNSW(SearchParameters):
    """Parameters of one search in a graph."""

    efSearch: int | None = None


class Index:
    """What all indexes share; `rows` is the Ridgeline index underneath."""

    def __init__(self, rows: _Index) -> None:
        self.rows = rows
        self.verbose = False

    @property
    def d(self) -> int:
        return self.rows.dim or 0

    @property
    def ntotal(self) -> int:
        return len(self.rows)

    @property
    def is_trained(self) -> bool:
        return self.rows.trained

    @property
    def metric_type(self) -> int:
        return METRIC_L2 if self.rows.metric == "l2" else METRIC_INNER_PRODUCT

    def train(self, x: Any) -> None:
        """Train lists and codes; an index without any, or one that is trained, does nothing, as in FAISS."""
        if not self.rows.trained:
            self.rows.train(x)

    def add(self, x: Any) -> None:
        self.rows.add(x)

    def add_with_ids(self, x: Any, ids: Any) -> None:
        raise InputError(f"{type(self).__name__} numbers its rows itself; wrap it: IndexIDMap(index).add_with_ids.")

    def remove_ids(self, ids: Any) -> int:
        """Remove rows by ids or a selector and return their number; the rows that follow get smaller ids."""
        count = self._remove(ids)
        if count:
            with self.rows._lock:
                self.rows._snapshot = number_rows(self.rows._snapshot)
        return count

    def search(
        self,
        x: Any,
        k: int,
        *,
        params: SearchParameters | None = None,
        D: Any = None,
        I: Any = None,  # noqa: E741
    ) -> tuple[Floats, Integers]:
        """Return (distances [n, k], ids [n, k]), best first; a missing result has id -1 and the largest distance."""
        values = as_matrix(x, self.d or None, "queries")
        scores, ids = self.rows.search(values, k, **self._read_parameters(params))
        missing = ids < 0
        if missing.any():
            scores = np.where(missing, np.float32(_NOTHING if self.rows.metric == "l2" else -_NOTHING), scores)
        for given, result in ((D, scores), (I, ids)):
            if given is not None:
                given[...] = result
        return scores if D is None else D, ids if I is None else I

    def range_search(
        self, x: Any, thresh: float, *, params: SearchParameters | None = None
    ) -> tuple[Array, Floats, Integers]:
        """Return (limits [n + 1], distances, ids): the rows above `thresh` (METRIC_INNER_PRODUCT) or below it."""
        settings = self._read_parameters(params)
        limits, scores, ids = self.rows.range_search(as_matrix(x, self.d or None, "queries"), thresh, **settings)
        return limits.astype(np.uint64), scores, ids

    def assign(self, x: Any, k: int = 1) -> Integers:
        """Return ids [n, k] of the nearest rows."""
        return self.search(x, k)[1]

    def reconstruct(self, key: int) -> Floats:
        """Return float32 [d]: the stored vector of one id."""
        vector: Floats = self.reconstruct_batch([key])[0]
        return vector

    def reconstruct_batch(self, key: Any) -> Floats:
        """Return float32 [n, d]: the stored vectors of these ids."""
        return np.asarray(self.rows.reconstruct(as_ids(key)))

    def reconstruct_n(self, n0: int = 0, ni: int = -1) -> Floats:
        """Return float32 [ni, d]: the stored vectors of the ids from `n0` on."""
        return self.reconstruct_batch(np.arange(n0, n0 + (self.ntotal - n0 if ni < 0 else ni)))

    def reset(self) -> None:
        """Remove all rows; what was trained stays."""
        with self.rows._lock:
            self.rows._snapshot = drop_all_rows(self.rows._snapshot)

    def _remove(self, ids: Any) -> int:
        present = self.rows.ids
        chosen = present[ids.is_member(present)] if hasattr(ids, "is_member") else np.unique(as_ids(ids))
        return self.rows.remove(chosen[np.isin(chosen, present)])

    def _read_parameters(self, params: SearchParameters | None) -> dict[str, Any]:
        if params is None:
            return {}
        if not isinstance(params, SearchParameters):
            raise InputError(
                f"params is {type(params).__name__}; give SearchParameters or SearchParametersIVF of here."
            )
        settings: dict[str, Any] = {}
        if params.sel is not None:
            settings["where"] = params.sel.is_member(self.rows.ids)
        if isinstance(params, SearchParametersIVF) and params.nprobe is not None:
            settings["nprobe"] = params.nprobe
        if isinstance(params, SearchParametersHNSW) and params.efSearch is not None:
            settings["ef"] = params.efSearch
        return settings


class IndexFlat(Index):
    """Every search compares all vectors."""

    def __init__(self, d: int, metric: int = METRIC_L2, *, device: str = "cpu") -> None:
        super().__init__(_make_rows("Flat", d, metric, device))


class IndexFlatL2(IndexFlat):
    def __init__(self, d: int, *, device: str = "cpu") -> None:
        super().__init__(d, METRIC_L2, device=device)


class IndexFlatIP(IndexFlat):
    def __init__(self, d: int, *, device: str = "cpu") -> None:
        super().__init__(d, METRIC_INNER_PRODUCT, device=device)


class HNSW:
    """The settings of a graph."""

    def __init__(self, rows: _Index) -> None:
        self._rows = rows

    @property
    def efSearch(self) -> int:
        """The rows that a walk keeps; FAISS's default is 16."""
        return self._rows.ef

    @efSearch.setter
    def efSearch(self, value: int) -> None:
        self._rows.ef = value


class IndexHNSWFlat(Index):
    """A graph of the vectors with `M` links per row. It is built with 100 rows per walk (efConstruction)."""

    def __init__(self, d: int, M: int = 32, metric: int = METRIC_L2) -> None:
        super().__init__(_make_rows(f"HNSW{M}", d, metric, "cpu"))
        self.hnsw = HNSW(self.rows)


class _OwnIds(Index):
    """Rows that keep their ids."""

    def add_with_ids(self, x: Any, ids: Any) -> None:
        self.rows.add(x, ids=ids)

    def remove_ids(self, ids: Any) -> int:
        """Remove rows by ids or a selector and return their number; other rows keep their ids."""
        return self._remove(ids)


class IndexIVF(_OwnIds):
    """Vectors in lists; a search reads `nprobe` of them."""

    def __init__(self, rows: _Index, quantizer: Index | None = None) -> None:
        super().__init__(rows)
        self.quantizer = quantizer

    @property
    def nlist(self) -> int:
        return self.rows._get_spec().lists or 0

    @property
    def nprobe(self) -> int:
        return self.rows.nprobe

    @nprobe.setter
    def nprobe(self, value: int) -> None:
        self.rows.nprobe = value

    def train(self, x: Any) -> None:
        """Train lists and codes; a quantizer that has a row for each list gives the centres."""
        if self.is_trained:
            return
        quantizer, spec = self.quantizer, self.rows._get_spec()
        if quantizer is not None and quantizer.ntotal and spec.codec == "Flat" and not spec.refine:
            if quantizer.ntotal != self.nlist:
                raise InputError(
                    f"the quantizer has {quantizer.ntotal} rows for {self.nlist} lists; give one for each, or none."
                )
            _set_centres(self.rows, quantizer.reconstruct_n())
            return
        super().train(x)


class IndexIVFFlat(IndexIVF):
    def __init__(self, quantizer: Index, d: int, nlist: int, metric: int = METRIC_L2, *, device: str = "cpu") -> None:
        _check_quantizer(quantizer, d)
        super().__init__(_make_rows(f"IVF{nlist},Flat", d, metric, device), quantizer)


class IndexIVFPQ(IndexIVF):
    def __init__(
        self,
        quantizer: Index,
        d: int,
        nlist: int,
        M: int,
        nbits: int = 8,
        metric: int = METRIC_L2,
        *,
        device: str = "cpu",
    ) -> None:
        _check_quantizer(quantizer, d)
        if nbits != 8:
            raise InputError(f"nbits is {nbits}; the codes of a part have 8 bits.")
        super().__init__(_make_rows(f"IVF{nlist},PQ{M}", d, metric, device), quantizer)


class IndexRefine(Index):
    """Candidates of one codec, ranked again by a finer one: `k_factor` of them for each result."""

    def __init__(self, rows: _Index) -> None:
        super().__init__(rows)
        self.base_index: Index = IndexIVF(rows) if rows._get_spec().lists else Index(rows)

    @property
    def k_factor(self) -> float:
        return float(self.rows.depth)

    @k_factor.setter
    def k_factor(self, value: float) -> None:
        self.rows.depth = max(1, round(value))

    @property
    def nprobe(self) -> int:
        return self.rows.nprobe

    @nprobe.setter
    def nprobe(self, value: int) -> None:
        self.rows.nprobe = value


class IndexRefineFlat(IndexRefine):
    """An empty index, refined by the values themselves."""

    def __init__(self, base_index: Index) -> None:
        if base_index.ntotal or (base_index.is_trained and base_index.rows._get_spec().trains):
            raise InputError("the index below IndexRefineFlat must be new; train and add through the outer one.")
        rows = base_index.rows
        spec = f"{rows.spec},Refine(Flat)"
        super().__init__(_make_rows(spec, base_index.d, base_index.metric_type, rows.device, rows.dtype))
        self.rows.nprobe = rows.nprobe


class IndexIDMap(_OwnIds):
    """An empty index whose rows get the ids of the caller."""

    def __init__(self, index: Index) -> None:
        if index.ntotal:
            raise InputError(f"the index below {type(self).__name__} has {index.ntotal} rows; it must be empty.")
        super().__init__(index.rows)
        self.index = index

    def add(self, x: Any) -> None:
        raise InputError(f"{type(self).__name__} takes vectors with their ids: add_with_ids(x, ids).")


class IndexIDMap2(IndexIDMap):
    pass


def index_factory(d: int, description: str, metric: int = METRIC_L2, *, device: str = "cpu") -> Index:
    """Make an index from a description of FAISS.

    There are Flat, SQ8, SQfp16, IVFn,… of them, IVFn,PQm, each with ,RFlat or ,Refine(…), and IDMap before it;
    L2norm with METRIC_INNER_PRODUCT is cosine.
    """
    words = _split_description(description)
    mapped, unit, dtype = None, False, "float32"
    while words and words[0].lower() in ("idmap", "idmap2", "l2norm"):
        word = words.pop(0).lower()
        unit, mapped = unit or word == "l2norm", mapped if word == "l2norm" else word
    if unit and metric != METRIC_INNER_PRODUCT:
        raise InputError(f"'{description}' normalizes vectors; give METRIC_INNER_PRODUCT, which makes it cosine.")
    for number, word in enumerate(words):
        short = word.lower()
        if short == "rflat":
            words[number] = "Refine(Flat)"
        elif short == "sqfp16":
            words[number], dtype = "Flat", "float16"
        elif short.startswith("pq") and short.endswith("x8"):
            words[number] = word[:-2]
    if dtype == "float16" and words[-1].lower() == "refine(flat)":
        raise InputError(f"'{description}' refines float16 by float32; use one of them.")
    rows = _make_rows(",".join(words), d, metric, device, dtype, unit)
    index = _wrap(rows)
    if mapped is None:
        return index
    return IndexIDMap(index) if mapped == "idmap" else IndexIDMap2(index)


def extract_index_ivf(index: Index) -> IndexIVF:
    """Return the lists of an index, to set `nprobe`."""
    if isinstance(index, IndexIVF):
        return index
    if index.rows._get_spec().lists is None:
        raise InputError(f"{type(index).__name__} has no lists.")
    return IndexIVF(index.rows)


def normalize_L2(x: Floats) -> None:
    """Scale rows to length 1, in place; a zero row stays zero."""
    lengths = np.sqrt(np.einsum("ij,ij->i", x, x, dtype=np.float64))
    x /= np.where(lengths > 0, lengths, 1)[:, None].astype(x.dtype)


def write_index(index: Index, fname: str | os.PathLike[str]) -> None:
    """Write the file that FAISS reads, too."""
    index.rows.export_faiss(fname)


def read_index(fname: str | os.PathLike[str], *, device: str = "cpu") -> Index:
    """Read a file of FAISS."""
    index = _wrap(_Index.from_faiss(fname, device=device))
    if not isinstance(index, IndexIVF) and not np.array_equal(index.rows.ids, np.arange(index.ntotal)):
        mapped = IndexIDMap2.__new__(IndexIDMap2)
        Index.__init__(mapped, index.rows)
        mapped.index = index
        return mapped
    return index


def _wrap(rows: _Index) -> Index:
    spec = rows._get_spec()
    if spec.refine:
        return IndexRefine(rows)
    if spec.lists:
        return IndexIVF(rows)
    if spec.links:
        graph = IndexHNSWFlat.__new__(IndexHNSWFlat)
        Index.__init__(graph, rows)
        graph.hnsw = HNSW(rows)
        return graph
    if spec == Spec("Flat") and rows.dtype == "float32":
        flat = IndexFlat.__new__(IndexFlat)
        Index.__init__(flat, rows)
        return flat
    return Index(rows)


def _make_rows(spec: str, d: int, metric: int, device: str, dtype: str = "float32", unit: bool = False) -> _Index:
    if metric not in _METRICS:
        raise InputError(f"metric {metric!r} is not here; there are METRIC_INNER_PRODUCT (0) and METRIC_L2 (1).")
    if isinstance(d, bool) or not isinstance(d, int | np.integer) or d < 1:
        raise InputError(f"d is {d!r}; give the number of a vector's components, 1 or more.")
    rows = _Index(spec, dim=int(d), metric="cosine" if unit else _METRICS[metric], device=device, dtype=dtype)
    if rows._get_spec().lists:
        rows.nprobe = 1
    if rows._get_spec().refine:
        rows.depth = 1
    if rows._get_spec().links:
        rows.ef = 16
    return rows


def _set_centres(rows: _Index, centres: Floats) -> None:
    """Give an IVFn,Flat index its centres; nothing is trained."""
    config = EngineConfig(rows._get_spec(), rows.metric, int(centres.shape[1]), rows.dtype)
    arrays: dict[str, Array] = {
        "centres": centres,
        "rows": np.zeros(0, np.int64),
        "offsets": np.zeros(len(centres) + 1, np.int64),
        "codes": np.zeros(centres[:0].shape, rows.dtype),
        "longest": np.zeros(1),
    }
    if rows.metric == "l2":
        arrays["biases"] = np.zeros(0, np.float32)
    with rows._lock:
        rows._snapshot = replace(rows._snapshot, engine=rows._backend.restore_engine(config, arrays))


def _check_quantizer(quantizer: Any, d: int) -> None:
    if not isinstance(quantizer, IndexFlat):
        raise InputError(f"the quantizer is {type(quantizer).__name__}; give an IndexFlatL2 or IndexFlatIP of here.")
    if quantizer.d != d:
        raise InputError(f"the quantizer has {quantizer.d} dimensions and the index {d}; give equal ones.")


def _split_description(description: str) -> list[str]:
    if not isinstance(description, str):
        raise InputError(f"the description is {description!r}; give a text like 'IVF1024,Flat'.")
    words: Iterable[str] = (word.strip() for word in description.split(","))
    return list(words)
