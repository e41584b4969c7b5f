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
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.errors import InputError, unknown
from ridgeline.search import recall as recalls
from ridgeline.search.arrays import Flags, Whole
from ridgeline.search.engine import Ask, Engine, Place, Recipe, place_of
from ridgeline.search.inputs import is_tensor, numbers, refuse_shape
from ridgeline.search.masks import allowed_rows
from ridgeline.search.metric import checked_metric
from ridgeline.search.recall import Curve
from ridgeline.search.rows import no_rows
from ridgeline.search.spec import Spec, chosen, fitting, parse
from ridgeline.search.state import State, ids_of, open_door, swept

if TYPE_CHECKING:
    from ridgeline.search.sharded import ShardedIndex

DTYPES = ("auto", "float32", "float16")
DEPTHS = {"Flat": 1, "SQ8": 2, "PQ": 8}  # where neither depth nor recall is asked for: what a codec loses
MOST = 2**32  # neighbours in one answer: 48 GiB, mostly of rows that are not there
SWEEP = 0.25  # share of removed rows at which they are swept away


class Index:
    """Vectors with ids, found by nearness.

    spec    Flat, SQ8, IVFn,Flat, IVFn,SQ8, IVFn,PQm, each with ,Refine(Flat|SQ8) if wanted; Auto
    dim     taken from the first vectors where not given
    metric  cosine (vectors are kept at length 1) or ip: high is near; l2: squared distance, low is near
    device  auto, cpu, cuda, cuda:N
    dtype   of Flat values: float32 or float16; auto is float32 on a CPU, float16 on a GPU
    model   the name of the model that made the vectors, kept with them

    Safe to use from several threads: a search sees all of an add or nothing of it.
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
        self._asked = parse(spec)
        self.metric = checked_metric(metric)
        if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1):
            raise InputError(f"dim is {dim!r}; give the number of a vector's components, 1 or more.")
        if dtype not in DTYPES:
            raise unknown("dtype", dtype, DTYPES)
        if dim is not None and self._asked is not None:
            fitting(self._asked, dim)
        self.model = model
        self._dim = None if dim is None else int(dim)
        self._place: Place = place_of(device)
        kind = self._place.device.partition(":")[0]
        self.dtype = dtype if dtype != "auto" else "float16" if kind == "cuda" else "float32"
        self._lock = threading.Lock()
        self._state = State(no_rows())
        self._warned: set[str] = set()

    @classmethod
    def sharded(cls, devices: Sequence[str], spec: str = "Flat", **settings: Any) -> ShardedIndex:
        """One index over several devices, each with a share of the rows; answers are merged exactly."""
        from ridgeline.search.sharded import ShardedIndex

        return ShardedIndex(devices, spec, **settings)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], verify: bool = False, *, device: str = "cpu", mmap: bool = True
    ) -> Index:
        """An index that was saved; `verify` holds every file against its checksum and names the one that differs."""
        from ridgeline.search.files import load

        return load(cls, path, verify=verify, device=device, mmap=mmap)

    @property
    def spec(self) -> str:
        engine = self._state.engine
        known = engine.recipe.spec if engine is not None else self._asked
        return str(known) if known is not None else "Auto"

    @property
    def dim(self) -> int | None:
        engine = self._state.engine
        return self._dim if engine is None else engine.recipe.dim

    @property
    def device(self) -> str:
        return self._place.device

    @property
    def trained(self) -> bool:
        return self._state.engine is not None or (self._asked is not None and not self._asked.trains)

    @property
    def ids(self) -> Whole:
        """Of all rows, in the order they were added."""
        rows = self._state.rows
        return rows.ids.rows[rows.live_rows].copy()

    @property
    def meta(self) -> Any:
        """What was given with the rows, as a pyarrow Table in the order of `ids`; None where nothing was."""
        rows = self._state.rows
        return None if rows.meta is None else rows.meta if rows.alive is None else rows.meta.take(rows.live_rows)

    @property
    def exact(self) -> bool:
        """Whether every search looks at every value that was given."""
        engine = self._state.engine
        known = engine.recipe.spec if engine is not None else self._asked
        return known is not None and known.exact

    def rows_of(self, ids: Any) -> Whole:
        """Where these ids stand in `ids` and `meta`."""
        rows = self._state.rows
        found = rows.found(numbers(ids), "ask only for")
        return found if rows.alive is None else np.searchsorted(rows.live_rows, found)

    @property
    def curve(self) -> Curve | None:
        """What `measure_recall` found."""
        return self._state.curve

    def __len__(self) -> int:
        return self._state.rows.live

    def train(self, vectors: Any, *, seed: int = 0) -> None:
        """Learn lists and codes from vectors like those to come; needed once, before `add`, where the spec has any."""
        with self._lock:
            if len(self._state.rows.ids.rows):
                raise InputError(f"the index holds {len(self)} rows and is trained; make a new one to train anew.")
            given = self._place.take_in(vectors, self.dim, self.metric, "training vectors")
            self._state = replace(self._state, engine=self._made(given, seed))

    def add(self, vectors: Any, ids: Any = None, meta: Any = None) -> None:
        """Take in vectors [n, dim], with ids of their own (else counted on) and columns to filter by."""
        with self._lock:
            state = self._state
            given = self._place.take_in(vectors, self.dim, self.metric, "vectors")
            if state.engine is None and self._asked is not None and self._asked.trains:
                raise InputError(f"'{self.spec}' must be trained before add; call train with vectors like these.")
            rows = state.rows.added(len(given), ids, meta)
            engine = state.engine or self._made(given, 0)
            self._state = replace(state, rows=rows, engine=engine.added(given))

    def remove(self, ids: Any) -> int:
        """Take rows out; the number of them. An id that is not there is an error, and nothing is removed."""
        with self._lock:
            state = self._state
            gone = np.unique(state.rows.found(numbers(ids), "remove only"))
            if not len(gone):
                return 0
            rows = state.rows.removed(gone)
            if rows.count - rows.live > SWEEP * rows.count:
                self._state = swept(replace(state, rows=rows))
            else:
                self._state = replace(state, rows=rows)
            return len(gone)

    def search(
        self,
        queries: Any,
        k: int,
        *,
        nprobe: int | None = None,
        depth: int | None = None,
        recall: float | None = None,
        where: Any = None,
    ) -> tuple[Any, Any]:
        """(scores float32 [q, k], ids int64 [q, k]), best first; where fewer than k are there, ids end in −1.

        nprobe  lists to look at; by default the square root of their number
        depth   with Refine: times k candidates ranked again; by default 2 for SQ8, 8 for PQ
        recall  instead of both: the quickest setting that `measure_recall` found to reach it
        where   "year >= 90", a mask [len(index)], or ids (masks.py)

        Queries on a GPU are not waited for, and so not refused: one that is not finite finds nothing (nan and −1).
        """
        state, words = self._state, None
        if where is None and (type(queries) is np.ndarray or is_tensor(queries)):
            words = (queries.shape, queries.dtype, getattr(queries, "device", None), k, nprobe, depth, recall)
            door = state.doors.get(words)
            if door is not None:
                return door(queries)  # type: ignore[no-any-return]
        scores, ids = self._search(state, queries, k, nprobe, depth, recall, where, words)
        with np.errstate(over="ignore"):
            scores = scores.astype(np.float32) if isinstance(scores, np.ndarray) else scores.float()
        return self._place.give_back(scores, queries), self._place.give_back(ids, queries)

    def range_search(
        self, queries: Any, radius: float, *, nprobe: int | None = None, where: Any = None
    ) -> tuple[Any, Any, Any]:
        """(limits [q + 1], scores, ids): all rows above `radius` (cosine, ip) or below it (l2), best first.

        Those of query i lie at limits[i]:limits[i + 1].
        """
        back = self._place.give_back
        limits, scores, ids = self._within(self._state, queries, radius, nprobe, where)
        return back(limits, queries), back(scores, queries), back(ids, queries)

    def reconstruct(self, ids: Any) -> Any:
        """float32 [n, dim]: the stored values of these ids (cosine: at length 1)."""
        state = self._state
        rows = state.rows.found(numbers(ids), "reconstruct only")
        if state.engine is None:
            return np.zeros((0, self.dim or 0), np.float32)
        return self._place.give_back(state.engine.vectors(rows), ids)

    def measure_recall(self, sample: int = 1000, k: int = 10, *, originals: Any = None, seed: int = 0) -> Curve:
        """Find out how much each setting finds of the true k nearest, and keep it (recall.py).

        originals  the vectors as they were added, in the order of `ids`: the truth for codes that lost something
        """
        if k < 1 or sample < 1:
            raise InputError(f"sample is {sample} and k is {k}; both must be 1 or more.")
        with self._lock:
            state = swept(self._state)
            self._state = state
        engine = state.engine
        if engine is None or not len(self):
            raise InputError("the index is empty, so there is nothing to measure; add vectors first.")
        curve = recalls.curve_of(self._place, engine, min(sample, engine.count), k, originals, seed)
        with self._lock:
            self._state = replace(self._state, curve=curve)
            self._warned.clear()
        return curve

    def stats(self) -> dict[str, Any]:
        """What it is, what it holds and what that takes."""
        state = self._state
        size = state.engine.nbytes if state.engine is not None else 0
        return {
            "spec": self.spec,
            "metric": self.metric,
            "dim": self.dim,
            "dtype": self.dtype,
            "device": self.device,
            "count": state.rows.live,
            "removed": state.rows.count - state.rows.live,
            "trained": self.trained,
            "bytes": size,
            "columns": [] if state.rows.meta is None else list(state.rows.meta.column_names),
            "model": self.model,
            "recall": None if state.curve is None else state.curve.to_json(),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a folder that is whole or not there; an older one is replaced in one step."""
        from ridgeline.search.files import save

        save(self, self._swept_state(), path)

    def export_faiss(self, path: str | os.PathLike[str]) -> None:
        """Write a file for `faiss.read_index`."""
        from ridgeline.search.export import export_faiss

        export_faiss(self._swept_state(), path)

    def __repr__(self) -> str:
        return f"Index('{self.spec}', dim={self.dim}, metric='{self.metric}', device='{self.device}', rows={len(self)})"

    def _swept_state(self) -> State:
        state = swept(self._state)
        if state.engine is None:
            raise InputError("the index holds nothing yet; train it or add vectors first.")
        return state

    def _made(self, given: Any, seed: int) -> Engine:
        dim = self._dim or int(given.shape[1])
        spec = self._asked if self._asked is not None else chosen(len(given))
        fitting(spec, dim)
        return self._place.trained(Recipe(spec, self.metric, dim, self.dtype), given, seed)

    def _queries(self, state: State, queries: Any) -> Any:
        if state.engine is None and self._asked is not None and self._asked.trains:
            raise InputError(f"'{self.spec}' must be trained before search; call train, then add.")
        if hasattr(queries, "shape"):
            refuse_shape(tuple(queries.shape), self.dim, "queries")
        return self._place.take_in(queries, self.dim, self.metric, "queries")

    def _search(
        self,
        state: State,
        queries: Any,
        k: int,
        nprobe: int | None,
        depth: int | None,
        recall: float | None,
        where: Any,
        words: Any = None,
    ) -> tuple[Any, Any]:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise InputError(f"k is {k!r}; ask for 1 neighbour or more.")
        given = self._queries(state, queries)
        if len(given) * int(k) > MOST:
            raise InputError(f"{len(given)} × {k} neighbours are too many; there are {state.rows.live} rows, lower k.")
        if recall is not None:
            if nprobe is not None or depth is not None:
                raise InputError("recall= chooses nprobe and depth; give it or them, not both.")
            nprobe, depth = recalls.reaching(state, recall, self._warned)
        allowed = allowed_rows(state.rows, where)
        if state.engine is None:
            nothing = np.inf if self.metric == "l2" else -np.inf
            return np.full((len(given), k), nothing), np.full((len(given), k), -1, np.int64)
        ask = self._ask(state, int(k), nprobe, depth, allowed)
        scores, rows = state.engine.search(given, ask)
        if words is not None and (type(queries) is np.ndarray or str(queries.device) == self._place.device):
            open_door(state, words, given, ask)
        return scores, ids_of(state.rows, rows)

    def _within(
        self, state: State, queries: Any, radius: float, nprobe: int | None, where: Any
    ) -> tuple[Any, Any, Any]:
        if not isinstance(radius, int | float | np.number) or np.isnan(radius):
            raise InputError(f"radius is {radius!r}; give a number.")
        given = self._queries(state, queries)
        if state.engine is None:
            return np.zeros(len(given) + 1, np.int64), np.zeros(0, np.float32), np.zeros(0, np.int64)
        ask = self._ask(state, 1, nprobe, None, allowed_rows(state.rows, where))
        limits, scores, found = state.engine.within(given, float(radius), ask)
        with np.errstate(over="ignore"):
            scores = scores.astype(np.float32) if isinstance(scores, np.ndarray) else scores.float()
        return limits, scores, ids_of(state.rows, found)

    def _ask(self, state: State, k: int, nprobe: int | None, depth: int | None, allowed: Flags | None) -> Ask:
        spec = state.engine.recipe.spec if state.engine is not None else Spec("Flat")
        for name, value in (("nprobe", nprobe), ("depth", depth)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1):
                raise InputError(f"{name} is {value!r}; give a whole number, 1 or more.")
        lists = spec.lists or 1
        nprobe = min(lists, int(nprobe)) if nprobe is not None else max(1, round(lists**0.5))
        depth = (int(depth) if depth is not None else DEPTHS[spec.codec]) if spec.refine else 1
        ids = None if state.rows.rising else state.rows.names
        return Ask(k, nprobe, depth, allowed, ids)
