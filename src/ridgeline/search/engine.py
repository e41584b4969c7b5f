"""Interfaces between an index and a device: a backend makes engines, an engine stores vectors and searches them.

An engine never changes: `append` and `select_rows` return a new engine that shares memory with the old one, so a
search continues on the engine it started with. Rows are numbered from 0 in the order they were added; the index
handles ids, filters and removals.

The backend of a device is a module, listed in `BACKENDS`. On a GPU vectors, queries and results are tensors of that
GPU; index.py never looks inside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from ridgeline.machine import resolve_device
from ridgeline.search.arrays import Array
from ridgeline.search.spec import Spec

BACKENDS = {"cpu": "ridgeline.search.cpu", "cuda": "ridgeline.search.cuda"}


@dataclass(frozen=True)
class SearchOptions:
    """One search: how many results, how many lists and candidates, which rows."""

    k: int
    nprobe: int = 1  # lists to read; HNSW: rows that the walk keeps (ef)
    depth: int = 1  # depth · k candidates are ranked again by the refiner
    allowed: Array | None = None  # uint8 [rows], on the CPU: 1 where a row may be returned
    ids: Array | None = None  # int64 [rows], on the CPU: equal scores go by it; None: by row
    filtered: bool = False  # whether rows are left out by a filter, not only because they were removed
    own_rows: Array | None = None  # int64 [queries]: HNSW: the row of each query, which the walk avoids


@dataclass(frozen=True)
class EngineConfig:
    """The settings that all engines of an index share."""

    spec: Spec
    metric: str
    dim: int
    dtype: str  # of Flat codes: float32 or float16


class Engine(Protocol):
    """Vectors on one device."""

    @property
    def config(self) -> EngineConfig: ...
    @property
    def count(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """The size of all arrays."""

    def append(self, vectors: Any) -> Engine: ...
    def select_rows(self, rows: Array) -> Engine:
        """Return an engine with these rows only, in this order."""

    def search(self, queries: Any, options: SearchOptions) -> tuple[Any, Any]:
        """(scores [q, k], rows [q, k]), best first; cosine and ip: high is near, l2: squared distances; missing rows
        are −1.
        """

    def search_radius(self, queries: Any, radius: float, options: SearchOptions) -> tuple[Any, Any, Any]:
        """(limits [q + 1], scores, rows): all rows nearer than `radius`, best first for each query."""

    def vectors(self, rows: Array) -> Any:
        """float32 [n, d]: the stored values, by the finest codec of the index."""

    def arrays(self) -> Mapping[str, Array]:
        """All stored and trained data as NumPy arrays, by the names of their files."""


class Backend(Protocol):
    """Makes engines on one device."""

    @property
    def device(self) -> str: ...

    def prepare_vectors(self, vectors: Any, dim: int | None, metric: str, what: str) -> Any:
        """Return vectors as the engines need them: finite, of unit length for cosine; an InputError names a bad row."""

    def convert_like(self, values: Any, like: Any) -> Any:
        """Return a result in the type of `like`: NumPy for NumPy, a tensor on the same device for a tensor."""

    def train_engine(self, config: EngineConfig, vectors: Any, seed: int) -> Engine:
        """Return an engine that is trained on `vectors` and stores none of them."""

    def restore_engine(self, config: EngineConfig, arrays: Mapping[str, Array]) -> Engine: ...


def find_backend(device: str) -> Backend:
    """Return the backend of a device; "auto" is the GPU if torch and a GPU are available, else the CPU."""
    name = resolve_device(device)
    backend: Backend = import_module(BACKENDS[name.partition(":")[0]]).open_backend(name)
    return backend
