"""What an index asks of the machine it lives on: a *place* makes engines, an *engine* holds vectors and finds them.

An engine never changes: `added` and `taken` give a new one that shares what it can, so a search goes on over the one
it began with. Rows are counted from 0 in the order they came; ids, filters and removals are the index's business.

A place for GPUs is a module of its own, named in `PLACES`; vectors, queries and answers are then tensors of that GPU,
and nothing here or in index.py looks inside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from ridgeline.machine import device_named
from ridgeline.search.arrays import Array
from ridgeline.search.spec import Spec

PLACES = {"cpu": "ridgeline.search.cpu", "cuda": "ridgeline.search.cuda"}


@dataclass(frozen=True)
class Ask:
    """One search: how many, how thoroughly, among which rows."""

    k: int
    nprobe: int = 1  # lists looked at
    depth: int = 1  # times k candidates are ranked again by the refining codec
    allowed: Array | None = None  # uint8 [rows], on the CPU: 1 where a row may be found
    ids: Array | None = None  # int64 [rows], on the CPU: equal scores go by it; None: by row


@dataclass(frozen=True)
class Recipe:
    """What every engine of an index is made by."""

    spec: Spec
    metric: str
    dim: int
    dtype: str  # of Flat codes: float32 or float16


class Engine(Protocol):
    @property
    def recipe(self) -> Recipe: ...
    @property
    def count(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Of all it holds."""

    def added(self, vectors: Any) -> Engine: ...
    def taken(self, rows: Array) -> Engine:
        """Of these rows only, in this order."""

    def search(self, queries: Any, ask: Ask) -> tuple[Any, Any]:
        """(scores [q, k], rows [q, k]), best first; cosine and ip high, l2 squared distances; rows −1 where none is."""

    def within(self, queries: Any, radius: float, ask: Ask) -> tuple[Any, Any, Any]:
        """(limits [q + 1], scores, rows): all rows nearer than `radius`, best first for each query."""

    def vectors(self, rows: Array) -> Any:
        """float32 [n, d]: the stored values, by the finest codec there is."""

    def arrays(self) -> Mapping[str, Array]:
        """All it holds and learnt, as NumPy arrays to be kept in files."""


class Place(Protocol):
    @property
    def device(self) -> str: ...

    def take_in(self, vectors: Any, dim: int | None, metric: str, what: str) -> Any:
        """Vectors as its engines want them, finite, of unit length for cosine; an InputError names a bad row."""

    def give_back(self, values: Any, like: Any) -> Any:
        """An answer in the kind of `like`: NumPy for NumPy, a tensor on the same device for a tensor."""

    def trained(self, recipe: Recipe, vectors: Any, seed: int) -> Engine:
        """An engine that learnt from `vectors` and holds none."""

    def restored(self, recipe: Recipe, arrays: Mapping[str, Array]) -> Engine: ...


def place_of(device: str) -> Place:
    """The place of that name; auto is the GPU where torch and a GPU are there, else the CPU."""
    named = device_named(device)
    place: Place = import_module(PLACES[named.partition(":")[0]]).open_place(named)
    return place
